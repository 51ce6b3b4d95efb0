"""The training loop against sums on paper and against plain PyTorch."""

import math
import random
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from client_builders import (
    FLOAT,
    SHAPE,
    all_variants,
    broadcast_of,
    client_of,
    linear_model,
    same,
    small_client,
)
from torch import Tensor, nn

from client_app.client import Client, Contribution, Loss, Variant
from client_app.models import Classifier, build
from client_app.optimizer import TrainingSettings, clip, coefficient_sum
from client_app.state import copy, digest, seed_of
from client_app.training import batches, steps_of, train_round
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from data import Samples, SettingError


class OneWeight(Classifier):
    """Logits (0, w x)."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(1, 1, bias=False))
        nn.init.zeros_(self.head.weight)
        self.double()

    def forward(self, inputs_B: Tensor) -> Tensor:
        logit_B1 = super().forward(inputs_B)
        return torch.cat([torch.zeros_like(logit_B1), logit_B1], dim=1)


def one_weight_client(**fields: int) -> Client:
    return client_of(
        OneWeight(), torch.tensor([[2.0]], dtype=FLOAT), torch.tensor([1]), 2, **fields
    )


SECOND = 2 / (1 + math.e)
"""(1 - sigmoid(w x)) x of the second step, where w x = 1."""


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "mu", "expected"),
    [
        # w0 = 0: g1 = -1, w1 = 0.5; g2 = -SECOND; w2 = w1 - 0.5 v2
        (0.0, 0.0, 0.0, 0.5 + 0.5 * SECOND),
        (0.5, 0.0, 0.0, 0.5 + 0.5 * (SECOND + 0.5)),  # v2 = 0.5 (-1) + g2
        (0.0, 0.2, 0.0, 0.5 + 0.5 * (SECOND - 0.2 * 0.5)),
        (0.0, 0.0, 0.4, 0.5 + 0.5 * (SECOND - 0.4 * 0.5)),  # the pull is 0 in the first step
        (0.5, 0.2, 0.4, 0.5 + 0.5 * (SECOND - 0.2 * 0.5 - 0.4 * 0.5 + 0.5)),
    ],
)
def test_two_steps_on_paper(
    momentum: float, weight_decay: float, mu: float, expected: float
) -> None:
    client = one_weight_client()
    settings = TrainingSettings(
        local_steps=2, learning_rate=0.5, momentum=momentum, weight_decay=weight_decay
    )
    report = train_round(client, [Proximal(mu)], settings)
    assert report.shared["head.weight"].item() == pytest.approx(expected, abs=1e-12)
    assert report.loss == pytest.approx((math.log(2) + math.log(1 + math.exp(-1))) / 2, abs=1e-12)
    assert (report.trained.steps, report.examples) == (2, 1)
    assert report.trained.coefficient_sum == pytest.approx(
        2 + momentum - 0.5 * mu
    )  # the pull is part of it


@pytest.mark.parametrize("model", ["mlp-bn", "small-cnn"])
@pytest.mark.parametrize("counts_C", [(9, 8, 7, 5), (20, 10, 2, 1)])
@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 1e-2), (0.9, 1e-2)]
)
def test_equals_plain_pytorch_to_the_bit(
    model: str, counts_C: tuple[int, ...], momentum: float, weight_decay: float
) -> None:
    client = small_client(counts_C, model=model)
    plain = build(model, SHAPE, len(counts_C), 0)
    settings = TrainingSettings(
        local_epochs=2,
        batch_size=8,
        learning_rate=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    optimizer = torch.optim.SGD(
        plain.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay
    )
    generator = torch.Generator().manual_seed(seed_of(client.seed, "batches"))
    plain.train()
    losses = []
    for _ in range(2):
        parts = list(torch.randperm(len(client.samples), generator=generator).split(8))
        if len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        for part in parts:
            optimizer.zero_grad()
            loss = F.cross_entropy(
                plain(client.samples.inputs_N[part]), client.labels_N[part], reduction="none"
            ).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    report = train_round(client, [], settings)
    assert same(report.shared, plain.state_dict())
    assert same(report.trained.state, plain.state_dict())
    assert report.loss == pytest.approx(math.fsum(losses) / len(losses), abs=1e-12)
    assert report.trained.steps == len(losses)


@dataclass(frozen=True)
class SeenLogits(Variant):
    """Keep what the loss is made of."""

    name: ClassVar[str] = "seen-logits"
    seen: list[Tensor] = field(default_factory=list)

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        self.seen.append(logits_BC.detach())
        return torch.ones_like(logits_BC[:, 0])


@pytest.mark.parametrize("model", ["mlp-bn", "small-cnn", "resnet-8"])
def test_bfloat16_is_in_the_model_alone(model: str) -> None:
    logits, moved = {}, {}
    for precision in ("float32", "bfloat16"):
        client, spy = small_client((9, 8, 7, 5), model=model), SeenLogits()
        report = train_round(
            client, [spy], TrainingSettings(local_steps=1, batch_size=8, precision=precision)
        )
        assert {tensor.dtype for tensor in report.shared.values()} <= {torch.float32, torch.int64}
        weights = [name for name, _ in client.model.named_parameters()]
        moved[precision] = torch.cat(
            [(report.shared[name] - client.start[name]).flatten() for name in weights]
        )
        logits[precision] = spy.seen[0]
        assert {tensor.dtype for tensor in spy.seen} == {torch.float32}
    rounded, exact = logits["bfloat16"], logits["float32"]
    assert torch.equal(rounded, rounded.bfloat16().float()) and not torch.equal(
        exact, exact.bfloat16().float()
    )
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    assert 0 < (moved["bfloat16"] - moved["float32"]).norm() < 0.25 * moved["float32"].norm()


@pytest.mark.parametrize("largest", [0.1, 1.0, 100.0])
def test_clipping_is_torchs(largest: float) -> None:
    parameters = [nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(5))]
    gradients = [
        torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
        for weight in parameters
    ]
    for weight, gradient in zip(parameters, gradients, strict=True):
        weight.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, largest)
    clipped = clip(gradients, largest)
    for weight, gradient, before in zip(parameters, clipped, gradients, strict=True):
        torch.testing.assert_close(gradient, weight.grad)
        assert torch.equal(gradient, before) == (norm < largest)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 1e-2)])
def test_gradients_are_clipped_after_the_pull_and_before_the_optimizer(
    momentum: float, weight_decay: float
) -> None:
    client, largest, mu = small_client((9, 8, 7, 5), model="small-cnn"), 0.5, 5.0
    settings = TrainingSettings(
        batch_size=8,
        learning_rate=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
        clip_norm=largest,
    )
    plain = build("small-cnn", SHAPE, 4, 0)
    optimizer = torch.optim.SGD(
        plain.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay
    )
    norms = []
    for part in batches(client, settings):
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(client.samples.inputs_N[part]), client.labels_N[part])
        pull = sum(
            ((weight - client.start[name]) ** 2).sum() for name, weight in plain.named_parameters()
        )
        (loss + mu / 2 * pull).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), largest).item())
        optimizer.step()
    assert min(norms) < largest < max(norms)  # some steps are clipped, some are not
    report = train_round(client, [Proximal(mu)], settings)
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(report.shared[name], weight, rtol=1e-4, atol=1e-6)


def test_rate_follows_the_round() -> None:
    settings = TrainingSettings(
        learning_rate=0.01, learning_rate_decay=0.95, learning_rate_decay_every=10
    )
    rates = [settings.rate(t + 1) for t in range(100)]
    assert rates[:10] == [0.01] * 10
    assert rates[10] == pytest.approx(0.0095, abs=1e-15)
    assert rates[99] == pytest.approx(0.01 * 0.95**9, abs=1e-15)
    client = one_weight_client(round=11)
    report = train_round(client, [], replace(settings, local_steps=1))
    assert report.shared["head.weight"].item() == pytest.approx(0.0095, abs=1e-12)
    assert report.trained.learning_rate == rates[10]


@pytest.mark.parametrize(
    ("size", "batch_size", "sizes"),
    [
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (3, 8, [3]),
        (1, 8, [1]),
        (8, 4, [4, 4]),
        (5, 4, [5]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_an_epoch_covers_every_sample_once(size: int, batch_size: int, sizes: list[int]) -> None:
    client = small_client((size,))
    drawn = list(batches(client, TrainingSettings(local_epochs=3, batch_size=batch_size)))
    assert [len(part) for part in drawn] == sizes * 3
    epochs = [torch.cat(drawn[i : i + len(sizes)]) for i in range(0, len(drawn), len(sizes))]
    for epoch in epochs:
        assert epoch.sort().values.tolist() == list(range(size))
    if size > 5:
        assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


@pytest.mark.parametrize(("limit", "steps"), [(1, 2), (2, 4), (3, 6), (100, 6), (0, 6)])
def test_a_batch_limit_ends_every_epoch_early(limit: int, steps: int) -> None:
    client = small_client((9, 8, 5))
    settings = TrainingSettings(local_epochs=2, batch_size=8)
    every, some = (
        list(batches(client, replace(settings, batch_limit=most))) for most in (0, limit)
    )
    assert len(some) == steps
    assert [part.tolist() for part in some[: steps // 2]] == [
        part.tolist() for part in every[: steps // 2]
    ]
    assert [part.tolist() for part in some[steps // 2 :]] == [
        part.tolist() for part in every[3 : 3 + steps // 2]
    ]


def test_a_batch_limit_beside_local_steps_is_refused() -> None:
    with pytest.raises(SettingError, match=r"batch-limit = 2: contradicts local-steps"):
        TrainingSettings(local_steps=1, batch_limit=2)


@pytest.mark.parametrize("local_steps", [1, 2, 3, 7])
def test_local_steps_replace_epochs(local_steps: int) -> None:
    client = small_client((10,))
    drawn = list(
        batches(client, TrainingSettings(local_steps=local_steps, local_epochs=50, batch_size=4))
    )
    assert len(drawn) == local_steps
    whole = torch.cat(drawn[: 3 * (local_steps // 3)]) if local_steps >= 3 else torch.empty(0)
    assert torch.bincount(whole.long(), minlength=10).tolist() == [local_steps // 3] * 10


@pytest.mark.parametrize("model", ["mlp-bn", "small-cnn", "digit-model", "resnet-8"])
def test_a_client_with_one_example_trains_and_keeps_the_statistics(model: str) -> None:
    client = small_client((0, 1), model=model)
    report = train_round(client, [], TrainingSettings(local_steps=2))
    for name, tensor in report.shared.items():
        assert torch.isfinite(tensor).all(), name
        if "running" in name or "num_batches" in name:
            assert torch.equal(tensor, client.start[name]), name
    assert not torch.equal(report.shared["head.weight"], client.start["head.weight"])


def test_the_model_of_a_one_example_client_serves_the_next_client() -> None:
    lone, next_client = small_client((0, 1)), small_client((3, 4))
    fresh = train_round(small_client((3, 4)), [], TrainingSettings())
    train_round(lone, [], TrainingSettings())
    lone.model.load_state_dict(next_client.start)
    used = train_round(replace(next_client, model=lone.model), [], TrainingSettings())
    assert same(fresh.shared, used.shared)


def test_a_client_smaller_than_a_batch_trains_on_what_it_has() -> None:
    report = train_round(small_client((2, 1)), [], TrainingSettings(local_epochs=2, batch_size=32))
    assert (report.trained.steps, report.examples) == (2, 3)


def train_with_everything(variants: list[Variant], **fields: int) -> tuple[str, float]:
    client = small_client(**fields)
    client = replace(client, broadcast=broadcast_of(variants, [client, small_client((1, 2, 3, 4))]))
    report = train_round(
        client, variants, TrainingSettings(local_epochs=2, batch_size=4, momentum=0.9)
    )
    return digest([report.shared, *report.uploads.values(), *report.memory.values()]), report.loss


@pytest.mark.parametrize("order", range(6))
def test_the_order_of_variants_does_not_matter(order: int) -> None:
    variants = all_variants()
    expected = train_with_everything(variants)
    random.Random(order).shuffle(variants)
    assert train_with_everything(variants) == expected


def test_the_global_generator_before_does_not_matter_but_the_client_seed_does() -> None:
    torch.manual_seed(1)
    first = train_with_everything(all_variants())
    torch.manual_seed(2)
    torch.rand(5)
    assert train_with_everything(all_variants()) == first
    client = small_client((5, 5))
    again = train_round(client, [], TrainingSettings(batch_size=4))
    client.model.load_state_dict(client.start)
    other = train_round(replace(client, seed=99), [], TrainingSettings(batch_size=4))
    assert not same(again.shared, other.shared)


@pytest.mark.parametrize("seed", [1, 2])
def test_dropout_is_seeded(seed: int) -> None:
    def train(client_seed: int, global_seed: int) -> dict[str, Tensor]:
        model = linear_model(16, 2)
        model.features = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
        inputs_N = torch.randn(8, 16, dtype=FLOAT, generator=torch.Generator().manual_seed(0))
        client = client_of(model, inputs_N, torch.arange(8) % 2, 2, seed=client_seed)
        torch.manual_seed(global_seed)
        return dict(train_round(client, [], TrainingSettings(local_steps=1, batch_size=8)).shared)

    assert same(train(seed, 5), train(seed, 6))
    assert not torch.allclose(
        train(seed, 5)["head.weight"], train(seed + 10, 5)["head.weight"], atol=1e-6
    )


def test_nothing_the_client_was_given_is_mutated() -> None:
    client = small_client()
    memory = {
        "private": {
            name: t for name, t in copy(client.model.state_dict()).items() if "running" in name
        }
    }
    client = replace(client, broadcast=broadcast_of(all_variants(), [client]), memory=memory)
    given = [client.start, *client.broadcast.values(), *memory.values()]
    given += [{"inputs": client.samples.inputs_N, "labels": client.labels_N}]
    before = digest(given)
    report = train_round(
        client, all_variants(), TrainingSettings(local_epochs=2, momentum=0.9, weight_decay=0.1)
    )
    assert digest(given) == before
    reported = digest([report.shared, *report.memory.values()])
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.add_(1)
    assert digest([report.shared, *report.memory.values()]) == reported, (
        "the report shares memory with the model"
    )


@dataclass(frozen=True)
class OtherSampler(Resampling):
    name: ClassVar[str] = "other-sampler"


def test_two_variants_that_sample_are_refused() -> None:
    with pytest.raises(ValueError, match="other-sampler and resampling both want to draw"):
        train_round(small_client(), [Resampling(), OtherSampler()], TrainingSettings())
    with pytest.raises(ValueError, match="both want to draw"):
        train_round(small_client(), [OtherSampler(), Resampling()], TrainingSettings())


@dataclass(frozen=True)
class Twice(Variant):
    name: ClassVar[str] = "twice"
    part: str = "upload"

    def before(self, client: Client, loss: Loss) -> Contribution:
        return Contribution(**{self.part: {"same": torch.zeros(1), "before": torch.zeros(1)}})

    def after(self, client: Client, trained: object) -> Contribution:
        return Contribution(**{self.part: {"same": torch.ones(1)}})


@pytest.mark.parametrize("part", ["upload", "memory"])
def test_a_name_contributed_twice_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=rf"twice contributes \['same'\] to the {part}"):
        train_round(small_client(), [Twice(part)], TrainingSettings())


@dataclass(frozen=True)
class Probe(Variant):
    """Upload the loss of each sample, of the model as received, and whether it was in training mode."""

    name: ClassVar[str] = "probe"
    seen: list[bool] = field(default_factory=list)

    def before(self, client: Client, loss: Loss) -> Contribution:
        self.seen.append(client.model.training)
        losses = [loss(torch.tensor([index])).detach() for index in range(len(client.samples))]
        return Contribution(upload={"losses": torch.stack(losses)})


@pytest.mark.parametrize("training", [True, False])
def test_before_sees_the_model_as_received_whatever_its_mode_was(training: bool) -> None:
    client, probe = small_client(), Probe()
    client.model.train(training)
    report = train_round(client, [probe], TrainingSettings())
    reference = build("mlp-bn", SHAPE, 4, 0).eval()
    expected = F.cross_entropy(
        reference(client.samples.inputs_N), client.labels_N, reduction="none"
    )
    assert torch.allclose(report.uploads["probe"]["losses"], expected, atol=1e-6)
    assert probe.seen == [False]
    assert same(report.shared, train_round(small_client(), [], TrainingSettings()).shared)


@pytest.mark.parametrize("mu", [0.25, 0.0])
def test_two_gradients_that_share_memory_are_corrected_once(mu: float) -> None:
    """autograd may return one tensor as the gradient of two parameters that are added."""

    class TwoBiases(Classifier):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(2, 2, bias=False))
            self.first, self.second = (
                nn.Parameter(torch.zeros(4, 2)),
                nn.Parameter(torch.ones(4, 2)),
            )

        def forward(self, inputs_B: Tensor) -> Tensor:
            return super().forward(inputs_B) + (self.first + self.second)

    inputs_N, labels_N = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    client = client_of(TwoBiases(), inputs_N, labels_N, 2)
    client = replace(client, start={name: tensor - 1 for name, tensor in client.start.items()})
    gradient = (0.5 - F.one_hot(labels_N, 2).double()) / 4
    order = next(iter(batches(client, TrainingSettings())))
    settings = TrainingSettings(local_steps=1, learning_rate=1.0, weight_decay=0.1)
    report = train_round(client, [Proximal(mu)], settings)
    for name, start in (("first", 0.0), ("second", 1.0)):
        expected = start - (gradient[order] + mu + 0.1 * start)
        assert torch.allclose(report.shared[name].double(), expected, atol=1e-6), name


@pytest.mark.parametrize(
    ("steps", "momentum", "expected"),
    [
        (5, 0.9, 13.1441),
        (20, 0.5, 38.0000019),
        (1, 0.9, 1.0),
        (7, 0.0, 7.0),
        (100, 0.99, None),
        (3, 0.5, None),
    ],
)
def test_coefficient_sum_is_that_of_fednova(
    steps: int, momentum: float, expected: float | None
) -> None:
    """||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) (Wang et al. 2020)."""
    closed = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    assert coefficient_sum(steps, momentum) == pytest.approx(closed, rel=1e-12)
    if expected is not None:
        assert coefficient_sum(steps, momentum) == pytest.approx(expected, abs=1e-7)


def test_coefficient_sum_of_the_report_ignores_weight_decay() -> None:
    settings = TrainingSettings(local_steps=5, momentum=0.9, weight_decay=0.3)
    report = train_round(small_client(), [], settings)
    assert report.trained.coefficient_sum == pytest.approx(13.1441, abs=1e-10)


@pytest.mark.parametrize("samples", [1, 2, 7, 8, 9, 16, 17, 33])
@pytest.mark.parametrize(
    "changes",
    [{}, {"batch_limit": 2}, {"local_steps": 5}, {"local_epochs": 3}, {"batch_size": 1}],
)
def test_steps_of_are_those_taken(samples: int, changes: dict[str, int]) -> None:
    settings = TrainingSettings(**{"local_epochs": 2, "batch_size": 8, **changes})  # type: ignore[arg-type]
    drawn = Samples(
        torch.randn(samples, 4), torch.zeros(samples).long(), torch.zeros(1), torch.ones(1)
    )
    client = Client(id=0, model=None, samples=drawn, num_classes=2)  # type: ignore[arg-type]
    assert len(list(batches(client, settings))) == steps_of(samples, settings)


class OnTheSphere(nn.Module):
    """Features of length 1 times a learned temperature, behind a projection: FedETF's layers (Li et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(16, 4)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, images_B: Tensor) -> Tensor:
        projected_BD: Tensor = self.projection(images_B.flatten(1))
        return self.temperature * F.normalize(projected_BD, dim=1)


def test_a_model_of_ones_own_may_keep_its_head_fixed() -> None:
    """The head is FedETF's frame, whose rows have length 1 and the cosine -1 / (C - 1) with each other."""
    frame_CC = math.sqrt(4 / 3) * (torch.eye(4) - 0.25)
    head = nn.Linear(4, 4)
    with torch.no_grad():
        head.weight.copy_(frame_CC)
        head.bias.zero_()
    model = Classifier(OnTheSphere(), head.requires_grad_(False))
    client = replace(small_client(), model=model, start=copy(model.state_dict()))
    report = train_round(client, [], TrainingSettings(local_epochs=1, learning_rate=0.5))
    for name, tensor in report.shared.items():
        assert torch.equal(tensor, client.start[name]) == name.startswith("head."), name
