"""Clients that train in one pass against the same clients one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar
from unittest import mock

import pytest
import torch
from client_builders import CLASSES, SHAPE, all_variants, broadcast_of, small_client
from test_loss_terms import Norms, Teacher
from torch import Tensor, nn

import client_app.vectorized
from client_app.client import Client, Report, Variant, overrides, vectorizable
from client_app.models import Classifier, build
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, difference, norm
from client_app.training import train_round
from client_app.variants.resampling import Resampling
from client_app.vectorized import (
    MAPPED_HOOKS,
    VectorizedTraining,
    fitting_clients,
    mixes,
    multiplications,
    obstacle,
)

SETTINGS = TrainingSettings(
    local_epochs=2,
    batch_size=4,
    learning_rate=0.1,
    weight_decay=0.01,
    clip_norm=1.0,
    clients_per_pass=3,
)
COUNTS = ((5, 3, 2, 1), (1, 2, 4, 0), (0, 0, 5, 0), (2, 1, 1, 0), (0, 1, 0, 0), (2, 2, 2, 1))
"""Batches of 4 4 3, 4 3, 5, 4, 1 and 4 3; one pass holds batches of several sizes."""
ONE_BY_ONE = {"decorrelation", "head-then-features", "model-contrast", "not-true-distillation"}
"""Variants whose clients cannot train in one pass."""


@dataclass(frozen=True)
class Unmarked(Norms):
    """A term that does not say whether it can be mapped."""

    name: ClassVar[str] = "unmarked"

    def loss_term(self, *of: object) -> Tensor:  # type: ignore[override]
        return super().loss_term(*of)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Counting(Variant):
    """Weighs a sample by all that is counted of its class."""

    name: ClassVar[str] = "counting"

    @vectorizable
    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        numbers_C = client.counts_C + 2 * client.drawn_C + 3 * client.effective_prior_C
        return numbers_C.to(logits_BC)[labels_B]


def groups() -> dict[str, list[Variant]]:
    """Return all variants that can train in one pass: those of a mapped hook together, of private tensors alone."""
    groups: dict[str, list[Variant]] = {"none": [], "loss_term": [Norms()]}
    for variant in all_variants():
        if variant.name in ONE_BY_ONE:
            continue
        hooks = [hook for hook in MAPPED_HOOKS if overrides(variant, hook)]
        own = variant.name if overrides(variant, "private_names") else "others"
        groups.setdefault(hooks[0] if hooks else own, []).append(variant)
    return groups


def clients_of(variants: Sequence[Variant], model: str = "small-cnn") -> list[Client]:
    """Return clients of which every second one kept something in an earlier round."""
    clients = [
        small_client(c, seed=k + 1, id=k, model=model, round=2) for k, c in enumerate(COUNTS)
    ]
    first = clients[0].model
    private = frozenset().union(*(variant.private_names(first) for variant in variants))
    draws = torch.Generator().manual_seed(3)
    whole = copy(first.state_dict())
    other = {
        n: t + torch.rand(t.shape, generator=draws) if t.is_floating_point() else t
        for n, t in whole.items()
    }
    memory = {"control-variates": {name: other[name].double() / 9 for name in first.trained}}
    if private:
        memory["private"] = {name: other[name] for name in private}
    start = {name: tensor for name, tensor in whole.items() if name not in private}
    shared = {"model": first, "start": start, "broadcast": broadcast_of(variants, clients)}
    return [replace(c, **shared, memory=memory if c.id % 2 else {}) for c in clients]  # type: ignore[arg-type]


def initial(client: Client) -> State:
    """Return the client's weights as received."""
    name = "mlp-bn" if len(client.model.state_dict()) > 8 else "small-cnn"
    return {
        **build(name, SHAPE, CLASSES, 0).state_dict(),
        **client.start,
        **client.memory.get("private", {}),
    }


def alone(client: Client, variants: Sequence[Variant], settings: TrainingSettings) -> Report:
    client.model.load_state_dict(initial(client))
    return train_round(client, variants, settings)


def together(
    clients: Sequence[Client], variants: Sequence[Variant], settings: TrainingSettings
) -> list[Report]:
    """Return the reports of clients that really trained in passes, and alone of those that are left over."""
    trainer = VectorizedTraining(clients[0].model, SHAPE, variants, settings, initial)
    assert not trainer.obstacle
    with mock.patch.object(client_app.vectorized.log, "warning") as warning:
        reports = trainer.train(clients)
    assert not warning.called, "the clients of a pass that fails are left out"
    assert len(reports) >= len(clients) - 2, "the rest of six by three, and a single example"
    return [
        reports[client.id][0] if client.id in reports else alone(client, variants, settings)
        for client in clients
    ]


def close(left: State, right: State) -> bool:
    """Return whether two states differ by at most 1e-5 of their size."""
    shapes = [{name: (t.shape, t.dtype) for name, t in one.items()} for one in (left, right)]
    assert shapes[0] == shapes[1]
    return norm(difference(left, right)) <= 1e-5 * norm(right)


def assert_alike(left: Sequence[Report], right: Sequence[Report]) -> None:
    for stacked, single in zip(left, right, strict=True):
        assert close(stacked.shared, single.shared)
        assert close(stacked.trained.state, single.trained.state)
        for part, others in ((stacked.uploads, single.uploads), (stacked.memory, single.memory)):
            assert part.keys() == others.keys()
            assert all(close(part[name], others[name]) for name in part)
        assert stacked.loss == pytest.approx(single.loss, rel=1e-5)
        assert (stacked.examples, stacked.trained.steps) == (single.examples, single.trained.steps)
        assert stacked.trained.coefficient_sum == single.trained.coefficient_sum


@pytest.mark.parametrize(
    ("group", "changes"),
    [
        *((group, {}) for group in groups()),
        ("none", {"optimizer": "adamw", "momentum": 0.5}),
    ],
)
def test_variants_train_together_as_one_by_one(group: str, changes: dict[str, object]) -> None:
    variants, settings = groups()[group], replace(SETTINGS, **changes)  # type: ignore[arg-type]
    batch_norm = group == "loss_term" or any("batch-norm" in v.needs for v in variants)
    clients = clients_of(variants, "mlp-bn" if batch_norm else "small-cnn")
    reports = together(clients, variants, settings)
    assert_alike(reports, [alone(client, variants, settings) for client in clients])


def test_what_is_counted_of_a_client_is_the_same_in_a_pass() -> None:
    variants: list[Variant] = [Counting(), Resampling()]
    clients = clients_of(variants)
    reports = together(clients, variants, SETTINGS)
    assert_alike(reports, [alone(client, variants, SETTINGS) for client in clients])


def test_a_variant_that_cannot_train_together_is_named() -> None:
    model = build("small-cnn", SHAPE, CLASSES, 0)
    others = [Unmarked(), Teacher()]
    for variant in [*all_variants(), Norms(), *others]:
        named = obstacle(model, SHAPE, [variant]).startswith(f"{variant.name} ")
        assert named == (variant.name in ONE_BY_ONE or variant in others), variant.name
    dropping = Classifier(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), nn.Linear(16, CLASSES))
    assert "dropout" in obstacle(dropping, SHAPE, [])
    first = nn.Linear(16, 16)
    tied = Classifier(nn.Sequential(nn.Flatten(), first, nn.ReLU(), first), nn.Linear(16, CLASSES))
    assert "share" in obstacle(tied, SHAPE, [])


def test_clients_of_a_pass_that_fails_are_left_to_train_one_by_one() -> None:
    clients = clients_of([])
    clients[3] = replace(clients[3], samples=replace(clients[3].samples, mean=torch.zeros(7)))
    clients = [
        replace(c, samples=replace(c.samples, augmentation="crop-flip")) for c in clients
    ]  # nothing is joined
    trainer = VectorizedTraining(clients[0].model, SHAPE, [], SETTINGS, initial)
    reports = trainer.train(clients)
    assert len(reports) == 3 and 3 not in reports
    good = [client for client in clients if client.id in reports]
    singles = [alone(client, [], SETTINGS) for client in good]
    assert_alike([reports[client.id][0] for client in good], singles)


def test_samples_mix_where_one_depends_on_any_other_of_its_batch() -> None:
    class Mixing(nn.Flatten):
        def forward(self, inputs_B: Tensor) -> Tensor:
            return super().forward(inputs_B).roll(2, 0)

    for features, expected in ((Mixing(), True), (nn.Flatten(), False)):
        assert mixes(Classifier(features, nn.Linear(16, CLASSES)), SHAPE) == expected


def test_as_many_clients_fit_as_are_short_and_small() -> None:
    small = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), nn.Linear(8, CLASSES))
    assert multiplications(small, SHAPE) == 16 * 8 + 8 * CLASSES
    convolution = Classifier(
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()), nn.Linear(32, CLASSES)
    )
    assert multiplications(convolution, SHAPE) == 9 * 2 * 16 + 32 * CLASSES
    places = Classifier(
        nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3), nn.Flatten()), nn.Linear(12, CLASSES)
    )
    assert multiplications(places, SHAPE) == 4 * 4 * 3 + 12 * CLASSES, "a layer of four places"
    assert fitting_clients(small, SHAPE, 32) == 64
    assert fitting_clients(small, SHAPE, 2**17) == 1, "a step of so many samples is long"
    with torch.device("meta"):
        wide = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 2**17)), nn.Linear(2**17, 10))
    assert 1 < fitting_clients(wide, SHAPE, 1) < 64, "memory bounds them"
    images = (1, 28, 28)
    assert fitting_clients(build("random-conv", images, 10, 0), images, 32) == 64, "a head trains"


def test_a_model_that_takes_two_samples_is_counted() -> None:
    """As such a model of one's own is accepted."""

    class Pairs(nn.Flatten):
        def forward(self, inputs_B: Tensor) -> Tensor:
            _, _ = inputs_B
            return super().forward(inputs_B)

    assert multiplications(Classifier(Pairs(), nn.Linear(16, CLASSES)), SHAPE) == 16 * CLASSES
