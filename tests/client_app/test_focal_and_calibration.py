"""Focal loss and FedLC's calibrated logits against their equations."""

import math

import pytest
import torch
from client_builders import counting_client
from torch import Tensor

from client_app.training import with_sampler
from client_app.variants.focal import Focal
from client_app.variants.logit_calibration import LogitCalibration
from client_app.variants.resampling import Resampling

CLIENT = counting_client((16, 81, 0, 1))


def focal_losses(variant: Focal, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    losses_B = torch.nn.functional.cross_entropy(logits_BC, labels_B, reduction="none")
    return losses_B * variant.loss_weights(CLIENT, logits_BC, labels_B)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_and_its_slope(gamma: float) -> None:
    """d/dp [-(1-p)^gamma ln p] = (1-p)^gamma (gamma ln p / (1-p) - 1/p), times dp/dz."""
    logits_BC = torch.randn(
        6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    labels_B = torch.tensor([0, 1, 2, 3, 0, 1])
    losses_B = focal_losses(Focal(gamma), logits_BC, labels_B)
    p_BC = torch.softmax(logits_BC.detach(), dim=1)
    p_B = p_BC.gather(1, labels_B[:, None])[:, 0]
    torch.testing.assert_close(losses_B.detach(), -((1 - p_B) ** gamma) * p_B.log())
    slope_B = (1 - p_B) ** gamma * (gamma * p_B.log() / (1 - p_B) - 1 / p_B)
    one_hot_BC = torch.nn.functional.one_hot(labels_B, 4)
    expected_BC = (slope_B * p_B)[:, None] * (one_hot_BC - p_BC)
    torch.testing.assert_close(torch.autograd.grad(losses_B.sum(), logits_BC)[0], expected_BC)


@pytest.mark.parametrize("gamma", [0.1, 2.0])
def test_a_sample_that_is_certain_has_a_finite_slope(gamma: float) -> None:
    logits_BC = torch.tensor([[200.0, 0.0], [30.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    losses_B = focal_losses(Focal(gamma), logits_BC, torch.tensor([0, 0, 0]))
    (gradient_BC,) = torch.autograd.grad(losses_B.sum(), logits_BC)
    assert torch.isfinite(gradient_BC).all()
    assert losses_B[0] == 0 and losses_B[2].item() == pytest.approx(200)


def test_calibration_of_whole_roots() -> None:
    """Counts 16, 81, 0, 1: n^(-1/4) is 1/2, 1/3, no number, 1; the absent class drops out."""
    tau = 0.5
    offset_C = LogitCalibration(tau).logit_offset(CLIENT)
    assert offset_C is not None
    expected = torch.tensor([-tau / 2, -tau / 3, -math.inf, -tau], dtype=torch.float64)
    torch.testing.assert_close(offset_C, expected)


def test_calibration_of_zero_and_of_equal_classes() -> None:
    assert LogitCalibration(0.0).logit_offset(CLIENT) is None
    offset_C = LogitCalibration().logit_offset(counting_client((5, 5, 5)))
    assert (
        offset_C is not None and offset_C.unique().numel() == 1
    )  # no margin between equal classes


def test_calibration_counts_what_a_sampler_draws() -> None:
    balanced = with_sampler(counting_client((30, 10)), [Resampling(beta_start=1.0, decay=1.0)])
    offset_C = LogitCalibration().logit_offset(balanced)
    torch.testing.assert_close(offset_C, torch.full((2,), -(20**-0.25), dtype=torch.float64))
