"""The values of an update, against the rule for each value: the norm by which most pass at once changes nothing."""

import math

import pytest
import torch

from strategies.checks import LARGEST, OutOfRange, check_values


@pytest.mark.parametrize(
    "value", [0.0, -1.0, LARGEST, -LARGEST, 3e38, LARGEST * 1.001, math.nan, math.inf, -math.inf]
)
@pytest.mark.parametrize("length", [1, 1000])
def test_a_value_is_refused_by_its_own_size_alone(value: float, length: int) -> None:
    values_N = torch.zeros(length)
    values_N[length // 2] = value
    state = {"head.weight": torch.randn(5, 3), "head.bias": values_N, "empty": torch.zeros(0)}
    if abs(value) <= LARGEST:
        check_values(state)
    else:
        with pytest.raises(OutOfRange, match=r"model: head.bias is"):
            check_values(state, "model: ")


def test_many_large_values_pass_whose_norm_is_beyond_the_limit() -> None:
    values_N = torch.full((1000,), 0.9 * LARGEST)
    assert values_N.norm() > 10 * LARGEST
    check_values({"head.weight": values_N, "norm.running_var": values_N})
    with pytest.raises(OutOfRange, match="running_var is -9e"):
        check_values({"head.weight": values_N, "norm.running_var": -values_N})
