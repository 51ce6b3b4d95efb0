"""IWDS: the weights (Cui et al. 2019), their schedule, and what is drawn."""

import math
from itertools import pairwise

import pytest
import torch
from client_builders import FLOAT, counting_client, small_client

from client_app.optimizer import TrainingSettings
from client_app.training import batches, train_round, with_sampler
from client_app.variants.resampling import Resampling, class_balanced_weights

COUNTS_C = torch.tensor([900.0, 30.0, 5.0, 1.0], dtype=FLOAT)


def fixed(beta: float) -> Resampling:
    return Resampling(beta_start=beta, beta_end=beta)


def ratio(beta: float, left: float = 900, right: float = 30) -> float:
    """Return q(left) / q(right), the ratio of the classes' shares of what is drawn."""
    counts_C = torch.tensor([left, right], dtype=FLOAT)
    mass_C = counts_C * class_balanced_weights(counts_C, beta)
    return (mass_C[0] / mass_C[1]).item()


@pytest.mark.parametrize("beta", [0.1, 0.8, 0.9999])
def test_weights_are_the_formula(beta: float) -> None:
    expected = [(1 - beta) / (1 - beta**n) for n in COUNTS_C.tolist()]
    weights_C = class_balanced_weights(COUNTS_C, beta)
    assert weights_C.tolist() == pytest.approx(expected, rel=1e-10)


def test_limits() -> None:
    inverse = (1 / COUNTS_C).tolist()
    for beta, expected, rel in ((0.0, [1.0] * 4, 0), (1e-12, [1.0] * 4, 1e-11),
                                (1.0, inverse, 1e-15), (1 - 1e-12, inverse, 1e-8)):  # fmt: skip
        assert class_balanced_weights(COUNTS_C, beta).tolist() == pytest.approx(expected, rel=rel)


def test_ratio_falls_as_beta_grows() -> None:
    """From the classes' own, 900 to 30, to 1; it is 1 for equal classes."""
    expected = {0.0: 30, 0.8: 29.96, 0.9999: 1.044, 1 - 1e-6: 1.0004, 1.0: 1}
    ratios = [ratio(beta) for beta in expected]
    assert all(left > right for left, right in pairwise(ratios))
    for actual, beta in zip(ratios, expected, strict=True):
        assert actual == pytest.approx(expected[beta], abs=5e-3)
        assert ratio(beta, 40, 40) == 1


def test_stable_where_the_plain_formula_is_not() -> None:
    x, n = 1e-9, 10**6
    # 1 - beta^n = -expm1(n log1p(-x)); the series n x - n (n - 1) x^2 / 2 + ... is good to 1e-10.
    expected = 1 / (n - n * (n - 1) * x / 2 + n * (n - 1) * (n - 2) * x**2 / 6)
    (weight,) = class_balanced_weights(torch.tensor([n]), 1 - x).tolist()
    assert weight == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("t", "expected"), [(0, 0.9999), (1, 0.998301), (100, 0.889532), (500, 0.803603)]
)
def test_schedule(t: int, expected: float) -> None:
    assert Resampling().beta(t + 1) == pytest.approx(expected, abs=5e-7)


def test_schedule_s_ends() -> None:
    betas = [Resampling().beta(round) for round in (1, 2, 500, 3000)]
    assert betas == sorted(betas, reverse=True) and betas[-1] == pytest.approx(0.8, abs=1e-10)
    at_once = [Resampling(decay=0.0).beta(round) for round in (1, 2, 3)]
    assert at_once == pytest.approx([0.9999, 0.8, 0.8])


@pytest.mark.parametrize("beta", [0.9, 1.0])
def test_the_class_distribution_is_that_of_the_weights(beta: float) -> None:
    client = with_sampler(counting_client((90, 0, 9, 1)), [fixed(beta)])
    assert client.sampling_weights_N is not None and client.sampling_weights_N.dtype == FLOAT
    weights_C = class_balanced_weights(torch.tensor([90, 1, 9, 1]), beta)
    mass_C = torch.tensor([90, 0, 9, 1]) * weights_C
    assert torch.allclose(client.effective_prior_C, mass_C / mass_C.sum(), atol=1e-12)


def test_what_is_drawn_follows_the_weights() -> None:
    client = with_sampler(counting_client((60, 0, 30, 10), seed=11), [fixed(0.98)])
    drawn = torch.cat(list(batches(client, TrainingSettings(local_epochs=200, batch_size=50))))
    assert len(drawn) == 200 * 100, "an epoch is as many draws as the client has samples"
    observed_C = torch.bincount(client.labels_N[drawn], minlength=4)
    expected_C = len(drawn) * client.effective_prior_C
    statistic = ((observed_C - expected_C) ** 2 / expected_C)[expected_C > 0].sum().item()
    assert observed_C[1] == 0
    assert statistic < 18.4  # chi-squared with two degrees of freedom: exceeded once in 10,000
    within_C = torch.bincount(drawn, minlength=100)[client.labels_N == 3].double()
    assert within_C.min() > 0.5 * within_C.mean(), "within a class all samples are alike"


def test_the_weight_in_the_average_is_the_client_s_size() -> None:
    report = train_round(
        small_client((6, 2, 1, 0)), [Resampling()], TrainingSettings(local_epochs=3, batch_size=4)
    )
    assert report.examples == 9
    assert report.trained.steps == 3 * 2 and math.isfinite(report.loss)  # 4 + 5: the last one joins
