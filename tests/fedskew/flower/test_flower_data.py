"""What `local_round` and the strategies take of a DataLoader, and the sentences about data that they cannot take."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import same
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

import fedskew.flower as flower

SIZE, FEATURES, CLASSES = 60, 5, 3
INPUTS = torch.rand(SIZE, FEATURES, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(SIZE) % CLASSES
WHOLE = TensorDataset(INPUTS, LABELS)
PART = [40, 3, 17, 22, 8, 51, 30, 11, 12, 5, 33, 29, 2]
"""The client's samples, in any order."""
EVERY_FOURTH = list(range(1, SIZE, 4))
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


class Texts(Own):
    def __iter__(self) -> Iterator[Any]:
        return iter(["a", "b"])


class Balanced(BatchSampler):
    """Makes its own batches."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2]] * 4)


class OwnLoader(DataLoader[Any]):
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


@pytest.mark.parametrize(
    ("loader", "numbers"),
    [
        (DataLoader(WHOLE, 8, sampler=SubsetRandomSampler(PART)), PART),
        (DataLoader(WHOLE, 8, sampler=PART), PART),
        (DataLoader(WHOLE, 8, sampler=Own(PART)), PART),
        (DataLoader(WHOLE, 8, sampler=RandomSampler(range(20))), range(20)),
        (DataLoader(WHOLE, 8, sampler=DistributedSampler(WHOLE, 4, 1, shuffle=False)), EVERY_FOURTH),
        (DataLoader(WHOLE, batch_sampler=BatchSampler(SubsetRandomSampler(PART), 8, False)), PART),
        (DataLoader(WHOLE, batch_sampler=BatchSampler(SequentialSampler(WHOLE), 8, False)), None),
        (DataLoader(Subset(WHOLE, PART), 8, shuffle=True), PART),
        (DataLoader(WHOLE, 8, shuffle=True, generator=torch.Generator()), None),
        (DataLoader(WHOLE, 8, sampler=[*PART, *PART]), [*PART, *PART]),  # stated twice, is twice there
        (DataLoader(WHOLE, 8, num_workers=0, worker_init_fn=prepare), None),
        (DataLoader(InWorkers(INPUTS, LABELS), 8, num_workers=1, worker_init_fn=prepare), None),
    ],
)  # fmt: skip
def test_a_loaders_sampler_and_batch_size_are_the_clients(
    loader: DataLoader[Any], numbers: Sequence[int] | None
) -> None:
    chosen = sorted(range(SIZE) if numbers is None else numbers)
    if isinstance(loader.dataset, Subset):
        chosen = list(numbers or ())  # a Subset has an order of its own
    weights, stated = trained(loader)
    expected, _ = trained((INPUTS[chosen], LABELS[chosen]), batch_size=8)
    assert stated == len(chosen)
    assert same(weights, expected)
    assert not same(weights, trained((INPUTS, LABELS))[0])


def test_an_argument_goes_before_the_loaders_batch_size() -> None:
    loader = DataLoader(WHOLE, 8)
    assert same(trained(loader, batch_size=16)[0], trained((INPUTS, LABELS), batch_size=16)[0])
    assert not same(trained(loader, batch_size=16)[0], trained(loader)[0])
    assert same(trained(WHOLE)[0], trained((INPUTS, LABELS), batch_size=32)[0])


def test_drop_last_leaves_out_the_smaller_batch_of_every_epoch() -> None:
    batches = BatchSampler(SubsetRandomSampler(range(SIZE)), 8, True)
    for loader in (DataLoader(WHOLE, 8, drop_last=True), DataLoader(WHOLE, batch_sampler=batches)):
        weights, _ = trained(loader, epochs=2)
        assert same(weights, trained(WHOLE, batch_size=8, epochs=2, batch_limit=7)[0])
        assert not same(weights, trained(WHOLE, batch_size=8, epochs=2)[0])
    with pytest.raises(ValueError, match=r"60 samples make no batch of 64: use drop_last=False"):
        trained(DataLoader(WHOLE, 64, drop_last=True))
    with pytest.raises(ValueError, match=r"drop_last=True.* beside local_steps: use epochs="):
        trained(DataLoader(WHOLE, 8, drop_last=True), local_steps=4)
    trained(DataLoader(WHOLE, 8), local_steps=4)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (
            DataLoader(WHOLE, 8, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)),
            'draws samples by weight: use variants=\\["iwds"\\] or .*Subset',
        ),
        (
            DataLoader(WHOLE, 8, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE, False)),
            "draws samples by weight",
        ),
        (
            DataLoader(WHOLE, 8, sampler=RandomSampler(WHOLE, replacement=True)),
            "RandomSampler draws 60 of 60 samples with replacement.*shuffle=True",
        ),
        (
            DataLoader(WHOLE, 8, sampler=RandomSampler(WHOLE, num_samples=59)),
            "59 of 60 samples without replacement.*local_steps=",
        ),
        (DataLoader(WHOLE, 8, sampler=Changing(PART)), "Changing draws other samples each time"),
        (DataLoader(WHOLE, 8, sampler=Endless(PART)), "Endless never ends"),
        (DataLoader(WHOLE, 8, sampler=Texts(PART)), "Texts must draw the numbers of samples"),
        (DataLoader(WHOLE, 8, sampler=[1, SIZE]), "draws samples 1 to 60, and the data set has 60"),
        (DataLoader(WHOLE, 8, sampler=[-1, 1]), "draws samples -1 to 1"),
        (DataLoader(WHOLE, 8, sampler=[]), "the data set is empty"),
        (
            DataLoader(WHOLE, batch_sampler=Balanced(SequentialSampler(WHOLE), 3, False)),
            "batch_sampler Balanced makes batches by a rule of its own.*iwds",
        ),
        (
            DataLoader(WHOLE, batch_sampler=[[0, 1], [2, 3]]),
            "batch_sampler list makes batches by a rule of its own",
        ),
        (DataLoader(WHOLE, batch_size=None), "batch_size=None and makes no batches"),
        (OwnLoader(WHOLE, 8), "OwnLoader has an __iter__ of its own"),
    ],
)
def test_what_a_loader_draws_that_training_cannot_is_refused(
    loader: DataLoader[Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        trained(loader)
    with pytest.raises(ValueError, match=words):
        flower.FedDF(initial(), holdout=loader)


def test_a_holdout_is_what_its_loader_draws() -> None:
    def distilled(holdout: Any) -> dict[str, Tensor]:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            number = int(context.node_config["partition-id"])
            data = (INPUTS[number::2], LABELS[number::2])
            return flower.local_round(message, context, initial(), data, lr=0.1)

        strategy = flower.FedDF(
            initial(), holdout=holdout, steps=3, batch_size=4, fraction_evaluate=0.0
        )
        arrays = ArrayRecord(initial().state_dict())
        result = strategy.start(FakeGrid(app, nodes=2), arrays, 1)
        return dict(result.arrays.to_torch_state_dict())

    chosen = sorted(PART)
    drawn = distilled(DataLoader(WHOLE, 8, sampler=SubsetRandomSampler(PART)))
    assert same(drawn, distilled((INPUTS[chosen], LABELS[chosen])))
    assert not same(drawn, distilled((INPUTS, LABELS)))


def items(**changes: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return a data set whose samples are dicts."""
    samples = []
    for number in range(SIZE):
        sample: dict[str, Any] = {"inputs": INPUTS[number], "label": int(LABELS[number])}
        for key, value in changes.items():
            sample[key] = value(number)
        samples.append(sample)
    return samples


def pairs(label: Callable[[int], Any]) -> list[tuple[Any, ...]]:
    return [(INPUTS[number], label(number)) for number in range(SIZE)]


def with_value(value: float) -> Tensor:
    inputs = INPUTS.clone()
    inputs[7, 2] = value
    return inputs


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([(*pair, 5) for pair in pairs(lambda number: 0)], r"\(Tensor, Tensor, Tensor\) and must be \(input, label\)"),
        ([(*pair, "id 3") for pair in pairs(lambda number: 0)], r"\(Tensor, Tensor, 'id 3'\) and must be"),
        (TensorDataset(INPUTS), r"a sample of the data set is \(Tensor\) and must be"),
        (list(INPUTS), r"a sample of the data set is \(Tensor\) and must be"),
        (pairs(lambda number: "cat"), "labels are 'cat' and the like.*number the classes from 0"),
        ((INPUTS, ["cat"] * SIZE), "labels are 'cat' and the like"),
        ((INPUTS, np.array(["cat"] * SIZE)), "labels are 'cat' and the like"),
        (items(label=lambda number: "cat"), "labels are 'cat' and the like"),
        (pairs(lambda number: {"box": 1}), "labels are dict and the like"),
        (pairs(lambda number: number / 2), "labels are torch.float64 of shape .* one class number"),
        ((INPUTS, LABELS.float()), r"labels are torch.float32 .*\.long\(\)"),
        ((INPUTS, LABELS[:, None]), r"shape \(60, 1\) and must be one class number"),
        ((INPUTS, LABELS.to(torch.complex64)), "labels are torch.complex64"),
        (items(age=lambda number: 5.0), "tensors inputs, age beside its labels, .*name them as forward does"),
        ([{"image": sample["inputs"], "weights": sample["inputs"], "label": 0} for sample in items()],
         "name them as forward does"),
        ([{"weights": sample["inputs"], "weights2": 1, "label": 0} for sample in items()], "name them as forward does"),
        ((with_value(torch.nan), LABELS), r"sample 7 are not finite \(NaN or infinite\).*missing"),
        ((with_value(-torch.inf), LABELS), "sample 7 are not finite"),
        (TensorDataset(with_value(torch.nan), LABELS), "sample 7 are not finite"),
        ((INPUTS, LABELS[1:]), "there are 60 inputs and 59 labels"),
        ((INPUTS[1:], LABELS), "there are 59 inputs and 60 labels"),
        ([(object(), 0)] * 3, "samples cannot be joined to a batch: give the data set a transform"),
        ([(torch.ones(number), 0) for number in (5, 6, 5)], "samples cannot be joined to a batch"),
        (DataLoader([(torch.ones(number), 0) for number in (5, 6)], 1), r"shape \(5,\) in one batch and \(6,\)"),
        ([(([1.0], "a text"), 0)] * 3, "inputs are list of Tensor and must be one tensor, or tensors by name"),
        ((["a", "b", "c"], [0, 1, 2]), "inputs are list of 'a' and must be one tensor"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on_are_one_sentence(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        trained(data)
    assert "head=" not in str(refusal.value)
    with pytest.raises(ValueError, match=words):
        flower.FedDF(initial(), holdout=data)


@pytest.mark.parametrize(
    "data",
    [
        pairs(lambda number: int(LABELS[number])),
        items(),
        items(id=lambda number: "a text is left out"),
        items(weights=lambda number: torch.ones(1)),
        (INPUTS, LABELS.to(torch.uint8)),
        (INPUTS.numpy(), LABELS.tolist()),
    ],
)
def test_the_same_data_in_another_form_train_the_same(data: Any) -> None:
    assert same(trained(data)[0], trained((INPUTS, LABELS))[0])


class Cosine(nn.Linear):
    def forward(self, features: Tensor) -> Tensor:
        features = nn.functional.normalize(features)
        return 10 * nn.functional.linear(features, self.weight, self.bias)


class Clamped(nn.Linear):
    """Differs from an nn.Linear in the features of real samples alone."""

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


def weight_normed(inputs: int, outputs: int) -> nn.Module:
    return torch.nn.utils.parametrizations.weight_norm(nn.Linear(inputs, outputs))


def weight_normed_by_hook(inputs: int, outputs: int) -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Linear(inputs, outputs))


def pruned(inputs: int, outputs: int) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(inputs, outputs), "weight", 0.5)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Cosine, "is Cosine, which makes other logits than nn.Linear does"),
        (hooked, "is Linear, which makes other logits than nn.Linear does"),
        (Scaled, "has bias, factor, weight and must have weight and bias alone"),
        (weight_normed, "must have weight and bias alone: leave weight norm"),
        (weight_normed_by_hook, "has bias, weight_g, weight_v and must have weight and bias alone"),
        (pruned, "has bias, weight_mask, weight_orig"),
        (Plain, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_head_that_is_more_than_its_weights_is_refused(layer: Any, words: str) -> None:
    def net() -> nn.Module:
        model = Net()
        model.last = layer(8, CLASSES)
        return model

    if not words:
        trained((INPUTS, LABELS), net)
        flower.FedLDA(net())
        return
    with pytest.raises(ValueError, match=f"head = 'last' .*{words}"):
        trained((INPUTS, LABELS), net)
    by_hook = layer in (weight_normed_by_hook, pruned)
    with pytest.raises(ValueError, match="parametrizations in place of" if by_hook else words):
        flower.FedLDA(net())


def test_a_head_is_compared_on_the_clients_own_features() -> None:
    def net() -> nn.Module:
        model = Net()
        model.last = Clamped(8, CLASSES)
        return model

    trained((INPUTS, LABELS), net)  # no feature is as large
    with pytest.raises(ValueError, match="is Clamped, which makes other logits"):
        trained((100 * INPUTS, LABELS), net)
