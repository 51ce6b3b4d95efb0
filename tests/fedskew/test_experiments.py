"""experiments.yaml and the plan of an experiment: strict reading, and one training for rows that share it."""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import FedSkew
from in_process import HEADS
from safetensors.torch import save_file

from client_app.client import REPORTING_HOOKS, Variant, affects_training
from client_app.models.efficientnet_lite import efficientnet_lite0
from client_app.variants import VARIANTS
from data import SettingError
from fedskew.experiments import experiments, lookup
from fedskew.experiments.entries import entries_in_text
from fedskew.experiments.experiments import Experiment, experiment, load_experiments, load_suites
from fedskew.experiments.lookup import find_all, known_entries
from fedskew.experiments.plan import Cell, plan, runs, selected, split
from fedskew.report.result_warnings import values_of
from server_app.methods import METHODS

DOCUMENTATION = (Path(__file__).resolve().parents[2] / "docs/guides/experiments.md").read_text()
SHIPPED, SUITES = load_experiments(), load_suites()


def built(**entry: Any) -> Experiment:
    """Return an experiment of two digits rounds."""
    return experiment(
        "one", {"title": "", "settings": {"rounds": 2}, "methods": ["fedavg"], **entry}
    )


def trained(cells: list[Cell]) -> dict[str, str]:
    """Return the method that trains every row."""
    return {cell.row: cell.run.general.method for cell in cells}


@cache
def weights_file() -> str:
    """Return a file of drawn weights in place of the pretrained ones, which an entry leaves to its user."""
    folder = tempfile.mkdtemp(prefix="fedskew-weights-")
    atexit.register(shutil.rmtree, folder)
    file = str(Path(folder) / "lite0.safetensors")
    save_file(efficientnet_lite0().state_dict(), file)
    return file


@cache
def planned(name: str) -> list[Cell]:
    """Return the cells of a shipped experiment, of which there are thousands in all."""
    entry = SHIPPED[name]
    overrides = {"weights": weights_file()} if "freeze" in entry.settings else {}
    return plan(entry, overrides)


@pytest.mark.parametrize("entry", SHIPPED.values(), ids=lambda item: item.name)
def test_every_grid_point_of_every_shipped_experiment_parses(entry: Experiment) -> None:
    cells = planned(entry.name)
    assert len({(cell.row, cell.column, cell.seed) for cell in cells}) == len(cells)
    assert len(cells) == len(entry.rows) * len(entry.columns) * len(entry.seeds)
    assert len(runs(cells)) <= len(cells)


@pytest.mark.parametrize("entry", SHIPPED.values(), ids=lambda item: item.name)
def test_rows_are_compared_on_the_same_data_clients_and_model(entry: Experiment) -> None:
    """No shipped experiment has rows that are about data, model, participation or rounds: columns are."""
    compared: dict[tuple[str, int], Cell] = {}
    for cell in planned(entry.name):
        first = compared.setdefault((cell.column, cell.seed), cell).run
        assert cell.run.data == first.data, cell.row
        for key in ("seed", "model", "participation", "rounds"):
            assert getattr(cell.run.general, key) == getattr(first.general, key), (cell.row, key)


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
        ({"selection": "luckiest"}, "luckiest.*must be one of last"),
        ({"methods": ["fedavg", "fedavg"]}, "twice"),
        ({"methods": [{"a": {}, "b": {}}]}, "LABEL"),
        ({"seeds": []}, "at least one"),
        ({"reaches": "fedprox"}, "fedprox.*is no row"),
        ({"metrics": {"few": "few-recall"}}, "few.*is no column"),
        (
            {"claims": [{"says": "", "better": "fedavg", "than": "fedavg", "in_columns": 2}]},
            "in_columns = 2.*0 to 1",
        ),
        (
            {"claims": [{"says": "", "better": "fedavg", "than": "fedavg"}]},
            "one: claims: than = 'fedavg': must be another row",
        ),
        (
            {
                "methods": ["fedavg", {"again": {"method": "fedavg"}}],
                "claims": [{"says": "", "better": "again", "than": "fedavg"}],
            },
            "one: claims: than = 'fedavg': must be another row than 'again'",
        ),
    ],
)
def test_what_an_experiment_cannot_mean_is_refused(entry: Mapping[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        built(**entry)


def test_experiments_that_are_no_yaml_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text("one:\n  title: a: b\n")
    with pytest.raises(ValueError, match=r"experiments.yaml.*is not YAML.*line 2"):
        load_experiments(tmp_path / "experiments.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be entries with keys, not nothing"),
        ("- one\n", "must be entries with keys, not a list"),
        ("one: [1]", "one = .*: must be keys with values"),
        ("one: {1: 2}", "one = .*: must be keys with values"),
        ("1: {title: a}", "the name of an entry = 1: must be text"),
        ("one: {title: a}", "one: methods is missing: write `methods: "),
        ("one: {title: 3, methods: [fedavg]}", "one: title = 3: must be text, not an integer: write \"3\", in quotes"),
        ("one: {methods: [fedavg]}", "file: one: title is missing: write `title: TEXT`"),
        ("one: {title: a, methods: [fedavg], settings: {classes: 2}}",
         "file: one: settings: classes = 2: must be text, not an integer: write \"2\", in quotes"),
        ("one: {title: a, methods: [fedavg], assumed: {learning-rate: 1e-2}}",
         "file: one: assumed: learning-rate = '1e-2': must be a number, not text: write 0.01\n"),
        ("one: {title: a, methods: [fedavg], columns: {b: {learning-rate: 1e-7}}}",
         "file: one: columns: b: learning-rate = '1e-7': must be a number, not text: write 1.0e-07\n"),
        ("one: {title: a, methods: [{b: {method: fedavg, rounds: '2'}}]}",
         "file: one: methods: b: rounds = '2': must be an integer, not text: write 2\n"),
        ("one: {title: a, methods: [fedavg], settings: {tensorboard: 'yes'}}",
         "file: one: settings: tensorboard = 'yes': must be true or false, not text: write true\n"),
        ("one: {title: a, methods: [fedavg], settings: {roundz: 2}}",
         "file: one: settings: roundz = 2: there is no such setting; did you mean rounds"),
        ("one: {title: a, claims: [b", "is not YAML: line [12], column "),
        ("one: {title: a, methods: fedavg}", "one: methods = 'fedavg': must be a list: write \\[fedavg\\]\n"),
        ("one: {title: a, methods: []}", "one: methods = .*: must name at least one"),
        ("one: {title: a, methods: [3]}", "one: methods = 3: must be METHOD or LABEL"),
        ("one: {title: a, methods: [{b: 3}]}", "one: methods: b = 3: must be keys with values"),
        ("one: {title: a, methods: [{b: {mu: [1]}}]}", "one: methods: b: mu = .*: must be true or false or .* a list"),
        ("one: {title: a, methods: [{b: {method: 3}}]}", "one: methods: method = 3: must be text"),
        ("one: {title: a, methods: [fedavg], seeds: 3}", "one: seeds = 3: must be a list: write \\[3\\]\n"),
        ("one: {title: a, methods: [fedavg+fedavg]}",
         "file: one: methods: fedavg\\+fedavg: method = 'fedavg\\+fedavg': names a method twice: write fedavg\n"),
        ("one:\n  title: A: b", "is not YAML: line 2, column 11: .*: put text that holds a colon in quotes"),
        ("one:\n\ttitle: a", "is not YAML: line 2, column 1: .*: indent by spaces"),
        ("one: {title: a, methods: [fedavg], seeds: [x]}", "one: seeds = 'x': must be an integer, not text"),
        ("one: {title: a, methods: [fedavg], seeds: [0, 0]}", "one: seeds = .*: name a seed twice"),
        ("one: {title: a, methods: [fedavg], columns: {}}", "one: columns = .*: must name at least one"),
        ("one: {title: a, methods: [fedavg], columns: [b]}", "one: columns = .*: must be keys with values"),
        ("one: {title: a, methods: [fedavg], columns: {b: 3}}", "one: columns: b = 3: must be keys with values"),
        ("one: {title: a, methods: [fedavg], settings: {rounds: {a: 1}}}", "one: settings: rounds = .*: must be true"),
        ("one: {title: a, methods: [fedavg], settings: {rounds: 2001-01-01}}", "settings: rounds = .* something else"),
        ("one: {title: a, methods: [fedavg], cells: {fedavg: 3}}", "one: cells: fedavg = 3: must be a list"),
        ("one: {title: a, methods: [fedavg], cells: {fedavg: [x]}}", "fedavg = 'x': must be a number or nothing"),
        ("one: {title: a, methods: [fedavg], claims: {}}", "one: claims = .*: must be a list"),
        ("one: {title: a, methods: [fedavg], claims: [b]}", "one: claims = 'b': must be keys with values"),
        ("one: {title: a, methods: [fedavg], claims: [{says: b, better: fedavg, than: fedavg, by: c}]}",
         "one: claims: by = 'c': must be a number, not text"),
        ("one: {title: a, methods: [fedavg], notes: [b]}", "one: notes = .*: must be keys with values"),
        ("one: {title: 2001-13-45, methods: [fedavg]}", "is not YAML: month must be in 1..12"),
        ("one: " + "[" * 5000, "is not YAML: "),
        ("one: {title: a, experiments: 3}", "one: experiments = 3: must be a list"),
        ("one: {title: a, experiments: [[b]]}", "one: experiments = .*: must be text, not a list"),
    ],
)  # fmt: skip
def test_a_file_of_experiments_is_read_strictly(
    tmp_path: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch, fedskew: FedSkew
) -> None:
    """Each of them is one sentence and exit status 2."""
    (tmp_path / "experiments.yaml").write_text(text)
    monkeypatch.setattr(lookup, "FILE", tmp_path / "experiments.yaml")
    status, _, errors = fedskew("run", "one", "--dry-run")
    assert (status, errors.count("\n")) == (2, 1)
    words = words.replace("file: ", "^fedskew: experiments.yaml: ")
    assert re.search(words, errors), errors


ENTRY = "{title: a, methods: [fedavg, fedprox]}"


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        (f"one: {ENTRY}\ntwo: {ENTRY}\none: {ENTRY}\n", "one", (1, 3)),
        ("one:\n  title: a\n  methods: [fedavg]\n  seeds: [0]\n  seeds: [1]\n", "seeds", (4, 5)),
        (
            "one:\n  title: a\n  methods:\n  - b:\n      rounds: 2\n      rounds: 3\n",
            "rounds",
            (5, 6),
        ),
        ("one: {title: a, methods: [fedavg], title: b}\n", "title", (1, 1)),
        (
            ".common: &common\n  title: a\none:\n  <<: *common\n  methods: [fedavg]\n  methods: []\n",
            "methods",
            (5, 6),
        ),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    text: str, key: str, lines: tuple[int, int], tmp_path: Path, fedskew: FedSkew
) -> None:
    """YAML's readers keep the second and lose the first without a word."""
    file = tmp_path / "own.yaml"
    file.write_text(text)
    status, _, errors = fedskew("run", "one", "--experiments", file, "--dry-run")
    assert (status, errors.count("\n")) == (2, 1)
    expected = f"own.yaml: key = '{key}': stands twice, in line {lines[0]} and in line {lines[1]};"
    assert expected in errors


def test_a_key_that_is_merged_and_stated_is_not_a_key_that_stands_twice(tmp_path: Path) -> None:
    """The stated value wins, at every depth, which is what merging is for; other entries may have the same keys."""
    file = tmp_path / "own.yaml"
    file.write_text(
        ".base: &base {rounds: 1, alpha: 0.1}\n"
        "one:\n  title: a\n  methods: [fedavg]\n"
        "  settings: &settings\n    <<: *base\n    rounds: 2\n"
        "two:\n  title: a\n  methods: [fedavg]\n"
        "  settings:\n    <<: [*settings, *base]\n    alpha: 0.5\n"
    )
    entries = load_experiments(file)
    assert entries["one"].settings == {"rounds": 2, "alpha": 0.1}
    assert entries["two"].settings == {"rounds": 2, "alpha": 0.5}


def test_a_file_of_experiments_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    for content, words in (
        (None, "cannot be read"),
        (b"\xff\xfe\0", "is not YAML"),
        (b" " * 2**23, "at most"),
    ):
        path = tmp_path / "experiments.yaml"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SettingError, match=words):
            load_experiments(path)


def test_an_experiment_nobody_wrote_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean demo"):
        find_all(["demo", "dmo"])


def test_a_file_of_one_s_own_goes_before_the_shipped_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fedskew: FedSkew,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rounds in (("experiments.yaml", 1), ("others.yaml", 2)):
        entry = f"{{title: Mine, methods: [fedavg], settings: {{rounds: {rounds}}}}}"
        Path(name).write_text(f"mine: {entry}\ndemo-tail: {entry}\n")
    (mine, tail, tails) = find_all(["mine", "demo-tail", "demo-tails"])
    assert (mine.settings, tail.settings, tails.title) == (
        {"rounds": 1},
        {"rounds": 1},
        SHIPPED["demo-tails"].title,
    )
    assert caplog.messages == ["read from ./experiments.yaml: mine, demo-tail"]
    assert (
        find_all(["mine"], Path("others.yaml"))[0].settings == {"rounds": 2}
        and len(caplog.messages) == 1
    )
    assert json.loads(fedskew("list", "experiments", "--json", "--experiments", "others.yaml")[1])[-1] == {
        "experiment": "mine", "what": "Mine"
    }  # fmt: skip
    assert fedskew("report", "mine")[0] == 1 and fedskew("report", "yours")[0] == 2
    Path("others.yaml").write_text("mine: {title: Mine, methods: [fedavg], seeds: [x]}")
    status, _, errors = fedskew("run", "mine", "--experiments", "others.yaml")
    assert (
        status == 2
        and errors == "fedskew: others.yaml: mine: seeds = 'x': must be an integer, not text\n"
    )
    assert fedskew("run", "mine", "--experiments", "nowhere.yaml")[2].endswith(
        "No such file or directory\n"
    )


def written(tmp_path: Path, text: str) -> Path:
    """Return a file of experiments with one called `one`."""
    path = tmp_path / "experiments.yaml"
    path.write_text("one: {title: One, methods: [fedavg]}\n" + text)
    return path


def test_a_suite_stands_for_its_experiments_once_each() -> None:
    suite = SUITES["quick"]
    assert [entry.name for entry in find_all(["quick"])] == list(suite.experiments)
    again = find_all(["abide", "quick", suite.experiments[0], "abide"])
    assert [entry.name for entry in again] == ["abide", *suite.experiments]
    assert known_entries().keys() == load_experiments().keys() | load_suites().keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "all: {title: All, experiments: [one, two]}",
            "all: experiments = 'two': is no experiment",
        ),
        (
            "all: {title: All, experiments: [one]}\nmore: {title: More, experiments: [all]}",
            "'all': is no experiment",
        ),
        ("all: {title: All, experiments: [one], seeds: [1]}", "seeds.*is no key"),
        ("all: {experiments: [one]}", "title"),
    ],
)
def test_what_a_suite_cannot_mean_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=words):
        load_suites(written(tmp_path, text))


def test_a_suite_is_no_experiment(tmp_path: Path) -> None:
    path = written(tmp_path, "all: {title: All, experiments: [one]}")
    assert list(load_experiments(path)) == ["one"]
    assert load_suites(path)["all"].experiments == ("one",)


def test_quick_is_at_most_twelve_claims_in_three_seeds_or_more() -> None:
    quick = find_all(["quick"])
    assert sum(len(entry.claims) for entry in quick) <= 12
    assert all(entry.seeds[:3] == (0, 1, 2) for entry in quick)


@cache
def ids(name: str) -> set[str]:
    """Return the ids of an experiment's or a suite's runs."""
    ids = set()
    for entry in find_all([name]):
        cells = planned(entry.name) if entry.name in SHIPPED else plan(entry)
        ids |= {run.run_id for run in runs(cells)}
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("fedshift-table2", "fedshift-table1"),
        ("fedshift-figure1", "fedshift-table1"),
        ("fedbn-convergence", "fedbn-digits"),
    ],
)
def test_tables_of_the_same_runs_train_them_once(part: str, whole: str) -> None:
    assert ids(part) < ids(whole)


def test_rounds_that_no_paper_states_are_assumed() -> None:
    """CReFF's paper and IWDS's poster name none; the latter's Figures 1 and 3 are about the first round."""
    for name, entry in SHIPPED.items():
        if name.startswith(("creff-", "iwds-")) and name not in ("iwds-figure1", "iwds-figure3"):
            assert "rounds" in entry.assumed and "rounds" not in entry.settings, name


def test_the_classifier_is_claimed_to_help_more_than_every_other_component() -> None:
    entry = SHIPPED["creff-figure2"]
    assert [claim.than for claim in entry.claims if claim.better == "classifier"] == [
        row.label for row in entry.rows if row.method == "real-blocks"
    ]


def test_fedshifts_table_2_says_that_the_paper_counts_all_of_fedavgs_rounds() -> None:
    entry = SHIPPED["fedshift-table2"]
    rounds = [settings["rounds"] for settings in entry.columns.values()]
    assert list(entry.cells[entry.reaches]) == rounds and entry.selection == "best-test"
    assert "all its rounds in the paper" in entry.notes[entry.reaches]


def test_scaffold_is_below_fedavg_and_fedprox_after_one_epoch() -> None:
    """The worst of the four; FedShift's own claim makes it three."""
    entry = SHIPPED["fedshift-table3"]
    below = {
        claim.better
        for claim in entry.claims
        if claim.than == "scaffold" and claim.columns in ((), ("E = 1",))
    }
    assert (
        below
        == {"fedavg", "fedprox", "fedshift"}
        == {row.label for row in entry.rows} - {"scaffold"}
    )


@pytest.mark.slow
def test_the_assumed_settings_are_in_force_in_some_run() -> None:
    for entry in SHIPPED.values():
        cells = planned(entry.name)
        assert all(values_of(key, cells) for key in entry.assumed), entry.name


def test_quick_takes_as_long_as_the_readme_says() -> None:
    (minutes,) = re.findall(r"(\d+) minutes", SUITES["quick"].title)
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert f"papers' claims in {minutes} minutes" in " ".join(readme.split())


@pytest.mark.slow
def test_the_documentation_lists_every_experiment_with_its_number_of_runs() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (\d+) \|[^|]*\|[^|]*\|$", DOCUMENTATION, re.M)
    documented = {name: int(number) for name, number in rows}
    assert documented == {name: len(ids(name)) for name in known_entries()}
    for name, entry in known_entries().items():
        if number := re.search(r"(\d+) runs", entry.title):
            assert int(number[1]) == documented[name]


def test_the_example_of_the_documentation_is_an_experiment() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENTATION, re.S)
    ((name, entry),) = yaml.safe_load(text).items()
    assert len(runs(plan(experiment(name, entry)))) == 2 * 2 * 3


def test_assumed_settings_are_in_force_below_what_is_stated() -> None:
    entry = built(
        assumed={"rounds": 9, "batch-size": 8, "creff.head-steps": 2}, methods=["fedavg", "creff"]
    )
    first, second = (cell.run.flat() for cell in plan(entry, {"batch-size": 16}))
    assert (first["rounds"], first["batch-size"]) == (2, 16)
    assert second["creff.head-steps"] == 2


def test_a_column_may_show_another_number_of_the_same_run() -> None:
    entry = built(
        columns={"all": None, "few": None}, metric="accuracy", metrics={"few": "few-recall"}
    )
    assert [entry.metric_of(column) for column in entry.columns] == ["accuracy", "few-recall"]
    assert len(runs(plan(entry))) == 1


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
    with pytest.raises(
        SettingError, match=r"--row = 'fedsgd': must be one of fedavg, creff, fedprox"
    ):
        selected(cells, ["fedsgd"])
    with pytest.raises(SettingError, match=r"--column = 'c': must be one of a, b"):
        selected(cells, [], ["c"])


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


def test_rows_of_one_method_with_other_settings_are_other_runs() -> None:
    cells = plan(
        built(
            methods=[
                "fedavg",
                {"m = 1": {"method": "creff", "creff.features-per-class": 1}},
                "creff",
            ]
        )
    )
    assert [cell.deployed for cell in cells] == ["average", "creff", "creff"]
    first, second, third = (cell.run for cell in cells)
    assert first.run_id == second.run_id != third.run_id
    assert second.flat()["creff.features-per-class"] == 1
    assert third.flat()["creff.features-per-class"] == 100


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
        {"settings": {"creff.steps": 1}},
        {"columns": {"x": {"creff.steps": 1}}},
        {"methods": ["creff", {"fedavg": {"creff.steps": 1}}]},
    ],
)
def test_a_section_that_no_row_uses_is_refused(entry: Mapping[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"creff.steps.*has no effect"):
        plan(built(**entry))


def test_overrides_win_and_cannot_name_the_method() -> None:
    entry = built(methods=[{"slow": {"method": "fedavg", "rounds": 9}}], seeds=[0, 1])
    assert [(cell.seed, cell.run.general.rounds) for cell in plan(entry, {"rounds": 3})] == [
        (0, 3),
        (1, 3),
    ]
    assert [cell.run.general.seed for cell in plan(entry, {"seed": 5})] == [5]
    with pytest.raises(SettingError, match="names its methods itself"):
        plan(entry, {"method": "creff"})


def test_only_variants_that_leave_training_alone_ride_on_another() -> None:
    riders = {name for name in METHODS if split(built(methods=[name]).rows[0])[1]}
    assert riders == {
        *("creff", "creff-code", "ccvr", "refit-bias", "tau-norm", "real-features", "real-blocks"),
        "ditto",  # the clients' own models, beside the same average
        *HEADS,
    }


def test_the_variants_that_leave_training_alone_are_those_that_only_report() -> None:
    """What the list of names decided that stood here before, and what heads in closed form ask for."""
    assert {name for name, kind in VARIANTS.items() if not affects_training(kind)} == {
        "balanced-statistics",
        "class-means",
        "client-means",
        "feature-statistics",
        "label-counts",
        "label-discrepancy",
        "augmented-gradients",
        "class-predictions",
        "class-statistics",
        "feature-gradients",
        "personal-model",
    }


def test_a_new_hook_counts_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings that differ by a new hook must not be merged because nobody thought of the rule."""
    kind = VARIANTS["class-statistics"]
    assert not affects_training(kind)
    monkeypatch.setattr(Variant, "label_noise", lambda self, labels_B: labels_B, raising=False)
    assert not affects_training(kind)
    monkeypatch.setattr(kind, "label_noise", lambda self, labels_B: 0, raising=False)
    assert affects_training(kind)
    assert not split(built(methods=["ccvr"]).rows[0])[1]


def test_the_hooks_that_only_report_are_there() -> None:
    assert vars(Variant).keys() >= REPORTING_HOOKS


def test_ditto_shares_fedavgs_training_and_shows_the_clients_own_models() -> None:
    entry = built(methods=["fedavg", "ditto", "fedbn+ditto"], settings={"model": "mlp-bn"})
    average, own, beside_fedbn = plan(entry)
    assert average.run.run_id == own.run.run_id != beside_fedbn.run.run_id
    deployed = [cell.deployed for cell in (average, own, beside_fedbn)]
    assert deployed == ["average", "personal-model", "personal-model"]


def test_two_deployed_models_are_two_rows() -> None:
    with pytest.raises(SettingError, match="a row of its own"):
        plan(built(methods=["creff+ccvr"]))


def test_a_file_is_parsed_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []

    def counted(text: str, path: Path) -> Any:
        parsed.append(text)
        return entries_in_text(text, path)

    monkeypatch.setattr(experiments, "entries_in_text", counted)
    file = tmp_path / "experiments.yaml"
    text = "one:\n  title: One\n  methods: [fedavg]\n"
    file.write_text(text)
    first = experiments.entries_in(file)
    first.clear()  # whoever is given the entries may change the mapping
    assert list(experiments.entries_in(file)) == ["one"]
    assert len(parsed) == 1
    file.write_text(text.replace("one:", "two:"))
    assert list(experiments.entries_in(file)) == ["two"]
    assert len(parsed) == 2
