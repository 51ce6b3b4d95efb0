"""scikit-learn's digits, the same as four scanners would show them, and two of its classes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.random_draws import generator
from data.readers.splits import Raw, Split

TEST = 36
"""Test images a class: 360 in all, balanced; the other 1,437 are for training."""
AT_A_SCANNER = {"train": 32, "test": TEST // 4}
"""Images a class at each of the four scanners."""
Scanner = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]
SCANNERS: dict[str, Scanner] = {
    "plain": lambda images_NHW, draws: images_NHW,
    "faint": lambda images_NHW, draws: 0.25 * images_NHW,
    "blurred": lambda images_NHW, draws: _blurred(images_NHW),
    "noisy": lambda images_NHW, draws: images_NHW + draws.normal(0, 64, images_NHW.shape),
}
"""What becomes of images (N, 8, 8) on the scale 0..255; what falls outside of it is cut off."""


def read_digits(name: str) -> Raw:
    """`digits`; `digits-SCANNER`: 320 training and 90 test images of them, which no other scanner has; or `digits-3-8`:
    these two classes alone."""
    from sklearn.datasets import load_digits

    grey_NHW, labels_N = load_digits(return_X_y=True)
    # 17 grey values on 256 levels stay 17 different ones.
    images_NHW = np.rint(grey_NHW.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    draws = generator(
        0, "digits: test split"
    )  # the split is part of the data set, so no run's seed
    chosen = [draws.permutation(np.flatnonzero(labels_N == label))[:TEST] for label in range(10)]
    is_test_N = np.zeros(len(labels_N), bool)
    is_test_N[np.concatenate(chosen)] = True
    where = "scikit-learn's digits"
    raw = Raw(
        Split(images_NHW[~is_test_N], labels_N[~is_test_N], where, "train"),
        Split(images_NHW[is_test_N], labels_N[is_test_N], where, "test"),
    )
    if name == "digits-3-8":
        return Raw(*map(threes_and_eights, (raw.train, raw.test)))
    _, _, scanner = name.partition("-")
    return Raw(scanned(raw.train, scanner), scanned(raw.test, scanner)) if scanner else raw


def threes_and_eights(split: Split) -> Split:
    """These two classes alone, as 0 and 1."""
    chosen = np.flatnonzero(np.isin(split.labels, (3, 8)))
    return replace(
        split.take(chosen, split.key), labels=(split.labels[chosen] == 8).astype(np.int64)
    )


def scanned(split: Split, scanner: str) -> Split:
    """As many images of each class as a scanner has, the way it shows them."""
    draws = generator(0, f"digits: scanners: {split.key}")
    of_class = [draws.permutation(np.flatnonzero(split.labels == label)) for label in range(10)]
    count = AT_A_SCANNER[split.key]
    start = count * list(SCANNERS).index(scanner)
    chosen = np.sort(np.concatenate([indices[start : start + count] for indices in of_class]))
    images_NHW = np.asarray(split.images, np.float64)[chosen]
    shown_NHW = SCANNERS[scanner](images_NHW, generator(0, f"digits: {scanner}: {split.key}"))
    return Split(
        np.clip(np.rint(shown_NHW), 0, 255).astype(np.uint8),
        split.labels[chosen],
        split.where,
        split.key,
    )


def _blurred(images_NHW: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every pixel becomes the mean of the 3 x 3 around it; beyond the edge it is dark."""
    framed = np.pad(images_NHW, ((0, 0), (1, 1), (1, 1)))
    blurred: NDArray[np.float64] = np.lib.stride_tricks.sliding_window_view(
        framed, (3, 3), (1, 2)
    ).mean((-2, -1))
    return blurred
