"""What a round of two worker processes costs beside two bare PyTorch loops side by side: checkpoints on, no evaluation.

McMahan's CNN, 10 clients, all of them in every round, batch 32, one epoch, SGD 0.01. The bare loops are processes of
one thread each that play the same round at the same time; half of what both take together is what two workers would
need without any framework. Every round of FedSkew is followed by one of theirs.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.figures import Row, figure, seconds
from benchmarks.round import BareLoop, settings
from fedskew.engines import execute
from server_app.run_settings import RunSettings

GOALS = {600: 1.08, 32: 1.35}
"""By samples a client: at most so many times half of the two bare loops."""
ROUNDS = {600: 7, 32: 24}
CLIENTS = 10


def bare_loop(run: RunSettings, ends: Connection) -> None:
    """In a process: play a round for every word that comes."""
    torch.set_num_threads(1)
    bare = BareLoop(run)
    while ends.recv():
        ends.send(bare.round())


@contextmanager
def side_by_side(run: RunSettings) -> Iterator[list[Connection]]:
    """Within this context, two processes wait to play a bare round each."""
    context, ends = multiprocessing.get_context("spawn"), list[Connection]()
    processes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=bare_loop, args=(run, theirs)))
        processes[-1].start()
        ends.append(ours)
    try:
        yield ends
    finally:
        for end, process in zip(ends, processes, strict=True):
            end.send(False)
            process.join()


def both(ends: list[Connection]) -> float:
    """Return the seconds of a round that both bare loops play at once."""
    began = time.perf_counter()
    for end in ends:
        end.send(True)
    for end in ends:
        end.recv()
    return time.perf_counter() - began


def interleaved(run: RunSettings) -> tuple[list[float], list[float]]:
    """Return the seconds of each round of two workers, and half those of two bare loops side by side."""
    ours, bare = list[float](), list[float]()
    with side_by_side(run) as ends:
        both(ends)
        began = time.perf_counter()

        def after(line: str) -> None:
            nonlocal began
            if line.startswith("round"):
                ours.append(time.perf_counter() - began)
                bare.append(both(ends) / 2)
                began = time.perf_counter()

        execute(run, "workers", after, workers=2)
    return ours[1:], bare[1:]  # the first loads the data


def rows() -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        for samples, goal in GOALS.items():
            ours, bare = interleaved(settings(Path(temporary), samples, ROUNDS[samples], CLIENTS, CLIENTS))
            yield figure(f"{samples} samples a client, two workers / half of two bare loops", ours, bare, goal)
            yield seconds(f"a round of ten clients of {samples} samples, two workers", ours)
            yield seconds("half of two bare loops", bare)
