"""A small run of every method, and eight combinations, give the numbers and the hashes that they gave before.

    python -m pytest tests/test_golden_runs.py
    PYTHONPATH=tests:. python tests/test_golden_runs.py    write the table anew, after a change that is meant

Numbers (losses, and sums over the weights) are compared on every machine, within a tolerance: another processor may
round sums differently. Where the table has hashes for this processor and this torch, the hash of everything that a run
has made is compared too, to the bit. Writing the table adds the hashes of the machine that it is written on.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import FedSkew
from in_process import SERVER_SMALL, SMALL

import fedskew
from server_app.checkpoint import latest
from server_app.methods import METHODS
from server_app.run_folder import RunFolder

TABLE = Path(__file__).parent / "golden" / "runs.json"
TOLERANCE = 1e-3
"""Relative. A change of 1e-7 in the first weights grows to 1e-4 in these runs."""
TOLERANCES = {"feddf": 1e-2, "fedbe": 1e-2, "bfloat16": 1e-2}
"""Distillation takes Adam's steps, which have the size of the rate however small the gradient is. Where a gradient is
rounding alone, its sign differs between CPUs: 4e-3 between two Xeons. bfloat16 keeps eight bits of a number."""
TINY = {**SMALL, "local-epochs": 1}
OF_OTHER_DATA = {"model": "mlp-bn", "rounds": 2, "local-epochs": 1, "device": "cpu"}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "clients stacked": {**TINY, "method": "fedshift+creff", "clients-per-pass": 4},
    "half of the clients": {**TINY, "method": "scaffold+reweighting", "participation": 0.5},
    "heads at home": {**TINY, "method": "fedrep+trimmed-mean", "clients": 5},
    "personal and fine-tuned models": {**TINY, "method": "ditto+ccvr", "finetune-epochs": 1},
    "bfloat16": {**TINY, "method": "fedntd+fedavgm", "precision": "bfloat16"},
    "class weights": {**TINY, "method": "fed-focal+ratio-loss+norm-clipping"},
    "long tails": {
        **OF_OTHER_DATA, "method": "fedbn+iwds", "dataset": "digits", "clients": 10, "partition": "llt", "alpha": 0.9,
    },
    "a tenth of a scanner": {
        **OF_OTHER_DATA, "method": "silobn+fednova", "dataset": "digits-scanners", "domain-percent": 10,
    },
}  # fmt: skip
OWN = {"iwds": {"resampling.decay": 0.5}, "median": {"clients": 5}, "trimmed-mean": {"clients": 5}}
"""Without these two rounds of iwds are those of fixed-beta-sampling, and a trimmed mean of four is their median."""
RUNS = COMBINATIONS | {
    method: {**TINY, **OWN.get(method, {}), "method": method} for method in METHODS
}
ON_EVERY_ENGINE = ("fedshift", "fedbn", "scaffold", "creff", "ccvr", "ditto")
"""A question first, memory, uploads and broadcasts, deployed models, a question last, models that stay at clients."""


def settings_of(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings with what its methods need and short work for the server."""
    needed: dict[str, Any] = {}
    for method in run["method"].split("+"):
        needed |= SERVER_SMALL.get(method, {})
    return {**needed, **run, "model": needed.get("model", run["model"])}


def described(state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return two sums over a model's numbers: of squares, and with the weights of a wave, which sees their order."""
    if not state:  # singleset shares no tensor
        return {}
    values_P = torch.cat([state[name].double().flatten() for name in sorted(state)])
    wave_P = torch.arange(len(values_P), dtype=torch.float64).mul(0.37).sin()
    return {"square": float(values_P.square().sum()), "wave": float(values_P @ wave_P)}


def outcome_of(name: str, folder: Path) -> tuple[dict[str, float], str]:
    """Return the numbers of a run by name, and the first 16 digits of the hash of all that it has made."""
    result = fedskew.run({**settings_of(RUNS[name]), "results": str(folder)})
    numbers = {}
    for record in result.rounds:
        for model, measured in record.models.items():
            # not the accuracy: on another CPU one image may be classified differently
            numbers[f"round {record.round} {model} loss"] = float(measured["loss"])
    checkpoint = latest(RunFolder(result.folder), print)
    assert checkpoint is not None and result.hash is not None
    for model, state in checkpoint.deployed.items():
        for key, value in described(state).items():
            numbers[f"{model} {key}"] = value
    return numbers, result.hash[:16]


def this_machine() -> str:
    """Return what the bits of a sum depend on: the processor, torch, and the instructions that torch uses."""
    facts = Path("/proc/cpuinfo").read_text().split("\n\n")[0] if sys.platform == "linux" else ""
    stated = dict(line.split("\t", 1) for line in facts.splitlines() if "\t" in line)
    words = [stated.get(key, "?").strip("\t: ") for key in ("model name", "model", "stepping")]
    return ", ".join(
        [*words, f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability()]
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_numbers_and_the_bits_that_it_gave_before(
    name: str, tmp_path: Path
) -> None:
    table = json.loads(TABLE.read_text())
    assert name in table["numbers"], f"{name} is new: write the table anew"
    before = table["numbers"][name]
    now, code = outcome_of(name, tmp_path)
    tolerance = TOLERANCES.get(name, TOLERANCE)
    assert now.keys() == before.keys()
    moved = {
        key: (before[key], value)
        for key, value in now.items()
        if not math.isclose(value, before[key], rel_tol=tolerance, abs_tol=tolerance)
    }
    assert not moved, f"{name}: (before, now) of what has moved: {moved}"
    hashes = table["hashes"].get(this_machine())
    assert hashes is None or code == hashes[name], (
        f"{name}: the numbers are as before within {tolerance:g}, and not to the bit, on {this_machine()}: "
        "a sum has another order, a draw another seed, or a rounding has moved; "
        "if that is meant, write the table anew"
    )


@pytest.mark.slow
def test_six_methods_give_one_hash_on_every_engine(fedskew: FedSkew, tmp_path: Path) -> None:
    """All runs share one start of Ray, and creff, ccvr and ditto, which leave the average alone, one training."""
    rows = [{method: settings_of({**TINY, "method": method})} for method in ON_EVERY_ENGINE]
    kept = {"model": "random-conv", "components": 4, "hidden": 3, "clients-per-pass": 2}
    rows.append({"components": {**TINY, "method": "fedavg", **kept}})
    (tmp_path / "six.yaml").write_text(yaml.safe_dump({"six": {"title": "Six", "methods": rows}}))
    of_engines = {}
    for engine in ("inprocess", "workers", "ray"):
        words = ("--engine", engine, "--jobs", 1, "--workers", 0 if engine == "inprocess" else 2)
        where = ("--experiments", tmp_path / "six.yaml", "--results", tmp_path / engine)
        status, _, errors = fedskew("run", "six", *words, *where)
        assert status == 0, errors
        of_engines[engine] = {
            file.parent.name: json.loads(file.read_text())["hash"]["all"]
            for file in (tmp_path / engine).glob("*/summary.json")
        }
    assert len(of_engines["inprocess"]) == len({*of_engines["inprocess"].values()}) == 5
    assert of_engines["workers"] == of_engines["inprocess"]
    assert of_engines["ray"] == of_engines["inprocess"]


def write() -> None:
    """Write the numbers of every run, and the hashes of this machine beside those of others whose bits still hold."""
    torch.set_num_threads(1)
    before = json.loads(TABLE.read_text()) if TABLE.exists() else {"numbers": {}, "hashes": {}}
    numbers, hashes = {}, {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            measured, hashes[name] = outcome_of(name, Path(folder))
        numbers[name] = {key: float(f"{value:.6g}") for key, value in measured.items()}
    # Hashes of another machine are those of other code as soon as this machine's have changed.
    unchanged = before["hashes"].get(this_machine(), hashes) == hashes
    kept = before["hashes"] if unchanged else {}
    alike = [name for name, code in hashes.items() if [*hashes.values()].count(code) > 1]
    assert not alike, f"{alike} train alike: what tells them apart has no effect in these runs"
    TABLE.write_text(
        json.dumps({"numbers": numbers, "hashes": {**kept, this_machine(): hashes}}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(write())
