"""Ray's fixed cost, part by part, beside stock Flower with clients that do nothing, each a command of its own.

The runs of FedSkew are those of benchmarks/round.py with the smallest clients; both command lines take turns. A second
run of the same process stands beside them, which finds Ray and its workers started.
"""

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.figures import MEASUREMENTS, Row, row, seconds
from benchmarks.round import CLIENTS, settings
from fedskew.engines import execute
from fedskew.engines.processes import DEFAULTS, end, mark, search_path
from fedskew.engines.ray_grid import connect, crew
from fedskew.scheduling import Resources
from server_app.run_settings import RunSettings

ROUNDS, GOAL = 9, 0.7
SECOND_RUN_GOAL = 3.0
"""Seconds of fixed cost of a run that is not the first of its command."""


def on_ray(run: RunSettings) -> tuple[dict[str, float], list[float]]:
    """Return the parts of the fixed cost of a run on Ray, and the seconds of its rounds after the first."""
    began, started = time.time(), time.perf_counter()
    execute(run, Resources("ray"), lambda line: None)
    total = time.perf_counter() - started
    records = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    laps = [record["seconds"]["round"] for record in records]
    main = (run.folder / "settings.json").stat().st_mtime - began
    finished = (run.folder / "summary.json").stat().st_mtime - began
    parts = {
        "until round 1": main,
        "round 1": laps[0],
        "after the last round": total - finished,
        "total": total,
    }
    return parts, laps[1:]


def second_run(run: RunSettings) -> float:
    """Return the fixed cost in seconds of `run` with another seed, after a first run in this process."""
    parts, laps = on_ray(replace(run, general=replace(run.general, seed=run.general.seed + 1)))
    return fixed_cost(parts, laps)


def end_ray() -> None:
    """End Ray, so that the next run starts it."""
    import ray  # not before ray_grid has set its environment

    ray.shutdown()
    connect.cache_clear()
    crew.cache_clear()


def fixed_cost(parts: dict[str, float], laps: list[float]) -> float:
    """Return the seconds of a run that do not depend on its number of rounds: all but the rounds after the first."""
    return parts["total"] - (ROUNDS - 1) * statistics.median(laps)


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


def flwr_run(app: Path, folder: Path, nodes: int) -> str:
    """Run an app by `flwr run` on a SuperLink of its own to its end, and return what it printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    own = {
        "FLWR_HOME": str(folder),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "PATH": search_path(),
    }
    words = ["flwr", "run", str(app), "--stream", "--federation-config"]
    try:
        done = subprocess.run(
            [*words, f"num-supernodes={nodes} client-resources-num-cpus=1"],
            env=DEFAULTS | os.environ | own | mark(folder),
            capture_output=True,
            text=True,
        )
    finally:
        end(folder)
    return done.stdout + done.stderr


def stock_flower(
    folder: Path,
    rounds: int,
    nodes: int,
    text: str = STOCK,
) -> tuple[dict[str, float], list[float]]:
    """Return the same parts of stock Flower: its FedAvg, clients that do nothing, `flwr run --stream` to its end."""
    app, stamps = folder / "stock", folder / "stamps"
    app.mkdir()
    (app / "stock.py").write_text(text)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "stock"\nversion = "1.0.0"\ndescription = "stock"\nlicense = "Apache-2.0"\n'
        '[tool.flwr.app]\npublisher = "fedskew"\n[tool.flwr.app.components]\nserverapp = "stock:server_app"\n'
        f'clientapp = "stock:client_app"\n[tool.flwr.app.config]\nrounds = {rounds}\nstamps = "{stamps}"\n'
    )
    began = time.time()
    flwr_run(app, folder, nodes)
    total = time.time() - began
    main, _, *after = map(float, stamps.read_text().split())
    parts = {
        "until main()": main - began,
        "round 1": after[0] - main,
        "after the last round": total + began - after[-1],
    }
    return {**parts, "total": total}, [later - sooner for sooner, later in pairwise(after)]


def rows() -> Iterator[Row]:
    """Yield the figures."""
    parts: dict[str, list[dict[str, float]]] = {"FedSkew on Ray": [], "stock Flower": []}
    steady: dict[str, list[float]] = {name: [] for name in parts}
    second_runs = []
    for _ in range(MEASUREMENTS):
        with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
            folder = Path(temporary)
            ours = on_ray(settings(folder, 32, ROUNDS))
            second_runs.append(second_run(settings(folder, 32, ROUNDS)))
            end_ray()
            theirs = stock_flower(folder, ROUNDS, min(os.cpu_count() or 1, CLIENTS))
        for name, (measured, laps) in zip(parts, (ours, theirs), strict=True):
            parts[name].append({**measured, "fixed": fixed_cost(measured, laps)})
            steady[name] += laps
    for what, goal in (("fixed", GOAL), ("total", None)):
        ratios = []
        for ours, theirs in zip(*parts.values(), strict=True):
            ratios.append(ours[what] / theirs[what])
        yield row(f"FedSkew on Ray / stock Flower, {ROUNDS} rounds, {what}", ratios, goal)
    yield seconds("fixed cost of a command's second run on Ray", second_runs, SECOND_RUN_GOAL)
    for name, measured in parts.items():
        for part in measured[0]:
            yield seconds(f"{name}, {part}", [fixed[part] for fixed in measured])
        yield seconds(f"{name}, a later round", steady[name])
