"""The setting noise: Gaussian noise that grows from client to client (Li et al., NIID-Bench, 2022)."""

from dataclasses import replace

import torch
from torch import Tensor

from data.random_draws import generator
from data.samples import Samples


def noisy(samples: Samples, variance: float, seed: int, client: int) -> Samples:
    """Images with noise of that variance on the scale 0..1, where they become float32; drawn once, by client."""
    images = samples.inputs_N
    assert isinstance(images, Tensor), "noise is for images in memory"
    scaled = images if images.is_floating_point() else images.float() / 255
    drawn = generator(seed, f"noise of client {client}").standard_normal(
        tuple(images.shape), "float32"
    )
    return replace(
        samples, inputs_N=scaled + variance**0.5 * torch.from_numpy(drawn).to(scaled.device)
    )
