"""A tuned setting: trials on a seed of their own, and the value that each row and column gets from them."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import FedSkew

from data import SettingError
from fedskew.experiments import Experiment, experiment
from fedskew.experiments.plan import Tuned, plan, trials, values_of_rows

RATES = [0.001, 0.05, 0.3]
TUNE = {"key": "learning-rate", "values": RATES, "seed": 9}
SMALL = {
    "dataset": "digits",
    "model": "linear",
    "rounds": 2,
    "clients": 2,
    "local-epochs": 1,
    "train-images": 100,
    "test-images": 100,
    "alpha": 5.0,
    "device": "cpu",
}


def built(**entry: Any) -> Experiment:
    """Return an experiment of two rows and two seeds that tunes the learning rate."""
    base = {
        "title": "Tuned",
        "settings": SMALL,
        "methods": ["fedavg", "fednova"],
        "tune": TUNE,
        "seeds": [0, 1],
    }
    return experiment("one", {**base, **entry})


def rates(cells: Any) -> dict[tuple[str, str, int], float]:
    """Return the learning rate of every cell by row, column and seed."""
    found = {}
    for cell in cells:
        found[cell.row, cell.column, cell.seed] = cell.run.flat()["learning-rate"]
    return found


def test_each_row_and_column_has_the_value_that_its_trials_chose() -> None:
    entry = built(columns={"a": {}, "b": {"alpha": 0.5}})
    tuned = {("fedavg", "a"): 0.05, ("fednova", "a"): 0.3, ("fedavg", "b"): 0.001}
    assert rates(plan(entry, tuned=tuned)) == {
        ("fedavg", "a", 0): 0.05,
        ("fedavg", "a", 1): 0.05,
        ("fednova", "a", 0): 0.3,
        ("fednova", "a", 1): 0.3,
        ("fedavg", "b", 0): 0.001,
        ("fedavg", "b", 1): 0.001,  # fednova has no value there, and is left out
    }


def test_trials_are_the_runs_of_the_table_with_each_value_on_the_seed_of_their_own() -> None:
    tried = trials(built(columns={"a": {}, "b": {"alpha": 0.5}}), {})
    assert [(trial.row, trial.column, trial.tried) for trial in tried] == [
        (row, column, value)
        for value in RATES
        for column in ("a", "b")
        for row in ("fedavg", "fednova")
    ]
    assert {trial.seed for trial in tried} == {9}
    without = replace(built(columns={"a": {}, "b": {"alpha": 0.5}}), tune=None)
    plain = {cell.run.run_id for cell in plan(without, {"learning-rate": 0.05}, [9])}
    assert {trial.run.run_id for trial in tried if trial.tried == 0.05} == plain
    assert tried[0].column == "a"  # what progress and failures name


def test_the_seed_of_the_trials_is_none_of_the_table_s() -> None:
    with pytest.raises(SettingError) as caught:
        plan(built(), {}, [0, 9])
    assert (caught.value.key, caught.value.value) == ("seed", 9)
    assert len(plan(built(), {}, [0, 8])) == 4
    # A table without trials may have that seed.
    assert len(plan(built(), {"learning-rate": 0.7}, [0, 9])) == 4


@pytest.mark.parametrize(
    ("scores", "value", "at_an_end"),
    [
        ({0.001: 0.2, 0.05: 0.9, 0.3: 0.5}, 0.05, False),
        ({0.001: 0.2, 0.05: 0.9, 0.3: 0.91}, 0.3, True),
        ({0.001: 0.9, 0.05: 0.9, 0.3: 0.5}, 0.001, True),  # of equal ones the first
        ({0.001: 0.2, 0.05: 0.3, 0.3: math.nan}, 0.05, False),  # a failed trial does not count
        ({0.001: math.nan, 0.05: math.nan, 0.3: math.nan}, None, False),
    ],
)
def test_the_highest_number_of_the_finished_trials_is_chosen(
    scores: Mapping[Any, float], value: float | None, at_an_end: bool
) -> None:
    tuned = Tuned("fedavg", "a", scores, "client-accuracy.mean")
    assert (tuned.value, tuned.at_an_end) == (value, at_an_end)
    assert values_of_rows([tuned]) == ({} if value is None else {("fedavg", "a"): value})


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"tune": {**TUNE, "key": "learnig-rate"}}, "one: tune: key"),
        ({"tune": {**TUNE, "key": "seed"}}, "one: tune: key"),
        ({"tune": {**TUNE, "values": [0.1, 0.1]}}, "one: tune: values"),
        ({"tune": {**TUNE, "seed": 1}}, "one: tune: seed"),
        ({"methods": [{"fedavg": {"learning-rate": 0.1}}]}, "one: tune: key"),
        ({"columns": {"a": {"learning-rate": 0.1}}}, "one: tune: key"),
    ],
)
def test_what_cannot_be_tuned_is_refused(entry: Mapping[str, Any], place: str) -> None:
    with pytest.raises(SettingError) as caught:
        built(**entry)
    assert ": ".join(filter(None, [caught.value.where, caught.value.key])) == place


def test_one_command_makes_the_trials_and_then_the_table(tmp_path: Path, fedskew: FedSkew) -> None:
    entry = {
        "title": "Tuned",
        "settings": SMALL,
        "methods": ["fedavg"],
        "tune": {"key": "learning-rate", "values": [0.001, 0.05, 1e30], "seed": 9},
        "seeds": [0],
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"one": entry}))
    words = ["one", "--experiments", file, "--results", tmp_path / "results"]

    status, out, _ = fedskew("run", *words, "--dry-run", "--json")
    assert status == 0
    assert len(json.loads(out)) == 3 + 1

    words += ["--engine", "inprocess", "--jobs", 1]
    status, out, _ = fedskew("run", *words)
    assert status == 0  # a rate that is too large is no failure of the command
    assert "does not count, as the trial failed" in out
    assert "one, fedavg: learning-rate = 0.05" in out
    (summary,) = json.loads(fedskew("run", *words, "--json")[1])  # trials are no results
    origin = json.loads((tmp_path / "results" / summary["run"] / "settings.json").read_text())
    assert origin["settings"]["learning-rate"] == 0.05

    file.write_text(yaml.safe_dump({"one": {**entry, "tune": {**TUNE, "values": [1e30, 1e31]}}}))
    status, _, errors = fedskew("run", *words)
    assert status == 1 and "one, fedavg: none of its trials has finished" in errors
