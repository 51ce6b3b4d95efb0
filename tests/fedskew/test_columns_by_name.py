"""The columns of a table are matched by name: in one data set, and between sites."""

import csv
import json
import sys
import tomllib

import numpy as np
import pytest

from data import DataError, DataSettings, load
from site_agent.cli import main as site_command
from tests.site_files import agreed, site_entries, write

COLUMNS = ("age", "bmi", "heart rate", "a, b")
REVERSED = COLUMNS[::-1]
TRAINING = {"model": "mlp-bn", "rounds": "2", "batch-size": "16", "device": "cpu"}


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


def several(*files):
    return "domains:" + ",".join(f"{file.suffix[1:]}:{file}" for file in files)


def load_of(*files):
    return load(DataSettings(several(*files), classes="healthy,ill", input_shape="4"))


@pytest.mark.parametrize("write_file", [table, vectors])
def test_the_first_file_fixes_the_order_of_a_data_set(tmp_path, write_file):
    name = "south.csv" if write_file is table else "south.npz"
    first = table(tmp_path / "north.csv", 0)
    same = load_of(first, write_file(tmp_path / "same" / name, 1))
    shuffled = write_file(tmp_path / "other" / name, 1, ("bmi", "a, b", "age", "heart rate"))
    other = load_of(first, shuffled)
    assert other.input_columns == COLUMNS and other.content == same.content


def test_other_columns_are_refused_by_name_and_file(tmp_path):
    first = table(tmp_path / "north.csv", 0)
    second = table(tmp_path / "south.csv", 1, REVERSED, bmi="BMI", age="years")
    with pytest.raises(DataError) as caught:
        load_of(first, second)
    words = ("'age', 'bmi'", "'BMI', 'years'", str(first), str(second))
    assert [text for text in words if text not in str(caught.value)] == []


# ---- between sites ---------------------------------------------------------------------------------------------------


def site_folders(folder, east, **changes):
    """Write a federation's folder of sites, each with a table; that of `east` has its own order of columns."""
    usual = {"classes": ["healthy", "ill"], "input_shape": "4", "mean": [0.0], "std": [1.0]}
    entries = agreed(**{**usual, **changes})
    write(folder / "federation.toml", entries)
    for number, name in enumerate(("north", "east", "south")):
        write(folder / name / "federation.toml", entries)
        write(folder / name / "site.toml", site_entries(name=name, data="csv:data.csv"))
        table(folder / name / "data.csv", number, east if name == "east" else COLUMNS)
    return folder


def checked(site, monkeypatch, capsys):
    """Return the row that `fedskew-site check` prints about a site's columns."""
    monkeypatch.setattr(sys, "argv", ["fedskew-site", "check", "--site", str(site / "site.toml")])
    with pytest.raises(SystemExit):
        site_command()
    (row,) = [row for row in capsys.readouterr().out.splitlines() if "input column" in row]
    return row


def test_sites_train_by_the_names_of_federation_toml(tmp_path, fedskew):
    hashes = set()
    shape = [f"{key}={value}" for key, value in TRAINING.items()]
    for name, east in (("same", COLUMNS), ("other", REVERSED)):
        folder = site_folders(tmp_path / name, east, input_columns=list(COLUMNS))
        data = [f"dataset=sites:{folder}/federation.toml", f"results={folder}/results"]
        settings = [word for pair in (*shape, *data) for word in ("--set", pair)]
        status, _, errors = fedskew("run", "--sites", folder, *settings)
        assert status == 0, errors
        (summary,) = (folder / "results").glob("*/summary.json")
        hashes.add(json.loads(summary.read_text())["hash"]["shared"])
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("east", "changes", "mark", "said"),
    [
        (COLUMNS[:3], {"input_columns": list(COLUMNS)}, "NO ", "'a, b'"),
        (COLUMNS, {"input_columns": ["age", "bmi", "heart rate", "c"]}, "NO ", "'a, b'"),
        (COLUMNS, {}, "(!)", "federation.toml"),
        (REVERSED, {"input_columns": list(COLUMNS)}, "ok ", "another order"),
    ],
)
def test_a_site_checks_its_columns(tmp_path, monkeypatch, capsys, east, changes, mark, said):
    folder = site_folders(tmp_path, east, **changes)
    row = checked(folder / "east", monkeypatch, capsys)
    assert row.startswith(mark) and said in row


SCALE = ("--mean", "3", "--std", "2")


@pytest.mark.parametrize(
    ("given", "agreed_on"),
    [
        (["--columns", "FILE.npz", *SCALE], (list(COLUMNS), "4", [3.0], [2.0])),
        (["--columns", "FILE.npz", "--mean", "3"], None),
        (["--input-shape", "1x8x8"], (None, "1x8x8", [0.5], [0.5])),
        (["--columns", "age,age"], None),
    ],
)
def test_a_new_federation_agrees_on_columns(tmp_path, fedskew, given, agreed_on):
    table(tmp_path / "FILE.csv", 0)
    vectors(tmp_path / "FILE.npz", 0)
    given = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in given]
    usual = ["--name", "lab", "--address", "gateway.example.org:8443", "--classes", "healthy,ill"]
    status, _, errors = fedskew("federation", "new", tmp_path / "lab", *usual, *given)
    if agreed_on is None:
        assert status == 2 and not (tmp_path / "lab").exists()
        return
    assert status == 0, errors
    entries = tomllib.loads((tmp_path / "lab/federation.toml").read_text())
    keys = ("input-columns", "input-shape", "mean", "std")
    assert tuple(entries.get(key) for key in keys) == agreed_on
