"""Cells that say that there is no value, and labels that are no classes: refused by row and column, or dropped."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings, federate, load
from data.readers.user_data import guess_settings

COLUMNS = ("size", "label", "site", "patient")
BLANK = ("", "  ", "\xa0", "\t", "\u200b", "\ufeff")
PANDAS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""What pandas.read_csv takes as missing, beside the empty cell."""
OTHERS = (
    "NaT",
    "none",
    "Null",
    "(null)",
    "\\N",
    "n.a.",
    "?",
    "-",
    "--",
    "\u2013",
    "\u2014",
    ".",
    "#VALUE!",
    "#REF!",
)
"""Of pandas' times, databases, ARFF and UCI files, spreadsheets, SAS and Stata."""
NAMES = (
    "unknown",
    "other",
    "missing",
    "no",
    "nil",
    "0",
    "-1",
    "+",
    "Nantes",
    "NA-1",
    "nannan",
    "undefined",
)


def table(folder: Path, **changed: str) -> DataSettings:
    """A CSV file of 48 rows, of which the one at line 6 has other cells."""
    path = folder / "cells.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for k in range(48):
            row = {"size": str(k), "label": "ab"[k // 4 % 2], "site": "NS"[k // 2 % 2]}
            row["patient"] = f"p{k // 2}"
            if k == 4:
                row |= changed
            writer.writerow([row[name] for name in COLUMNS])
    return DataSettings(f"csv:{path}", classes="a,b", input_shape="1", cache=str(folder / "cache"))


@pytest.mark.parametrize("column", ["label", "site", "patient"])
@pytest.mark.parametrize("cell", [*BLANK, *PANDAS, *OTHERS], ids=ascii)
def test_a_missing_value_is_refused_or_dropped(tmp_path: Path, cell: str, column: str) -> None:
    settings = table(tmp_path, **{column: cell})
    for stated in (settings, replace(settings, classes="")):
        with pytest.raises(DataError) as refusal:
            guess_settings(stated.dataset, stated)
        assert f"row 6, column {column}: " in str(refusal.value)
        assert "--set missing=drop leaves out such rows" in str(refusal.value)
    with pytest.raises(DataError, match=f"row 6, column {column}: "):
        load(settings)

    dropping = replace(settings, missing="drop")
    guess = guess_settings(settings.dataset, replace(dropping, classes=""))
    assert guess.settings["classes"] == "a,b"
    assert any(
        "1 row is left out" in note and f"row 6, column {column}" in note for note in guess.notes
    )
    data = federate(dropping, 0).dataset
    assert data.class_names == ("a", "b") and data.domain_names == ("N", "S")
    sizes = [*np.asarray(data.train_inputs)[:, 0], *np.asarray(data.test_inputs)[:, 0]]
    assert sorted(sizes) == [float(k) for k in range(48) if k != 4]


@pytest.mark.parametrize("cell", NAMES)
def test_a_name_is_no_missing_value(tmp_path: Path, cell: str) -> None:
    assert set(
        guess_settings((settings := table(tmp_path, label=cell)).dataset, settings)
        .settings["classes"]
        .split(",")
    ) == {"a", "b", cell}
    patients = federate(table(tmp_path, patient=cell), 0).dataset
    assert len(patients.train_labels) + len(patients.test_labels) == 48


@pytest.mark.parametrize("cell", ["none", "NA", "-", "?"])
def test_it_is_a_class_where_classes_lists_it(tmp_path: Path, cell: str) -> None:
    settings = replace(table(tmp_path, label=cell), classes=f"a,b,{cell}")
    for missing in ("refuse", "drop"):
        data = load(replace(settings, missing=missing))
        assert len(data.train_labels) + len(data.test_labels) == 48
        assert 2 in [*data.train_labels, *data.test_labels]
    with pytest.raises(DataError, match="row 6, column site"):
        load(replace(table(tmp_path, site=cell), classes=f"a,b,{cell}"))


def test_a_table_of_images_and_a_dropped_row_without_a_file(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines = ["path,label"]
    for k in range(20):
        Image.fromarray(draws.integers(0, 256, (6, 5), np.uint8)).save(tmp_path / f"{k}.png")
        lines.append(f"{k}.png,{'ab'[k % 2]}")
    table = tmp_path / "rows.csv"
    settings = DataSettings(f"csv:{table}", classes="a,b", input_shape="1x6x5")
    for line, column in (("20.png,NA", "label"), ("nan,a", "path")):
        table.write_text("\n".join([*lines, line]))
        with pytest.raises(DataError, match=f"row 22, column {column}: '(NA|nan)' is a missing"):
            load(settings)
        data = load(replace(settings, missing="drop"))
        assert len(data.train_labels) + len(data.test_labels) == 20


def labelled(folder: Path, labels: list[str], **settings: Any) -> DataSettings:
    path = folder / "cells.csv"
    path.write_text("\n".join(["size;label", *(f"{k};{label}" for k, label in enumerate(labels))]))
    return DataSettings(f"csv:{path}", input_shape="1", **settings)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([f"{k / 7:.4f}" for k in range(40)], "40 different numbers in 40 rows"),
        ([f"{k / 7:.4f}".replace(".", ",") for k in range(40)], "40 different numbers in 40 rows"),
        ([f"{k % 30 / 8}" for k in range(300)], "30 different numbers in 300 rows"),
        ([str(k * k) for k in range(40)], "40 different numbers in 40 rows"),
        (["[0]", "[1]"] * 20, r"column label: '\[0\]': is a list"),
        (["['a', 'b']", "['a']"] * 20, "is a list"),
        (["a", *["b", "c"] * 20], "1 of 3 classes have a single sample"),
        (["a", "a", "b", "b", "c", "c"], "a fifth must have one sample of each class"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: list[str], reason: str) -> None:
    settings = labelled(tmp_path, labels)
    with pytest.raises(DataError, match=reason) as refusal:
        guess = guess_settings(settings.dataset, settings)
        load(replace(settings, classes=guess.settings["classes"]))
    assert "least populated" not in str(refusal.value) and "test_size" not in str(refusal.value)


@pytest.mark.parametrize(
    "labels", [["0", "0.5", "1", "2"], [str(k) for k in range(15)], ["1.0", "0.0"]]
)
def test_ratings_and_numbers_are_classes(tmp_path: Path, labels: list[str]) -> None:
    settings = labelled(tmp_path, labels * 10)
    classes = guess_settings(settings.dataset, settings).settings["classes"]
    assert len(load(replace(settings, classes=classes)).train_labels) == 8 * len(labels)


@pytest.mark.parametrize("name", ["", "nan", "None", "NA"])
def test_names_in_an_npz_file(tmp_path: Path, name: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 5), np.uint8)
    labels = np.array(["cat", "dog"] * 6, "<U4")
    labels[3] = name
    arrays = {f"{key}_images": images + key.startswith("test") for key in ("train", "test")}
    np.savez(tmp_path / "own.npz", train_labels=labels, test_labels=labels, **arrays)
    settings = DataSettings(f"npz:{tmp_path / 'own.npz'}", input_shape="1x6x5")
    with pytest.raises(DataError, match=f"train_labels: '{name}' at index 3: is a missing value"):
        guess_settings(settings.dataset, settings)
    if name:
        data = load(replace(settings, classes=f"cat,dog,{name}"))
        assert data.train_labels.tolist().count(2) == 1


# Of the datasets library: splits of (labels, type of the labels, other columns), with what is stated.

CLASSES = ["cat", "dog"]
L = [0, 1] * 12


def saved(folder: Path, splits: dict[str, dict[str, list[Any]]], kind: str) -> DataSettings:
    """What save_to_disk leaves of splits, by their columns beside `image`."""
    datasets = pytest.importorskip("datasets")
    draws = np.random.default_rng(0)
    types = {
        "names": datasets.ClassLabel(names=CLASSES),
        "none": datasets.ClassLabel(names=["none", "a, b"]),
        "texts": datasets.Value("string"),
        "numbers": datasets.Value("int64"),
        "floats": datasets.Value("float64"),
        "lists": datasets.Sequence(datasets.Value("int64")),
    }
    parts = {}
    for key, columns in splits.items():
        size = len(next(iter(columns.values())))
        images = [Image.fromarray(draws.integers(0, 256, (6, 5), np.uint8)) for _ in range(size)]
        features = {"image": datasets.Image()}
        for name in columns:
            features[name] = types[kind] if name == "label" else datasets.Value("string")
        parts[key] = datasets.Dataset.from_dict(
            {"image": images, **columns}, datasets.Features(features)
        )
    whole = datasets.DatasetDict(parts) if len(parts) > 1 else parts["train"]
    whole.save_to_disk(str(folder / "saved"))
    return DataSettings(f"hf:{folder / 'saved'}", input_shape="1x6x5", cache=str(folder / "cache"))


TRAIN = {"label": L}
REFUSED: dict[str, tuple[str, dict[str, dict[str, list[Any]]], tuple[str, ...]]] = {
    "-1 in the test labels": ("names", {"train": TRAIN, "test": {"label": [-1] * 6}},
                              ("its splits are train, test, and none of the 6 rows of split test", "missing=drop")),
    "-1 as a number": ("numbers", {"train": TRAIN, "test": {"label": [-1] * 6}}, ("split test", "missing=drop")),
    "None in the test labels": ("texts", {"train": {"label": ["a", "b"] * 9}, "test": {"label": [None] * 6}},
                                ("split test", "missing=drop")),
    "no label in the first split": ("names", {"test": {"site": ["N"] * 6}, "train": {**TRAIN, "site": ["N"] * 24}},
                                    ("none of the 6 rows of split test has a label", "missing=drop")),
    "no label at all": ("names", {"train": {"label": [-1] * 6}}, ("column label: no row has a label",)),
    "train and validation": ("names", {"train": TRAIN, "validation": {"label": L}},
                             ("there are samples for train, validation, and none for test", "--set 'columns=split='")),
    "an unknown split": ("names", {"train": TRAIN, "test": {"label": L}, "extra": {"label": L}},
                         ("its splits are train, test, extra, and extra is none of", "--set 'columns=split='")),
    "None": ("names", {"train": {"label": [0, 1, None] * 8}},
             ("row 2 (from 0) of split train, column label", "missing=drop")),
    "NA": ("texts", {"train": {"label": ["a", "b", "NA"] * 8}},
           ("row 2 (from 0)", "column label: 'NA'", "missing=drop")),
    "a site": ("names", {"train": {**TRAIN, "site": ["N", None] * 12}},
               ("row 1 (from 0)", "column site", "missing=drop")),
    "a patient": ("names", {"train": {**TRAIN, "patient": ["p", "nan"] * 12}},
                  ("column patient: 'nan'", "missing=drop")),
    "lists": ("lists", {"train": {"label": [[0], [1]] * 12}}, ("column label: is of type", "multi-label")),
    "continuous": ("floats", {"train": {"label": [k / 7 for k in range(24)]}},
                   ("24 different numbers", "must be classes")),
}  # fmt: skip


@pytest.mark.slow  # only `make slow` installs the library
@pytest.mark.parametrize("case", REFUSED)
def test_a_data_set_of_the_library_is_refused_with_what_it_has(tmp_path: Path, case: str) -> None:
    kind, splits, words = REFUSED[case]
    settings = saved(tmp_path, splits, kind)
    with pytest.raises(DataError) as refusal:
        guess = guess_settings(settings.dataset, settings)
        load(replace(settings, classes=guess.settings["classes"]))
    assert not [word for word in words if word not in str(refusal.value)], refusal.value
    assert "network" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "stated", "samples"),
    [
        ("-1 in the test labels", {"missing": "drop"}, 24),
        ("-1 as a number", {"missing": "drop"}, 24),
        ("None in the test labels", {"missing": "drop"}, 18),
        ("no label in the first split", {"missing": "drop"}, 24),
        ("train and validation", {"columns": "split="}, 48),
        ("an unknown split", {"columns": "split="}, 72),
        ("None", {"missing": "drop"}, 16),
        ("NA", {"missing": "drop"}, 16),
        ("NA", {"classes": "a,b,NA"}, 24),
    ],
)
def test_and_taken_with_the_setting_that_it_names(
    tmp_path: Path, case: str, stated: dict[str, str], samples: int
) -> None:
    kind, splits, _ = REFUSED[case]
    settings = replace(saved(tmp_path, splits, kind), **stated)
    guess = guess_settings(settings.dataset, settings)
    data = load(replace(settings, classes=settings.classes or guess.settings["classes"]))
    assert len(data.train_labels) + len(data.test_labels) == samples and len(data.test_labels)
    whole = "missing" in stated and any(
        "left out by missing = drop" in note for note in guess.notes
    )
    assert whole == ("missing" in stated)


@pytest.mark.slow
def test_the_labels_minus_one_and_one_are_classes_and_so_is_a_named_none(tmp_path: Path) -> None:
    settings = saved(
        tmp_path, {"train": {"label": [-1, 1] * 12}, "test": {"label": [-1] * 6}}, "numbers"
    )
    assert guess_settings(settings.dataset, settings).settings["classes"] == "-1,1"
    (tmp_path / "named").mkdir()
    settings = saved(tmp_path / "named", {"train": TRAIN}, "none")
    classes = guess_settings(settings.dataset, settings).settings["classes"]
    assert load(replace(settings, classes=classes)).class_names == ("none", "a, b")


def table_with_gaps(folder: Path, gap: str = "", **settings: Any) -> DataSettings:
    """A CSV file of 40 rows that says who tests: `a` is 0..39 and lacks a value in rows of both sides, `b` has all."""
    path = folder / "gaps.csv"
    lines = ["a,b,split,label"]
    for k in range(40):
        cell = gap if k in (3, 20, 35) else str(k)
        lines.append(f"{cell},{k % 7},{'test' if k >= 30 else 'train'},{'xy'[k % 2]}")
    path.write_text("\n".join(lines))
    usual = {"classes": "x,y", "input_shape": "2", "cache": str(folder / "cache")}
    return DataSettings(f"csv:{path}", **{**usual, **settings})


@pytest.mark.parametrize("gap", ["", " ", "NA", "nan", "?"])
def test_gaps_in_inputs_are_refused_dropped_or_filled_by_the_training_rows(
    tmp_path: Path, gap: str
) -> None:
    with pytest.raises(DataError, match="row 5, column a: ") as refusal:
        load(table_with_gaps(tmp_path, gap))
    for cure in ("missing=drop", "missing=median", "columns=ignore=a"):
        assert cure in str(refusal.value)
    dropped = load(table_with_gaps(tmp_path, gap, missing="drop"))
    assert (len(dropped.train_labels), len(dropped.test_labels)) == (28, 9)
    assert not dropped.medians

    filling = table_with_gaps(tmp_path, gap, missing="median")
    (note,) = [note for note in guess_settings(filling.dataset, filling).notes if "median" in note]
    assert note == "missing = median fills 3 empty cells: 3 of a"
    for _ in range(2):  # read, and from the cached copy
        data = load(filling)
        training = [k for k in range(30) if k not in (3, 20)]
        assert data.medians == {"a": np.median(training), "b": 3.0}
        assert data.train_inputs[3, 0] == data.train_inputs[20, 0] == np.median(training)
        assert data.test_inputs[5, 0] == np.median(training)
        assert data.test_inputs[6, 0] == 36
    ignoring = load(table_with_gaps(tmp_path, gap, columns="ignore=a", input_shape="1"))
    assert ignoring.input_columns == ("b",) and len(ignoring.train_labels) == 30


@pytest.mark.parametrize("gap", [".", "n.a.", "1.#IND"])
def test_a_gap_with_a_point_is_no_number_with_a_decimal_point(tmp_path: Path, gap: str) -> None:
    path = tmp_path / "commas.csv"
    lines = [f"{'xy'[k % 2]};{k},5;{k},25" for k in range(20)]
    usual: dict[str, Any] = {"classes": "x,y", "input_shape": "2", "missing": "drop"}
    settings = DataSettings(f"csv:{path}", **usual)
    path.write_text("\n".join(["label;a;b", *lines, f"x;{gap};3,5"]))
    data = load(settings)
    assert len(data.train_labels) + len(data.test_labels) == 20
    path.write_text("\n".join(["label;a;b", *lines, "x;1.5;3,5"]))
    with pytest.raises(
        DataError, match="the decimal mark must be a point in every row, or a comma"
    ):
        load(settings)


def test_a_column_of_gaps_has_no_median_and_a_label_is_never_filled(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("a,b,label\n" + "\n".join(f"{k},,{'xy'[k % 2]}" for k in range(20)))
    settings = DataSettings(f"csv:{path}", classes="x,y", input_shape="2", missing="median")
    with pytest.raises(DataError, match=r"column b: no training row has a number.*ignore=b"):
        load(settings)
    path.write_text("a,b,label\n" + "\n".join(f"{k},1,{'xy'[k % 2]}" for k in range(20)) + "\n1,1,")
    with pytest.raises(DataError, match="row 22, column label: is empty"):
        load(settings)


def test_vectors_of_npz_follow_the_same_setting(tmp_path: Path) -> None:
    train = np.arange(20, dtype=np.float32).reshape(10, 2)
    train[2, 1] = np.nan
    test = train.copy()
    labels = np.arange(10) % 2
    names = np.array(["age", "bmi"])
    file = tmp_path / "rows.npz"
    np.savez(
        file, train_images=train, train_labels=labels, test_images=test, test_labels=labels, columns=names
    )  # fmt: skip
    settings = DataSettings(f"npz:{file}", classes="2", input_shape="2")
    with pytest.raises(
        DataError, match=r"row 2 .*column bmi: is NaN.*missing=drop.*missing=median"
    ):
        load(settings)
    assert len(load(replace(settings, missing="drop")).train_labels) == 9
    data = load(replace(settings, missing="median"))
    assert data.medians == {"age": 9.0, "bmi": 11.0}
    assert data.train_inputs[2, 1] == data.test_inputs[2, 1] == 11.0


@pytest.mark.parametrize(
    ("columns", "roles", "ignored"),
    [
        ("ignore=a", {}, ("a",)),
        ("label=d,ignore=a,b", {"label": "d"}, ("a", "b")),
        ("ignore=a,ignore=b,label=d", {"label": "d"}, ("a", "b")),
        ('ignore=a,"b, c",site=s', {"site": "s"}, ("a", "b, c")),
        ("ignore=x=y", {}, ("x=y",)),
        ("a,ignore=b", None, None),
        ("label=d,a", None, None),
        ("ignore=", None, None),
        ("ignore=a,a", None, None),
        ("label=a,ignore=a", None, None),
    ],
)
def test_columns_names_those_to_leave_out(columns: str, roles: Any, ignored: Any) -> None:
    if roles is None:
        with pytest.raises(ValueError, match="columns = "):
            DataSettings(columns=columns)
        return
    settings = DataSettings(columns=columns)
    assert (settings.column_names, settings.ignored_columns) == (roles, ignored)
