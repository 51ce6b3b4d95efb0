"""The YAML of a file of experiments, and the sentence of the first mistake that pydantic finds in an entry."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from data import InputError, SettingError
from data.errors import NO_VALUE, shortened
from data.text import finite_number, printable, said
from server_app.keys import no_such, written
from server_app.methods import Setting as Scalar

# libyaml, where PyYAML has it, is ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
WORDS = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
}
"""What a value of a type is called."""
EXPECTED: Mapping[str, type] = {
    "string_type": str,
    "int_type": int,
    "float_type": float,
    "bool_type": bool,
    "tuple_type": tuple,
    "mapping_type": dict,
    "dict_type": dict,
    "dataclass_type": dict,
}
"""What pydantic's types of errors ask for."""
CURES = {
    "mapping values are not allowed": ': put text that holds a colon in quotes, as title: "A: B"',
    "cannot start any token": ": indent by spaces, not by tabs, and put text that begins with @, ` or % in quotes",
}
"""What probably helps, by what PyYAML says is wrong."""
TRUTH = {
    "true": "true",
    "yes": "true",
    "on": "true",
    "false": "false",
    "no": "false",
    "off": "false",
}
"""What a text that stands for a truth value means; PyYAML reads an unquoted one as true or false."""
LARGEST_FILE = 2**22
"""Bytes; the shipped file has 70,000."""


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


def refuse_repeated_keys(node: yaml.MappingNode) -> None:
    """Raise SettingError for a key that stands twice in a mapping, with both of its lines."""
    first_lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        name = (key.tag, str(key.value))
        line = key.start_mark.line + 1
        if name in first_lines and key.value != "<<":
            lines = f"in line {first_lines[name]} and in line {line}"
            rule = f"stands twice, {lines}; the second would replace the first"
            raise SettingError("key", key.value, rule, remedy="rename one of them, or delete it")
        first_lines[name] = line


def text_of(path: Path) -> str:
    """Return a file's text. Raises SettingError for one that cannot be read, or is too large."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SettingError("experiments", str(path), f"must have at most {LARGEST_FILE} bytes")
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
        rule = f"must be entries with keys, not {type_in_words(entries)}"
        raise SettingError("experiments", str(path), rule)
    for name in entries:
        if not isinstance(name, str):
            raise wrong("the name of an entry", name, str).within(path.name)
    return {name: entry for name, entry in entries.items() if not name.startswith(".")}


def reason_of(error: Exception) -> str:
    """Return where and why text is no YAML, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return said(error)
    mark, problem = error.problem_mark, str(error.problem)
    cures = [cure for words, cure in CURES.items() if words in problem]
    cure = cures[0] if cures else ""
    return printable(f"line {mark.line + 1}, column {mark.column + 1}: {problem}{cure}")


# ---- values ----------------------------------------------------------------------------------------------------------

adapter = cache(TypeAdapter)


def read_as(kind: type, entry: object) -> Any:
    """Return a mapping of YAML as an object of `kind`, a pydantic dataclass.

    Raises SettingError for the first key that it does not have, or needs and lacks, and for a value of another type.
    """
    if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
        raise SettingError("", shown(entry), "must be keys with values")
    try:
        return adapter(kind).validate_python(entry)
    except ValidationError as error:
        raise refusal(error, kind) from error


def refusal(error: ValidationError, kind: type) -> SettingError:
    """Return the first of pydantic's errors about an object of `kind` as one sentence."""
    first = error.errors()[0]
    places = [public_name(part) for part in first["loc"] if isinstance(part, str)]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return cause.within(": ".join(places)) if places else cause

    where, key = ": ".join(places[:-1]), places[-1]
    expected = EXPECTED.get(first["type"])
    if first["type"] == "missing":
        types = {field.name: field.type for field in fields(kind)}
        example = "TEXT" if types.get(key) is str else "[..., ...]"
        problem = SettingError(key, NO_VALUE, "is missing", remedy=f"write `{key}: {example}`")
    elif first["type"] == "unexpected_keyword_argument":
        known = {public_name(field.name) for field in fields(kind)} - {"name"}
        problem = SettingError(key, NO_VALUE, f"is no key; known are {', '.join(sorted(known))}")
    elif expected is not None:
        problem = wrong(key, first["input"], expected)
    else:
        problem = SettingError(key, shown(first["input"]), first["msg"].lower())
    return problem.within(where) if where else problem


def public_name(field: str) -> str:
    """Return what a file of experiments calls a field."""
    return "methods" if field == "rows" else field


def checked_settings(settings: object) -> dict[str, Scalar]:
    """Return a table's settings as they are.

    Settings of a section may be those of a method of the user's own, which is not loaded yet.

    Raises:
        SettingError: There is no such setting, or its value has another type than its default.
    """
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise SettingError("", shown(settings), "must be keys with values")
    known = defaults()
    for key, value in settings.items():
        if key in known:
            check_type(key, value, known[key])
        elif "." not in str(key):
            raise no_such(str(key), shown(value), known)
        elif type(value) not in (bool, int, float, str):
            raise SettingError(key, shown(value), f"must not be {type_in_words(value)}")
    return dict(settings)


def check_type(key: str, value: object, default: Scalar) -> None:
    """Raise SettingError for a setting's value of another type than its default; an integer serves as a number."""
    kind = type(default)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise wrong(key, value, kind)


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


def wrong(key: str, value: Any, expected: type) -> SettingError:
    """Return the error of a value of another type than the one expected."""
    if expected is dict:
        return SettingError(key, shown(value), "must be keys with values")
    if expected is tuple:
        cure = f"write [{shortened(str(value))}]" if type(value) in (str, int, float) else ""
        return SettingError(key, shown(value), "must be a list", remedy=cure)
    rule = f"must be {WORDS[expected]}, not {type_in_words(value)}"
    return SettingError(key, shown(value), rule, remedy=remedy(value, expected))


def remedy(value: Any, kind: type) -> str:
    """Return how to write in YAML what a value of another type probably means; empty if unknown."""
    if kind is str and type(value) in (int, float, bool):
        text = str(value).lower() if type(value) is bool else str(value)
        return f'write "{shortened(text)}", in quotes'
    if kind is bool:
        meaning = TRUTH.get(str(value).lower())
        return f"write {meaning}" if meaning else ""
    if kind not in (int, float) or type(value) not in (str, float):
        return ""
    try:
        number = finite_number(str(value).strip())
    except ValueError:
        return ""
    if kind is int:
        return f"write {int(number)}" if number == int(number) else ""
    mantissa, exponent, power = repr(number).partition("e")
    if exponent and "." not in mantissa:
        # YAML 1.1, which PyYAML reads, takes 1e-2 for text and 1.0e-2 for a number.
        mantissa += ".0"
    return f"write {mantissa}{exponent}{power}"


def type_in_words(value: Any) -> str:
    """Return what a value of YAML is called."""
    if isinstance(value, list):
        return "a list"
    return WORDS.get(type(value), "something else")


def shown(value: Any) -> Any:
    """Return a value as an error may show it: of a list or of keys the beginning, as aliases let them grow endless."""
    if isinstance(value, dict):
        return [str(key)[:40] for key in list(value)[:5]]
    if isinstance(value, list | tuple):
        items = []
        for item in value[:5]:
            is_nested = isinstance(item, list | dict)
            items.append(type_in_words(item) if is_nested else str(item)[:40])
        return items
    return value[:200] if isinstance(value, str) else value
