"""Figures of what a row's number costs: by the bytes that were sent, and by the core seconds that were computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.report.figures import curve, styles
from fedskew.report.format import plain, words, words_and_unit
from fedskew.report.inference import Floats
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import bytes_until
from fedskew.report.svg import Drawing, Figure
from server_app.record import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cost = Callable[[Sequence[RoundRecord], int], float]
"""Takes a run's records and a round; returns what the run has cost until then."""


def core_seconds_until(records: Sequence[RoundRecord], round: int) -> float:
    """Return the seconds of computing up to a round: the clients' own, summed, and the server's.

    Evaluation and waiting do not count. Seconds of different machines cannot be compared.
    """
    seconds = 0.0
    for record in records:
        if record.round <= round:
            seconds += record.seconds.client_work + record.seconds.server
    return seconds


def megabytes_until(records: Sequence[RoundRecord], round: int) -> float:
    """Return the megabytes (10^6 bytes) sent both ways up to a round."""
    return bytes_until(records, round) / 1e6


def by_bytes(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return a column's number by the megabytes that training has sent."""
    return by_cost(results, column, name, megabytes_until, "MB sent, down and up")


def by_core_seconds(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return a column's number by the core seconds of clients and server."""
    return by_cost(results, column, name, core_seconds_until, "core seconds of clients and server")


def by_cost(
    results: ExperimentResults, column: str, name: str, cost: Cost, what: str
) -> Figure | None:
    """Return the mean of a column's number over the seeds, by the mean cost until its round.

    Args:
        results: of the experiment.
        column: of the experiment.
        name: makes the figure's ids unique in the page.
        cost: what a run has cost until a round.
        what: the axis' label, with the unit.

    Returns:
        None where no row costs anything, as in records of versions that did not count it.
    """
    metric = results.experiment.metric_of(column)
    lines = {}
    for row in results.experiment.rows:
        line = mean_by_cost(results.of(row.label, column), metric, cost)
        if line is not None:
            lines[row.label] = line
    if not lines or not any(costs.any() for costs, _ in lines.values()):
        return None

    def draw(axes: "Axes") -> None:
        looks = styles(results)
        for label, (costs, means) in lines.items():
            style = looks[label]
            axes.plot(
                costs,
                means,
                color=style.color,
                linestyle=style.line,
                linewidth=1.6,
                marker="o",
                markersize=3,
            )
        if spread_of_ends(lines) > 10:
            axes.set_xscale("log")  # a dear method would press all others into the first tenth
        axes.set(xlabel=what, ylabel=words_and_unit(metric))
        axes.grid()

    ends = []
    for label, (costs, means) in lines.items():
        ends.append(f"{label} {plain(float(means[-1]), metric)} after {costs[-1]:.3g}")
    alt = f"{words(metric).capitalize()} by {what}: {', '.join(ends)}."
    return Figure(column, alt, Drawing(name, 3.0, draw), by_row=True)


def mean_by_cost(
    group: Sequence[SeedResult], metric: str, cost: Cost
) -> tuple[Floats, Floats] | None:
    """Return costs and values, (rounds,) each, means over the seeds, in the rounds that all seeds evaluated."""
    points = curve(group, metric)
    if points is None:
        return None
    rounds, values_SR = points
    complete_R = ~np.isnan(values_SR).any(0)
    if not complete_R.any():
        return None
    shown = np.array(rounds)[complete_R].tolist()
    costs_SR = [[cost(measured.run.records, round) for round in shown] for measured in group]
    return np.mean(costs_SR, axis=0), values_SR[:, complete_R].mean(0)


def spread_of_ends(lines: Mapping[str, tuple[Floats, Floats]]) -> float:
    """Return the highest total cost of a row over the lowest one."""
    ends = [float(costs[-1]) for costs, _ in lines.values() if costs[-1] > 0]
    return max(ends) / min(ends)
