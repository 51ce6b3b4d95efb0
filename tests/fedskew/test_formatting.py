"""Numbers as the workbench writes them."""

import math

from fedskew.formatting import duration, in_bytes, p_value, percent, plural


def test_durations_and_bytes_have_a_unit_that_suits() -> None:
    seconds = (0.4, 99, 150, 7200, 864_000)
    assert [*map(duration, seconds)] == ["0 s", "99 s", "2 min", "2.0 h", "10.0 days"]
    sizes = (0, 999, 1234, 8.192e9, 2.5e12)
    assert [*map(in_bytes, sizes)] == ["0 bytes", "999 bytes", "1.23 kB", "8.19 GB", "2.50 TB"]


def test_a_share_that_is_not_there_is_a_dash_and_no_p_value_reads_as_zero() -> None:
    assert [*map(percent, (0.1234, 1, None, math.nan))] == ["12.3", "100.0", "-", "-"]
    probabilities = (0.0, 0.0009999, 0.001, 0.0123, 1.0)
    assert [*map(p_value, probabilities)] == ["< 0.001", "< 0.001", "0.001", "0.012", "1.000"]


def test_a_number_has_its_noun_in_singular_or_plural() -> None:
    assert [plural(number, "seed") for number in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert [plural(number, "class", "classes") for number in (1, 2)] == ["1 class", "2 classes"]
