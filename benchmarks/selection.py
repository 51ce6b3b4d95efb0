"""How many rounds `fedskew select` need not train, and how much of its minutes it uses: races of one minute on digits.

A candidate that goes on to more rounds continues its shorter run from the checkpoint, where the numbers stay those of a
whole run. Each measurement is a race with seeds of its own.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import MEASUREMENTS, Row, row
from benchmarks.start_up import python

MINUTES, USED_GOAL = 1.0, 1.1
SETTINGS = {"dataset": "digits", "partition": "lda", "alpha": 0.3, "clients": 10, "rounds": 30}


def race(folder: Path, seed: int) -> tuple[float, float]:
    """Return the rounds that a race trained by the rounds of its runs, and its time by the minutes that it had."""
    words = ["-m", "fedskew", "select", "--minutes", str(MINUTES)]
    words += ["--race-seed", str(seed), "--results", str(folder)]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    began = time.perf_counter()
    python(words)
    used = (time.perf_counter() - began) / (60 * MINUTES)
    (file,) = folder.rglob("result.json")
    outcome = json.loads(file.read_text())
    return 1 - outcome["rounds-taken-over"] / outcome["all-rounds"], used


def rows() -> Iterator[Row]:
    """Yield the figures."""
    trained, used = [], []
    for seed in range(MEASUREMENTS):
        with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as folder:
            share, minutes = race(Path(folder), seed)
        trained.append(share)
        used.append(minutes)
    yield row("rounds that a race of one minute trains / rounds of its runs", trained)
    yield row("time of the command / the minute that the race may take", used, USED_GOAL)
