"""Readers of the official layouts that torchvision does not know; images in folders stay undecoded.

ABIDE I is the correlations of windows of each subject's time series, split by subject, from an npz file per site.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.packages import needed
from data.partitions import generator
from data.readers.array_types import Array, Floats, Integers
from data.readers.catalog import IMAGENET_LT, KNOWN
from data.readers.folder import files_of_classes, visible
from data.readers.image_files import ImageFiles
from data.readers.npz import read_arrays
from data.readers.splits import FOLDS, Raw, Split, stratified
from data.settings import DataSettings
from data.text import said

Files = list[tuple[str, int]]
"""Paths, each with its label."""
Lists = dict[str, Files]
"""By split, paths below the folder of the data set."""
WINDOW_WIDTH = 32
"""ABIDE: time points in a window."""


def read_layout(name: str, settings: DataSettings) -> Raw:
    """Return the data set `name` from its official files below data-root, its images to be of `input-shape`.

    Raises:
        DataError: a file that is missing or cannot be read, said in one sentence.
    """
    root = Path(settings.data_root).expanduser()
    layout = KNOWN[name].layout
    try:
        if layout == "mat":
            return mat(root, name)
        if layout == "abide":
            return read_site(root / KNOWN[name].files[0], settings)
        folder_name, list_files = LISTS[layout]
        folder = root / folder_name
        splits = {}
        for key, files in list_files(folder, name).items():
            if not files:
                rule = f"no image of a class that is asked for in {key}"
                raise DataError(rule, where=folder)
            paths, labels = zip(*files, strict=True)
            images = ImageFiles.of(
                folder, paths, settings.shape, settings, central=name == IMAGENET_LT
            )
            splits[key] = Split(images, np.array(labels, np.int64), str(folder), key)
        return Raw(splits)
    except DataError:
        raise
    except Exception as error:  # a damaged file surfaces as anything
        rule = f"{name} cannot be read: {type(error).__name__}: {said(error)}"
        raise DataError(rule, where=root) from error


# ---- arrays ----------------------------------------------------------------------------------------------------------


def mat(root: Path, name: str) -> Raw:
    """Return X (32, 32, 3, N) and y (N, 1) of two MATLAB files; SVHN's label 10 is the digit 0."""
    matlab = needed("scipy.io", "simulation", f"dataset = {name}")
    splits = {}
    for key, file_name in zip(("train", "test"), KNOWN[name].files, strict=True):
        file = root / file_name
        arrays = matlab.loadmat(file, variable_names=["X", "y"])
        labels = arrays["y"].ravel().astype(np.int64)
        images = np.moveaxis(arrays["X"], -1, 0)
        splits[key] = Split(images, np.where(labels == 10, 0, labels), str(file), key)
    return Raw(splits)


def read_site(file: Path, settings: DataSettings) -> Raw:
    """Return the windows of one site's subjects. The fifth that test-fold names tests, no subject is on both sides.

    The file has `ts` (sum of lengths, regions), the series of one subject after the other, and `length` and `label`
    (subjects,), 1 for autism.

    Raises:
        DataError: arrays that are missing or do not fit each other, or a subject with less than one window.
    """
    arrays = read_arrays(file, ("ts", "length", "label"))
    series = arrays["ts"]
    length_S, label_S = arrays["length"].astype(np.int64), arrays["label"].astype(np.int64)
    subjects = length_S.size
    is_one_each = length_S.shape == label_S.shape == (subjects,)
    rule = ""
    if series.ndim != 2 or not subjects or not is_one_each or length_S.sum() != len(series):
        shapes = f"ts {series.shape}, length {length_S.shape} and label {label_S.shape}"
        rule = f"{shapes} do not fit: ts must be (sum of length, regions)"
    elif length_S.min() < WINDOW_WIDTH:
        rule = f"subject {int(np.argmin(length_S))} has less than {WINDOW_WIDTH} time points"
    # NaN would correlate with nothing, as a constant region does, and a label of 0.5 would become 0.
    elif not np.isfinite(series).all() or (label_S != arrays["label"]).any():
        rule = "ts must be finite, and label whole numbers"
    if rule:
        raise DataError(rule, where=file)

    windows_S = [
        window_correlations(of_subject, WINDOW_WIDTH, settings.window_stride)
        for of_subject in np.split(series, np.cumsum(length_S)[:-1])
    ]
    tested = folds(label_S, file.stem)[settings.test_fold]
    trained = np.setdiff1d(np.arange(subjects), tested)
    if not len(tested) or not len(trained):
        rule = f"test-fold = {settings.test_fold} of {subjects} subjects leaves none to train or none to test"
        raise DataError(rule, where=file)
    splits = {}
    for key, chosen in (("train", trained), ("test", tested)):
        windows = [windows_S[subject] for subject in chosen]
        subject_N = np.repeat(chosen, list(map(len, windows)))
        splits[key] = Split(
            images=np.concatenate(windows),
            labels=label_S[subject_N],
            where=str(file),
            key=key,
            subjects=subject_N,
            tested_as_one=True,  # by all windows of a subject together
        )
    return Raw(splits)


def folds(labels: Integers, name: str) -> list[Integers]:
    """Return the subjects in five parts with nearly equal shares of each label; part of the data, so no run's seed."""
    draws = generator(0, f"abide {name}: folds")
    order = np.concatenate(
        [draws.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    )
    # Every fifth of an order that goes label by label has its share of each label.
    return [np.sort(order[fold::FOLDS]) for fold in range(FOLDS)]


def window_correlations(series: Array, width: int, stride: int) -> Floats:
    """Return (W, R (R - 1) / 2): Fisher's z of the regions' correlations in each window of `width` time points.

    A region that is constant in a window correlates with nothing there; |r| is kept below 1 - 1e-6, so z is finite.
    """
    every_window = np.lib.stride_tricks.sliding_window_view(
        series.astype(np.float64), width, axis=0
    )
    windows = every_window[::stride]
    centered = windows - windows.mean(axis=2, keepdims=True)
    norms = np.sqrt((centered**2).sum(axis=2, keepdims=True))
    unit = np.divide(centered, norms, out=np.zeros_like(centered), where=norms > 1e-12)
    upper = np.triu_indices(series.shape[1], k=1)
    correlations = np.stack([(window @ window.T)[upper] for window in unit])
    inside = np.clip(correlations, -1 + 1e-6, 1 - 1e-6)
    fisher_z: Floats = np.arctanh(inside).astype(np.float32)
    return fisher_z


# ---- lists of images -------------------------------------------------------------------------------------------------


def cinic(folder: Path, name: str) -> Lists:
    """List train/CLASS/*, valid/CLASS/*, test/CLASS/*; valid is training data too, as in FedMA."""
    train, valid, test = (of_folders(folder, part, name) for part in ("train", "valid", "test"))
    return {"train": train + valid, "test": test}


def tiny_imagenet(folder: Path, name: str) -> Lists:
    """List train/WNID/images/* and, as test data, val/images/* with the classes of val_annotations.txt.

    Classes are numbered by their sorted WordNet ids; the official test images have no labels.
    """
    wnids = sorted((folder / "wnids.txt").read_text().split())
    train: Files = []
    for label, wnid in enumerate(wnids):
        for file in visible(folder / "train" / wnid / "images"):
            train.append((f"train/{wnid}/images/{file.name}", label))
    test: Files = []
    for line in _lines(folder / "val" / "val_annotations.txt"):
        file_name, wnid, *_ = line.split("\t")  # a box follows
        test.append((f"val/images/{file_name}", wnids.index(wnid)))
    return {"train": train, "test": test}


def domain(folder: Path, name: str) -> Lists:
    """List DOMAIN/CLASS/*, split 80 to 20 by class as for FedBN (Li et al., 2021), without the authors' lists."""
    files = of_folders(folder, Path(KNOWN[name].files[0]).parent.name, name)
    labels_N = np.array([label for _, label in files], np.int64)
    lists: Lists = {}
    for key, rows in zip(("train", "test"), stratified(labels_N, str(folder)), strict=True):
        lists[key] = [files[row] for row in rows]
    return lists


def domainnet(folder: Path, name: str) -> Lists:
    """List DOMAIN/CLASS/* of FedBN's ten classes, split by DOMAIN_train.txt and DOMAIN_test.txt.

    The training images are shuffled once, so that a recipe can take the first ones.
    """
    classes = KNOWN[name].class_names
    lists: Lists = {}
    for key in ("train", "test"):
        # The number after a path counts DomainNet's 345 classes.
        lists[key] = []
        for path, _ in _files_and_labels(folder / f"{name.removeprefix('domainnet-')}_{key}.txt"):
            _, class_name, *_ = path.split("/")
            if class_name in classes:
                lists[key].append((path, classes.index(class_name)))
    order = generator(0, f"{name}: order").permutation(len(lists["train"]))
    lists["train"] = [lists["train"][row] for row in order]
    return lists


def mnist_m(folder: Path, name: str) -> Lists:
    """List mnist_m_{train,test}/*.png by mnist_m_{train,test}_labels.txt, whose lines are a file's name and a digit."""
    lists: Lists = {}
    for key in ("train", "test"):
        listed = _files_and_labels(folder / f"mnist_m_{key}_labels.txt")
        lists[key] = [(f"mnist_m_{key}/{file}", label) for file, label in listed]
    return lists


def imagenet_lt(folder: Path, name: str) -> Lists:
    """List ImageNet_LT_{train,val,test}.txt, whose lines are a path below data-root/ImageNet and a label."""
    lists: Lists = {}
    for key in ("train", "test", "val"):
        list_file = folder / f"ImageNet_LT_{key}.txt"
        if not list_file.is_file():
            continue
        files = _files_and_labels(list_file)
        # One image of each list is looked for: looking for all takes long.
        if files and not (folder / files[0][0]).is_file():
            rule = f"is not there, and {list_file.name} names it"
            raise DataError(rule, where=folder / files[0][0])
        lists[key] = files
    return lists


def of_folders(folder: Path, part: str, name: str) -> Files:
    """Return PART/CLASS/* of a folder, with paths from that folder. Raises DataError for a folder of no class."""
    classes = KNOWN[name].class_names
    listed = files_of_classes(folder / part, folder, classes)
    return [(path, classes.index(class_name)) for path, class_name in listed]


def _lines(file: Path) -> list[str]:
    """Return the lines of a list that hold something."""
    return [line for line in file.read_text().splitlines() if line.strip()]


def _files_and_labels(file: Path) -> Files:
    """Return the lines of a list: a path and a label."""
    pairs = [line.rsplit(maxsplit=1) for line in _lines(file)]
    return [(path, int(label)) for path, label in pairs]


LISTS: dict[str, tuple[str, Callable[[Path, str], Lists]]] = {
    "cinic": ("CINIC-10", cinic),
    "tiny-imagenet": ("tiny-imagenet-200", tiny_imagenet),
    "office": ("office_caltech_10", domain),
    "pacs": ("PACS", domain),
    "domainnet": ("DomainNet", domainnet),
    "mnist-m": ("mnist_m", mnist_m),
    "imagenet-lt": ("ImageNet", imagenet_lt),
}
"""By layout, the folder below data-root and what lists its images."""
