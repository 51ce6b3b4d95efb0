"""`statements:` of a file of experiments, read strictly."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from data import DataError, SettingError
from data.readers.catalog import members
from fedskew.cli.run import hours_of
from fedskew.cli.run_execution import fitting, one_seed_first, with_data
from fedskew.costs import forecast as forecast_module
from fedskew.costs.estimate import Cost
from fedskew.costs.forecast import Entry, Forecast
from fedskew.experiments.experiments import experiment, load_experiments, load_suites
from fedskew.experiments.lookup import find_all, sized_suite
from fedskew.experiments.plan import data_sets, plan, runs
from fedskew.experiments.statements import (
    BY_SHOT_GROUP,
    FORMS,
    HeldBy,
    Partition,
    load_statements,
    refuse_unknown_metric,
)
from fedskew.scheduling import Allocation
from strategies.registry import SERVER_METHODS

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {
    "small": {"title": "Small", "settings": {"rounds": 2}, "methods": ["fedavg", "fedshift"],
              "columns": {"a": {}, "b": {"alpha": 0.5}, "c": {"alpha": 1.0}}},
    "large": {"title": "Large", "settings": {"rounds": 9}, "methods": ["fedavg", "fedshift"],
              "columns": {"a": {}, "b": {"alpha": 0.5}, "c": {"alpha": 1.0}}},
}  # fmt: skip
STATEMENT = {
    "paper": "P, Table 1", "says": "above", "from": "large", "here": "small", "lost": "seven rounds",
    "test": {"better": "fedshift", "than": "fedavg"},
}  # fmt: skip


def file_of(tmp_path: Path, **changes: Any) -> Path:
    """Return a file with one statement, changed so; None leaves a key out."""
    entry = {key: value for key, value in {**STATEMENT, **changes}.items() if value is not None}
    path = tmp_path / "experiments.yaml"
    path.write_text(yaml.safe_dump({**ENTRIES, "statements": {"one": entry}}))
    return path


def test_a_statement_is_read_with_its_places_and_its_test(tmp_path: Path) -> None:
    path = file_of(tmp_path, here={"entry": "small", "columns": ["b"]}, needs=["digits"])
    (read,) = load_statements(path).values()
    assert (read.name, read.short_paper, read.needs) == ("one", "P", ("digits",))
    small, large = load_experiments(path).values()
    assert read.here is not None and read.here.columns_of(small) == ("b",)
    assert read.source is not None and read.source.columns_of(large) == ("a", "b", "c")
    assert read.location("full") == read.source and read.location("smoke") == read.here


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"paper": None}, "file|paper is missing"),
        ({"lost": None}, "one: lost = '': is missing: say what small gives up beside large"),
        ({"here": None}, "one: here = '': is missing"),
        ({"from": None}, "one: from = '': is missing"),
        ({"here": "tiny"}, "one: here = 'tiny': is no entry; entries are"),
        ({"here": {"entry": "small", "columns": ["d"]}}, "here: columns = 'd': is no column of small"),
        ({"here": {"entry": "small", "rows": ["d"]}}, "rows.*is no key"),
        ({"sayz": "x"}, "sayz is no key; known are from, here"),
        ({"needs": "digits"}, "needs = 'digits': must be a list"),
        ({"test": None}, "test is missing"),
        ({"test": {"than": "fedavg"}}, "must be keys with values, one of them of trend, gap"),
        ({"test": {"better": "fedshift"}}, "test: than is missing"),
        ({"test": {"better": "fedprox", "than": "fedavg"}}, "test = 'fedprox': is no row of large"),
        ({"test": {"better": "fedshift", "than": "fedavg", "metric": "acuracy"}}, "metric = 'acuracy': is no number"),
        ({"test": {"better": "fedshift", "than": "fedavg", "selection": "first"}}, "= 'first': must be one of"),
        ({"test": {"better": "fedshift", "than": "fedavg", "times": 4.0}}, "times = 4.0: is for `sooner: true`"),
        ({"test": {"better": "fedshift", "than": "fedavg", "in_columns": 4}}, "in_columns = 4: must be 0 to 3"),
        ({"test": {"trend": "rises"}}, "test: over is missing"),
        ({"test": {"trend": "grows", "over": ["fedavg"]}}, "trend = 'grows': must be rises or falls"),
        ({"test": {"gap": "rises", "better": "fedavg"}}, "test: than is missing"),
        ({"test": {"peak": "d", "over": ["fedavg"]}}, "peak = 'd': must be one of the columns a, b, c"),
        ({"test": {"knee": "fedavg"}, "here": {"entry": "small", "columns": ["a", "b"]}}, "needs three columns"),
        ({"test": {"series": "matching-loss-few", "row": "fedavg"}}, "needs one of `below: NUMBER`"),
        ({"test": {"series": "matching-loss-few", "row": "fedavg", "below": 0.1}}, "and by_round go together"),
        ({"test": {"series": "matching-los-few", "row": "fedavg", "falls": True}}, "'matching-los-few': is no number"),
        ({"test": {"alike": ["fedavg", "fedshift"]}}, "test: within is missing"),
        ({"test": {"alike": ["fedavg", "fedavg"], "within": 1}}, "alike = .*: must be two rows"),
        ({"test": {"alike": ["fedavg", "fedshift"], "within": 0}}, "within = 0.0: must be above 0"),
        ({"test": {"partition": {"d": "classes-held >= 2"}}}, "partition = 'd': is no column"),
        ({"test": {"partition": {"a": "classes >= 2"}}}, "partition: a = 'classes >= 2': must be FACT"),
        ({"test": {"held_by": "a test"}}, "held_by = 'a test': must be tests/FILE.py::TEST"),
    ],
)  # fmt: skip
def test_what_a_statement_cannot_mean_is_one_sentence(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=words) as raised:
        load_statements(file_of(tmp_path, **changes))
    assert "\n" not in str(raised.value) and "experiments.yaml" in str(raised.value)


def test_the_same_statement_without_a_mistake_is_read(tmp_path: Path) -> None:
    assert list(load_statements(file_of(tmp_path))) == ["one"]


def test_two_statements_of_one_name_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    again = path.read_text().replace("statements:\n", "statements:\n  one: {says: first}\n")
    path.write_text(again)
    with pytest.raises(SettingError, match="key = 'one': stands twice, in line"):
        load_statements(path)


def test_every_number_of_a_server_method_by_class_is_known() -> None:
    for method in SERVER_METHODS.values():
        for name in method.units:
            if name.endswith("-by-class"):
                assert name.removesuffix("-by-class") in BY_SHOT_GROUP
    refuse_unknown_metric("client-accuracy.usps", "here")
    with pytest.raises(SettingError, match="is no number of a record"):
        refuse_unknown_metric("client-acuracy.usps", "here")
    assert len(FORMS) == 9


def test_the_papers_make_so_many_statements_and_every_one_has_runs() -> None:
    """86 claims and 8 further statements of the plan, of which one is two here, and ten that papers make besides."""
    shipped = load_statements()
    by_paper = Counter(statement.short_paper for statement in shipped.values())
    assert by_paper == {"FedShift": 32, "CReFF": 29, "FedBN": 22, "IWDS": 22}
    suites = load_suites()
    assert list(suites["papers"].experiments) == list(suites["papers-smoke"].experiments)
    for name, statement in shipped.items():
        if isinstance(statement.test, HeldBy):
            file, _, test = statement.test.held_by.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(), name
            continue
        assert statement.here is not None and statement.source is not None
        if isinstance(statement.test, Partition):
            continue  # it needs no run
        assert statement.here.entry in suites["papers"].experiments, name
        assert statement.source.entry in suites["papers-full"].experiments, name


def test_a_statement_needs_the_data_sets_of_its_columns() -> None:
    experiments = load_experiments()
    for name, statement in load_statements().items():
        if statement.here is None:
            continue
        entry = experiments[statement.here.entry]
        columns = statement.here.columns_of(entry)
        settings = {column: entry.columns[column] for column in columns}
        chosen = replace(entry, columns=settings, metrics={}, smoke_metrics={})
        named: set[str] = set()
        for dataset in data_sets(chosen, {}):
            is_alias = dataset in statement.needs
            named |= {dataset} if is_alias else set(members(dataset))
        assert named <= set(statement.needs), name


def test_a_size_too_short_or_wrong_is_one_sentence_before_anything_runs() -> None:
    assert (hours_of("8h"), hours_of("45m"), hours_of("")) == (8.0, 0.75, 0.0)
    for wrong in ("8", "8 h", "eight", "-1h", "0h"):
        with pytest.raises(SettingError, match="--within"):
            hours_of(wrong)


def test_one_seed_of_every_entry_comes_first(tmp_path: Path) -> None:
    several = {**ENTRIES["small"], "columns": {"": {}}, "seeds": [4, 5]}
    entries = [experiment(name, {**several, "title": name}) for name in ("one", "two")]
    cells = [cell for entry in entries for cell in plan(entry)]
    order = [(cell.experiment, cell.seed) for cell in one_seed_first(cells)]
    assert list(dict.fromkeys(order)) == [("one", 4), ("two", 4), ("one", 5), ("two", 5)]


def test_runs_without_their_data_are_left_out_and_named(tmp_path: Path) -> None:
    settings = {"data-root": str(tmp_path)}
    lacking = experiment(
        "lacking",
        {"title": "", "settings": {**settings, "dataset": "cifar10"}, "methods": ["fedavg"]},
    )
    there = experiment(
        "there", {"title": "", "settings": settings, "methods": ["fedavg", "fedprox"]}
    )
    cells = [*plan(lacking), *plan(there)]
    out = Console(record=True, width=200)
    assert [cell.experiment for cell in with_data(cells, out)] == ["there", "there"]
    assert "cifar10 is not in data-root: 1 runs are left out" in out.export_text()
    with pytest.raises(DataError, match="no data set of these runs"):
        with_data(plan(lacking), out)


def test_what_does_not_fit_is_left_out_by_seeds_and_named(tmp_path: Path) -> None:
    entry = {
        "title": "",
        "settings": {"results": str(tmp_path)},
        "methods": ["fedavg"],
        "seeds": [0, 1, 2],
    }
    cells = one_seed_first(
        plan(experiment("one", entry)) + plan(experiment("two", {**entry, "methods": ["fedprox"]}))
    )
    out = Console(record=True, width=200)
    costs = Cost(1, 3600.0, 0, 0.0, 0.0, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        planned = [Entry(run, "", cost=costs) for run in runs(cells)]
        whole = Forecast(planned, Allocation("inprocess", 1, 1))
        patch.setattr(forecast_module, "forecast", lambda *stated: whole)
        kept = fitting(cells, 3, out, "", 0, 0)
        assert [(cell.experiment, cell.seed) for cell in kept] == [
            ("one", 0),
            ("two", 0),
            ("one", 1),
        ]
        assert "left out to fit into 3 h: two, seeds 1, 2" in out.export_text()
        with pytest.raises(
            SettingError, match="--within = '1h': is too short: one seed of every entry takes"
        ):
            fitting(cells, 1, out, "", 0, 0)


def test_a_suite_of_statements_stands_alone() -> None:
    with pytest.raises(SettingError, match="does not go with others: papers stands for"):
        sized_suite(["papers", "demo"])
    found = sized_suite(["papers"])
    assert found is not None and found.size == "laptop"
    assert sized_suite(["demo", "quick"]) is None


def test_a_smoke_size_wins_over_columns_and_rows(tmp_path: Path) -> None:
    smoke = {"rounds": 1, "alpha": 0.3}
    path = tmp_path / "experiments.yaml"
    small = {**ENTRIES["small"], "smoke": smoke, "seeds": [4, 5]}
    suite = {"title": "All", "experiments": ["small"], "size": "smoke"}
    path.write_text(yaml.safe_dump({"small": small, "large": ENTRIES["large"], "all": suite}))
    (entry,) = find_all(["all"], path)
    assert (entry.name, entry.seeds, entry.settings) == ("small-smoke", (4,), smoke)
    assert all("alpha" not in settings for settings in entry.columns.values())
    assert find_all(["small-smoke"], path) == [entry]
    with pytest.raises(SettingError, match=r"large-smoke.*is not in"):
        find_all(["large-smoke"], path)
    path.write_text(yaml.safe_dump({"small": small, "all": {**suite, "size": "tiny"}}))
    with pytest.raises(
        SettingError, match="all: size = 'tiny': must be one of smoke, laptop, full"
    ):
        load_suites(path)
