"""The setting `sweep` of methods that deploy one model for each of several values, from one training."""

import math
from collections.abc import Callable
from typing import TypeVar

from data import Rule
from data.text import any_number

Number = TypeVar("Number", int, float)


def values_of(text: str, read: Callable[[str], Number]) -> list[Number]:
    """Return the values of a comma-separated text, each read by `read`.

    Raises ValueError unless every value is finite, at least 0 and there once.
    """
    values = [read(part) for part in text.split(",")]
    if len(set(values)) < len(values):
        raise ValueError("a value is there twice")
    if not all(0 <= value < math.inf for value in values):
        raise ValueError("a value is below 0 or not finite")
    return values


def is_sweep(text: str) -> bool:
    """Return whether a text is a sweep over numbers; an empty one is none, and allowed."""
    try:
        return not text or bool(values_of(text, any_number))
    except ValueError:
        return False


SWEEP = Rule(is_sweep, "must be comma-separated numbers of 0 or more, each once")


def by_model(method: str, sweep: str) -> dict[str, float]:
    """Return the values of a sweep by the names of their models, as tau-norm-0.5."""
    values = {}
    for value in values_of(sweep, float):
        name = f"{method}-{value!r}".removesuffix(".0")
        values[name] = value
    return values
