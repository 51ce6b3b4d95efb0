"""A user's own table: what it becomes, and one sentence for everything that is wrong with it."""

import numpy as np
import pytest

from data import DataError, DataSettings, load
from data.readers.rows import classes_of

ROWS = [f"{k},{k / 4},{'ab'[k % 2]}" for k in range(20)]
HEAD = "size,weight,label"


def table(tmp_path, *lines, text=None, classes="a,b", features="2", ending="\n"):
    path = tmp_path / "cells.csv"
    path.write_bytes(
        (ending.join(lines or (HEAD, *ROWS)) + ending).encode() if text is None else text
    )
    return DataSettings(f"csv:{path}", classes=classes, input_shape=features)


def samples(data):
    """Every split's rows with their label."""
    return {
        key: sorted(
            (*getattr(data, f"{key}_inputs")[i].tolist(), int(label))
            for i, label in enumerate(labels)
        )
        for key, labels in (("train", data.train_labels), ("test", data.test_labels))
    }


def test_rows_are_vectors_split_by_class(tmp_path):
    data = load(table(tmp_path))
    assert (data.shape, data.class_names, data.test_groups) == ((2,), ("a", "b"), None)
    assert np.bincount(data.train_labels).tolist() == [8, 8] and np.bincount(
        data.test_labels
    ).tolist() == [2, 2]
    split = samples(data)
    assert sorted(split["train"] + split["test"]) == [(k, k / 4, k % 2) for k in range(20)]


def test_marks_line_ends_order_of_columns_and_of_classes(tmp_path):
    expected = samples(load(table(tmp_path)))
    assert samples(load(table(tmp_path, HEAD, *ROWS, "", ending="\r\n"))) == expected
    text = b"\xef\xbb\xbf" + "\n".join((HEAD, *ROWS)).encode()
    assert samples(load(table(tmp_path, text=text))) == expected
    first = [f'"{row.split(",")[2]}",{",".join(row.split(",")[:2])}' for row in ROWS]
    assert samples(load(table(tmp_path, " label , size,weight", *first))) == expected
    turned = load(table(tmp_path, classes="b,a"))
    assert sorted((*row[:2], 1 - row[2]) for row in samples(turned)["train"]) == expected["train"]


def test_no_subject_is_on_two_sides(tmp_path):
    rows = [f"{k},0,{'ab'[k // 4 % 2]},s{k // 4}" for k in range(40)]
    data = load(table(tmp_path, f"{HEAD},subject", *rows))
    train, test = (np.unique(data.train_inputs[:, 0] // 4), np.unique(data.test_inputs[:, 0] // 4))
    assert not set(train) & set(test) and (len(train), len(test)) == (8, 2)
    assert len(np.unique(data.test_groups)) == 2 and np.bincount(data.test_labels).tolist() == [
        4,
        4,
    ]


REFUSED = {
    "empty": ([""], "is empty; its first row must name the columns"),
    "no label": (
        ["size,class", "1,a"],
        "there is no column 'label', only size, class; if that is it: --set 'columns=label=class'",
    ),
    "twice": (
        ["size,size,label", "1,2,a"],
        "column 'size': every column must have a name of its own",
    ),
    "no name": (["size,,label", "1,2,a"], "column '': every column must have a name of its own"),
    "no numbers": (["label,subject", "a,1"], "there is no column of numbers beside label"),
    "ragged": ([HEAD, ROWS[0], "1,a"], "row 3: has 2 cells, and there are 3 columns"),
    "word": ([HEAD, ROWS[0], "1,big,a"], "row 3, column weight: 'big': must be a finite number"),
    "nothing": ([HEAD, "1,,a"], "row 2, column weight: is empty: --set missing=drop leaves out"),
    "nan": ([HEAD, "nan,1,a"], "row 2, column size: 'nan' is a missing value: --set missing="),
    "infinity": ([HEAD, "1,-inf,a"], "row 2, column weight: '-inf': must be a finite number"),
    "too large": ([HEAD, "1,1e39,a"], "row 2, column weight: '1e39': must be a finite number"),
    "underscore": ([HEAD, "1_0,1,a"], "row 2, column size: '1_0': must be a finite number"),
    "no class": ([HEAD, "1,1, "], "row 2, column label: is empty"),
    "one class": ([HEAD, "1,1,a", "1,2,a"], "column label: 2 rows of 1 classes: at least 2"),
    "no row": ([HEAD], "column label: 0 rows of 0 classes: at least 2"),
    "another class": ([HEAD, "1,1,a", "1,2,c"], "column label: 'c': must be one of classes = a, b"),
    "torn subject": (
        [f"{HEAD},subject", "1,1,a,s", "1,2,b,s"],
        "column subject: 's': has rows of several classes",
    ),
    "a class of one": ([HEAD, *ROWS[:5:2], ROWS[1]], "cannot be split 80 to 20 by class"),
    "quotes": ([HEAD, '1,"2"x,a'], "cannot be read as a CSV file in UTF-8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_one_sentence(tmp_path, case):
    lines, rule = REFUSED[case]
    with pytest.raises(DataError) as refusal:
        load(table(tmp_path, *lines))
    assert str(refusal.value).startswith(f"{tmp_path / 'cells.csv'}: {rule}")


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match="cannot be read as a CSV file in UTF-8"):
        load(table(tmp_path, text=b"label,x\n\xff,1\n"))
    settings = table(tmp_path)
    (tmp_path / "cells.csv").unlink()
    with pytest.raises(DataError, match="there is no such file"):
        load(settings)
    with pytest.raises(
        DataError, match=r"each example has shape \(2,\) where input-shape asks for \(1, 2, 2\)"
    ):
        load(table(tmp_path, features="1x2x2"))
    with pytest.raises(DataError, match=r"each example has shape \(2,\)"):
        load(table(tmp_path, features="3"))


def european(row):
    """A row as Excel writes it where the comma is the decimal mark."""
    return row.replace(",", ";").replace(".", ",")


WRITTEN = {
    "semicolons and decimal commas": (lambda row: european(row), "utf-8"),
    "with the byte order mark": (lambda row: european(row), "utf-8-sig"),
    "tabs": (lambda row: row.replace(",", "\t"), "utf-8"),
    "Excel's Unicode text": (lambda row: row.replace(",", "\t").replace(".", ","), "utf-16"),
    "UTF-16 without a mark": (lambda row: row, "utf-16-le"),
    "UTF-16, the other order": (lambda row: row, "utf-16-be"),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_tables_as_spreadsheets_write_them(tmp_path, way):
    expected = samples(load(table(tmp_path)))
    write, encoding = WRITTEN[way]
    text = "\r\n".join(map(write, (HEAD, *ROWS))).encode(encoding)
    assert samples(load(table(tmp_path, text=text))) == expected


def test_the_separator_that_the_file_states_or_the_label_shows(tmp_path):
    expected = samples(load(table(tmp_path)))
    rows = [european(row) for row in (HEAD, *ROWS)]
    assert samples(load(table(tmp_path, "sep=;", *rows))) == expected
    rows[0] = "size, of the cell;weight;label"
    assert samples(load(table(tmp_path, *rows))) == expected
    quoted = ['"size; of the cell",weight,label', *ROWS]
    assert samples(load(table(tmp_path, *quoted))) == expected


UNCLEAR = {
    "two decimal marks": (
        ["size;label", "1,5;a", "1.5;b"],
        "row 3, column size: '1.5': the decimal mark must be a point in every row, or a comma in every row; "
        "row 2, column size: '1,5'",
    ),
    "thousands": (["size;label", "1.234,5;a"], "row 2, column size: '1.234,5': must be a finite number"),
    "a decimal comma between commas": (
        ["size,label", '"1,5",a'],
        "row 2, column size: '1,5': must be a finite number: a decimal comma needs semicolons or tabs",
    ),
    "full-width digits": ([HEAD, "\uff11,1,a"], "row 2, column size: '\uff11': must be a finite number"),
    "images": (
        ["image,label,hospital", "0.png,a,north"],
        "row 2, column image: '0.png': must be a finite number; if it is the image's file: "
        "--set 'columns=path=image,site=hospital'",
    ),
    "a site by another name": (
        ["size,label,Hospital", "1,a,north"],
        "row 2, column Hospital: 'north': must be a finite number; if it is the site: "
        "--set 'columns=site=Hospital'",
    ),
    "a header that no terminal shows": (
        ["a\x1b[31m,b", "1,2"],
        "there is no column 'label', only a\\x1b[31m, b: say which it is: --set 'columns=label=NAME'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
def test_what_is_unclear_is_one_sentence_with_its_cure(tmp_path, case):
    lines, rule = UNCLEAR[case]
    with pytest.raises(DataError) as refusal:
        load(table(tmp_path, *lines, features="1"))
    assert str(refusal.value).startswith(f"{tmp_path / 'cells.csv'}: {rule}")


def test_other_encodings_are_refused_with_what_to_do(tmp_path):
    for text in ("größe,label\n1,a\n".encode("latin-1"), "size,label\n1,a\n".encode("utf-32")):
        with pytest.raises(
            DataError, match=r"in UTF-8: .*; save it as UTF-8 \(in Excel: CSV UTF-8\)"
        ):
            load(table(tmp_path, text=text))


def test_classes_whose_names_are_one_number_have_one_order():
    """By a hash, which is another in every process, it would be another every time."""
    assert classes_of(["01", "1", "\uff11", "2"]) == ["01", "1", "2", "\uff11"]
    assert classes_of(["1", "10", "01", "2"]) == ["01", "1", "2", "10"]
