"""`statements:` of a file of experiments, read strictly."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from data import SettingError
from fedskew.experiments.experiments import load_suites
from fedskew.experiments.lookup import find_all, sized_suite
from fedskew.experiments.statements import (
    HeldBy,
    Partition,
    load_statements,
)

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


PAIR = {"better": "fedshift", "than": "fedavg"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an entry that is none": ({"here": "tiny"}, "here"),
    "a number that is none": ({"test": {**PAIR, "metric": "acuracy"}}, "metric"),
    "more columns than there are": ({"test": {**PAIR, "in_columns": 4}}, "in_columns"),
    "a bound without a round": ({"test": {"series": "matching-loss-few", "row": "fedavg", "below": 0.1}}, "by_round"),
    "no test's name": ({"test": {"held_by": "a test"}}, "held_by"),
}  # fmt: skip
"""By name: a change, and the key that the error names."""


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_statement_cannot_mean_is_refused(fault: str, tmp_path: Path) -> None:
    assert list(load_statements(file_of(tmp_path))) == ["one"]  # the control
    changes, key = WRONG[fault]
    with pytest.raises(SettingError) as raised:
        load_statements(file_of(tmp_path, **changes))
    assert key in str(raised.value) and "experiments.yaml" in str(raised.value)


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


def test_a_suite_of_statements_stands_alone() -> None:
    with pytest.raises(SettingError):
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
    with pytest.raises(SettingError):
        find_all(["large-smoke"], path)
