"""What a round of many tiny clients costs beside a bare PyTorch loop, and whether the clients that rest cost anything.

13,706 parameters (small-cnn on 8x8 images), 20 samples a client, one batch, one epoch, SGD 0.01; all of 1,000 clients
in every round, with two workers and in one process, in turns with a bare loop of one thread. Then 100 a round of 10,000
clients and of 1,000, in turns: seconds, and the memory of the run's processes with what they share counted once.
`STOCK_ROUNDS` of stock Flower, its FedAvg with clients as small, 1,000 nodes on two actors.
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import torch

from benchmarks.figures import MEASUREMENTS, Row, figure, rounded, seconds
from benchmarks.ray_start import STOCK, stock_flower
from benchmarks.round import all_play, bare_loop, laps, settings
from benchmarks.turns import in_turns, rounds_of
from server_app.run_settings import RunSettings

GOALS = {"workers": 0.85, "inprocess": None}
"""By engine: at most so many times the bare loop of one thread."""
SAMPLES, BLOCK, ROUNDS, STOCK_ROUNDS = 20, 6, 7, 5
TRAINING = """model = torch.nn.Sequential(torch.nn.Linear(64, 184), torch.nn.ReLU(), torch.nn.Linear(184, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.nn.functional.cross_entropy(model(torch.rand(20, 64)), torch.arange(20) % 10).backward()
    optimizer.step()"""
"""A client as small for stock Flower: 13,810 parameters."""


def run_of(folder: Path, clients: int, sampled: int, rounds: int) -> RunSettings:
    """Return a run of tiny clients."""
    return settings(folder, SAMPLES, rounds, clients, sampled, "small-cnn", 8)


def beside_bare(run: RunSettings, engine: str) -> list[list[float]]:
    """Return the seconds of a round in each turn, and of the bare loop's."""
    with bare_loop(run) as bare:
        return in_turns(run, engine, BLOCK, partial(all_play, bare))


def memory(process: psutil.Process) -> int:
    """Return the bytes of a process and its children, what they share counted once."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_full_info().pss
    return total


@contextmanager
def peak(pid: int | None = None) -> Iterator[list[float]]:
    """Within this context, keep the most bytes seen of a process and its children; without `pid` of this process."""
    most, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            with suppress(psutil.NoSuchProcess):  # it has ended
                most[0] = max(most[0], float(memory(psutil.Process(pid))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def stock(folder: Path) -> list[float]:
    """Return the seconds of stock Flower's later rounds of 1,000 nodes on two actors."""
    start = STOCK.index("model = torch.nn.Linear(8, 8)")
    end = STOCK.index("content = {")
    text = STOCK[:start] + TRAINING + "\n    " + STOCK[end:]
    text = text.replace("torch.nn.Linear(8, 8)", TRAINING.splitlines()[0].removeprefix("model = "))
    return stock_flower(folder, STOCK_ROUNDS + 1, 1000, text)[1]


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder, times = Path(temporary), {}
        for engine, goal in GOALS.items():
            times[engine], bare = beside_bare(run_of(folder, 1000, 1000, rounds_of(BLOCK)), engine)
            name = {"workers": "two workers", "inprocess": "one process"}[engine]
            yield figure(
                f"1,000 tiny clients, {name} / bare loop, 1 thread",
                times[engine],
                bare,
                goal,
            )
            yield seconds(f"a round of 1,000 tiny clients, {name}", times[engine])
            yield seconds("bare loop", bare)
        taken: dict[int, list[float]] = {1000: [], 10000: []}
        most: dict[int, list[float]] = {1000: [], 10000: []}
        for _ in range(MEASUREMENTS):
            for clients in taken:
                with peak() as seen:
                    measured = sorted(laps(run_of(folder, clients, 100, ROUNDS), "workers"))
                taken[clients].append(measured[len(measured) // 2])
                most[clients] += seen
        yield figure(
            "100 clients a round of 10,000 / of 1,000, time",
            taken[10000],
            taken[1000],
            1.2,
        )
        yield figure(
            "100 clients a round of 10,000 / of 1,000, memory",
            most[10000],
            most[1000],
            1.2,
        )
        theirs = stock(folder)
        ours = times["workers"][:STOCK_ROUNDS]
        name, goal = "1,000 tiny clients, two workers / stock Flower on two actors", rounded(1 / 60)
        yield figure(name, ours, theirs[: len(ours)], goal)
        yield seconds("a round of stock Flower", theirs)
