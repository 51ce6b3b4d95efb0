"""experiments.yaml and the plan of an experiment: strict reading, and one training for rows that share it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from data import SettingError
from server_app.experiments import Experiment, experiment, find_all, load_experiments
from server_app.methods import METHODS
from server_app.plan import Cell, passive, plan, runs, split


def made(**entry: Any) -> Experiment:
    """Return an experiment of two digits rounds."""
    return experiment("one", {"title": "", "settings": {"rounds": 2}, "methods": ["fedavg"], **entry})


def trained(cells: list[Cell]) -> dict[str, str]:
    """Return the method that trains every row."""
    return {cell.row: cell.run.general.method for cell in cells}


@pytest.mark.parametrize("one", load_experiments().values(), ids=lambda one: one.name)
def test_every_grid_point_of_every_shipped_experiment_parses(one: Experiment, tmp_path: Path) -> None:
    cells = plan(one, {"results": str(tmp_path), "data-root": str(tmp_path)})
    assert len({(cell.row, cell.column, cell.seed) for cell in cells}) == len(cells)
    assert len(cells) == len(one.rows) * len(one.columns) * len(one.seeds)
    assert len(runs(cells)) <= len(cells)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"sseeds": [1]}, "sseeds.*is no key"),
        ({"claims": [{"says": "", "better": "fedavg", "then": "fedavg"}]}, "then.*is no key"),
        ({"claims": [{"says": "", "better": "fedavg"}]}, "than"),
        ({"claims": [{"says": "", "better": "fedavg", "than": "fedsgd"}]}, "fedsgd.*is no row"),
        ({"cells": {"fedavg": [1, 2]}}, "one number a column"),
        ({"cells": {"fedprox": [1]}}, "fedprox.*is no row"),
        ({"notes": {"fedavg, IF 3": ""}}, "IF 3"),
        ({"selection": "best"}, "best.*must be one of last"),
        ({"methods": ["fedavg", "fedavg"]}, "twice"),
        ({"methods": [{"a": {}, "b": {}}]}, "LABEL"),
        ({"seeds": []}, "at least one"),
    ],
)
def test_what_an_experiment_cannot_mean_is_refused(entry: Mapping[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        made(**entry)


def test_experiments_that_are_no_yaml_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text("one:\n  title: a: b\n")
    with pytest.raises(ValueError, match=r"experiments.yaml.*is not YAML.*line 2"):
        load_experiments(tmp_path / "experiments.yaml")


def test_an_experiment_nobody_wrote_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean demo"):
        find_all(["demo", "dmo"])


def test_rows_that_differ_in_what_is_deployed_share_a_training() -> None:
    cells = plan(made(methods=["fedavg", "creff", "ccvr", "tau-norm", "fedshift", "fedshift+creff", "fednova"]))
    shared = "creff+ccvr+tau-norm"
    assert trained(cells) == {
        **dict.fromkeys(["fedavg", "creff", "ccvr", "tau-norm"], shared),
        **dict.fromkeys(["fedshift", "fedshift+creff"], "fedshift+creff"),
        "fednova": "fednova",
    }
    assert [cell.deployed for cell in cells] == [
        "average", "creff", "ccvr", "tau-norm", "average", "creff", "average",
    ]  # fmt: skip
    assert len(runs(cells)) == 3


def test_rows_of_one_method_with_other_settings_are_other_runs() -> None:
    cells = plan(made(methods=["fedavg", {"m = 1": {"method": "creff", "creff.features-per-class": 1}}, "creff"]))
    assert [cell.deployed for cell in cells] == ["average", "creff", "creff"]
    first, second, third = (cell.run for cell in cells)
    assert first.run_id == second.run_id != third.run_id
    assert second.flat()["creff.features-per-class"] == 1
    assert third.flat()["creff.features-per-class"] == 100


def test_settings_of_a_section_count_for_the_methods_that_use_it() -> None:
    one = made(
        methods=["fedavg", "fedprox", "fedshift+fedprox"],
        settings={"proximal.mu": 0.1},
        columns={"E 2": {"local-epochs": 2}},
    )
    fedavg, fedprox, both = (cell.run.flat() for cell in plan(one))
    assert "proximal.mu" not in fedavg
    assert fedprox["proximal.mu"] == both["proximal.mu"] == 0.1
    assert fedavg["local-epochs"] == 2
    assert plan(one, {"proximal.mu": 0.3})[1].run.flat()["proximal.mu"] == 0.3


@pytest.mark.parametrize(
    "entry",
    [
        {"settings": {"creff.steps": 1}},
        {"columns": {"x": {"creff.steps": 1}}},
        {"methods": ["creff", {"fedavg": {"creff.steps": 1}}]},
    ],
)
def test_a_section_that_no_row_uses_is_refused(entry: Mapping[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"creff.steps.*has no effect"):
        plan(made(**entry))


def test_overrides_win_and_cannot_name_the_method() -> None:
    one = made(methods=[{"slow": {"method": "fedavg", "rounds": 9}}], seeds=[0, 1])
    assert [(cell.seed, cell.run.general.rounds) for cell in plan(one, {"rounds": 3})] == [(0, 3), (1, 3)]
    assert [cell.run.general.seed for cell in plan(one, {"seed": 5})] == [5]
    with pytest.raises(SettingError, match="names its methods itself"):
        plan(one, {"method": "creff"})


def test_only_variants_that_leave_training_alone_ride_on_another() -> None:
    riders = {name for name in METHODS if split(made(methods=[name]).rows[0])[1]}
    assert riders == {"creff", "ccvr", "tau-norm", "real-features"}
    assert not any(map(passive, ("logit-shift", "proximal", "resampling", "local-batch-norm", "focal")))


def test_two_deployed_models_are_two_rows() -> None:
    with pytest.raises(SettingError, match="a row of its own"):
        plan(made(methods=["creff+ccvr"]))
