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
from agreed_module import added_methods_forgotten
from fake_grid import FakeGrid
from flower_grid import Net, client_app, client_data, initial, train
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from in_process import FinishedRun, TamperingGrid, kill

import fedskew
from client_app.messages import kind_of
from client_app.tensor_files import read

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
    with added_methods_forgotten():
        yield tmp_path
    sys.modules.pop("temperature", None)


def test_what_a_client_learns_stays_with_it_and_its_numbers_are_in_the_record(
    train: Train, tmp_path: Path
) -> None:
    """Also of a run that was killed, and of clients that train in one pass, where each is alone."""
    learned, plain = train("learned", method=METHOD, clients_per_pass=4), train("plain")
    assert learned.records[0]["bytes-up"] == plain.records[0]["bytes-up"]
    kill(tmp_path / "killed", "after the checkpoint", {"method": METHOD}, round=1)
    resumed = train("killed", method=METHOD)
    assert any("resuming" in line for line in resumed.lines)
    assert resumed.hash == learned.hash != plain.hash

    record = learned.records[-1]
    numbers = record["method-numbers"][NUMBER]
    weights = {update["client"]: update["examples"] for update in record["updates"]}
    by_client = dict(zip(record["clients"], numbers["values"], strict=True))
    weighted = sum(weights[client] * value for client, value in by_client.items())
    assert math.isclose(numbers["mean"], weighted / sum(weights.values()))
    assert len({*by_client.values()}) == 4
    for client, value in by_client.items():
        folder = learned.folder.path / "memory" / f"client-{client:05d}"
        tensors, _ = read(folder / "round-000002.safetensors")
        assert math.isclose(tensors["learned-temperature/log"].exp().item(), value, rel_tol=1e-6)


def test_one_step_is_the_optimizers_with_the_gradient_of_the_loss() -> None:
    """log T <- log T - rate dCE(z / T) / dlog T, in the very step in which w <- w - rate dCE(z / T) / dw."""
    replies: dict[int, RecordDict] = {}
    settings = {"lr": 0.5, "momentum": 0.0, "batch_size": 1000, "clip_norm": 0.1}
    grid = FakeGrid(client_app([METHOD, "fedprox"], **settings))
    grid.change = lambda number, reply: replies.setdefault(number, reply.content)
    train(FedAvg(fraction_evaluate=0.0), grid.app, rounds=1, grid=grid)
    assert not grid.errors

    inputs, labels = client_data(0)
    model = initial(Net).train()
    log = torch.zeros(()).requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(inputs) / log.exp(), labels)
    gradients = torch.autograd.grad(loss, [log, *model.parameters()])
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    shrink = min(1.0, 0.1 / norm)
    sent = math.log(replies[0]["metrics"][NUMBER])
    assert math.isclose(sent, -0.5 * shrink * gradients[0].item(), rel_tol=1e-4)
    own = replies[0]["arrays"].to_torch_state_dict()
    for (name, weight), gradient in zip(model.named_parameters(), gradients[1:], strict=True):
        moved = weight.detach() - 0.5 * shrink * gradient
        assert torch.allclose(own[name], moved, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "temperature:Counting"}, ""),
        (
            {"method": "temperature:Counting", "counting.value": 1e200},
            "number 'counting/size' is not finite",
        ),
        ({"method": "temperature:Listing"}, "breaks the contract of methods"),
        ({"method": "temperature:Twice"}, "contributes ['log'] to the memory twice"),
    ],
)
def test_what_no_client_may_record_or_own_ends_in_a_sentence(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    small = {"dataset": "digits", "clients": 2, "train-images": 40, "rounds": 1, "model": "linear"}
    run = {**small, "results": str(tmp_path / "results"), **settings}
    if not says:
        line = (fedskew.run(run).folder / "rounds.jsonl").read_text()
        assert json.loads(line)["method-numbers"]["counting/size"]["values"] == [1.0, 1.0]
        return
    with pytest.raises(Exception) as refused:
        fedskew.run(run)
    assert says in str(refused.value) and "Traceback" not in str(refused.value)


@pytest.mark.parametrize(
    ("numbers", "is_right"),
    [
        ({NUMBER: 2.5}, True),
        ({NUMBER: math.nan}, False),
        ({NUMBER: 1e31}, False),
        ({f"learned-temperature/{'n' * 50}": 1.0}, False),
        ({"learned-temperature/\x1b[31m": 1.0}, False),
        ({"learned-temperature/a/b": 1.0}, False),
        ({"proximal/size": 1.0}, False),
        ({f"learned-temperature/n{k}": 1.0 for k in range(32)}, False),
    ],
)
def test_numbers_that_no_method_sends_are_refused_with_their_update(
    train: Train, numbers: dict[str, float], is_right: bool
) -> None:
    def claim(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and "2/metrics" in records:
            records["2/metrics"].update(numbers)  # type: ignore[arg-type]

    run = train(grid=TamperingGrid(claim), method=METHOD, min_reply_share=0.5, rounds=1)
    record = run.records[0]
    assert (2 not in record["clients"]) == (not is_right)
    assert all(reason.isprintable() for reason in record["failures"].values())
    if is_right:
        assert record["method-numbers"][NUMBER]["values"][2] == 2.5
