"""Suites of statements at the commands: run, keep, report and verify."""

import json
from pathlib import Path

import pytest
from command_line import FedSkew

from data.package_files import ROOT


def test_without_runs_a_statement_is_open_and_missing_data_are_named(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    nothing = ("--set", f"data-root={tmp_path}", "--results", tmp_path, "--records", tmp_path)
    status, out, _ = fedskew("report", "papers", "--json", *nothing)
    report = json.loads(out)
    assert status == 0 and len(report["statements"]) == 105
    verdicts = {statement["name"]: statement["verdict"] for statement in report["statements"]}
    lacking = "cannot be judged: CIFAR-10 is not in data-root"
    assert verdicts["fedshift-epochs-above-fedavg"] == lacking
    assert verdicts["larger-beta-more-even"].startswith("holds: in closed form")


@pytest.mark.slow
@pytest.mark.slow
def test_the_page_is_the_one_of_the_kept_records(fedskew: FedSkew, tmp_path: Path) -> None:
    words = ("report", "papers", "--markdown", "--set", f"data-root={tmp_path}")
    status, page, _ = fedskew(*words, "--results", tmp_path / "none")
    assert status == 0 and str(tmp_path) not in page
    shipped = (ROOT / "docs" / "results" / "papers.md").read_text()
    # The data sets are not here, so that what is not measured reads otherwise: the measured rows are the same.
    measured = [line for line in page.splitlines() if "not distinguishable" in line and "|" in line]
    assert measured and set(measured) <= set(shipped.splitlines())


def test_the_readme_has_the_page_s_count_of_every_paper() -> None:
    page = (ROOT / "docs" / "results" / "papers.md").read_text()
    counts = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("* ")]
    readme = (ROOT / "README.md").read_text()
    _, _, rest = readme.partition("<!-- the papers' statements -->\n")
    shown, _, _ = rest.partition("<!-- end of the papers' statements -->")
    assert len(counts) == 4 and shown.splitlines() == counts


SUITE = """
tiny:
  title: Two rows
  settings: {dataset: digits, model: mlp-bn, train-images: 200, test-images: 100, clients: 4, alpha: 0.5, rounds: 2}
  methods: [fedavg, fedprox]
  metric: accuracy
  seeds: [0, 1]
tiny-papers: {title: Tiny, size: laptop, experiments: [tiny]}
statements:
  prox-above:
    paper: "Tiny, Table 1"
    says: FedProx is above FedAvg
    from: tiny
    here: tiny
    test: {better: fedprox, than: fedavg}
"""


@pytest.mark.slow
def test_a_suite_continues_from_kept_records_and_a_repetition_verifies_them(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    file, records, elsewhere = tmp_path / "suite.yaml", tmp_path / "kept", tmp_path / "elsewhere"
    file.write_text(SUITE)
    of_file = ("--experiments", file)
    first = ("--results", tmp_path / "first")
    status, _, errors = fedskew("run", "tiny-papers", *of_file, *first, "--seed", "0")
    assert status == 0, errors
    status, out, _ = fedskew("keep", "tiny-papers", *of_file, *first, "--records", records)
    assert status == 0 and "2 runs written" in out and len(list(records.iterdir())) == 2

    from_kept = (*of_file, "--results", elsewhere, "--records", records)
    status, out, _ = fedskew("run", "tiny-papers", *from_kept)
    assert status == 0 and "2 of 4 runs are kept records, not trained here: 2 runs of" in out
    assert len(list(elsewhere.glob("*/summary.json"))) == 2  # of the other seed alone
    status, out, _ = fedskew("report", "tiny-papers", *from_kept, "--json")
    report = json.loads(out)
    assert report["runs"]["finished"] == 4 and report["runs"]["kept"][0].startswith("2 runs of")
    assert set(report["statements"][0]["seeds"]) == {"0", "1"}

    words = ("verify", "tiny-papers", *of_file, "--records", records, "--jobs", "1")
    repeated = ("--results", tmp_path / "repeated")
    status, out, errors = fedskew(*words, "--cells", "2", *repeated)
    assert status == 0, errors
    assert out.count("identical: the same hash and numbers") == 2
    assert fedskew(*words, "--cells", "3", *repeated)[0] == 2


WRONG = {
    "no record": ("verify", "papers", "--records", "FOLDER", "--cells", "1"),
    "a suite beside an experiment": ("run", "papers-smoke", "demo", "--dry-run"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_words_that_do_not_go_with_a_suite_are_refused(
    fault: str, fedskew: FedSkew, tmp_path: Path
) -> None:
    words = [str(tmp_path) if word == "FOLDER" else word for word in WRONG[fault]]
    status, _, errors = fedskew(*words)
    assert status == 2 and errors.count("\n") == 1
