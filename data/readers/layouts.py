"""Readers of the official layouts that torchvision does not know; images in folders stay undecoded."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.extras import needed
from data.partitions import generator
from data.readers.abide import fetch_pcp, incomplete, read_pcp, read_site, windows_of
from data.readers.array_types import Shape
from data.readers.catalog import KNOWN
from data.readers.folder import below, class_folders, of_classes, visible
from data.readers.image_files import ImageFiles
from data.readers.npz import refuse_large
from data.readers.splits import Raw, Split, stratified
from data.settings import DataSettings
from data.text import said

Files = list[tuple[str, int]]
"""Paths, each with its label."""


def read_layout(name: str, settings: DataSettings, shape: Shape) -> Raw:
    """Return the data set `name` from its official files below data-root, its images to be brought to `shape`.

    Raises:
        DataError: a file that is missing or cannot be read, said in one sentence.
    """
    root = Path(settings.data_root).expanduser()
    try:
        return READERS[KNOWN[name].layout](Layout(name, root, settings, shape))
    except DataError:
        raise
    except Exception as error:  # a damaged file surfaces as anything
        rule = f"{name} cannot be read: {type(error).__name__}: {said(error)}"
        raise DataError(rule, where=root) from error


@dataclass(frozen=True)
class Layout:
    """The official files of a data set: a method per layout."""

    name: str
    root: Path
    settings: DataSettings
    shape: Shape

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return KNOWN[self.name].class_names

    def mat(self) -> Raw:
        """X (32, 32, 3, N) and y (N, 1); SVHN's label 10 is the digit 0."""
        matlab = needed("scipy.io", "simulation", f"dataset = {self.name}")
        splits = []
        for key, file_name in zip(("train", "test"), KNOWN[self.name].files, strict=True):
            file = self.root / file_name
            sizes = {}
            for array, array_shape, dtype in matlab.whosmat(file):  # the heads alone
                if array in ("X", "y"):
                    sizes[array] = math.prod(array_shape) * np.dtype(dtype).itemsize
            refuse_large(file, sizes)
            arrays = matlab.loadmat(file, variable_names=["X", "y"])
            labels = arrays["y"].ravel().astype(np.int64)
            images = np.moveaxis(arrays["X"], -1, 0)
            splits.append(Split(images, np.where(labels == 10, 0, labels), str(file), key))
        return Raw(*splits)

    def cinic(self) -> Raw:
        """train/CLASS/*, valid/CLASS/*, test/CLASS/*; valid is training data too, as in FedMA."""
        folder = self.root / "CINIC-10"
        train, valid, test = (
            self.class_folders(folder, part, self.classes) for part in ("train", "valid", "test")
        )
        test_split = self.split(folder, test, "test")
        return Raw(self.split(folder, train + valid, "train"), test_split)

    def tiny_imagenet(self) -> Raw:
        """train/WNID/images/* and, as test data, val/images/* with the classes of val_annotations.txt.

        Classes are numbered by their sorted WordNet ids; the official test images have no labels.
        """
        folder = self.root / "tiny-imagenet-200"
        wnids = sorted((folder / "wnids.txt").read_text().split())
        train: Files = []
        for label, wnid in enumerate(wnids):
            for file in visible(folder / "train" / wnid / "images"):
                train.append((f"train/{wnid}/images/{file.name}", label))
        test: Files = []
        for line in _lines(folder / "val" / "val_annotations.txt"):
            file_name, wnid, *_ = line.split("\t")  # a box follows
            test.append((f"val/images/{file_name}", wnids.index(wnid)))
        return Raw(self.split(folder, train, "train"), self.split(folder, test, "test"))

    def office(self) -> Raw:
        """DOMAIN/CLASS/*, split 80 to 20 by class as for FedBN (Li et al., 2021), whose own lists are not read.

        Copies of the data set write `back_pack` or `backpack`, so spaces, `-`, `_` and capitals of folders do not
        count.
        """
        folder = self.root / "office_caltech_10" / self.name.removeprefix("office-")
        found = {_letters(name): name for name in class_folders(folder)}
        folder_names = tuple(found.get(_letters(name), name) for name in self.classes)
        return self.in_80_to_20(folder, self.class_folders(folder, "", folder_names))

    def pacs(self) -> Raw:
        """DOMAIN/CLASS/* (Li et al., 2017), split 80 to 20 by class as Office-Caltech10, without the authors' lists."""
        folder = self.root / Path(KNOWN[self.name].files[0]).parent
        return self.in_80_to_20(folder, self.class_folders(folder, "", self.classes))

    def domainnet(self) -> Raw:
        """DOMAIN/CLASS/* of FedBN's ten classes, split by DOMAIN_train.txt and DOMAIN_test.txt, or 80 to 20 without.

        The training images are shuffled once, so that a recipe can take the first ones.
        """
        folder = self.root / "DomainNet"
        domain = self.name.removeprefix("domainnet-")
        label_of = {class_name: label for label, class_name in enumerate(self.classes)}
        if not (folder / f"{domain}_train.txt").is_file():
            files: Files = []
            for class_name, label in label_of.items():
                class_folder = folder / domain / class_name
                there = visible(class_folder) if class_folder.is_dir() else ()
                files += [(f"{domain}/{class_name}/{file.name}", label) for file in there]
            return self.in_80_to_20(folder, files)
        splits = []
        for key in ("train", "test"):
            # The number after a path counts DomainNet's 345 classes.
            paths = [line.split()[0] for line in _lines(folder / f"{domain}_{key}.txt")]
            labels = [label_of.get(path.split("/")[1], -1) for path in paths]
            listed = [pair for pair in zip(paths, labels, strict=True) if pair[1] >= 0]
            splits.append(self.split(folder, listed, key))
        train, test = splits
        order = generator(0, f"{self.name}: order").permutation(len(train.labels))
        return Raw(train.take(order, "train"), test)

    def mnist_m(self) -> Raw:
        """mnist_m_{train,test}/*.png and mnist_m_{train,test}_labels.txt, whose lines are a file's name and a digit."""
        folder = self.root / "mnist_m"
        splits = []
        for key in ("train", "test"):
            files = _files_and_labels(folder / f"mnist_m_{key}_labels.txt")
            splits.append(self.split(folder / f"mnist_m_{key}", files, key))
        return Raw(*splits)

    def imagenet_lt(self) -> Raw:
        """ImageNet_LT_{train,val,test}.txt, whose lines are a path below data-root/ImageNet and a label."""
        folder = self.root / "ImageNet"
        splits = {}
        for key in ("train", "test", "val"):
            list_file = folder / f"ImageNet_LT_{key}.txt"
            if not list_file.is_file():
                continue
            files = _files_and_labels(list_file)
            # One image of each list is looked for: looking for all takes long.
            if files and not (folder / files[0][0]).is_file():
                rule = f"is not there, and {list_file.name} names it"
                raise DataError(rule, where=folder / files[0][0])
            splits[key] = self.split(folder, files, key, central=True)
        return Raw.of(splits)

    def abide(self) -> Raw:
        """abide/SITE.npz, or the files that nilearn downloads; an interrupted download is resumed."""
        settings = self.settings
        file = self.root / KNOWN[self.name].files[0]
        if file.is_file():
            site = read_site(file, settings)
        else:
            folder = self.root / "ABIDE_pcp"
            if settings.download and incomplete(folder, file.stem):
                fetch_pcp(self.root, file.stem)
            site = read_pcp(folder, file.stem)
        return windows_of(site, settings.window_stride, settings.test_fold)

    def class_folders(self, folder: Path, part: str, class_names: tuple[str, ...]) -> Files:
        """Return PART/CLASS/* of a folder, with paths from that folder. Raises DataError for a folder of no class."""
        files: Files = []
        for label, class_folder in of_classes(folder / part, class_names).items():
            files += [(str(file.relative_to(folder)), label) for file in below(class_folder)]
        return files

    def split(self, folder: Path, files: Files, key: str, central: bool = False) -> Split:
        """Return the images of paths below a folder. Raises DataError for none."""
        if not files:
            rule = f"no image of a class that is asked for in {key}"
            raise DataError(rule, where=folder)
        paths, labels = zip(*files, strict=True)
        images = ImageFiles.of(folder, paths, self.shape, self.settings, central)
        return Split(images, np.array(labels, np.int64), str(folder), key)

    def in_80_to_20(self, folder: Path, files: Files) -> Raw:
        """Return the images of which a fifth of each class tests."""
        everything = self.split(folder, files, "train")
        train, test = stratified(everything.labels.astype(np.int64), everything.where)
        return Raw(everything.take(train, "train"), everything.take(test, "test"))


def _letters(name: str) -> str:
    """Return the letters and digits of a folder's name, in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def _lines(file: Path) -> list[str]:
    """Return the lines of a list that hold something."""
    return [line for line in file.read_text().splitlines() if line.strip()]


def _files_and_labels(file: Path) -> Files:
    """Return the lines of a list: a path and a label."""
    pairs = [line.rsplit(maxsplit=1) for line in _lines(file)]
    return [(path, int(label)) for path, label in pairs]


READERS: dict[str, Callable[[Layout], Raw]] = {
    "mat": Layout.mat,
    "cinic": Layout.cinic,
    "tiny-imagenet": Layout.tiny_imagenet,
    "office": Layout.office,
    "pacs": Layout.pacs,
    "domainnet": Layout.domainnet,
    "mnist-m": Layout.mnist_m,
    "imagenet-lt": Layout.imagenet_lt,
    "abide": Layout.abide,
}
