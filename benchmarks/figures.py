"""Figures of the suite: ratios of what is measured alternately in one run, each a JSON row."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

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


@contextmanager
def peak(pid: int) -> Iterator[list[float]]:
    """Within this context, keep the most bytes seen of a process and its children, what they share counted once."""
    most = [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            total = 0
            with suppress(psutil.Error):  # it has ended
                parent = psutil.Process(pid)
                for member in (parent, *parent.children(recursive=True)):
                    total += member.memory_full_info().pss
                most[0] = max(most[0], float(total))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()
