"""A small run of every method gives the numbers that it gave before, on any machine.

    python -m pytest tests/test_golden_runs.py
    python tests/test_golden_runs.py    write the table of numbers anew, after a change that is meant

benchmarks/hashes.py compares runs bit by bit on one machine. Here numbers are compared within a tolerance, because
another CPU may round sums differently. Each model is described by its losses and by sums over its weights, so that a
changed equation, seed, draw or default shows.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import SERVER_SMALL, SMALL

from fedskew.engines.local import LocalGrid
from server_app.app import run
from server_app.checkpoint import latest
from server_app.methods import METHODS
from server_app.run_folder import RunFolder
from server_app.settings import parse

TABLE = Path(__file__).parent / "golden" / "runs.json"
TOLERANCE = 1e-3
"""Relative. A change of 1e-7 in the first weights grows to 1e-4 in these runs."""
TOLERANCES = {"feddf": 1e-2, "fedbe": 1e-2}
"""Distillation takes Adam's steps, which have the size of the rate however small the gradient is. Where a gradient is
rounding alone, its sign differs between CPUs: 4e-3 between two Xeons."""
TINY = {"model": "mlp-bn", "rounds": 2, "local-epochs": 1, "device": "cpu"}
SCANNERS = {**TINY, "dataset": "digits-scanners"}
TAIL = {**TINY, "dataset": "digits", "clients": 10, "partition": "llt", "alpha": 0.9}
VARIED: dict[str, dict[str, Any]] = {
    "a scanner at every client": {**SCANNERS, "method": "fedbn"},
    "ten parts of a scanner": {**SCANNERS, "method": "fedbn", "parts-per-domain": 10},
    "a tenth of a scanner": {**SCANNERS, "method": "silobn", "domain-percent": 10},
    "tails by client": {**TAIL, "method": "iwds"},
    "sampled clients": {**SMALL, "method": "scaffold", "participation": 0.5},
    "bfloat16": {**SMALL, "method": "fedavg", "precision": "bfloat16"},
    "several methods, clients stacked": {
        **SMALL,
        **SERVER_SMALL["creff"],
        "method": "fedshift+creff",
        "clients-per-pass": 4,
    },
}
"""Runs beside one of every method: what is set."""
RUNS = VARIED | {
    method: {**SMALL, **SERVER_SMALL.get(method, {}), "method": method} for method in METHODS
}


def described(state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return two sums over a model's numbers: of squares, and with the weights of a wave, which sees their order."""
    if not state:  # singleset shares no tensor
        return {}
    values_P = torch.cat([state[name].double().flatten() for name in sorted(state)])
    wave_P = torch.arange(len(values_P), dtype=torch.float64).mul(0.37).sin()
    return {"square": float(values_P.square().sum()), "wave": float(values_P @ wave_P)}


def numbers_of(name: str, folder: Path) -> dict[str, float]:
    """Return the numbers of a run by name."""
    settings = parse({**RUNS[name], "results": str(folder)})
    with LocalGrid() as grid:
        run(grid, settings, lambda line: None)
    run_folder = RunFolder(settings.folder)
    numbers = {}
    for record in run_folder.rounds():
        for model, measured in record.to_json()["models"].items():
            # not the accuracy: on another CPU one image may be classified differently
            numbers[f"round {record.round} {model} loss"] = float(measured["loss"])
    checkpoint = latest(run_folder, print)
    assert checkpoint is not None
    for model, state in checkpoint.deployed.items():
        for key, value in described(state).items():
            numbers[f"{model} {key}"] = value
    return numbers


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_numbers_that_it_gave_before(name: str, tmp_path: Path) -> None:
    before = json.loads(TABLE.read_text())[name]
    now = numbers_of(name, tmp_path)
    tolerance = TOLERANCES.get(name, TOLERANCE)
    assert now.keys() == before.keys()
    moved = {
        key: (before[key], value)
        for key, value in now.items()
        if not math.isclose(value, before[key], rel_tol=tolerance, abs_tol=tolerance)
    }
    assert not moved, f"{name}: (before, now) of what has moved: {moved}"


def write() -> None:
    """Write the table."""
    table = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            numbers = numbers_of(name, Path(folder))
        table[name] = {key: float(f"{value:.6g}") for key, value in numbers.items()}
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(write())
