"""A rule stands once, beside its field, and an error says it in words."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
from annotated_types import Ge, Gt, Le, Lt

from data import OneOf, Rule, SettingError, Settings


@dataclass(frozen=True)
class Example(Settings):
    name: ClassVar[str] = "example"

    count: Annotated[int, Ge(0)] = 0
    width: Annotated[int, Ge(3)] = 3
    fold: Annotated[int, Ge(0), Le(4)] = 0
    rate: Annotated[float, Gt(0)] = 1.0
    share: Annotated[float, Gt(0), Le(1)] = 1.0
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    number: float = 0.0
    option: Annotated[str, OneOf("I", "II", "IV")] = "I"
    even: Annotated[int, Ge(2), Rule(lambda value: value % 2 == 0, "must be even")] = 2

    def validate(self) -> None:
        self.require(
            self.count == 0 or self.is_default("width"), "width", "has no effect beside count"
        )


@dataclass(frozen=True)
class Longer(Example):
    name: ClassVar[str] = ""

    more: Annotated[int, Ge(1)] = 1


@pytest.mark.parametrize(
    ("field", "good", "bad", "rule"),
    [
        ("count", [0], [-1], "must be at least 0"),
        ("width", [3], [2], "must be at least 3"),
        ("fold", [0, 4], [-1, 5], "must be at least 0 and at most 4"),
        ("rate", [1e-9], [0.0], "must be greater than 0"),
        ("share", [1.0], [0.0, 1.1], "must be greater than 0 and at most 1"),
        ("momentum", [0.0, 0.9], [1.0, -0.1], "must be at least 0 and less than 1"),
        ("number", [-3.0], [math.nan, -math.inf], "must be a finite number"),
        ("option", ["II"], ["III"], "must be one of I, II, IV"),
        ("even", [4], [3], "must be even"),
    ],
)
def test_rules(field: str, good: list[object], bad: list[object], rule: str) -> None:
    key = field.replace("_", "-")
    for value in good:
        assert getattr(Longer(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in bad:
        with pytest.raises(SettingError) as caught:
            Longer(**{field: value})  # type: ignore[arg-type]
        assert str(caught.value) == f"{key} = {value!r}: {rule}" and caught.value.key == key


def test_what_an_heir_adds_is_held_as_well_and_so_are_rules_between_fields() -> None:
    for make, key in (
        (lambda: Longer(more=0), "more"),
        (lambda: Example(count=1, width=4), "example.width"),
    ):
        with pytest.raises(SettingError) as caught:
            make()
        assert caught.value.key == key
    assert Longer(more=1).more == Example(count=1).count
