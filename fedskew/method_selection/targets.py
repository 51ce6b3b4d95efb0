"""The numbers of a model that a race can be run for.

Each is a score in points, of which more is better, so that a race is the same for all of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data import require

if TYPE_CHECKING:
    from server_app.record import ModelNumbers

DEFAULT = "balanced-accuracy"


@dataclass(frozen=True)
class Target:
    """A number of a model that a race can be run for."""

    name: str
    what: str
    """What it is, in the words of the table that a race ends with."""
    less_is_better: bool = False

    def score(self, value: float) -> float:
        """Return a value of 0 to 1 in points, of which more is better."""
        return -100 * value if self.less_is_better else 100 * value

    def text(self, score: float) -> str:
        """Return a score as tables have it: in percent, or as the loss that it is."""
        if math.isnan(score):
            return "-"
        return f"{-score / 100:.3f}" if self.less_is_better else f"{score:.1f}"


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("balanced-accuracy", "mean recall over the classes"),
        Target("accuracy", "accuracy at the class shares of all sites together"),
        Target("site-mean", "accuracy at each site's own class shares, mean over the sites"),
        Target("worst-site", "the lowest of these"),
        Target("auroc", "area under the ROC curve, mean over the classes"),
        Target("brier", "Brier score", less_is_better=True),
    )
}


def check_target(name: str) -> None:
    """Raise SettingError unless there is a target of this name."""
    require(name in TARGETS, "--target", name, f"must be one of {', '.join(TARGETS)}")


def target_of(name: str, classes: int) -> Target:
    """Return a target by its name. Raises SettingError for a name that is none, or one without a number here."""
    from client_app.ranking import (
        MOST_RANKED,  # with torch, which the names of the targets need not wait for
    )

    check_target(name)
    rule = f"is measured for at most {MOST_RANKED} classes, and the data have {classes}"
    require(name != "auroc" or classes <= MOST_RANKED, "--target", name, rule)
    return TARGETS[name]


def scores_of(
    numbers: "ModelNumbers",
    train_C: Sequence[int] | None,
    own_tests: bool,
) -> dict[str, float]:
    """Return every target's score in points; NaN for what was not measured, as after a divergence.

    Args:
        numbers: of a model, on validation or test samples.
        train_C: training samples of each class at all sites together, by which `accuracy` weighs the classes' recalls:
            a test set can have other shares. None where they are not recorded: then the shares of what was tested.
        own_tests: whether sites have test samples of their own, on which they are measured; else a site's accuracy
            follows from the recalls and its own class shares.
    """
    by_site = numbers.spreads.get("client-accuracy" if own_tests else "local-accuracy")
    values = {
        "balanced-accuracy": numbers["balanced-accuracy"],
        "accuracy": accuracy_at(train_C, numbers),
        "site-mean": math.nan if by_site is None else by_site.mean,
        "worst-site": math.nan if by_site is None else by_site.worst,
        "auroc": numbers["auroc"],
        "brier": numbers["brier"],
    }
    return {name: TARGETS[name].score(value) for name, value in values.items()}


def accuracy_at(train_C: Sequence[int] | None, numbers: "ModelNumbers") -> float:
    """Return the accuracy at the class shares of `train_C`, over the classes that were tested."""
    if train_C is None or len(train_C) != len(numbers.recall):
        return numbers["accuracy"]
    right = total = 0.0
    for count, recall in zip(train_C, numbers.recall, strict=True):
        if not math.isnan(recall):
            right += count * recall
            total += count
    return right / total if total else math.nan
