"""Which of a run's rounds counts: the last, the best on some data, or the mean of the last ones.

The setting keep-best: every deployed model has a best round of its own, the evaluated round with the best
value of the metric on validation data so far, of equal rounds the first. A NaN is never the best.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from data import Federation, require
from server_app.keys import MEANS, SELECTIONS
from server_app.record import ModelNumbers, RoundRecord, to_json

LOWER_IS_BETTER = ("loss", "brier", "calibration-error")
RANKINGS = ("auroc", "auprc", "sensitivity-at-specificity-90", "specificity-at-sensitivity-90")
"""The metrics that are recorded for at most MOST_RANKED classes."""
METRICS = ("balanced-accuracy", "accuracy", "macro-f1", *LOWER_IS_BETTER, *RANKINGS)
"""The values of keep-best, as records name them. Of those not in LOWER_IS_BETTER the highest is the best."""


class Best(NamedTuple):
    """A round that was a model's best one when it was evaluated."""

    round: int
    value: float
    """Of the metric, on validation data."""


@dataclass(frozen=True)
class BestRounds:
    """Each deployed model's best rounds up to a round, the latest and best one last.

    Earlier ones are there only as long as a checkpoint on the disk, or one that is about to be written, names them:
    a resume from that checkpoint needs their files and the clients' memory of them.
    """

    by_model: Mapping[str, Sequence[Best]] = field(default_factory=dict)

    def after(
        self,
        round: int,
        metric: str,
        models: Mapping[str, ModelNumbers],
    ) -> "BestRounds":
        """Return the best rounds once `round` is evaluated; the same again where it already was."""
        by_model = dict(self.by_model)
        for name, numbers in models.items():
            measured = numbers.validation or ModelNumbers()
            value = measured[metric]
            bests = list(by_model.get(name, ()))
            improves = not bests or is_better(value, bests[-1].value, metric)
            if improves and math.isfinite(value):
                bests.append(Best(round, value))
            if bests:
                # The checkpoint of the last round may be the one that a resume begins with, or the one before it.
                by_model[name] = named_since(bests, round - 2)
        return BestRounds(by_model)

    def named_since(self, round: int) -> list[int]:
        """Return the rounds that are a model's best one after `round`, or have become it since, in order."""
        rounds = set[int]()
        for bests in self.by_model.values():
            rounds |= {best.round for best in named_since(bests, round)}
        return sorted(rounds)

    def best_of(self, model: str) -> Best | None:
        """Return a model's best round so far; None where no round had a finite value."""
        bests = self.by_model.get(model, ())
        return bests[-1] if bests else None

    def marked(self, round: int, models: Mapping[str, ModelNumbers]) -> dict[str, ModelNumbers]:
        """Return the numbers of `round`, those of a model whose best round it is marked as such."""
        marked = {}
        for name, numbers in models.items():
            best = self.best_of(name)
            is_best = best is not None and best.round == round
            marked[name] = replace(numbers, best=True) if is_best else numbers
        return marked

    @staticmethod
    def of(by_model: Mapping[str, Sequence[Sequence[Any]]]) -> "BestRounds":
        """Return best rounds that JSON has as pairs."""
        return BestRounds(
            {name: [Best(*pair) for pair in pairs] for name, pairs in by_model.items()}
        )


def is_better(value: float, than: float, metric: str) -> bool:
    """Return whether a value of the metric is better than another; an equal one is not, and NaN never is."""
    if metric in LOWER_IS_BETTER:
        return value < than
    return value > than


def named_since(bests: Sequence[Best], round: int) -> Sequence[Best]:
    """Return the best one after `round`, and those that have become it since."""
    first = 0
    for number, best in enumerate(bests):
        if best.round <= round:
            first = number
    return bests[first:]


def refuse_unvalidated(keep_best: str, federation: Federation) -> None:
    """Raise SettingError for the setting keep-best on data without validation samples."""
    rule = "needs validation data, and the data have none"
    remedy = "validation-fraction = 0.2 cuts them off the clients' training samples"
    require(not keep_best or federation.validated, "keep-best", keep_best, rule, remedy)


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
    """Return the rounds that a selection means, such as the best one; none where the run has no such rounds.

    A mean over more rounds than the run has means none of them, or with `fewer` all of them.
    """
    if selection in MEANS:
        rounds = MEANS[selection]
        enough = fewer or len(points) >= rounds
        return points[-rounds:] if enough else ()
    if selection == "best":
        return [point for point in points if point.numbers.best][-1:]
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
