"""Papers in a file of experiments: claims, the smaller editions that they are measured on, and suites of a size."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from data import SettingError
from fedskew.experiments import (
    FILE,
    Experiment,
    Suite,
    claim_of_edition,
    entries_in,
    experiment,
    find_all,
    sized_suite,
)
from fedskew.experiments.claims import HeldBy
from fedskew.experiments.plan import plan

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = {"a": {}, "b": {"alpha": 0.5}, "c": {"alpha": 1.0}}
PAIR = {"says": "above", "better": "fedshift", "than": "fedavg"}
SHAPE = {"says": "a shape", "over": ["fedavg"]}
SERIES = {"says": "it falls", "series": "loss", "row": "fedavg"}
PAPER = {
    "title": "Large", "paper": "P, Table 1", "methods": ["fedavg", "fedshift"], "columns": COLUMNS, "claims": [PAIR],
    "here": {"entry": "small", "columns": {"a": "d", "c": "e"}},
}  # fmt: skip
SMALL = {
    "title": "Small", "methods": ["fedavg", "fedshift"], "columns": {"d": {}, "e": {"alpha": 0.1}},
}  # fmt: skip


def file_of(folder: Path, beside: bool = False, **changes: Any) -> Path:
    """Return a file of a paper's entry, changed so, its smaller edition and a suite of every size.

    `beside` names the paper's entry beside what the laptop's suite needs.
    """
    path = folder / "experiments.yaml"
    suites: dict[str, Any] = {size: {"title": size, "size": size} for size in ("laptop", "full")}
    if beside:
        suites["laptop"]["experiments"] = ["large"]
    path.write_text(yaml.safe_dump({"large": {**PAPER, **changes}, "small": SMALL, **suites}))
    return path


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "more columns than there are": ({"claims": [{**PAIR, "in_columns": 4}]}, "large: claims: in_columns"),
    "a column that is none": ({"claims": [{**PAIR, "columns": ["x"]}]}, "large: claims: columns"),
    "a selection that is none": ({"claims": [{**PAIR, "selection": "first"}]}, "large: claims: selection"),
    "two forms": ({"claims": [{**PAIR, "sooner": True, "within": 2}]}, "large: claims: better"),
    "times without sooner": ({"claims": [{**PAIR, "times": 4}]}, "large: claims: times"),
    "a shape that is none": ({"claims": [SHAPE]}, "large: claims: over"),
    "a peak elsewhere": ({"claims": [{**SHAPE, "peak": "d"}]}, "large: claims: peak"),
    "a knee in two columns": ({"claims": [{**SHAPE, "knee": True, "columns": ["a", "b"]}]}, "large: claims: columns"),
    "a bound without a round": ({"claims": [{**SERIES, "below": 0.1}]}, "large: claims: by_round"),
    "a series of nothing": ({"claims": [SERIES]}, "large: claims: series"),
    "no test's name": ({"claims": [{"says": "", "held_by": "a test"}]}, "large: claims: held_by"),
    "an edition that is none": ({"here": {"entry": "tiny"}}, "large: here: entry"),
    "a column that the edition lacks": ({"here": {"entry": "small", "columns": {"a": "f"}}}, "large: here: columns"),
    "no column in common": ({"here": {"entry": "small"}}, "large: here: columns"),
}  # fmt: skip
"""By name: a change, and the place that the error names."""


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_paper_s_entry_cannot_mean_is_refused(fault: str, tmp_path: Path) -> None:
    assert len(entries_in(file_of(tmp_path))) == 4  # the control
    changes, place = WRONG[fault]
    with pytest.raises(SettingError) as raised:
        entries_in(file_of(tmp_path, **changes))
    assert f"{raised.value.where}: {raised.value.key}" == f"experiments.yaml: {place}"


def test_a_suite_of_a_size_is_what_the_papers_claims_need(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    suites = [entry for entry in entries_in(path).values() if isinstance(entry, Suite)]
    members = {suite.name: suite.experiments for suite in suites}
    assert members == {"laptop": ("small",), "full": ("large",)}
    assert [entry.name for entry in find_all(["laptop"], path)] == ["small"]
    beside = file_of(tmp_path, beside=True)
    assert [entry.name for entry in find_all(["laptop"], beside)] == ["small", "large"]


def test_a_row_has_the_columns_and_seeds_that_it_names(tmp_path: Path) -> None:
    """And a claim about a row where the edition lacks it is refused."""
    limited = {"fedshift": {"only": ["d"], "seeds": [2]}}
    small = {**SMALL, "methods": ["fedavg", limited], "seeds": [1, 2]}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump({"small": small}))
    (entry,) = entries_in(tmp_path / "rows.yaml").values()
    assert isinstance(entry, Experiment)
    cells = [(cell.row, cell.column, cell.seed) for cell in plan(entry)]
    fedavg = [("fedavg", column, seed) for column in "de" for seed in (1, 2)]
    assert sorted(cells) == sorted([*fedavg, ("fedshift", "d", 2)])

    with pytest.raises(SettingError) as raised:
        experiment("small", {**small, "methods": [{"fedshift": {"only": ["x"]}}]})
    assert raised.value.key == "methods: fedshift: only"
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump({"small": small, "large": PAPER}))
    with pytest.raises(SettingError) as raised:
        entries_in(tmp_path / "rows.yaml")
    assert f"{raised.value.where}: {raised.value.key}".endswith("large: here: columns")


def test_a_claim_is_measured_in_the_edition_s_columns_in_its_own_order(tmp_path: Path) -> None:
    claims = [PAIR, {**PAIR, "columns": ["c", "a"]}]
    entries = entries_in(file_of(tmp_path, claims=claims))
    large, small = entries["large"], entries["small"]
    assert isinstance(large, Experiment) and isinstance(small, Experiment)
    columns = [claim_of_edition(claim, large, small).columns for claim in large.claims]
    assert columns == [("d", "e"), ("e", "d")]


def test_the_papers_have_so_many_claims_and_every_test_that_holds_one_is_there() -> None:
    by_paper = Counter[str]()
    for entry in entries_in(FILE).values():
        if not isinstance(entry, Experiment) or not entry.paper:
            continue
        by_paper[entry.paper.partition(",")[0]] += len(entry.claims)
        for claim in entry.claims:
            if isinstance(claim, HeldBy):
                file, _, test = claim.held_by.partition("::")
                assert f"def {test}(" in (ROOT / file).read_text()
            else:
                assert entry.here is not None and entry.here.lost
    assert by_paper == {"FedShift": 32, "CReFF": 29, "FedBN": 22, "IWDS": 22}


def test_a_suite_of_papers_stands_alone() -> None:
    with pytest.raises(SettingError):
        sized_suite(["papers", "demo"])
    found = sized_suite(["papers"])
    assert found is not None and found.size == "laptop"
    assert sized_suite(["demo", "quick"]) is None
