"""Settings that were renamed: the one table of old and new names.

People write the new name. The old one works for one more release and prints a line on stderr. Files keep the old name:
run ids, settings.json, trackers, run specs in messages and the names of races' folders. So results of earlier versions
stay readable, and no run gets another id.
"""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from data.errors import SettingError

Value = TypeVar("Value")
OLD_NAMES = {
    "evaluate-on": "tested-on",
    "clients-per-pass": "clients-together",
    "fedavg.weighting": "fedavg.weights-over",
    "overwrite": "fresh",
    "min-reply-share": "min-replies",
}
"""The old name of a setting, which files keep, by its new name."""
NEW_NAMES = {old: new for new, old in OLD_NAMES.items()}


def renamed(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings under their new names. Raises SettingError where both names of a setting are there."""
    result: dict[str, Value] = {}
    for key, value in settings.items():
        new_name = NEW_NAMES.get(key, key)
        if new_name != key and new_name in settings:
            raise both_given(new_name, settings[new_name], value)
        result[new_name] = value
    return result


def both_given(new: str, value: object, old_value: object) -> SettingError:
    """Return the error of a setting that is given under both of its names."""
    rule = f"its old name {OLD_NAMES[new]} = {old_value!r} is given as well"
    return SettingError(new, value, rule, remedy=f"give {new} alone")


def given(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings that a person wrote under their new names, with a line on stderr for each old one."""
    result = renamed(settings)
    for key in settings:
        if key in NEW_NAMES:
            print_renamed(f"the setting {key}", NEW_NAMES[key])
    return result


def given_to_flower(config: Mapping[str, Value], defaults: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a run config of flwr, which holds both names of every renamed setting.

    A name at its default counts as not given, because flwr adds the default of every key.
    """
    not_default = {}
    for key, value in config.items():
        new_name = NEW_NAMES.get(key, key)
        if new_name in OLD_NAMES and value == defaults[new_name]:
            continue
        not_default[key] = value
    return given(not_default)


def stored(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings under the names that files keep."""
    return {OLD_NAMES.get(key, key): value for key, value in settings.items()}


def stored_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a group of settings under the names that run specs keep."""
    old_fields = {as_field(new): as_field(old) for new, old in OLD_NAMES.items()}
    return {old_fields.get(field, field): value for field, value in values.items()}


def fields_from_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `stored_fields`."""
    new_fields = {as_field(old): as_field(new) for new, old in OLD_NAMES.items()}
    return {new_fields.get(field, field): value for field, value in values.items()}


def as_field(key: str) -> str:
    """Return the name of a setting's field."""
    return key.replace("-", "_")


@cache
def print_renamed(old: str, new: str, program: str = "fedskew") -> None:
    """Print, once per process, that a word of the command `program` has another name now."""
    line = f"{program}: {old} is called {new} now; the old name goes with the next release"
    print(line, file=sys.stderr)
