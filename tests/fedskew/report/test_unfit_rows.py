"""A run that diverged is recorded and shown as diverged, and no headline is about a row at chance."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import FedSkew
from frozen import ENTRY, frozen

from fedskew.experiments.experiments import experiment
from fedskew.experiments.plan import plan
from server_app.run_folder import line_of

DIVERGED = {
    "round": 2,
    "reason": "client 3: loss is nan",
    "client": "client 3",
    "learning-rate": 0.5,
    "remedy": "learning-rate = 0.5; a lower learning-rate may help",
}
LINEAR = ("--set", "model=linear", "--set", "rounds=1", "--set", "local-epochs=1")


def settings_of(results: Path, **changes: Any) -> list[object]:
    """Return the words of a small run."""
    words: list[object] = ["--results", results, "--engine", "inprocess", *LINEAR]
    for key, value in changes.items():
        words += ["--set", f"{key.replace('_', '-')}={value}"]
    return words


def report_words(results: Path, **changes: Any) -> list[object]:
    """Write the frozen runs and the file of their experiment; return the words of its report."""
    frozen(results, **changes)
    file = results / "experiments.yaml"
    file.write_text(yaml.safe_dump({"frozen": {**ENTRY, **changes}}))
    return ["report", "frozen", "--experiments", file, "--results", results]


def folders(results: Path, row: str, column: str) -> list[Path]:
    """Return the folders of a row's runs in a column, by seed."""
    cells = plan(experiment("frozen", ENTRY), {"results": str(results)})
    return [cell.run.folder for cell in cells if (cell.row, cell.column) == (row, column)]


def diverge(folder: Path) -> None:
    """Make a finished run one that diverged."""
    (folder / "summary.json").unlink()
    content = {"run": folder.name, **DIVERGED}
    (folder / "diverged.json").write_text(line_of(content))


def set_accuracy(folder: Path, model: str, value: float) -> None:
    """Set the balanced accuracy of a model in all of a run's rounds."""
    lines = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        del record["checksum"]
        record["models"][model]["balanced-accuracy"] = value
        lines.append(line_of(record))
    (folder / "rounds.jsonl").write_text("".join(lines))


def test_a_run_that_diverged_is_recorded_reported_and_not_repeated(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    words = ["run", *settings_of(tmp_path, method="fedavg", learning_rate="1e30")]
    status, _, errors = fedskew(*words)
    assert status == 1 and "diverged in round 1: client 0" in errors
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    record = json.loads((folder / "diverged.json").read_text())
    assert (record["run"], record["round"], record["client"]) == (folder.name, 1, "client 0")
    assert record["learning-rate"] == 1e30 and "head.weight" in record["reason"]
    assert "learning-rate = 1e+30" in record["remedy"] and "learning-rate = 1e+30" in errors

    status, _, errors = fedskew(*words)
    assert status == 1 and "not repeated" in errors and "--overwrite" in errors
    status, _, errors = fedskew(*words, "--overwrite")
    assert status == 1 and "diverged in round 1" in errors and "not repeated" not in errors

    status, output, _ = fedskew("report", "--results", tmp_path, "--json")
    (report,) = json.loads(output)
    assert status == 0 and report["title"] == "Runs on digits"
    assert report["runs"][folder.name]["state"] == "diverged"
    assert "diverged in 1 of 1 seed (" in report["headline"]
    pages = fedskew("report", "--results", tmp_path, "--markdown")[1]
    assert "0 of 1 seed, 1 diverged" in pages and "1 seeds" not in pages

    finishing = ["run", *settings_of(tmp_path, method="fedavg")]
    assert fedskew(*finishing)[0] == 0 and fedskew(*finishing)[0] == 0  # control: a run that ends


def test_a_sweep_counts_earlier_divergences_as_failed(tmp_path: Path, fedskew: FedSkew) -> None:
    report_words(tmp_path)
    for folder in folders(tmp_path, "fedshift", "LDA 0.1"):
        folder.mkdir(exist_ok=True)
        (folder / "diverged.json").write_text(line_of({"run": folder.name, **DIVERGED}))
        (folder / "summary.json").unlink(missing_ok=True)
    words: list[object] = ["run", "frozen", "--experiments", tmp_path / "experiments.yaml"]
    words += ["--results", tmp_path, "--row", "fedshift", "--column", "LDA 0.1"]
    status, output, errors = fedskew(*words)
    assert status == 1 and "3 of 3 runs diverged earlier; --overwrite repeats them" in output
    assert errors.count("client 3: loss is nan") == 3


@pytest.mark.parametrize("form", ["", "--markdown", "--csv", "--json", "--latex", "--html"])
def test_every_form_shows_rows_with_diverged_seeds(
    form: str, tmp_path: Path, fedskew: FedSkew, no_drawings: None
) -> None:
    words = report_words(tmp_path, claims=[], seeds=[0, 1])
    assert "1 diverged" not in whole(form, words, tmp_path, fedskew)
    diverge(folders(tmp_path, "fedshift", "LDA 0.5")[1])
    for folder in folders(tmp_path, "fedshift", "LDA 0.1")[:2]:
        diverge(folder)
    text = whole(form, words, tmp_path, fedskew)
    match form:
        case "--json":
            (report,) = json.loads(text)
            rows = {
                (row["row"], row["column"]): row
                for row in report["numbers"]
                if row["selection"] == "last"
            }
            assert rows["fedshift", "LDA 0.5"]["diverged"] == [1]
            assert rows["fedshift", "LDA 0.5"]["n"] == 1
            assert rows["fedshift", "LDA 0.1"]["diverged"] == [0, 1]
            assert rows["fedshift", "LDA 0.1"]["n"] == 0
            assert rows["fedavg", "LDA 0.1"]["diverged"] == []
            states = [run["state"] for run in report["runs"].values()]
            assert states.count("diverged") == 3 and states.count("finished") == 5
            assert any(run.get("diverged", {}).get("round") == 2 for run in report["runs"].values())
        case "--csv":
            lines = text.splitlines()
            assert lines[0].endswith(",diverged")
            of_one = [line for line in lines if line.startswith("frozen,LDA 0.5,fedshift")]
            assert of_one and all(line.endswith(",1") for line in of_one)
            (of_all,) = [line for line in lines if line.startswith("frozen,LDA 0.1,fedshift")]
            assert ",balanced-accuracy,last,0,," in of_all and of_all.endswith(",0 1")
            assert all(line.endswith(",") for line in lines if ",fedavg," in line)
        case _:
            assert "1 of 2 seeds, 1 diverged" in text and "0 of 2 seeds, 2 diverged" in text
            assert "fedshift diverged in 1 of 2 seeds" in text
            assert "fedshift diverged in 2 of 2 seeds" in text


def whole(form: str, words: list[object], results: Path, fedskew: FedSkew) -> str:
    """Return a report in a form."""
    if form == "--html":
        page = results / "page.html"
        assert fedskew(*words, form, page)[0] == 0
        return page.read_text()
    status, output, _ = fedskew(*words, *([form] if form else []))
    assert status == 0
    return output


def test_a_row_with_a_diverged_seed_is_neither_strong_nor_judged_nor_in_the_headline(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    """FedShift is the best row of LDA 0.1; without one of its seeds it is none."""
    words = report_words(tmp_path, seeds=[0, 1], claims=[])
    before = fedskew(*words, "--markdown")[1]
    assert "| fedshift | **" in before and "fedshift is not" in before.split("\n\n")[2]
    for column in ENTRY["columns"]:
        diverge(folders(tmp_path, "fedshift", column)[1])
    text = fedskew(*words, "--markdown")[1]
    assert (
        "| fedshift | **" not in text
        and "| not judged (fedshift diverged in 1 of 2 seeds) |" in text
    )
    headline = text.split("\n\n")[2]
    assert "fedshift diverged in 1 of 2 seeds" in headline and "client 3: loss is nan" in headline
    assert "lower learning-rate" in headline and "fedshift is" not in headline


def test_a_claim_about_a_diverged_row_is_not_judged(tmp_path: Path, fedskew: FedSkew) -> None:
    claim = {"says": "it is far above", "better": "fedshift", "than": "fedavg"}
    words = report_words(tmp_path, claims=[claim], seeds=[0, 1])
    (report,) = json.loads(fedskew(*words, "--json")[1])
    assert report["claims"][0]["status"] == "unclear"
    diverge(folders(tmp_path, "fedshift", "LDA 0.5")[1])
    (report,) = json.loads(fedskew(*words, "--json")[1])
    (judged,) = report["claims"]
    assert judged["status"] == "never" and "fedshift diverged in 1 of 2 seeds" in judged["unfit"]
    start = "Of 1 claim, 1 cannot be measured. LDA 0.5: fedshift diverged in 1 of 2 seeds"
    assert report["headline"].startswith(start)


FAR = {"says": "it is above", "better": "creff", "than": "fedavg"}


def judged_of(words: list[object], fedskew: FedSkew) -> dict[str, Any]:
    """Return the verdict on the first claim of a report."""
    verdict: dict[str, Any] = json.loads(fedskew(*words, "--json")[1])[0]["claims"][0]
    return verdict


def set_levels(results: Path, levels: dict[tuple[str, str], float]) -> None:
    """Set balanced accuracies of rows in columns; they differ a little between seeds."""
    for (row, column), level in levels.items():
        finished = [folder for folder in folders(results, row, column) if folder.exists()]
        for number, folder in enumerate(finished):
            accuracy = level + 0.001 * number
            recall = {"balanced-accuracy": accuracy, "recall": [accuracy] * 10}
            set_metric(folder, "creff" if row == "creff" else "average", recall)


@pytest.mark.parametrize(
    ("better", "than", "status"),
    [(0.05, 0.9, "fails"), (0.09, 0.01, "unclear"), (0.9, 0.05, "holds")],
)
def test_chance_stops_a_claim_from_holding_and_from_nothing_else(
    better: float, than: float, status: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    words = report_words(tmp_path, claims=[{**FAR, "columns": ["LDA 0.5"]}])
    set_levels(tmp_path, {("creff", "LDA 0.5"): better, ("fedavg", "LDA 0.5"): than})
    judged = judged_of(words, fedskew)
    assert judged["status"] == status
    assert ("creff is no better than chance" in judged["unfit"]) == (better < 0.1)


@pytest.mark.parametrize(("needed", "status"), [(1, "holds"), (2, "never")])
def test_a_claim_about_some_columns_is_judged_by_those_that_are_fit(
    needed: int, status: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    words = report_words(
        tmp_path, seeds=[0, 1], claims=[{**FAR, "better": "fedshift", "in_columns": needed}]
    )
    set_levels(tmp_path, {("fedshift", "LDA 0.5"): 0.9, ("fedavg", "LDA 0.5"): 0.2})
    diverge(folders(tmp_path, "fedshift", "LDA 0.1")[1])
    judged = judged_of(words, fedskew)
    assert judged["status"] == status
    assert judged["unfit"] == "LDA 0.1: fedshift diverged in 1 of 2 seeds"
    text = fedskew(*words, "--markdown")[1]
    assert text.count("LDA 0.1: fedshift diverged in 1 of 2 seeds") > 1  # headline and verdict


def test_the_correction_counts_rows_and_claims_that_are_judged(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    """CReFF's p is 0.044 in LDA 0.1, and 0.088 beside a second row."""
    claims = [
        {**FAR, "columns": ["LDA 0.1"]},
        {**FAR, "better": "fedshift", "columns": ["LDA 0.1"]},
    ]
    words = report_words(tmp_path, claims=claims)
    both = judged_of(words, fedskew)
    diverge(folders(tmp_path, "fedshift", "LDA 0.1")[1])
    alone = judged_of(words, fedskew)
    assert alone["p_holm"] == pytest.approx(both["interval"]["p"])
    assert both["p_holm"] > 1.5 * both["interval"]["p"]
    text = fedskew(*words, "--markdown")[1]
    (row,) = (line for line in text.splitlines() if line.startswith("| creff | +3.3 points"))
    assert "| **yes** (p 0.044) |" in row


@pytest.mark.parametrize("at_chance", ["fedavg", "creff"])
def test_a_row_at_chance_leads_no_headline(
    at_chance: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    methods = {"methods": ["fedavg", "creff"], "claims": [], "cells": {}, "notes": {}}
    words = report_words(tmp_path, **methods)
    before = json.loads(fedskew(*words, "--json")[1])[0]["headline"]
    assert "In LDA 0.1, " in before and "chance" not in before
    for folder in folders(tmp_path, at_chance, "LDA 0.1"):
        set_accuracy(folder, "average" if at_chance == "fedavg" else "creff", 0.1)
    (report,) = json.loads(fedskew(*words, "--json")[1])
    assert "In LDA 0.1, " not in report["headline"] and "In LDA 0.5, " in report["headline"]
    assert f"LDA 0.1: {at_chance} (" in report["headline"]
    assert "chance is 10.0" in report["headline"] and "fedskew data check" in report["headline"]
    table = fedskew(*words, "--markdown")[1]
    of_first = table.partition("LDA 0.1: balanced accuracy in percent, last round: difference")[2]
    (row,) = (line for line in of_first.split("LDA 0.5")[0].splitlines() if "| creff |" in line)
    assert row.endswith(f"| not judged ({at_chance} is no better than chance) |")


def set_metric(folder: Path, model: str, changes: dict[str, Any]) -> None:
    """Set numbers of a model in all of a run's rounds."""
    lines = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        del record["checksum"]
        record["models"][model] |= changes
        lines.append(line_of(record))
    (folder / "rounds.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("metric", "changes", "said"),
    [
        ("balanced-accuracy", {"balanced-accuracy": 0.1}, "chance is 10.0 percent"),
        (
            "balanced-accuracy",
            {"recall": [1.0, *[None] * 9], "balanced-accuracy": 0.4},
            "chance is 100.0",
        ),
        ("balanced-accuracy", {"balanced-accuracy": 0.12}, ""),
        ("auroc", {"auroc": 0.774, "balanced-accuracy": 0.1}, ""),
        ("auroc", {"auroc": 0.49}, "chance is 50.0 percent"),
        ("local-accuracy.mean", {"balanced-accuracy": 0.1}, ""),
        ("loss", {"balanced-accuracy": 0.1}, ""),
    ],
)
def test_chance_is_of_the_number_that_the_table_shows(
    metric: str, changes: dict[str, Any], said: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    words = report_words(
        tmp_path, metric=metric, methods=["fedavg", "creff"], claims=[], cells={}, notes={}
    )
    for column in ENTRY["columns"]:
        for row, model in (("fedavg", "average"), ("creff", "creff")):
            for folder in folders(tmp_path, row, column):
                set_metric(folder, model, changes)
    text = fedskew(*words, "--markdown")[1]
    assert ("where chance is" in text) == bool(said) and said in text
    assert ("(no better than chance)" in text) == bool(said)  # in the table's cell


def test_a_difference_has_one_verdict_after_holm(tmp_path: Path, fedskew: FedSkew) -> None:
    """CReFF's p is 0.044 in LDA 0.1, and 0.088 beside FedShift's."""
    both = fedskew(*report_words(tmp_path), "--markdown")[1]
    (row,) = (line for line in both.splitlines() if line.startswith("| creff | +3.3 points"))
    assert "| no (Holm's p 0.088) |" in row and "yes" not in row
    changes = {"methods": ["fedavg", "creff"], "claims": [], "cells": {}, "notes": {}}
    alone = fedskew(*report_words(tmp_path, **changes), "--markdown")[1]
    (row,) = (line for line in alone.splitlines() if line.startswith("| creff | +3.3 points"))
    assert "| **yes** (p 0.044) |" in row


@pytest.mark.parametrize(("clients", "shown"), [(10, False), (20, True)])
def test_few_clients_have_a_worst_client_and_no_worst_decile(
    clients: int, shown: bool, tmp_path: Path, fedskew: FedSkew
) -> None:
    words = ["run", *settings_of(tmp_path, method="fedavg", clients=clients, partition="iid")]
    assert fedskew(*words)[0] == 0
    text = fedskew("report", "--results", tmp_path, "--markdown")[1]
    assert "worst client" in text and ("worst decile" in text) == shown


def test_columns_with_few_clients_have_no_decile_beside_one_with_many(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "mine:\n  title: mine\n  methods: [fedavg]\n"
        "  columns: {few: {clients: 10}, many: {clients: 20}}\n"
        "  settings: {model: linear, rounds: 1, local-epochs: 1, partition: iid}\n"
    )
    words: list[object] = ["mine", "--experiments", tmp_path / "mine.yaml", "--results", tmp_path]
    assert fedskew("run", *words, "--jobs", 1)[0] == 0
    text = fedskew("report", *words, "--markdown")[1]
    few, many = text.split("over the clients, in percent.")[1:]
    assert "worst client" in few.split("many")[0] and "worst decile" not in few.split("many")[0]
    assert "worst decile" in many.split("\n\n")[1]
    page = tmp_path / "page.html"
    assert fedskew("report", *words, "--html", page)[0] == 0
    drawn = page.read_text().split("of the clients in percent: ")[1:]
    ends = [figure.partition(".&quot;")[0].partition('"')[0] for figure in drawn]
    assert any("worst client" in end and "decile" not in end for end in ends)
    assert any("worst decile" in end for end in ends)
    assert "in a column with few clients, the worst one" in page.read_text()


def test_the_curve_says_its_unit_and_which_number_the_table_has(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "mine:\n  title: mine\n  methods: [fedavg]\n  selection: mean-of-last-5\n"
        "  settings: {model: linear, rounds: 6, local-epochs: 1}\n  series: [loss]\n"
    )
    words: list[object] = ["mine", "--experiments", tmp_path / "mine.yaml", "--results", tmp_path]
    assert fedskew("run", *words, "--jobs", 1)[0] == 0
    page = tmp_path / "page.html"
    assert fedskew("report", *words, "--html", page)[0] == 0
    text = page.read_text()
    assert "balanced accuracy in percent" in text
    assert text.count("(thick: the table's mean of the last 5)") == 1  # and none at the loss
    assert "another number than a curve's end: the mean of the last 5" in text


def test_the_report_sees_the_scanners_that_the_diagnosis_sees(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    words: list[object] = ["--set", "dataset=digits-scanners", "--set", "model=mlp-bn"]
    words += ["--set", "rounds=1"]
    run = ["run", "--results", tmp_path, "--engine", "inprocess", "--set", "method=fedavg", *words]
    assert fedskew(*run)[0] == 0
    diagnosed = json.loads(fedskew("diagnose", "--json", *words)[1])
    assert "scanner" in json.dumps(diagnosed)
    text = fedskew("report", "--results", tmp_path, "--markdown")[1]
    assert "scanner (certain)" in text and "not looked at" not in text
