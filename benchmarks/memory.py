"""The peak of a command's memory, of all its processes, with 10 clients and with 10,000, ten of them a round.

20,000 images of 8 x 8 pixels, mlp-bn, one step. What processes share counts once (Linux: the proportional set size,
read every twentieth of a second). `fedskew federation run` stands beside them: the command of a run between two sites.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import MEASUREMENTS, Row, figure, peak, row

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
from local_federation import LocalFederation

GOAL = 1.2
COORDINATOR_GOAL = 0.25
"""GiB of `fedskew federation run`, which trains nothing itself."""
ENGINES = {
    "one process": ["--engine", "inprocess"],
    "two workers": ["--engine", "workers", "--workers", "2"],
}
IMAGES, SAMPLED = 20_000, 10


def peak_of(words: list[str]) -> float:
    """Return the MiB that a command and what it starts take at most."""
    process = subprocess.Popen([sys.executable, "-m", "fedskew", *words], stdout=subprocess.DEVNULL)
    with peak(process.pid) as most:
        process.wait()
    if process.returncode:
        raise RuntimeError(f"fedskew {' '.join(words)} ends with {process.returncode}")
    return most[0] / 2**20


def command(folder: Path, engine: str, clients: int, turn: int) -> list[str]:
    """Return the words of a run."""
    settings = {
        "dataset": f"npz:{folder / 'images.npz'}", "classes": 10, "input-shape": "1x8x8", "model": "mlp-bn",
        "partition": "iid", "clients": clients, "participation": SAMPLED / clients, "local-steps": 1, "rounds": 3,
        "device": "cpu", "cache": folder / "cache", "results": folder / f"{engine}-{clients}-{turn}",
    }  # fmt: skip
    return [
        "run",
        *ENGINES[engine],
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]


def peaks_of_coordinator(work: Path) -> list[float]:
    """Return the GiB of runs between two sites, each of its command alone: the sites are processes of their own."""
    federation = LocalFederation(work)
    federation.prepare("digits", 2)
    peaks = []
    with federation.at_work():
        for turn in range(MEASUREMENTS):
            words = ["model=small-cnn", "rounds=2", "local-steps=1", "method=fedavg"]
            peaks.append(peak_of(federation.run_words(words, f"results-{turn}")) / 2**10)
    return peaks


def rows() -> Iterator[Row]:
    """Yield the figures."""
    draw, labels = np.random.default_rng(0), np.arange(IMAGES) % 10
    images = draw.integers(0, 256, (IMAGES, 8, 8), dtype=np.uint8)
    peaks: dict[tuple[str, int], list[float]] = {
        (engine, n): [] for engine in ENGINES for n in (10, 10_000)
    }
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        shown = {"test_images": 255 - images[:100], "test_labels": labels[:100]}
        np.savez(folder / "images.npz", train_images=images, train_labels=labels, **shown)
        for turn in range(MEASUREMENTS):
            for engine, clients in peaks:
                peaks[engine, clients].append(peak_of(command(folder, engine, clients, turn)))
        coordinator = peaks_of_coordinator(folder / "federation")
    for engine in ENGINES:
        few, many = peaks[engine, 10], peaks[engine, 10_000]
        yield figure(f"peak memory, {engine}, 10,000 clients / 10 clients", many, few, GOAL)
    yield figure(
        "peak memory, 10 clients, two workers / one process",
        peaks["two workers", 10],
        peaks["one process", 10],
    )
    yield row(
        "peak memory of one process, 10 clients, in GiB",
        [most / 2**10 for most in peaks["one process", 10]],
    )
    yield row("peak memory of `fedskew federation run`, in GiB", coordinator, COORDINATOR_GOAL)
