"""TOML files that people write by hand, read strictly: every error is one sentence with file, key, value and rule."""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from data.errors import DataError

LARGEST = 2**20
"""Bytes of the largest file that is read."""
KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


class Table:
    """A table of a file; `where` is what errors name before a key, the file and the table."""

    def __init__(self, entries: Mapping[str, Any], where: str, keys: Collection[str]) -> None:
        """Raises DataError for a key that is none of `keys`."""
        self.entries = entries
        self.where = where
        for key, value in entries.items():
            if key in keys:
                continue
            similar = difflib.get_close_matches(key, keys, 1, cutoff=0.5)
            remedy = f"did you mean {similar[0]}?" if similar else ""
            raise self.error(key, value, "there is no such key", remedy)

    def error(self, key: str, value: object, rule: str, remedy: str = "") -> DataError:
        """Return the error of a value that breaks a rule."""
        return DataError(rule, where=self.where, key=key, value=value, remedy=remedy)

    def require(self, holds: bool, key: str, rule: str) -> None:
        """Raise DataError about a key's value unless `holds`."""
        if not holds:
            raise self.error(key, self.entries.get(key), rule)

    def take(self, key: str, expected: type, default: Any = None) -> Any:
        """Return a key's value, or the default where that is not None. Raises DataError for a missing or wrong one."""
        if key not in self.entries:
            if default is None:
                rule = f"is missing: it must be {KINDS[expected]}"
                raise DataError(rule, where=self.where, key=key)
            return default
        value = self.entries[key]
        if expected is float and type(value) is int:
            value = float(value)
        self.require(type(value) is expected, key, f"must be {KINDS[expected]}")
        return value

    def texts(self, key: str, default: list[str] | None = None) -> tuple[str, ...]:
        """Return a list of texts. Raises DataError for what is none, or one text twice."""
        values = self.take(key, list, default)
        all_texts = all(type(value) is str for value in values)
        self.require(all_texts, key, "must be a list of texts")
        each_once = len(set(values)) == len(values)
        self.require(each_once, key, "must name each once")
        return tuple(values)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers. Raises DataError for what is none."""
        values = self.take(key, list)
        types = {type(value) for value in values}
        some_numbers = len(values) > 0 and types <= {int, float}
        self.require(some_numbers, key, "must be a list of numbers")
        return tuple(map(float, values))


def read_toml(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a file's bytes and what they say. Raises DataError for a file that is missing, too large or no TOML."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            rule = f"has {size} bytes, and at most {LARGEST} are read"
            raise DataError(rule, where=str(path))
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return content, parse_toml(content, str(path))


def parse_toml(content: bytes, where: str) -> dict[str, Any]:
    """Return what the bytes of a file say. Raises DataError, which names `where`, for what is no TOML."""
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"is no TOML: {reason}", where=where) from None
