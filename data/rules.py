"""Rules for settings, written as annotations of their fields: checked and put into words here.

`Annotated[float, Ge(0), Lt(1)]` is a range (annotated-types), OneOf a choice, Rule anything else about one value, and
When says what a setting has no effect without. What else two settings mean together is code, in `validate`.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from data.errors import Remedy, SettingError

Bound = Ge | Gt | Le | Lt
COMPARED = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
"""By name of the comparison in `operator`, which is a bound's field too, how a rule says it."""


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

    def __init__(self, *choices: str, remedy: str = "") -> None:
        listed = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
        super().__init__(choices.__contains__, f"must be {listed}", remedy)


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
    rules: ClassVar[dict[str, Sequence[Rule]]] = {}
    """Of every field, read off its annotation."""
    effects: ClassVar[dict[str, Sequence[When]]] = {}
    """What every field's effect depends on, from the same place."""

    def __init_subclass__(cls) -> None:
        cls.rules, cls.effects = {}, {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            markers = getattr(hint, "__metadata__", ())
            cls.rules[name] = list(rules_in(hint))
            cls.effects[name] = [marker for marker in markers if isinstance(marker, When)]

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
        yield range_of(bounds)
    for marker in markers:
        if isinstance(marker, Rule):
            yield marker


def range_of(bounds: Sequence[Bound]) -> Rule:
    """Return the rule that a value is within bounds."""
    limits = {}
    for bound in bounds:
        name = type(bound).__name__.lower()
        limits[name] = getattr(bound, name)

    def holds(value: Any) -> bool:
        return all(getattr(operator, name)(value, limit) for name, limit in limits.items())

    words = " and ".join(f"{COMPARED[name]} {limit}" for name, limit in limits.items())
    return Rule(holds, f"must be {words}")
