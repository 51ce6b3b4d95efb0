"""How long a round takes beside a bare PyTorch loop, and where Ray's fixed cost goes beside stock Flower's.

McMahan's CNN, 10 clients, 5 a round, batch 32, one epoch, SGD 0.01, no evaluation. Every FedSkew round is followed by a
round of the bare loop in the same process, so both see the same machine. Prints one JSON row a figure:
{"name", "ratio", "goal"} for what has a goal, {"name", "seconds"} for the rest.

    python benchmarks/round.py [--rounds 9] [--without-ray]
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F

from client_app.models import build
from data import federate
from fedskew.engines import execute
from fedskew.engines.launcher import _Flower
from server_app.run_settings import RunSettings
from server_app.settings import parse

GOALS = {600: 1.05, 32: 1.15}
CLIENTS, SAMPLED = 10, 5


def settings(folder: Path, samples: int, rounds: int) -> RunSettings:
    """Return a run on random images, `samples` of them a client."""
    path = folder / f"images-{samples}.npz"
    if not path.exists():
        draw = np.random.default_rng(0)
        sizes = {"train": CLIENTS * samples, "test": 100}
        np.savez(
            path,
            **{f"{name}_images": draw.integers(0, 256, (size, 28, 28), dtype=np.uint8) for name, size in sizes.items()},
            **{f"{name}_labels": np.arange(size) % 10 for name, size in sizes.items()},
        )
    return parse(
        {
            "method": "fedavg",
            "model": "mcmahan-cnn",
            "dataset": f"npz:{path}",
            "classes": "10",
            "input-shape": "1x28x28",
            "partition": "iid",
            "participation": SAMPLED / CLIENTS,
            "learning-rate": 0.01,
            "local-epochs": 1,
            "momentum": 0.0,
            "rounds": rounds,
            "evaluate-every": 0,
            "cache": str(folder / "cache"),
            "results": str(folder / "results"),
            "fresh": True,
        }
    )


class BareLoop:
    """FedAvg as one would write it without any framework."""

    def __init__(self, run: RunSettings) -> None:
        federation = federate(run.data, run.general.seed)
        parts = [federation.train(client) for client in range(CLIENTS)]
        self.data = [(part.batch(torch.arange(len(part))), part.labels_N) for part in parts]
        self.model = build("mcmahan-cnn", (1, 28, 28), 10, 0)
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def round(self) -> float:
        """Train one round and return its seconds."""
        began = time.perf_counter()
        states, sizes = [], []
        for client in random.sample(range(CLIENTS), SAMPLED):
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
            states.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            sizes.append(len(labels))
        self.state = {
            name: sum(state[name] * (size / sum(sizes)) for state, size in zip(states, sizes, strict=True))
            for name in self.state
        }
        return time.perf_counter() - began


def interleaved(run: RunSettings) -> dict[str, list[float]]:
    """Return the seconds of each round: FedSkew in one process, the bare loop with one thread and with two."""
    bare = BareLoop(run)
    bare.round()  # the first use of torch.optim takes a second
    seconds: dict[str, list[float]] = {"in-process": [], "bare-1": [], "bare-2": []}
    began = time.perf_counter()

    def after(line: str) -> None:
        nonlocal began
        if not line.startswith("round"):
            return
        seconds["in-process"].append(time.perf_counter() - began)
        seconds["bare-1"].append(bare.round())
        torch.set_num_threads(2)
        seconds["bare-2"].append(bare.round())
        torch.set_num_threads(1)
        began = time.perf_counter()

    execute(run, "inprocess", after)
    return {name: values[1:] for name, values in seconds.items()}  # the first loads the data


def execute_elsewhere(run: RunSettings, engine: str) -> tuple[dict[str, float], list[float]]:
    """Return the parts of the fixed cost of a run in other processes, and the seconds of its rounds after the first."""
    began, started = time.time(), time.perf_counter()
    execute(run, engine, lambda line: None)
    total = time.perf_counter() - started
    records = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    laps = [record["seconds"]["round"] for record in records]
    main = (run.folder / "settings.json").stat().st_mtime - began
    finished = (run.folder / "summary.json").stat().st_mtime - began
    parts = {"until main()": main, "round 1": laps[0], "after the last round": total - finished, "total": total}
    return parts, laps[1:]


STOCK = """
import time
from pathlib import Path
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
client_app = ClientApp()
server_app = ServerApp()

@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    torch.optim.SGD(model.parameters(), lr=0.1)
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)

@server_app.main()
def main(grid, context):
    stamps = [time.time()]
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    arrays = ArrayRecord(torch.nn.Linear(8, 8).state_dict())
    strategy.start(grid, arrays, num_rounds=int(context.run_config["rounds"]),
                   evaluate_fn=lambda round, arrays: stamps.append(time.time()))
    Path(context.run_config["stamps"]).write_text(" ".join(map(str, stamps)))
"""


def stock_flower(folder: Path, rounds: int, nodes: int) -> tuple[dict[str, float], list[float]]:
    """Return the same parts of stock Flower: its FedAvg, clients that do nothing, `flwr run --stream` to its end."""
    app, home, stamps = folder / "stock", folder / "home", folder / "stamps"
    app.mkdir()
    home.mkdir()
    (app / "stock.py").write_text(STOCK)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "stock"\nversion = "1.0.0"\ndescription = "stock"\nlicense = "Apache-2.0"\n'
        '[tool.flwr.app]\npublisher = "fedskew"\n[tool.flwr.app.components]\nserverapp = "stock:server_app"\n'
        f'clientapp = "stock:client_app"\n[tool.flwr.app.config]\nrounds = {rounds}\nstamps = "{stamps}"\n'
    )
    flower, began = _Flower(home, folder / "run"), time.time()
    try:
        flower.superlink()
        words = ["run", str(app), "own", "--stream", "--federation-config"]
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        flower.start("flwr", *words, federation, output=folder / "stock.log").wait()
        total = time.time() - began
    finally:
        flower.end()
    main, _, *after = map(float, stamps.read_text().split())
    parts = {
        "until main()": main - began,
        "round 1": after[0] - main,
        "after the last round": total + began - after[-1],
    }
    return {**parts, "total": total}, [later - sooner for sooner, later in pairwise(after)]


def rows(rounds: int, with_ray: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        for samples, goal in GOALS.items():
            seconds = interleaved(settings(folder, samples, rounds if samples == 600 else 4 * rounds))
            medians = {name: statistics.median(values) for name, values in seconds.items()}
            name = f"round, {samples} samples a client, in-process"
            yield {
                "name": f"{name} / bare loop, 1 thread",
                "ratio": medians["in-process"] / medians["bare-1"],
                "goal": goal,
            }
            yield {
                "name": f"{name} / bare loop, 2 threads",
                "ratio": medians["in-process"] / medians["bare-2"],
                "goal": None,
            }
            for what, value in medians.items():
                yield {"name": f"round, {samples} samples a client, {what}", "seconds": value}
            laps = execute_elsewhere(settings(folder, samples, rounds), "workers")[1]
            yield {"name": f"round, {samples} samples a client, worker processes", "seconds": statistics.median(laps)}
        if not with_ray:
            return
        measured = {}
        for samples in GOALS:
            measured["FedSkew on Ray"] = execute_elsewhere(settings(folder, samples, rounds), "ray")
            laps = measured["FedSkew on Ray"][1]
            yield {"name": f"round, {samples} samples a client, Ray, steady", "seconds": statistics.median(laps)}
        measured["stock Flower"] = stock_flower(folder, rounds, min(os.cpu_count() or 1, CLIENTS))
        for name, (parts, laps) in measured.items():
            for part, value in parts.items():
                yield {"name": f"fixed cost, {name}, {part}", "seconds": value}
            yield {"name": f"steady round, {name}", "seconds": statistics.median(laps)}


def main() -> None:
    """Print the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-ray", action="store_true")
    arguments = parser.parse_args()
    for row in rows(arguments.rounds, not arguments.without_ray):
        print(
            json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
