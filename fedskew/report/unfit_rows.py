"""Rows that lead no headline and are never the best: one that diverged in a seed, or is no better than chance."""

import math
from collections.abc import Sequence

from fedskew.formatting import plural
from fedskew.report.format import chance_of, plain, words
from fedskew.report.results import ColumnResults, RowResults, SeedResult

ROUNDING = 1e-9
"""A mean of recalls may round upwards."""
CHANCE_REMEDY = (
    "look at the data with `fedskew data check`, and try another learning-rate or more rounds"
)


def tested_in(runs: Sequence[SeedResult]) -> int:
    """Return how many classes are tested in the rounds that are selected of runs; all where no recall is recorded."""
    tested = [0]
    for run in runs:
        for point in run.selected:
            tested.append(sum(not math.isnan(recall) for recall in point.numbers.recall))
    return max(tested) or max((run.run.settings.data.num_classes for run in runs), default=0)


def beside_chance(number: float | None, runs: Sequence[SeedResult]) -> str:
    """Return a number of runs beside chance if it is no better: "40.3 where chance is 50.0 percent"; empty if it is.

    Also empty for a number whose chance the classes alone do not give, as of a client's own mix.
    """
    classes = tested_in(runs)
    chance = chance_of(runs[0].metric, classes) if classes else None
    if chance is None or number is None or number > chance + ROUNDING:
        return ""
    return f"{plain(number)} where chance is {plain(chance)} percent"


def chance_words(row: RowResults) -> str:
    """Return a row's mean over the seeds beside chance if it is no better; empty if it is."""
    return beside_chance(row.estimate.mean, row.runs) if row.estimate else ""


def diverged_words(row: RowResults) -> str:
    """Return in how many seeds a row diverged: "fedavg diverged in 1 of 3 seeds"; empty where it did in none."""
    if not row.diverged:
        return ""
    return f"{row.row} diverged in {len(row.diverged)} of {plural(row.seeds, 'seed')}"


def seeds_words(row: RowResults) -> str:
    """Return in how many seeds a row has a number and in how many it diverged; empty where it diverged in none."""
    if not row.diverged:
        return ""
    return f"{len(row.runs)} of {plural(row.seeds, 'seed')}, {len(row.diverged)} diverged"


def unfit_words(row: RowResults) -> str:
    """Return why a row may lead no headline in a column; empty where it may."""
    at_chance = f"{row.row} is no better than chance" if chance_words(row) else ""
    return diverged_words(row) or at_chance


def unfit_sentences(column: ColumnResults) -> list[str]:
    """Return which rows of a column lead no headline, why, and what to do: a sentence for each cause."""
    sentences = []
    at_chance = []
    for row in column.rows:
        for seed, how in [*row.diverged.items()][:1]:
            where = f"{diverged_words(row)}, seed {seed} in round {how['round']}"
            sentences.append(f"{where}: {how['reason']} ({how['remedy']}).")
        beside = chance_words(row)
        if beside and not row.diverged:
            at_chance.append(f"{row.row} ({beside})")
    if at_chance:
        cause = f"no better than chance in {words(column.metric)}: {', '.join(at_chance)}"
        sentences.append(f"{cause}: {CHANCE_REMEDY}.")
    return list(map(column.titled, sentences))
