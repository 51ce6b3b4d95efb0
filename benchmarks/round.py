"""What a round costs beside a bare PyTorch loop: checkpoints on, no evaluation.

McMahan's CNN with 10 clients of 600 and of 32 samples, batch 32, and small-cnn on 8x8 images with 1,000 tiny clients of
20 samples, one batch each; one epoch, SGD 0.01. FedSkew's rounds take turns with those of bare loops of one thread,
each in a process of its own, as FedSkew sets how its process gets memory. Two workers stand beside two bare loops that
run at the same time: half of what both take is what two workers would need without any framework. At the end, rounds
of 100 clients out of 10,000 and out of 1,000: clients that rest cost nothing.
"""

import json
import multiprocessing
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.figures import MEASUREMENTS, Row, figure, seconds
from benchmarks.turns import in_turns, rounds_of
from client_app.models import build
from data import federate
from fedskew.engines import Resources, execute
from server_app.run_settings import RunSettings
from server_app.settings import parse

BLOCKS = {600: 3, 32: 8, 20: 6}
"""By samples a client: rounds of a turn."""
IN_ONE_PROCESS = {600: 1.02, 32: 1.08}
"""By samples a client, the goal: at most so many times the bare loop."""
TWO_WORKERS = {(600, "float32"): 1.08, (32, "float32"): 1.35, (600, "bfloat16"): 0.65}
"""By samples a client and precision, the goal beside half of two bare loops, which have float32."""
TINY = {("workers", 1): 0.85, ("inprocess", 1): None, ("workers", 50): 0.4, ("inprocess", 50): None}
"""By engine and clients of a pass, the goal beside the bare loop."""
NAMES = {"workers": "two workers", "inprocess": "one process"}
CLIENTS, SAMPLED = 10, 5


def settings(
    folder: Path,
    samples: int,
    rounds: int,
    clients: int = CLIENTS,
    sampled: int = SAMPLED,
    model: str = "mcmahan-cnn",
    side: int = 28,
) -> RunSettings:
    """Return a run on random images, `samples` of them a client."""
    path = folder / f"images-{clients}-{samples}-{side}.npz"
    if not path.exists():
        draw = np.random.default_rng(0)
        arrays = {}
        for name, size in (("train", clients * samples), ("test", 100)):
            shape = (size, side, side)
            arrays[f"{name}_images"] = draw.integers(0, 256, shape, dtype=np.uint8)
            arrays[f"{name}_labels"] = np.arange(size) % 10
        np.savez(path, **arrays)
    return parse(
        {
            "method": "fedavg",
            "model": model,
            "dataset": f"npz:{path}",
            "classes": "10",
            "input-shape": f"1x{side}x{side}",
            "partition": "iid",
            "clients": clients,
            "participation": sampled / clients,
            "learning-rate": 0.01,
            "local-epochs": 1,
            "momentum": 0.0,
            "rounds": rounds,
            "evaluate-every": 0,
            "cache": str(folder / "cache"),
            "results": str(folder / "results"),
            "overwrite": True,
        }
    )


class BareLoop:
    """FedAvg as one would write it without any framework."""

    def __init__(self, run: RunSettings) -> None:
        federation = federate(run.data, run.general.seed)
        parts = [federation.train(client) for client in range(run.data.clients)]
        self.data = [(part.batch(torch.arange(len(part))), part.labels_N) for part in parts]
        self.sampled = round(run.general.participation * run.data.clients)
        self.model = build(run.general.model, federation.dataset.shape, 10, 0)
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def round(self) -> None:
        """Train one round."""
        states, sizes = [], []
        for client in random.sample(range(len(self.data)), self.sampled):
            inputs, labels = self.data[client]
            self.model.load_state_dict(self.state)
            self.model.train()
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            total = 0.0
            for indices in torch.randperm(len(labels)).split(32):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs[indices]), labels[indices])
                loss.backward()
                optimizer.step()
                total += loss.item()
            states.append(
                {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            )
            sizes.append(len(labels))
        self.state = {
            name: sum(
                state[name] * (size / sum(sizes)) for state, size in zip(states, sizes, strict=True)
            )
            for name in self.state
        }


def serve_rounds(run: RunSettings, threads: int, ends: Connection) -> None:
    """In a process: run a bare round for every word that comes."""
    torch.set_num_threads(threads)
    bare = BareLoop(run)
    while ends.recv():
        bare.round()
        ends.send(True)


@contextmanager
def bare_loop(run: RunSettings, threads: int = 1) -> Iterator[Connection]:
    """Within this context, a process of its own waits to run a bare round for every `True` that it is sent."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_rounds, args=(run, threads, theirs))
    process.start()
    try:
        yield ours
    finally:
        ours.send(False)
        process.join()


def all_play(*loops: Connection) -> None:
    """Let bare loops run a round, all at once."""
    for loop in loops:
        loop.send(True)
    for loop in loops:
        loop.recv()


def tiny(folder: Path, clients: int, sampled: int, rounds: int) -> RunSettings:
    """Return a run of tiny clients, of 13,706 parameters."""
    return settings(folder, 20, rounds, clients, sampled, "small-cnn", 8)


def medians(folder: Path, clients: int) -> Iterator[float]:
    """Yield the median seconds of a round of 100 tiny clients, for ever."""
    while True:
        run = tiny(folder, clients, 100, 7)
        execute(run, Resources("workers", workers=2), lambda line: None)
        lines = (run.folder / "rounds.jsonl").read_text().splitlines()
        later = [json.loads(line)["seconds"]["round"] for line in lines[1:]]
        yield statistics.median(later)


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        for samples, goal in IN_ONE_PROCESS.items():
            run = settings(folder, samples, rounds_of(BLOCKS[samples]))
            with bare_loop(run) as bare:
                turns = in_turns(run, "inprocess", BLOCKS[samples], partial(all_play, bare))
            yield from beside(f"{samples} samples a client, one process", *turns, goal)
        for (samples, precision), goal in TWO_WORKERS.items():
            run = settings(folder, samples, rounds_of(BLOCKS[samples]), CLIENTS, CLIENTS)
            run = replace(run, training=replace(run.training, precision=precision))
            with bare_loop(run) as left, bare_loop(run) as right:
                both = partial(all_play, left, right)
                ours, two_rounds = in_turns(run, "workers", BLOCKS[samples], both)
            half = [taken / 2 for taken in two_rounds]
            yield from beside(
                f"{samples} samples a client, {precision}, two workers", ours, half, goal
            )
        for (engine, clients), goal in TINY.items():
            run = tiny(folder, 1000, 1000, rounds_of(BLOCKS[20]))
            run = replace(run, training=replace(run.training, clients_per_pass=clients))
            with bare_loop(run) as bare:
                turns = in_turns(run, engine, BLOCKS[20], partial(all_play, bare))
            yield from beside(
                f"1,000 tiny clients, {clients} a pass, {NAMES[engine]}", *turns, goal
            )
        many, few = [], []
        for of_many, of_few in zip(medians(folder, 10_000), medians(folder, 1000), strict=True):
            many.append(of_many)
            few.append(of_few)
            if len(few) == MEASUREMENTS:
                break
        yield figure("100 tiny clients out of 10,000 / out of 1,000", many, few, 1.2)


def beside(
    name: str, ours: Sequence[float], bare: Sequence[float], goal: float | None
) -> Iterator[Row]:
    """Yield the rows of rounds beside those of a bare loop."""
    yield figure(f"{name} / bare loop", ours, bare, goal)
    yield seconds(name, ours)
    yield seconds("bare loop", bare)
