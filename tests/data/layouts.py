"""Tiny files in the layouts that data sets come in, of fixed numbers, and a stand-in for the datasets library."""

import bz2
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from data.readers.catalog import KNOWN


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_image(file, size=(8, 8), mode="RGB", seed=0):
    """Write a random image in the format of its suffix; a PNG comes back as written."""
    pixels = noise(seed, size[1], size[0], *([] if mode == "L" else [3]))
    file.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(pixels).save(file)
    return pixels


def write_classes(folder, classes, number, size=(8, 8), seed=0, mode="RGB"):
    """Write `number` PNG files into a folder of each class. No two images of different seeds are the same."""
    for label, name in enumerate(classes):
        for index in range(number):
            file = folder / name / f"{index:04d}.png"
            write_image(file, size, mode, 1_000_000 * seed + 1000 * label + index)


def write_npz(file, shape=(28, 28), train=20, test=10, seed=0, classes=10, **more):
    """Write an npz file of images, with labels that run through the classes, and return its arrays."""
    arrays = {}
    for place, (key, number) in enumerate((("train", train), ("test", test))):
        arrays[f"{key}_images"] = noise(2 * seed + place, number, *shape)
        arrays[f"{key}_labels"] = np.arange(number) % classes
    arrays |= more
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    return arrays


def write_mat(file, number, first, seed):
    """X (32, 32, 3, N) uint8 and y (N, 1) uint8 from `first` on, as of SVHN (1..10) and SynthDigits (0..9)."""
    from scipy.io import savemat

    images = noise(seed, 32, 32, 3, number)
    labels = (np.arange(number) % 10 + first).astype(np.uint8)[:, None]
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"X": images, "y": labels})
    return np.moveaxis(images, -1, 0), labels.ravel()


def write_idx(root, name):
    """Files of yann.lecun.com, as torchvision unpacks them."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    for prefix, number in (("train", 12), ("t10k", 5)):
        images, labels = noise(number, number, 28, 28), (np.arange(number) % 10).astype(np.uint8)
        head = struct.pack(">IIII", 0x803, number, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 0x801, number)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def write_usps(root):
    """USPS's text: a label from 1 to 10, then numbers from -1 to 1."""
    (root / "USPS").mkdir()
    for name, label in (("usps.bz2", 1), ("usps.t.bz2", 10)):
        pixels = " ".join(f"{index}:{-1 if index > 1 else 1}" for index in range(1, 257))
        (root / "USPS" / name).write_bytes(bz2.compress(f"{label} {pixels} \n".encode()))


def write_cifar(root, patch, name, lists):
    """CIFAR-10's or CIFAR-100's pickles, the last of `lists` for testing.

    torchvision checks the official files' checksums, which tiny ones cannot have.
    """
    import torchvision.datasets

    known = KNOWN[name]
    official = getattr(torchvision.datasets, known.torchvision_class)
    folder = root / known.files[0].removesuffix("/*")
    folder.mkdir()
    key, meta = ("labels", "label_names") if name == "cifar10" else ("fine_labels", "fine_label_names")  # fmt: skip
    for place, file in enumerate(lists):
        labels = [(37 * index) % len(known.class_names) for index in range(4)]
        batch = {"data": noise(place, 4, 3072), key: labels}
        (folder / file).write_bytes(pickle.dumps(batch))
    (folder / "meta").write_bytes(pickle.dumps({meta: list(known.class_names)}))
    patch.setattr(official, "train_list", [[file, None] for file in lists[:-1]])
    patch.setattr(official, "test_list", [[lists[-1], None]])
    patch.setattr(official, "meta", {"filename": "meta", "key": meta, "md5": None})


def write_mnist_m(root):
    """Images in a folder of each side, and lines of names and digits in no order."""
    for key, number in (("train", 5), ("test", 3)):
        lines = []
        for index in range(number):
            file = root / "mnist_m" / f"mnist_m_{key}" / f"{index:08d}.png"
            write_image(file, (32, 32), seed=10 * number + index)
            lines.insert(0, f"{index:08d}.png {(3 * index) % 10}\n")
        (root / "mnist_m" / f"mnist_m_{key}_labels.txt").write_text("".join(lines))


def write_cinic(root):
    for seed, side in enumerate(("train", "valid", "test")):
        folder = root / "CINIC-10" / side
        write_classes(folder, KNOWN["cinic10"].class_names, 1, (32, 32), seed)


def write_tiny_imagenet(root):
    """Four of the 200 classes. The list of their ids has no order, and an image is grey."""
    folder = root / "tiny-imagenet-200"
    wnids = [f"n{number:08d}" for number in range(4)]
    for label, wnid in enumerate(wnids):
        file = folder / "train" / wnid / "images" / "0.png"
        write_image(file, (64, 64), "L" if label == 1 else "RGB", label)
    lines = []
    for index, label in enumerate((3, 0)):
        write_image(folder / "val" / "images" / f"val_{index}.png", (64, 64), seed=9 + index)
        lines.append(f"val_{index}.png\t{wnids[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")


def write_office(root, domains):
    """Office-Caltech10's folders, with so many images of each class."""
    for seed, (domain, number) in enumerate(domains.items()):
        folder = root / "office_caltech_10" / domain
        write_classes(folder, KNOWN["office-dslr"].class_names, number, seed=seed)


def write_pacs(root, number):
    for seed, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        write_classes(root / "PACS" / domain, KNOWN["pacs-photo"].class_names, number, seed=seed)


def write_domainnet(root, number):
    """Two domains of DomainNet with two more of its 345 classes; the last quarter of each class is for testing."""
    classes = ("aircraft_carrier", *KNOWN["domainnet-real"].class_names, "zigzag")
    for seed, domain in enumerate(("clipart", "sketch")):
        write_classes(root / "DomainNet" / domain, classes, number, seed=seed)
        lines = {"train": [], "test": []}
        for label, name in enumerate(classes):
            for index in range(number):
                key = "train" if index < 3 * number // 4 else "test"
                lines[key].append(f"{domain}/{name}/{index:04d}.png {label}\n")
        for key in lines:
            (root / "DomainNet" / f"{domain}_{key}.txt").write_text("".join(lines[key]))


def write_imagenet_lt(root, size):
    """Twelve images for training, four for testing, two for validation, of classes 0, 400 and 800."""
    folder = root / "ImageNet"
    for key, numbers in (("train", range(12)), ("test", range(12, 16)), ("val", range(16, 18))):
        lines = []
        for number in numbers:
            file = f"{'val' if key == 'test' else 'train'}/n{number % 3}/{number}.png"
            write_image(folder / file, (size, size + 10), seed=number)
            lines.append(f"{file} {400 * (number % 3)}\n")
        (folder / f"ImageNet_LT_{key}.txt").write_text("".join(lines))


def write_site(file, subjects=10, seed=0):
    """One ABIDE site: time series of random lengths, every second subject with label 1."""
    draws = np.random.default_rng(seed)
    length = draws.integers(40, 50, subjects).astype(np.int32)
    arrays = {
        "ts": draws.normal(size=(length.sum(), 5)).astype(np.float32),
        "length": length,
        "id": np.array([f"{file.stem}_{number:07d}" for number in range(subjects)]),
        "label": (np.arange(subjects) % 2).astype(np.uint8),
        "roi": np.array([f"#{number}" for number in range(5)]),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    return arrays


def write_abide(root, subjects=10):
    """Write all four sites, each with one subject more."""
    for number, site in enumerate(("NYU", "UM_1", "USM", "UCLA_1")):
        write_site(root / "abide" / f"{site}.npz", subjects + number, seed=number)


# ---- a stand-in for the datasets library, which only `make slow` installs ------------------------------------------


@dataclass(frozen=True)
class Image:
    """The library's type of a column of images."""

    decode: bool = True
    mode: None = None


class ClassLabel:
    """The library's type of a column of numbers that stand for names."""

    def __init__(self, names):
        self.names = list(names)
        self.num_classes = len(self.names)

    def int2str(self, number):
        return self.names[number]


class Value:
    """The library's type of texts and numbers."""


class Part:
    """One split of a data set."""

    def __init__(self, features, rows):
        self.features = features
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    def select(self, places):
        return Part(self.features, [self.rows[place] for place in places])

    def select_columns(self, names):
        return self

    def cast_column(self, name, feature):
        assert feature == Image(decode=False)
        return self


def part_of(images, **columns):
    """Images as TIFF files, and the other columns by name: their types and values."""
    rows = []
    for place, pixels in enumerate(images):
        stream = BytesIO()
        Pillow.fromarray(pixels).save(stream, format="TIFF")
        row = {"image": {"bytes": stream.getvalue(), "path": None}}
        rows.append(row | {name: values[place] for name, (_, values) in columns.items()})
    return Part({"image": Image(), **{name: kind for name, (kind, _) in columns.items()}}, rows)


def save_parts(folder, patch, parts):
    """Let the library find these splits in a folder that its save_to_disk would have left."""
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    library = SimpleNamespace(
        disable_progress_bars=lambda: None, load_from_disk=lambda source: parts
    )
    patch.setitem(sys.modules, "datasets", library)
    return folder


Write = Callable[[Path, pytest.MonkeyPatch], Any]
"""Writes files of one kind below a folder, and returns the settings by which they are read."""
