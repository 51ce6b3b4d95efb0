"""The report's texts, and the command line."""

import csv
import io
import json
from pathlib import Path

import pytest
from command_line import FedSkew
from frozen import HERE, frozen, gathered, golden

from server_app import report_cli
from server_app.report.document import document
from server_app.report.text import as_json, csv_text, markdown


def test_markdown_and_csv_are_the_golden_ones(tmp_path: Path) -> None:
    """`python tests/report/frozen.py` writes new ones; look at the difference before keeping them."""
    for name, text in golden(tmp_path)[1].items():
        assert text == (HERE / name).read_text(), name


def test_every_paper_cell_stands_beside_ours_in_the_csv(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([document(gathered(tmp_path))]))))
    compared = {(row["column"], row["row"]): row for row in rows if row["paper"]}
    assert compared.keys() == {("LDA 0.1", "fedavg"), ("LDA 0.5", "fedavg"), ("LDA 0.1", "creff")}
    for row in compared.values():
        assert row["selection"] == "last"
        assert float(row["difference"]) == pytest.approx(float(row["mean"]) - float(row["paper"]), abs=1e-3)
        values = [float(value) for value in row["values"].split()]
        assert sum(values) / len(values) == pytest.approx(float(row["mean"]), abs=1e-3)


def test_json_has_numbers_claims_and_warnings(tmp_path: Path) -> None:
    (one,) = json.loads(json.dumps(as_json([document(gathered(tmp_path))])))
    assert [claim["status"] for claim in one["claims"]] == ["mixed", "fails", "holds", "fails"]
    assert len(one["numbers"]) == 3 * 2 * 2 and len(one["warnings"]) == 1
    assert sum(run["state"] == "finished" for run in one["runs"].values()) == 10


def test_only_rows_with_all_seeds_compete_for_the_best(tmp_path: Path) -> None:
    main_table = document(gathered(tmp_path)).main
    strong = {row[0].text.split()[0]: [cell.strong for cell in row[1:]] for row in main_table.rows}
    assert strong == {"fedavg": [False, False], "creff": [True, True], "fedshift": [False, False]}  # which has 69.6


def test_rounds_until_a_row_is_reached_can_be_the_table(tmp_path: Path) -> None:
    cells = {"creff": [2, 3]}
    one = document(gathered(tmp_path, reaches="fedavg", cells=cells, notes={}, seeds=[0, 1]))
    by_row = {row[0].text: row[1:] for row in one.main.rows}
    assert [cell.text for cell in by_row["creff"]] == ["2", "2"]
    assert [cell.below for cell in by_row["creff"]] == ["paper 2.0, +0.0", "paper 3.0, \N{MINUS SIGN}1.0"]
    assert "Rounds until fedavg's" in markdown([one])
    lines = [row for row in csv.DictReader(io.StringIO(csv_text([one]))) if row["paper"]]
    assert [(row["metric"], row["mean"]) for row in lines] == [("rounds to fedavg's balanced-accuracy", "2.0000")] * 2


def test_columns_can_show_different_numbers(tmp_path: Path) -> None:
    one = document(gathered(tmp_path, metrics={"LDA 0.5": "few-recall"}, seeds=[0, 1]))
    first, second = one.main.headings[1:]
    assert "balanced accuracy" in first.below and "few recall" in second.below
    recall = {row[0].text.split()[0]: row[2].text for row in one.main.rows}
    few = next(table for table in one.sections[4].tables if "LDA 0.5" in table.caption)
    assert recall["fedshift"] == next(row[3].text for row in few.rows if row[0].text == "fedshift")


def test_without_claims_the_headline_says_who_is_first(tmp_path: Path) -> None:
    one = document(gathered(tmp_path, claims=[], seeds=[0, 1]))
    assert "In LDA 0.1 fedshift is first with 69.6 percent balanced accuracy, 7.5 points above creff." in one.headline


def test_no_run_is_one_sentence_with_the_command(tmp_path: Path, fedskew: FedSkew) -> None:
    status, _, told = fedskew("report", "demo", "--results", tmp_path)
    assert status == 1
    assert "no finished run of demo" in told and f"fedskew run demo --results {tmp_path}" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing-of-the-kind"], "nothing-of-the-kind"),
        (["demo", "--csv", "--markdown"], "must be one of them"),
        (["demo", "--set", "alhpa=1"], "alhpa"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], told: str, fedskew: FedSkew) -> None:
    status, _, errors = fedskew("report", *words)
    assert status == 2 and told in errors


def test_the_command_line_writes_every_form(tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    monkeypatch.setattr(report_cli, "load_experiments", lambda: {"frozen": None})
    made = frozen(results)
    monkeypatch.setattr(report_cli, "find_all", lambda names: [made])
    at = ["--results", results]
    status, told, _ = fedskew("report", *at)
    assert status == 0
    assert "CReFF beats FedAvg: holds in part, 2 of 3 seeds" in told and "paper 70.1" in told
    for option, start in (("--markdown", "## FedAvg, CReFF"), ("--csv", "experiment,column"), ("--json", "[")):
        status, told, _ = fedskew("report", "frozen", option, *at)
        assert status == 0 and told.startswith(start)
    page = tmp_path / "report.html"
    status, told, errors = fedskew("report", "frozen", "--html", page, *at)
    assert status == 0 and told == "" and str(page) in errors and page.stat().st_size > 50_000
    assert fedskew("report", "frozen", "--html", tmp_path / "nowhere" / "report.html", *at)[0] == 2
