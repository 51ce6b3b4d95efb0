"""The data sets that go by name: NAME.npz or torchvision's own files below data-root, and scikit-learn's digits.

`fedbn` cuts the domains of a family to the equal sizes of FedBN's recipe.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.packages import needed
from data.partitions import generator
from data.readers.catalog import FAMILIES, KNOWN
from data.readers.image_files import ImageFiles
from data.readers.layouts import read_layout
from data.readers.npz import read_npz
from data.readers.splits import Raw, Split, stratified
from data.settings import DataSettings
from data.text import said

TEST_OF_EACH_DIGIT = 36
"""Test images a class: 360 in all, balanced; the other 1,437 are for training."""
AT_A_SCANNER = {"train": 32, "test": TEST_OF_EACH_DIGIT // 4}
"""Images a class at each of the four scanners."""
Scanner = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]
SCANNERS: dict[str, Scanner] = {
    "plain": lambda images_NHW, draws: images_NHW,
    "faint": lambda images_NHW, draws: 0.25 * images_NHW,
    "blurred": lambda images_NHW, draws: _blurred(images_NHW),
    "noisy": lambda images_NHW, draws: images_NHW + draws.normal(0, 64, images_NHW.shape),
}
"""What becomes of images (N, 8, 8) on the scale 0..255; what falls outside of it is cut off."""


def files_of(name: str, settings: DataSettings) -> list[Path]:
    """Return the files of a named data set; none for digits, and where they may still be downloaded.

    Raises:
        DataError: they are not there and may not, or cannot, be downloaded.
    """
    known = KNOWN[name]
    if known.layout == "scikit-learn":
        return []
    if not settings.data_root:
        raise DataError(f"data-root = '': {name} needs the folder that holds its files")
    root = Path(settings.data_root).expanduser()
    layouts = ((f"{name}.npz",), known.files)
    for patterns in layouts:
        files = [sorted(root.glob(pattern)) for pattern in patterns]
        # Without a path for one of the patterns the layout is not, or not completely, there.
        if all(files):
            return list(itertools.chain.from_iterable(files))
    way = f"torchvision cannot download it: {known.how}"
    if known.torchvision_class:
        if settings.download:
            return []
        way = "set download = true to get it"
    looked_for = " or ".join(", ".join(patterns) for patterns in layouts)
    raise DataError(f"{name} is not there; looked for {looked_for}; {way}", where=str(root))


def read_named(name: str, settings: DataSettings) -> Raw:
    """Return the named data set as stored on disk; images in folders stay undecoded.

    Raises:
        DataError: a file is missing or cannot be read, or a download failed.
    """
    known = KNOWN[name]
    if known.layout == "scikit-learn":
        return read_digits(name)
    files = files_of(name, settings)
    if [file.name for file in files] == [f"{name}.npz"]:
        return read_npz(files[0], settings)
    if known.layout != "torchvision":
        if not files and known.torchvision_class:
            for key in ("train", "test"):
                _through_torchvision(name, settings, split=key)
        return read_layout(name, settings)
    splits = {}
    for key in ("train", "test"):
        source = _through_torchvision(name, settings, train=key == "train")
        images, labels = np.asarray(source.data), np.asarray(source.targets)
        splits[key] = Split(images, labels, str(Path(settings.data_root).expanduser()), key)
    return Raw(splits)


def _through_torchvision(name: str, settings: DataSettings, **split: Any) -> Any:
    """Return one of torchvision's data sets, which downloads it if it may. Raises DataError."""
    import torchvision.datasets

    known = KNOWN[name]
    root = Path(settings.data_root).expanduser()
    dataset_class = getattr(torchvision.datasets, known.torchvision_class)
    folder = str(root / known.torchvision_root)
    try:
        return dataset_class(folder, download=settings.download, **split)
    # A damaged file surfaces as anything, an AssertionError among others.
    except Exception as error:
        rule = f"torchvision cannot read {name}: {said(error)}"
        raise DataError(rule, where=str(root)) from error


def read_digits(name: str) -> Raw:
    """`digits`; `digits-SCANNER`: 320 training and 90 test images of them, which no other scanner has; or `digits-3-8`:
    these two classes alone."""
    datasets = needed("sklearn.datasets", "simulation", f"dataset = {name}")
    grey_NHW, labels_N = datasets.load_digits(return_X_y=True)
    # 17 grey values on 256 levels stay 17 different ones.
    images_NHW = np.rint(grey_NHW.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    everything = Split(images_NHW, labels_N, "scikit-learn's digits", "train")
    tests = of_each_digit(labels_N, "digits: test split", 0, TEST_OF_EACH_DIGIT)
    trained = np.setdiff1d(np.arange(len(labels_N)), tests)
    splits = {"train": everything.take(trained, "train"), "test": everything.take(tests, "test")}
    _, _, kind = name.partition("-")
    for key, split in splits.items():
        if kind == "3-8":
            chosen = np.flatnonzero(np.isin(split.labels, (3, 8)))
            is_eight = split.labels[chosen] == 8
            splits[key] = replace(split.take(chosen, key), labels=is_eight.astype(np.int64))
        elif kind:
            splits[key] = scanned(split, kind)
    return Raw(splits)


def of_each_digit(
    labels_N: NDArray[np.generic], purpose: str, start: int, count: int
) -> NDArray[np.int64]:
    """Return sorted indices: `count` images of each digit, from the place `start` of a fixed order."""
    draws = generator(0, purpose)  # a part of the data: no run's seed
    pieces = []
    for label in range(10):
        shuffled = draws.permutation(np.flatnonzero(labels_N == label))
        pieces.append(shuffled[start : start + count])
    return np.sort(np.concatenate(pieces))


def scanned(split: Split, scanner: str) -> Split:
    """Return as many images of each class as a scanner has, the way it shows them."""
    # All scanners shuffle alike and each takes its own piece, so that no two have the same image.
    count = AT_A_SCANNER[split.key]
    start = count * list(SCANNERS).index(scanner)
    chosen = of_each_digit(split.labels, f"digits: scanners: {split.key}", start, count)
    images_NHW = np.asarray(split.images, np.float64)[chosen]
    noise = generator(0, f"digits: {scanner}: {split.key}")
    shown_NHW = SCANNERS[scanner](images_NHW, noise)
    shown = np.clip(np.rint(shown_NHW), 0, 255).astype(np.uint8)
    return replace(split.take(chosen, split.key), images=shown)


def _blurred(images_NHW: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every pixel becomes the mean of the 3 x 3 around it; beyond the edge it is dark."""
    filters = needed("scipy.ndimage", "simulation", "dataset = digits-blurred", verb="blurs")
    blurred_NHW: NDArray[np.float64] = filters.uniform_filter(
        images_NHW, size=(1, 3, 3), mode="constant"
    )
    return blurred_NHW


def fedbn(raws: list[Raw], family: str) -> list[Raw]:
    """The domains cut to equal training sets, as in FedBN (Li et al., 2021).

    Digits are pooled and split 80 to 20 by class with seed 0, then cut to the smallest domain's training set, 7,438 of
    USPS. Of Office-Caltech10 and DomainNet the first 50 % and 5 % of the smallest domain's number are for training (62
    and 105), the last 40 % and 5 % for validation (50 and 105). Of PACS, which is not in the paper, the first 30 % are
    for training. Test sets stay whole.

    Raises:
        DataError: images of which no training or validation data would be left.
    """
    rules = FAMILIES[family]
    if rules.resplit:
        raws = [_resplit(raw) for raw in raws]
    smallest = min(len(raw.train.labels) for raw in raws)
    train_size = int(rules.train_share * smallest)
    val_size = int(rules.val_share * smallest)
    if train_size == 0 or (rules.val_share and val_size == 0):
        rule = f"recipe fedbn leaves nothing of {smallest} training images"
        raise DataError(rule, where=raws[0].train.where)
    cut = []
    for raw in raws:
        order = np.arange(len(raw.train.labels))
        splits = {"train": raw.train.take(order[:train_size], "train"), "test": raw.test}
        if val_size:
            splits["val"] = raw.train.take(order[-val_size:], "val")
        cut.append(Raw(splits))
    return cut


def _resplit(raw: Raw) -> Raw:
    """The samples of both splits, pooled and split anew, 80 to 20 by class."""
    where = raw.train.where
    labels = np.concatenate([raw.train.labels, raw.test.labels]).astype(np.int64)
    train, test = stratified(labels, where)
    first, second = raw.train.images, raw.test.images
    if isinstance(first, ImageFiles) or isinstance(second, ImageFiles):
        raise DataError("recipe fedbn needs arrays here, not image files", where=where)
    pooled = Split(np.concatenate([first, second]), labels, where, "train")
    return Raw({"train": pooled.take(train, "train"), "test": pooled.take(test, "test")})
