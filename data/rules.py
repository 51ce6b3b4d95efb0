"""Rules for settings, written as annotations of their fields: checked and put into words here.

`Annotated[float, Ge(0), Lt(1)]` is a range (annotated-types), OneOf a choice, Rule anything else about one value. What
two settings mean together is code, in `validate`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from data.errors import Remedy, SettingError

Bound = Ge | Gt | Le | Lt


def require(holds: bool, key: str, value: object, rule: str, remedy: Remedy = "") -> None:
    """Raise SettingError(key, value, rule) unless `holds`."""
    if not holds:
        raise SettingError(key, value, rule, remedy=remedy)


@dataclass(frozen=True)
class Rule:
    """Any rule about one value, in code and in words."""

    holds: Callable[[Any], bool]
    words: str
    remedy: str = ""


class OneOf(Rule):
    """The value is one of a few words."""

    def __init__(self, *choices: str) -> None:
        listed = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
        super().__init__(choices.__contains__, f"must be {listed}")


@dataclass(frozen=True)
class Settings:
    """Settings that keep their rules from the start. Raises SettingError for the first one broken."""

    name: ClassVar[str] = ""
    """The section of their keys; empty where they have none."""
    rules: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    """Of every field, read off its annotation."""

    def __init_subclass__(cls) -> None:
        cls.rules = {
            name: list(rules_in(hint))
            for name, hint in get_type_hints(cls, include_extras=True).items()
        }

    def __post_init__(self) -> None:
        for field, rules in self.rules.items():
            value = getattr(self, field)
            for rule in rules:
                if not rule.holds(value):
                    raise SettingError(self.key(field), value, rule.words, remedy=rule.remedy)
        self.validate()

    def validate(self) -> None:
        """Raise SettingError for settings of these that contradict each other.

        Rules about one value stand at its field. A subclass overrides this method for the others.
        """

    def require(self, holds: bool, field: str, rule: str, remedy: Remedy = "") -> None:
        """Raise SettingError about a field's value unless `holds`."""
        if not holds:
            raise SettingError(self.key(field), getattr(self, field), rule, remedy=remedy)

    def is_default(self, field: str) -> bool:
        """Return whether the field has its default."""
        return bool(getattr(self, field) == self.__dataclass_fields__[field].default)

    @classmethod
    def key(cls, field: str) -> str:
        """Return a field's key: its name with hyphens, in its section."""
        return key_of(cls.name, field)


@cache  # a plan of all experiments asks for a million keys
def key_of(section: str, field: str) -> str:
    """Return the key of a field in a section; a section named "" is none."""
    return f"{section}.{field}".removeprefix(".").replace("_", "-")


def rules_in(hint: Any) -> Iterator[Rule]:
    """Yield the rules of a field's annotation; every number is finite."""
    markers = getattr(hint, "__metadata__", ())
    if getattr(hint, "__origin__", hint) is float:
        yield Rule(math.isfinite, "must be a finite number")
    bounds = [marker for marker in markers if isinstance(marker, Bound)]
    if bounds:

        def in_range(value: Any) -> bool:
            return all(is_within(value, bound) for bound in bounds)

        yield Rule(in_range, range_in_words(bounds))
    for marker in markers:
        if isinstance(marker, Rule):
            yield marker


def is_within(value: Any, bound: Bound) -> bool:
    """Return whether the value is on the right side of a bound."""
    match bound:
        case Ge(low):
            return bool(value >= low)
        case Gt(low):
            return bool(value > low)
        case Le(high):
            return bool(value <= high)
        case Lt(high):
            return bool(value < high)


def range_in_words(bounds: Sequence[Bound]) -> str:
    """Return what bounds ask of a value: the lower one, then perhaps the upper one."""
    match bounds:
        case [Ge(low)]:
            return f"must be at least {low}" if low else "must be 0 or more"
        case [Gt(low)]:
            return f"must be greater than {low}"
        case [Ge(low), Le(high)]:
            return f"must be {low} to {high}"
        case [Ge(low), Lt(high)]:
            return f"must be in [{low}, {high})"
        case [Gt(low), Le(high)]:
            return f"must be in ({low}, {high}]"
        case [Gt(low), Lt(high)]:
            return f"must be in ({low}, {high})"
    raise TypeError(f"there are no words for the range {bounds}")
