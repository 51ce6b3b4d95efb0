"""Rows that lead no headline and are never the best: one that diverged in a seed, or is no better than chance."""

import math
from collections.abc import Iterable, Sequence

from fedskew.formatting import plural
from fedskew.report.format import chance_of, named, plain, words
from fedskew.report.inference import summarize_seeds
from fedskew.report.results import ExperimentResults, SeedResult
from server_app.round_selection import select

ROUNDING = 1e-9
"""A mean of recalls may round upwards."""
CHANCE_REMEDY = (
    "look at the data with `fedskew data check`, and try another learning-rate or more rounds"
)


def beside_chance(number: float, metric: str, classes: int) -> str:
    """Return a number beside chance if it is no better: "40.3 where chance is 50.0 percent"; empty if it is.

    Also empty for NaN, and for a number whose chance the classes alone do not give, as of a client's own mix.

    Args:
        number: in percent.
        metric: what it is.
        classes: those that are tested.
    """
    chance = chance_of(metric, classes) if classes else None
    if chance is None or math.isnan(number) or number > chance + ROUNDING:
        return ""
    return f"{plain(number)} where chance is {plain(chance)} percent"


def tested_classes(recalls: Iterable[Sequence[float]]) -> int:
    """Return how many classes are tested, by the recalls of a model's classes on each test set; NaN is untested."""
    tested = [sum(not math.isnan(recall) for recall in recall_C) for recall_C in recalls]
    return max(tested, default=0)


def tested_in(group: Sequence[SeedResult], selection: str) -> int:
    """Return how many classes are tested in the rounds that are selected of runs; all where no recall is recorded."""
    recalls = []
    classes = 0
    for measured in group:
        recalls += [point.numbers.recall for point in select(measured.points, selection)]
        classes = max(classes, measured.run.settings.data.num_classes)
    return tested_classes(recalls) or classes


def chance_words(
    results: ExperimentResults, row: str, column: str, metric: str = "", selection: str = ""
) -> str:
    """Return a row's mean over the seeds beside chance if it is no better; empty if it is.

    `metric` and `selection` are the table's if empty.
    """
    group = results.of(row, column)
    metric = metric or results.experiment.metric_of(column)
    selection = selection or results.experiment.selection
    summary = summarize_seeds(group, selection, metric)
    if summary is None:
        return ""
    return beside_chance(summary.mean, metric, tested_in(group, selection))


def diverged_words(results: ExperimentResults, row: str, column: str) -> str:
    """Return in how many seeds a row diverged: "fedavg diverged in 1 of 3 seeds"; empty where it did in none."""
    diverged = len(results.diverged(row, column))
    seeds = plural(len(results.seeds), "seed")
    return f"{row} diverged in {diverged} of {seeds}" if diverged else ""


def seeds_words(results: ExperimentResults, row: str, column: str) -> str:
    """Return in how many seeds a row has a number and in how many it diverged; empty where it diverged in none."""
    diverged = len(results.diverged(row, column))
    seeds = plural(len(results.seeds), "seed")
    return f"{len(results.of(row, column))} of {seeds}, {diverged} diverged" if diverged else ""


def unfit_words(results: ExperimentResults, row: str, column: str) -> str:
    """Return why a row may lead no headline in a column; empty where it may."""
    diverged = diverged_words(results, row, column)
    at_chance = f"{row} is no better than chance" if chance_words(results, row, column) else ""
    return diverged or at_chance


def unfit_sentences(results: ExperimentResults, column: str) -> list[str]:
    """Return which rows of a column lead no headline, why, and what to do: a sentence for each cause."""
    sentences = []
    at_chance = []
    for row in results.experiment.rows:
        beside = chance_words(results, row.label, column)
        diverged = results.diverged(row.label, column)
        if diverged:
            seed, how = next(iter(diverged.items()))
            where = f"{named(column)}{diverged_words(results, row.label, column)}, seed {seed}"
            sentences.append(f"{where} in round {how['round']}: {how['reason']} ({how['remedy']}).")
        elif beside:
            at_chance.append(f"{row.label} ({beside})")
    if at_chance:
        metric = words(results.experiment.metric_of(column))
        rows = ", ".join(at_chance)
        sentences.append(
            f"{named(column)}no better than chance in {metric}: {rows}: {CHANCE_REMEDY}."
        )
    return sentences
