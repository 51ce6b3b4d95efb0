"""The contents of every reader: one small file of each kind, and the hashes of what `data.load` makes of it.

A second table has the samples that every partition draws.

    python -m pytest tests/data/test_readers.py
    PYTHONPATH=.:tests:tests/data python tests/data/test_readers.py

The second command writes tests/golden/readers.json anew, after a change that is meant. Numbers are bytes, or float32 of
exact arithmetic, so that the hashes are those of any machine. ABIDE's correlations alone are rounded.
"""

import csv
import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import dicom_files
import layouts
import numpy as np
import pytest
from layouts import ClassLabel, Value, noise, part_of, write_image, write_npz
from PIL import Image

from data import DataSettings, federate, load
from data.partition_files import save_partition
from data.readers.catalog import KNOWN, is_own, members
from data.readers.image_files import ImageFiles
from data.readers.user_data import KINDS
from data.settings import PARTITIONS

TABLE = Path(__file__).parents[1] / "golden" / "readers.json"


# ---- what is written -------------------------------------------------------------------------------------------------


def named(name, write, **stated):
    """Files of a data set's own layout below data-root."""

    def written(folder, patch):
        write(folder)
        return DataSettings(name, str(folder), **stated)

    return written


def cifar(name, *lists):
    def written(folder, patch):
        layouts.write_cifar(folder, patch, name, lists)
        return DataSettings(name, str(folder))

    return written


def mat(folder, prefix, first):
    def write(root):
        for key, number in (("train", 13), ("test", 4)):
            file = root / folder / f"{prefix}{key}_32x32.mat"
            layouts.write_mat(file, number, first, number)

    return write


def own(kind, write, **stated):
    """A file or folder of one's own. Images have 6x5 pixels, and there are two classes."""

    def written(folder, patch):
        settings = {"classes": "a,b", "input_shape": "1x6x5", **stated}
        return DataSettings(f"{kind}:{write(folder)}", **settings)

    return written


def npz(**more):
    def write(folder):
        write_npz(folder / "own.npz", (6, 5), classes=2, **more)
        return folder / "own.npz"

    return write


def arrays(**more):
    def write(folder):
        np.savez(folder / "own.npz", **more)
        return folder / "own.npz"

    return write


VECTORS = np.arange(30, dtype=np.float32).reshape(10, 3) ** 2 / 8
WITH_GAPS = np.where(VECTORS[4, 1] == VECTORS, np.nan, VECTORS)
LABELS = np.arange(10) % 2
HALVES = {"train_labels": LABELS[:7], "test_labels": LABELS[7:], "columns": np.array(list("xyz"))}
SPREAD = noise(7, 20, 6, 5).astype(np.int16) - 100


def tree(pixels, *sides):
    """PNG files in folders of classes, and in folders of sides where there are any."""

    def write(folder):
        for place, side in enumerate(sides or ("",)):
            for label, name in enumerate("ab"):
                (folder / "own" / side / name).mkdir(parents=True)
                for k in range(5):
                    image = Image.fromarray(pixels(10 * place + 5 * label + k))
                    image.save(folder / "own" / side / name / f"{k}.png")
        return folder / "own"

    return write


def nifti(folder):
    """Volumes whose first axis goes to the left of the body."""
    import nibabel

    for label, name in enumerate("ab"):
        (folder / "own" / name).mkdir(parents=True)
        for k in range(5):
            volume = noise(10 * label + k, 5, 6, 3).astype(np.int16)
            image = nibabel.Nifti1Image(volume, np.diag([-1.0, 1, 1, 1]))
            nibabel.save(image, folder / "own" / name / f"{k}.nii.gz")
    return folder / "own"


def dicom(folder):
    """Two images of each of ten patients in folders of classes."""
    for k in range(20):
        file = folder / "own" / "ab"[k // 2 % 2] / f"IM{k:02}"
        dicom_files.write_image(file, k, PatientID=f"P{k // 2}")
    return folder / "own"


CELLS = {
    "size": lambda k: str(k / 4),
    "dose": lambda k: "" if k == 7 else str(k % 7),
    "label": lambda k: "ab"[k // 2 % 2],
    "site": lambda k: "NS"[k // 12],
    "patient": lambda k: f"p{k // 2}",
    "split": lambda k: ("train", "train", "test", "val")[k // 2 % 4],
    "fold": lambda k: str(k // 2 % 3),
}  # fmt: skip
"""What a table of 24 rows has in its columns, by row."""


def table(*columns, image=None):
    """A table of these columns, and of the paths of images where `image` writes them."""

    def write(folder):
        rows = [list(columns) if image is None else ["path", *columns]]
        for k in range(24):
            cells = [CELLS[name](k) for name in columns]
            rows.append(cells if image is None else [image(folder, k), *cells])
        with (folder / "own.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return folder / "own.csv"

    return write


def picture(folder, k):
    write_image(folder / "images" / f"{k}.png", (5, 6), "L", k)
    return f"images/{k}.png"


def scan(folder, k):
    dicom_files.write_image(folder / "images" / f"{k}", k, PatientID=f"P{k // 2}")
    return f"images/{k}"


def library(folder, patch):
    """Splits of the datasets library, with a hospital for each row."""
    columns = {"label": (ClassLabel("ab"), [0, 1] * 4), "site": (Value(), [*"NNSSNNSS"])}
    parts = {
        key: part_of(noise(place, 8, 6, 5), **columns)
        for place, key in enumerate(("train", "validation", "test"))
    }
    layouts.save_parts(folder / "own", patch, parts)
    return own("hf", lambda folder: folder / "own")(folder, patch)


def several(*writes, **stated):
    """Files of one's own as the domains of one problem."""

    def written(folder, patch):
        names = []
        for number, (kind, write) in enumerate(writes):
            (folder / f"{number}").mkdir()
            path = write(folder / f"{number}")
            names.append(f"{kind}:{path.rename(path.with_name(f'{number}{path.suffix}'))}")
        settings = {"classes": "a,b", "input_shape": "1x6x5", **stated}
        return DataSettings(f"domains:{','.join(names)}", **settings)

    return written


SMALL = {"input_shape": "3x8x8"}
TWO, THREE = {"input_shape": "2"}, {"input_shape": "3"}
SCANS = {"input_shape": "1x8x8"}
READERS = {
    "digits": named("digits", lambda root: None),
    "digits at four scanners": named("digits-scanners", lambda root: None),
    "MNIST": named("mnist", lambda root: layouts.write_idx(root, "MNIST")),
    "Fashion-MNIST": named("fashion-mnist", lambda root: layouts.write_idx(root, "FashionMNIST")),
    "USPS": named("usps", layouts.write_usps),
    "CIFAR-10": cifar("cifar10", "data_batch_1", "data_batch_2", "test_batch"),
    "CIFAR-100": cifar("cifar100", "train", "test"),
    "SVHN": named("svhn", mat("SVHN", "", 1)),
    "SynthDigits": named("synthdigits", mat("SynthDigits", "synth_", 0)),
    "MNIST-M": named("mnist-m", layouts.write_mnist_m),
    "CINIC-10": named("cinic10", layouts.write_cinic),
    "Tiny ImageNet": named("tiny-imagenet", layouts.write_tiny_imagenet),
    "ImageNet-LT": named("imagenet-lt", lambda root: layouts.write_imagenet_lt(root, 8), **SMALL),
    "Office-Caltech10, FedBN's recipe": named(
        "office-caltech10",
        lambda root: layouts.write_office(root, {"amazon": 6, "caltech": 6, "dslr": 5, "webcam": 6}),
        recipe="fedbn",
        **SMALL,
    ),
    "PACS": named("pacs", lambda root: layouts.write_pacs(root, 5), **SMALL),
    "DomainNet": named(
        "domains:domainnet-clipart,domainnet-sketch",
        lambda root: layouts.write_domainnet(root, 4),
        **SMALL,
    ),
    "ABIDE": named("abide", lambda root: layouts.write_abide(root, 5), input_shape="10"),
    "npz": own("npz", npz()),
    "npz with validation and subjects": own(
        "npz",
        npz(
            val_images=noise(5, 4, 6, 5), val_labels=np.array([0, 0, 1, 1]),
            train_subjects=np.arange(20) % 10 + 3, test_subjects=np.arange(10) % 2 + 40,
        ),
    ),
    "npz of vectors with gaps": own(
        "npz",
        arrays(train_images=WITH_GAPS[:7], test_images=WITH_GAPS[7:], **HALVES),
        missing="median", **THREE,
    ),
    "npz of signed numbers, names and channels first": own(
        "npz",
        arrays(
            train_images=SPREAD[:14, None], train_labels=np.array(["b", "a"] * 7),
            test_images=SPREAD[14:, None], test_labels=np.array(["b", "a"] * 3),
        ),
        pixel_range="-100,155",
    ),
    "medmnist": own(
        "medmnist",
        lambda folder: npz(val_images=noise(5, 4, 6, 5), val_labels=np.arange(4)[:, None] % 2)(
            folder
        ).rename(folder / "toymnist.npz").with_suffix(""),
    ),
    "folder": own("folder", tree(lambda k: noise(k, 6, 5), "train", "test", "val")),
    "folder without sides": own("folder", tree(lambda k: noise(k, 6, 5)), test_fold=3),
    "folder of DICOM": own("folder", dicom, **SCANS),
    "folder of NIfTI": own("folder", nifti, frame="middle", pixel_range="0,255"),
    "csv": own("csv", table("size", "dose", "label"), missing="drop", **TWO),
    "csv of sites and patients": own("csv", table("size", "label", "site", "patient"), input_shape="1"),
    "csv of splits, gaps filled": own(
        "csv", table("dose", "label", "size", "split"), missing="median", **TWO
    ),
    "csv of folds": own("csv", table("size", "label", "fold"), test_fold=2, input_shape="1"),
    "csv of images": own("csv", table("label", "site", "patient", image=picture)),
    "csv of DICOM": own("csv", table("label", image=scan), **SCANS),
    "hf": library,
    "domains of tables": several(
        ("csv", table("size", "dose", "label")), ("csv", table("dose", "size", "label", "patient")),
        missing="median", **TWO,
    ),
    "domains of images": several(("npz", npz()), ("folder", tree(lambda k: noise(k, 6, 5), "train", "test"))),
}  # fmt: skip
"""By name, what writes the files and says how they are read."""


# ---- what is read ----------------------------------------------------------------------------------------------------


def reader_of(name):
    """The reader of one data set: its kind, its layout, or its class of torchvision."""
    if is_own(name):
        return name.split(":")[0]
    known = KNOWN[name]
    return known.torchvision_class if known.layout == "torchvision" else known.layout


def hash_of(array):
    """An array's type, shape and the beginning of its hash."""
    if isinstance(array, ImageFiles):
        array = array.decoded()
    content = np.ascontiguousarray(array)
    digest = hashlib.sha256(content.tobytes()).hexdigest()[:16]
    return f"{content.dtype} {'x'.join(map(str, content.shape))} {digest}"


HASHED = {"inputs": "inputs", "labels": "labels", "sites": "domains", "patients": "subjects"}
"""What the table calls an array, and its name in the split."""


def described(data):
    """Return hashes of all that a data set holds, on every side, and what it says of itself."""
    if data.name.startswith("abide"):  # sums of floats, which processors round differently
        rounded = {
            side: replace(split, inputs=np.rint(split.inputs * 6).astype(np.int8))
            for side, split in (("train", data.train), ("test", data.test))
        }
        data = replace(data, **rounded)
    readers = sorted(set(map(reader_of, members(data.name))))
    result = {"read by": readers}
    splits = {"train": data.train, "test": data.test, "val": data.val}
    for what, field in HASHED.items():
        there = {side: getattr(split, field) for side, split in splits.items() if split}
        hashes = {side: hash_of(array) for side, array in there.items() if array is not None}
        if hashes:
            result[what] = hashes
    if data.tests_subjects:
        result["tested as one"] = {"test": hash_of(data.test.subjects)}
    stated = {
        "classes": data.class_names if data.num_classes < 20 else [data.num_classes],
        "shape": data.shape,
        "mean": data.mean,
        "std": data.std,
        "sites' names": data.domain_names,
        "columns": data.input_columns,
        "medians": data.medians.values(),
    }
    return result | {key: ", ".join(map(str, value)) for key, value in stated.items() if value}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_gives_what_it_gave_before(name, tmp_path, monkeypatch):
    before = json.loads(TABLE.read_text())["readers"][name]
    data = load(READERS[name](tmp_path, monkeypatch))
    assert described(data) == before


def test_every_reader_has_a_row():
    rows = json.loads(TABLE.read_text())["readers"]
    assert rows.keys() == READERS.keys()
    assert {reader for row in rows.values() for reader in row["read by"]} == {
        *KINDS,
        *map(reader_of, KNOWN),
    }


# ---- how it is shared out --------------------------------------------------------------------------------------------

DIGITS = {"clients": 20, "train_images": 800}
SCANNERS = {"dataset": "digits-scanners"}
PATIENTS = {"dataset": "patients", "clients": 2, "partition": "iid"}
FEDERATIONS = {
    "lda": {**DIGITS, "partition": "lda", "alpha": 0.5, "min_samples": 2},
    "lda of plain shares": {"partition": "lda", "lda_form": "plain", "clients": 5, "min_samples": 2},
    "lda of a tiny alpha": {"partition": "lda", "alpha": 1e-300, "clients": 3},
    "iid": {**DIGITS, "partition": "iid", "test_images": 95},
    "feddf": {**DIGITS, "partition": "feddf", "alpha": 0.5, "clients": 25},
    "llt": {**DIGITS, "partition": "llt", "alpha": 0.9},
    "quantity": {**DIGITS, "partition": "quantity", "alpha": 0.5, "min_samples": 2},
    "classes-per-client": {**DIGITS, "partition": "classes-per-client", "classes_per_client": 3},
    "domains": SCANNERS,
    "parts of domains": {**SCANNERS, "parts_per_domain": 3},
    "shares of domains": {**SCANNERS, "domain_percent": 30.0},
    "few of domains": {**SCANNERS, "domain_percent": 5.0},
    "pooled": {"partition": "pooled", "train_images": 103},
    "long tail": {"imbalance_factor": 10.0, "largest_class": 100, "min_samples": 5},
    "hold-out": {"clients": 20, "min_samples": 2, "holdout_per_class": 7},
    "hold-out of domains": {**SCANNERS, "holdout_per_class": 2, "train_images": 100},
    "validation": {"clients": 8, "alpha": 0.5, "validation_fraction": 0.3},
    "validation of domains in the test set's place": {
        **SCANNERS, "validation_fraction": 0.25, "evaluate_on": "validation"
    },
    "patients held out": {**PATIENTS, "holdout_per_class": 3},
    "patients for validation": {**PATIENTS, "validation_fraction": 0.4},
    "file": {"partition_file": "partition.json"},
}  # fmt: skip
"""Settings by name; all partitions are among them."""


def federation_of(stated, folder):
    """Return the federation of a row. `patients` is a table of two rows a patient."""
    if "partition_file" in stated:
        saved = {"clients": 3, "alpha": 0.5}
        save_partition(federate(DataSettings(**saved), 1).train_indices, folder / "partition.json")
        stated = {**stated, "partition_file": str(folder / "partition.json")}
    if stated.get("dataset") == "patients":
        name = f"csv:{table('size', 'label', 'patient')(folder)}"
        stated = {**stated, "dataset": name, "classes": "a,b", "input_shape": "1"}
    return federate(DataSettings(**stated), 7)


def shared_out(federation):
    """Return the size of each client, and hashes of all indices."""
    indices = {
        "test": federation.global_test,
        "hold-out": federation.holdout_indices,
        "training": np.concatenate(federation.train_indices),
        "validation": np.concatenate(federation.validation_indices or [np.zeros(0, np.int64)]),
    }
    hashes = {key: hash_of(array) for key, array in indices.items() if len(array)}
    sizes = ", ".join(str(len(part)) for part in federation.train_indices)
    return {"sizes": sizes, "domains": str(federation.domains), "hash": federation.hash} | hashes


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_federation_is_shared_out_as_it_was_before(name, tmp_path):
    before = json.loads(TABLE.read_text())["federations"][name]
    assert shared_out(federation_of(FEDERATIONS[name], tmp_path)) == before


def test_every_partition_has_a_row():
    stated = {row.get("partition", "auto") for row in FEDERATIONS.values()}
    assert {*stated, "domains", "file"} == set(PARTITIONS)


def write():
    """Write the table."""
    found = {"readers": {}, "federations": {}}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("XDG_CACHE_HOME", cache)
        for name, row in READERS.items():
            with tempfile.TemporaryDirectory() as folder:
                found["readers"][name] = described(load(row(Path(folder), patch)))
        for name, stated in FEDERATIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                found["federations"][name] = shared_out(federation_of(stated, Path(folder)))
    TABLE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(write())
