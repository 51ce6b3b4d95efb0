"""The rank diagram of an experiment with several columns: Demsar, Statistical Comparisons of Classifiers, JMLR 2006."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedskew.report.figures import styles
from fedskew.report.format import in_percent
from fedskew.report.inference import Floats, summarize_seeds
from fedskew.report.results import ExperimentResults
from fedskew.report.svg import COLORS, INK, Drawing, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVEL = 0.05
LEAST_COLUMNS = 3
"""A mean rank of two columns says no more than the table."""


def ranks(results: ExperimentResults) -> dict[str, Floats]:
    """Return each row's rank in every column, (columns,): 1 is the highest mean over seeds, and ties share a mean rank.

    Rows without a number in every column, and rows that diverged in a seed, are left out. So are columns whose number
    is no share: of a loss the lowest is the best.
    """
    from scipy.stats import rankdata

    experiment = results.experiment
    columns = [column for column in experiment.columns if in_percent(experiment.metric_of(column))]
    means = {}
    for row in experiment.rows:
        values = []
        for column in columns:
            group = results.of(row.label, column)
            summary = summarize_seeds(group, experiment.selection, experiment.metric_of(column))
            diverged = results.diverged(row.label, column)
            values.append(math.nan if summary is None or diverged else summary.mean)
        if not np.isnan(values).any():
            means[row.label] = values
    if len(means) < 2 or len(columns) < LEAST_COLUMNS:
        return {}
    means_RC = np.array(list(means.values()))
    ranks_RC = rankdata(-means_RC, axis=0)
    return dict(zip(means, ranks_RC, strict=True))


def critical_difference(rows: int, columns: int) -> float:
    """Return by how much two mean ranks must differ to be distinguishable, by Nemenyi's test at LEVEL for all pairs.

    It is q / sqrt(2) * sqrt(k (k + 1) / (6 N)) for k rows and N columns, where q is the studentized range's quantile
    (Demsar 2006, equation in section 3.2.2). It takes the columns as independent.
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - LEVEL, rows, np.inf))
    return quantile / math.sqrt(2) * math.sqrt(rows * (rows + 1) / (6 * columns))


def rank_diagram(results: ExperimentResults, name: str) -> Figure | None:
    """Return the rows by mean rank over the columns, the best first: a dot per column, a diamond for the mean.

    The bar on top is the critical difference.
    """
    ranks_of = ranks(results)
    if not ranks_of:
        return None
    mean_rank = {row: float(ranks_C.mean()) for row, ranks_C in ranks_of.items()}
    ordered = sorted(mean_rank, key=mean_rank.__getitem__)
    columns = len(next(iter(ranks_of.values())))
    bar = critical_difference(len(ordered), columns)

    def draw(axes: "Axes") -> None:
        looks = styles(results)
        axes.plot([1, 1 + bar], [-1, -1], color=INK, linewidth=2.2)
        for y, row in enumerate(ordered):
            ranks_C = ranks_of[row]
            # Equal ranks of several columns stand above one another.
            offsets = 0.2 * np.sin(2.4 * np.arange(len(ranks_C)))
            color = looks[row].color
            axes.scatter(ranks_C, y + offsets, s=10, color=color, alpha=0.5, linewidth=0)
            axes.scatter([mean_rank[row]], [y], s=60, marker="D", color=COLORS[1], zorder=3)
        axes.set_yticks([-1, *range(len(ordered))], ["distinguishable from here", *ordered])
        axes.set(
            ylim=(len(ordered) - 0.5, -1.5),
            xlim=(0.7, max(len(ordered), 1 + bar) + 0.3),
            xlabel=f"rank among {len(ordered)} rows, 1 is the best",
        )
        axes.grid(axis="x")

    alt = in_words(mean_rank, ordered, columns, bar)
    return Figure("", alt, Drawing(name, 0.3 * len(ordered) + 1.2, draw))


def in_words(mean_rank: Mapping[str, float], ordered: list[str], columns: int, bar: float) -> str:
    """Return the mean ranks and the critical difference."""
    shown = ", ".join(f"{row} {mean_rank[row]:.1f}" for row in ordered)
    return (
        f"Mean rank over {columns} columns: {shown}. "
        f"Two rows are distinguishable where their mean ranks differ by more than {bar:.1f} (Nemenyi, 5 %)."
    )
