"""Suites of statements at the commands: run, keep and report."""

import json
from pathlib import Path

import pytest
from command_line import FedSkew

from data.packages import ROOT
from fedskew.experiments import experiment
from fedskew.experiments.claims import claim_of
from fedskew.report.claims import Verdict
from fedskew.report.papers import Statement


@pytest.mark.slow
def test_without_runs_a_claim_is_open(fedskew: FedSkew, tmp_path: Path) -> None:
    nothing = ("--set", f"data-root={tmp_path}", "--results", tmp_path, "--records", tmp_path)
    status, out, _ = fedskew("report", "papers", "--json", *nothing)
    report = json.loads(out)
    assert status == 0 and len(report["statements"]) == 105
    verdicts = {
        statement["claim"]["says"]: statement["verdict"] for statement in report["statements"]
    }
    assert verdicts["FedShift is above FedAvg at every E"] == "not measured yet"
    larger_beta = verdicts["a larger beta draws the classes more evenly"]
    assert larger_beta.startswith("holds: in closed form")


@pytest.mark.slow
def test_the_page_is_the_one_of_the_kept_records(fedskew: FedSkew, tmp_path: Path) -> None:
    words = ("report", "papers", "--markdown", "--set", f"data-root={tmp_path}")
    status, page, _ = fedskew(*words, "--results", tmp_path / "none")
    assert status == 0 and str(tmp_path) not in page
    shipped = (ROOT / "docs" / "results" / "papers.md").read_text()
    # The data sets are not here, so that what is not measured reads otherwise: the measured rows are the same.
    measured = [line for line in page.splitlines() if "not distinguishable" in line and "|" in line]
    assert measured and set(measured) <= set(shipped.splitlines())


@pytest.mark.slow
def test_bench_m_s_settings_train_every_row_on_digits(fedskew: FedSkew, tmp_path: Path) -> None:
    """papers-smoke: what papers-shift asks for, in seconds. Its four methods train four models."""
    status, _, errors = fedskew("run", "papers-smoke", "--results", tmp_path)
    assert status == 0, errors
    files = list(tmp_path.glob("*/summary.json"))
    hashes = {json.loads(file.read_text())["hash"]["all"] for file in files}
    assert len(files) == len(hashes) == 4


def test_the_readme_has_the_page_s_count_of_every_paper() -> None:
    page = (ROOT / "docs" / "results" / "papers.md").read_text()
    counts = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("* ")]
    readme = (ROOT / "README.md").read_text()
    _, _, rest = readme.partition("<!-- the papers' statements -->\n")
    shown, _, _ = rest.partition("<!-- end of the papers' statements -->")
    assert len(counts) == 4 and shown.splitlines() == counts


@pytest.mark.parametrize(("seeds", "reason"), [(5, "5 seeds"), (21, "over 20 seeds")])
def test_a_claim_that_cannot_be_judged_says_how_many_seeds_it_lacks(
    seeds: int, reason: str
) -> None:
    """A diverged row keeps it from being judged however few seeds would decide."""
    claim = claim_of({"says": "", "better": "fedprox", "than": "fedavg"})
    entry = experiment("small", {"title": "Small", "methods": ["fedavg", "fedprox"]})
    unfit = "fedprox diverged in 1 of 3 seeds"
    verdict = Verdict(claim, status="never", unfit=unfit, more_seeds=seeds)
    assert Statement(entry, "small", verdict).in_words == f"cannot be judged: {unfit}; {reason}"
