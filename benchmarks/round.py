"""What a round costs beside a bare PyTorch loop: checkpoints on, no evaluation.

McMahan's CNN, 10 clients, 5 a round, batch 32, one epoch, SGD 0.01. FedSkew's rounds take turns with those of bare
loops of one thread and of two, each in a process of its own, as FedSkew sets how its process gets memory. Two worker
processes have runs of their own.
"""

import json
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.figures import Row, figure, seconds
from benchmarks.turns import in_turns, rounds_of
from client_app.models import build
from data import federate
from fedskew.engines import execute
from fedskew.scheduling import Resources
from server_app.run_settings import RunSettings
from server_app.settings import parse

GOALS = {600: 1.02, 128: None, 32: 1.08}
"""By samples a client: at most so many times the bare loop of one thread."""
BLOCKS = {600: 3, 128: 4, 32: 8}
"""By samples a client: rounds of a turn."""
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


def laps(run: RunSettings, engine: str) -> list[float]:
    """Return the seconds of a run's rounds in other processes, without the first."""
    execute(run, Resources(engine, workers=2), lambda line: None)
    records = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    return [record["seconds"]["round"] for record in records][1:]


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        for samples, goal in GOALS.items():
            block = BLOCKS[samples]
            run = settings(Path(temporary), samples, rounds_of(block))
            name = f"{samples} samples a client, in one process"
            with bare_loop(run) as single, bare_loop(run, 2) as double:
                bare = partial(all_play, single), partial(all_play, double)
                ours, single_thread, two_threads = in_turns(run, "inprocess", block, *bare)
            yield figure(f"{name} / bare loop, 1 thread", ours, single_thread, goal)
            yield figure(f"{name} / bare loop, 2 threads", ours, two_threads)
            for what, measured in {
                "in-process": ours,
                "bare-1": single_thread,
                "bare-2": two_threads,
            }.items():
                yield seconds(f"a round of {samples} samples a client, {what}", measured)
            yield seconds(
                f"a round of {samples} samples a client, two workers", laps(run, "workers")
            )
