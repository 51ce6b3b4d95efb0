"""No constant and no default changes by accident: tests/golden/constants.json has them all.

    python tests/test_constants.py    write the table anew, after a change that is meant

A constant such as a threshold of the diagnosis or a default of a method decides numbers that users see, and a test of
the code around it often passes with another value.
"""

import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from client_app.client import Variant

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "golden" / "constants.json"
ELSEWHERE = ("KNOWN", "METHODS", "PLAIN", "USUAL")
"""The data sets of data/readers/catalog.py, the methods, and settings at their defaults."""
FOLDERS = ("client_app", "strategies", "fedskew/diagnosis")
FILES = (
    "data/partitions.py",
    "data/settings.py",
    "data/holdouts.py",
    "server_app/evaluation.py",
    "server_app/round_selection.py",
    "server_app/run_settings.py",
    "site_agent/approval.py",
    "fedskew/method_selection/planning.py",
    "fedskew/method_selection/race.py",
    "fedskew/method_selection/standing.py",
    "fedskew/method_selection/uncertainty.py",
    "fedskew/report/inference.py",
)


def modules() -> Iterator[ModuleType]:
    """Yield the modules whose constants are in the table."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    files += [ROOT / file for file in FILES]
    for file in files:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        yield importlib.import_module(name.removesuffix(".__init__"))


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a single word, or a tuple of these. Sentences may change."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    if isinstance(value, str):
        return " " not in value
    return isinstance(value, bool | int | float)


def of_module(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield a module's own constants, the defaults of its functions, and the defaults and class variables of its
    classes, by name."""
    for name, value in vars(module).items():
        if name.isupper() and name not in ELSEWHERE:
            yield from of_constant(f"{module.__name__}.{name}", value)
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            yield from of_class(value)
        if inspect.isfunction(value):
            yield from of_function(value)


def of_constant(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is plain in a constant: itself, or the values of a mapping and the fields of a dataclass by name."""
    if is_plain(value):
        yield name, value
    elif isinstance(value, range | set | frozenset):
        yield from of_constant(name, tuple(sorted(value)))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(key, str):
                yield from of_constant(f"{name}[{key}]", one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from of_instance(name, value)


def of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the plain defaults of a function's arguments by name, and whether it is marked as vectorizable."""
    if hasattr(function, "vectorizable"):
        yield f"{function.__module__}.{function.__qualname__}.vectorizable", function.vectorizable
    for argument in inspect.signature(function).parameters.values():
        if argument.default is not inspect.Parameter.empty and is_plain(argument.default):
            name = f"{function.__module__}.{function.__qualname__}.{argument.name}"
            yield name, argument.default


def of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield a class's plain attributes by name; those of dataclass fields are the fields' defaults.

    Of a variant these are also the plain fields of its upload.
    """
    defaults = {}
    if dataclasses.is_dataclass(cls):
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    for method in own.values():
        if inspect.isfunction(method):
            yield from of_function(method)
    for name, value in {**own, **defaults}.items():
        full_name = f"{cls.__module__}.{cls.__name__}.{name}"
        if is_plain(value):
            yield full_name, value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from of_instance(full_name, value)  # such as a variant's requirements
    if issubclass(cls, Variant):
        yield from of_instance(f"{cls.__module__}.{cls.__name__}.upload", cls().upload)


def of_instance(name: str, instance: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plain fields of an instance of a dataclass by name."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if is_plain(value):
            yield f"{name}.{field.name}", value


def constants() -> dict[str, Any]:
    """Return every constant by name, as JSON gives it back. A constant that another module imports counts once each."""
    found = dict(pair for module in modules() for pair in of_module(module))
    result: dict[str, Any] = json.loads(json.dumps(dict(sorted(found.items()))))
    return result


def test_constants_are_those_of_the_table() -> None:
    before, now = json.loads(TABLE.read_text()), constants()
    # Their texts are compared: nan is no nan, and 1 is True.
    texts_before, texts_now = ({k: repr(v) for k, v in table.items()} for table in (before, now))
    changed = {
        name: (texts_before.get(name), texts_now.get(name))
        for name in sorted(before.keys() | now.keys())
        if texts_before.get(name) != texts_now.get(name)
    }
    assert not changed, (
        f"(before, now): {changed}. If this is meant, run: python tests/test_constants.py"
    )


def write() -> None:
    """Write the table."""
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(json.dumps(constants(), indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    sys.exit(write())
