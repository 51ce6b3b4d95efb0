"""Readers of the official layouts that torchvision does not know; images in folders stay undecoded."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.extras import needed
from data.random_draws import generator
from data.readers.abide import fetch_pcp, incomplete, read_pcp, read_site, windows_of
from data.readers.catalog import KNOWN
from data.readers.folder import class_folders, read_split, visible
from data.readers.image_files import ImageFiles
from data.readers.npz import refuse_large
from data.readers.splits import Raw, Split, stratified
from data.settings import DataSettings
from data.text import said

Files = list[tuple[str, int]]
"""Paths, each with its label."""


def read_layout(name: str, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """The data set `name` from its official files below data-root, its images to be brought to `shape`.

    Raises:
        DataError: a file that is missing or cannot be read, said in one sentence.
    """
    root = Path(settings.data_root).expanduser()
    try:
        return READERS[KNOWN[name].layout](name, root, settings, shape)
    except DataError:
        raise
    except Exception as error:  # a damaged file surfaces as anything
        raise DataError(
            f"{name} cannot be read: {type(error).__name__}: {said(error)}", where=str(root)
        ) from error


def _mat(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """X (32, 32, 3, N) and y (N, 1); SVHN's label 10 is the digit 0."""
    matlab = needed("scipy.io", "simulation", f"dataset = {name}")
    splits = []
    for key, file_name in zip(("train", "test"), KNOWN[name].files, strict=True):
        file = root / file_name
        sizes = {}
        for array, array_shape, dtype in matlab.whosmat(file):  # the heads alone
            if array in ("X", "y"):
                sizes[array] = math.prod(array_shape) * np.dtype(dtype).itemsize
        refuse_large(file, sizes, settings)
        arrays = matlab.loadmat(file, variable_names=["X", "y"])
        labels = arrays["y"].ravel().astype(np.int64)
        images = np.moveaxis(arrays["X"], -1, 0)
        splits.append(Split(images, np.where(labels == 10, 0, labels), str(file), key))
    return Raw(*splits)


def _cinic(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """train/CLASS/*, valid/CLASS/*, test/CLASS/*; `cinic-train` says whether valid is training or validation data."""
    folder = root / "CINIC-10"
    classes = KNOWN[name].class_names
    train = read_split(folder / "train", "train", classes, shape, settings)
    valid = read_split(folder / "valid", "val", classes, shape, settings)
    test = read_split(folder / "test", "test", classes, shape, settings)
    if settings.cinic_train == "train":
        return Raw(train, test, valid)
    # Both in one list, below the folder that they share.
    files: Files = []
    for split in (train, valid):
        assert isinstance(split.images, ImageFiles)
        for index, label in enumerate(split.labels.tolist()):
            files.append((str(split.images.path(index).relative_to(folder)), label))
    return Raw(_split(folder, files, "train", shape, settings), test)


def _tiny_imagenet(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """train/WNID/images/* and, as test data, val/images/* with the classes of val_annotations.txt.

    Classes are numbered by their sorted WordNet ids; the official test images have no labels.
    """
    folder = root / "tiny-imagenet-200"
    wnids = sorted((folder / "wnids.txt").read_text().split())
    train: Files = []
    for label, wnid in enumerate(wnids):
        for file in visible(folder / "train" / wnid / "images"):
            train.append((f"train/{wnid}/images/{file.name}", label))
    test: Files = []
    for line in _lines(folder / "val" / "val_annotations.txt"):
        file_name, wnid, *_ = line.split("\t")  # a box follows
        test.append((f"val/images/{file_name}", wnids.index(wnid)))
    return Raw(
        _split(folder, train, "train", shape, settings),
        _split(folder, test, "test", shape, settings),
    )


def _class_folders(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """DOMAIN/CLASS/* of Office-Caltech10 and PACS, split 80 to 20 by class as for FedBN (Li et al., 2021).

    The authors' own lists are not read.
    """
    known = KNOWN[name]
    folder = root / Path(known.files[0]).parent
    class_names = known.class_names
    if known.layout == "office":
        folder = root / "office_caltech_10" / name.removeprefix("office-")
        class_names = office_class_folders(folder, class_names)
    return _split_80_to_20(read_split(folder, "train", class_names, shape, settings))


def office_class_folders(folder: Path, class_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the class folders of one domain of Office-Caltech10, in the order of `class_names`.

    Copies of the data set write `back_pack` or `backpack`, so spaces, `-`, `_` and capitals do not count. A class
    without a folder keeps its own name.
    """
    found = {_letters(name): name for name in class_folders(folder)}
    return tuple(found.get(_letters(name), name) for name in class_names)


def _letters(name: str) -> str:
    """Return the letters and digits of a folder's name, in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def _domainnet(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """DOMAIN/CLASS/* of FedBN's ten classes, split by DOMAIN_train.txt and DOMAIN_test.txt, or 80 to 20 without them.

    The training images are shuffled once, so that a recipe can take the first ones.
    """
    folder = root / "DomainNet"
    domain = name.removeprefix("domainnet-")
    label_of = {class_name: label for label, class_name in enumerate(KNOWN[name].class_names)}
    if not (folder / f"{domain}_train.txt").is_file():
        files: Files = []
        for class_name, label in label_of.items():
            class_folder = folder / domain / class_name
            there = visible(class_folder) if class_folder.is_dir() else ()
            files += [(f"{domain}/{class_name}/{file.name}", label) for file in there]
        return _split_80_to_20(_split(folder, files, "train", shape, settings))
    splits = []
    for key in ("train", "test"):
        listed: Files = []
        for line in _lines(folder / f"{domain}_{key}.txt"):
            path = line.split()[0]  # the number after it counts DomainNet's 345 classes
            class_name = path.split("/")[1]
            if class_name in label_of:
                listed.append((path, label_of[class_name]))
        splits.append(_split(folder, listed, key, shape, settings))
    train, test = splits
    order = generator(0, f"{name}: order").permutation(len(train.labels))
    return Raw(train.take(order, "train"), test)


def _mnist_m(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """mnist_m_{train,test}/*.png and mnist_m_{train,test}_labels.txt, whose lines are a file's name and its digit."""
    splits = []
    for key in ("train", "test"):
        folder = root / "mnist_m" / f"mnist_m_{key}"
        files = _files_and_labels(root / "mnist_m" / f"mnist_m_{key}_labels.txt")
        splits.append(_split(folder, files, key, shape, settings))
    return Raw(*splits)


def _imagenet_lt(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """The images of ImageNet_LT_{train,val,test}.txt, whose lines are a path below data-root/ImageNet and a label."""
    folder = root / "ImageNet"
    splits = {}
    for key in ("train", "test", "val"):
        list_file = folder / f"ImageNet_LT_{key}.txt"
        files = _files_and_labels(list_file) if list_file.is_file() else []
        # One image of each list is looked for: looking for all takes long.
        if files and not (folder / files[0][0]).is_file():
            rule = f"is not there, and {list_file.name} names it"
            raise DataError(rule, where=str(folder / files[0][0]))
        if list_file.is_file():
            splits[key] = _split(folder, files, key, shape, settings, central=True)
    return Raw.of(splits)


def _abide(name: str, root: Path, settings: DataSettings, shape: tuple[int, ...]) -> Raw:
    """abide/SITE.npz, or the files that nilearn downloads; an interrupted download is resumed."""
    file = root / KNOWN[name].files[0]
    if file.is_file():
        site = read_site(file, settings)
    else:
        folder = root / "ABIDE_pcp"
        if settings.download and incomplete(folder, file.stem):
            fetch_pcp(root, file.stem)
        site = read_pcp(folder, file.stem)
    return windows_of(site, settings.window_width, settings.window_stride, settings.test_fold)


def _lines(file: Path) -> list[str]:
    """Return the lines of a list that hold something."""
    return [line for line in file.read_text().splitlines() if line.strip()]


def _files_and_labels(file: Path) -> Files:
    """Return the lines of a list: a path and a label."""
    pairs = [line.rsplit(maxsplit=1) for line in _lines(file)]
    return [(path, int(label)) for path, label in pairs]


def _split(
    folder: Path,
    files: Files,
    key: str,
    shape: tuple[int, ...],
    settings: DataSettings,
    central: bool = False,
) -> Split:
    if not files:
        raise DataError(f"no image of a class that is asked for in {key}", where=str(folder))
    paths, labels = zip(*files, strict=True)
    images = ImageFiles.of(folder, paths, shape, settings, central)
    return Split(images, np.array(labels, np.int64), str(folder), key)


def _split_80_to_20(everything: Split) -> Raw:
    train, test = stratified(everything.labels.astype(np.int64), everything.where)
    return Raw(everything.take(train, "train"), everything.take(test, "test"))


READERS: dict[str, Callable[[str, Path, DataSettings, tuple[int, ...]], Raw]] = {
    "mat": _mat,
    "cinic": _cinic,
    "tiny-imagenet": _tiny_imagenet,
    "office": _class_folders,
    "pacs": _class_folders,
    "domainnet": _domainnet,
    "mnist-m": _mnist_m,
    "imagenet-lt": _imagenet_lt,
    "abide": _abide,
}
