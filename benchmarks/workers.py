"""What a round of two worker processes costs beside two bare PyTorch loops side by side: checkpoints on, no evaluation.

McMahan's CNN, 10 clients, all of them in every round, batch 32, one epoch, SGD 0.01. The bare loops are processes of
one thread each that run the same round at the same time; half of what both take together is what two workers would
need without any framework. Both take turns.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.figures import Row, figure, seconds
from benchmarks.round import BLOCKS, all_play, bare_loop, settings
from benchmarks.turns import in_turns, rounds_of

GOALS = {(600, "float32"): 1.08, (32, "float32"): 1.35, (600, "bfloat16"): 0.65}
"""By samples a client and precision: at most so many times half of the two bare loops, which have float32."""
CLIENTS = 10


def rows() -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        for (samples, precision), goal in GOALS.items():
            block = BLOCKS[samples]
            run = settings(Path(temporary), samples, rounds_of(block), CLIENTS, CLIENTS)
            run = replace(run, training=replace(run.training, precision=precision))
            with bare_loop(run) as left, bare_loop(run) as right:
                ours, two_rounds = in_turns(run, "workers", block, partial(all_play, left, right))
            bare, name = (
                [taken / 2 for taken in two_rounds],
                f"{samples} samples a client, {precision}, two workers",
            )
            yield figure(f"{name} / half of two bare loops", ours, bare, goal)
            yield seconds(f"a round of ten clients, {name}", ours)
            yield seconds("half of two bare loops", bare)
