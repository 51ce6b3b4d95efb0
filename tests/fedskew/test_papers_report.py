"""`fedskew run papers-smoke` and its report: every statement ends in a verdict."""

import json
from pathlib import Path

import pytest
from command_line import FedSkew

from fedskew.report.statements import STATUS_WORDS


def test_without_runs_a_statement_is_open_and_missing_data_are_named(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    status, out, _ = fedskew(
        "report", "papers", "--json", "--set", f"data-root={tmp_path}", "--results", tmp_path
    )
    report = json.loads(out)
    assert status == 0 and len(report["statements"]) == 105
    verdicts = {statement["name"]: statement["verdict"] for statement in report["statements"]}
    lacking = "cannot be judged: CIFAR-10 is not in data-root"
    assert verdicts["fedshift-epochs-above-fedavg"] == lacking
    assert verdicts["larger-beta-more-even"].startswith("holds: in closed form")


def test_papers_beside_another_experiment_is_refused(fedskew: FedSkew) -> None:
    status, _, errors = fedskew("run", "papers-smoke", "demo", "--dry-run")
    assert status == 2 and "papers-smoke stands for a whole file's statements" in errors
    status, _, errors = fedskew("run", "demo", "--within", "8h", "--dry-run")
    assert status == 2 and "--within = '8h': is for papers and its like" in errors


@pytest.mark.slow
def test_every_statement_of_papers_smoke_ends_in_a_verdict(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    status, _, errors = fedskew("run", "papers-smoke", "--results", tmp_path)
    assert status == 0, errors
    page = tmp_path / "papers.html"
    _, out, _ = fedskew("report", "papers-smoke", "--json", "--html", page, "--results", tmp_path)
    statements = json.loads(out)["statements"]
    assert all(statement["status"] != "open" for statement in statements)
    by_name = {statement["name"]: statement["status"] for statement in statements}
    assert by_name["lda-and-llt-differ"] == by_name["larger-beta-more-even"] == "holds"
    text = page.read_text()
    assert all(word in text for word in STATUS_WORDS.values())
    assert text.count("<tr class=") == len(statements)
