"""The YAML of a file of experiments, and the sentence of the first mistake that pydantic finds in an entry."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
"""What a value of a type is called."""
EXPECTED: Mapping[str, type] = {
    "string_type": str,
    "int_type": int,
    "float_type": float,
    "bool_type": bool,
    "tuple_type": list,
}
"""What pydantic's types of errors ask for, where it is not keys with values."""
CURES = {
    "mapping values are not allowed": ': put text that holds a colon in quotes, as title: "A: B"',
    "cannot start any token": ": indent by spaces, not by tabs, and put text that begins with @, ` or % in quotes",
}
"""What probably helps, by what PyYAML says is wrong."""


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
    mark = error.problem_mark
    problem = str(error.problem)
    cure = ""
    for part, what in CURES.items():
        if part in problem:
            cure = what
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    return printable(f"{where}: {problem}{cure}")


# ---- values ----------------------------------------------------------------------------------------------------------

adapter = cache(TypeAdapter)


def read_as(kind: type, entry: object) -> Any:
    """Return a mapping of YAML as an object of `kind`, a pydantic dataclass.

    Raises SettingError for the first key that it does not have, or needs and lacks, and for a value of another type.
    """
    if not isinstance(entry, dict):
        raise wrong("", entry, dict)
    try:
        return adapter(kind).validate_python(entry)
    except ValidationError as error:
        raise refusal(error, kind) from error


def refusal(error: ValidationError, kind: type) -> SettingError:
    """Return the first of pydantic's errors about an object of `kind` as one sentence."""
    first = error.errors()[0]
    places = [public_name(part) for part in first["loc"] if isinstance(part, str)]
    problem = first.get("ctx", {}).get("error")
    if not isinstance(problem, SettingError):
        problem = problem_of(first, places.pop(), kind)
    if not places:
        return problem
    return problem.within(": ".join(places))


def problem_of(error: Mapping[str, Any], key: str, kind: type) -> SettingError:
    """Return one of pydantic's errors about a key of an object of `kind` as an error of FedSkew."""
    type_of_error = error["type"]
    value = error["input"]
    types = {field.name: field.type for field in fields(kind)}
    if type_of_error == "missing":
        example = "TEXT" if types.get(key) is str else "[..., ...]"
        return SettingError(key, NO_VALUE, "is missing", remedy=f"write `{key}: {example}`")
    if type_of_error == "unexpected_keyword_argument":
        known = {public_name(name) for name in types} - {"name"}
        rule = f"is no key; known are {', '.join(sorted(known))}"
        return SettingError(key, NO_VALUE, rule)
    if type_of_error == "literal_error":
        return SettingError(key, shown(value), f"must be {error['ctx']['expected']}")
    if type_of_error == "too_short":
        return SettingError(key, shown(value), "must name at least one")
    expected = EXPECTED.get(type_of_error, dict)
    return wrong(key, value, expected)


def public_name(field: str) -> str:
    """Return what a file of experiments calls a field."""
    return "methods" if field == "rows" else field


def checked_settings(settings: object) -> dict[str, Scalar]:
    """Return a table's settings as they are.

    Settings of a section may be those of a method of the user's own, which is not loaded yet.

    Raises:
        SettingError: There is no such setting, or its value has another type than its default.
    """
    if not isinstance(settings, Mapping | None):
        raise wrong("", settings, dict)
    known = defaults()
    for key, value in (settings or {}).items():
        if key in known:
            kind = type(known[key])
            # An integer serves as a number.
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise wrong(key, value, kind)
        elif "." not in str(key):
            raise no_such(str(key), shown(value), known)
        elif type(value) not in WORDS:
            raise SettingError(key, shown(value), f"must not be {type_in_words(value)}")
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


def wrong(key: str, value: Any, expected: type) -> SettingError:
    """Return the error of a value of another type than the one expected, with what it probably means."""
    rule = f"must be {WORDS[expected]}, not {type_in_words(value)}" if expected in WORDS else ""
    remedy = ""
    if expected is dict:
        rule = "must be keys with values"
    elif expected is list:
        rule = "must be a list"
        remedy = f"write [{shortened(str(value))}]" if type(value) in WORDS else ""
    elif expected is str and type(value) in WORDS:
        remedy = f'write "{shortened(str(value))}", in quotes'
    elif type(value) is str and expected is not bool:
        with suppress(ValueError):
            number = finite_number(value.strip())
            # YAML 1.1, which PyYAML reads, takes 1e-2 for text and 1.0e-2 for a number.
            is_whole = expected is int and number == int(number)
            text = yaml.safe_dump(int(number) if is_whole else number).split()[0]
            remedy = f"write {text}" if is_whole or expected is float else ""
    return SettingError(key, shown(value), rule, remedy=remedy)


def type_in_words(value: Any) -> str:
    """Return what a value of YAML is called."""
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else WORDS.get(type(value), "something else")


def shown(value: Any) -> Any:
    """Return a value as an error may show it: of a list or of keys the beginning, as aliases let them grow endless."""
    nested = (dict, list, tuple)
    if isinstance(value, nested):
        beginning = []
        for one in list(value)[:5]:
            text = type_in_words(one) if isinstance(one, nested) else str(one)
            beginning.append(text[:40])
        return beginning
    return value[:200] if isinstance(value, str) else value
