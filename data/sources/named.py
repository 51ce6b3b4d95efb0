"""The data sets that go by name: NAME.npz or torchvision's own files below data-root, and scikit-learn's digits."""

from pathlib import Path

import numpy as np

from data.random_draws import generator
from data.settings import DataError, DataSettings
from data.sources.catalog import KNOWN
from data.sources.files import said
from data.sources.layouts import read_layout
from data.sources.own import read_npz
from data.sources.splits import Raw, Split

DIGITS_TEST = 36
"""Test images a class of digits: 360 in all, balanced; the other 1,437 are for training."""


def files_of(name: str, settings: DataSettings) -> list[Path]:
    """The files that hold a named data set; empty where they are not there yet and may be downloaded (and for digits).

    Raises:
        DataError: they are not there and may not, or cannot, be downloaded.
    """
    if name == "digits":
        return []
    known = KNOWN[name]
    if not settings.data_root:
        raise DataError(f"data-root = '': {name} needs the folder that holds its files")
    root = Path(settings.data_root).expanduser()
    if (root / f"{name}.npz").is_file():
        return [root / f"{name}.npz"]
    layouts = [patterns for patterns in (known.files, known.nilearn_files) if patterns]
    for patterns in layouts:
        found = [sorted(root.glob(pattern)) for pattern in patterns]
        if all(found):
            return [path for paths in found for path in paths]
    if settings.download and known.downloaded_by:
        return []
    way = "set download = true to get it" if known.downloaded_by else f"torchvision cannot download it: {known.how}"
    looked_for = " or ".join([f"{name}.npz", *map(", ".join, layouts)])
    raise DataError(f"{root}: {name} is not there; looked for {looked_for}; {way}")


def read_named(name: str, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """The named data set as it lies on disk; images in folders, undecoded, will have `shape`.

    Raises:
        DataError: a file is missing or cannot be read, or a download failed.
    """
    if name == "digits":
        return _digits()
    files = files_of(name, settings)
    if [file.name for file in files] == [f"{name}.npz"]:
        return read_npz(files[0], settings)
    if KNOWN[name].layout == "torchvision":
        return _torchvision(name, settings)
    if not files and KNOWN[name].torchvision_class:
        _download(name, settings)
    return read_layout(name, settings, shape)


def _digits() -> Raw:
    from sklearn.datasets import load_digits

    grey_NHW, labels_N = load_digits(return_X_y=True)
    # 17 grey values on 256 levels stay 17 different ones.
    images_NHW = np.rint(grey_NHW.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    draws = generator(0, "digits: test split")  # the split is part of the data set, so no run's seed
    chosen = [draws.permutation(np.flatnonzero(labels_N == label))[:DIGITS_TEST] for label in range(10)]
    is_test_N = np.zeros(len(labels_N), bool)
    is_test_N[np.concatenate(chosen)] = True
    where = "scikit-learn's digits"
    return Raw(
        Split(images_NHW[~is_test_N], labels_N[~is_test_N], where, "train"),
        Split(images_NHW[is_test_N], labels_N[is_test_N], where, "test"),
    )


def _download(name: str, settings: DataSettings) -> None:
    """Let torchvision fetch the two files that are then read here."""
    import torchvision.datasets

    known, root = KNOWN[name], Path(settings.data_root).expanduser()
    try:
        for split in ("train", "test"):
            getattr(torchvision.datasets, known.torchvision_class)(root / known.torchvision_root, split, download=True)
    except Exception as error:
        raise DataError(f"{root}: torchvision cannot read {name}: {said(error)}") from error


def _torchvision(name: str, settings: DataSettings) -> Raw:
    import torchvision.datasets

    known, root = KNOWN[name], Path(settings.data_root).expanduser()
    splits = []
    for key in ("train", "test"):
        try:
            source = getattr(torchvision.datasets, known.torchvision_class)(
                str(root / known.torchvision_root), train=key == "train", download=settings.download
            )
        except Exception as error:  # a damaged file surfaces as anything, an AssertionError among others
            raise DataError(f"{root}: torchvision cannot read {name}: {said(error)}") from error
        splits.append(Split(np.asarray(source.data), np.asarray(source.targets), str(root), key))
    return Raw(*splits)
