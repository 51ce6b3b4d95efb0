"""The networks of the works, in plain PyTorch, for the tools that train PyTorch networks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES = 10


def mcmahan_cnn() -> nn.Module:
    """The CNN of McMahan et al. (2017) for images of 1x28x28: 1,663,370 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def small_cnn() -> nn.Module:
    """Two convolutions for images of 1x8x8: 13,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def linear() -> nn.Module:
    """Logistic regression on images of 1x28x28: 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mcmahan-cnn": mcmahan_cnn,
    "small-cnn": small_cnn,
    "linear": linear,
}


def build(name: str) -> nn.Module:
    """Return a network with first weights that are the same in every process."""
    torch.manual_seed(0)
    return MODELS[name]()


@torch.no_grad()
def test_loss(model: nn.Module, images_NCHW: Tensor, labels_N: Tensor) -> float:
    """Return the mean cross-entropy in nats."""
    model.eval()
    return nn.functional.cross_entropy(model(images_NCHW), labels_N).item()
