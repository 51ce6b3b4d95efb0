"""The settings' keys and defaults in pyproject.toml, read without importing the methods."""

import contextlib
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import TypeVar

from data import SettingError, Settings, require
from data.packages import ROOT
from server_app.methods import Setting as Scalar

Group = TypeVar("Group", bound=Settings)
FILE = ROOT / "pyproject.toml"
SYNONYMS = {
    "lr": "learning-rate", "epochs": "local-epochs", "batch": "batch-size", "wd": "weight-decay", "data": "dataset",
    "server-lr": "server-learning-rate", "num-clients": "clients", "num-rounds": "rounds", "fraction": "participation",
}  # fmt: skip
"""What other programs call a setting."""
MEANS = {"mean-of-last-5": 5, "mean-of-last-10": 10}
SELECTIONS = ("last", "best-test", "best-validation", *MEANS)
"""best-test is the highest balanced accuracy on the test set, an oracle's choice; best-validation, where there is a
validation set, the test numbers of the round that was best on that; a mean is over evaluated rounds."""


@cache
def written() -> Mapping[str, Scalar]:
    """Return every setting's default by its key; nothing where FedSkew is installed without its clone."""
    try:
        flower = tomllib.loads(FILE.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    except (OSError, ValueError, KeyError):
        return {}
    if flower.get("publisher") != "fedskew":
        return {}
    flat: dict[str, Scalar] = {}
    for key, value in flower["config"].items():
        if not isinstance(value, dict):
            flat[key] = value
            continue
        for name, default in value.items():
            flat[f"{key}.{name}"] = default
    return flat


def no_such(key: str, value: object, known: Iterable[str]) -> SettingError:
    """Return the error of a key that no setting has, with the nearest that one has."""
    if key in SYNONYMS:
        near = [SYNONYMS[key]]
    else:
        near = difflib.get_close_matches(key, list(known), 1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else ""
    return SettingError(key, value, "there is no such setting", remedy=remedy)


def read_text(assignment: str, known: Mapping[str, Scalar]) -> tuple[str, Scalar]:
    """Return key and value of `key=value` from a command line; the key's own type decides how the value is read."""
    key, equals, text = (part.strip() for part in assignment.partition("="))
    require(equals == "=" and bool(key), "--set", assignment, "must be key=value")
    default = known.get(key)
    kind = type(default)
    if kind is bool and text.lower() in ("true", "false"):
        return key, text.lower() == "true"
    if kind in (int, float):
        for number in (int, float):
            try:
                return key, number(text)
            except ValueError:
                continue
    if key not in known and "." in key:  # of a method of the user's own, which is not loaded yet
        with contextlib.suppress(ValueError):
            stated = json.loads(text)
            if isinstance(stated, bool | int | float):
                return key, stated
    return key, text


def read_texts(assignments: Iterable[str], known: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings of several `key=value`. Raises SettingError for a key stated twice: which would count?"""
    stated: dict[str, Scalar] = {}
    for assignment in assignments:
        key, value = read_text(assignment, known)
        require(key not in stated, key, value, "is stated twice")
        stated[key] = value
    return stated


def typed(key: str, value: object, expected: type) -> Scalar:
    """Return the value as the type `expected`; an integer serves as a float. Raises SettingError for another type."""
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not expected:
        names = {
            bool: "true or false",
            int: "an integer",
            float: "a number",
            str: "text",
        }
        raise SettingError(key, value, f"must be {names[expected]}")
    return value  # type: ignore[return-value]


def built(group: type[Group], values: Mapping[str, Scalar]) -> Group:
    """Return a group of settings, made of the values stated for it. Raises SettingError for one out of range."""
    arguments = {}
    for field in fields(group):
        key = group.key(field.name)
        if key in values:
            arguments[field.name] = values[key]
    return group(**arguments)
