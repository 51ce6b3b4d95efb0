"""npz files and MedMNIST: what can mean one thing alone is converted, what cannot be used is refused by its array."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import noise, write_npz

from data import DataError, DataSettings, load
from data.errors import SetOption, options_of
from data.readers.user_data import guess_settings


def npz(folder, shape="1x6x5", classes="2", **changed):
    """Ten grey training and five test images of two classes, with other arrays; None leaves one out."""
    arrays = write_npz(folder / "own.npz", (6, 5), 10, 5, classes=2, **changed)
    kept = {key: array for key, array in arrays.items() if array is not None}
    np.savez(folder / "own.npz", **kept)
    return DataSettings(f"npz:{folder}/own.npz", classes=classes, input_shape=shape)


def refused(settings, *words):
    """Return the error of a file, which is one line that names it and holds the words."""
    with pytest.raises(DataError) as caught:
        load(settings)
    said = str(caught.value)
    assert settings.dataset.split(":")[1] in said and "\n" not in said and len(said) < 1500
    assert not [word for word in words if word not in said], said
    return caught.value


def contents(folder, settings):
    return load(replace(settings, cache=str(folder / "cache"))).content


LABELS = {"train_labels": np.arange(10) % 2, "test_labels": np.arange(5) % 2}
IMAGES = {"train_images": noise(0, 10, 6, 5), "test_images": noise(1, 5, 6, 5)}
FLOATS = {key: (part / 255).astype(np.float32) for key, part in IMAGES.items()}
SAME = {
    "labels (N, 1)": ({key: part[:, None] for key, part in LABELS.items()}, {}, {}),
    "names in another order": (
        {key: np.array(["cat", "dog"])[1 - part] for key, part in LABELS.items()}, {"classes": "dog,cat"}, {}
    ),
    "16 bits": (
        {key: part.astype(np.uint16) * 257 for key, part in IMAGES.items()}, {"pixel_range": "0,65535"}, FLOATS
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_what_can_mean_one_thing_alone_is_converted(tmp_path, case):
    changed, stated, expected = SAME[case]
    plain = contents(
        tmp_path, npz(tmp_path, **IMAGES, **LABELS) if not expected else npz(tmp_path, **expected)
    )
    changed = {**IMAGES, **LABELS, **changed}
    assert contents(tmp_path, replace(npz(tmp_path, **changed), **stated)) == plain


NAN = np.zeros((10, 6, 5), np.float32)
NAN[4, 2, 1] = np.nan
REFUSED = {
    "a negative label": ({"test_labels": np.arange(5) - 1}, "test_labels: label -1"),
    "broken labels": ({"train_labels": np.arange(10) / 2}, "train_labels: dtype float64"),
    "one-hot labels": ({"train_labels": np.eye(2, dtype=int)[[0, 1] * 5]}, "train_labels: dtype int64, shape (10, 2)"),
    "several labels": ({"train_labels": np.ones((10, 2), int)}, "train_labels: dtype int64, shape (10, 2)"),
    "an unknown name": ({"train_labels": np.array(["cat", "dog"] * 5)}, "train_labels: 'cat'"),
    "a missing name": ({"train_labels": np.array(["0", "nan"] * 5)}, "'nan' at index 1"),
    "not a number": ({"train_images": NAN, "test_images": NAN[5:]}, "train_images: NaN"),
    "two channels": ({"train_images": np.zeros((10, 6, 5, 2), np.uint8)}, "2 channels"),
    "no image": (
        {"train_images": np.zeros((0, 6, 5), np.uint8), "train_labels": np.zeros(0, int)}, "train_images: no image"
    ),
    "no arrays": ({"train_images": None, "test_labels": None}, "train_images, test_labels missing"),
    "objects": ({"train_labels": np.array([{}] * 10, object)}, "Object arrays"),
    "subjects on two sides": (
        {"train_subjects": np.arange(10), "test_subjects": np.array([20, 3, 22, 23, 24])}, "train_subjects: 3"
    ),
    "subjects of two classes": ({"test_subjects": np.zeros(5, int)}, "test_subjects: 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_cannot_be_used_are_refused_by_name(tmp_path, case):
    """The control is the table of what is converted."""
    changed, words = REFUSED[case]
    refused(npz(tmp_path, **changed), words)


def test_a_refusal_names_the_setting_that_would_help(tmp_path):
    ct = np.linspace(-1000, 400, 300).reshape(10, 6, 5).astype(np.int16)
    (option,) = options_of(refused(npz(tmp_path, train_images=ct)).remedy)
    assert option == SetOption("pixel-range", "-1000,400")
    integers = {key: part.astype(np.int64) for key, part in IMAGES.items()}
    assert options_of(refused(npz(tmp_path, **integers)).remedy)[0].value == "0,255"
    as_floats = {key: (part * 0.8).astype(np.float32) for key, part in IMAGES.items()}
    assert options_of(refused(npz(tmp_path, **as_floats)).remedy)[0].value == "0,255"


def test_labels_from_1_are_asked_about(tmp_path):
    settings = npz(tmp_path, classes="", train_labels=np.arange(10) % 2 + 1)
    assert guess_settings(settings.dataset, settings).settings["classes"] == "3"
    settings = npz(tmp_path, classes="", **{key: part + 1 for key, part in LABELS.items()})
    with pytest.raises(DataError, match="save labels - 1") as caught:
        guess_settings(settings.dataset, settings)
    assert options_of(caught.value.remedy) == [SetOption("classes", "3")]
    settings = replace(settings, classes="3")
    assert guess_settings(settings.dataset, settings).settings["classes"] == "3"


@pytest.mark.parametrize("head", [b"\x80\x04", b"label,x\na,1\n", b""])
def test_a_file_of_another_type_is_refused(tmp_path, head):
    settings = npz(tmp_path)
    (tmp_path / "own.npz").write_bytes(head)
    refused(settings, "cannot be read as an npz file")


# ---- subjects and columns --------------------------------------------------------------------------------------------


def test_subjects_are_those_of_the_file(tmp_path):
    train = {"train_subjects": np.arange(10) % 4 + 50}
    test = {"test_subjects": np.array([7, 9, 7, 9, 7])}
    data = load(npz(tmp_path, **train, **test))
    assert np.unique(data.train.subjects, return_inverse=True)[1].tolist() == [0, 1, 2, 3] * 2 + [
        0,
        1,
    ]
    assert data.tests_subjects and data.test.subjects.tolist() == [0, 1, 0, 1, 0]
    unsaid = load(npz(tmp_path, **test))
    assert unsaid.train.subjects is None and unsaid.test.subjects is not None
    assert not load(npz(tmp_path, **train)).tests_subjects


def test_a_member_that_hides_its_training_subjects_hides_them_for_all(tmp_path):
    """Samples of its subjects could otherwise be on both sides of a cut, each counted as a subject of its own."""
    members = []
    test = {"test_subjects": np.array([7, 9, 7, 9, 7])}
    for name, train in (("north", {"train_subjects": np.arange(10) % 4 + 50}), ("south", {})):
        write_npz(tmp_path / f"{name}.npz", (6, 5), 10, 5, classes=2, **train, **test)
        members.append(f"npz:{tmp_path}/{name}.npz")
    settings = DataSettings(f"domains:{','.join(members)}", classes="2", input_shape="1x6x5")
    data = load(settings)
    assert data.train.subjects is None and len(set(data.test.subjects.tolist())) == 4
    shown = replace(settings, dataset=f"domains:{members[0]},npz:{tmp_path}/known.npz")
    write_npz(tmp_path / "known.npz", (6, 5), 10, 5, classes=2)
    refused(shown, f"known.npz: test_subjects: is missing, and is in {tmp_path}/north.npz")
    write_npz(
        tmp_path / "known.npz", (6, 5), 10, 5, classes=2, train_subjects=np.arange(20, 30), **test
    )
    known = load(shown)
    assert known.tests_subjects and len(set(known.train.subjects.tolist())) == 4 + 10


def test_gaps_in_vectors_are_refused_or_filled(tmp_path):
    train = np.arange(20, dtype=np.float32).reshape(10, 2)
    train[2, 1] = np.nan
    settings = npz(
        tmp_path, "2", train_images=train, test_images=train[:5], columns=np.array(["age", "bmi"])
    )
    for missing in ("refuse", "drop"):
        error = refused(replace(settings, missing=missing), "NaN or infinite number at index 2")
        assert options_of(error.remedy) == [SetOption("missing", "median")]
    data = load(replace(settings, missing="median"))
    assert data.medians == {"age": 9.0, "bmi": 11.0}
    assert data.train.inputs[2, 1] == data.test.inputs[2, 1] == 11.0
    for names in (["age", "age"], ["age"], ["age", ""]):
        parts = {"train_images": train, "test_images": train[:5], "columns": np.array(names)}
        refused(replace(npz(tmp_path, "2", **parts), missing="median"), "columns: ")


# ---- MedMNIST --------------------------------------------------------------------------------------------------------


def test_medmnist_is_read_from_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = DataSettings("medmnist:toymnist", "~/.medmnist", classes="2", input_shape="1x6x5")
    refused(settings, "toymnist.npz: there is no such file")
    write_npz(tmp_path / ".medmnist/toymnist.npz", (6, 5), classes=2)
    assert len(load(settings).train.labels) == 20


def test_the_package_of_medmnist_names_the_classes(tmp_path, monkeypatch):
    write_npz(tmp_path / "toymnist_64.npz", (6, 5), classes=2)
    settings = DataSettings("medmnist:toymnist_64", str(tmp_path))
    for info, classes in (
        ({"toymnist": {"label": {"1": "disease", "0": "normal"}}}, "normal,disease"),
        ({}, "2"),
    ):
        monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(INFO=info))
        proposed = {"classes": classes, "input-shape": "1x6x5"}
        assert guess_settings(settings.dataset, settings).settings == proposed
