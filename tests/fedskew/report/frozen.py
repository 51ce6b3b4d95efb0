"""Frozen records of a small experiment, put where its plan looks for them.

`python tests/fedskew/report/frozen.py` writes the golden files of its report anew.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.metrics import Scores
from client_app.state import State
from fedskew.experiments import Experiment, experiment
from fedskew.experiments.plan import plan, runs
from fedskew.report.document import Document, document
from fedskew.report.figures import figures
from fedskew.report.render import as_json, latex, rendered, terminal_text
from fedskew.report.results import ExperimentResults, gather
from server_app.evaluation import metrics_from
from server_app.record import RoundRecord
from server_app.round_selection import summarize
from server_app.run_folder import Predictions, RunFolder, line_of
from server_app.run_settings import RunSettings

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden"
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
}  # fmt: skip
ONE_COLUMN: dict[str, Any] = {
    "columns": {"LDA 0.5": ENTRY["columns"]["LDA 0.5"]},
    "methods": ["fedavg", "creff"],
    "cells": {},
    "notes": {},
    "claims": ENTRY["claims"][:1],
}
"""Changes that leave the smallest report with every section."""
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


def write(run: RunSettings, kept: Mapping[str, Any]) -> None:
    """Write a finished run's files, but for its checkpoint."""
    folder = RunFolder(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    folder.clear()
    origin = {
        "settings": run.flat(),
        "partition-hash": kept["partition-hash"],
        "samples": kept["samples"],
    }
    folder.settings_file.write_text(line_of({**origin, "versions": VERSIONS}))
    for record in kept["rounds"]:
        folder.add_round(RoundRecord.of(record))
    summary = {"models": summarize(folder.rounds()), "failures": 0, "hash": {"all": "ab" * 32}}
    folder.summary_file.write_text(line_of(summary))


def folder_of(results: Path, row: str, column: str = "LDA 0.5", seed: int = 1) -> Path:
    """Return the folder of a frozen run."""
    cells = plan(experiment("frozen", ENTRY), {"results": str(results)})
    (place,) = (cell for cell in cells if (cell.row, cell.column, cell.seed) == (row, column, seed))
    return place.run.folder


def change(file: Path, changed: Callable[[dict[str, Any]], object]) -> None:
    """Change every line of a run's file, each with its checksum."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["checksum"]
        changed(line)
    file.write_text("".join(map(line_of, lines)))


def frozen_results(results: Path, **changes: Any) -> ExperimentResults:
    """Return what the report finds of the frozen runs."""
    return gather(frozen(results, **changes), {"results": str(results)})


def report_words(results: Path, **changes: Any) -> list[object]:
    """Write the frozen runs and the file of their experiment; return the words of its report."""
    frozen(results, **changes)
    file = results / "experiments.yaml"
    file.write_text(json.dumps({"frozen": {**ENTRY, **changes}}))
    return ["report", "frozen", "--experiments", file, "--results", results]


def predictions(seed: int, classes: int, size: int = 120, shift: float = 1.0) -> Predictions:
    """Return drawn predictions, the better the larger the shift."""
    draws = np.random.default_rng(seed)
    label_N = np.arange(size) % classes
    logits_NC = draws.normal(size=(size, classes)) + shift * np.eye(classes)[label_N]
    return Predictions(torch.log_softmax(torch.from_numpy(logits_NC), 1).numpy(), label_N)


def tensors_of(said: Predictions) -> State:
    """Return predictions as a run keeps them."""
    log_probabilities_NC, labels_N = map(torch.tensor, said)
    return {"log-probabilities": log_probabilities_NC, "labels": labels_N}


def with_predictions(known: ExperimentResults, classes: int = 10) -> ExperimentResults:
    """Let every run keep drawn predictions, which are better where CReFF is deployed."""
    measured, kept = {}, dict[Path, dict[str, State]]()
    for place, group in known.measured.items():
        measured[place] = list(group)
        for number, run in enumerate(group):
            shift = 2.0 if run.cell.row == "creff" else 0.8
            parts = tensors_of(predictions(run.cell.seed, classes, shift=shift))
            kept.setdefault(run.run.settings.folder, {})[run.cell.deployed] = parts
            scores = Scores.of_probabilities(parts["log-probabilities"], parts["labels"])
            spreads = run.points[-1].numbers.spreads
            last = replace(run.points[-1], numbers=replace(metrics_from(scores), spreads=spreads))
            measured[place][number] = replace(run, points=(*run.points[:-1], last))
    for folder, states in kept.items():
        RunFolder(folder).write_predictions(states)
    return replace(known, measured=measured)


def rounded(value: Any) -> Any:
    """Return JSON with six decimals, as the last bits of a sum depend on the processor."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return round(value, 6) if isinstance(value, float) else value


def figure_lines(report: Document) -> str:
    """Return the name, title and numbers of every figure."""
    named = figures(report).items()
    return "".join(f"{name}: {figure.title}: {figure.alt}\n" for name, figure in named)


def golden(results: Path) -> dict[str, str]:
    """Return the frozen report by golden file: all numbers, both forms for a terminal, tables, and what figures show.

    Names of runs and of the folder are left out.
    """
    known = frozen_results(results)
    known = replace(known, command=known.command.replace(str(results), "RESULTS"))
    report = document(known)
    without_predictions = figure_lines(report)
    with_predicted = document(with_predictions(known))
    tables = [report.main, *(table for part in report.sections for table in part.tables)]
    texts = {
        "report.json": json.dumps(rounded([as_json(report)]), indent=1) + "\n",
        "report.txt": terminal_text([with_predicted]),
        "report_verbose.txt": terminal_text([report], width=100, verbose=True),
        "report.tex": latex([report]),
        "report_figures.txt": without_predictions + figure_lines(with_predicted),
        "report_tables.md": "\n".join(rendered("table.md", table=table) for table in tables),
    }
    for number, run in enumerate(runs(report.results.cells)):
        for name in (run.folder.name, run.run_id):
            texts = {file: text.replace(name, f"run-{number}") for file, text in texts.items()}
    return texts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, text in golden(Path(folder)).items():
            (GOLDEN / name).write_text(text)
            sys.stdout.write(f"{GOLDEN / name}\n")
