"""The data sets that go by name: NAME.npz or torchvision's own files below data-root, and scikit-learn's digits."""

from pathlib import Path

import numpy as np

from data.readers.catalog import KNOWN
from data.readers.digits import read_digits
from data.readers.layouts import read_layout
from data.readers.npz import read_npz
from data.readers.splits import Raw, Split
from data.settings import DataError, DataSettings
from data.text import said


def files_of(name: str, settings: DataSettings) -> list[Path]:
    """The files that hold a named data set; empty where they are not there yet and may be downloaded (and for digits).

    Raises:
        DataError: they are not there and may not, or cannot, be downloaded.
    """
    known = KNOWN[name]
    if known.layout == "scikit-learn":
        return []
    if not settings.data_root:
        raise DataError(f"data-root = '': {name} needs the folder that holds its files")
    root = Path(settings.data_root).expanduser()
    if (root / f"{name}.npz").is_file():
        return [root / f"{name}.npz"]
    layouts = [patterns for patterns in (known.files, known.nilearn_files) if patterns]
    for patterns in layouts:
        paths_of_patterns = [sorted(root.glob(pattern)) for pattern in patterns]
        if all(paths_of_patterns):
            return [path for paths in paths_of_patterns for path in paths]
    if settings.download and known.downloaded_by:
        return []
    way = (
        "set download = true to get it"
        if known.downloaded_by
        else f"torchvision cannot download it: {known.how}"
    )
    looked_for = " or ".join([f"{name}.npz", *map(", ".join, layouts)])
    raise DataError(f"{root}: {name} is not there; looked for {looked_for}; {way}")


def read_named(name: str, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """The named data set as it lies on disk; images in folders, undecoded, will have `shape`.

    Raises:
        DataError: a file is missing or cannot be read, or a download failed.
    """
    if KNOWN[name].layout == "scikit-learn":
        return read_digits(name)
    files = files_of(name, settings)
    if [file.name for file in files] == [f"{name}.npz"]:
        return read_npz(files[0], settings)
    if KNOWN[name].layout == "torchvision":
        return _torchvision(name, settings)
    if not files and KNOWN[name].torchvision_class:
        _download(name, settings)
    return read_layout(name, settings, shape)


def _download(name: str, settings: DataSettings) -> None:
    """Let torchvision fetch the two files that are then read here."""
    import torchvision.datasets

    known, root = KNOWN[name], Path(settings.data_root).expanduser()
    try:
        for split in ("train", "test"):
            getattr(torchvision.datasets, known.torchvision_class)(
                root / known.torchvision_root, split, download=True
            )
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
        except (
            Exception
        ) as error:  # a damaged file surfaces as anything, an AssertionError among others
            raise DataError(f"{root}: torchvision cannot read {name}: {said(error)}") from error
        splits.append(Split(np.asarray(source.data), np.asarray(source.targets), str(root), key))
    return Raw(*splits)
