"""The YAML of a file of experiments, and the sentence of the first mistake that pydantic finds in an entry."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from data import InputError, SettingError
from data.errors import NO_VALUE
from data.text import printable, said
from server_app.keys import no_such, typed, written
from server_app.methods import Setting as Scalar

# libyaml, where PyYAML has it, is ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KEYS, LIST = "must be keys with values", "must be a list"
RULES = {
    "too_short": "must name at least one",
    "tuple_type": LIST,
    "mapping_type": KEYS,
    "dict_type": KEYS,
    "dataclass_type": KEYS,
}
"""What must hold, by pydantic's type of error, where its own sentence speaks of Python."""
NESTED = (dict, list, tuple)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within this context, an error of bad input begins with the file or the experiment that it is about."""
    try:
        yield
    except InputError as error:
        raise error.within(where) from error


# ---- YAML ------------------------------------------------------------------------------------------------------------


class UniqueLoader(LOADER):  # type: ignore[misc]
    """Refuses a key that stands twice in one mapping, of which PyYAML would keep the last without a word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # An alias is the same node again, which then holds the keys that it merges (`<<: *other`) as well.
        if id(node) not in self.checked:
            self.checked.add(id(node))
            refuse_repeated_keys(node)
        super().flatten_mapping(node)


# YAML 1.1, which PyYAML reads, takes 1e-2 for text and 1.0e-2 for a number; YAML 1.2 takes both for numbers.
UniqueLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def refuse_repeated_keys(node: yaml.MappingNode) -> None:
    """Raise SettingError for a key that stands twice in a mapping, with both of its lines."""
    first_lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        first = first_lines.setdefault((key.tag, str(key.value)), line)
        if first != line and key.value != "<<":
            rule = f"stands twice, in line {first} and in line {line}; the second would replace the first"
            raise SettingError("key", key.value, rule, remedy="rename one of them, or delete it")


def text_of(path: Path) -> str:
    """Return a file's text. Raises SettingError for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError("experiments", str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError("experiments", str(path), f"is not YAML: {said(error)}") from error


def entries_in_text(text: str, path: Path) -> dict[str, Any]:
    """Return the entries of a file by their names, without those that only lend settings.

    Args:
        text: of the file.
        path: what an error calls it.

    Raises:
        SettingError: The text is not YAML, names a key twice, or is no mapping of texts to mappings.
    """
    try:
        entries = yaml.load(text, UniqueLoader)
    except SettingError as error:
        raise error.within(path.name) from error
    except Exception as error:
        # PyYAML also lets a ValueError of an impossible date through, and a RecursionError.
        raise SettingError("experiments", str(path), f"is not YAML: {reason_of(error)}") from error
    if not isinstance(entries, dict):
        raise SettingError("experiments", str(path), "must be entries with keys")
    for name in entries:
        typed(f"{path.name}: the name of an entry", shown(name), str)
    return {name: entry for name, entry in entries.items() if not name.startswith(".")}


def reason_of(error: Exception) -> str:
    """Return where and why text is no YAML, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return said(error)
    mark = error.problem_mark
    return printable(f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}")


# ---- values ----------------------------------------------------------------------------------------------------------

adapter = cache(TypeAdapter)


def read_as(kind: type, entry: object) -> Any:
    """Return a mapping of YAML as an object of `kind`, a pydantic dataclass.

    Raises SettingError for the first key that it does not have, or needs and lacks, and for a value of another type.
    """
    if not isinstance(entry, dict):
        raise SettingError("", shown(entry), KEYS)
    try:
        return adapter(kind).validate_python(entry)
    except ValidationError as error:
        first = error.errors()[0]
    places = ["methods" if part == "rows" else part for part in first["loc"]]
    names = [part for part in places if isinstance(part, str)]
    problem = first.get("ctx", {}).get("error")
    if not isinstance(problem, SettingError):
        problem = problem_of(first, names.pop())
    raise problem.within(": ".join(names)) if names else problem


def problem_of(error: Mapping[str, Any], key: str) -> SettingError:
    """Return one of pydantic's errors about a key as an error of FedSkew."""
    kind = error["type"]
    if kind == "missing":
        return SettingError(key, NO_VALUE, "is missing")
    if kind == "unexpected_keyword_argument":
        return SettingError(key, NO_VALUE, "is no key")
    by_pydantic = error["msg"].replace("Input should", "must")
    return SettingError(key, shown(error["input"]), RULES.get(kind, by_pydantic))


def checked_settings(settings: object) -> dict[str, Scalar]:
    """Return a table's settings as they are.

    Settings of a section may be those of a method of the user's own, which is not loaded yet.

    Raises:
        SettingError: There is no such setting, or its value has another type than its default.
    """
    if not isinstance(settings, Mapping | None):
        raise SettingError("", shown(settings), KEYS)
    known = defaults()
    for key, value in (settings or {}).items():
        if key in known:
            typed(key, shown(value), type(known[key]))
        elif "." not in str(key):
            raise no_such(str(key), shown(value), known)
        elif not isinstance(value, str | int | float):
            raise SettingError(key, shown(value), "must be one value")
    return dict(settings or {})


def defaults() -> Mapping[str, Scalar]:
    """Return every setting's default by its key.

    The generated file has them without the methods' modules, which take a second to import; without it they are read
    from these modules.
    """
    generated = written()
    if generated:
        return generated
    from server_app.settings import defaults

    return defaults()


def shown(value: Any) -> Any:
    """Return a value as an error may show it: of a list or of keys the beginning, as aliases let them grow endless."""
    if not isinstance(value, NESTED):
        return value
    return ["..." if isinstance(one, NESTED) else str(one)[:40] for one in list(value)[:5]]
