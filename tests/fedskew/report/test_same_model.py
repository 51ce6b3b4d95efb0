"""The verdict on rows whose model must be the same to the bit in every column and seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedskew.experiments.experiments
from fedskew.engines.local import LocalGrid
from fedskew.experiments.plan import plan
from fedskew.report.claims import judge_models
from fedskew.report.document import document
from fedskew.report.results import gather
from server_app.app import run

HEADS = ["fed-lda", "fed3r"]


def data_file(folder: Path, name: str, changed: int = -1) -> str:
    """Write a data set of 8x8 images; of the training image `changed` the label is another."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (240, 8, 8), dtype=np.uint8)
    labels = np.arange(240) % 3
    test = {"test_images": images[180:], "test_labels": labels[180:].copy()}
    if changed >= 0:
        labels[changed] = (labels[changed] + 1) % 3
    file = folder / f"{name}.npz"
    np.savez(file, train_images=images[:180], train_labels=labels[:180], **test)
    return f"npz:{file}"


def experiment(
    folder: Path, columns: Mapping[str, Mapping[str, Any]]
) -> "fedskew.experiments.experiments.Experiment":
    entry = {
        "title": "One model",
        "methods": HEADS,
        "same_model": HEADS,
        "settings": {
            "model": "linear",
            "rounds": 0,
            "results": str(folder / "results"),
            "classes": "a,b,c",
            "input-shape": "1x8x8",
            "clients": 4,
            "device": "cpu",
        },
        "columns": columns,
        "seeds": [0, 1],
    }
    return fedskew.experiments.experiments.experiment("one", entry)


def results_of(folder: Path, columns: Mapping[str, Mapping[str, Any]]) -> Any:
    """Run so many of an experiment's runs and return its results."""
    chosen = experiment(folder, columns)
    with LocalGrid() as grid:
        for settings in list({cell.run.run_id: cell.run for cell in plan(chosen)}.values()):
            run(grid, settings, lambda line: None)
    return gather(chosen, {})


def test_one_hash_over_partitions_and_seeds_holds(tmp_path: Path) -> None:
    data = data_file(tmp_path, "one")
    columns = {
        "IID": {"dataset": data, "partition": "iid"},
        "LDA": {"dataset": data, "partition": "lda", "alpha": 0.5},
    }
    results = results_of(tmp_path, columns)
    found = [(verdict.row, verdict.status, verdict.runs) for verdict in judge_models(results)]
    assert found == [("fed-lda", "holds", 4), ("fed3r", "holds", 4)]
    (section,) = [part for part in document(results).sections if part.key == "models"]
    (table,) = section.tables
    assert [row[1].text for row in table.rows] == ["holds", "holds"]


def test_one_label_changed_on_purpose_fails(tmp_path: Path) -> None:
    columns = {
        "as it is": {"dataset": data_file(tmp_path, "one"), "partition": "iid"},
        "one label": {"dataset": data_file(tmp_path, "other", 17), "partition": "iid"},
    }
    results = results_of(tmp_path, columns)
    for verdict in judge_models(results):
        assert verdict.status == "does not hold"
        assert sorted(verdict.hashes.values()) == [
            ["as it is, seed 0", "as it is, seed 1"],
            ["one label, seed 0", "one label, seed 1"],
        ]
