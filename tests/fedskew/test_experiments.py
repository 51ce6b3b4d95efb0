"""experiments.yaml and the plan of an experiment: strict reading, shared trainings, and settings that are tuned."""

import json
import math
from typing import Any

import pytest
import yaml
from in_process import SMALL

from client_app.client import Variant, affects_training
from client_app.variants import VARIANTS
from data import SettingError
from fedskew.experiments import FILE, Experiment, entries_in, experiment, find_all
from fedskew.experiments.plan import Tuned, plan, runs, selected, split, trials, values_of_rows
from server_app.run_settings import RunSettings

SHIPPED = entries_in(FILE)
COLUMNS = {"a": {}, "b": {"alpha": 0.5}}
PAIR = {"says": "above", "better": "fedshift", "than": "fedavg"}
SHAPE = {"says": "a shape", "over": ["fedavg"]}
SERIES = {"says": "it falls", "series": "loss", "row": "fedavg"}
TUNE = {"key": "learning-rate", "values": [0.001, 0.05, 0.3], "seed": 9}


def built(**entry: Any) -> Experiment:
    """Return an experiment of two digits rounds."""
    usual = {"title": "", "settings": {"rounds": 2}, "methods": ["fedavg"]}
    return experiment("one", {**usual, **entry})


def place_of(error: SettingError) -> str:
    """Return what an error names."""
    return ": ".join(filter(None, [error.where, error.key]))


def test_every_shipped_experiment_compares_its_rows_on_the_same_data_clients_and_model():
    """Every row and column of the first seed is planned: rows are about methods, and columns about all else."""
    for entry in SHIPPED.values():
        if not isinstance(entry, Experiment) or "freeze" in entry.settings:
            continue  # it needs a file of weights, which its user has
        cells = plan(entry, {}, [entry.seeds[0]])
        assert len({(cell.row, cell.column) for cell in cells}) == len(cells)
        assert len(cells) == sum(len(row.only or entry.columns) for row in entry.rows)
        compared: dict[str, RunSettings] = {}
        for cell in cells:
            first = compared.setdefault(cell.column, cell.run)
            assert cell.run.data == first.data, (entry.name, cell.row)
            for key in ("seed", "model", "participation", "rounds"):
                same = getattr(cell.run.general, key) == getattr(first.general, key)
                assert same, (entry.name, cell.row, key)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"methods": ["fedavg", "fedavg"]}, "one: methods"),
    ({"methods": [{"b": {"mu": [1]}}]}, "one: methods: b: mu"),
    ({"methods": [{"b": {"method": "fedavg", "rounds": "2"}}]}, "one: methods: b: rounds"),
    ({"methods": ["creff+ccvr"]}, "methods"),
    ({"methods": ["creff", {"fedavg": {"creff.steps": 1}}]}, "creff.steps"),
    ({"methods": [{"fedavg": {"only": ["x"]}}]}, "one: methods: fedavg: only"),
    ({"settings": {"rounds": {"a": 1}}}, "one: settings: rounds"),
    ({"columns": {"b": {"creff.steps": 1}}}, "creff.steps"),
    ({"seeds": 3}, "one: seeds"),
    ({"seeds": [0, 0]}, "one: seeds"),
    ({"cells": {"fedavg": [1, 2, 3]}}, "one: cells: fedavg"),
    ({"notes": {"fedavg, IF 3": ""}}, "one: notes"),
    ({"reaches": "fedprox"}, "one: reaches"),
    ({"metrics": {"few": "few-recall"}}, "one: metrics"),
    ({"claims": [{"says": "b", "better": "fedavg"}]}, "one: claims: than"),
    ({"claims": [{**PAIR, "than": "fedsgd"}]}, "one: claims"),
    ({"claims": [{**PAIR, "than": "fedshift"}]}, "one: claims: than"),
    ({"claims": [{**PAIR, "in_columns": 3}]}, "one: claims: in_columns"),
    ({"claims": [{**PAIR, "within": 2, "in_columns": 1}]}, "one: claims: in_columns"),
    ({"claims": [{**SHAPE, "trend": "rises", "in_columns": 1}]}, "one: claims: in_columns"),
    ({"claims": [{**PAIR, "within": 2, "by": 1}]}, "one: claims: by"),
    ({"claims": [{**SERIES, "falls": True, "by": 1}]}, "one: claims: by"),
    (
        {"methods": ["fedavg", {"fedshift": {"only": ["a"]}}], "claims": [PAIR]},
        "one: claims: columns",
    ),
    ({"claims": [{**PAIR, "columns": ["x"]}]}, "one: claims: columns"),
    ({"claims": [{**PAIR, "selection": "first"}]}, "one: claims: selection"),
    ({"claims": [{**PAIR, "sooner": True, "within": 2}]}, "one: claims: better"),
    ({"claims": [{**PAIR, "times": 4}]}, "one: claims: times"),
    ({"claims": [SHAPE]}, "one: claims: over"),
    ({"claims": [{**SHAPE, "peak": "d"}]}, "one: claims: peak"),
    ({"claims": [{**SHAPE, "knee": True}]}, "one: claims: columns"),
    ({"claims": [{**SERIES, "below": 0.1}]}, "one: claims: by_round"),
    ({"claims": [SERIES]}, "one: claims: series"),
    ({"claims": [{"says": "", "held_by": "a test"}]}, "one: claims: held_by"),
    ({"tune": {**TUNE, "key": "learnig-rate"}}, "one: tune: key"),
    ({"tune": {**TUNE, "key": "seed"}}, "one: tune: key"),
    ({"tune": {**TUNE, "values": [0.1, 0.1]}}, "one: tune: values"),
    ({"tune": {**TUNE, "seed": 0}}, "one: tune: seed"),
    ({"tune": TUNE, "methods": [{"fedavg": {"learning-rate": 0.1}}]}, "one: tune: key"),
    ({"tune": TUNE, "columns": {"a": {"learning-rate": 0.1}}}, "one: tune: key"),
]
"""Changes to an entry, and the place that the refusal names."""


@pytest.mark.parametrize(("changes", "place"), REFUSED)
def test_what_an_entry_cannot_mean_is_refused(changes, place):
    entry = {"methods": ["fedavg", "fedshift"], "columns": COLUMNS}
    plan(built(**entry, claims=[PAIR], tune=TUNE), tuned={("fedavg", "a"): 0.1})  # the control
    with pytest.raises(SettingError) as caught:
        plan(built(**{**entry, **changes}))
    assert place_of(caught.value) == place


ENTRY = "{title: a, methods: [fedavg, fedprox]}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("one: {title: 2001-13-45, methods: [fedavg]}", "experiments"),
        ("one: " + "[" * 5000, "experiments"),
        ("one:\n  methods:\n  - b:\n      mu: 2\n      mu: 3\n", "experiments.yaml: key"),
        (f"one: {ENTRY}\nall: {{title: a, experiments: [one, two]}}", "all: experiments"),
        (f"one: {ENTRY}\nall: {{title: a, experiments: [one], seeds: [1]}}", "all: seeds"),
    ],
)
def test_a_file_of_experiments_is_read_strictly(tmp_path, text, place):
    file = tmp_path / "experiments.yaml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        entries_in(file)
    assert place_of(caught.value).endswith(place)


def test_numbers_are_read_as_in_yaml_1_2(tmp_path):
    """YAML 1.1 takes 1e-2 for text; what only begins so is text in both."""
    file = tmp_path / "experiments.yaml"
    file.write_text("one: {title: 1e5f, methods: [fedavg], settings: {learning-rate: 1e-2}}")
    entry = entries_in(file)["one"]
    assert (entry.title, entry.settings) == ("1e5f", {"learning-rate": 0.01})


def test_a_file_of_one_s_own_goes_before_the_shipped_one(tmp_path):
    with pytest.raises(SettingError) as caught:
        find_all(["demo", "dmo"])
    assert (caught.value.value, caught.value.remedy) == ("dmo", "did you mean demo?")
    entry = "{title: Mine, methods: [fedavg], settings: {rounds: 1}}"
    file = tmp_path / "others.yaml"
    file.write_text(f"mine: {entry}\ndemo-tail: {entry}\n")
    (mine, tail, tails) = find_all(["mine", "demo-tail", "demo-tails"], file)
    assert mine.settings == tail.settings == {"rounds": 1}
    assert tails.title == SHIPPED["demo-tails"].title
    with pytest.raises(SettingError) as caught:
        find_all(["nowhere"], file)
    assert caught.value.rule == "is not in others.yaml or experiments.yaml"


def test_a_suite_without_experiments_is_not_run_as_one_run_from_settings(tmp_path, fedskew):
    file = tmp_path / "others.yaml"
    file.write_text("mine: {title: Mine, papers: true}")
    status, _, errors = fedskew("run", "mine", "--experiments", file, "--dry-run")
    assert status == 2 and "experiment = 'mine': is a suite without experiments" in errors


def test_part_of_a_table_keeps_the_runs_of_the_whole():
    cells = plan(built(methods=["fedavg", "creff", "fedprox"], columns=COLUMNS))
    assert selected(cells) == cells
    (part,) = selected(cells, ["fedavg"], ["b"])
    assert (part.row, part.column, part.run.general.method) == ("fedavg", "b", "creff")
    assert part in cells
    for rows, columns, option in ((["fedsgd"], [], "--row"), ([], ["c"], "--column")):
        with pytest.raises(SettingError) as caught:
            selected(cells, rows, columns)
        assert caught.value.key == option


def test_rows_that_differ_in_what_is_deployed_share_a_training():
    heads = ["fedavg", "creff", "ccvr", "tau-norm"]
    cells = plan(built(methods=[*heads, "fedshift", "fedshift+creff", "fednova"]))
    assert {cell.row: cell.run.general.method for cell in cells} == {
        **dict.fromkeys(heads, "creff+ccvr+tau-norm"),
        **dict.fromkeys(["fedshift", "fedshift+creff"], "fedshift+creff"),
        "fednova": "fednova",
    }
    deployed = ["average", "creff", "ccvr", "tau-norm", "average", "creff", "average"]
    assert [cell.deployed for cell in cells] == deployed
    assert len(runs(cells)) == 3
    longer = {"longer": {"method": "creff", "creff.head-steps": 9}}
    assert len(runs(plan(built(methods=["creff", longer])))) == 2, "one head has other settings"


def test_settings_of_a_section_count_for_the_methods_that_use_it():
    entry = built(
        methods=["fedavg", "fedprox", "fedshift+fedprox"],
        settings={"proximal.mu": 0.1},
        columns={"E 2": {"local-epochs": 2}},
    )
    fedavg, fedprox, both = (cell.run.flat() for cell in plan(entry))
    assert "proximal.mu" not in fedavg
    assert fedprox["proximal.mu"] == both["proximal.mu"] == 0.1
    assert fedavg["local-epochs"] == 2
    assert plan(entry, {"proximal.mu": 0.3})[1].run.flat()["proximal.mu"] == 0.3


def test_a_row_has_the_columns_and_seeds_that_it_names():
    limited = {"fedshift": {"only": ["a"], "seeds": [2]}}
    cells = plan(built(methods=["fedavg", limited], columns=COLUMNS, seeds=[1, 2]))
    fedavg = [("fedavg", column, seed) for column in COLUMNS for seed in (1, 2)]
    found = sorted((cell.row, cell.column, cell.seed) for cell in cells)
    assert found == [*fedavg, ("fedshift", "a", 2)]


def test_overrides_win_and_cannot_name_the_method():
    entry = built(methods=[{"slow": {"method": "fedavg", "rounds": 9}}], seeds=[0, 1])
    shorter = plan(entry, {"rounds": 3})
    assert [(cell.seed, cell.run.general.rounds) for cell in shorter] == [(0, 3), (1, 3)]
    assert [cell.run.general.seed for cell in plan(entry, {"seed": 5})] == [5]
    with pytest.raises(SettingError) as caught:
        plan(entry, {"method": "creff"})
    assert caught.value.key == "method"


def test_a_new_hook_counts_as_training(monkeypatch):
    """Two trainings that differ by a new hook must not be merged because nobody thought of the rule."""
    kind = VARIANTS["class-statistics"]
    assert not affects_training(kind)
    monkeypatch.setattr(Variant, "label_noise", lambda self, labels_B: labels_B, raising=False)
    assert not affects_training(kind)
    monkeypatch.setattr(kind, "label_noise", lambda self, labels_B: 0, raising=False)
    assert affects_training(kind)
    assert not split(built(methods=["ccvr"]).rows[0])[1]


SETTINGS = {key: value for key, value in SMALL.items() if key != "method"}


def rates(cells):
    """Return the learning rate of every cell by row, column and seed."""
    return {(one.row, one.column, one.seed): one.run.flat()["learning-rate"] for one in cells}


def test_each_row_and_column_has_the_value_that_its_trials_on_another_seed_chose():
    usual: dict[str, Any] = {"methods": ["fedavg", "fednova"], "columns": COLUMNS, "seeds": [0, 1]}
    entry = built(**usual, tune=TUNE)
    # FedNova has no value in b, and is left out there.
    tuned = {("fedavg", "a"): 0.05, ("fednova", "a"): 0.3, ("fedavg", "b"): 0.001}
    expected = {(*place, seed): rate for place, rate in tuned.items() for seed in (0, 1)}
    assert rates(plan(entry, tuned=tuned)) == expected

    tried = trials(entry, {})
    places = [(row, column) for column in COLUMNS for row in ("fedavg", "fednova")]
    values = [(*place, value) for value in (0.001, 0.05, 0.3) for place in places]
    assert [(trial.row, trial.column, trial.tried) for trial in tried] == values
    assert {trial.seed for trial in tried} == {9}
    plain = {cell.run.run_id for cell in plan(built(**usual), {"learning-rate": 0.05}, [9])}
    assert {trial.run.run_id for trial in tried if trial.tried == 0.05} == plain

    with pytest.raises(SettingError) as caught:
        plan(entry, {}, [0, 9])
    assert (caught.value.key, caught.value.value) == ("seed", 9)
    # A table without trials may have that seed.
    assert len(plan(entry, {"learning-rate": 0.7}, [0, 9])) == 8


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
def test_the_highest_number_of_the_finished_trials_is_chosen(scores, value, at_an_end):
    tuned = Tuned("fedavg", "a", scores, "client-accuracy.mean")
    assert (tuned.value, tuned.at_an_end) == (value, at_an_end)
    assert values_of_rows([tuned]) == ({} if value is None else {("fedavg", "a"): value})


def test_one_command_makes_the_trials_and_then_the_table(tmp_path, fedskew):
    entry = {"title": "Tuned", "settings": SETTINGS, "methods": ["fedavg"], "seeds": [0]}
    file = tmp_path / "mine.yaml"
    words = ["one", "--experiments", file, "--results", tmp_path / "results"]

    def write(*values: float) -> None:
        file.write_text(yaml.safe_dump({"one": {**entry, "tune": {**TUNE, "values": [*values]}}}))

    write(0.001, 0.05, 1e30)
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

    write(1e30, 1e31)
    status, _, errors = fedskew("run", *words)
    assert status == 1 and "one, fedavg: none of its trials has finished" in errors
