"""The entries of an experiments file, read strictly: a value of a wrong type gives an error of one sentence."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from data import InputError, SettingError
from data.errors import NO_VALUE, shortened
from data.text import finite_number, printable, said
from server_app.keys import written
from server_app.methods import Setting as Scalar

# libyaml, where PyYAML has it, is ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
WORDS = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
}
"""What a value of a type is called."""
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
MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key `<<`: a mapping may merge several others, and loses none of them."""
LARGEST_FILE = 2**22
"""Bytes; the shipped file has 60,000."""
Settings = Mapping[str, Scalar]


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within this context, an error of bad input begins with the file or the experiment that it is about."""
    try:
        yield
    except InputError as error:
        raise error.within(where) from error


def entries_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a file by their names, without those that only lend settings.

    Raises SettingError for a file that cannot be read, is not YAML, or holds anything but entries with keys.
    """
    return entries_in_text(text_of(path), path)


def text_of(path: Path) -> str:
    """Return a file's text. Raises SettingError for one that cannot be read, or is too large."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SettingError("experiments", str(path), f"must have at most {LARGEST_FILE} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError("experiments", str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError("experiments", str(path), f"is not YAML: {reason_of(error)}") from error


def entries_in_text(text: str, path: Path) -> dict[str, Mapping[str, Any]]:
    """Return what `entries_of` does of a file's text."""
    try:
        entries = content_of(text, path.name)
    except SettingError:
        raise
    except Exception as error:
        # PyYAML also lets a ValueError of an impossible date through, and a RecursionError.
        raise SettingError("experiments", str(path), f"is not YAML: {reason_of(error)}") from error
    if not isinstance(entries, dict):
        rule = f"must be entries with keys, not {type_in_words(entries)}"
        raise SettingError("experiments", str(path), rule)
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise wrong(path.name, "the name of an entry", name, str)
        if name.startswith("."):
            continue
        if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
            raise SettingError(name, shown(entry), "must be keys with values", where=path.name)
    return {name: entry for name, entry in entries.items() if not name.startswith(".")}


def reason_of(error: Exception) -> str:
    """Return where and why text is no YAML, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return said(error)
    problem: str = error.problem  # type: ignore[attr-defined]
    cures = [cure for words, cure in CURES.items() if words in problem]
    cure = cures[0] if cures else ""
    return printable(f"line {mark.line + 1}, column {mark.column + 1}: {problem}{cure}")


def content_of(text: str, file: str) -> Any:
    """Return the values of YAML text.

    YAML forbids a key that stands twice in one mapping, and PyYAML keeps the last one without a word.

    Args:
        text: The YAML text.
        file: What an error calls the file.

    Raises:
        SettingError: A key stands twice in one mapping.
        yaml.YAMLError: The text is not YAML.
    """
    loader = LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        refuse_repeated_keys(loader, root, file)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def refuse_repeated_keys(loader: Any, root: yaml.Node, file: str) -> None:
    """Raise SettingError for a key that stands twice in one mapping, with both of its lines.

    The nodes are checked before the loader makes values of them: merging (`<<: *other`) then copies keys of the other
    mapping, which may stand there again on purpose.
    """
    waiting = [root]
    # An alias is the same node again: without this a few lines can stand for billions of nodes.
    seen = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))

        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        if not isinstance(node, yaml.MappingNode):
            continue

        first_lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            waiting.append(value_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == MERGE:
                continue
            key = loader.construct_object(key_node)
            line = key_node.start_mark.line + 1
            if key in first_lines:
                lines = f"in line {first_lines[key]} and in line {line}"
                rule = f"stands twice, {lines}; the second would replace the first"
                remedy = "rename one of them, or delete it"
                raise SettingError("key", shown(key), rule, where=file, remedy=remedy)
            first_lines[key] = line


def built(
    kind: type,
    where: str,
    entry: Mapping[str, Any],
    public: Mapping[str, str] | None = None,
) -> Any:
    """Return `kind(**entry)`, every value in the type of its field; `public` are the fields that files call otherwise.

    Raises SettingError for a key that it does not have, one that it needs and lacks, and a value of another type.
    """
    hints = get_type_hints(kind)
    public_names = {name: name for name in hints} | dict(public or {})
    unknown = sorted(entry.keys() - hints.keys())
    if unknown:
        known = sorted({public_names[name] for name in hints} - {"name"})
        rule = f"is no key; known are {', '.join(known)}"
        raise SettingError(unknown[0], NO_VALUE, rule, where=where)

    missing = []
    for field in fields(kind):
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and field.name not in entry:
            missing.append(field.name)
    if missing:
        lines = []
        for name in missing:
            example = "TEXT" if hints[name] is str else "[..., ...]"
            lines.append(f"`{public_names[name]}: {example}`")
        names = " and ".join(public_names[name] for name in missing)
        rule = "is missing" if len(missing) == 1 else "are missing"
        remedy = f"write {', '.join(lines)}"
        raise SettingError(names, NO_VALUE, rule, where=where, remedy=remedy)

    values = {}
    for name, value in entry.items():
        values[name] = read_as(hints[name], value, where, public_names[name])
    return kind(**values)


def read_as(hint: Any, value: Any, where: str, key: str) -> Any:
    """Return a value of YAML in a field's type; a value of a dataclass is taken as it is. Raises SettingError."""
    parts = get_args(hint)
    if is_dataclass(hint):
        return value
    origin = get_origin(hint)
    if origin is UnionType:
        if type(value) not in parts and not (type(value) is int and float in parts):
            raise wrong(where, key, value, *parts)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise no_list(where, key, value)
        return tuple(read_as(parts[0], item, where, key) for item in value)
    if origin is Mapping:
        return read_mapping(parts[1], value, where, key)
    if hint is float and type(value) is int:
        return (
            float(value) if abs(value) < 2**53 else value
        )  # beyond, a float would be another number
    if type(value) is not hint:
        raise wrong(where, key, value, hint)
    return value


def read_mapping(hint: Any, value: Any, where: str, key: str) -> dict[str, Any]:
    """Return a mapping of YAML, each of its values in the type `hint`. Raises SettingError."""
    if not isinstance(value, Mapping | None):
        raise SettingError(key, shown(value), "must be keys with values", where=where)
    values = {}
    for name, item in (value or {}).items():
        label = label_of(where, key, name)
        values[label] = read_as(hint, item, where, f"{key}: {name}")
    return values


def label_of(where: str, key: str, name: Any) -> str:
    """Return a key of YAML as text: a number may label a row or a column. Raises SettingError for anything else."""
    if type(name) not in (str, int, float):
        raise wrong(where, key, name, str)
    return str(name)


def wrong(where: str, key: str, value: Any, *expected: type) -> SettingError:
    """Return the error of a value of another type than one of those expected."""
    allowed = " or ".join(WORDS[one_type] for one_type in expected)
    return SettingError(
        key,
        shown(value),
        f"must be {allowed}, not {type_in_words(value)}",
        where=where,
        remedy=remedy(value, expected[0]),
    )


def no_list(where: str, key: str, value: Any) -> SettingError:
    """Return the error of a value where a list has to stand."""
    cure = f"write [{shortened(str(value))}]" if type(value) in (str, int, float) else ""
    return SettingError(key, shown(value), "must be a list", where=where, remedy=cure)


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


def of_kind(where: str, key: str, value: Scalar, kind: type) -> None:
    """Raise SettingError for a setting's value of another type than its default; an integer serves as a number."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise wrong(where, key, value, kind)


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
