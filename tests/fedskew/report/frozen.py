"""Frozen records of a small experiment, put where its plan looks for them.

`python tests/fedskew/report/frozen.py` renews the golden files from them.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew.experiments.experiments import Experiment, experiment
from fedskew.experiments.plan import plan, runs
from fedskew.report.document import Document, document
from fedskew.report.results import ExperimentResults, gather
from fedskew.report.text import csv_text, markdown
from server_app.record import RoundRecord
from server_app.round_selection import summarize
from server_app.run_folder import RunFolder, line_of
from server_app.run_settings import RunSettings

HERE = Path(__file__).parent
ENTRY: dict[str, Any] = {
    "title": "FedAvg, CReFF and FedShift on skewed digits",
    "paper": "Nobody, Table 1",
    "settings": {"dataset": "digits", "rounds": 2},
    "assumed": {"local-epochs": 5},
    "columns": {"LDA 0.1": {"alpha": 0.1, "imbalance-factor": 4}, "LDA 0.5": {"alpha": 0.5, "imbalance-factor": 10}},
    "methods": ["fedavg", "creff", "fedshift"],
    "seeds": [0, 1, 2],
    "cells": {"fedavg": [70.1, 75.5], "creff": [78.0, None]},
    "notes": {"creff": "an invented number", "fedavg, LDA 0.5": "another one"},
    "series": ["matching-loss"],
    "claims": [
        {"says": "CReFF beats FedAvg", "better": "creff", "than": "fedavg"},
        {"says": "CReFF is sooner", "better": "creff", "than": "fedavg", "sooner": True, "columns": ["LDA 0.5"]},
        {
            "says": "CReFF helps the rare classes most", "better": "creff", "than": "fedavg", "by": 5,
            "metric": "few-recall", "columns": ["LDA 0.5"],
        },
        {
            "says": "FedShift is far above FedAvg", "better": "fedshift", "than": "fedavg", "by": 20,
            "selection": "best-test", "expected": False, "why": "five epochs are few.",
        },
    ],
    "unjudged": ["CReFF's curves are smoother"],
}  # fmt: skip
VERSIONS = {"code": "c0de", "torch": "2", "flwr": "1", "numpy": "2", "cpu": "AVX2"}


def frozen(results: Path, **changes: Any) -> Experiment:
    """Write the frozen runs into a folder of results and return their experiment, with changes to its entry."""
    named = experiment("frozen", {**ENTRY, **changes})
    records = json.loads((HERE / "records.json").read_text())
    for run in runs(plan(named, {"results": str(results)})):
        column = next(
            label for label, stated in named.columns.items() if stated["alpha"] == run.data.alpha
        )
        name = f"{column}, IF {run.data.imbalance_factor:g} / {run.general.method} / {run.general.seed}"
        if name in records:
            write(run, records[name])
    return named


def write(run: RunSettings, kept: Mapping[str, Any], **versions: str) -> None:
    """Write a finished run's files, but for its checkpoint."""
    folder = RunFolder(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    folder.clear()
    origin = {
        "settings": run.flat(),
        "partition-hash": kept["partition-hash"],
        "samples": kept["samples"],
    }
    folder.settings_file.write_text(line_of({**origin, "versions": {**VERSIONS, **versions}}))
    for record in kept["rounds"]:
        folder.add_round(RoundRecord.of(record))
    summary = {"models": summarize(folder.rounds()), "failures": 0, "hash": {"all": "ab" * 32}}
    folder.summary_file.write_text(line_of(summary))


def frozen_results(results: Path, **changes: Any) -> ExperimentResults:
    """Return what the report finds of the frozen runs."""
    return gather(frozen(results, **changes), {"results": str(results)})


def golden(results: Path) -> tuple[Document, dict[str, str]]:
    """Return the frozen report, and its texts by the name of their golden files; the folder's name is left out."""
    report = document(frozen_results(results))
    texts = {"golden.md": markdown([report]), "golden.csv": csv_text([report])}
    ids = {run.run_id: f"run-{number}" for number, run in enumerate(runs(report.results.cells))}
    for name, text in texts.items():
        for run_id, short in ids.items():  # a run's id changes with every setting that FedSkew gets
            text = text.replace(run_id, short)
        texts[name] = text.replace(str(results), "RESULTS")
    return report, texts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, text in golden(Path(folder))[1].items():
            (HERE / name).write_text(text)
            sys.stdout.write(f"{HERE / name}\n")
