"""Random convolutional features: a backbone without a file, for tests, demos and machines without weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.models.classifier import Classifier

FILTERS, SIDE, GRID = 64, 5, 3
"""Number of the filters, their side in pixels, and the cells per side into which their outputs are averaged."""
FEATURES = FILTERS * GRID**2
SEED = 20_251_124
"""Of the filters: the same for every run, seed and site."""


class RandomConv(nn.Module):
    """ReLU of random filters, averaged in a grid of 3 x 3 cells: 576 features of an image.

    Images go through one at a time, so that an image's features do not depend on its batch, to the bit. The filters are
    no part of the state: everyone draws the same ones.
    """

    filters: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(SEED)
        with torch.device("cpu"):
            filters = torch.randn(FILTERS, channels, SIDE, SIDE, generator=draws)
        filters -= filters.mean((1, 2, 3), keepdim=True)  # an image's brightness says nothing
        # Neighboring pixels are alike, so sums of k of them vary less than k independent ones would.
        filters *= 3 / math.sqrt(channels * SIDE**2)
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, images_B: Tensor) -> Tensor:
        """Return (B, 576)."""
        rows = []
        for image_1 in torch.split(images_B, 1):
            filtered = F.relu(F.conv2d(image_1, self.filters))
            cells = F.adaptive_avg_pool2d(filtered, GRID)
            rows.append(cells.flatten(1))
        return torch.cat(rows)


def random_conv(shape: tuple[int, ...], classes: int) -> Classifier:
    """Random convolutional features that nothing trains, and a head."""
    return Classifier(RandomConv(shape[0]), nn.Linear(FEATURES, classes))
