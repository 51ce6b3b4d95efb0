"""Data as users bring them: what each is made of, and what `fedskew data check` has to answer."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    refused: str = ""
    """Words of the refusal."""
    module: str = ""
    """A package that reads it."""


DRAWS = np.random.default_rng(0)
BYTES = DRAWS.integers(0, 256, (64, 6, 5), np.uint8)
"""No image is there twice: data whose test images are training images are refused."""
IMAGES = BYTES[:24]
LABELS = np.arange(24) % 2


def npz(
    change: Callable[[dict[str, Any]], None] = lambda arrays: None, name: str = "own.npz"
) -> Build:
    """An npz file of 24 images for training, 8 for tests and 4 for validation, changed."""

    def build(folder: Path) -> Path:
        sizes = {"train": 24, "test": 8, "val": 4}
        starts = {"train": 0, "test": 24, "val": 32}
        arrays: dict[str, Any] = {
            f"{key}_images": BYTES[starts[key] : starts[key] + size] for key, size in sizes.items()
        }
        arrays |= {f"{key}_labels": LABELS[:size] for key, size in sizes.items()}
        change(arrays)
        np.savez(folder / name, **arrays)
        return folder / name

    return build


def every(kind: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    """Change the images, or the labels, of every split."""

    def apply(arrays: dict[str, Any]) -> None:
        arrays.update({key: change(value) for key, value in arrays.items() if key.endswith(kind)})

    return apply


def sixteen_bit_arrays(factor: int) -> Callable[[dict[str, Any]], None]:
    """Images of 16 bits, the largest 255 times that."""
    return every("images", lambda images: images.astype(np.uint16) * factor)


def table_as_npz(folder: Path) -> Path:
    (folder / "own.npz").write_text(
        "size,label\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(30))
    )
    return folder / "own.npz"


def single_array(folder: Path) -> Path:
    np.save(folder / "images.npy", IMAGES)
    return folder / "images.npy"


def tree(
    write: Callable[[Path, int], None],
    suffix: str,
    classes: tuple[str, ...] = ("cat", "dog"),
    splits: tuple[str, ...] = ("train", "test"),
    extra: Callable[[Path], None] = lambda root: None,
) -> Build:
    """Eight images of each class in each split, then something more."""

    def build(folder: Path) -> Path:
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


def eight_bits(file: Path, k: int) -> None:
    Image.fromarray(BYTES[k]).save(file)


def sixteen_bits(file: Path, k: int) -> None:
    Image.fromarray(BYTES[k].astype(np.uint16) * 100).save(file)


def twelve_bits(file: Path, k: int) -> None:
    Image.fromarray(BYTES[k].astype(np.uint16) * 16).save(file)


def floats(scale: float) -> Callable[[Path, int], None]:
    return lambda file, k: Image.fromarray((BYTES[k] / 255 * scale).astype(np.float32)).save(file)


def dicom(name: str) -> Callable[[Path, int], None]:
    """One of pydicom's own test files; the first pixels of every frame spell `k` in two of the image's own values."""

    def write(file: Path, k: int) -> None:
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


def nifti(shape: tuple[int, ...]) -> Callable[[Path, int], None]:
    def write(file: Path, k: int) -> None:
        import nibabel

        nibabel.save(
            nibabel.Nifti1Image(np.resize(BYTES[k], shape).astype(np.int16) * 5, np.eye(4)), file
        )

    return write


def two_sizes(root: Path) -> None:
    dicom("CT_small.dcm")(root / "train" / "dog" / "large.dcm", 0)


def left_behind(root: Path) -> None:
    (root / "train" / ".DS_Store").write_bytes(b"\0")
    (root / "train" / "cat" / "._0.png").write_bytes(b"\0")
    (root / "test" / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "__MACOSX").mkdir()


def nested(root: Path) -> None:
    (root / "train" / "cat" / "monday").mkdir()
    eight_bits(root / "train" / "cat" / "monday" / "0.png", 3)


def empty_class(root: Path) -> None:
    (root / "train" / "bird").mkdir()


def one_image_class(root: Path) -> None:
    (root / "train" / "bird").mkdir()
    eight_bits(root / "train" / "bird" / "0.png", 5)


def file_in_class(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (root / "train" / "cat" / name).write_bytes(content) and None


def cut_image(root: Path) -> None:
    file = root / "train" / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:60])


def several_sites(folder: Path) -> Path:
    for site in ("north", "south"):
        tree(eight_bits, ".png")(folder / "study" / site).rename(folder / "study" / site / "x")
        for split in ("train", "test"):
            (folder / "study" / site / "x" / split).rename(folder / "study" / site / split)
        (folder / "study" / site / "x").rmdir()
    return folder / "study"


def rows(*columns: str) -> Build:
    """A CSV file of 48 images of two sites, two images a patient; `columns` of path, label, site, patient."""

    def build(folder: Path) -> Path:
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


def numbers(folder: Path) -> Path:
    (folder / "cells.csv").write_text(
        "size,label\n" + "".join(f"{k % 7},{'ab'[k % 2]}\n" for k in range(40))
    )
    return folder / "cells.csv"


def cells(columns: str, separator: str = ",") -> Build:
    """A CSV file of 48 rows of a number, their label, and two sites, two rows a patient; `columns` names these."""

    def build(folder: Path) -> Path:
        lines = [columns.replace(",", separator)]
        for k in range(48):
            size = f"{k / 4}".replace(".", "." if separator == "," else ",")
            lines.append(separator.join((size, "ab"[k // 4 % 2], "NS"[k // 2 % 2], f"{k // 2}")))
        (folder / "cells.csv").write_text("\n".join(lines))
        return folder / "cells.csv"

    return build


def named_otherwise(folder: Path) -> Path:
    """A CSV file of images, none of whose columns but `label` has the name of its role."""
    path = rows("path", "label", "site")(folder)
    path.write_text(path.read_text().replace("path,label,site", "image,label,hospital"))
    return path


def hugging_face(*columns: str) -> Build:
    """What save_to_disk of the datasets library leaves, of those columns of image, label, hospital."""

    def build(folder: Path) -> Path:
        import datasets

        values: dict[str, Any] = {
            "image": [Image.fromarray(pixels) for pixels in IMAGES],
            "label": LABELS.tolist(),
            "hospital": ["NS"[k // 2 % 2] for k in range(24)],
        }
        types: dict[str, Any] = {
            "image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]),
            "hospital": datasets.Value("string"),
        }  # fmt: skip
        chosen = {name: types[name] for name in columns}
        part = datasets.Dataset.from_dict(
            {name: values[name] for name in columns}, datasets.Features(chosen)
        )
        part.save_to_disk(str(folder / "saved"))
        return folder / "saved"

    return build


def names_of_labels(arrays: dict[str, Any]) -> None:
    every("labels", lambda labels: np.array(["cat", "dog"])[labels])(arrays)


UMLAUT = (unicodedata.normalize("NFD", "Lungenentzündung"), "正常")
CASES: dict[str, Case] = {
    "MedMNIST's npz: labels (N, 1), val split": Case(
        npz(every("labels", lambda labels: labels[:, None])),
        ("labels (N, 1) are taken as (N,)", "the validation split is measured beside the test split"),
    ),
    "npz: float64 in 0..1": Case(npz(every("images", lambda images: images / 255)), ("float64 is taken as float32",)),
    "npz: uint16": Case(npz(sixteen_bit_arrays(257)), ("0..65535; the largest",)),
    "npz: 12 bits in uint16": Case(
        npz(sixteen_bit_arrays(16)), ("taken as 0..4095",), ("pixel-range=0,4095",)
    ),
    "npz: float64 in 0..255": Case(
        npz(every("images", lambda images: images.astype(float))), ("taken as 0..255",), ("pixel-range=0,255",)
    ),
    "npz: float32, normalized": Case(
        npz(every("images", lambda images: (images / 64 - 2).astype(np.float32))), ("and some are outside",)
    ),
    "npz: int16 below 0": Case(
        npz(every("images", lambda images: images.astype(np.int16) - 1000)), settles=("pixel-range=-1000,-745",)
    ),
    "npz: names as labels": Case(npz(names_of_labels), ("labels that are names",)),
    "npz: floats as labels": Case(npz(every("labels", lambda labels: labels.astype(float))), ("all whole numbers",)),
    "npz: channels first": Case(npz(every("images", lambda images: images[:, None])), ("(channels, height, width)",)),
    "npz: labels from 1": Case(npz(every("labels", lambda labels: labels + 1)), ("are taken to count from 1",)),
    "npz: several labels": Case(
        npz(every("labels", lambda labels: np.ones((len(labels), 3), int))), refused="multi-label"
    ),
    "npz: volumes": Case(
        npz(every("images", lambda images: np.resize(images, (len(images), 5, 5, 5)))), settles=("input-shape=5x5x5",)
    ),
    "npz that is a CSV file": Case(table_as_npz, refused="is text, a table by its commas: --set"),
    "npy of one array": Case(single_array, refused="holds one array: must be an npz file"),
    "folder of 8 bits, with .DS_Store": Case(tree(eight_bits, ".png", extra=left_behind)),
    "folder: 16-bit PNG": Case(tree(sixteen_bits, ".png"), ("images of more than 8 bits",)),
    "folder: 12 bits in 16-bit PNG": Case(tree(twelve_bits, ".png"), settles=("pixel-range=0,4095",)),
    "folder: 12 bits in 16-bit TIFF, a class of them": Case(
        tree(lambda file, k: (sixteen_bits if k < 8 else twelve_bits)(file, k), ".tif"), ("more than 8 bits",)
    ),
    "folder: 16-bit TIFF": Case(tree(sixteen_bits, ".tif"), ("images of more than 8 bits",)),
    "folder: float TIFF in 0..1": Case(tree(floats(1), ".tif"), ("images of more than 8 bits",)),
    "folder: float TIFF beyond": Case(tree(floats(100), ".tif"), settles=("pixel-range=",)),
    "folder: DICOM with a window": Case(tree(dicom("MR_small.dcm"), ".dcm"), ("more than 8 bits",), module="pydicom"),
    "folder: signed DICOM without one": Case(
        tree(dicom("CT_small.dcm"), ""), settles=("pixel-range=-896,1167",), module="pydicom"
    ),
    "folder: DICOM of two sizes": Case(
        tree(dicom("MR_small.dcm"), ".dcm", extra=two_sizes),
        settles=("input-shape=1x64x64", "pixel-range=-896,"),
        module="pydicom",
    ),
    "folder: color DICOM": Case(tree(dicom("SC_rgb_rle.dcm"), ".dcm"), module="pydicom"),
    "folder: DICOM of several frames": Case(
        tree(dicom("rtdose_rle.dcm"), ".dcm"), settles=("frame=middle", "pixel-range=0,2097151"), module="pydicom"
    ),
    "folder: DICOM without an image": Case(
        tree(dicom("rtplan.dcm"), ".dcm"), refused="is a DICOM file without an image", module="pydicom"
    ),
    "folder: NIfTI slices": Case(
        tree(nifti((6, 5)), ".nii.gz"), settles=("pixel-range=",), module="nibabel"
    ),
    "folder: NIfTI volumes": Case(
        tree(nifti((6, 5, 4)), ".nii"), settles=("frame=middle", "pixel-range="), module="nibabel"
    ),
    "folder: unicode names": Case(tree(eight_bits, ".png", UMLAUT)),
    "folder: a comma in a class": Case(tree(eight_bits, ".png", ("a,b", "c"))),
    "folder: nested": Case(tree(eight_bits, ".png", extra=nested), ("images in folders inside it are of class",)),
    "folder: no test set": Case(tree(eight_bits, ".png", splits=("",)), ("a fifth of every class",)),
    "folder: train without test": Case(tree(eight_bits, ".png", splits=("train",)), refused="dataset=folder:"),
    "folder: empty class": Case(tree(eight_bits, ".png", extra=empty_class), ("class bird has no image",)),
    "folder: class of one image": Case(tree(eight_bits, ".png", extra=one_image_class)),
    "folder: an image cut short": Case(tree(eight_bits, ".png", extra=cut_image), refused="a PNG image, damaged: "),
    "folder: text among images": Case(
        tree(eight_bits, ".png", extra=file_in_class("notes.txt", b"see page 3\n")),
        refused="notes.txt: cannot be read as an image: is text",
    ),
    "folder: an empty file": Case(tree(eight_bits, ".png", extra=file_in_class("9.png", b"")), refused="is empty"),
    "folder: a web page as JPEG": Case(
        tree(eight_bits, ".png", extra=file_in_class("9.jpg", b"<!DOCTYPE html><p>404")), refused="is a web page"
    ),
    "folder of sites": Case(several_sites, refused="dataset=domains:folder:"),
    "csv: sites and patients": Case(
        rows("path", "label", "site", "patient", "age"),
        ("the 2 sites of column site are the clients", "24 patients by column patient", "not used: age"),
    ),
    "csv: a label by another name": Case(
        rows("path", "diagnosis"), settles=("columns=label=diagnosis",)
    ),
    "csv: two labels": Case(rows("path", "label", "diagnosis"), settles=("columns=label=label",)),
    "csv: numbers": Case(numbers),
    "csv: numbers of sites and patients": Case(
        cells("size,label,site,patient"),
        ("the 2 sites of column site are the clients", "24 patients by column patient"),
    ),
    "csv: numbers, patients by another name": Case(
        cells("size,label,site,patient_id"), ("if it is the patient: --set 'columns=patient=patient_id'",),
    ),
    "csv: semicolons and decimal commas": Case(
        cells("size,label,site,patient", ";"), ("semicolons separate the columns, and a comma in a number is its",),
    ),
    "csv: images by other names": Case(
        named_otherwise, ("the 2 sites of column hospital",), settles=("columns=path=image,site=hospital",)
    ),
    "hf: a folder of the datasets library": Case(
        hugging_face("image", "label", "hospital"), ("a fifth does",), module="datasets"
    ),
    "hf: without a label": Case(
        hugging_face("image", "hospital"), refused="0 columns look like labels", module="datasets"
    ),
}  # fmt: skip
