"""Figures of the final models' predictions: ROC, precision by recall, and reliability.

They need the predictions for each test sample, which a run keeps where the server measures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.metrics import BINS
from client_app.ranking import margins, order_of
from fedskew.report.figures import styles
from fedskew.report.inference import Floats
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.svg import INK, Drawing, Figure
from server_app.evaluation import PositiveClass
from server_app.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = np.linspace(0, 1, 201)
"""The rates at which curves of seeds and classes are averaged."""


@dataclass(frozen=True)
class Detection:
    """How well one class is separated from the others, by threshold from the highest to the lowest."""

    false_alarms_T: Floats
    """Share of the other samples at or above the threshold."""
    recall_T: Floats
    """Share of the class's samples at or above it."""
    precision_T: Floats
    """Share of the class among the samples at or above it."""

    @classmethod
    def of(cls, score_N: Floats, is_positive_N: NDArray[np.bool_]) -> "Detection":
        """Return it from the samples' scores. Samples with equal scores share one threshold."""
        order_N, starts_T = order_of(score_N)
        sorted_N = is_positive_N[order_N]
        hits_T = np.add.reduceat(sorted_N.astype(float), starts_T).cumsum()
        alarms_T = np.add.reduceat((~sorted_N).astype(float), starts_T).cumsum()
        return cls(
            false_alarms_T=alarms_T / alarms_T[-1],
            recall_T=hits_T / hits_T[-1],
            precision_T=hits_T / (hits_T + alarms_T),
        )

    def roc(self) -> Floats:
        """Return the recall at the false alarm rates of GRID, on straight lines between the thresholds."""
        rates_T = np.r_[0.0, self.false_alarms_T]
        recall_T = np.r_[0.0, self.recall_T]
        # Where the curve is vertical, several thresholds have one rate: `interp` takes the highest recall there.
        curve: Floats = np.interp(GRID, rates_T, recall_T)
        return curve

    def precision_by_recall(self) -> Floats:
        """Return the precision at the recalls of GRID: that of the highest threshold that has at least the recall.

        There is no line between two thresholds, as precision is not linear in recall. The mean of the steps over
        recall is the average precision.
        """
        first_T = np.searchsorted(self.recall_T, GRID - 1e-12)
        return self.precision_T[first_T]


def detections(predictions: Predictions, positive: PositiveClass | None) -> list[Detection]:
    """Return how well each class is separated from the others: of two classes the positive one alone.

    A class without test samples, or with all of them, has none.
    """
    labels_N = predictions.labels_N
    margin_NC = margins(torch.from_numpy(predictions.log_probabilities_NC))
    labels = np.unique(labels_N).tolist()
    if len(labels) < 2:
        return []
    if positive is not None:
        labels = [positive.label]
    return [Detection.of(margin_NC[:, label], labels_N == label) for label in labels]


def mean_curve(group: Sequence[SeedResult], curve: Callable[[Detection], Floats]) -> Floats | None:
    """Return a curve at GRID: a mean over the classes, then over the seeds. None where a run has no predictions."""
    by_seed = []
    for measured in group:
        predictions = measured.predictions
        found = detections(predictions, measured.positive_class) if predictions else []
        if not found:
            return None
        by_seed.append(np.mean([curve(detection) for detection in found], axis=0))
    return np.mean(by_seed, axis=0) if by_seed else None


def by_row(
    results: ExperimentResults,
    column: str,
    of_group: Callable[[Sequence[SeedResult]], Floats | None],
) -> dict[str, Floats]:
    """Return a curve for each row that has one."""
    curves = {}
    for row in results.experiment.rows:
        curve = of_group(results.of(row.label, column))
        if curve is not None:
            curves[row.label] = curve
    return curves


def values_at(rate: float, curves: Mapping[str, Floats]) -> str:
    """Return each row's value in percent at a rate of GRID, in words."""
    position = np.searchsorted(GRID, rate)
    values = [f"{row} {100 * curve[position]:.0f}" for row, curve in curves.items()]
    return ", ".join(values)


def in_percent(curves: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats]]:
    """Return the points of curves at GRID, in percent on both axes."""
    return {row: (100 * GRID, 100 * curve) for row, curve in curves.items()}


def plot_diagonal(axes: "Axes") -> None:
    """Draw a dotted line from 0 to 100 percent: chance in a ROC, and a calibrated model's reliability."""
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, linestyle=(0, (1, 3)))


def roc(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the receiver operating characteristic of each row's final models."""
    curves = by_row(results, column, lambda group: mean_curve(group, Detection.roc))
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        plot_diagonal(axes)
        plot(axes, results, in_percent(curves))
        axes.set(xlabel="false alarms (1 - specificity), %", ylabel="sensitivity, %")

    alt = f"ROC; sensitivity at 10 % false alarms in percent: {values_at(0.1, curves)}."
    return Figure(column, alt, Drawing(name, 3.4, draw), by_row=True)


def precision_by_recall(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the precision by recall of each row's final models."""
    curves = by_row(results, column, lambda group: mean_curve(group, Detection.precision_by_recall))
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        plot(axes, results, in_percent(curves))
        axes.set(xlabel="recall, %", ylabel="precision, %")

    alt = f"Precision by recall; precision at 50 % recall in percent: {values_at(0.5, curves)}."
    return Figure(column, alt, Drawing(name, 3.4, draw), by_row=True)


def reliability_of(group: Sequence[SeedResult]) -> Floats | None:
    """Return (3, BINS): samples, mean confidence and share correct by bin of confidence, over the samples of all seeds.

    Confidence is the highest class probability (Guo et al., 2017). None where a run has no predictions.
    """
    sums_3B = np.zeros((3, BINS))
    for measured in group:
        predictions = measured.predictions
        if predictions is None:
            return None
        log_NC = predictions.log_probabilities_NC
        confidence_N = np.exp(log_NC.max(1))
        correct_N = log_NC.argmax(1) == predictions.labels_N
        bin_N = np.minimum(
            (confidence_N * BINS).astype(int), BINS - 1
        )  # 1 itself is in the last bin
        sums_3B[0] += np.bincount(bin_N, minlength=BINS)
        sums_3B[1] += np.bincount(bin_N, weights=confidence_N, minlength=BINS)
        sums_3B[2] += np.bincount(bin_N, weights=correct_N, minlength=BINS)
    if not sums_3B[0].any():
        return None
    filled_B = np.maximum(sums_3B[0], 1)
    return np.stack([sums_3B[0], sums_3B[1] / filled_B, sums_3B[2] / filled_B])


def reliability(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the share of right predictions by confidence: on the diagonal a model is calibrated, below it too sure."""
    bins = by_row(results, column, reliability_of)
    if not bins:
        return None

    def draw(axes: "Axes") -> None:
        plot_diagonal(axes)
        points = {}
        for row, (samples_B, confidence_B, correct_B) in bins.items():
            filled = samples_B > 0
            points[row] = (100 * confidence_B[filled], 100 * correct_B[filled])
        plot(axes, results, points, marker="o")
        axes.set(xlabel="confidence, %", ylabel="predicted rightly, %")

    gaps = []
    for row, (samples_B, confidence_B, correct_B) in bins.items():
        excess = float((samples_B * (confidence_B - correct_B)).sum() / samples_B.sum())
        gaps.append(f"{row} {100 * excess:+.1f}")
    alt = f"Reliability; mean confidence minus accuracy in points: {', '.join(gaps)}."
    return Figure(column, alt, Drawing(name, 3.4, draw), by_row=True)


def plot(
    axes: "Axes",
    results: ExperimentResults,
    lines: Mapping[str, tuple[Floats, Floats]],
    marker: str = "",
) -> None:
    """Draw one line per row in the row's color and dashes, between 0 and 100 percent."""
    looks = styles(results)
    for row, (x, y) in lines.items():
        style = looks[row]
        axes.plot(
            x,
            y,
            color=style.color,
            linestyle=style.line,
            linewidth=1.4,
            marker=marker,
            markersize=3,
        )
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.grid()
