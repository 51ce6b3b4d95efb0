"""Kill -9 at random moments of a run, then the same command again: the hash must be that of a run left alone.

    python benchmarks/kills.py [--kills 30] [--seed 0] [--engines inprocess workers ray sweep]

Every run of an engine is killed up to three times at moments drawn evenly over the time that it takes undisturbed, the
command alone or with its process group, before it may end. A line a run: engine, the moments in seconds, what came out.
The exit status is 1 where a hash is another. Some minutes an engine on a quiet machine.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "method": "scaffold+fedavgm+silobn", "dataset": "digits", "clients": 5, "alpha": 0.5, "min-samples": 5,
    "train-images": 400, "participation": 0.8, "model": "mlp-bn", "rounds": 12, "device": "cpu",
}  # fmt: skip
ENGINES = {
    "inprocess": ["--engine", "inprocess"],
    "workers": ["--engine", "workers", "--workers", "2"],
    "ray": ["--engine", "ray", "--workers", "2"],
    "sweep": [
        "demo-missing",
        "--seed",
        "0",
        "--engine",
        "workers",
        "--workers",
        "1",
        "--jobs",
        "2",
    ],
}
TOGETHER = 3
"""Kills of one run at most."""


def command(engine: str, results: Path) -> subprocess.Popen[bytes]:
    """Start the engine's command in a session of its own."""
    settings = {} if engine == "sweep" else SMALL
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fedskew",
            "run",
            *ENGINES[engine],
            "--results",
            str(results),
            *words,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def hashes(results: Path) -> dict[str, str]:
    """Return the hash of everything that each run has made, by run."""
    return {
        file.parent.name: json.loads(file.read_text())["hash"]["all"]
        for file in sorted(results.glob("*/summary.json"))
    }


def finished(engine: str, results: Path) -> dict[str, str]:
    """Let the command end, and return the hashes."""
    process = command(engine, results)
    code = process.wait()
    return hashes(results) if code == 0 else {"exit status": str(code)}


def killed(engine: str, results: Path, moments: Sequence[tuple[float, bool]]) -> dict[str, str]:
    """Start the command and kill it at each of the moments; then let it end, and return the hashes."""
    for seconds, group in moments:
        process = command(engine, results)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
    return finished(engine, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    stated = parser.parse_args()
    draws, others, kills = random.Random(stated.seed), 0, 0
    for place, engine in enumerate(stated.engines):
        left = stated.kills // len(stated.engines) + (place < stated.kills % len(stated.engines))
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            expected = finished(engine, Path(folder) / "undisturbed")
            took = time.monotonic() - began
            print(f"{engine:<10} undisturbed in {took:.0f} s: {len(expected)} runs", flush=True)
            while left > 0:
                moments = [
                    (draws.uniform(0, took), draws.random() < 0.5)
                    for _ in range(min(TOGETHER, left))
                ]
                same = killed(engine, Path(folder) / str(left), moments) == expected
                left, kills, others = left - len(moments), kills + len(moments), others + (not same)
                at = ", ".join(f"{seconds:.1f}{' group' * group}" for seconds, group in moments)
                print(
                    f"{engine:<10} killed at {at}: {'the same' if same else 'ANOTHER HASH'}",
                    flush=True,
                )
    print(f"{kills} kills, seed {stated.seed}: {others} runs with another hash")
    sys.exit(others > 0)


if __name__ == "__main__":
    main()
