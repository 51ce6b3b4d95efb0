"""Rules for settings, written as annotations of their fields: checked and put into words here.

`Annotated[float, Ge(0), Lt(1)]` is a range (annotated-types), OneOf a choice, Rule anything else about one value, and
When says what a setting has no effect without. What else two settings mean together is code, in `validate`.
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
class When:
    """The setting has an effect only beside certain values of another setting of its group."""

    field: str
    """The other setting."""
    values: tuple[object, ...] = ()
    """Its values; () is any but 0, false and an empty text."""


@dataclass(frozen=True)
class Settings:
    """Settings that keep their rules from the start. Raises SettingError for the first one broken."""

    name: ClassVar[str] = ""
    """The section of their keys; empty where they have none."""
    rules: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    """Of every field, read off its annotation."""
    effects: ClassVar[Mapping[str, Sequence[When]]] = {}
    """What every field's effect depends on, from the same place."""

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.rules = {name: list(rules_in(hint)) for name, hint in hints.items()}
        cls.effects = {
            name: [
                marker for marker in getattr(hint, "__metadata__", ()) if isinstance(marker, When)
            ]
            for name, hint in hints.items()
        }

    def __post_init__(self) -> None:
        for field, rules in self.rules.items():
            value = getattr(self, field)
            for rule in rules:
                if not rule.holds(value):
                    raise self.error(field, rule.words, rule.remedy)
        for field, effects in self.effects.items():
            for when in effects:
                if not self.is_default(field):
                    self.check_effect(field, when)
        self.validate()

    def check_effect(self, field: str, when: When) -> None:
        """Raise SettingError for a field that is set and has no effect beside the other setting's value."""
        other = getattr(self, when.field)
        key = self.key(when.field)
        if when.values and other not in when.values:
            raise self.error(field, f"is for {key} = {', '.join(map(str, when.values))}")
        if not when.values and not other:
            raise self.error(field, f"has no effect without {key}")

    def error(self, field: str, rule: str, remedy: Remedy = "") -> SettingError:
        """Return the error of a field's value."""
        return SettingError(self.key(field), getattr(self, field), rule, remedy=remedy)

    def validate(self) -> None:
        """Raise SettingError for settings of these that contradict each other.

        Rules about one value stand at its field. A subclass overrides this method for the others.
        """

    def require(self, holds: bool, field: str, rule: str, remedy: Remedy = "") -> None:
        """Raise SettingError about a field's value unless `holds`."""
        if not holds:
            raise self.error(field, rule, remedy)

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
