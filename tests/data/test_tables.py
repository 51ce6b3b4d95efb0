"""Tables of numbers and of images: who is on which side, what a cell may say, and what is refused by row and column."""

from dataclasses import replace

import numpy as np
import pytest
from dicom_files import write_image
from PIL import Image

from data import DataError, DataSettings, federate, load, resolve
from data.errors import SetOption, options_of
from data.readers.rows import classes_of, is_missing
from data.readers.splits import Split, fifth
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
    sides = ((data.train.inputs, data.train.labels), (data.test.inputs, data.test.labels))
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
    "semicolons and decimal commas": (european, "utf-8"),
    "the byte order mark": (european, "utf-8-sig"),
    "Excel's Unicode text": (lambda row: row.replace(",", "\t").replace(".", ","), "utf-16"),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_tables_as_spreadsheets_write_them(tmp_path, way):
    expected = samples(table(tmp_path))
    write, encoding = WRITTEN[way]
    text = "\r\n".join(map(write, (HEAD, *ROWS))).encode(encoding)
    assert samples(table(tmp_path, text=text)) == expected


@pytest.mark.parametrize("separator", ",;\t")
def test_lines_that_end_by_a_carriage_return_alone(tmp_path, separator):
    """As Excel for the Macintosh writes them."""
    expected = samples(table(tmp_path))
    text = "\r".join((HEAD, *ROWS)).replace(",", separator).encode()
    assert samples(table(tmp_path, text=text)) == expected


def test_y_is_a_coordinate_beside_x_and_another_label(tmp_path):
    expected = samples(table(tmp_path))
    assert samples(table(tmp_path, "x,y,label", *ROWS)) == expected
    error = refused(table(tmp_path, "x,y,diagnosis", *ROWS), "no column 'label'")
    assert [option.value for option in options_of(error.remedy)] == ["label=diagnosis"]


def test_the_label_and_the_site_are_proposed_together(tmp_path):
    rows = [f"{row},{'north' if place % 2 else 'south'}" for place, row in enumerate(ROWS)]
    error = refused(table(tmp_path, "x,y,diagnosis,hospital", *rows), "no column 'label'")
    assert [option.value for option in options_of(error.remedy)] == [
        "label=diagnosis,site=hospital"
    ]


def test_the_separator_is_that_which_the_file_states_or_the_header_holds(tmp_path):
    expected = samples(table(tmp_path))
    rows = [european(row) for row in ROWS]
    assert samples(table(tmp_path, "sep=;", european(HEAD), *rows)) == expected
    assert samples(table(tmp_path, "size, of the cell;weight;label", *rows)) == expected
    # A name with a semicolon in it: the error says what was taken, and how to state another.
    head = HEAD.replace("size", "size (mm;cm)")
    refused(table(tmp_path, head, *ROWS), "row 2", "semicolons", "sep=,")
    assert samples(table(tmp_path, "sep=,", head, *ROWS)) == expected


def test_every_row_of_a_long_table_is_read(tmp_path):
    """Also of one with more rows than the reader of a header looks at."""
    rows = [f"{k},{k / 4},{'ab'[k % 2]}" for k in range(5_000)]
    train, test = samples(table(tmp_path, HEAD, *rows))
    assert len(train) + len(test) == 5_000


def test_classes_whose_names_are_one_number_have_one_order():
    """By a hash, which is another in every process, it would be another every time."""
    assert classes_of(["01", "1", "\uff11", "2"]) == ["01", "1", "2", "\uff11"]


REFUSED = {
    "empty": ([""], ""),
    "twice": (["size,size,label", "1,2,a"], "column 'size'"),
    "ragged": ([HEAD, ROWS[0], "1,a"], "row 3"),
    "full-width digits": ([HEAD, "\uff11,1,a"], "row 2, column size"),
    "two decimal marks": (["size;label", "1,5;a", "1.5;b"], "row 3, column size: '1.5'"),
    "a text with a comma beside points": (["size\tw\tlabel", "1.5\tx, 2\ta", "2.5\ty\tb"], "row 2, column w"),
    "a comma between commas": (["size,label", '"1,5",a'], "row 2, column size: '1,5'"),
    "one class": ([HEAD, "1,1,a", "1,2,a"], "column label: 2 rows of 1 classes"),
    "two labels": (["size,label,diagnosis", "1,a,b"], "columns label and diagnosis"),
    "an unknown split": ([f"{HEAD},split", "1,1,a,x", "1,2,b,x"], "column split: 'x'"),
    "split and fold": ([f"{HEAD},split,fold", "1,1,a,train,1", "1,2,b,test,2"], "column split and column fold"),
    "patient on two sides": (
        [f"{HEAD},patient,split", "1,1,a,p,train", "1,2,b,p,test"], "column patient: 'p'"
    ),
    "subject on two sides": (
        [f"{HEAD},subject,split", "1,1,a,p,train", "1,2,b,p,test"], "column subject: 'p'"
    ),
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


def test_every_row_is_tested_in_one_of_five_folds(tmp_path):
    tested = []
    for fold in range(5):
        train, test = samples(table(tmp_path, test_fold=fold))
        assert len(train) == 16 and {label for *_, label in train} == {0, 1}
        tested += test
    assert sorted(tested) == sorted(train + test)


def test_paths_that_name_one_file_in_two_ways_or_none(tmp_path):
    write_image(tmp_path / "scan", 1)
    again = table(tmp_path, "path,label", "scan,a", "./scan,b", input_shape="1x8x8")
    refused(again, "row 3", "the file of row 2 too")
    too_long = table(tmp_path, "path,label", f"{'x' * 300},a", "scan,b", input_shape="1x8x8")
    refused(too_long, "row 2", "there is no such file")


def test_labels_that_are_no_classes_are_refused(tmp_path):
    def guess(labels):
        rows = [f"{k};{label}" for k, label in enumerate(labels)]
        settings = table(tmp_path, "size;label", *rows, classes="", input_shape="1")
        return guess_settings(settings.dataset, settings).settings["classes"]

    assert guess(["0", "0.5", "1", "2"] * 10) == "0,0.5,1,2"
    with pytest.raises(DataError):
        guess([f"{k / 7:.4f}" for k in range(40)])


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
    federation = federate(settings, 0)
    data = federation.dataset
    assert federation.client_names == ["0 X", "1 Y", "2 Z"]
    for client in range(3):
        here = firsts(federation.train(client).inputs_N), firsts(federation.test(client).inputs_N)
        assert {k % 3 for k in here[0] | here[1]} == {client} and all(here)
    train, test = firsts(data.train.inputs), firsts(data.test.inputs)
    assert train | test == set(range(60)) and not {k // 6 for k in train} & {k // 6 for k in test}
    assert not data.tests_subjects  # a patient may have images of several classes


def test_a_column_subject_beside_that_of_patients_is_no_input(tmp_path):
    """It is of numbers that name people."""
    rows = [f"{row},{k // 2},p{k // 2}" for k, row in enumerate(ROWS)]
    assert load(table(tmp_path, f"{HEAD},subject,patient", *rows)).input_columns == (
        "size",
        "weight",
    )


def test_patients_are_those_that_the_files_name_now(tmp_path):
    """Although their table is as it was."""
    pytest.importorskip("pydicom")
    rows = [f"{k}.dcm,{'ab'[k % 2]}" for k in range(20)]
    settings = table(tmp_path, "path,label", *rows, input_shape="1x8x8")
    for patients in (10, 4):
        for k in range(20):
            write_image(tmp_path / f"{k}.dcm", k, PatientID=f"patient {k % patients}")
        notes = guess_settings(settings.dataset, settings).notes
        assert any(str(note).startswith(f"{patients} patients") for note in notes), notes


def test_columns_that_may_say_who_tests_are_asked_about(tmp_path):
    """Under a name that is not the role's: such a column would be an input, or its split would be drawn anew."""
    rows = [f"{row},{('train', 'test')[k % 2]}" for k, row in enumerate(ROWS)]
    error = refused(table(tmp_path, f"{HEAD},Split", *rows), "row 2, column Split: 'train'")
    assert options_of(error.remedy) == [SetOption("columns", "split=Split")]
    settings = table(tmp_path, f"{HEAD},Fold", *(f"{row},{k % 5}" for k, row in enumerate(ROWS)))
    notes = guess_settings(settings.dataset, settings).notes
    assert any(options_of(note) == [SetOption("columns", "fold=Fold")] for note in notes)
    # Not where one is known already, or `columns` says that there is none.
    both = [f"{row},{('train', 'test')[k % 2]},{k % 5}" for k, row in enumerate(ROWS)]
    settings = table(tmp_path, f"{HEAD},split,Fold", *both)
    notes = guess_settings(settings.dataset, settings).notes
    assert not [note for note in notes if options_of(note) == [SetOption("columns", "fold=Fold")]]
    settings = table(tmp_path, f"{HEAD},split", *rows, columns="split=")
    (option,) = options_of(refused(settings, "column split: 'train'").remedy)
    assert option.value == "split=,ignore=split"


def test_a_site_whose_rows_cannot_be_divided_is_named(tmp_path):
    rows = [f"{row},{('north', 'south')[k == 3]}" for k, row in enumerate(ROWS)]
    refused(table(tmp_path, f"{HEAD},site", *rows), "site south has one sample alone")


def test_the_split_is_by_class_and_each_sample_is_tested_once(tmp_path):
    settings = pictures(tmp_path, "label")
    folds = [firsts(load(replace(settings, test_fold=fold)).test.inputs) for fold in range(5)]
    assert sorted(k for fold in folds for k in fold) == list(range(60))
    assert all(sorted(k // 2 % 2 for k in fold) == [0] * 6 + [1] * 6 for fold in folds)


def test_the_only_patient_of_a_class_trains():
    labels_N, patients_N = np.repeat([0, 1], [10, 1]), np.arange(11)
    for number in range(5):
        split = Split(labels_N, labels_N, "here", "", subjects=patients_N)
        tested_N = fifth(split, DataSettings(test_fold=number))
        assert not tested_N[10] and tested_N.sum() == 2


def test_sides_and_sites_that_columns_of_any_name_say(tmp_path):
    settings = pictures(tmp_path, "label", "use", "hospital", columns="split=use,site=")
    data = load(settings)
    for side, inputs in enumerate((data.train.inputs, data.test.inputs, data.val.inputs)):
        assert firsts(inputs) == {k for k in range(60) if k % 3 == side}
    assert resolve(settings).partition == "lda"
    refused(
        replace(settings, test_fold=1), "test-fold = 1: has no effect, as column use says who tests"
    )
    assert load(replace(settings, columns="split=use,site=hospital")).domain_names == ("H0", "H1")
    settings = pictures(tmp_path, "label", "fold", test_fold=3)
    assert firsts(load(settings).test.inputs) == {k for k in range(60) if k % 3 == 2}
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
    for path in (outside, "../outside.png"):
        settings = pictures(tmp_path / "in", "label")
        file = tmp_path / "in/cells.csv"
        file.write_text(f"{file.read_text()}\n{path},a")
        data = load(settings)
        assert len(data.train.labels) + len(data.test.labels) == 61


# ---- missing values --------------------------------------------------------------------------------------------------

MISSING = (
    "", "\xa0", "\u200b", "\ufeff", "#N/A", "-1.#IND", "1.#QNAN", "<NA>", "NULL", "-nan", "None",
    "NaT", "(null)", "\\N", "n.a.", "?", "--", "\u2014", ".", "#VALUE!",
)  # fmt: skip
NAMES = ("unknown", "other", "missing", "no", "nil", "0", "-1", "+", "Nantes", "NA-1", "nannan")


def test_what_says_that_there_is_no_value():
    assert [cell for cell in MISSING if not is_missing(cell)] == []
    assert [cell for cell in NAMES if is_missing(cell)] == []
    assert not is_missing("NA", {"NA"})


@pytest.mark.parametrize(("place", "column"), [(1, "label"), (2, "site"), (3, "patient")])
def test_a_missing_value_is_refused_or_dropped(tmp_path, place, column):
    settings = pictures(tmp_path, "label", "site", "patient")
    lines = [line.split(",") for line in (tmp_path / "cells.csv").read_text().splitlines()]
    lines[5][place] = "NA"
    (tmp_path / "cells.csv").write_text("\n".join(map(",".join, lines)))
    error = refused(settings, f"row 6, column {column}")
    assert SetOption("missing", "drop") in options_of(error.remedy)
    data = load(replace(settings, missing="drop"))
    assert data.domain_names == ("X", "Y", "Z")
    assert firsts(data.train.inputs) | firsts(data.test.inputs) == set(range(60)) - {4}


def test_a_dropped_row_of_an_image_needs_no_file(tmp_path):
    settings = pictures(tmp_path, "label")
    path = tmp_path / "cells.csv"
    path.write_text(f"{path.read_text()}\n60.png,NA")
    refused(settings, "row 62, column label")
    data = load(replace(settings, missing="drop"))
    assert len(data.train.labels) + len(data.test.labels) == 60


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
    assert (len(dropped.train.labels), len(dropped.test.labels)) == (28, 9)
    data = load(gaps(tmp_path, "?", missing="median"))
    median = np.median([k for k in range(30) if k not in (3, 20)])
    assert data.medians == {"a": median, "b": 3.0}
    assert data.train.inputs[3, 0] == data.test.inputs[5, 0] == median
    ignoring = load(gaps(tmp_path, "NA", columns="ignore=a", input_shape="1"))
    assert ignoring.input_columns == ("b",) and len(ignoring.train.labels) == 30


def test_a_column_of_gaps_has_no_median_and_a_label_is_never_filled(tmp_path):
    rows = [f"{k},,{'ab'[k % 2]}" for k in range(20)]
    refused(table(tmp_path, HEAD, *rows, missing="median"), "column weight")
    refused(table(tmp_path, HEAD, *ROWS, "1,1,", missing="median"), "row 22, column label")
