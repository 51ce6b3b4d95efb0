"""The works that every tool does: data, network, and what a round is. It needs numpy alone, so that it runs anywhere.

The images are made: a pattern for each class under noise, so that a network learns something and the loss after the
last round shows that all tools did the same training. Pixels are bytes; networks get them as floats from -1 to 1.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
TEST_IMAGES = 1_000


@dataclass(frozen=True)
class Work:
    """FedAvg with plain SGD on equal clients."""

    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    model: str
    """A key of MODELS in networks.py."""
    clients: int
    sampled: int
    """Clients of a round."""
    samples: int
    """Training images of a client."""
    batch: int
    epochs: int
    learning_rate: float
    rounds: int


WORKS = {
    "cnn-600": Work((1, 28, 28), "mcmahan-cnn", 10, 5, 600, 32, 1, 0.1, 10),
    "cnn-32": Work((1, 28, 28), "mcmahan-cnn", 10, 5, 32, 32, 1, 0.1, 10),
    "tiny": Work((1, 8, 8), "small-cnn", 1_000, 1_000, 20, 20, 1, 0.5, 10),
    # FLUTE's LR-MNIST: 1,000 clients, 100 rounds of 10. It has 60 images a client on average; here all have 60.
    "lr-mnist": Work((1, 28, 28), "linear", 1_000, 10, 60, 10, 1, 0.03, 100),
}
"""By name. The last is the work by which its authors compare FLUTE with other tools."""


@dataclass(frozen=True)
class Images:
    """The images of a work: M clients, N images each, of shape (C, H, W)."""

    train_MNCHW: NDArray[np.uint8]
    train_labels_MN: NDArray[np.int64]
    test_NCHW: NDArray[np.uint8]
    test_labels_N: NDArray[np.int64]


def images(work: Work) -> Images:
    """Return the images of a work; the same in every process."""
    draw = np.random.default_rng(0)
    patterns = draw.integers(0, 256, (CLASSES, *work.shape))

    def noisy(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
        made = np.empty((len(labels), *work.shape), np.uint8)
        for start in range(
            0, len(labels), 1_000
        ):  # in pieces: noise of all images at once takes gigabytes
            piece = labels[start : start + 1_000]
            noise = draw.integers(0, 256, (len(piece), *work.shape))
            made[start : start + 1_000] = (patterns[piece] + noise) // 2
        return made

    train_labels = np.arange(work.clients * work.samples, dtype=np.int64) % CLASSES
    draw.shuffle(train_labels)
    test_labels = np.arange(TEST_IMAGES, dtype=np.int64) % CLASSES
    by_client = (work.clients, work.samples)
    train = noisy(train_labels)
    return Images(
        train.reshape(*by_client, *work.shape),
        train_labels.reshape(by_client),
        noisy(test_labels),
        test_labels,
    )


def scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels as networks get them: from -1 to 1."""
    return (pixels / np.float32(127.5) - 1).astype(np.float32)


def save(work: Work, path: Path) -> None:
    """Write the images as FedSkew reads them: one array for all clients, which it deals anew."""
    made = images(work)
    np.savez(
        path,
        train_images=made.train_MNCHW.reshape(-1, *work.shape).transpose(0, 2, 3, 1),
        train_labels=made.train_labels_MN.reshape(-1),
        test_images=made.test_NCHW.transpose(0, 2, 3, 1),
        test_labels=made.test_labels_N,
    )


def print_result(version: str, stamps: list[float], loss: float) -> None:
    """Print what a tool did, as the last line of its script: seconds of every round, and the loss after the last.

    Args:
        version: of the tool.
        stamps: seconds of a clock when the first round began and when each round ended.
        loss: mean cross-entropy on the test images, in nats.
    """
    rounds = [later - sooner for sooner, later in pairwise(stamps)]
    print(json.dumps({"version": version, "rounds": rounds, "loss": loss}))
