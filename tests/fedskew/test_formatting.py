"""Numbers as the workbench writes them."""

import math

import pytest

from fedskew.formatting import duration, in_bytes, p_value, percent, plural


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (7200, "2.0 h"), (864_000, "10.0 days")],
)
def test_durations_have_a_unit_that_suits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1234, "1.23 kB"),
        (8.192e9, "8.19 GB"),
        (2.5e12, "2.50 TB"),
    ],
)
def test_bytes_have_a_unit_in_powers_of_ten(count: float, words: str) -> None:
    assert in_bytes(count) == words


@pytest.mark.parametrize(
    ("share", "words"), [(0.1234, "12.3"), (1, "100.0"), (None, "-"), (math.nan, "-")]
)
def test_a_share_that_is_not_there_is_a_dash(share: float | None, words: str) -> None:
    assert percent(share) == words


def test_a_number_has_its_noun_in_singular_or_plural() -> None:
    assert [plural(number, "seed") for number in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert [plural(number, "class", "classes") for number in (1, 2)] == ["1 class", "2 classes"]


def test_no_p_value_reads_as_zero() -> None:
    assert [p_value(p) for p in (0.0, 1e-9, 0.0009999, 0.001, 0.0123, 1.0)] == [
        *["< 0.001"] * 3,
        "0.001",
        "0.012",
        "1.000",
    ]
