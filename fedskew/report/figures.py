"""What each figure of a report draws, from the records of an experiment's runs; drawing.py has the ways to draw."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from client_app.ranking import margins
from fedskew.report.claims import Verdict
from fedskew.report.differences import bytes_until, differences
from fedskew.report.document import Document
from fedskew.report.drawing import Effect, Figure, Points, forest, lines, matrix
from fedskew.report.format import first_upper, in_percent, words, words_and_unit
from fedskew.report.inference import Floats
from fedskew.report.results import ColumnResults, RowResults, SeedResult
from fedskew.report.runs import slug

GRID = np.linspace(0, 1, 201)
"""The rates at which curves of seeds and classes are averaged."""
OfColumn = Callable[[ColumnResults], Figure | None]


def figures(document: Document) -> dict[str, Figure]:
    """Return the figures of a report by name, of which nothing is drawn yet.

    A name begins with its section's key. What the figure shows follows, where it is not the section's first one, then
    its column and row.
    """
    found: dict[str, Figure] = {}
    for words_of_name, title, figure in panels(document):
        if figure is not None:
            name = slug(words_of_name)
            name += f"-{len(found)}" if name in found else ""
            found[name] = replace(figure, title=title.removesuffix(": "))
    return found


def panels(document: Document) -> Iterator[tuple[str, str, Figure | None]]:
    """Yield every figure with the words of its name and its title; None where there is nothing to draw."""
    yield "claims", "Claims", claims(document.verdicts, "points")
    yield "claims rounds", "Claims", claims(document.verdicts, "rounds")
    results = document.results
    for column in results.columns:
        name = column.name
        for key, (shown, of_column) in OF_COLUMN.items():
            yield f"{key} {name}", f"{shown}: {name}", of_column(column)
        for metric in results.experiment.series:
            title = f"{first_upper(words(metric))}: {name}"
            yield f"curves {metric} {name}", title, curves(column, metric)
        for row in column.rows:
            key = f"ranking confusion of the classes {name} {row.row}"
            yield key, f"Confusion of the classes: {column.titled(row.row)}", confusion(row)


def claims(verdicts: Sequence[Verdict], unit: str) -> Figure | None:
    """Return the differences of the claims in this unit."""
    shown = []
    for number, verdict in enumerate(verdicts, 1):
        if verdict.n and verdict.unit == unit:
            name = f"{number}. {verdict.claim.relation}"
            shown.append(Effect(name, verdict.found, verdict.is_decided))
    return forest(shown, f"difference, {unit}")


def effects(column: ColumnResults) -> Figure | None:
    """Return the rows' differences from the one that they are compared with."""
    shown = [Effect(one.row.row, one.found, one.distinguishable) for one in differences(column)]
    return forest(shown, "difference, points" if in_percent(column.metric) else "difference")


def by_round(group: Sequence[SeedResult], by_bytes: bool) -> Points:
    """Return a number's mean over the seeds and its range, in the rounds that all seeds have evaluated.

    They stand at the round, or at the megabytes that training has sent until then.
    """
    of_seeds = [run.by_round for run in group]
    rounds = sorted(set.intersection(*map(set, of_seeds))) if of_seeds else []
    if not rounds:
        return None
    values_SR = np.array([[of_seed[round] for round in rounds] for of_seed in of_seeds])
    x_R = np.array(rounds, float)
    if by_bytes:
        sent_SR = [[bytes_until(run.run.records, round) for round in rounds] for run in group]
        x_R = np.mean(sent_SR, axis=0) / 1e6
    return x_R, values_SR.mean(0), values_SR.min(0), values_SR.max(0)


def curves(column: ColumnResults, metric: str = "", by_bytes: bool = False) -> Figure | None:
    """Return a number over the rounds, or over the megabytes sent; without `metric` the column's own."""
    metric = metric or column.metric
    by_row = {}
    ends = []
    chances: list[float] = []
    for row in column.rows:
        runs = row.by(metric).runs
        points = by_round(runs, by_bytes)
        by_row[row.row] = points
        if points is not None:
            ends.append(points[0][-1])
        chances += [run.chance for run in runs if run.chance is not None]
    dotted = None
    if chances and ends:
        dotted = ([1, max(ends)], [min(chances)] * 2, "chance")
    x = "MB sent, down and up" if by_bytes else "round"
    return lines(by_row, x, words_and_unit(metric), dotted=dotted)


def confusion(row: RowResults) -> Figure | None:
    """Return of every class the share predicted as each: the confusion matrices of the last round, over all seeds."""
    matrices = [run.points[-1].numbers.confusion for run in row.runs]
    if not matrices or None in matrices:
        return None
    names = row.runs[0].run.settings.data.class_names
    counts_CC = np.sum(np.array(matrices), axis=0)
    samples_C1 = counts_CC.sum(1, keepdims=True)
    shares_CC = counts_CC / np.maximum(samples_C1, 1)
    rightly = zip(names, shares_CC.diagonal(), strict=True)
    alt = f"Percent predicted rightly: {', '.join(f'{name} {100 * share:.0f}' for name, share in rightly)}."
    labels = ("true class", "predicted")
    return matrix(shares_CC, names, names, labels, alt, percent=True)


def partition(column: ColumnResults) -> Figure | None:
    """Return the training samples by class and client of the first run; shades are square roots of the numbers."""
    for measured in column.runs:
        samples = measured.run.samples
        if samples:
            counts_KC = np.array(samples["train"])
            names = measured.run.settings.data.class_names
            sizes_K = counts_KC.sum(1)
            alt = (
                f"Seed {measured.seed}; a client holds {sizes_K.min()} to {sizes_K.max()} samples."
            )
            shades_KC = np.sqrt(counts_KC / max(1, counts_KC.max()))
            return matrix(shades_KC, samples["clients"], names, ("client", "class"), alt)
    return None


Curve = Callable[[NDArray[np.bool_], Floats], Floats]
"""Takes which samples are of a class, and their scores for it; returns a share at the rates of GRID."""


def sensitivity(hits_N: NDArray[np.bool_], score_N: Floats) -> Floats:
    """Return the sensitivity at the false alarm rates of GRID, on straight lines between the thresholds."""
    false_alarms_T, sensitivity_T, _ = roc_curve(hits_N, score_N)
    return np.asarray(np.interp(GRID, false_alarms_T, sensitivity_T))


def precision(hits_N: NDArray[np.bool_], score_N: Floats) -> Floats:
    """Return the precision at the recalls of GRID: that of the highest threshold that has at least the recall.

    There is no line between two thresholds, as precision is not linear in recall.
    """
    precision_T, recall_T, _ = precision_recall_curve(hits_N, score_N)
    # From recall 0 on, without the point that scikit-learn adds there.
    rising_precision_T = precision_T[-2::-1]
    rising_recall_T = recall_T[-2::-1]
    reached_G = np.searchsorted(rising_recall_T, GRID - 1e-12)
    return np.asarray(rising_precision_T[reached_G])


def mean_curve(runs: Sequence[SeedResult], curve: Curve) -> Points:
    """Return a curve in percent: a mean over the classes, of two classes the positive one's, then over the seeds.

    None where a run has no predictions, or tests on a single class.
    """
    by_seed = []
    for run in runs:
        predictions = run.predictions
        if predictions is None or len(np.unique(predictions.labels_N)) < 2:
            return None
        labels_N = predictions.labels_N
        positive = run.positive_class
        labels = np.unique(labels_N) if positive is None else [positive.label]
        score_NC = margins(torch.from_numpy(predictions.log_probabilities_NC))
        of_classes = [curve(labels_N == label, score_NC[:, label]) for label in labels]
        by_seed.append(np.mean(of_classes, axis=0))
    return (100 * GRID, 100 * np.mean(by_seed, axis=0)) if by_seed else None


def roc(column: ColumnResults) -> Figure | None:
    """Return the receiver operating characteristic of each row's final models."""
    by_row = {row.row: mean_curve(row.runs, sensitivity) for row in column.rows}
    chance = ([0, 100], [0, 100], "chance")
    x = "false alarms (1 - specificity), %"
    return lines(by_row, x, "sensitivity, %", at=10, dotted=chance)


def precision_by_recall(column: ColumnResults) -> Figure | None:
    """Return the precision by recall of each row's final models."""
    by_row = {row.row: mean_curve(row.runs, precision) for row in column.rows}
    return lines(by_row, "recall, %", "precision, %", at=50)


OF_COLUMN: Mapping[str, tuple[str, OfColumn]] = {
    "differences": ("Differences", effects),
    "curves": ("By round", curves),
    "reach": ("By bytes", partial(curves, by_bytes=True)),
    "ranking": ("ROC", roc),
    "ranking precision by recall": ("Precision by recall", precision_by_recall),
    "clients": ("Who holds what", partition),
}
"""The figures of a column: the section's key with what makes the name unique there; title and function."""
