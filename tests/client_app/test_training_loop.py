"""The training loop against sums on paper and against plain PyTorch."""

import math
import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from client_builders import (
    SHAPE,
    all_variants,
    broadcast_of,
    counting_client,
    same,
    small_client,
)
from torch import nn

from client_app.client import Client, Contribution, Loss, Report, Variant
from client_app.models import build
from client_app.optimizer import (
    TrainingSettings,
    coefficient_sum,
)
from client_app.state import digest, seed_of
from client_app.training import batches, steps_of, train_round
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from data import Samples


def torchs_optimizer(settings: TrainingSettings, parameters: Any) -> torch.optim.Optimizer:
    """Return torch's own optimizer with the same settings."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, settings.momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, rate, (settings.momentum, 0.999), 1e-8, decay)


@pytest.mark.parametrize(
    ("model", "counts_C", "changes"),
    [
        ("mlp-bn", (9, 8, 7, 5), {"weight_decay": 1e-2}),
        ("small-cnn", (20, 10, 2, 1), {"momentum": 0.0}),
        ("mlp-bn", (9, 7, 6, 5), {"optimizer": "adamw", "weight_decay": 0.1}),
    ],
)
def test_equals_plain_pytorch_to_the_bit(
    model: str, counts_C: tuple[int, ...], changes: dict[str, Any]
) -> None:
    client = small_client(counts_C, model=model)
    plain = build(model, SHAPE, len(counts_C), 0).train()
    settings = TrainingSettings(local_epochs=2, batch_size=8, learning_rate=0.02, **changes)
    optimizer = torchs_optimizer(settings, plain.parameters())
    generator = torch.Generator().manual_seed(seed_of(client.seed, "batches"))
    losses = []
    for _ in range(2):
        parts = list(torch.randperm(len(client.samples), generator=generator).split(8))
        if len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        for part in parts:
            optimizer.zero_grad()
            logits_BC = plain(client.samples.inputs_N[part])
            loss = F.cross_entropy(logits_BC, client.labels_N[part], reduction="none").mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    report = train_round(client, [], settings)
    assert same(report.shared, plain.state_dict())
    assert report.loss == pytest.approx(math.fsum(losses) / len(losses), abs=1e-12)
    assert report.trained.steps == len(losses)


def test_gradients_are_clipped_after_the_pull_and_before_the_optimizer() -> None:
    client, largest, mu = small_client((9, 8, 7, 5), model="small-cnn"), 0.5, 5.0
    settings = TrainingSettings(
        batch_size=8, learning_rate=0.1, weight_decay=1e-2, clip_norm=largest
    )
    plain = build("small-cnn", SHAPE, 4, 0)
    optimizer = torchs_optimizer(settings, plain.parameters())
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
        local_steps=1, learning_rate=0.01, learning_rate_decay=0.95, learning_rate_decay_every=10
    )
    rates = [settings.rate(round) for round in (1, 10, 11, 100)]
    assert rates == pytest.approx([0.01, 0.01, 0.0095, 0.01 * 0.95**9], abs=1e-15)
    report = train_round(counting_client((3, 1), round=11), [], settings)
    assert report.trained.learning_rate == rates[2]


@pytest.mark.parametrize(
    ("size", "batch_size", "sizes"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (1, 8, [1]), (8, 4, [4, 4]), (3, 1, [1, 1, 1])],
)
def test_an_epoch_covers_every_sample_once(size: int, batch_size: int, sizes: list[int]) -> None:
    settings = TrainingSettings(local_epochs=3, batch_size=batch_size)
    drawn = list(batches(small_client((size,)), settings))
    assert [len(part) for part in drawn] == sizes * 3
    epochs = torch.cat(drawn).reshape(3, size)
    assert (epochs.sort(1).values == torch.arange(size)).all()
    assert size < 5 or len(epochs.unique(dim=0)) == 3, "each epoch has an order of its own"


def test_a_client_with_one_example_trains_and_keeps_the_statistics() -> None:
    client = small_client((0, 1))
    report = train_round(client, [], TrainingSettings(local_steps=2))
    moved = {n for n, tensor in report.shared.items() if not torch.equal(tensor, client.start[n])}
    assert "head.weight" in moved and not any("running" in n or "num_batches" in n for n in moved)
    assert all(torch.isfinite(tensor).all() for tensor in report.shared.values())


def test_the_order_of_variants_does_not_matter() -> None:
    def trained(variants: list[Variant]) -> tuple[str, float]:
        client = small_client()
        sent = broadcast_of(variants, [client, small_client((1, 2, 3, 4))])
        settings = TrainingSettings(local_epochs=2, batch_size=4, momentum=0.9)
        report = train_round(replace(client, broadcast=sent), variants, settings)
        kept = [*report.uploads.values(), *report.memory.values()]
        return digest([report.shared, *kept]), report.loss

    variants = all_variants()
    expected = trained(variants)
    random.Random(0).shuffle(variants)
    torch.manual_seed(7)  # the global generator before does not matter
    assert trained(variants) == expected


def test_dropout_is_seeded() -> None:
    def trained(client_seed: int, global_seed: int) -> str:
        client = small_client((4, 4), seed=client_seed, model="linear")
        client.model.features = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
        torch.manual_seed(global_seed)
        return digest([train_round(client, [], TrainingSettings(local_steps=1)).shared])

    assert trained(1, 5) == trained(1, 6) != trained(11, 5)


@dataclass(frozen=True)
class OtherSampler(Resampling):
    name: ClassVar[str] = "other-sampler"


def test_two_variants_that_sample_are_refused() -> None:
    with pytest.raises(ValueError):
        train_round(small_client(), [Resampling(), OtherSampler()], TrainingSettings())
    train_round(small_client(), [OtherSampler()], TrainingSettings())


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
    with pytest.raises(ValueError):
        train_round(small_client(), [Twice(part)], TrainingSettings())


@dataclass(frozen=True)
class Probe(Variant):
    """Upload the loss of the model as received."""

    name: ClassVar[str] = "probe"

    def before(self, client: Client, loss: Loss) -> Contribution:
        return Contribution(upload={"loss": loss(torch.arange(len(client.samples))).detach()})


def test_augmentation_is_in_the_steps_alone_and_repeats() -> None:
    """Hooks see the images as they are; the same client and round see the same augmented ones."""

    def trained(augmentation: str, seed: int = 1) -> Report:
        client = small_client((6, 6), seed=seed)
        samples = replace(client.samples, augmentation=augmentation)
        return train_round(replace(client, samples=samples), [Probe()], TrainingSettings())

    plain, first, again = (trained(kind) for kind in ("none", "crop-flip", "crop-flip"))
    assert same(first.shared, again.shared) and not same(first.shared, plain.shared)
    assert same(first.uploads["probe"], plain.uploads["probe"])


def test_coefficient_sum_is_that_of_fednova() -> None:
    """||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho), and with a pull in plain SGD
    [1 - (1 - eta mu)^tau] / (eta mu) (Wang et al. 2020)."""
    for steps, rho in ((5, 0.9), (20, 0.5), (7, 0.0)):
        closed = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        assert coefficient_sum(steps, rho, 0.0) == pytest.approx(closed, rel=1e-12)
    for steps, pull in ((1, 0.3), (6, 0.05), (40, 0.2)):
        closed = (1 - (1 - pull) ** steps) / pull
        assert coefficient_sum(steps, 0.0, pull) == pytest.approx(closed, rel=1e-12)
    assert coefficient_sum(9, 0.9, 0.2) == pytest.approx(6.37098301, rel=1e-9)


@pytest.mark.parametrize("samples", [1, 8, 9, 17])
@pytest.mark.parametrize(
    "changes",
    [{}, {"batch_limit": 2}, {"local_steps": 5}, {"batch_size": 1}],
)
def test_steps_of_are_those_taken(samples: int, changes: dict[str, int]) -> None:
    settings = TrainingSettings(**{"local_epochs": 2, "batch_size": 8, **changes})  # type: ignore[arg-type]
    drawn = Samples(
        torch.randn(samples, 4), torch.zeros(samples).long(), torch.zeros(1), torch.ones(1)
    )
    client = Client(id=0, model=None, samples=drawn, num_classes=2)  # type: ignore[arg-type]
    assert len(list(batches(client, settings))) == steps_of(samples, settings)
