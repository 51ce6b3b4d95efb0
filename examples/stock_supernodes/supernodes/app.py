"""ClientApp and ServerApp: FedShift and CReFF on data that each SuperNode has at the `data-path` of its configuration.

Replace `Net` and `data_of` by your own model and data.
"""

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from fedskew.flower import CReFF, ExactFedAvg, class_counts, load_model, local_round

client = ClientApp()
server = ServerApp()


class Net(nn.Sequential):
    """A small network for images of 8 x 8 pixels in ten classes."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def data_of(context: Context, part: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 8, 8) and labels (N,) of a part, `train` or `test`, of the node's npz file."""
    with np.load(str(context.node_config["data-path"])) as arrays:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    return torch.tensor(images / 255, dtype=torch.float32).unsqueeze(1), torch.tensor(labels)


@client.train()
@client.query()
def train(message: Message, context: Context) -> Message:
    """Train on the node's training images, or answer the question about class counts."""
    data, epochs = data_of(context, "train"), context.run_config["local-epochs"]
    methods = ["fedshift", "creff"]
    return local_round(message, context, Net(), data, variants=methods, epochs=epochs)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model on the node's test images."""
    images, labels = data_of(context, "test")
    with torch.no_grad():
        logits = load_model(message, context, Net()).eval()(images)
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class ExactCReFF(CReFF, ExactFedAvg):
    """CReFF beside FedAvg in float64: the same run gives the same bits."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, print the nodes' accuracy, and save the average and CReFF's model."""
    config = context.run_config
    nodes, rounds = config["nodes"], config["num-server-rounds"]
    torch.manual_seed(config["seed"])
    model = Net()
    counts = class_counts(grid, min_nodes=nodes)
    train_config = ConfigRecord({"lr": config["learning-rate"], **counts})
    strategy = ExactCReFF(model, min_available_nodes=nodes)
    start = ArrayRecord(model.state_dict())
    result = strategy.start(grid, start, rounds, train_config=train_config)
    accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    print(f"SUPERNODES accuracy {100 * accuracy:.1f}", flush=True)
    if config["model-file"]:
        average = result.arrays.to_torch_state_dict()
        torch.save({"average": average, **strategy.deployed}, config["model-file"])
