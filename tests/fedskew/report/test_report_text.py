"""The report's texts, and the command line."""

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import FedSkew
from frozen import ENTRY, HERE, frozen, frozen_results, golden
from rich.console import Console

from fedskew.cli import report as report_cli
from fedskew.report.document import Document, Section, document
from fedskew.report.page import html
from fedskew.report.results import gather
from fedskew.report.text import as_json, csv_text, markdown, show
from server_app.round_selection import Point

FULL = Path("/dev/full")


def part(report: Document, key: str) -> Section:
    return next(section for section in report.sections if section.key == key)


def test_markdown_and_csv_are_the_golden_ones(tmp_path: Path) -> None:
    """`python tests/fedskew/report/frozen.py` writes new ones; look at the difference before keeping them."""
    for name, text in golden(tmp_path)[1].items():
        assert text == (HERE / name).read_text(), name


def test_every_paper_cell_stands_beside_ours_in_the_csv(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([document(frozen_results(tmp_path))]))))
    compared = {(row["column"], row["row"]): row for row in rows if row["paper"]}
    assert compared.keys() == {("LDA 0.1", "fedavg"), ("LDA 0.5", "fedavg"), ("LDA 0.1", "creff")}
    for row in compared.values():
        assert row["selection"] == "last"
        assert float(row["difference"]) == pytest.approx(
            float(row["mean"]) - float(row["paper"]), abs=1e-3
        )
        values = [float(value) for value in row["values"].split()]
        assert sum(values) / len(values) == pytest.approx(float(row["mean"]), abs=1e-3)


def test_json_has_numbers_claims_and_warnings(tmp_path: Path) -> None:
    (report,) = json.loads(json.dumps(as_json([document(frozen_results(tmp_path))])))
    assert [claim["status"] for claim in report["claims"]] == [
        "unclear",
        "unclear",
        "unclear",
        "unclear",
    ]
    assert len(report["numbers"]) == 3 * 2 * 2 and len(report["warnings"]) == 1
    assert sum(run["state"] == "finished" for run in report["runs"].values()) == 10


def test_only_rows_with_all_seeds_compete_for_the_best(tmp_path: Path) -> None:
    main_table = document(frozen_results(tmp_path)).main
    strong = {row[0].text.split()[0]: [cell.strong for cell in row[1:]] for row in main_table.rows}
    assert strong == {
        "fedavg": [False, False],
        "creff": [True, True],
        "fedshift": [False, False],
    }  # which has 69.6


def test_rounds_until_a_row_is_reached_can_be_the_table(tmp_path: Path) -> None:
    cells = {"creff": [2, 3]}
    report = document(
        frozen_results(tmp_path, reaches="fedavg", cells=cells, notes={}, seeds=[0, 1])
    )
    by_row = {row[0].text: row[1:] for row in report.main.rows}
    assert [cell.text for cell in by_row["creff"]] == ["2", "2"]
    assert [cell.below for cell in by_row["creff"]] == [
        "paper 2.0, +0.0",
        "paper 3.0, \N{MINUS SIGN}1.0",
    ]
    assert "Rounds until fedavg's" in markdown([report])
    lines = [row for row in csv.DictReader(io.StringIO(csv_text([report]))) if row["paper"]]
    assert [(row["metric"], row["mean"]) for row in lines] == [
        ("rounds to fedavg's balanced-accuracy", "2.0000")
    ] * 2


def test_columns_can_show_different_numbers(tmp_path: Path) -> None:
    report = document(frozen_results(tmp_path, metrics={"LDA 0.5": "few-recall"}, seeds=[0, 1]))
    first, second = report.main.headings[1:]
    assert "balanced accuracy" in first.below and "few recall" in second.below
    recall = {row[0].text.split()[0]: row[2].text for row in report.main.rows}
    few = next(table for table in part(report, "classes").tables if "LDA 0.5" in table.caption)
    assert recall["fedshift"] == next(row[3].text for row in few.rows if row[0].text == "fedshift")


def test_without_claims_the_headline_says_what_can_be_told(tmp_path: Path) -> None:
    columns = {"LDA 0.1": ENTRY["columns"]["LDA 0.1"]}
    report = document(
        frozen_results(tmp_path, claims=[], seeds=[0, 1], columns=columns, cells={}, notes={})
    )
    assert report.headline.startswith(
        "In LDA 0.1, creff is above fedavg (58.0 ± 17.3 percent balanced accuracy) by 4.1 points [+1.1, +7.2]"
    )
    assert report.headline.endswith("; fedshift is not distinguishable from it.")


def test_one_seed_tells_nothing_of_others(tmp_path: Path) -> None:
    headline = document(frozen_results(tmp_path, claims=[], seeds=[0])).headline
    assert "In LDA 0.1, one seed cannot tell any method from fedavg" in headline


def test_the_report_says_what_was_run(tmp_path: Path) -> None:
    report = document(frozen_results(tmp_path))
    assert report.what_was_run["partition"] == "lda, alpha 0.1 or 0.5, imbalance-factor 4.0 or 10.0"
    assert report.what_was_run["clients"] == "10, 11 to 117 training samples each"
    assert all(said in markdown([report]) for said in report.what_was_run.values())


def test_no_run_is_one_sentence_with_the_command(tmp_path: Path, fedskew: FedSkew) -> None:
    status, _, errors = fedskew("report", "demo", "--results", tmp_path)
    assert status == 1
    assert (
        "no finished run of demo" in errors and f"fedskew run demo --results {tmp_path}" in errors
    )
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing-of-the-kind"], "nothing-of-the-kind"),
        (["demo", "--csv", "--markdown"], "must be one of them"),
        (["demo", "--set", "alhpa=1"], "alhpa"),
        (["demo", "--results", ""], "--results = '': must name a folder"),
        (["demo", "--results", __file__], f"--results = '{__file__}': is no folder"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str, fedskew: FedSkew) -> None:
    status, _, errors = fedskew("report", *words)
    assert status == 2 and sentence in errors


def test_a_suite_without_runs_is_advised_by_its_name(tmp_path: Path, fedskew: FedSkew) -> None:
    errors = fedskew("report", "quick", "--results", tmp_path)[2]
    assert (
        f"no finished run of quick in {tmp_path}; make them with `fedskew run quick --results {tmp_path}`"
        in errors
    )


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Make the command line report on the frozen experiment, and return the words for where its runs are."""
    experiment = frozen(tmp_path / "results")
    monkeypatch.setattr(report_cli, "known_entries", lambda file: {"frozen": None})
    monkeypatch.setattr(report_cli, "find_all", lambda names, file: [experiment])
    return ["--results", tmp_path / "results"]


def test_the_command_line_writes_every_form(
    tmp_path: Path, fedskew: FedSkew, at: list[object], no_drawings: None
) -> None:
    status, output, _ = fedskew("report", *at)
    assert status == 0
    assert (
        "CReFF beats FedAvg: not distinguishable, in 2 of 3 seeds" in output
        and "paper 70.1" in output
    )
    for option, start in (
        ("--markdown", "## FedAvg, CReFF"),
        ("--csv", "experiment,column"),
        ("--json", "["),
    ):
        status, output, _ = fedskew("report", "frozen", option, *at)
        assert status == 0 and output.startswith(start)
    page = tmp_path / "report.html"
    status, output, errors = fedskew("report", "frozen", "--html", page, *at)
    assert (
        status == 0
        and output == ""
        and str(page) in errors
        and "CReFF beats FedAvg" in page.read_text()
    )
    assert fedskew("report", "frozen", "--html", tmp_path / "nowhere" / "report.html", *at)[0] == 2


@pytest.mark.parametrize("form", ["", "--markdown", "--csv", "--json", "--html"])
def test_every_form_warns_once(
    form: str, tmp_path: Path, fedskew: FedSkew, at: list[object], no_drawings: None
) -> None:
    words = [form, tmp_path / "report.html"] if form == "--html" else [form] * bool(form)
    status, output, errors = fedskew("report", "frozen", *words, *at)
    assert status == 0
    assert (output + errors).count("2 of 12 runs are missing") == 1
    assert ("2 of 12 runs are missing" in errors) == (form in ("--csv", "--html"))


def test_runs_of_other_settings_stand_below_a_line_that_says_so(
    tmp_path: Path, no_drawings: None
) -> None:
    """On top the difference, below the table what is assumed as it is in force."""
    experiment = frozen(tmp_path)
    report = document(
        gather(experiment, {"results": str(tmp_path), "rounds": 2, "local-epochs": 1, "alpha": 0.5})
    )
    differs = "Differs from the experiment: local-epochs = 1 instead of 5, alpha = 0.5 instead of 0.1, 0.5."
    console = Console(file=io.StringIO(), width=200)
    show([report], console)
    for text in (markdown([report]), console.file.getvalue(), html([report])):  # type: ignore[attr-defined]
        assert text.index(differs) < text.index("LDA 0.5")
        assert (
            re.search(r"these runs use: (<code>)?local-epochs = 1\b", text)
            and "local-epochs = 5" not in text
        )
    assert not any(
        "Differs" in warning
        for warning in gather(experiment, {"results": str(tmp_path), "rounds": 2}).warnings
    )


def test_what_no_claim_can_express_is_listed_as_not_judged(
    tmp_path: Path, no_drawings: None
) -> None:
    says = "CReFF's curves are smoother"
    for claims in ({}, {"claims": []}):
        report = document(frozen_results(tmp_path, **claims))
        assert f"- {says}: **not judged**" in markdown([report]) and as_json([report])[0][
            "not-judged"
        ] == [says]
        assert re.search("CReFF&#39;s curves are smoother: <strong>not judged", html([report]))


def test_a_claim_is_escaped_in_markdown_alone(tmp_path: Path, no_drawings: None) -> None:
    says = r"CReFF's p < 0.05 on a\b | c*"
    claims = [ENTRY["claims"][0] | {"says": says}]
    report = document(frozen_results(tmp_path, claims=claims))
    console = Console(file=io.StringIO(), width=200)
    show([report], console)
    status = "in 2 of 3 seeds"
    in_terminal = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"- {says}: not distinguishable, {status}" in in_terminal
    escaped_claim = r"CReFF's p &lt; 0.05 on a\b \| c\*"
    assert f"- {escaped_claim}: **not distinguishable**, {status}" in markdown([report])


@pytest.mark.parametrize("name", ["rounds.jsonl", "settings.json", "summary.json"])
def test_a_folder_in_a_file_s_place_is_one_sentence(
    name: str, tmp_path: Path, fedskew: FedSkew, at: list[object]
) -> None:
    file = next((tmp_path / "results").iterdir()) / name
    file.unlink()
    file.mkdir()
    status, output, errors = fedskew("report", "frozen", *at)
    assert (status, output, errors) == (2, "", f"fedskew: {file}: cannot be read: Is a directory\n")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", ["", "--markdown", "--csv", "--json"])
def test_a_stdout_that_takes_nothing_is_one_sentence(
    form: str, fedskew: FedSkew, at: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status, _, errors = fedskew("report", "frozen", *[form] * bool(form), *at)
    assert status == 2 and errors.endswith(
        "fedskew: stdout cannot be written: No space left on device\n"
    )


def test_no_form_of_the_report_has_a_p_value_of_zero(tmp_path: Path) -> None:
    """Three seeds that agree to the last digit: p is far below 0.001 in the claims' and the differences' table."""
    known = frozen_results(tmp_path, claims=[ENTRY["claims"][0] | {"columns": ["LDA 0.5"]}])
    fedavg = known.of("fedavg", "LDA 0.5")
    above = [
        replace(run, points=tuple(raised(point, 0.2 + 1e-9 * k) for point in run.points))
        for k, run in enumerate(fedavg)
    ]
    measured = {**known.measured, ("creff", "LDA 0.5"): above}
    report = document(replace(known, measured=measured))
    cells = [
        cell
        for key in ("claims", "differences")
        for table in part(report, key).tables
        for row in table.rows
        for cell in row
    ]
    assert "< 0.001" in [cell.text for cell in cells]
    assert any(cell.below.startswith("Holm's p < 0.001") for cell in cells)
    assert not any("0.000" in cell.text + cell.below for cell in cells)


def raised(point: Point, by: float) -> Point:
    """Return a round whose balanced accuracy is higher by so much."""
    means = {**point.numbers.means}
    means["balanced-accuracy"] += by
    return replace(point, numbers=replace(point.numbers, means=means))
