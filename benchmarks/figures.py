"""Figures of the suite: ratios of what is measured alternately in one run, each a JSON row."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
"""name, ratio (a median), goal (None where there is none), least, most, measurements; or name and seconds."""
MEASUREMENTS = 5
"""How often everything is measured at least."""


def figure(
    name: str,
    measured: Sequence[float],
    reference: Sequence[float],
    goal: float | None = None,
) -> Row:
    """Return the row of a ratio: the median over measurements that stand beside each other, and their spread."""
    ratios = [left / right for left, right in zip(measured, reference, strict=True)]
    return row(name, ratios, goal)


def row(name: str, ratios: Sequence[float], goal: float | None = None) -> Row:
    """Return the row of ratios that are measured already."""
    return {
        "name": name,
        "ratio": rounded(statistics.median(ratios)),
        "goal": goal,
        "least": rounded(min(ratios)),
        "most": rounded(max(ratios)),
        "measurements": len(ratios),
    }


def seconds(name: str, measured: Sequence[float], goal: float | None = None) -> Row:
    """Return the row of a time, which says something of the machine as well; `goal` is in seconds."""
    return {"name": name, "seconds": rounded(statistics.median(measured)), "goal": goal}


def rounded(value: float) -> float:
    """Return a number with four digits that count."""
    return float(f"{value:.4g}")


def alternate(
    *actions: Callable[[], object], measurements: int = MEASUREMENTS
) -> list[list[float]]:
    """Return each action's seconds, the actions taking turns; the first turn of all is not counted."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(measurements + 1):
        for action, series in zip(actions, times, strict=True):
            began = time.perf_counter()
            action()
            series.append(time.perf_counter() - began)
    return [series[1:] for series in times]
