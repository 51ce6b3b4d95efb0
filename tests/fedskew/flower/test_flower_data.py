"""What `local_round` and the strategies take of a DataLoader, and the sentences about data that they cannot take."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import fedskew.flower as flower
from fedskew.flower.samples import samples_of
from tests.client_app.client_builders import same

SIZE, FEATURES, CLASSES = 60, 5, 3
INPUTS = torch.rand(SIZE, FEATURES, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(SIZE) % CLASSES
WHOLE = TensorDataset(INPUTS, LABELS)
PART = [40, 3, 17, 22, 8, 51, 30, 11, 12, 5, 33, 29, 2]
"""The client's samples, in any order."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Net(nn.Module):
    """A model whose inputs may be tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        logits: Tensor = self.last(self.body(inputs).relu())
        return logits


class Own(Sampler[int]):
    """A sampler of the user's own that draws the same samples in every epoch."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.numbers)).tolist()
        return iter([self.numbers[index] for index in order])


class Endless(Own):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Changing(Own):
    def __iter__(self) -> Iterator[int]:
        self.numbers = [number + 1 for number in self.numbers]
        return iter(self.numbers)


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class InWorkers(TensorDataset):
    """Can be read in the loader's workers alone, once they are prepared."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        information = get_worker_info()
        assert information is not None and information.dataset.is_ready
        return super().__getitem__(index)


def prepare(number: int) -> None:
    information = get_worker_info()
    assert information is not None
    information.dataset.is_ready = True  # type: ignore[attr-defined]


def initial(net: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return net()


def trained(
    data: Any, net: Callable[[], nn.Module] = Net, **named: Any
) -> tuple[dict[str, Tensor], int]:
    """Return weights and stated samples of a round of one client. Raises what the client raises."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return flower.local_round(message, context, initial(net), data, **named)

    grid = FakeGrid(app, nodes=1)
    arrays = ArrayRecord(initial(net).state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})
    reply = grid.answer(Message(content, dst_node_id=grid.nodes[0], message_type="train"))
    if grid.errors:
        raise grid.errors[0]
    stated = int(reply.content.metric_records["metrics"]["num-examples"])  # type: ignore[arg-type]
    return dict(reply.content.array_records["arrays"].to_torch_state_dict()), stated


# ---- loaders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "numbers"),
    [
        (DataLoader(WHOLE, 8, sampler=SubsetRandomSampler(PART)), PART),
        (DataLoader(WHOLE, batch_sampler=BatchSampler(SequentialSampler(WHOLE), 8, False)), None),
        (DataLoader(Subset(WHOLE, sorted(PART)), 8, shuffle=True), PART),
        (DataLoader(WHOLE, 8, sampler=[*PART, *PART]), [*PART, *PART]),  # stated twice, is twice there
        (DataLoader(InWorkers(INPUTS, LABELS), 8, num_workers=1, worker_init_fn=prepare), None),
    ],
)  # fmt: skip
def test_a_loaders_sampler_and_batch_size_are_the_clients(
    loader: DataLoader[Any], numbers: Sequence[int] | None
) -> None:
    chosen = sorted(range(SIZE) if numbers is None else numbers)
    weights, stated = trained(loader)
    expected, _ = trained((INPUTS[chosen], LABELS[chosen]), batch_size=8)
    assert stated == len(chosen) and same(weights, expected)
    assert not same(weights, trained((INPUTS, LABELS))[0])
    if numbers is None:
        arguments = {"batch_size": 16}  # an argument goes before the loader's
        assert same(trained(loader, **arguments)[0], trained((INPUTS, LABELS), **arguments)[0])


def test_drop_last_leaves_out_the_smaller_batch_of_every_epoch() -> None:
    loader = DataLoader(WHOLE, 8, drop_last=True)
    weights, _ = trained(loader, epochs=2)
    assert same(weights, trained(WHOLE, batch_size=8, epochs=2, batch_limit=7)[0])
    assert not same(weights, trained(WHOLE, batch_size=8, epochs=2)[0])
    for refused, more in (
        (DataLoader(WHOLE, 64, drop_last=True), {}),
        (loader, {"local_steps": 4}),
    ):
        with pytest.raises(ValueError):
            trained(refused, **more)
    trained(DataLoader(WHOLE, 8), local_steps=4)


# ---- what cannot be trained on ---------------------------------------------------------------------------------------


def items(**changes: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return a data set whose samples are dicts."""
    samples = []
    for number in range(SIZE):
        sample: dict[str, Any] = {"inputs": INPUTS[number], "label": int(LABELS[number])}
        samples.append({**sample, **{key: value(number) for key, value in changes.items()}})
    return samples


def pairs(label: Callable[[int], Any]) -> list[tuple[Any, ...]]:
    return [(INPUTS[number], label(number)) for number in range(SIZE)]


def with_value(value: float) -> Tensor:
    inputs = INPUTS.clone()
    inputs[7, 2] = value
    return inputs


BY_WEIGHT = WeightedRandomSampler([1.0] * SIZE, SIZE)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(WHOLE, 8, sampler=BY_WEIGHT), "draws other samples each time"),
        (
            DataLoader(WHOLE, 8, sampler=RandomSampler(WHOLE, replacement=True)),
            "draws other samples",
        ),
        (DataLoader(WHOLE, 8, sampler=Changing(PART)), "Changing draws other samples each time"),
        (DataLoader(WHOLE, 8, sampler=Endless(PART)), "Endless never ends"),
        (DataLoader(WHOLE, 8, sampler=[1, SIZE]), "samples 1 to 60, and the data set has 60"),
        (DataLoader(WHOLE, 8, sampler=[]), "the data set is empty"),
        (DataLoader(WHOLE, batch_sampler=[[0, 1], [2, 3]]), "has a rule of its own"),
        (DataLoader(WHOLE, batch_size=None), "batch_size=None"),
        (OwnLoader(WHOLE, 8), "OwnLoader has an __iter__ of its own"),
        (Stream(), "only be read from start to end"),
        ([(*pair, 5) for pair in pairs(lambda number: 0)], "3 values and must be (input, label)"),
        ((INPUTS, np.array(["cat"] * SIZE)), "labels must be class numbers"),
        (pairs(lambda number: number / 2), "one class number"),
        ((INPUTS, LABELS - 1), "one class number of 0 or more"),
        ((INPUTS, LABELS.float()), ".long()"),
        (items(age=lambda number: 5.0), "name them as forward does"),
        ([{"img": "a file", "label": 1}] * 3, "give the data set a transform"),
        ((with_value(torch.nan), LABELS), "sample 7 are not finite"),
        ((INPUTS, LABELS[1:]), "there are 60 inputs and 59 labels"),
        ([(torch.ones(number), 0) for number in (5, 6, 5)], "joined to a batch"),
    ],
)
def test_data_that_cannot_be_trained_on_are_one_sentence(data: Any, words: str) -> None:
    """On a client, and as a strategy's hold-out."""
    for use in (trained, lambda data: flower.FedDF(initial(), holdout=data)):
        with pytest.raises(ValueError) as refused:
            use(data)
        assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        pairs(lambda number: int(LABELS[number])),
        items(id=lambda number: "a text is left out"),
        items(weights=lambda number: torch.ones(1)),
        (INPUTS.numpy(), LABELS.tolist()),
    ],
)
def test_the_same_data_in_another_form_train_the_same(data: Any) -> None:
    assert same(trained(data)[0], trained((INPUTS, LABELS))[0])


def test_labels_stay_those_of_the_data_where_class_0_is_missing() -> None:
    assert samples_of((INPUTS, LABELS + 1)).labels_N.tolist() == (LABELS + 1).tolist()


def test_tensors_by_name_stay_together() -> None:
    named = samples_of([{"a": image, "b": 2 * image, "y": label} for image, label in WHOLE])
    batch = named.only(torch.tensor([3, 5])).batch(torch.tensor([1]))
    assert torch.equal(batch["a"], INPUTS[5:6]) and torch.equal(batch["b"], 2 * INPUTS[5:6])
    assert torch.equal(named.labels_N, LABELS)


# ---- heads that are more than their weights --------------------------------------------------------------------------


class Clamped(nn.Linear):
    """Differs from an nn.Linear in the features of some samples alone."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.clamp(max=2))


class Scaled(nn.Linear):
    """Is linear at first, until its factor is trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        return self.factor * super().forward(features)


class Plain(nn.Linear):
    """A subclass that is linear."""


def hooked(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    layer.register_forward_hook(lambda module, arguments, logits: 2 * logits)
    return layer


def pruned(inputs: int, outputs: int) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(inputs, outputs), "weight", 0.5)


def net_with(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    model = Net()
    model.last = layer(8, CLASSES)
    return model


@pytest.mark.parametrize("layer", [hooked, Scaled, pruned, Plain])
def test_a_head_that_is_more_than_its_weights_is_refused(layer: Any) -> None:
    if layer is Plain:
        trained(WHOLE, lambda: net_with(layer))
        flower.FedLDA(net_with(layer))
        return
    for use in (
        lambda: trained(WHOLE, lambda: net_with(layer)),
        lambda: flower.FedLDA(net_with(layer)),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            use()


def test_a_head_is_compared_on_the_clients_own_features() -> None:
    trained((INPUTS, LABELS), lambda: net_with(Clamped))  # no feature is as large
    with pytest.raises(ValueError):
        trained((100 * INPUTS, LABELS), lambda: net_with(Clamped))
