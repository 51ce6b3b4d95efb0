"""A hospital's first afternoon, typed in an empty folder: check, the printed command, report, export, predict.

A table of three hospitals.
"""

import csv
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import FedSkew

pytestmark = pytest.mark.slow

HOSPITALS = ("north", "south", "east")


class Terminal:
    """A user's shell in a folder. Commands run in this process, as starting one takes seconds."""

    def __init__(self, folder: Path, fedskew: FedSkew) -> None:
        self.folder = folder
        self.fedskew = fedskew

    def __call__(self, line: str) -> str:
        """Run a line that has to succeed, and return what it prints."""
        status, output, errors = self.fedskew(*shlex.split(line)[1:])
        assert status == 0, f"$ {line}\n{(output + errors)[-3000:]}"
        return output

    def refused(self, line: str) -> str:
        """Run a line that has to be refused in one sentence, and return what it prints."""
        status, output, errors = self.fedskew(*shlex.split(line)[1:])
        assert status == 2, f"$ {line}\n{output[-3000:]}"
        assert errors.count("\n") == 1, errors
        return output + errors


@pytest.fixture
def terminal(tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    folder = tmp_path / "afternoon"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Terminal(folder, fedskew)


def printed_commands(answer: str) -> list[str]:
    """Return the commands that stand in what a command printed, each on a line of its own."""
    lines = [line.strip() for line in answer.splitlines()]
    return [line for line in lines if line.startswith("fedskew ")]


def proposed(answer: str, word: str) -> str:
    """Return the first --set KEY=VALUE of an answer, as the shell takes it, in which a word stands."""
    settings = re.findall(r"--set (?:'[^']*'|[^\s,;]+)", answer)
    return next(setting for setting in settings if word in setting)


def run_printed(terminal: Terminal, answer: str, more: str) -> list[str]:
    """Run every printed command word for word, a run with `more` behind it; return the commands for runs."""
    commands = printed_commands(answer)
    runs = [command for command in commands if command.startswith("fedskew run ")]
    assert runs and answer.rstrip().endswith(commands[-1]) and commands[-1] in runs
    for command in commands:
        terminal(f"{command} {more}" if command in runs else command)
    return runs


def exported(terminal: Terminal, method: str) -> str:
    """Export the first seed's run of a method, and return the model's folder."""
    (run,) = terminal.folder.glob(f"results/*-{method}-seed0-*")
    lines = terminal(f"fedskew export {run.relative_to(terminal.folder)}").splitlines()
    files = [Path(line) for line in lines if line.endswith("model.safetensors")]
    return str(files[0].parent)


def predicted(terminal: Terminal, model: str, data: str, more: str = "") -> list[dict[str, str]]:
    """Predict, and return the rows of the file that --output names."""
    words = shlex.join(["fedskew", "predict", model, data, "--output", "told.csv"])
    terminal(f"{words} {more}")
    return read(terminal.folder / "told.csv")


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write(file: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([head, *rows])


def balanced_accuracies(terminal: Terminal, method: str) -> list[float]:
    """Return a method's balanced accuracy after its last round, a number per seed, in percent."""
    (table,) = json.loads(terminal("fedskew report --json"))
    (found,) = [
        number["values"]
        for number in table["numbers"]
        if (number["row"], number["metric"], number["selection"])
        == (method, "balanced-accuracy", "last")
    ]
    return list(found)


def write_tables(folder: Path) -> None:
    """Write cancer.csv, new.csv and unlabeled.csv: rows of three hospitals with scales of their own, two of a patient.

    They have a column of numbers per row, one of text, one with empty cells and one of large numbers.
    """
    draws = np.random.default_rng(0)
    rows = []
    for number in range(600):
        site, ill = number % 3, number // 3 % 4 > 1
        values = draws.normal(10, 1, 3) + 3 * ill
        values = values * (1, 1.15, 1)[site] + (0, 0, 2)[site]
        cells = [f"{value:.5g}" for value in values]
        if number % 17 == 0:
            cells[2] = ""
        patient = f"P{number // 6 * 3 + site}"
        platelets = str(1000 * draws.integers(150, 450))
        about = [str(1000 + number), patient, HOSPITALS[site], f"ward {'ABC'[draws.integers(3)]}"]
        rows.append([*about, platelets, *cells, ("benign", "malignant")[ill]])
    measured = ["mean_radius", "mean_area", "mean_smoothness"]
    head = ["row_id", "patient", "site", "ward", "platelets", *measured, "label"]
    write(folder / "cancer.csv", head, rows[:480])
    write(folder / "new.csv", head, rows[480:])
    write(folder / "unlabeled.csv", head[:-1], [row[:-1] for row in rows[480:]])


def test_a_table_of_three_hospitals(terminal: Terminal) -> None:
    """Scales differ, patients have two rows, a column counts the rows, one is text and one has empty cells."""
    write_tables(terminal.folder)
    check = "fedskew data check cancer.csv"
    without_ward = proposed(terminal.refused(check), "ward")
    filled = proposed(terminal.refused(f"{check} {without_ward}"), "median")
    without_both = proposed(terminal(f"{check} {without_ward} {filled}"), "row_id")
    answer = terminal(f"{check} {without_both} {filled}")
    for word in ("mean_smoothness", "platelets", "median"):
        assert word in answer

    more = "--method fedavg,fedbn --seed 0,1 --set rounds=10 --engine inprocess"
    run_printed(terminal, answer, more)
    scores = balanced_accuracies(terminal, "fedavg")
    assert len(scores) == 2 and min(scores) >= 88, scores
    terminal("fedskew report --html report.html")
    assert "fedbn" in (terminal.folder / "report.html").read_text()

    model, new = exported(terminal, "fedavg"), read(terminal.folder / "new.csv")
    labeled = predicted(terminal, model, "new.csv")
    unlabeled = predicted(terminal, model, "unlabeled.csv")
    for rows in (labeled, unlabeled):
        for column in ("row_id", "patient"):
            assert [row[column] for row in rows] == [row[column] for row in new]
    assert [row["label"] for row in labeled] == [row["label"] for row in new]
    told = [row["prediction"] for row in labeled]
    assert told == [row["prediction"] for row in unlabeled]
    assert np.mean([row["label"] == row["prediction"] for row in labeled]) > 0.85
