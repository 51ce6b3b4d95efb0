"""Errors about input: each carries what is wrong in fields, and one function here makes the sentence of them.

Code that handles an error reads its fields or its class. Nothing parses a sentence.
"""

import shlex
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from data.text import in_shell


class NoValue(Enum):
    """Stands for a value that an error does not name, as None is a value of YAML."""

    NO_VALUE = "no value"


NO_VALUE: Final = NoValue.NO_VALUE
LONGEST_VALUE = 300
"""Characters of a value, a key or a list that a sentence shows."""
LAST_CHARACTERS = 60
"""How many of them are the end of what is longer: of a path and of a list it tells more than the middle."""
HOLD_NAMES = ("columns", "classes")
"""Settings that hold names from a file, which may need a shell's quotes."""


@dataclass(frozen=True)
class SetOption:
    """A setting that would help, as a part of a remedy."""

    key: str
    value: str
    is_example: bool = False
    """Whether the value only shows the form, as NUMBER does, and the user has to find one."""

    def __str__(self) -> str:
        assignment = f"{self.key}={self.value}"
        # A path may need quotes as well; what needs none is shown without.
        quoted = in_shell(assignment) if self.key in HOLD_NAMES else shlex.quote(assignment)
        return f"--set {quoted}"


Remedy = str | tuple[str | SetOption, ...]
"""What to do, or a note about data: a text, or its parts where they name settings."""


def text_of(remedy: Remedy) -> str:
    """Return a remedy or a note as one text."""
    return remedy if isinstance(remedy, str) else "".join(map(str, remedy))


def options_of(remedy: Remedy) -> list[SetOption]:
    """Return the settings that a remedy or a note names with their values."""
    parts = () if isinstance(remedy, str) else remedy
    return [part for part in parts if isinstance(part, SetOption) and not part.is_example]


def either(options: Sequence[SetOption]) -> tuple[str | SetOption, ...]:
    """Return the remedy that any one of these settings is."""
    parts: list[str | SetOption] = []
    for option in options:
        parts += [" or ", option]
    return tuple(parts[1:])


class InputError(ValueError):
    """Input that breaks a rule: a setting, a file or data. The subclass is the kind of input.

    Attributes:
        where: The file, or the part of it, as a text or a path. Empty where the key says enough.
        key: The setting, or the key in the file.
        value: The key's value, NO_VALUE where there is none.
        rule: What must hold, or what is wrong. All of the sentence where the other fields are empty.
        remedy: What to do about it.
    """

    def __init__(
        self,
        rule: str = "",
        *,
        where: object = "",
        key: str = "",
        value: object = NO_VALUE,
        remedy: Remedy = "",
    ) -> None:
        super().__init__(rule)
        self.where = str(where)
        self.key = key
        self.value = value
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return sentence_of(self)

    def within(self, where: str) -> Self:
        """Return the same error, found at this place: `where` goes before the error's own."""
        error = copy(self)
        error.where = f"{where}: {self.where}" if self.where else where
        return error

    def with_remedy_for(self, put: Callable[[SetOption], str]) -> Self:
        """Return the same error with every setting of its remedy as `put` writes it."""
        error = copy(self)
        if not isinstance(self.remedy, str):
            parts = (part if isinstance(part, str) else put(part) for part in self.remedy)
            error.remedy = "".join(parts)
        return error


class SettingError(InputError):
    """A setting whose value breaks a rule."""

    def __init__(
        self,
        key: str,
        value: object,
        rule: str,
        *,
        where: str = "",
        remedy: Remedy = "",
    ) -> None:
        super().__init__(rule, where=where, key=key, value=value, remedy=remedy)
        self.args = key, value, rule  # pickle and copy call the class with them


class DataError(InputError):
    """Data or a file that cannot be used as they are."""


def sentence_of(error: InputError) -> str:
    """Return the sentence of an error: `WHERE: KEY = VALUE: RULE: REMEDY`, without the parts it does not have."""
    rule = error.rule
    if error.key and error.value is NO_VALUE:
        rule = f"{shortened(error.key)} {rule}"
    elif error.key:
        rule = f"{shortened(error.key)} = {shortened(repr(error.value))}: {rule}"
    if error.where:
        rule = f"{shortened(error.where)}: {rule}"
    remedy = text_of(error.remedy)
    if not remedy:
        return rule
    # A question and a condition do not follow from the rule: they stand beside it.
    beside = remedy.startswith("if ") or remedy.endswith("?")
    return f"{rule}; {remedy}" if beside else f"{rule}: {remedy}"


def shortened(text: str) -> str:
    """Return a text as a sentence can hold it: `...` stands for the middle of a long one."""
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[: LONGEST_VALUE - LAST_CHARACTERS]}...{text[-LAST_CHARACTERS:]}"
