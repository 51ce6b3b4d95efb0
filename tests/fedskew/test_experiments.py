"""experiments.yaml and the plan of an experiment: strict reading, and one training for rows that share it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from client_app.client import Variant, affects_training
from client_app.variants import VARIANTS
from data import SettingError
from fedskew.experiments import FILE, Experiment, entries_in, experiment, find_all
from fedskew.experiments.plan import Cell, plan, runs, selected, split
from server_app.run_settings import RunSettings

SHIPPED = entries_in(FILE)


def built(**entry: Any) -> Experiment:
    """Return an experiment of two digits rounds."""
    return experiment(
        "one", {"title": "", "settings": {"rounds": 2}, "methods": ["fedavg"], **entry}
    )


def trained(cells: list[Cell]) -> dict[str, str]:
    """Return the method that trains every row."""
    return {cell.row: cell.run.general.method for cell in cells}


def test_every_shipped_experiment_compares_its_rows_on_the_same_data_clients_and_model() -> None:
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


REFUSED = (
    ("one: {title: 2001-13-45, methods: [fedavg]}", "experiments"),
    ("one: " + "[" * 5000, "experiments"),
    ("one: {title: a, methods: [fedavg, fedavg]}", "one: methods"),
    ("one: {title: a, methods: [{b: {mu: [1]}}]}", "one: methods: b: mu"),
    ("one: {title: a, methods: [{b: {method: fedavg, rounds: '2'}}]}", "one: methods: b: rounds"),
    ("one: {title: a, methods: [creff+ccvr]}", "methods"),
    ("one: {title: a, methods: [fedavg], settings: {rounds: {a: 1}}}", "one: settings: rounds"),
    ("one: {title: a, methods: [fedavg], settings: {tensorboard: 'yes'}}", "one: settings: tensorboard"),
    ("one: {title: a, methods: [fedavg], columns: {b: {learning-rate: low}}}", "one: columns: b: learning-rate"),
    ("one: {title: a, methods: [fedavg], seeds: 3}", "one: seeds"),
    ("one: {title: a, methods: [fedavg], seeds: [0, 0]}", "one: seeds"),
    ("one: {title: a, methods: [fedavg], sseeds: [1]}", "one: sseeds"),
    ("one: {title: a, methods: [fedavg], cells: {fedavg: [x]}}", "one: cells: fedavg"),
    ("one: {title: a, methods: [fedavg], cells: {fedavg: [1, 2]}}", "one: cells: fedavg"),
    ("one: {title: a, methods: [fedavg], notes: {'fedavg, IF 3': ''}}", "one: notes"),
    ("one: {title: a, methods: [fedavg], reaches: fedprox}", "one: reaches"),
    ("one: {title: a, methods: [fedavg], metrics: {few: few-recall}}", "one: metrics"),
    ("one: {title: a, methods: [fedavg], claims: [{says: b, better: fedavg}]}", "one: claims: than"),
    ("one: {title: a, methods: [fedavg], claims: [{says: b, better: fedavg, than: fedsgd}]}", "one: claims"),
    ("one: {title: a, methods: [fedavg], claims: [{says: b, better: fedavg, than: fedavg}]}", "one: claims: than"),
    ("one: {title: a, methods: [fedavg, fedbn], claims: [{says: b, better: fedavg, than: fedbn, in_columns: 2}]}",
     "one: claims: in_columns"),
    ("one: {title: a, methods: [fedavg]}\nall: {title: a, experiments: [one, two]}", "all: experiments"),
    ("one: {title: a, methods: [fedavg]}\nall: {title: a, experiments: [one], seeds: [1]}", "all: seeds"),
)  # fmt: skip
"""Texts of a file of experiments, and the place that the refusal names."""


@pytest.mark.parametrize(("text", "place"), REFUSED)
def test_a_file_of_experiments_is_read_strictly(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "experiments.yaml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        for entry in entries_in(file).values():
            if isinstance(entry, Experiment):
                plan(entry)
    named = ": ".join(filter(None, [caught.value.where, caught.value.key]))
    assert named.removeprefix("experiments.yaml: ") == place


def test_numbers_are_read_as_in_yaml_1_2(tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-2 for text; what only begins so is text in both."""
    file = tmp_path / "experiments.yaml"
    file.write_text("one: {title: 1e5f, methods: [fedavg], settings: {learning-rate: 1e-2}}")
    entry = entries_in(file)["one"]
    assert isinstance(entry, Experiment)
    assert (entry.title, entry.settings) == ("1e5f", {"learning-rate": 0.01})


ENTRY = "{title: a, methods: [fedavg, fedprox]}"


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        (f"one: {ENTRY}\ntwo: {ENTRY}\none: {ENTRY}\n", "one", "in line 1 and in line 3"),
        ("one:\n  methods:\n  - b:\n      mu: 2\n      mu: 3\n", "mu", "in line 4 and in line 5"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    text: str, key: str, lines: str, tmp_path: Path
) -> None:
    """YAML's readers keep the second and lose the first without a word."""
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        entries_in(file)
    assert caught.value.value == key and lines in caught.value.rule


def test_a_file_of_one_s_own_goes_before_the_shipped_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingError) as caught:
        find_all(["demo", "dmo"])
    assert (caught.value.value, caught.value.remedy) == ("dmo", "did you mean demo?")
    entry = "{title: Mine, methods: [fedavg], settings: {rounds: 1}}"
    file = tmp_path / "others.yaml"
    file.write_text(f"mine: {entry}\ndemo-tail: {entry}\n")
    (mine, tail, tails) = find_all(["mine", "demo-tail", "demo-tails"], file)
    assert (mine.settings, tail.settings, tails.title) == (
        {"rounds": 1},
        {"rounds": 1},
        SHIPPED["demo-tails"].title,
    )
    with pytest.raises(SettingError) as caught:
        find_all(["nowhere"], file)
    assert caught.value.rule == "is not in others.yaml or experiments.yaml"


def test_part_of_a_table_keeps_the_runs_of_the_whole() -> None:
    cells = plan(
        built(
            methods=["fedavg", "creff", "fedprox"],
            columns={"a": {"alpha": 0.1}, "b": {"alpha": 0.2}},
        )
    )
    assert selected(cells) == cells
    (part,) = selected(cells, ["fedavg"], ["b"])
    assert (part.row, part.column, part.run.general.method) == ("fedavg", "b", "creff")
    assert part in cells
    for rows, columns, option in ((["fedsgd"], [], "--row"), ([], ["c"], "--column")):
        with pytest.raises(SettingError) as caught:
            selected(cells, rows, columns)
        assert caught.value.key == option


def test_rows_that_differ_in_what_is_deployed_share_a_training() -> None:
    cells = plan(
        built(
            methods=["fedavg", "creff", "ccvr", "tau-norm", "fedshift", "fedshift+creff", "fednova"]
        )
    )
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
    longer = {"longer": {"method": "creff", "creff.head-steps": 9}}
    assert len(runs(plan(built(methods=["creff", longer])))) == 2, "one head has other settings"


def test_settings_of_a_section_count_for_the_methods_that_use_it() -> None:
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


@pytest.mark.parametrize(
    "entry",
    [
        {"columns": {"x": {"creff.steps": 1}}},
        {"methods": ["creff", {"fedavg": {"creff.steps": 1}}]},
    ],
)
def test_a_section_that_no_row_uses_is_refused(entry: Mapping[str, Any]) -> None:
    with pytest.raises(SettingError) as caught:
        plan(built(**entry))
    assert "creff.steps" in caught.value.key


def test_overrides_win_and_cannot_name_the_method() -> None:
    entry = built(methods=[{"slow": {"method": "fedavg", "rounds": 9}}], seeds=[0, 1])
    assert [(cell.seed, cell.run.general.rounds) for cell in plan(entry, {"rounds": 3})] == [
        (0, 3),
        (1, 3),
    ]
    assert [cell.run.general.seed for cell in plan(entry, {"seed": 5})] == [5]
    with pytest.raises(SettingError) as caught:
        plan(entry, {"method": "creff"})
    assert caught.value.key == "method"


def test_a_new_hook_counts_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings that differ by a new hook must not be merged because nobody thought of the rule."""
    kind = VARIANTS["class-statistics"]
    assert not affects_training(kind)
    monkeypatch.setattr(Variant, "label_noise", lambda self, labels_B: labels_B, raising=False)
    assert not affects_training(kind)
    monkeypatch.setattr(kind, "label_noise", lambda self, labels_B: 0, raising=False)
    assert affects_training(kind)
    assert not split(built(methods=["ccvr"]).rows[0])[1]
