"""Data as users bring them: what each is made of, and what `fedskew data check` has to answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

Build = Callable[[Path], Path]


@dataclass(frozen=True)
class Case:
    """One input."""

    build: Build
    """Makes it below a folder, and returns what is checked."""
    notes: tuple[str, ...] = ()
    """Words of the answer, where it is taken."""
    settles: tuple[str, ...] = ()
    """Settings that the refusal names, without which it is refused."""
    module: str = ""
    """A package that reads it."""


DRAWS = np.random.default_rng(0)
BYTES = DRAWS.integers(0, 256, (64, 6, 5), np.uint8)
"""No image is there twice: data whose test images are training images are refused."""
LABELS = np.arange(24) % 2


def npz(change=lambda arrays: None, name="own.npz"):
    """An npz file of 24 images for training, 8 for tests and 4 for validation, changed."""

    def build(folder):
        sizes = {"train": 24, "test": 8, "val": 4}
        starts = {"train": 0, "test": 24, "val": 32}
        arrays = {
            f"{key}_images": BYTES[starts[key] : starts[key] + size] for key, size in sizes.items()
        }
        arrays |= {f"{key}_labels": LABELS[:size] for key, size in sizes.items()}
        change(arrays)
        np.savez(folder / name, **arrays)
        return folder / name

    return build


def every(kind, change):
    """Change the images, or the labels, of every split."""

    def apply(arrays):
        arrays.update({key: change(value) for key, value in arrays.items() if key.endswith(kind)})

    return apply


def sixteen_bit_arrays(factor):
    """Images of 16 bits, the largest 255 times that."""
    return every("images", lambda images: images.astype(np.uint16) * factor)


def tree(
    write,
    suffix,
    classes=("cat", "dog"),
    splits=("train", "test"),
    extra=lambda root: None,
):
    """Eight images of each class in each split, then something more."""

    def build(folder):
        root = folder / "images"
        for place, split in enumerate(splits):
            for label, name in enumerate(classes):
                (root / split / name).mkdir(parents=True)
                for k in range(8):
                    number = 8 * (len(classes) * place + label) + k
                    write(root / split / name / f"{k}{suffix}", number)
        extra(root)
        return root

    return build


def eight_bits(file, k):
    Image.fromarray(BYTES[k]).save(file)


def dicom(name):
    """One of pydicom's own test files; the first pixels of every frame spell `k` in two of the image's own values."""

    def write(file, k):
        from pydicom import dcmread
        from pydicom.data import get_testdata_file

        dataset = dcmread(get_testdata_file(name, download=False))
        dataset.PatientID = f"{name} {k}"  # one patient's copies must not be in train and test
        if "PixelData" in dataset:
            if dataset.file_meta.TransferSyntaxUID.is_compressed:
                dataset.decompress()
            frames = int(dataset.get("NumberOfFrames", 1))
            size = dataset.BitsAllocated // 8
            pixels = np.frombuffer(dataset.PixelData, f"V{size}").reshape(frames, -1).copy()
            other = next(value for value in pixels[0] if value != pixels[0, 0])
            for bit in range(6):
                pixels[:, bit] = other if k >> bit & 1 else pixels[0, 0]
            dataset.PixelData = pixels.tobytes()
        dataset.save_as(file)

    return write


def nifti(shape):
    def write(file, k):
        import nibabel

        nibabel.save(
            nibabel.Nifti1Image(np.resize(BYTES[k], shape).astype(np.int16) * 5, np.eye(4)), file
        )

    return write


def left_behind(root):
    (root / "train" / ".DS_Store").write_bytes(b"\0")
    (root / "train" / "cat" / "._0.png").write_bytes(b"\0")
    (root / "test" / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "__MACOSX").mkdir()


def rows(*columns):
    """A CSV file of 48 images of two sites, two images a patient; `columns` of path, label, site, patient."""

    def build(folder):
        lines = [",".join(columns)]
        (folder / "images").mkdir()
        for k in range(48):
            eight_bits(folder / "images" / f"{k}.png", k)
            cells = {
                "path": f"images/{k}.png",
                "label": "ab"[k // 4 % 2],
                "diagnosis": "ab"[k // 4 % 2],
            }
            cells |= {"site": "NS"[k // 2 % 2], "patient": f"p{k // 2}", "age": "50"}
            lines.append(",".join(cells[column] for column in columns))
        (folder / "rows.csv").write_text("\n".join(lines))
        return folder / "rows.csv"

    return build


def cells(columns, separator=","):
    """A CSV file of 48 rows of a number, their label, and two sites, two rows a patient; `columns` names these."""

    def build(folder):
        lines = [columns.replace(",", separator)]
        for k in range(48):
            size = f"{k / 4}".replace(".", "." if separator == "," else ",")
            lines.append(separator.join((size, "ab"[k // 4 % 2], "NS"[k // 2 % 2], f"{k // 2}")))
        (folder / "cells.csv").write_text("\n".join(lines))
        return folder / "cells.csv"

    return build


CASES = {
    "MedMNIST's npz: labels (N, 1), val split": Case(
        npz(every("labels", lambda labels: labels[:, None])),
    ),
    "npz: 12 bits in uint16": Case(
        npz(sixteen_bit_arrays(16)), ("taken as 0..4095",), ("pixel-range=0,4095",)
    ),
    "folder of 8 bits, with .DS_Store": Case(tree(eight_bits, ".png", extra=left_behind)),
    "folder: NIfTI volumes": Case(
        tree(nifti((6, 5, 4)), ".nii"), settles=("frame=middle", "pixel-range="), module="nibabel"
    ),
    "folder: a comma in a class": Case(tree(eight_bits, ".png", ("a,b", "c"))),
    "csv: sites and patients": Case(
        rows("path", "label", "site", "patient", "age"),
        ("the 2 sites of column site are the clients", "24 patients by column patient", "not used: age"),
    ),
}  # fmt: skip
