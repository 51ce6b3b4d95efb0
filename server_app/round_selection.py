"""Which of a run's rounds counts: the last, the best on some data, or the mean of the last ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_app.keys import MEANS, SELECTIONS
from server_app.record import ModelNumbers, RoundRecord, to_json

LOWER_IS_BETTER = ("loss", "brier", "client-brier", "calibration-error")


@dataclass(frozen=True)
class Point:
    """An evaluated round of one of a run's models."""

    record: RoundRecord
    numbers: ModelNumbers

    @property
    def round(self) -> int:
        return self.record.round


def points_of(records: Sequence[RoundRecord], model: str) -> tuple[Point, ...]:
    """Return the evaluated rounds of a model."""
    points = []
    for record in records:
        if model in record.models:
            points.append(Point(record, record.models[model]))
    return tuple(points)


def select(points: Sequence[Point], selection: str, fewer: bool = False) -> Sequence[Point]:
    """Return the rounds that a selection means; none where the run has no such rounds.

    A mean over more rounds than the run has means none of them, or with `fewer` all of them.
    """
    if selection in MEANS:
        rounds = MEANS[selection]
        enough = fewer or len(points) >= rounds
        return points[-rounds:] if enough else ()
    if selection == "best-test":
        accuracies = [point.numbers["balanced-accuracy"] for point in points]
        return best(points, accuracies)
    if selection == "best-validation":
        validated = [point for point in points if point.numbers.validation is not None]
        return best(validated, [on_validation(point) for point in validated])
    return points[-1:]


def best(points: Sequence[Point], values: Sequence[float]) -> Sequence[Point]:
    """Return the point with the highest value, the first of equal ones; NaN counts as 0."""
    if not points:
        return ()
    without_nan = [0.0 if math.isnan(value) else value for value in values]
    first_best = without_nan.index(max(without_nan))
    return [points[first_best]]


def on_validation(point: Point) -> float:
    """Return the number by which the best round on the validation set is chosen.

    It is the mean accuracy over the clients, as in the code of FedBN's authors, if clients evaluated; else balanced
    accuracy.
    """
    measured = point.numbers.validation or ModelNumbers()
    by_client = measured.spreads.get("client-accuracy")
    if by_client is None:
        return measured["balanced-accuracy"]
    return by_client.mean


def summarize(records: Sequence[RoundRecord]) -> dict[str, dict[str, Any]]:
    """Return the numbers of every deployed model by selection, as the run's summary has them.

    A mean over more rounds than the run has is taken over all of them.
    """
    # The last evaluation has every model, also those that are deployed after the last round.
    evaluated = [record for record in records if record.models]
    names = evaluated[-1].models if evaluated else ()
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        points = points_of(records, name)
        result[name] = {}
        for selection in SELECTIONS:
            rounds = select(points, selection, fewer=True)
            if rounds:
                result[name][selection] = summary_of(selection, rounds)
    return result


def summary_of(selection: str, rounds: Sequence[Point]) -> dict[str, Any]:
    """Return the summary's entry of a selection."""
    numbers = rounds[-1].numbers
    if selection in MEANS:
        means = {}
        for name, last in numbers.means.items():
            if math.isfinite(last):
                total = math.fsum(point.numbers[name] for point in rounds)
                means[name] = to_json(total / len(rounds))
        return means
    entry = {} if selection == "last" else {"round": rounds[-1].round}
    return {**entry, **to_json(numbers)}


def selected(summary: Mapping[str, Any], model: str, selection: str = "last") -> ModelNumbers:
    """Return a model's numbers of a run's summary."""
    return ModelNumbers.of(summary["models"][model][selection])


def is_better(value: float, than: float, metric: str) -> bool:
    """Return whether a value of the metric is better than another; an equal one is not, and NaN never is."""
    return value < than if lower_is_better(metric) else value > than


def lower_is_better(metric: str) -> bool:
    """Return whether less of a number is better; it may be one over the clients, as client-brier.worst."""
    return metric.partition(".")[0] in LOWER_IS_BETTER
