"""The planner on invented times: what fits, what is left out, and what another start may decide otherwise."""

import pytest

from data import SettingError
from fedskew.method_selection.planning import (
    Choice,
    Cost,
    correction,
    entry,
    first_rounds,
    fitting,
    pair_cost,
    reserve,
    scaled,
    seeds_that_fit,
    smallest_race,
)

NAMES = ("fedavg", "scaffold", "fedshift", "fedbn", "creff")
COSTS = {name: Cost(1.0, 0.5) for name in NAMES} | {"creff": Cost(30.0, 5.0)}
ALWAYS = ("fedavg", "fedbn")


def test_a_cost_is_that_of_its_rounds_and_what_comes_beside() -> None:
    assert Cost(2.0, 0.5).of(3) == 6.5 and Cost(2.0, 0.5).of(3, factor=2) == 13.0
    assert [first_rounds(rounds) for rounds in (1, 3, 4, 12)] == [1, 1, 2, 4]
    assert scaled({"a": Cost(2.0, 1.0)}, 0.5) == {"a": Cost(1.0, 0.5)}


def test_a_costly_training_is_left_out_alone() -> None:
    chosen = entry(COSTS, ALWAYS, 12, seconds=300, minutes=5)
    assert chosen.rounds == 12 and chosen.seeds == 2
    assert chosen.taken == ("fedavg", "scaffold", "fedshift", "fedbn")
    assert chosen.left_out == ("creff",)
    assert not chosen.at_margin, "creff takes 30 times as long: 1.25 times decides nothing"
    rich = entry(COSTS, ALWAYS, 12, seconds=30_000, minutes=500)
    assert rich.taken == NAMES


def test_short_of_time_what_is_always_in_stays_with_fewer_rounds() -> None:
    slow = {name: Cost(1.0, 0.5) for name in ALWAYS} | {"fedshift": Cost(9.0, 0.5)}
    chosen = entry(slow, ALWAYS, 12, seconds=70, minutes=1.2)
    assert chosen.taken == ALWAYS and chosen.left_out == ("fedshift",)
    assert chosen.rounds == 7 and chosen.seeds == 1
    # One seed of three rounds, one of all, and three pairs, of 0.5 seconds and one per round.
    assert smallest_race(COSTS, ALWAYS, 7) == 2 * 3.5 + 2 * 7.5 + 3 * 2 * 7.5 <= 70
    assert smallest_race(COSTS, ALWAYS, 8) > 70
    with pytest.raises(
        SettingError, match=r"^--minutes = 0.1: is less than a race .* fedavg and fedbn .* 0.3 min"
    ):
        entry(COSTS, ALWAYS, 12, seconds=6, minutes=0.1)
    assert entry(COSTS, ALWAYS, 12, seconds=20, minutes=0.1).rounds == 1


def test_two_starts_take_the_same_but_for_what_is_at_the_margin() -> None:
    """Machines of up to 1.25 times the speed, at every length of a race."""
    differing = 0
    costs = {**COSTS, "fedshift": Cost(5.0, 0.5), "scaffold": Cost(3.0, 0.5)}
    for seconds in range(60, 1200, 10):
        chosen = entry(costs, ALWAYS, 12, seconds, seconds / 60)
        for factor in (0.8, 0.9, 1.1, 1.25):
            other = entry(scaled(costs, factor), ALWAYS, 12, seconds, seconds / 60)
            moved = set(chosen.taken) ^ set(other.taken)
            assert moved <= set(chosen.at_margin)
            differing += bool(moved)
    assert differing, "else nothing was tried"


def test_what_fits_is_taken_in_order_and_single_ones_are_skipped() -> None:
    assert fitting([3.0, 5.0, 3.0], (), 6.0) == Choice((0, 2), (1,))
    assert fitting([3.0, 5.0, 3.0], (1,), 6.0) == Choice((1,), (0, 2))
    assert fitting([3.0, 5.0], (0, 1), 0.0) == Choice((0, 1), ()), "whatever it costs"
    assert fitting([], (), 1.0) == Choice((), ())


def test_seeds_are_added_as_many_as_there_are_at_most() -> None:
    assert seeds_that_fit(2.0, 20.0, have=2, most=30) == 2
    assert seeds_that_fit(2.0, 3.9, have=8, most=30) == 1
    assert seeds_that_fit(2.0, 1.9, have=8, most=30) == 0
    assert seeds_that_fit(2.0, -5.0, have=8, most=30) == 0
    assert seeds_that_fit(0.0, 1.0, have=29, most=30) == 1


def test_the_last_comparison_has_a_reserve() -> None:
    assert pair_cost([2.0, 3.0, 7.0]) == 9.0 and pair_cost([2.0]) == 4.0
    assert reserve([2.0, 7.0], seconds=60) == 27.0
    assert reserve([2.0, 7.0], seconds=600) == 120.0


def test_the_correction_follows_what_was_measured_last() -> None:
    assert correction([], []) == 1.0 and correction([0.0], [3.0]) == 1.0
    assert correction([2.0], [3.0]) == 1.5
    assert correction([1.0, 1.0], [1.0, 2.0]) == pytest.approx((0.5 + 2) / 1.5)
