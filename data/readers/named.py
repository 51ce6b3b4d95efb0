"""The data sets that go by name: NAME.npz or the official files below data-root, and scikit-learn's digits.

`fedbn` cuts the domains of a family to the equal sizes of FedBN's recipe. Images in folders stay undecoded.
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
from data.readers.array_types import Array, Floats, Integers
from data.readers.catalog import FAMILIES, IMAGENET_LT, KNOWN
from data.readers.folder import files_of_classes, visible
from data.readers.image_files import ImageFiles, letters_of
from data.readers.npz import read_arrays, read_npz
from data.readers.splits import FOLDS, Raw, Split
from data.settings import DataSettings
from data.text import said

Files = list[tuple[str, int]]
"""Paths, each with its label."""
Lists = dict[str, Files]
"""By split, paths below the folder of the data set."""
WINDOW_WIDTH = 32
"""ABIDE: time points in a window."""
TEST_OF_EACH_DIGIT = 36
"""Test images a class: 360 in all, balanced; the other 1,437 are for training."""
AT_A_SCANNER = {"train": 32, "test": TEST_OF_EACH_DIGIT // 4}
"""Images a class at each of the four scanners."""
Scanner = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]
SCANNERS: dict[str, Scanner] = {
    "plain": lambda images_NHW, draws: images_NHW,
    "faint": lambda images_NHW, draws: 0.25 * images_NHW,
    # Every pixel becomes the mean of the 3 x 3 around it; beyond the edge it is dark.
    "blurred": lambda images_NHW, draws: needed(
        "scipy.ndimage", "simulation", "dataset = digits-blurred", verb="blurs"
    ).uniform_filter(images_NHW, size=(1, 3, 3), mode="constant"),
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
    for patterns in ((f"{name}.npz",), known.files):
        files = [sorted(root.glob(pattern)) for pattern in patterns]
        # Without a path for one of the patterns the layout is not, or not completely, there.
        if all(files):
            return list(itertools.chain.from_iterable(files))
    way = f"torchvision cannot download it: {known.how}"
    if known.torchvision_class:
        if settings.download:
            return []
        way = "set download = true to get it"
    looked_for = f"looked for {name}.npz or {', '.join(known.files)}"
    raise DataError(f"{name} is not there; {looked_for}; {way}", where=str(root))


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
        return read_layout(name, settings)
    splits = {}
    for key in ("train", "test"):
        source = _through_torchvision(name, settings, key == "train")
        images, labels = np.asarray(source.data), np.asarray(source.targets)
        splits[key] = Split(images, labels, str(Path(settings.data_root).expanduser()), key)
    return Raw(splits)


def _through_torchvision(name: str, settings: DataSettings, train: bool) -> Any:
    """Return one of torchvision's data sets, which downloads it if it may. Raises DataError."""
    import torchvision.datasets

    known = KNOWN[name]
    root = Path(settings.data_root).expanduser()
    dataset_class = getattr(torchvision.datasets, known.torchvision_class)
    folder = str(root / known.torchvision_root)
    try:
        return dataset_class(folder, train=train, download=settings.download)
    # A damaged file surfaces as anything, an AssertionError among others.
    except Exception as error:
        rule = f"torchvision cannot read {name}: {said(error)}"
        raise DataError(rule, where=str(root)) from error


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
            images = ImageFiles(
                folder, letters_of(paths), settings.shape, name == IMAGENET_LT, settings
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
    fits = (
        series.ndim == 2
        and subjects > 0
        and length_S.shape == label_S.shape == (subjects,)
        and length_S.sum() == len(series)
        and length_S.min() >= WINDOW_WIDTH
        # NaN would correlate with nothing, as a constant region does, and a label of 0.5 would become 0.
        and np.isfinite(series).all()
        and (label_S == arrays["label"]).all()
    )
    if not fits:
        raise DataError(
            f"ts {series.shape}, length {length_S.shape} and label {label_S.shape} do not fit: ts must be finite and "
            f"(sum of length, regions), each length at least {WINDOW_WIDTH}, and label whole numbers",
            where=file,
        )

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


# ---- scikit-learn's digits ------------------------------------------------------------------------------------------


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


# ---- FedBN's recipe ------------------------------------------------------------------------------------------------


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


def stratified(labels_N: Integers, where: str) -> tuple[Integers, Integers]:
    """Return indices for training (80 %) and testing in random order, by class, with the seed 0 that FedBN's code has.

    Raises:
        DataError: a class with a single sample, a fifth smaller than the number of classes, or scikit-learn is not
            installed.
    """
    selection = needed("sklearn.model_selection", "simulation", where, verb="splits")
    split = selection.StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    try:
        train, test = next(split.split(np.zeros(len(labels_N)), labels_N))
    except ValueError as error:
        rule = f"cannot be split 80 to 20 by class: {said(error)}"
        raise DataError(rule, where=where) from error
    return train.astype(np.int64), test.astype(np.int64)
