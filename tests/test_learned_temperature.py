"""The learned temperature of docs/guides/plugin.md: a method of one's own with parameters and numbers."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import Net, client_app, client_data, initial, train
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from in_process import FinishedRun, Tamper, TamperingGrid, kill

import fedskew
import fedskew.flower as flower
from client_app.messages import kind_of
from client_app.tensor_files import read
from client_app.variants import VARIANTS
from server_app.methods import METHODS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "plugin.md"
METHOD = "temperature:LearnedTemperature"
NUMBER = "learned-temperature/temperature"
OTHERS = """

@dataclass(frozen=True)
class Fixed(LearnedTemperature):
    name: ClassVar[str] = "fixed-temperature"

    def parameters(self, client: Client) -> State:
        return {}

    def logit_scale(self, client: Client) -> Tensor:
        return torch.ones(client.num_classes)

    def after(self, client: Client, trained: Trained) -> Contribution:
        return Contribution()


@dataclass(frozen=True)
class Counting(Fixed):
    name: ClassVar[str] = "counting"
    numbers: str = "size"
    value: float = 1.0

    def after(self, client: Client, trained: Trained) -> Contribution:
        return Contribution(numbers={name: self.value * self.value for name in self.numbers.split(",")})


@dataclass(frozen=True)
class Listing(Fixed):
    name: ClassVar[str] = "listing"

    def parameters(self, client: Client) -> State:
        return {"log": [0.0]}


@dataclass(frozen=True)
class Twice(LearnedTemperature):
    name: ClassVar[str] = "twice"

    def after(self, client: Client, trained: Trained) -> Contribution:
        return Contribution(memory={"log": torch.zeros(())})
"""
Train = Callable[..., FinishedRun]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, with the page's file and a few classes more; they are forgotten again."""
    (source,) = re.findall(r"```python\n(# temperature.py\n.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "temperature.py").write_text(source + OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = [(registry, set(registry)) for registry in (METHODS, VARIANTS)]
    yield tmp_path
    sys.modules.pop("temperature", None)
    for registry, names in known:
        for name in set(registry) - names:
            del registry[name]  # type: ignore[attr-defined]


def temperatures(run: FinishedRun) -> list[list[float]]:
    """Return the clients' temperatures by round."""
    return [record["method-numbers"][NUMBER]["values"] for record in run.records]


def test_a_clients_numbers_are_in_the_record_and_what_it_learns_stays_with_it(train: Train) -> None:
    learned = train("learned", method=METHOD)
    fixed = train("fixed", method="temperature:Fixed")
    plain = train("plain")
    assert fixed.summary["hash"]["shared"] == plain.summary["hash"]["shared"] != learned.hash
    assert "method-numbers" not in fixed.records[0]

    for record in learned.records:
        numbers = record["method-numbers"][NUMBER]
        weights = {update["client"]: update["examples"] for update in record["updates"]}
        weighted = [
            weights[client] * value
            for client, value in zip(record["clients"], numbers["values"], strict=True)
        ]
        assert math.isclose(numbers["mean"], sum(weighted) / sum(weights.values()))
        assert len(set(numbers["values"])) == 4 and min(numbers["values"]) > 0
    # What the client learned is in its memory, and nothing but the model went up.
    for client, last in enumerate(temperatures(learned)[-1]):
        folder = learned.folder.path / "memory" / f"client-{client:05d}"
        tensors, _ = read(folder / "round-000002.safetensors")
        assert math.isclose(tensors["learned-temperature/log"].exp().item(), last, rel_tol=1e-6)
    assert learned.records[0]["bytes-up"] == plain.records[0]["bytes-up"]


def test_one_step_is_the_optimizers_with_the_gradient_of_the_loss() -> None:
    """log T <- log T - rate dCE(z / T) / dlog T, in the very step in which w <- w - rate dCE(z / T) / dw."""
    rate = 0.5
    replies: dict[int, RecordDict] = {}
    settings = {"lr": rate, "momentum": 0.0, "batch_size": 1000, "clip_norm": 0.1}
    grid = FakeGrid(client_app([METHOD, "fedprox"], **settings))
    grid.change = lambda number, reply: replies.setdefault(number, reply.content)
    result = train(FedAvg(fraction_evaluate=0.0), grid.app, rounds=1, grid=grid)
    assert not grid.errors

    examples = [replies[number]["metrics"]["num-examples"] for number in range(4)]
    sent = [replies[number]["metrics"][NUMBER] for number in range(4)]
    for number in range(4):
        inputs, labels = client_data(number)
        model = initial(Net).train()
        log = torch.zeros(()).requires_grad_()
        loss = torch.nn.functional.cross_entropy(model(inputs) / log.exp(), labels)
        trained = [log, *model.parameters()]
        gradients = torch.autograd.grad(loss, trained)
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        shrink = min(1.0, 0.1 / norm.item())
        moved = [
            tensor.detach() - rate * shrink * gradient
            for tensor, gradient in zip(trained, gradients, strict=True)
        ]
        assert math.isclose(sent[number], moved[0].exp().item(), rel_tol=1e-5)
        names = [name for name, _ in model.named_parameters()]
        own = replies[number]["arrays"].to_torch_state_dict()
        for name, value in zip(names, moved[1:], strict=True):
            assert torch.allclose(own[name], value, atol=1e-6), name
    # flwr's own FedAvg averages the numbers by samples, and no parameter is in the model.
    mean = sum(n * value for n, value in zip(examples, sent, strict=True)) / sum(examples)
    assert math.isclose(result.train_metrics_clientapp[1][NUMBER], mean, rel_tol=1e-9)
    assert set(result.arrays) == set(initial(Net).state_dict())


def test_a_flower_client_continues_with_what_it_learned() -> None:
    """In the second round the rate is next to nothing, so its temperature is the one that the first has left."""
    still = {"learning_rate_decay": 1e-9, "learning_rate_decay_every": 1}
    kept = []
    for rounds in (1, 2):
        grid = FakeGrid(client_app([METHOD], **still))
        train(flower.ExactFedAvg(initial(), fraction_evaluate=0.0), grid.app, rounds, grid=grid)
        assert not grid.errors
        states = [context.state for context in grid.contexts.values()]
        kept.append([state["fedskew/learned-temperature"]["log"].numpy() for state in states])
    assert all(abs(log) > 1e-3 for log in kept[0])
    assert [float(log) for log in kept[1]] == pytest.approx([float(log) for log in kept[0]])


def test_a_killed_run_continues_with_what_its_clients_learned(train: Train, tmp_path: Path) -> None:
    changes = {"method": METHOD, "rounds": 4}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "after the checkpoint", changes)
    resumed = train("killed", **changes)
    assert any("resuming" in line for line in resumed.lines)
    assert resumed.hash == whole.hash and resumed.records == whole.records


def test_clients_with_parameters_train_one_by_one(train: Train) -> None:
    alone = train("alone", method=METHOD)
    together = train("together", method=METHOD, clients_per_pass=4)
    assert together.hash == alone.hash
    # Without parameters clients do train in one pass, whose sums have another order.
    assert train("plain").hash != train("stacked", clients_per_pass=4).hash


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "temperature:Counting"}, ""),
        ({"method": "temperature:Counting", "counting.value": 1e200}, "is not finite"),
        ({"method": "temperature:Counting", "counting.value": 1e16}, "must be within 1e+30"),
        ({"method": "temperature:Counting", "counting.numbers": "a b"}, "letters, digits"),
        ({"method": "temperature:Counting", "counting.numbers": "n" * 60}, "at most 64 characters"),
        (
            {
                "method": "temperature:Counting",
                "counting.numbers": ",".join(f"n{number}" for number in range(33)),
            },
            "33 numbers of methods, and at most 32",
        ),
        ({"method": "temperature:Listing"}, "parameter log, which must be a tensor"),
        ({"method": "temperature:Twice"}, "twice contributes ['log'] to the memory twice"),
    ],
)
def test_what_no_client_may_record_or_own_ends_in_a_sentence(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    small = {"dataset": "digits", "clients": 2, "train-images": 40, "rounds": 1, "model": "linear"}
    run = {**small, "results": str(tmp_path / "results"), **settings}
    if not words:
        line = (fedskew.run(run).folder / "rounds.jsonl").read_text()
        assert json.loads(line)["method-numbers"]["counting/size"] == {
            "mean": 1.0,
            "values": [1.0, 1.0],
        }
        return
    with pytest.raises(Exception, match=re.escape(words)) as refused:
        fedskew.run(run)
    assert "Traceback" not in str(refused.value)


def claiming(**numbers: float) -> Tamper:
    """Return a tampering with the numbers that client 2 sends with its update."""

    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and "2/metrics" in records:
            for name, value in numbers.items():
                records["2/metrics"][name] = value  # type: ignore[index]

    return tamper


HOSTILE = [
    ({NUMBER: 2.5}, ""),
    ({NUMBER: math.nan}, "is not finite"),
    ({NUMBER: 1e31}, "must be within 1e+30"),
    ({f"learned-temperature/{'n' * 50}": 1.0}, "at most 64 characters"),
    ({"learned-temperature/\x1b[31m": 1.0}, "letters, digits"),
    ({"learned-temperature/a/b": 1.0}, "letters, digits"),
    ({"proximal/size": 1.0}, "which is no variant of the run"),
    ({f"learned-temperature/n{k}": 1.0 for k in range(32)}, "33 numbers"),
]


@pytest.mark.parametrize(("numbers", "reason"), HOSTILE)
def test_numbers_that_no_method_sends_are_refused_with_their_update(
    train: Train, numbers: dict[str, float], reason: str
) -> None:
    hostile = TamperingGrid(claiming(**numbers))
    run = train(grid=hostile, method=METHOD, min_reply_share=0.5, rounds=1)
    values = run.records[0]["method-numbers"][NUMBER]["values"]
    if not reason:
        assert values[2] == 2.5 and not run.records[0]["failures"], "such a number is taken"
        return
    assert reason in run.records[0]["failures"]["2"]
    assert run.records[0]["failures"]["2"].isprintable()
    assert len(values) == 3


@pytest.mark.parametrize(
    ("numbers", "reason"), [one for one in HOSTILE if "proximal/size" not in one[0]]
)
def test_a_flower_strategy_refuses_them_as_well(numbers: dict[str, float], reason: str) -> None:
    def lie(number: int, reply: Message) -> None:
        if number == 2:
            reply.content["metrics"].update(numbers)

    strategy = flower.ExactFedAvg(initial(), fraction_evaluate=0.0)
    grid = FakeGrid(client_app([METHOD]))
    grid.change = lie
    models = [train(strategy, grid.app, rounds=1, grid=grid).arrays]
    grid = FakeGrid(client_app([METHOD]))
    grid.change = lambda number, reply: reply.content.pop("arrays") if number == 2 else None
    models.append(train(strategy, grid.app, rounds=1, grid=grid).arrays)
    left, right = (model.to_torch_state_dict() for model in models)
    as_without_client_2 = all(torch.equal(left[name], right[name]) for name in left)
    assert as_without_client_2 == bool(reason)


def test_a_loss_function_trains_no_parameters() -> None:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    context = FakeGrid(client_app([])).contexts.popitem()[1]
    loss = flower.local_loss(message, context, torch.tensor([0, 1]), 2, variants=["fedlc"])
    assert loss(torch.zeros(1, 2), torch.tensor([0])) > 0
    with pytest.raises(ValueError, match="learned-temperature cannot be a loss function"):
        flower.local_loss(message, context, torch.tensor([0, 1]), 2, variants=[METHOD])


def test_trackers_have_the_numbers_and_each_clients(train: Train) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(method=METHOD, tensorboard=True)
    events = accumulator.EventAccumulator(str(run.folder.path / "tensorboard"))
    events.Reload()
    for client in range(4):
        points = events.Scalars(f"method-numbers/{NUMBER}/{client}")
        drawn = [point.value for point in points]
        assert drawn == pytest.approx([values[client] for values in temperatures(run)])
    means = [record["method-numbers"][NUMBER]["mean"] for record in run.records]
    drawn = [point.value for point in events.Scalars(f"method-numbers/{NUMBER}")]
    assert drawn == pytest.approx(means)
    assert not any("run/method-numbers" in tag for tag in events.Tags()["scalars"])
