"""Clients that train in one pass against the same clients one by one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar
from unittest import mock

import pytest
import torch
from client_builders import CLASSES, SHAPE, broadcast_of, small_client
from test_variant_contract import ROWS
from torch import Tensor, nn

import client_app.vectorized
from client_app.client import Client, Report, Variant, overrides
from client_app.models import Classifier, ModelSettings, build
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, difference, norm
from client_app.training import train_round
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_model import LocalModel
from client_app.variants.logit_shift import LogitShift
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from client_app.vectorized import MAPPED_HOOKS, Source, VectorizedTraining, mixes, obstacle

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

ONE_BY_ONE = {
    "decorrelation": "does not say that it can",  # a sample's term depends on the rest of its batch
    "head-then-features": "trains the head and the features one after the other",
    "model-contrast": "does not say that it can",  # it passes the batch through other models
    "not-true-distillation": "asks for the logits of a second model",
    "vacant-classes": "asks for the logits of a second model",
}
"""Variants whose clients cannot train in one pass, and what is then said."""
VECTORIZED_ROWS = [row for row in ROWS if row.default.name not in ONE_BY_ONE]


def clients_of(variants: Sequence[Variant], model: str = "small-cnn") -> list[Client]:
    """Return clients of which every second one kept something in an earlier round."""
    clients = [
        small_client(c, seed=k + 1, id=k, model=model, round=2) for k, c in enumerate(COUNTS)
    ]
    whole, broadcast = copy(clients[0].model.state_dict()), broadcast_of(variants, clients)
    private = frozenset().union(*(variant.private_names(clients[0].model) for variant in variants))
    draws = torch.Generator().manual_seed(3)
    other = {
        n: t + torch.rand(t.shape, generator=draws) if t.is_floating_point() else t
        for n, t in whole.items()
    }
    memory = {
        "control-variates": {name: other[name].double() / 9 for name in clients[0].model.trained}
    }
    if private:
        memory["private"] = {name: other[name] for name in private}
    start = {name: tensor for name, tensor in whole.items() if name not in private}
    shared = {"model": clients[0].model, "start": start, "broadcast": broadcast}
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
    """Return the reports of clients that really trained in one pass, but for what cannot be stacked."""
    trainer = VectorizedTraining(clients[0].model, SHAPE, variants, settings, initial)
    assert not trainer.obstacle
    with mock.patch.object(client_app.vectorized.log, "warning") as warning:
        reports = {client.id: report for client, report, _ in trainer.train(clients)}
    assert not warning.called, "a pass that fails is halved, in the end to clients one by one"
    assert all(isinstance(report, Report) for report in reports.values()), reports
    return [reports[client.id] for client in clients]  # type: ignore[misc]


def close(left: State, right: State) -> bool:
    """Return whether two states differ by at most 1e-5 of their size."""
    assert {name: (t.shape, t.dtype) for name, t in left.items()} == {
        n: (t.shape, t.dtype) for n, t in right.items()
    }
    return norm(difference(left, right)) <= 1e-5 * norm(right)


def assert_alike(left: Sequence[Report], right: Sequence[Report]) -> None:
    for stacked, single in zip(left, right, strict=True):
        assert close(stacked.shared, single.shared) and close(
            stacked.trained.state, single.trained.state
        )
        for part, others in ((stacked.uploads, single.uploads), (stacked.memory, single.memory)):
            assert part.keys() == others.keys()
            assert all(close(part[name], others[name]) for name in part)
        assert stacked.loss == pytest.approx(single.loss, rel=1e-5)
        assert (stacked.examples, stacked.trained.steps) == (single.examples, single.trained.steps)
        assert stacked.trained.coefficient_sum == single.trained.coefficient_sum


@pytest.mark.parametrize("which", ["default", "other"])
@pytest.mark.parametrize("row", VECTORIZED_ROWS, ids=lambda row: row.default.name)
def test_every_variant_trains_together_as_one_by_one(row: object, which: str) -> None:
    variant: Variant = getattr(row, which)
    clients = clients_of([variant], "mlp-bn" if variant.requirements.batch_norm else "small-cnn")
    with mock.patch.object(client_app.vectorized, "train_round") as single:
        single.side_effect = train_round
        reports = together(clients, [variant], SETTINGS)
    assert single.call_count <= (
        2 if variant.requirements.batch_norm else 1
    )  # the rest of six by three, and a single example
    assert_alike(reports, [alone(client, [variant], SETTINGS) for client in clients])


def apart(left: State, right: State) -> float:
    """Return by how much of its size one state differs from another."""
    return float(norm(difference(left, right)) / norm(right))


def one_rounding_away(seed: int) -> Callable[[Client], State]:
    """Return the clients' first weights, each changed by about a unit in float32's last place."""

    def state_of(client: Client) -> State:
        draws = torch.Generator().manual_seed(seed)
        return {
            name: tensor * (1 + 1.2e-7 * (2 * torch.rand(tensor.shape, generator=draws) - 1))
            if tensor.is_floating_point()
            else tensor
            for name, tensor in initial(client).items()
        }

    return state_of


def test_together_differs_by_no_more_than_a_change_of_one_rounding_in_the_first_weights() -> None:
    """IWDS repeats images, so batch norm's variances are below its eps; docs/reference/methods.md has these figures."""
    variants: list[Variant] = [LocalBatchNorm(), LogitShift(), Resampling()]
    settings = replace(SETTINGS, momentum=0.0, clip_norm=0.0)

    def trained(client: Client, start: Callable[[Client], State]) -> State:
        client.model.load_state_dict(start(client))
        return train_round(client, variants, settings).trained.state

    clients = clients_of(variants, "mlp-bn")
    stacked = together(clients, variants, settings)
    single = [trained(client, initial) for client in clients]
    differences = [
        apart(report.trained.state, state) for report, state in zip(stacked, single, strict=True)
    ]
    sensitivities = [
        max(apart(trained(client, one_rounding_away(seed)), state) for seed in range(5))
        for client, state in zip(clients, single, strict=True)
    ]
    print(differences, sensitivities)
    assert max(sensitivities) > 1e-4  # else this case shows nothing
    for difference_of_one, sensitivity in zip(differences, sensitivities, strict=True):
        assert difference_of_one <= 10 * sensitivity
    clipped = replace(settings, clip_norm=1.0)
    for report, client in zip(together(clients, variants, clipped), clients, strict=True):
        assert close(report.trained.state, alone(client, variants, clipped).trained.state)


@pytest.mark.parametrize("row", VECTORIZED_ROWS, ids=lambda row: row.default.name)
def test_a_variant_whose_hooks_are_mapped_says_whether_they_can_be(row: object) -> None:
    variant: Variant = row.default  # type: ignore[attr-defined]
    marked = [
        hook for hook in MAPPED_HOOKS if getattr(getattr(variant, hook), "vectorizable", False)
    ]
    assert marked == [hook for hook in MAPPED_HOOKS if overrides(variant, hook)]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_variant_whose_clients_train_one_by_one_is_named(name: str) -> None:
    (row,) = [row for row in ROWS if row.default.name == name]
    model = build("small-cnn", SHAPE, CLASSES, 0)
    assert obstacle(model, SHAPE, [row.default]).startswith(f"{name} {ONE_BY_ONE[name]}")
    assert obstacle(model, SHAPE, [Proximal()]) == ""


def test_frozen_layers_stay_as_they_are_when_clients_train_together() -> None:
    clients = clients_of([])
    model = clients[0].model
    model.freeze([model.features[0]])  # type: ignore[index]
    reports = together(clients, [], SETTINGS)
    for report, client in zip(reports, clients, strict=True):
        single = alone(client, [], SETTINGS)
        assert close(report.trained.state, single.trained.state)
        for name, tensor in report.trained.state.items():
            unmoved = torch.equal(tensor, client.start[name])
            assert unmoved == name.startswith("features.0."), name


@pytest.mark.parametrize(("width", "first"), [(4, True), (8, False)])
def test_images_of_a_very_narrow_network_have_channels_first(width: int, first: bool) -> None:
    model = build("resnet-8", (1, 8, 8), CLASSES, 0, ModelSettings(width=width))
    with client_app.vectorized.channels_last(model):
        images = model.features[0](torch.rand(2, 1, 8, 8))  # type: ignore[index]
    assert images.is_contiguous() == first


def test_augmented_images_are_drawn_as_for_one() -> None:
    clients = [
        replace(client, samples=replace(client.samples, augmentation="crop-flip"))
        for client in clients_of([], "mlp-bn")
    ]
    reports = together(clients, [], SETTINGS)
    assert_alike(reports, [alone(client, [], SETTINGS) for client in clients])
    plain = [alone(client, [], SETTINGS) for client in clients_of([], "mlp-bn")]
    assert not close(reports[0].shared, plain[0].shared)


def test_a_pass_that_fails_is_halved_and_only_the_client_that_cannot_is_lost() -> None:
    clients = clients_of([])
    clients[3] = replace(clients[3], samples=replace(clients[3].samples, mean=torch.zeros(7)))
    clients = [
        replace(c, samples=replace(c.samples, augmentation="crop-flip")) for c in clients
    ]  # nothing is joined
    trainer = VectorizedTraining(
        clients[0].model, SHAPE, [], replace(SETTINGS, clients_per_pass=6), initial
    )
    reports = {client.id: report for client, report, _ in trainer.train(clients)}
    assert [number for number in sorted(reports) if isinstance(reports[number], Exception)] == [3]
    good = [client for client in clients if client.id != 3]
    assert_alike(
        [reports[client.id] for client in good], [alone(client, [], SETTINGS) for client in good]
    )  # type: ignore[misc]


def test_what_cannot_train_together_is_named() -> None:
    @dataclass(frozen=True)
    class Weights(Variant):
        name: ClassVar[str] = "weights"

        def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
            return labels_B.double() if labels_B.sum().item() else logits_BC[:, 0]

    model = build("small-cnn", SHAPE, CLASSES, 0)
    assert "weights does not say" in obstacle(model, SHAPE, [Weights()])
    assert obstacle(model, SHAPE, [LocalModel(), Proximal()]) == ""
    dropping = Classifier(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), nn.Linear(16, CLASSES))
    assert "dropout" in obstacle(dropping, SHAPE, [])
    first = nn.Linear(16, 16)
    tied = Classifier(nn.Sequential(nn.Flatten(), first, nn.ReLU(), first), nn.Linear(16, CLASSES))
    assert "share" in obstacle(tied, SHAPE, [])


def waits(work: Callable[[], object]) -> int:
    """Return how often some work asks for a tensor's value, for which a GPU is waited for."""
    count = 0

    def counting(name: str) -> Callable[..., object]:
        original = getattr(torch.Tensor, name)

        def method(tensor: Tensor, *arguments: object) -> object:
            nonlocal count
            count += 1
            return original(tensor, *arguments)

        return method

    with ExitStack() as stack:
        for name in (
            "item",
            "tolist",
            "cpu",
            "numpy",
            "nonzero",
            "__bool__",
            "__int__",
            "__float__",
        ):
            stack.enter_context(mock.patch.object(torch.Tensor, name, counting(name)))
        work()
    return count


@pytest.mark.parametrize("row", VECTORIZED_ROWS, ids=lambda row: row.default.name)
def test_no_step_waits_for_a_number(row: object) -> None:
    variant: Variant = row.default  # type: ignore[attr-defined]
    clients = clients_of([variant], "mlp-bn" if variant.requirements.batch_norm else "small-cnn")
    few, many = (replace(SETTINGS, local_epochs=1, local_steps=steps) for steps in (1, 3))
    alone(clients[0], [variant], many)  # fills caches, so that the order of tests does not matter
    single = [waits(partial(alone, clients[0], [variant], settings)) for settings in (few, many)]
    stacked = [
        waits(partial(together, clients[:3:2], [variant], settings)) for settings in (few, many)
    ]
    broadcast = (
        2 if variant.name == "reweighting" else 0
    )  # two more steps look at the counts that the server sent
    assert single[1] - single[0] <= broadcast and stacked[1] - stacked[0] <= broadcast
    assert single[0] > 0


@pytest.mark.parametrize("neighbor", [1, 2])
def test_samples_mix_where_one_depends_on_any_other_of_its_batch(neighbor: int) -> None:
    class Mixing(nn.Module):
        def forward(self, inputs_B: Tensor) -> Tensor:
            return inputs_B.flatten(1) + inputs_B.flatten(1).roll(neighbor, 0)

    head = nn.Linear(16, CLASSES)
    assert mixes(Classifier(Mixing(), head), SHAPE)
    assert not mixes(Classifier(nn.Flatten(), head), SHAPE)
    assert mixes(build("mlp-bn", SHAPE, CLASSES, 0), SHAPE)


def test_parameters_that_stay_as_they_are_are_not_stacked() -> None:
    clients = clients_of([])
    model = clients[0].model
    for parameter in list(model.features.parameters())[:2]:
        parameter.requires_grad_(False)
    reports = together(clients, [], SETTINGS)
    assert_alike(reports, [alone(client, [], SETTINGS) for client in clients])


def test_a_client_that_cannot_train_takes_no_time() -> None:
    clients = clients_of([])
    trainer = VectorizedTraining(clients[0].model, SHAPE, [], SETTINGS, initial)
    with mock.patch.object(client_app.vectorized, "task_of", side_effect=ValueError("no task")):
        outcomes = list(trainer.train(clients))
    assert [str(error) for _, error, _ in outcomes] == ["no task"] * len(clients)
    assert {seconds for _, _, seconds in outcomes} == {0.0}


def test_samples_of_one_kind_are_joined_once_and_others_are_not() -> None:
    clients = clients_of([])[:2]
    joined = Source(clients).joined
    assert joined is not None
    assert len(joined) == sum(len(client.samples) for client in clients)
    first, second = clients
    assert isinstance(second.samples.inputs_N, Tensor)
    doubled = replace(second.samples, inputs_N=second.samples.inputs_N.double())
    assert Source([first, replace(second, samples=doubled)]).joined is None
