"""What a round of two worker processes costs beside two bare PyTorch loops side by side: checkpoints on, no evaluation.

McMahan's CNN, 10 clients, all of them in every round, batch 32, one epoch, SGD 0.01. The bare loops are processes of
one thread each that play the same round at the same time; half of what both take together is what two workers would
need without any framework. Both take turns.
"""

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.figures import Row, figure, seconds
from benchmarks.round import BLOCKS, BareLoop, settings
from benchmarks.turns import in_turns, rounds_of
from server_app.run_settings import RunSettings

GOALS = {(600, "float32"): 1.08, (32, "float32"): 1.35, (600, "bfloat16"): 0.65}
"""By samples a client and precision: at most so many times half of the two bare loops, which have float32."""
CLIENTS = 10


def bare_loop(run: RunSettings, ends: Connection) -> None:
    """In a process: play a round for every word that comes."""
    torch.set_num_threads(1)
    bare = BareLoop(run)
    while ends.recv():
        bare.round()
        ends.send(True)


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


def both(ends: list[Connection]) -> None:
    """Let both bare loops play a round at once."""
    for end in ends:
        end.send(True)
    for end in ends:
        end.recv()


def rows() -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        for (samples, precision), goal in GOALS.items():
            block = BLOCKS[samples]
            run = settings(Path(temporary), samples, rounds_of(block), CLIENTS, CLIENTS)
            run = replace(run, training=replace(run.training, precision=precision))
            with side_by_side(run) as ends:
                ours, two_rounds = in_turns(run, "workers", block, partial(both, ends))
            bare, name = [taken / 2 for taken in two_rounds], f"{samples} samples a client, {precision}, two workers"
            yield figure(f"{name} / half of two bare loops", ours, bare, goal)
            yield seconds(f"a round of ten clients, {name}", ours)
            yield seconds("half of two bare loops", bare)
