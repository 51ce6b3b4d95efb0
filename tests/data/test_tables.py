"""Tables of numbers and of images: who is on which side, what a cell may say, and what is refused by row and column."""

import csv
import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings, SettingError, federate, load, resolve
from data.errors import SetOption, options_of
from data.export import save_partition
from data.readers.rows import classes_of, is_missing
from data.readers.user_data import guess_settings

HEAD = "size,weight,label"
ROWS = [f"{k},{k / 4},{'ab'[k % 2]}" for k in range(20)]


def table(folder, *lines, text=None, **stated):
    """Write a table, of 20 rows of two numbers unless it is given."""
    path = folder / "cells.csv"
    path.write_bytes("\n".join(lines or (HEAD, *ROWS)).encode() if text is None else text)
    return DataSettings(f"csv:{path}", **{"classes": "a,b", "input_shape": "2", **stated})


def samples(settings):
    """Every row with its label, by side."""
    data = load(settings)
    sides = ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels))
    return [
        sorted((*row.tolist(), label) for row, label in zip(inputs, labels.tolist(), strict=True))
        for inputs, labels in sides
    ]


def firsts(inputs):
    """The first number of every row."""
    return set(inputs.reshape(len(inputs), -1)[:, 0].tolist())


def refused(settings, *words):
    """Return the error of a table, which is one line that names the file and where in it."""
    with pytest.raises(DataError) as caught:
        load(settings)
    said = str(caught.value)
    assert said.startswith(settings.dataset.split(":")[1]) and "\n" not in said
    assert not [word for word in words if word not in said], said
    return caught.value


# ---- what is written -------------------------------------------------------------------------------------------------


def european(row):
    """A row as Excel writes it where the comma is the decimal mark."""
    return row.replace(",", ";").replace(".", ",")


WRITTEN = {
    "quotes": (lambda row: ",".join(f'"{cell}"' for cell in row.split(",")), "utf-8"),
    "semicolons and decimal commas": (european, "utf-8"),
    "the byte order mark": (european, "utf-8-sig"),
    "Excel's Unicode text": (lambda row: row.replace(",", "\t").replace(".", ","), "utf-16"),
    "UTF-16 without a mark": (lambda row: row, "utf-16-le"),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_tables_as_spreadsheets_write_them(tmp_path, way):
    expected = samples(table(tmp_path))
    write, encoding = WRITTEN[way]
    text = "\r\n".join(map(write, (HEAD, *ROWS))).encode(encoding)
    assert samples(table(tmp_path, text=text)) == expected


def test_the_separator_is_that_which_the_file_states_or_the_label_shows(tmp_path):
    expected = samples(table(tmp_path))
    rows = [european(row) for row in ROWS]
    assert samples(table(tmp_path, "sep=;", european(HEAD), *rows)) == expected
    assert samples(table(tmp_path, "size, of the cell;weight;label", *rows)) == expected
    assert samples(table(tmp_path, '"size; of the cell",weight,label', *ROWS)) == expected
    turned = [",".join(row.split(",")[::-1]) for row in (HEAD, *ROWS)]
    assert samples(table(tmp_path, *turned, "")) == [
        sorted((weight, size, label) for size, weight, label in side) for side in expected
    ]


def test_the_order_of_classes_is_the_settings(tmp_path):
    expected, turned = samples(table(tmp_path)), samples(table(tmp_path, classes="b,a"))
    assert turned[0] == sorted((*row[:2], 1 - row[2]) for row in expected[0])


def test_classes_whose_names_are_one_number_have_one_order():
    """By a hash, which is another in every process, it would be another every time."""
    assert classes_of(["01", "1", "\uff11", "2"]) == ["01", "1", "2", "\uff11"]
    assert classes_of(["1", "10", "01", "2"]) == ["01", "1", "2", "10"]


REFUSED = {
    "empty": ([""], ""),
    "twice": (["size,size,label", "1,2,a"], "column 'size'"),
    "no name": (["size,,label", "1,2,a"], "column ''"),
    "no numbers": (["label,subject", "a,1"], "label"),
    "ragged": ([HEAD, ROWS[0], "1,a"], "row 3"),
    "infinity": ([HEAD, "1,-inf,a"], "row 2, column weight: '-inf'"),
    "full-width digits": ([HEAD, "\uff11,1,a"], "row 2, column size"),
    "two decimal marks": (["size;label", "1,5;a", "1.5;b"], "row 3, column size: '1.5'"),
    "a comma between commas": (["size,label", '"1,5",a'], "row 2, column size: '1,5'"),
    "one class": ([HEAD, "1,1,a", "1,2,a"], "column label: 2 rows of 1 classes"),
    "a class of one": ([HEAD, *ROWS[:5:2], ROWS[1]], "1 of 2 classes have a single sample"),
    "too few to test": ([HEAD, "1,1,a", "2,2,a", "3,3,b", "4,4,b"], "a fifth"),
    "torn subject": ([f"{HEAD},subject", "1,1,a,s", "1,2,b,s"], "column subject: 's'"),
    "two labels": (["size,label,diagnosis", "1,a,b"], "columns label and diagnosis"),
    "an unknown split": ([f"{HEAD},split", "1,1,a,x", "1,2,b,x"], "column split: 'x'"),
    "split and fold": ([f"{HEAD},split,fold", "1,1,a,train,1", "1,2,b,test,2"], "columns split and fold"),
    "patient on two sides": (
        [f"{HEAD},patient,split", "1,1,a,p,train", "1,2,b,p,test"], "column patient: 'p'"
    ),
    "a site of one sample": ([f"{HEAD},site", *(f"{row},X" for row in ROWS), "1,1,a,Q"], "site 0"),
    "no test data at a site": (
        [f"{HEAD},site,split", *(f"{row},X,{('train', 'test')[k % 2]}" for k, row in enumerate(ROWS)), "1,1,a,Q,train"],
        "column site: 'Q'",
    ),
    "quotes": ([HEAD, '1,"2"x,a'], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_by_row_and_column(tmp_path, case):
    lines, words = REFUSED[case]
    refused(table(tmp_path, *lines, input_shape="1" if ";" in lines[0] else "2"), words)


def test_files_that_are_none(tmp_path):
    for text in (b"label,x\n\xff,1\n", "größe,label\n1,a\n".encode("latin-1"), b"\0" * 9):
        refused(table(tmp_path, text=text))
    refused(table(tmp_path, input_shape="1x2x2"), "(2,)", "(1, 2, 2)")
    refused(table(tmp_path, input_shape="3"), "(2,)")
    settings = table(tmp_path)
    (tmp_path / "cells.csv").unlink()
    refused(settings)


LABELS = {
    "many fractions": ([f"{k / 7:.4f}" for k in range(40)], False),
    "lists": (["[0]", "[1]"] * 20, False),
    "ratings": (["0", "0.5", "1", "2"] * 10, True),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_no_classes_are_refused(tmp_path, case):
    labels, are_classes = LABELS[case]
    rows = [f"{k};{label}" for k, label in enumerate(labels)]
    settings = table(tmp_path, "size;label", *rows, classes="", input_shape="1")
    if not are_classes:
        with pytest.raises(DataError):
            guess_settings(settings.dataset, settings)
        return
    classes = guess_settings(settings.dataset, settings).settings["classes"]
    data = load(replace(settings, classes=classes))
    assert data.num_classes == len(set(labels)) and len(data.train_labels) == 0.8 * len(labels)


# ---- sites, patients and sides ---------------------------------------------------------------------------------------


def pictures(folder, *columns, **stated):
    """A table of 60 images of 2x2 pixels whose brightness is their row."""
    cells = {
        "label": lambda k: "ab"[k // 2 % 2], "site": lambda k: "XYZ"[k % 3], "patient": lambda k: f"p{k // 6}",
        "use": lambda k: ("train", "Test", "valid")[k % 3], "hospital": lambda k: f"H{k // 3 % 2}",
        "fold": lambda k: str(k % 3 + 1),
    }  # fmt: skip
    lines = [",".join(["path", *columns])]
    (folder / "images").mkdir(exist_ok=True)
    for k in range(60):
        Image.new("L", (2, 2), k).save(folder / "images" / f"{k}.png")
        lines.append(",".join([f"images/{k}.png", *(cells[name](k) for name in columns)]))
    return table(folder, *lines, **{"input_shape": "1x2x2", **stated})


def test_sites_are_clients_and_no_patient_is_on_two_sides(tmp_path):
    settings = resolve(pictures(tmp_path, "label", "site", "patient"))
    assert (settings.partition, settings.clients) == ("domains", 3) and resolve(
        settings
    ) == settings
    federation = federate(settings, 0)
    data = federation.dataset
    assert federation.client_names == ["0 X", "1 Y", "2 Z"]
    for client in range(3):
        here = firsts(federation.train(client).inputs_N), firsts(federation.test(client).inputs_N)
        assert {k % 3 for k in here[0] | here[1]} == {client} and all(here)
    train, test = firsts(data.train_inputs), firsts(data.test_inputs)
    assert train | test == set(range(60)) and not {k // 6 for k in train} & {k // 6 for k in test}
    assert data.test_groups is None  # a patient may have images of several classes
    for inputs, groups in ((data.train_inputs, data.train_groups), (data.test_inputs, data.test_subjects)):  # fmt: skip
        patients = inputs[:, 0, 0, 0] // 6
        assert len(set(zip(groups.tolist(), patients.tolist(), strict=True))) == len(set(patients))
    save_partition(federation, tmp_path / "partition.json")
    saved = replace(settings, partition="auto", partition_file=str(tmp_path / "partition.json"))
    assert federate(saved, 5).hash == federation.hash


def test_the_split_is_by_class_and_by_its_seed_and_each_sample_is_tested_once(tmp_path):
    settings = pictures(tmp_path, "label")
    assert resolve(settings).partition == "lda" and load(settings).train_domains is None
    folds = [firsts(load(replace(settings, test_fold=fold)).test_inputs) for fold in range(5)]
    assert sorted(k for fold in folds for k in fold) == list(range(60))
    assert all(sorted(k // 2 % 2 for k in fold) == [0] * 6 + [1] * 6 for fold in folds)
    assert firsts(load(replace(settings, split_seed=1)).test_inputs) != folds[0]


def test_sides_and_sites_that_columns_of_any_name_say(tmp_path):
    settings = pictures(tmp_path, "label", "use", "hospital", columns="split=use,site=")
    data = load(settings)
    for side, inputs in enumerate((data.train_inputs, data.test_inputs, data.val_inputs)):
        assert firsts(inputs) == {k for k in range(60) if k % 3 == side}
    assert resolve(settings).partition == "lda"
    named = replace(settings, columns="split=use,site=hospital")
    assert federate(named, 0).dataset.domain_names == ("H0", "H1")
    assert resolve(replace(named, unseen_domain="H1")).clients == 1
    settings = pictures(tmp_path, "label", "fold", test_fold=3)
    assert firsts(load(settings).test_inputs) == {k for k in range(60) if k % 3 == 2}
    (option,) = options_of(refused(replace(settings, test_fold=0), "column fold").remedy)
    assert option == SetOption("test-fold", "1")


# ---- files of images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("images/none.png,a", "row 62: 'images/none.png'"),
        ("images,a", "row 62: 'images'"),
        ("images/0.png,a", "row 62: images/0.png"),
    ],
)
def test_a_row_s_file_is_there_and_once(tmp_path, line, words):
    settings = pictures(tmp_path, "label")
    path = tmp_path / "cells.csv"
    path.write_text(f"{path.read_text()}\n{line}")
    refused(settings, words)


def test_paths_that_lead_out_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    outside = tmp_path / "outside.png"
    Image.new("L", (2, 2), 99).save(outside)
    for path in (outside, os.path.relpath(outside, tmp_path / "in"), "images/link.png"):
        settings = pictures(tmp_path / "in", "label")
        if not (tmp_path / "in/images/link.png").exists():
            (tmp_path / "in/images/link.png").symlink_to(outside)
        file = tmp_path / "in/cells.csv"
        file.write_text(f"{file.read_text()}\n{path},a")
        assert options_of(refused(settings).remedy) == [SetOption("outside-folder", "true")]
        data = load(replace(settings, outside_folder=True))
        assert len(data.train_labels) + len(data.test_labels) == 61


# ---- missing values --------------------------------------------------------------------------------------------------

MISSING = (
    "", "  ", "\xa0", "\t", "\u200b", "\ufeff",
    # of pandas.read_csv
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
    # of databases, ARFF and UCI files, spreadsheets, SAS and Stata
    "NaT", "(null)", "\\N", "n.a.", "?", "-", "--", "\u2013", "\u2014", ".", "#VALUE!", "#REF!",
)  # fmt: skip
NAMES = ("unknown", "other", "missing", "no", "nil", "0", "-1", "+", "Nantes", "NA-1", "nannan")


def cells(folder, **changed):
    """A table of 48 rows, of which the one at line 6 has other cells."""
    path = folder / "cells.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("size", "label", "site", "patient"))
        for k in range(48):
            row = {
                "size": k,
                "label": "ab"[k // 4 % 2],
                "site": "NS"[k // 2 % 2],
                "patient": f"p{k // 2}",
            }
            writer.writerow((row | changed if k == 4 else row).values())
    return DataSettings(f"csv:{path}", classes="a,b", input_shape="1")


def test_what_says_that_there_is_no_value():
    assert [cell for cell in MISSING if not is_missing(cell)] == []
    assert [cell for cell in NAMES if is_missing(cell)] == []
    assert not is_missing("NA", {"NA"})


@pytest.mark.parametrize("cell", ["", "\u200b", "NA"])
@pytest.mark.parametrize("column", ["label", "site", "patient"])
def test_a_missing_value_is_refused_or_dropped(tmp_path, cell, column):
    settings = cells(tmp_path, **{column: cell})
    error = refused(settings, f"row 6, column {column}")
    assert SetOption("missing", "drop") in options_of(error.remedy)
    with pytest.raises(DataError):
        guess_settings(settings.dataset, replace(settings, classes=""))
    dropping = replace(settings, missing="drop")
    assert (
        guess_settings(settings.dataset, replace(dropping, classes="")).settings["classes"] == "a,b"
    )
    data = federate(dropping, 0).dataset
    assert data.domain_names == ("N", "S")
    assert firsts(data.train_inputs) | firsts(data.test_inputs) == set(range(48)) - {4}


def test_a_dropped_row_of_an_image_needs_no_file(tmp_path):
    settings = pictures(tmp_path, "label")
    path = tmp_path / "cells.csv"
    before = path.read_text()
    for line, column in (("60.png,NA", "label"), ("nan,a", "path")):
        path.write_text(f"{before}\n{line}")
        refused(settings, f"row 62, column {column}")
        data = load(replace(settings, missing="drop"))
        assert len(data.train_labels) + len(data.test_labels) == 60


def gaps(folder, gap, **stated):
    """40 rows that say who tests: `a` is 0..39 and lacks a value in rows of both sides, `b` has all."""
    rows = [
        f"{gap if k in (3, 20, 35) else k},{k % 7},{'test' if k >= 30 else 'train'},{'ab'[k % 2]}"
        for k in range(40)
    ]
    return table(folder, "a,b,split,label", *rows, **stated)


def test_gaps_in_inputs_are_refused_dropped_or_filled_by_the_training_rows(tmp_path):
    options = options_of(refused(gaps(tmp_path, "NA"), "row 5, column a").remedy)
    assert {(option.key, option.value) for option in options} >= {
        ("missing", "drop"), ("missing", "median"), ("columns", "ignore=a")
    }  # fmt: skip
    dropped = load(gaps(tmp_path, "", missing="drop"))
    assert (len(dropped.train_labels), len(dropped.test_labels)) == (28, 9) and not dropped.medians
    for _ in range(2):  # read, and from the cached copy
        data = load(gaps(tmp_path, "?", missing="median"))
        median = np.median([k for k in range(30) if k not in (3, 20)])
        assert data.medians == {"a": median, "b": 3.0}
        assert data.train_inputs[3, 0] == data.train_inputs[20, 0] == median
        assert data.test_inputs[5:7, 0].tolist() == [median, 36]
    ignoring = load(gaps(tmp_path, "NA", columns="ignore=a", input_shape="1"))
    assert ignoring.input_columns == ("b",) and len(ignoring.train_labels) == 30


def test_a_column_of_gaps_has_no_median_and_a_label_is_never_filled(tmp_path):
    rows = [f"{k},,{'ab'[k % 2]}" for k in range(20)]
    refused(table(tmp_path, HEAD, *rows, missing="median"), "column weight")
    refused(table(tmp_path, HEAD, *ROWS, "1,1,", missing="median"), "row 22, column label")


# ---- names with commas -----------------------------------------------------------------------------------------------


def test_a_name_with_a_comma_stands_in_double_quotes(tmp_path):
    path = tmp_path / "cells.csv"
    hard = ("adenoma, benign", "it's 5\" wide", '"so" called', "carcinoma", "a,,b")
    with path.open("w", newline="") as file:
        header = ("size", "finding, final", "hospital, ward")
        csv.writer(file).writerows([header, *((k, hard[k % 5], "NS"[k // 50]) for k in range(100))])
    roles = '"label=finding, final", "site=hospital, ward"'
    settings = DataSettings(f"csv:{path}", columns=roles, input_shape="1")
    with pytest.raises(SettingError):
        load(settings)
    classes = guess_settings(settings.dataset, settings).settings["classes"]
    once = resolve(replace(settings, classes=classes))
    data = federate(once, 0).dataset
    assert set(data.class_names) == set(hard) and set(data.train_labels.tolist()) == set(range(5))
    assert data.domain_names == ("N", "S") and resolve(once) == once
