"""Flower apps for the tests of fedskew.flower: models, data, and the rounds of a strategy."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from data import DataSettings, Federation, federate
from fedskew.flower import class_counts, load_model, local_round

CLIENTS = 4
DATA = DataSettings(
    dataset="digits", clients=CLIENTS, train_images=200, test_images=100, alpha=0.5, min_samples=5
)


class Net(nn.Module):
    """A user's own model: its head has a name of its own and is not what was registered last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.classify = nn.Linear(6 * 16, 10)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classify(F.relu(self.norm(self.conv(images))).flatten(1))
        return logits


class PlainNet(Net):
    """The same without batch norm."""

    def __init__(self) -> None:
        super().__init__()
        del self.norm
        self.norm = nn.Identity()


def initial(net: Callable[[], nn.Module] = Net) -> nn.Module:
    """Return the model that everybody starts with."""
    torch.manual_seed(0)
    return net()


def federation() -> Federation:
    return federate(DATA, 0)


def client_data(number: int) -> tuple[Tensor, Tensor]:
    """Return a client's images, float32 (N, 1, 8, 8), and labels."""
    samples = federation().train(number, "cpu")
    return samples.batch(torch.arange(len(samples))), samples.labels_N


def client_app(
    variants: Sequence[Any],
    net: Callable[[], nn.Module] = Net,
    mods: Sequence[Any] = (),
    app_mods: Sequence[Any] = (),
    **training: Any,
) -> ClientApp:
    """Return an app as the guide writes it."""
    app = ClientApp(mods=list(app_mods))
    settings = {"epochs": 1, "lr": 0.05, **training}

    def train(message: Message, context: Context) -> Message:
        data = client_data(int(context.node_config["partition-id"]))
        return local_round(message, context, initial(net), data, variants=variants, **settings)

    app.train(mods=list(mods))(train)
    app.query()(train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        inputs, labels = client_data(int(context.node_config["partition-id"]))
        model = load_model(message, context, initial(net)).eval()
        with torch.no_grad():
            right = int((model(inputs).argmax(1) == labels).sum())
        metrics = MetricRecord({"accuracy": right / len(labels), "num-examples": len(labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def train(
    strategy: Any,
    app: ClientApp,
    rounds: int = 2,
    *,
    counts: bool = False,
    net: Callable[[], nn.Module] = Net,
    grid: FakeGrid | None = None,
    arrays: ArrayRecord | None = None,
) -> Result:
    """Run a strategy's rounds with an app and return the result."""
    grid = grid or FakeGrid(app)
    random.seed(0)
    config = ConfigRecord(class_counts(grid) if counts else {})
    start = arrays or ArrayRecord(initial(net).state_dict())
    result: Result = strategy.start(grid, start, rounds, train_config=config)
    return result


def weights(result: Result) -> dict[str, Tensor]:
    """Return the model of a result."""
    return dict(result.arrays.to_torch_state_dict())
