"""A work in stock Flower, with its FedAvg and its simulation on two actors: `python of_flower.py WORK`.

The app is what Flower's quickstart for PyTorch shows: each actor keeps the data in a variable of its module.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.work import WORKS, print_result
from fedskew.engines.processes import DEFAULTS, end, mark, search_path

HERE = Path(__file__).parent
APP = """
import json
import time
from pathlib import Path
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from networks import build, test_loss
from work import WORKS, images, scaled

client_app = ClientApp()
server_app = ServerApp()
kept = {}


def data(name):
    if not kept:
        made = images(WORKS[name])
        kept["inputs"] = torch.from_numpy(scaled(made.train_MNCHW))
        kept["labels"] = torch.from_numpy(made.train_labels_MN)
    return kept["inputs"], kept["labels"]


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    name = context.run_config["work"]
    work, (inputs, labels) = WORKS[name], data(name)
    client = context.node_config["partition-id"]
    model = build(work.model)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    for _ in range(work.epochs):
        for indices in torch.randperm(work.samples).split(work.batch):
            optimizer.zero_grad()
            logits = model(inputs[client, indices])
            torch.nn.functional.cross_entropy(logits, labels[client, indices]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": work.samples})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def main(grid, context):
    work = WORKS[context.run_config["work"]]
    stamps = []
    strategy = FedAvg(fraction_train=work.sampled / work.clients, fraction_evaluate=0.0)
    result = strategy.start(
        grid,
        ArrayRecord(build(work.model).state_dict()),
        num_rounds=work.rounds,
        evaluate_fn=lambda server_round, arrays: stamps.append(time.time()),
    )
    model = build(work.model)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    made = images(work)
    inputs = torch.from_numpy(scaled(made.test_NCHW))
    loss = test_loss(model, inputs, torch.from_numpy(made.test_labels_N))
    Path(context.run_config["output"]).write_text(json.dumps({"stamps": stamps, "loss": loss}))
"""
PROJECT = """
[project]
name = "stock"
version = "1.0.0"
description = "FedAvg as Flower has it"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedskew"
[tool.flwr.app.components]
serverapp = "stock:server_app"
clientapp = "stock:client_app"
[tool.flwr.app.config]
work = "{work}"
output = "{output}"
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


def main(name: str) -> None:
    """Run the work and print what it took."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        app, output = folder / "stock", folder / "output.json"
        app.mkdir()
        (app / "stock.py").write_text(APP)
        (app / "pyproject.toml").write_text(PROJECT.format(work=name, output=output))
        for module in ("work.py", "networks.py"):
            shutil.copy(HERE / module, app)
        printed = flwr_run(app, folder, WORKS[name].clients)
        if not output.exists():
            sys.exit(printed[-2000:])
        result = json.loads(output.read_text())
    print_result(version("flwr"), result["stamps"], result["loss"])


if __name__ == "__main__":
    main(*sys.argv[1:])
