"""TOML files that people write by hand, read strictly: every error is one sentence with file, key, value and rule."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from inspect import isclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Strict, ValidationError

from data.errors import NO_VALUE, DataError
from data.text import is_whole

LARGEST = 2**20
"""Bytes of the largest file that is read."""
RULES = {
    "missing": "is missing",
    "extra_forbidden": "there is no such key",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
}
"""Rules about types, by pydantic's name of the error."""
Texts = Annotated[tuple[str, ...], Strict(False)]
"""A list of texts; TOML's lists are no tuples."""
Numbers = Annotated[tuple[float, ...], Strict(False)]


class TomlTable(BaseModel):
    """A table of a file: its keys are the fields' names with `-` for `_`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )


Model = TypeVar("Model", bound=TomlTable)


class BrokenRule(ValueError):
    """A rule about several keys, or the value of a key in a list of tables, for validators of models."""

    def __init__(self, key: str, rule: str, value: object = None) -> None:
        super().__init__(key, rule)
        self.key, self.rule, self.value = key, rule, value


HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
"""A name as certificates have it, or an address. Not https://NAME, nor an IPv6 address that could end in the port."""


def checked_address(text: str) -> str:
    """Return HOST:PORT. Raises ValueError for another text."""
    host, _, port = text.rpartition(":")
    if not HOST.fullmatch(host) or not is_whole(port) or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT, such as gateway.example.org:8443 or [::1]:8443")
    return text


HostPort = Annotated[str, AfterValidator(checked_address)]


def matching(pattern: re.Pattern[str], rule: str) -> AfterValidator:
    """Return the rule that a text has a form."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def table_of(
    model: type[Model], entries: Mapping[str, object], where: str, file: Path | None = None
) -> Model:
    """Return the entries of a file as a model, whose validators have the file as their context.

    Raises DataError, one sentence, for the first rule that the entries break.
    """
    try:
        return model.model_validate(entries, context=file)
    except ValidationError as error:
        raise data_error(error, model, where) from None


def data_error(found: ValidationError, model: type[TomlTable], where: str) -> DataError:
    """Return the first of pydantic's errors as ours, of an unknown key if there is one."""
    errors = found.errors()
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = (unknown or errors)[0]
    kind, place = error["type"], list(error["loc"])
    broken = error.get("ctx", {}).get("error")
    if isinstance(broken, DataError):
        return broken
    if isinstance(broken, BrokenRule):
        key, rule = broken.key, broken.rule
        value = broken.value or error["input"].get(key, NO_VALUE)
    else:
        if isinstance(place[-1], int):
            place.pop()  # an item of a list goes by the list's key
        key = str(place.pop())
        value = NO_VALUE if kind == "missing" else error["input"]
        # A rule of ours may quote a path with braces, which are no places for values.
        rule = str(broken)
        if not broken:
            rule = RULES.get(kind, error["msg"]).format(**error.get("ctx", {}))
    remedy = ""
    if kind == "extra_forbidden":
        similar = difflib.get_close_matches(key, [*keys_of(model)], 1, cutoff=0.5)
        remedy = f"did you mean {similar[0]}?" if similar else ""
    table = " ".join(str(part + 1) if isinstance(part, int) else part for part in place)
    if table:
        where = f"{where}: {table}"
    return DataError(rule, where=where, key=key, value=value, remedy=remedy)


def keys_of(model: type[TomlTable]) -> Iterator[str]:
    """Yield the keys of a table and of the tables in it."""
    for field in model.model_fields.values():
        yield str(field.alias)
        for part in (field.annotation, *get_args(field.annotation)):
            if isclass(part) and issubclass(part, TomlTable):
                yield from keys_of(part)


def read_toml(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a file's bytes and what they say. Raises DataError for a file that is missing, too large or no TOML."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(content) > LARGEST:
        raise DataError(f"is larger than {LARGEST} bytes, the most that are read", where=str(path))
    return content, parse_toml(content, str(path))


def parse_toml(content: bytes, where: str) -> dict[str, Any]:
    """Return what the bytes of a file say. Raises DataError, which names `where`, for what is no TOML."""
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"is no TOML: {reason}", where=where) from None
