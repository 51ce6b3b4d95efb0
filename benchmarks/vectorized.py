"""What a round of many tiny clients costs when a worker trains several of them in one pass, beside a bare PyTorch loop.

13,706 parameters (small-cnn on 8x8 images), 20 samples a client, one batch, one epoch, SGD 0.01; 1,000 clients in every
round, 50 in a pass, two workers, and one process, in turns with a bare loop of one thread.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.figures import Row, figure, seconds
from benchmarks.tiny import BLOCK, beside_bare, run_of
from benchmarks.turns import rounds_of

GOALS = {"workers": 0.4, "inprocess": None}
"""By engine: at most so many times the bare loop of one thread."""
CLIENTS = 50
"""Clients of a pass."""


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        run = run_of(Path(temporary), 1000, 1000, rounds_of(BLOCK))
        run = replace(run, training=replace(run.training, clients_per_pass=CLIENTS))
        for engine, goal in GOALS.items():
            measured, bare = beside_bare(run, engine)
            name = {"workers": "two workers", "inprocess": "one process"}[engine]
            yield figure(
                f"1,000 tiny clients, {CLIENTS} per pass, {name} / bare loop, 1 thread",
                measured,
                bare,
                goal,
            )
            yield seconds(f"a round of 1,000 tiny clients, {CLIENTS} per pass, {name}", measured)
