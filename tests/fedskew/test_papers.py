"""Papers: the editions that their claims are measured on, suites of papers, and the page of their statements."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from data import SettingError
from data.packages import ROOT
from fedskew.experiments import (
    FILE,
    Experiment,
    Suite,
    claim_of_edition,
    entries_in,
    experiment,
    find_all,
    papers_suite,
)
from fedskew.experiments.claims import HeldBy, claim_of
from fedskew.report.claims import Verdict
from fedskew.report.papers import Statement

PAIR = {"says": "above", "better": "fedshift", "than": "fedavg"}
LARGE = {
    "title": "Large",
    "paper": "P, Table 1",
    "methods": ["fedavg", "fedshift"],
    "columns": {"a": {}, "b": {"alpha": 0.5}, "c": {"alpha": 1.0}},
    "claims": [PAIR],
    "here": {"entry": "small", "columns": {"a": "d", "c": "e"}},
}
SMALL = {
    "title": "Small",
    "methods": ["fedavg", "fedshift"],
    "columns": {"d": {}, "e": {"alpha": 0.1}},
}


def file_of(folder: Path, **changes: Any) -> Path:
    """Return a file of a paper's entry, its smaller edition and a suite of papers, with other entries."""
    suites = {"laptop": {"title": "laptop", "papers": True}}
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump({"large": LARGE, "small": SMALL, **suites, **changes}))
    return path


FEW_COLUMNS = ["fedavg", {"fedshift": {"only": ["d"]}}]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an edition that is none": ({"large": {**LARGE, "here": {"entry": "tiny"}}}, "entry"),
    "a column that the edition lacks": (
        {"large": {**LARGE, "here": {"entry": "small", "columns": {"a": "f"}}}},
        "columns",
    ),
    "no column in common": ({"large": {**LARGE, "here": {"entry": "small"}}}, "columns"),
    "a row without a claim's column": ({"small": {**SMALL, "methods": FEW_COLUMNS}}, "columns"),
}
"""By name: entries, and the key of `here` that the error names."""


@pytest.mark.parametrize("fault", WRONG)
def test_an_edition_that_cannot_stand_for_the_paper_s_is_refused(fault, tmp_path):
    assert len(entries_in(file_of(tmp_path))) == 3  # the control
    changes, key = WRONG[fault]
    with pytest.raises(SettingError) as raised:
        entries_in(file_of(tmp_path, **changes))
    assert f"{raised.value.where}: {raised.value.key}".endswith(f"large: here: {key}")


def test_a_suite_of_papers_is_what_the_papers_claims_need(tmp_path):
    path = file_of(tmp_path)
    suites = [entry for entry in entries_in(path).values() if isinstance(entry, Suite)]
    members = {suite.name: suite.experiments for suite in suites}
    assert members == {"laptop": ("small",)}
    assert [entry.name for entry in find_all(["laptop"], path)] == ["small"]
    laptop = {"title": "laptop", "papers": True, "experiments": ["large"]}
    beside = find_all(["laptop"], file_of(tmp_path, laptop=laptop))
    assert [entry.name for entry in beside] == ["small", "large"]


def test_a_claim_is_measured_in_the_edition_s_columns_in_its_own_order(tmp_path):
    claims = [PAIR, {**PAIR, "columns": ["c", "a"]}]
    entries = entries_in(file_of(tmp_path, large={**LARGE, "claims": claims}))
    large, small = entries["large"], entries["small"]
    columns = [claim_of_edition(claim, large, small).columns for claim in large.claims]
    assert columns == [("d", "e"), ("e", "d")]


def test_the_papers_have_so_many_claims_and_every_test_that_holds_one_is_there():
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
                assert entry.here.lost
    assert by_paper == {"FedShift": 32, "CReFF": 29, "FedBN": 22, "IWDS": 22}


def test_a_suite_of_papers_stands_alone():
    with pytest.raises(SettingError):
        papers_suite(["papers", "demo"])
    assert papers_suite(["papers"]).papers
    assert papers_suite(["demo", "quick"]) is None


@pytest.mark.slow
def test_without_runs_a_claim_is_open(fedskew, tmp_path):
    nothing = ("--set", f"data-root={tmp_path}", "--results", tmp_path, "--records", tmp_path)
    status, out, _ = fedskew("report", "papers", "--json", *nothing)
    report = json.loads(out)
    assert status == 0 and len(report["statements"]) == 105
    verdicts = {
        statement["claim"]["says"]: statement["verdict"] for statement in report["statements"]
    }
    assert verdicts["FedShift is above FedAvg at every E"] == "open: not measured yet"
    larger_beta = verdicts["a larger beta draws the classes more evenly"]
    assert larger_beta.startswith("holds: in closed form")


@pytest.mark.slow
def test_the_page_is_the_one_of_the_kept_records(fedskew, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("report", "papers", "--markdown", "--figures", "drawn")
    words += ("--set", f"data-root={tmp_path}")
    status, page, _ = fedskew(*words, "--results", tmp_path / "none")
    assert status == 0 and str(tmp_path) not in page
    shipped = (ROOT / "docs" / "results" / "papers.md").read_text()
    # The data sets are not here, so that what is not measured reads otherwise: the measured rows are the same.
    measured = [line for line in page.splitlines() if "open: " in line and " seeds" in line]
    assert measured and set(measured) <= set(shipped.splitlines())
    drawn = [file.name for file in (tmp_path / "drawn").glob("*.svg")]
    assert len(drawn) == 4
    for name in drawn:
        assert f"](../images/{name})" in shipped and f"(drawn/{name})" in page
        assert (ROOT / "docs" / "images" / name).is_file()


@pytest.mark.slow
def test_bench_m_s_settings_train_every_row_on_digits(fedskew, tmp_path):
    """papers-smoke: what papers-shift asks for, in seconds. Its four methods train four models."""
    status, _, errors = fedskew("run", "papers-smoke", "--results", tmp_path)
    assert status == 0, errors
    files = list(tmp_path.glob("*/summary.json"))
    hashes = {json.loads(file.read_text())["hash"]["all"] for file in files}
    assert len(files) == len(hashes) == 4


def test_the_readme_has_the_page_s_first_table():
    page = (ROOT / "docs" / "results" / "papers.md").read_text()
    counts = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("|")]
    readme = (ROOT / "README.md").read_text()
    _, _, rest = readme.partition("<!-- the papers' statements -->\n")
    shown, _, _ = rest.partition("<!-- end of the papers' statements -->")
    assert len(counts) == 6 and shown.splitlines() == counts


@pytest.mark.parametrize(("seeds", "reason"), [(5, "5 seeds"), (21, "over 20 seeds")])
def test_a_claim_that_cannot_be_judged_says_how_many_seeds_it_lacks(seeds, reason):
    """A diverged row keeps it from being judged however few seeds would decide."""
    claim = claim_of({"says": "", "better": "fedprox", "than": "fedavg"})
    entry = experiment("small", {"title": "Small", "methods": ["fedavg", "fedprox"]})
    unfit = "fedprox diverged in 1 of 3 seeds"
    verdict = Verdict(claim, status="never", unfit=unfit, more_seeds=seeds)
    assert Statement(entry, "small", verdict).in_words == f"open: {unfit}; {reason}"
