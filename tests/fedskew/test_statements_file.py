"""`statements:` of a file of experiments, read strictly."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from data import SettingError
from fedskew.experiments.experiments import find_all, load_experiments, load_suites
from fedskew.experiments.statements import (
    BY_SHOT_GROUP,
    FORMS,
    load_statements,
    refuse_unknown_metric,
)
from strategies.registry import SERVER_METHODS

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
    assert read.place("full") == read.source and read.place("smoke") == read.here


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
