"""A Flower app in one process: nodes with contexts of their own, messages by way of flwr's protobuf, no Ray."""

import copy
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from data import DataSettings, Federation, federate
from fedskew.flower import class_counts, load_model, local_round

CLIENTS = 4
DATA = DataSettings(
    dataset="digits", clients=CLIENTS, train_images=200, test_images=100, alpha=0.5, min_samples=5
)


class FakeGrid(Grid):
    """Plays every node in this process, in a shuffled order of replies."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int = CLIENTS,
        run_config: Mapping[str, Any] | None = None,
        shuffle: int = 0,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.order = random.Random(shuffle)
        draws = random.Random(7)
        self.nodes = [draws.getrandbits(62) for _ in range(nodes)]
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": number, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for number, node in enumerate(self.nodes)
        }
        self.errors: list[Exception] = []
        self.refusals: list[str] = []
        """The reasons of the error replies that mods made."""
        self.change: Callable[[int, Message], None] = lambda number, reply: None
        """What a dishonest or broken client does to its reply."""

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = [self.answer(message) for message in messages]
        self.order.shuffle(replies)
        return replies

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        received = by_wire(message)
        context = copy.deepcopy(self.contexts[node])
        TaskIdentity.node_id = node
        try:
            reply = self.app(received, context)
        except Exception as error:
            self.errors.append(error)
            reply = Message(Error(2, str(error)), reply_to=received)
        else:
            self.contexts[node] = context
            if reply.has_error():
                self.refusals.append(str(reply.error.reason))
            self.change(self.nodes.index(node), reply)
        return by_wire(reply)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run_id: int) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise NotImplementedError


def by_wire(message: Message) -> Message:
    """Return a message as it arrives on the other side."""
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
    return message_from_proto(message_to_proto(message))


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


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two states are equal to the bit, names and all."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
