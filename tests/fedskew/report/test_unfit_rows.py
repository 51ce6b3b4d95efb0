"""A run that diverged is recorded and shown as diverged, and no headline is about a row at chance."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import FedSkew
from frozen import ENTRY, change, folder_of, report_words

from server_app.run_folder import line_of

TWO_ROWS = {"methods": ["fedavg", "creff"], "claims": [], "cells": {}, "notes": {}}


def diverge(folder: Path) -> None:
    """Make a finished run one that diverged."""
    (folder / "summary.json").unlink()
    record = {
        "run": folder.name,
        "round": 2,
        "reason": "client 3: loss is nan",
        "client": "client 3",
        "learning-rate": 0.5,
        "remedy": "learning-rate = 0.5; a lower learning-rate may help",
    }
    (folder / "diverged.json").write_text(line_of(record))


def set_numbers(results: Path, row: str, column: str, **changes: Any) -> None:
    """Set numbers of a row's model in all rounds of its runs in a column."""
    model = "creff" if row == "creff" else "average"
    for seed in ENTRY["seeds"]:
        file = folder_of(results, row, column, seed) / "rounds.jsonl"
        if file.exists():
            change(file, lambda record: record["models"][model].update(changes))


def set_level(results: Path, row: str, level: float) -> None:
    """Set the balanced accuracy of a row in LDA 0.5, the same in every class."""
    numbers: dict[str, Any] = {"balanced-accuracy": level, "recall": [level] * 10}
    set_numbers(results, row, "LDA 0.5", **numbers)


def as_json(words: list[object], fedskew: FedSkew) -> dict[str, Any]:
    """Return a report."""
    report: dict[str, Any] = json.loads(fedskew(*words, "--json")[1])[0]
    return report


def test_a_run_that_diverged_is_recorded_reported_and_not_repeated(tmp_path, fedskew):
    words: list[object] = ["run", "--results", tmp_path, "--engine", "inprocess"]
    for setting in ("model=linear", "rounds=1", "local-epochs=1", "method=fedavg"):
        words += ["--set", setting]
    high = ("--set", "learning-rate=1e30")
    status, _, errors = fedskew(*words, *high)
    assert status == 1 and "diverged in round 1: client 0" in errors
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    record = json.loads((folder / "diverged.json").read_text())
    assert (record["run"], record["round"], record["client"]) == (folder.name, 1, "client 0")
    assert record["learning-rate"] == 1e30 and "head.weight" in record["reason"]
    status, _, errors = fedskew(*words, *high)
    assert status == 1 and "not repeated" in errors
    report = as_json(["report", "--results", tmp_path], fedskew)
    assert report["runs"][folder.name]["state"] == "diverged"
    assert fedskew(*words)[0] == 0  # control: a run that ends


def test_every_form_shows_rows_with_diverged_seeds(tmp_path, fedskew):
    words = report_words(tmp_path, claims=[], seeds=[0, 1])
    for column, seed in (("LDA 0.5", 1), ("LDA 0.1", 0), ("LDA 0.1", 1)):
        diverge(folder_of(tmp_path, "fedshift", column, seed))
    report = as_json(words, fedskew)
    expected = {"LDA 0.1": [0, 1], "LDA 0.5": [1]}
    for row in report["numbers"]:
        diverged = expected[row["column"]] if row["row"] == "fedshift" else []
        assert (row["diverged"], row["n"]) == (diverged, 2 - len(diverged))
    states = [run["state"] for run in report["runs"].values()]
    assert states.count("diverged") == 3 and states.count("finished") == 5
    for form in ([], ["--markdown"], ["--latex"]):
        text = fedskew(*words, *form)[1]
        assert "1 of 2 seeds, 1 diverged" in text and "0 of 2 seeds, 2 diverged" in text
        if "--markdown" in form:
            assert "not judged (fedshift diverged in 1 of 2 seeds)" in text
            assert "not judged (fedshift diverged in 2 of 2 seeds)" in text


@pytest.mark.parametrize(
    ("needed", "diverged", "status"),
    [(0, False, "unclear"), (1, True, "holds"), (2, True, "never")],
)
def test_a_claim_is_judged_by_the_columns_without_divergence_where_they_are_enough(
    needed, diverged, status, tmp_path, fedskew
):
    claim = {"says": "it is above", "better": "fedshift", "than": "fedavg", "in_columns": needed}
    words = report_words(tmp_path, seeds=[0, 1], claims=[claim])
    for row, level in (("fedshift", 0.9), ("fedavg", 0.2)):
        set_level(tmp_path, row, level)
    if diverged:
        diverge(folder_of(tmp_path, "fedshift", "LDA 0.1"))
    (judged,) = as_json(words, fedskew)["claims"]
    assert judged["status"] == status
    assert judged["unfit"] == ("LDA 0.1: fedshift diverged in 1 of 2 seeds" if diverged else "")


@pytest.mark.parametrize(
    ("better", "than", "status"),
    [(0.05, 0.9, "fails"), (0.09, 0.01, "unclear"), (0.9, 0.05, "holds")],
)
def test_chance_stops_a_claim_from_holding_and_from_nothing_else(
    better, than, status, tmp_path, fedskew
):
    claim = {"says": "it is above", "better": "creff", "than": "fedavg", "columns": ["LDA 0.5"]}
    words = report_words(tmp_path, claims=[claim])
    for row, level in (("creff", better), ("fedavg", than)):
        set_level(tmp_path, row, level)
    (judged,) = as_json(words, fedskew)["claims"]
    assert judged["status"] == status
    assert ("creff is no better than chance" in judged["unfit"]) == (better < 0.1)


def test_the_correction_counts_rows_and_claims_that_are_judged(tmp_path, fedskew):
    """CReFF's p is 0.044 in LDA 0.1, and 0.088 beside a second row."""
    pair = {"says": "", "than": "fedavg", "columns": ["LDA 0.1"]}
    claims = [{**pair, "better": row} for row in ("creff", "fedshift")]
    words = report_words(tmp_path, claims=claims)
    both = as_json(words, fedskew)["claims"][0]
    assert "| no (Holm's p 0.088) |" in fedskew(*words, "--markdown")[1]
    set_numbers(tmp_path, "fedshift", "LDA 0.1", **{"balanced-accuracy": 0.1})
    assert "| **yes** (p 0.044) |" in fedskew(*words, "--markdown")[1], "FedShift is at chance"
    diverge(folder_of(tmp_path, "fedshift", "LDA 0.1"))
    alone = as_json(words, fedskew)["claims"][0]
    p = both["interval"]["p"]
    assert (both["p_holm"], alone["p_holm"]) == (pytest.approx(2 * p), pytest.approx(p))


OTHERS_UNTESTED = {"recall": [1.0, *[None] * 9], "balanced-accuracy": 0.4}


@pytest.mark.parametrize(
    ("metric", "changes", "chance"),
    [
        ("balanced-accuracy", {"balanced-accuracy": 0.1}, "10.0"),
        ("balanced-accuracy", OTHERS_UNTESTED, "100.0"),
        ("balanced-accuracy", {"balanced-accuracy": 0.12}, ""),
        ("auroc", {"auroc": 0.49}, "50.0"),
    ],
)
def test_chance_is_of_the_number_that_the_table_shows(metric, changes, chance, tmp_path, fedskew):
    words = report_words(tmp_path, metric=metric, **TWO_ROWS)
    for column in ENTRY["columns"]:
        for row in TWO_ROWS["methods"]:
            set_numbers(tmp_path, row, column, **changes)
    headline = as_json(words, fedskew)["headline"]
    assert ("chance is" in headline) == bool(chance)
    assert f"chance is {chance}" in headline or not chance
