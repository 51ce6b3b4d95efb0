"""The columns of a table are matched by name: in one data set, between sites, and by an exported model."""

import csv
import json
import sys
import tomllib

import numpy as np
import pytest

from data import DataError, DataSettings, load
from fedskew import from_arrays
from site_agent.cli import main as site_command
from tests.site_files import agreed, site_entries, write

COLUMNS = ("age", "bmi", "heart rate", "a, b")
REVERSED = COLUMNS[::-1]
SETTINGS = {"classes": "healthy,ill", "input-shape": "4"}
TRAINING = {
    "model": "mlp-bn",
    "rounds": "3",
    "batch-size": "16",
    "learning-rate": "0.1",
    "device": "cpu",
}


def numbers_of(number):
    """Return (40, 4) float32 and (40,): a site's numbers, and classes that `age` high and `a, b` low tell."""
    labels = np.arange(40) % 2
    numbers = np.random.default_rng(number).normal(size=(40, 4))
    numbers[:, 0] += 4 * labels
    numbers[:, 3] -= 4 * labels
    return numbers.round(3).astype(np.float32), labels


def table(file, number, order=COLUMNS, **renamed):
    """Write a site's numbers as a table with its columns in this order, some under another name."""
    numbers, labels = numbers_of(number)
    places = [COLUMNS.index(name) for name in order]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow([*(renamed.get(name, name) for name in order), "split", "label"])
        for row, (values, label) in enumerate(zip(numbers, labels, strict=True)):
            words = ["test" if row >= 30 else "train", ("healthy", "ill")[label]]
            writer.writerow([*map(str, values[places].tolist()), *words])
    return file


def vectors(file, number, order=COLUMNS, names=True):
    """Write the same numbers as an npz file."""
    numbers, labels = numbers_of(number)
    inputs = numbers[:, [COLUMNS.index(name) for name in order]]
    columns = {"columns": np.array(order)} if names else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        file, train_images=inputs[:30], train_labels=labels[:30],
        test_images=inputs[30:], test_labels=labels[30:], **columns,
    )  # fmt: skip
    return file


def words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def several(*files):
    return "domains:" + ",".join(f"{file.suffix[1:]}:{file}" for file in files)


@pytest.mark.parametrize("write_file", [table, vectors])
@pytest.mark.parametrize("order", [REVERSED, ("bmi", "a, b", "age", "heart rate")])
def test_the_first_file_fixes_the_order_of_a_data_set(tmp_path, write_file, order):
    suffix = ".csv" if write_file is table else ".npz"
    first = table(tmp_path / "north.csv", 0)
    same = load_of(first, write_file(tmp_path / f"same/south{suffix}", 1))
    other = load_of(first, write_file(tmp_path / f"other/south{suffix}", 1, order))
    assert other.input_columns == same.input_columns == COLUMNS
    assert np.array_equal(other.train_inputs, same.train_inputs)
    assert np.array_equal(other.test_inputs, same.test_inputs)
    assert other.content == same.content
    again = load_of(first, tmp_path / f"other/south{suffix}")  # from the cached copy
    assert again.input_columns == COLUMNS


def load_of(*files):
    return load(DataSettings(several(*files), classes="healthy,ill", input_shape="4"))


@pytest.mark.parametrize(
    ("order", "renamed", "said"),
    [
        (COLUMNS, {"bmi": "BMI"}, ["no input column 'bmi'", "input column 'BMI'"]),
        (COLUMNS[:3], {}, ["no input column 'a, b'"]),
        (REVERSED, {"bmi": "BMI", "age": "years"}, ["'age', 'bmi'", "'BMI', 'years'"]),
        (REVERSED, {}, []),
    ],
)
def test_other_columns_are_refused_by_name_and_file_in_every_command(
    tmp_path, fedskew, order, renamed, said
):
    first, second = (
        table(tmp_path / "north.csv", 0),
        table(tmp_path / "south.csv", 1, order, **renamed),
    )
    settings = words({"dataset": several(first, second), **SETTINGS})
    training = words({**TRAINING, "results": str(tmp_path / "results")})
    for command in (["data", "show"], ["diagnose"], ["run", *training]):
        status, _, errors = fedskew(*command, *settings)
        if not said:
            assert status == 0, errors
            continue
        assert (status, errors.count("\n")) == (2, 1)
        for text in (*said, str(first), str(second)):
            assert text in errors


def test_another_order_is_no_skew(tmp_path, fedskew):
    """The same rows in another order of columns were called a scanner, and the data were blamed."""
    answers = []
    for name, order in (("same", COLUMNS), ("other", REVERSED)):
        files = [
            table(tmp_path / name / f"{n}.csv", n, order if n == 2 else COLUMNS) for n in range(3)
        ]
        settings = words({"dataset": several(*files), **SETTINGS})
        status, output, errors = fedskew("diagnose", *settings, "--json")
        assert status == 0, errors
        answers.append(json.loads(output.replace(str(tmp_path / name), "")))
    assert answers[0] == answers[1]
    assert "scanner" not in json.dumps(answers[1]["skews"] if "skews" in answers[1] else answers[1])


def test_vectors_without_names_are_said_to_go_by_order(tmp_path, fedskew):
    named, nameless = vectors(tmp_path / "a.npz", 0), vectors(tmp_path / "b.npz", 1, names=False)
    assert "order counts" not in fedskew("data", "check", named)[1]
    assert fedskew("data", "check", nameless)[1].count("order counts") == 1
    _, output, errors = fedskew(
        "data", "show", *words({"dataset": several(named, nameless), **SETTINGS})
    )
    warnings = [line for line in (output + errors).splitlines() if "order counts" in line]
    assert len(warnings) == 1 and str(nameless) in warnings[0]
    for columns in (np.array(["age", "bmi"]), np.array(["age"] * 4), np.arange(4)):
        arrays = {**np.load(named), "columns": columns}
        np.savez(tmp_path / "c.npz", **arrays)
        status, _, errors = fedskew("data", "check", tmp_path / "c.npz")
        assert (status, errors.count("\n")) == (2, 1) and "4 different names" in errors


def site_folders(folder, orders, **changes):
    """Write a federation's folder of sites, each with a table in its own order of columns."""
    entries = agreed(classes=["healthy", "ill"], input_shape="4", mean=[0.0], std=[1.0], **changes)
    write(folder / "federation.toml", entries)
    for number, (name, order) in enumerate(orders.items()):
        write(folder / name / "federation.toml", entries)
        write(folder / name / "site.toml", site_entries(name=name, data="csv:data.csv"))
        table(folder / name / "data.csv", number, order)
    return folder


def site_check(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedskew-site", "check", "--site", str(folder / "site.toml")])
    with pytest.raises(SystemExit):
        site_command()
    return capsys.readouterr().out.replace(str(folder), "SITE").splitlines()


def test_sites_train_by_the_names_of_federation_toml(
    tmp_path,
    fedskew,
    monkeypatch,
    capsys,
):
    hashes = set()
    for name, east in (("same", COLUMNS), ("other", REVERSED)):
        orders = {"north": COLUMNS, "east": east, "south": COLUMNS}
        folder = site_folders(tmp_path / name, orders, input_columns=list(COLUMNS))
        rows = site_check(folder / "east", monkeypatch, capsys)
        (row,) = [row for row in rows if "input columns" in row]
        assert row.startswith("ok ") and ("another order" in row) == (name == "other")
        settings = {
            "dataset": f"sites:{folder}/federation.toml",
            "results": str(folder / "results"),
        }
        status, _, errors = fedskew("run", "--sites", folder, *words({**TRAINING, **settings}))
        assert status == 0, errors
        (summary,) = (folder / "results").glob("*/summary.json")
        content = json.loads(summary.read_text())
        hashes.add(content["hash"]["shared"])
        assert content["models"]["average"]["last"]["balanced-accuracy"] > 0.9
        model = tmp_path / f"{name}-model"
        assert fedskew("export", summary.parent, "--output", model)[0] == 0
        card = (model / "README.md").read_text()
        assert "age, bmi, heart rate" in card and "fedskew predict FOLDER table.csv" in card
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("order", "input_columns", "mark", "said"),
    [
        (COLUMNS[:3], list(COLUMNS), "NO ", "no input column 'a, b'"),
        (COLUMNS, ["age", "bmi", "heart rate", "c"], "NO ", "input column 'a, b' that is unknown"),
        (COLUMNS, None, "(!)", "federation.toml names no input columns"),
        (COLUMNS, list(COLUMNS), "ok ", "4 input columns, matched by name"),
    ],
)
def test_a_site_checks_its_columns(
    tmp_path, monkeypatch, capsys,
    order, input_columns, mark, said,
):  # fmt: skip
    orders = {"north": order, "east": COLUMNS, "south": COLUMNS}
    folder = site_folders(tmp_path, orders, input_columns=input_columns)
    rows = site_check(folder / "north", monkeypatch, capsys)
    (row,) = [row for row in rows if "input column" in row]
    assert row.startswith(mark) and said in row
    assert mark != "NO " or "SITE/data.csv" in row


@pytest.fixture
def model(tmp_path, fedskew):
    """A model of a table, exported."""
    results = tmp_path / "results"
    file = table(tmp_path / "train.csv", 0)
    settings = {"dataset": f"csv:{file}", "partition": "iid", "clients": "2"}
    status, _, errors = fedskew(
        "run", *words({**SETTINGS, **TRAINING, **settings, "results": str(results)})
    )
    assert status == 0, errors
    (folder,) = results.iterdir()
    assert fedskew("export", folder, "--output", tmp_path / "model")[0] == 0
    return tmp_path / "model"


def test_an_exported_model_finds_its_columns_by_name(tmp_path, fedskew, model):
    assert "age, bmi, heart rate, a, b" in (model / "README.md").read_text()

    def predicted(file):
        status, output, errors = fedskew("predict", model, file, "--json")
        assert status == 0, errors
        return json.loads(output)["predictions"], "order counts" in errors

    of_table = predicted(table(tmp_path / "new.csv", 5))
    assert of_table[1] is False and len(of_table[0]) == 40  # all rows, whoever tests
    other = predicted(table(tmp_path / "other.csv", 5, REVERSED))
    assert other == of_table
    expected = predicted(vectors(tmp_path / "same.npz", 5))
    assert [row["probabilities"] for row in expected[0]] == [
        pytest.approx(row["probabilities"], abs=1e-6) for row in of_table[0][30:]
    ]
    assert predicted(vectors(tmp_path / "other.npz", 5, REVERSED)) == expected
    assert predicted(vectors(tmp_path / "nameless.npz", 5, names=False)) == (expected[0], True)
    numbers, labels = numbers_of(5)
    np.savez(
        tmp_path / "plain.npz",
        images=numbers[30:, ::-1],
        labels=labels[30:],
        columns=np.array(REVERSED),
    )
    rows, _ = predicted(tmp_path / "plain.npz")
    assert [row["probabilities"] for row in rows] == [row["probabilities"] for row in expected[0]]
    for order, renamed, said in (
        (COLUMNS, {"age": "years"}, "has no input column 'age': must"), (COLUMNS[:3], {}, "no input column 'a, b'"),
    ):  # fmt: skip
        file = table(tmp_path / "wrong.csv", 5, order, **renamed)
        status, _, errors = fedskew("predict", model, file)
        assert (status, errors.count("\n")) == (2, 1) and said in errors and str(file) in errors
    file = table(tmp_path / "more.csv", 5)
    for columns, said in (
        ("ignore=age", "columns = 'ignore=age': names 'age', which is an input of the model"),
        ("label=bmi", "columns = 'label=bmi': names 'bmi', which is an input of the model"),
        ("ignore=split", ""),
    ):
        status, _, errors = fedskew("predict", model, file, "--set", f"columns={columns}")
        assert (status, said in errors) == (2 if said else 0, True), errors


def test_a_site_leaves_out_a_column_that_is_no_input(tmp_path, monkeypatch, capsys):
    entries = agreed(
        classes=["healthy", "ill"], input_shape="3", mean=[0.0], std=[1.0], input_columns=list(COLUMNS[:3])
    )  # fmt: skip
    write(tmp_path / "federation.toml", entries)
    table(tmp_path / "data.csv", 0, COLUMNS, **{"a, b": "row_id"})
    for read, mark, said in (
        (
            {},
            "NO ",
            'under [read] of site.toml, columns = "ignore=row_id" leaves out what is unknown',
        ),
        ({"columns": "ignore=row_id"}, "ok ", "3 input columns, matched by name"),
    ):
        write(tmp_path / "site.toml", site_entries(data="csv:data.csv", read=read))
        rows = site_check(tmp_path, monkeypatch, capsys)
        (row,) = [row for row in rows if "input column" in row]
        assert row.startswith(mark) and said in row


def test_sites_folders_keep_the_names(tmp_path, fedskew):
    file, out = table(tmp_path / "all.csv", 0, REVERSED), tmp_path / "sites"
    settings = words({**SETTINGS, "partition": "iid", "clients": "2"})
    assert fedskew("data", "export-sites", file, out, *settings)[0] == 0
    assert tomllib.loads((out / "federation.toml").read_text())["input-columns"] == list(REVERSED)
    assert np.load(out / "site-0/data.npz")["columns"].tolist() == list(REVERSED)


@pytest.mark.parametrize(
    ("given", "agreed_on"),
    [
        (["--columns", 'age,bmi,heart rate,"a, b"'], (list(COLUMNS), "4", None, None)),
        (["--columns", "FILE.csv"], (list(COLUMNS), "4", None, None)),
        (["--columns", "FILE.npz", "--mean", "3"], (list(COLUMNS), "4", [3.0], [1.0])),
        (["--input-shape", "4"], (None, "4", None, None)),
        (["--input-shape", "1x8x8"], (None, "1x8x8", [0.5], [0.5])),
        (
            ["--columns", "age,bmi", "--input-shape", "4"],
            "one name per column of a table, and input-shape = 4",
        ),
        (["--columns", "age,age"], "must name each once"),
        (["--columns", "age,,bmi"], "must be names"),
        (
            ["--columns", "age,bmi", "--input-shape", "1x8x8"],
            "one name per column of a table, and input-shape = 1x8x8",
        ),
        (["--columns", "NAMELESS.npz"], "must name input columns"),
        (
            ["--columns", "ROLES.csv"],
            "there is no column 'label', only age, outcome: state the names",
        ),
    ],
)
def test_a_new_federation_agrees_on_columns(tmp_path, fedskew, given, agreed_on):
    table(tmp_path / "FILE.csv", 0)
    vectors(tmp_path / "FILE.npz", 0)
    vectors(tmp_path / "NAMELESS.npz", 0, names=False)
    (tmp_path / "ROLES.csv").write_text("age,outcome\n1,ill\n")
    given = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in given]
    usual = ["--name", "lab", "--address", "gateway.example.org:8443", "--classes", "healthy,ill"]
    status, output, errors = fedskew("federation", "new", tmp_path / "lab", *usual, *given)
    if isinstance(agreed_on, str):
        assert status == 2 and agreed_on in errors and not (tmp_path / "lab").exists()
        return
    assert status == 0, errors
    entries = tomllib.loads((tmp_path / "lab/federation.toml").read_text())
    keys = ("input-columns", "input-shape", "mean", "std")
    assert tuple(entries.get(key) for key in keys) == agreed_on
    assert ("order counts" in output) == (given == ["--input-shape", "4"])


class Frame:
    """What `from_arrays` needs of a DataFrame: its columns, and itself as an array."""

    def __init__(self, numbers_NF, columns):
        self.numbers_NF = numbers_NF
        self.columns = columns

    def __array__(self, dtype=None, copy=None):
        return self.numbers_NF


@pytest.mark.parametrize(
    ("names", "refused"), [("cba", ""), ("abc", ""), ("abd", "test: has no input column 'c'")]
)
def test_frames_in_memory_keep_their_names(tmp_path, names, refused):
    numbers = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = np.arange(40) % 2
    order = ["abc".find(name) for name in names]
    test = Frame(numbers[:, order], list(names))

    def settings():
        made = from_arrays((Frame(numbers, list("abc")), labels), (test, labels), folder=tmp_path)
        stated = {key.replace("-", "_"): value for key, value in made.items()}
        return DataSettings(**stated, cache=str(tmp_path / "cache"))

    if refused:
        with pytest.raises(DataError, match=refused):
            settings()
        return
    data = load(settings())
    assert data.input_columns == ("a", "b", "c")
    assert np.array_equal(data.test_inputs, numbers)


def test_numbered_frames_go_by_order(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    split = Frame(numbers, range(3)), np.arange(40) % 2
    made = from_arrays(split, split, folder=tmp_path)
    stated = {key.replace("-", "_"): value for key, value in made.items()}
    assert load(DataSettings(**stated, cache=str(tmp_path / "cache"))).input_columns == ()
