"""FedShift's Table 3 at the paper's own scale on one GPU: ResNet-18, all CIFAR-10 images at 32x32.

    python -m benchmarks.paper_scale STEP --data-root FOLDER --results FOLDER --records FOLDER [--trial]

STEP 0 measures the training steps a second of 16 processes in float32 and in bfloat16. Steps 1 to 3 train, in bfloat16,
FedAvg and FedShift each: E = 1 with seeds 0 and 1, E = 5 with seed 0, E = 1 with seeds 2 and 3. A step that was stopped
resumes where it was if the results folder is still there. Of every finished run a record without weights is written to
FOLDER. Start NVIDIA's MPS first. --trial does the same on the CPU with two
rounds and 100 images.

Estimates, before anyone has measured: 280 steps a second in float32, 600 to 800 in bfloat16. E = 1 is 1,255 steps a
round of ten clients.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from client_app.client import Client
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.process import make_deterministic
from client_app.state import copy
from client_app.training import train_round
from data import Samples
from fedskew.experiments import Experiment, find_all
from fedskew.experiments.plan import plan, runs, selected
from fedskew.report.kept_records import keep
from fedskew.report.runs import Run
from server_app.run_settings import Scalar

ENTRY = "fedshift-table3"
ROWS = ("fedavg", "fedshift")
BATCH = 40
SHAPE = (3, 32, 32)
BATCHES = 2
"""Of the client whose steps step 0 counts."""


@dataclass(frozen=True)
class Step:
    """Runs of the table that fit one loan."""

    column: str
    seeds: tuple[int, ...]
    rounds: int


STEPS = {1: Step("E = 1", (0, 1), 80), 2: Step("E = 5", (0,), 30), 3: Step("E = 1", (2, 3), 80)}
"""In the order in which they decide most."""
OF_GPU: dict[str, Scalar] = {
    "device": "cuda",
    "precision": "bfloat16",
    "clients-per-pass": 1,
    "evaluate-every": 4,
}
TRIAL: dict[str, Scalar] = {
    **OF_GPU,
    "device": "cpu",
    "rounds": 2,
    "evaluate-every": 2,
    "train-images": 100,
    "test-images": 100,
    "min-samples": 2,
}


# ---- step 0 ----------------------------------------------------------------------------------------------------------


def steps_a_second(precision: str, seconds: float, device: str) -> float:
    """Return how many steps of ResNet-18 on 40 random images this process makes, after a first round of a client."""
    make_deterministic()
    model = build("resnet-18", SHAPE, 10, 0).to(device)
    size = BATCH * BATCHES
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(256, (size, *SHAPE), generator=draws).byte().to(device)
    mean = torch.zeros(SHAPE[0], 1, 1, device=device)
    labels_N = torch.arange(size, device=device) % 10
    samples = Samples(images, labels_N, mean, mean + 1)
    client = Client(0, model, samples, 10, start=copy(model.state_dict()))
    settings = TrainingSettings(local_epochs=1, batch_size=BATCH, precision=precision)
    train_round(client, [], settings)
    began = time.perf_counter()
    rounds = 0
    while time.perf_counter() - began < seconds:
        train_round(client, [], settings)  # reads the loss at its end, which waits for the GPU
        rounds += 1
    return rounds * BATCHES / (time.perf_counter() - began)


def measure(processes: int, seconds: float, device: str) -> dict[str, float]:
    """Return the steps a second of all processes together, by precision."""
    totals = {}
    for precision in ("float32", "bfloat16"):
        words = [sys.executable, "-m", "benchmarks.paper_scale", "0", "--one", precision]
        words += ["--seconds", str(seconds), "--device", device]
        children = [
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        outputs = [child.communicate()[0] for child in children]
        if any(child.returncode for child in children):
            raise RuntimeError(f"a process that measured {precision} has failed")
        totals[precision] = sum(map(float, outputs))
    return totals


# ---- steps 1 to 3 ----------------------------------------------------------------------------------------------------


def train(step: Step, overrides: dict[str, Scalar], results: Path, processes: int) -> None:
    """Train the runs of a step, four at a time with four processes each. Raises CalledProcessError where one fails."""
    words = [sys.executable, "-m", "fedskew", "run", ENTRY, "--column", step.column]
    for row in ROWS:
        words += ["--row", row]
    for seed in step.seeds:
        words += ["--seed", str(seed)]
    at_once = str(max(1, processes // 4))
    words += ["--engine", "workers", "--jobs", at_once, "--workers", "4"]
    words += ["--results", str(results)]
    for key, value in overrides.items():
        words += ["--set", f"{key}={value}"]
    subprocess.run(words, check=True)


def records(step: Step, overrides: dict[str, Scalar], results: Path, folder: Path) -> list[Path]:
    """Write the records of a step's finished runs, without weights, and return the files."""
    (entry,) = find_all([ENTRY])
    assert isinstance(entry, Experiment)
    cells = plan(entry, {**overrides, "results": str(results)}, step.seeds)
    files = []
    for settings in runs(selected(cells, ROWS, [step.column])):
        run = Run.read(settings)
        if run.finished:
            files.append(keep(run, folder))
    return files


def main() -> None:
    """Make one step, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", type=int, choices=[0, *STEPS])
    parser.add_argument("--data-root", default="")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--records", type=Path, default=Path("records"))
    parser.add_argument(
        "--trial", action="store_true", help="on the CPU, two rounds and 100 images"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(steps_a_second(given.one, given.seconds, given.device))
        return
    processes = 2 if given.trial else 16
    if given.step == 0:
        seconds, device = (2.0, "cpu") if given.trial else (given.seconds, given.device)
        print(json.dumps({"steps a second": measure(processes, seconds, device)}))
        return
    step = STEPS[given.step]
    overrides = TRIAL if given.trial else {**OF_GPU, "rounds": step.rounds}
    overrides = {**overrides, "data-root": given.data_root}
    began = time.perf_counter()
    try:
        train(step, overrides, given.results, processes)
    finally:  # what is finished is kept, whatever has stopped the others
        files = records(step, overrides, given.results, given.records)
        seconds = round(time.perf_counter() - began)
        print(json.dumps({"records": [file.name for file in files], "seconds": seconds}))


if __name__ == "__main__":
    main()
