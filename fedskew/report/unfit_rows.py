"""Rows that lead no headline and are never the best: one that diverged in a seed, or is no better than chance."""

import math

from fedskew.report.format import named, plain
from fedskew.report.inference import summarize_seeds
from fedskew.report.results import ExperimentResults
from server_app.round_selection import select

ROUNDING = 1e-9
"""A mean of recalls may round upwards."""
CHANCE_REMEDY = (
    "look at the data with `fedskew data check`, and try another learning-rate or more rounds"
)


def chance_words(results: ExperimentResults, row: str, column: str) -> str:
    """Return a row's number beside chance if it is no better: "40.3 where chance is 50.0 percent"; empty if it is.

    One rule, whatever number a table shows: the mean balanced accuracy over the seeds, in the rounds that the table
    reads, is at most 1 / C. C is the number of classes that are tested, and 1 / C is what a constant prediction has.
    """
    group = results.of(row, column)
    selection = results.experiment.selection
    summary = summarize_seeds(group, selection, "balanced-accuracy")
    if summary is None:
        return ""
    tested = 0
    for measured in group:
        for point in select(measured.points, selection):
            known = [recall for recall in point.numbers.recall if not math.isnan(recall)]
            tested = max(tested, len(known))
    return beside_chance(summary.mean, tested or group[0].run.settings.data.num_classes)


def beside_chance(number: float, classes: int) -> str:
    """Return a balanced accuracy in percent beside chance if it is no better, else nothing.

    As "40.3 where chance is 50.0 percent".
    """
    chance = 100 / classes
    if number > chance + ROUNDING:
        return ""
    return f"{plain(number)} where chance is {plain(chance)} percent"


def is_unfit(results: ExperimentResults, row: str, column: str) -> bool:
    """Return whether a row may lead no headline in a column."""
    return bool(results.diverged(row, column) or chance_words(results, row, column))


def seeds_words(results: ExperimentResults, row: str, column: str) -> str:
    """Return in how many seeds a row has a number and in how many it diverged; empty where it diverged in none."""
    diverged = len(results.diverged(row, column))
    if not diverged:
        return ""
    finished = len(results.of(row, column))
    return f"{finished} of {len(results.seeds)} seeds, {diverged} diverged"


def unfit_sentences(results: ExperimentResults, column: str) -> list[str]:
    """Return which rows of a column lead no headline, why, and what to do: a sentence for each cause."""
    sentences = []
    at_chance = []
    for row in results.experiment.rows:
        diverged = results.diverged(row.label, column)
        if diverged:
            seed, divergence = next(iter(diverged.items()))
            count = f"{len(diverged)} of {len(results.seeds)} seeds"
            first = f"seed {seed} in round {divergence['round']}: {divergence['reason']}"
            remedy = divergence["remedy"]
            sentences.append(
                f"{named(column)}{row.label} diverged in {count} ({first}), so it is neither ranked nor "
                f"compared ({remedy})."
            )
            continue
        words = chance_words(results, row.label, column)
        if words:
            at_chance.append(f"{row.label} ({words})")
    if at_chance:
        are = "are" if len(at_chance) > 1 else "is"
        it = "they lead" if len(at_chance) > 1 else "it leads"
        sentences.append(
            f"{named(column)}{', '.join(at_chance)} {are} no better than chance in balanced accuracy, so {it} no "
            f"comparison: {CHANCE_REMEDY}."
        )
    return sentences
