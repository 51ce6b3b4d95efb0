"""Which round counts as the best one where several are equally good."""

import math

import pytest

from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import Point, select


def points_of(accuracies: list[float]) -> list[Point]:
    """Return a run's evaluated rounds, of these accuracies on the test set and on the validation set."""
    points = []
    for round, accuracy in enumerate(accuracies, start=1):
        measured = ModelNumbers({"balanced-accuracy": accuracy})
        numbers = ModelNumbers({"balanced-accuracy": accuracy}, validation=measured)
        points.append(Point(RoundRecord(round), numbers))
    return points


@pytest.mark.parametrize("selection", ["best-test", "best-validation"])
@pytest.mark.parametrize(
    ("accuracies", "round"),
    [
        ([0.5, 0.9, 0.9, 0.9, 0.2], 2),
        ([0.9, 0.9, 0.95], 3),
        ([0.0, 0.0], 1),
        ([math.nan, 0.0, math.nan], 1),
        ([math.nan, 0.1, 0.1], 2),
    ],
)
def test_of_several_best_rounds_the_first_counts(
    selection: str, accuracies: list[float], round: int
) -> None:
    (chosen,) = select(points_of(accuracies), selection)
    assert chosen.round == round
