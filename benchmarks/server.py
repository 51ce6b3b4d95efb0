"""The server's part of a round with ten updates, by method and model, beside reading and adding the updates once.

FedAvg's mean alone is measured by itself. What a round's record calls the server's seconds is all of it: checking the
replies, how far and where each client moved the model, combining, deploying; runs in one process whose clients take one
step on eight random images. After each round ten random updates of the model's size are read and added up in float32.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Row, alternate, figure, seconds
from benchmarks.turns import in_turns, rounds_of
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.state import State
from server_app.run_folder import RunFolder
from server_app.settings import parse
from strategies.core.server import Server, Update
from strategies.fedavg import FedAvg

CLIENTS, GOAL = 10, 2.0
MODELS: dict[str, tuple[str, int]] = {
    "1.2 M": ("resnet-8", 32),
    "11 M": ("resnet-18", 32),
    "57 M": ("alexnet-bn", 64),
}
"""Name and side of the images, by parameters."""
WITH_ALL_METHODS = "11 M"
"""The model for which the server's part of a round is measured by method."""
METHODS = {
    "fedavg": None,
    "fedavgm": 2.5,
    "fedadam": 2.5,
    "fednova": None,
    "scaffold": 4.0,
    "norm-clipping": 3.0,
    "trimmed-mean": 12.0,
    "median": 12.0,
}
"""With the goal of the server's part of a round, in times of reading and adding the updates once."""


def updates_of(model: str, side: int) -> list[State]:
    """Return random updates of a model's size."""
    draw, shapes = (
        torch.Generator().manual_seed(0),
        build(model, (3, side, side), 10, 0).state_dict(),
    )
    return [
        {
            name: torch.randn(tensor.shape, generator=draw)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in shapes.items()
        }
        for _ in range(CLIENTS)
    ]


def add_once(updates: list[State]) -> dict[str, torch.Tensor]:
    """Read every update and add them up."""
    total = {name: torch.zeros_like(tensor) for name, tensor in updates[0].items()}
    for update in updates:
        for name, tensor in update.items():
            total[name] += tensor
    return total


def of_a_run(
    folder: Path,
    method: str,
    model: str,
    side: int,
    updates: list[State],
) -> tuple[list[float], list[float]]:
    """Return the server's seconds of a run's rounds but the first, and those of reading and adding after each."""
    data = folder / f"{side}.npz"
    if not data.exists():
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (16 * CLIENTS, side, side, 3), dtype=np.uint8)
        labels = np.arange(16 * CLIENTS) % 10
        np.savez(
            data,
            train_images=images,
            train_labels=labels,
            test_images=255 - images[:10],
            test_labels=labels[:10],
        )
    stated: dict[str, Any] = {
        "method": method, "model": model, "dataset": f"npz:{data}", "classes": "10", "input-shape": f"3x{side}x{side}",
        "partition": "iid", "clients": CLIENTS, "local-steps": 1, "batch-size": 8, "learning-rate": 0.001,
        "rounds": rounds_of(1), "evaluate-every": 0, "device": "cpu", "results": str(folder / "results"),
        "cache": str(folder / "cache"),
    }  # fmt: skip
    settings = parse(stated)
    _, adding = in_turns(settings, "inprocess", 1, partial(add_once, updates))
    return [record.seconds.server for record in RunFolder(settings.folder).rounds()][1:-1], adding


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    for size, (model, side) in MODELS.items():
        updates = updates_of(model, side)
        network = build(model, (3, side, side), 10, 0)
        server = Server(
            network,
            updates[0],
            clients=CLIENTS,
            round=1,
            seed=0,
            training=TrainingSettings(),
        )
        replies = [Update(number, state, 10 + number) for number, state in enumerate(updates)]
        combine = partial(FedAvg().combine, server, {}, replies)
        mean, adding = alternate(combine, partial(add_once, updates))
        yield figure(
            f"FedAvg's mean of ten updates of {size} / reading and adding them once",
            mean,
            adding,
            GOAL,
        )
        yield seconds(f"FedAvg's mean of ten updates of {size}", mean)
        for method in METHODS if size == WITH_ALL_METHODS else ():
            with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as folder:
                server_seconds, adding = of_a_run(Path(folder), method, model, side, updates)
            name = f"{method}, {size}"
            yield figure(name, server_seconds, adding, METHODS[method])
