"""The hashes of one small run of every method on every engine: equal lists mean that no number has changed.

    python benchmarks/hashes.py [--checkout FOLDER] [--engines inprocess workers ray] [--methods NAME ...] > hashes.txt

A line a run: engine, method, hash of everything that the run has made. `--checkout` runs another clone of the project,
which may be an older one, so that two lists can be compared by `diff`. The runs are small enough for two cores (a few
seconds each, a quarter of a minute on Ray) and share nothing with the results of real experiments.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
HOMES = ("fedskew/cli/main.py", "server_app/cli.py")
"""Where the command line is in a checkout: now, and at first."""
SMALL = {
    "dataset": "digits", "clients": 4, "train-images": 200, "test-images": 100, "alpha": 0.5, "min-samples": 5,
    "rounds": 3, "local-epochs": 2, "model": "mlp-bn", "device": "cpu",
}  # fmt: skip
NEEDED = {
    "creff": {"creff.features-per-class": 5, "creff.feature-steps": 3, "creff.head-steps": 4},
    "creff-code": {"creff-code.features-per-class": 5, "creff-code.feature-steps": 3, "creff-code.head-epochs": 2,
                   "augmented-gradients.repeats": 2},
    "ccvr": {"ccvr.features-per-class": 5, "ccvr.head-steps": 4},
    **{head: {"model": "linear"} for head in ("fed-lda", "fed-lda-pooled", "fed3r", "fedncm")},
    "ratio-loss": {"holdout-per-class": 3},
    "real-features": {"holdout-per-class": 3, "real-features.head-steps": 4},
    "real-blocks": {"holdout-per-class": 3, "real-blocks.steps": 4, "real-blocks.batch-size": 8},
    "feddf": {"holdout-per-class": 3, "feddf.steps": 4, "feddf.batch-size": 8},
    "fedbe": {"holdout-per-class": 3, "fedbe.steps": 4, "fedbe.batch-size": 8, "fedbe.models": 2},
}  # fmt: skip
"""By method: the settings that it needs, and short work for the server."""
FIRST_DEMO = {
    "dataset": "digits",
    "alpha": 0.1,
    "imbalance-factor": 4,
    "rounds": 12,
    "local-epochs": 20,
}
"""The experiment that `make demo` was at first."""


def runs(methods: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield a label and the settings of every run."""
    for method in methods:
        yield method, {**SMALL, **NEEDED.get(method, {}), "method": method}
    for method in ("fedavg", "creff", "fedshift"):
        yield f"first demo: {method}", {**FIRST_DEMO, "method": method}


def fedskew(checkout: Path, *words: str) -> str:
    """Return what the command line of a checkout prints as JSON. Raises RuntimeError with what it said instead."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    home = next(home for home in HOMES if (checkout / home).exists())
    start = f"from {home.removesuffix('.py').replace('/', '.')} import main; main()"
    command = [sys.executable, "-c", start, *words]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=HERE)
    parser.add_argument("--engines", nargs="+", default=["inprocess", "workers", "ray"])
    parser.add_argument("--methods", nargs="+")
    stated = parser.parse_args()
    checkout = stated.checkout.resolve()
    methods = stated.methods or [
        row["method"] for row in json.loads(fedskew(checkout, "list", "methods", "--json"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        for engine in stated.engines:
            for label, settings in runs(methods):
                words = [
                    word for key, value in settings.items() for word in ("--set", f"{key}={value}")
                ]
                at = ("--engine", engine, "--results", f"{folder}/{engine}", "--json")
                summary = json.loads(fedskew(checkout, "run", *at, *words))
                print(f"{engine:<10} {label:<24} {summary['hash']['all']}", flush=True)


if __name__ == "__main__":
    main()
