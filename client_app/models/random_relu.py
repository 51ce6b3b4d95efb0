"""Random ReLU features: a wider layer that nothing trains, between fixed features and a head in closed form."""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from client_app.models.classifier import Classifier

SEED = 20_261_125
"""Of the signs: the same for every run, seed and site."""
STEPS_PER_UNIT = 512
"""Features are rounded to multiples of 1/512, so that sums of them are exact in float64, in any order."""
LARGEST = 2.0**30
"""Bound on a rounded feature in steps: sums of 2^22 features stay below 2^53."""


class RandomReLU(nn.Module):
    """relu(S z / sqrt(D)) of features z (D,), with random signs S (M, D) in {-1, +1}.

    The first layer of the arc-cosine kernel of order 1 (Cho & Saul 2009, "Kernel Methods for Deep Learning"), with
    signs in place of normal draws. A linear head on it separates what no linear head on z does.

    Rounded features times signs are integers, so a sample's values depend on no other sample and on no machine's order
    of adding, to the bit. The signs are no part of the state: everyone draws the same ones.
    """

    signs_MD: Tensor

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        signs_MD = random_signs(width, features).to(torch.get_default_device())
        self.register_buffer("signs_MD", signs_MD, persistent=False)

    def forward(self, features_BD: Tensor) -> Tensor:
        """Return (B, M) float32."""
        steps_BD = (features_BD.double() * STEPS_PER_UNIT).round().clamp(-LARGEST, LARGEST)
        projected_BM = steps_BD @ self.signs_MD.double().T
        scale = STEPS_PER_UNIT * math.sqrt(self.signs_MD.shape[1])
        return (projected_BM / scale).relu().float()


@lru_cache(maxsize=2)
def random_signs(width: int, features: int) -> Tensor:
    """Return (M, D) int8 of -1 and +1."""
    draws = torch.Generator().manual_seed(SEED)
    with torch.device("cpu"):
        bits_MD = torch.randint(0, 2, (width, features), generator=draws, dtype=torch.int8)
    return 2 * bits_MD - 1


def lifted(model: Classifier, width: int) -> Classifier:
    """Return a model of the same fixed features with random ReLU features of them, and a new head."""
    features, classes = model.head.in_features, model.head.out_features
    return Classifier(
        nn.Sequential(model.features, RandomReLU(features, width)), nn.Linear(width, classes)
    )
