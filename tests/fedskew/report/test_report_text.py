"""The report's texts and figures, and the command line."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from frozen import ENTRY, GOLDEN, ONE_COLUMN, frozen, frozen_results, golden, report_words, rounded

from fedskew.experiments import Experiment, Row, experiment
from fedskew.report.document import document
from fedskew.report.render import csv_text, html, markdown, terminal_text
from fedskew.report.results import gather

FULL = Path("/dev/full")


def test_numbers_page_and_tables_are_the_golden_ones(tmp_path):
    """`python tests/fedskew/report/frozen.py` writes new ones; look at the difference before keeping them."""
    for name, text in golden(tmp_path).items():
        assert text == (GOLDEN / name).read_text(), name


def test_the_command_prints_every_form(tmp_path, fedskew, no_drawings):
    """JSON has the golden numbers, CSV the same ones; every form warns once, on stderr where another program reads."""
    words, page = report_words(tmp_path), tmp_path / "page.html"
    (expected,) = json.loads((GOLDEN / "report.json").read_text())
    output = {}
    for form in ("", "--markdown", "--csv", "--json", "--html", "--latex"):
        more = [form, page] if form == "--html" else [form] * bool(form)
        status, output[form], errors = fedskew(*words, *more)
        assert status == 0, form
        assert (output[form] + errors).count("2 of 12 runs are missing") == 1
        for_programs = form in ("--csv", "--html", "--latex")
        assert ("2 of 12 runs are missing" in errors) == for_programs
    assert output["--latex"].startswith("% \\usepackage{booktabs}")
    assert not output["--html"] and "CReFF beats FedAvg" in page.read_text()
    (found,) = rounded(json.loads(output["--json"]))
    assert (found["numbers"], found["claims"]) == (expected["numbers"], expected["claims"])
    rows = list(csv.DictReader(io.StringIO(output["--csv"])))
    for row, entry in zip(rows, expected["numbers"], strict=True):
        for key in ("column", "row", "metric", "selection"):
            assert row[key] == entry[key]
        for key in ("mean", "sd", "paper", "difference"):
            assert row[key] == ("" if entry[key] is None else f"{entry[key]:.4f}")
        assert [float(value) for value in row["values"].split()] == entry["values"]
    assert csv_text([]) == ""  # runs without a number


def test_rounds_until_a_row_is_reached_can_be_the_table(tmp_path):
    cells = {"creff": [2, 3]}
    changes: dict[str, object] = {"cells": cells, "notes": {}, "seeds": [0, 1]}
    report = document(frozen_results(tmp_path, reaches="fedavg", **changes))
    by_row = {row[0].text: row[1:] for row in report.main.rows}
    assert [cell.text for cell in by_row["creff"]] == ["2", "2"]
    below = ["paper 2.0, +0.0", "paper 3.0, \N{MINUS SIGN}1.0"]
    assert [cell.below for cell in by_row["creff"]] == below
    assert "Rounds until fedavg's" in markdown([report])
    lines = [row for row in csv.DictReader(io.StringIO(csv_text([report]))) if row["paper"]]
    assert [(row["metric"], row["mean"]) for row in lines] == [
        ("rounds to fedavg's balanced-accuracy", "2.0000")
    ] * 2


def test_without_claims_the_headline_says_what_can_be_told(tmp_path):
    columns = {"LDA 0.1": ENTRY["columns"]["LDA 0.1"]}
    changes: dict[str, object] = {"claims": [], "seeds": [0, 1], "cells": {}, "notes": {}}
    report = document(frozen_results(tmp_path, columns=columns, **changes))
    assert report.headline == (
        "LDA 0.1: against fedavg's balanced accuracy: creff +4.1 points [+1.1, +7.2]; "
        "not distinguishable in 2 seeds: fedshift +11.6 points [\N{MINUS SIGN}29.7, +52.8]."
    )
    report = document(frozen_results(tmp_path, **{**ONE_COLUMN, "claims": []}))
    assert "no row is distinguishable in 3 seeds: creff +2.7 points" in report.headline


def test_no_run_is_one_sentence_with_the_command(tmp_path, fedskew):
    """Of a suite of several."""
    status, _, errors = fedskew("report", "quick", "--results", tmp_path)
    assert status == 1 and errors.count("\n") == 1
    assert f"`fedskew run quick --results {tmp_path}`" in errors


def test_two_forms_at_once_and_a_page_of_statements_are_refused(tmp_path, fedskew):
    page = tmp_path / "page.html"
    for words, says in (
        (("--latex", "--csv"), "must be one of them"),
        (("papers", "--html", page), "is for experiments: papers is about statements"),
    ):
        status, out, err = fedskew("report", *words)
        assert (status, out, err.count("\n")) == (2, "", 1) and says in err
    assert not page.exists()


@pytest.mark.slow
def test_the_command_writes_every_figure_in_three_formats(fedskew, tmp_path):
    words = report_words(tmp_path / "results", **ONE_COLUMN)
    assert fedskew(*words, "--figures", tmp_path / "figures")[0] == 0
    files = list((tmp_path / "figures" / "frozen").iterdir())
    stems = {file.stem for file in files}
    assert {file.suffix for file in files} == {".svg", ".pdf", ".png"}
    assert len(files) == 3 * len(stems)
    assert {"claims", "curves-lda-0-5", "clients-lda-0-5", "reach-lda-0-5"} <= stems


def test_runs_of_other_settings_stand_below_a_line_that_says_so(tmp_path, no_drawings):
    """On top the difference, below the table what is assumed as it is in force."""
    experiment = frozen(tmp_path)
    same = {"results": str(tmp_path), "rounds": 2}
    report = document(gather(experiment, {**same, "local-epochs": 1, "alpha": 0.5}))
    differs = "Differs from the experiment: local-epochs = 1 instead of 5, alpha = 0.5 instead of 0.1, 0.5."
    for text in (markdown([report]), html([report])):
        assert text.index(differs) < text.index("LDA 0.5")
        assert "local-epochs = 1" in text and "local-epochs = 5" not in text
    rows = tuple(Row(method, method) for method in ("fedavg", "creff"))
    for entry in (experiment, Experiment("comparison", "two", rows)):
        warnings = gather(entry, same).warnings
        assert not any("Differs" in warning for warning in warnings)


def test_methods_that_need_a_setting_are_reported_under_it(tmp_path):
    """Without it they are no plan that could be compared with: the default model has no batch norm."""
    needy = experiment("mine", {"title": "", "methods": ["fedavg", "fedbn"]})
    found = gather(needy, {"results": str(tmp_path), "model": "digit-model"})
    assert len(found.runs) == 2 and not any("Differs" in warning for warning in found.warnings)


def test_a_claim_is_escaped_in_markdown(tmp_path):
    claims = [ENTRY["claims"][0] | {"says": r"CReFF's p < 0.05 on a\b | c*"}]
    report = document(frozen_results(tmp_path, claims=claims))
    escaped_claim = r"CReFF's p &lt; 0.05 on a\b \| c\*"
    assert f"- {escaped_claim}: **not distinguishable, +2.7 points" in markdown([report])


def test_ten_cells_fit_on_a_screen_and_the_verbose_form_has_more(tmp_path):
    again = [{f"creff {number}": {"method": "creff"}} for number in (2, 3)]
    methods = ["fedavg", "creff", "fedshift", *again]
    results = frozen_results(tmp_path, methods=methods, series=[])
    text = terminal_text([document(results)], width=80)
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines[:-1])) <= 80
    assert "creff 3" in text and "+11.6 points" in text and "CReFF beats FedAvg" in text
    verbose = terminal_text([document(results)], 80, verbose=True)
    assert "settings: partition lda" in verbose and "partition: lda" not in text


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", ["", "--json"])
def test_a_stdout_that_takes_nothing_is_one_sentence(form, tmp_path, fedskew, monkeypatch):
    words = report_words(tmp_path)
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status, _, errors = fedskew(*words, *[form] * bool(form))
    assert status == 2 and "fedskew: stdout cannot be written" in errors
