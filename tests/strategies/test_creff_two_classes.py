"""Why CReFF fails on two classes whose features share a large mean: its distance sees one direction a class."""

import math

import pytest
import torch
from torch import Tensor

from client_app.variants.feature_gradients import class_gradients
from strategies.creff import feature_gradients, labeled, random_head, row_distances
from strategies.head import train_head

WIDTH, RATIO = 16, 0.02
"""Width of the features, and the distance of the classes' means from their common one, over that one's length."""


def head_of(classes: int) -> tuple[Tensor, Tensor]:
    """Return a random head: what follows holds for any."""
    head = random_head(torch.Size((classes, WIDTH)), torch.Generator().manual_seed(1))
    return head["weight"], head["bias"]


def common_mean() -> Tensor:
    """Return (D,): as after a ReLU, all positive."""
    return torch.ones(WIDTH)


def real_features() -> Tensor:
    """Return (2, D): the classes' features mu + delta and mu - delta, delta at a right angle to mu."""
    delta_D = torch.tensor([1.0, -1.0]).repeat(WIDTH // 2) * RATIO
    return torch.stack([common_mean() + delta_D, common_mean() - delta_D])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_rows_of_a_class_gradient_have_one_rank_less_than_classes(classes: int) -> None:
    """The softmax's rows sum to 0, so with two classes both rows are one direction, and its length is not compared."""
    draws = torch.Generator().manual_seed(0)
    features_ND = torch.randn(60, WIDTH, generator=draws)
    gradients_CCD = class_gradients(features_ND, torch.arange(60) % classes, *head_of(classes))
    assert gradients_CCD.sum(1).abs().max() < 1e-6
    assert torch.linalg.matrix_rank(gradients_CCD, atol=1e-5).tolist() == [classes - 1] * classes
    if classes == 2:
        other_CCD = class_gradients(features_ND.abs(), torch.arange(60) % 2, *head_of(2))
        distances_CR = row_distances(other_CCD, gradients_CCD)
        torch.testing.assert_close(distances_CR[:, 0], distances_CR[:, 1])


@pytest.mark.parametrize("lengths", [(1.0, 1.0), (2.0, 3.0), (30.0, 0.1)])
def test_features_that_know_nothing_of_the_classes_match_almost_wholly(
    lengths: tuple[float, float],
) -> None:
    """All on the common mean, of any length: the loss is 1 - 1 / sqrt(1 + r^2), about r^2 / 2, whatever the head."""
    weight_CD, bias_C = head_of(2)
    wanted = class_gradients(real_features(), torch.arange(2), weight_CD, bias_C)
    ignorant_CMD = torch.stack([length * common_mean() for length in lengths])[:, None].expand(
        2, 7, WIDTH
    )
    distances_CR = row_distances(feature_gradients(ignorant_CMD, weight_CD, bias_C), wanted)
    expected = 1 - 1 / math.sqrt(1 + RATIO**2)
    torch.testing.assert_close(distances_CR, torch.full((2, 2), expected), atol=2e-7, rtol=0)
    assert expected < RATIO**2 / 2 < 1e-3


@pytest.mark.parametrize(("lengths", "label"), [((2.0, 3.0), 0), ((3.0, 2.0), 1)])
def test_the_head_that_learns_from_them_calls_everything_one_class(
    lengths: tuple[float, float], label: int
) -> None:
    """What tells the federated features apart is what was not compared: recalls of 0 and 1."""
    features_CMD = torch.stack([length * common_mean() for length in lengths])[:, None].expand(
        2, 7, WIDTH
    )
    start = dict(zip(("weight", "bias"), head_of(2), strict=True))
    head = train_head(start, *labeled(features_CMD), steps=3000, learning_rate=0.1)
    logits_NC = features_CMD.reshape(-1, WIDTH) @ head["weight"].T + head["bias"]
    assert logits_NC.argmax(1).tolist() == [0] * 7 + [1] * 7, (
        "of the federated features it knows all"
    )
    real_NC = real_features() @ head["weight"].T + head["bias"]
    assert real_NC.argmax(1).tolist() == [label, label]
