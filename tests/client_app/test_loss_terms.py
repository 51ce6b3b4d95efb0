"""The hooks `loss_term`, `labels` and `logit_scale`, with variants made up for the purpose."""

from dataclasses import dataclass, replace
from typing import ClassVar
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from client_builders import CLASSES, SHAPE, batches_of, same, small_client, train_rounds
from test_vectorized import SETTINGS as STACKED
from test_vectorized import alone, assert_alike, clients_of, together
from torch import Tensor

from client_app.client import Client, Contribution, Loss, Requirements, Variant, vectorizable
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.state import copy, digest
from client_app.training import Task, task_of, train_round
from client_app.variants.class_weights import ClassWeights
from client_app.variants.control_variates import ControlVariates
from client_app.variants.focal import Focal
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.logit_shift import LogitShift
from client_app.vectorized import obstacle
from data import SettingError
from server_app.composition import compose
from server_app.methods import METHODS, Method
from server_app.settings import parse

SETTINGS = TrainingSettings(local_epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
COUNTS = [(8, 4, 2, 1), (1, 2, 4, 8)]


@dataclass(frozen=True)
class Norms(Variant):
    """Half the squared norm of features and logits, times the number of the label."""

    name: ClassVar[str] = "norms"
    scale: float = 0.1

    @vectorizable
    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        squares_B = features_BD.square().sum(1) + logits_BC.square().sum(1)
        return self.scale * (client.labels_N[indices_B] + 1) * squares_B / 2


@dataclass(frozen=True)
class MoreNorms(Norms):
    name: ClassVar[str] = "more-norms"


@dataclass(frozen=True)
class Teacher(Variant):
    """The squared distance of the logits from the teacher's."""

    name: ClassVar[str] = "teacher"
    requirements: ClassVar[Requirements] = Requirements(teacher=True)

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        assert teacher_BC is not None and not teacher_BC.requires_grad
        return (logits_BC - teacher_BC).square().sum(1)


@dataclass(frozen=True)
class Prepared(Variant):
    """A number for each sample, made before training."""

    name: ClassVar[str] = "prepared"

    def before(self, client: Client, loss: Loss) -> Contribution:
        return Contribution(prepared={"factors": client.labels_N / 10})

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        return client.prepared[self.name]["factors"][indices_B] * features_BD.square().sum(1)


@dataclass(frozen=True)
class Smoothed(Variant):
    """Labels with a share of all classes."""

    name: ClassVar[str] = "smoothed"
    share: float = 0.2

    def labels(self, client: Client) -> Tensor | None:
        one_hot_NC = F.one_hot(client.labels_N, client.num_classes)
        return (1 - self.share) * one_hot_NC + self.share / client.num_classes


@dataclass(frozen=True)
class NextLabel(Variant):
    name: ClassVar[str] = "next-label"

    def labels(self, client: Client) -> Tensor | None:
        return (client.labels_N + 1) % client.num_classes


@dataclass(frozen=True)
class Halved(Variant):
    name: ClassVar[str] = "halved"

    def logit_scale(self, client: Client) -> Tensor | None:
        return torch.tensor([1.0, 0.5, 0.5, 1.0], dtype=torch.float64)


def task(*variants: Variant, **fields: object) -> Task:
    client = small_client(**fields)
    return task_of(client, variants, SETTINGS).with_teacher()


def logits_of(client: Client) -> Tensor:
    return client.model(client.samples.batch(torch.arange(len(client.samples))))


def test_terms_are_added_after_the_weights() -> None:
    """loss = mean(w CE) + mean(term), and the term sees logits without offsets."""
    made = task(Norms(0.1), MoreNorms(0.3), Focal(alpha=2.0, gamma=0.0), Halved())
    client, indices_B = made.client, torch.arange(len(made.client.samples))
    with batches_of(100):
        value = made.loss(indices_B)
    model = replace(client, model=build("mlp-bn", SHAPE, CLASSES, 0)).model
    inputs_B = client.samples.batch(indices_B)
    features_BD = model.features(inputs_B)
    logits_BC = model.head(features_BD)
    scaled_BC = logits_BC * torch.tensor([1.0, 0.5, 0.5, 1.0])
    plain_B = 2.0 * F.cross_entropy(scaled_BC, client.labels_N, reduction="none")
    squares_B = features_BD.square().sum(1) + logits_BC.square().sum(1)
    term_B = (0.1 + 0.3) * (client.labels_N + 1) * squares_B / 2
    torch.testing.assert_close(value, (plain_B + term_B).mean())


@dataclass(frozen=True)
class Margins(Variant):
    """Margins between pairs of classes: a row of numbers for each label."""

    name: ClassVar[str] = "margins"

    def logit_offset(self, client: Client) -> Tensor | None:
        return torch.arange(16.0, dtype=torch.float64).reshape(4, 4)


@dataclass(frozen=True)
class Shift(Variant):
    name: ClassVar[str] = "shift"

    def logit_offset(self, client: Client) -> Tensor | None:
        return torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=torch.float64)


def test_an_offset_may_have_a_row_for_each_label() -> None:
    logits_BC = torch.tensor([[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, 0.0, -3.0]])
    for labels in ([3, 1], [0, 0], [2, 3]):
        labels_B = torch.tensor(labels)
        rows_BC = torch.stack([torch.arange(4.0) + 4 * label for label in labels])
        expected_B = F.cross_entropy(logits_BC + rows_BC, labels_B, reduction="none")
        torch.testing.assert_close(task(Margins()).losses(logits_BC, labels_B), expected_B)
        both_BC = logits_BC + rows_BC + torch.tensor([1.0, 0.0, -1.0, 2.0])
        expected_B = F.cross_entropy(both_BC, labels_B, reduction="none")
        torch.testing.assert_close(task(Shift(), Margins()).losses(logits_BC, labels_B), expected_B)


def test_a_term_of_nothing_is_plain_training_to_the_bit() -> None:
    assert same(
        train_rounds([Norms(0.0)], COUNTS, SETTINGS)[0], train_rounds([], COUNTS, SETTINGS)[0]
    )
    assert not same(
        train_rounds([Norms()], COUNTS, SETTINGS)[0], train_rounds([], COUNTS, SETTINGS)[0]
    )


def test_terms_are_the_same_in_any_order() -> None:
    variants: list[Variant] = [Norms(), Teacher(), Prepared(), Smoothed(), LogitShift()]
    shared = train_rounds(variants, COUNTS, SETTINGS)[0]
    assert same(shared, train_rounds(variants[::-1], COUNTS, SETTINGS)[0])


def test_the_teacher_is_the_model_as_received_in_eval_mode_with_private_tensors() -> None:
    client = small_client()
    seen = []

    class Looking(Teacher):
        def loss_term(self, client: Client, *batch: Tensor | None) -> Tensor:  # type: ignore[override]
            assert client.model.training
            seen.append((batch[0], batch[3]))
            return super().loss_term(client, *batch)  # type: ignore[arg-type]

    for module in client.model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean += 0.5  # type: ignore[operator]
    received = build("mlp-bn", SHAPE, CLASSES, 0)
    received.load_state_dict(copy(client.model.state_dict()))
    received.eval()
    train_round(client, [Looking(), LocalBatchNorm()], SETTINGS)
    assert len(seen) > 2
    for indices_B, teacher_BC in seen:
        expected_BC = received(client.samples.batch(indices_B))
        assert torch.equal(teacher_BC, expected_BC.detach())


def test_the_teacher_leaves_the_modes_of_a_single_example_alone() -> None:
    shared, reports = train_rounds([Teacher()], [(0, 1, 0, 0), (3, 2, 2, 0)], SETTINGS)
    assert all(torch.isfinite(tensor).all() for tensor in shared.values())
    assert reports[0].loss < float("inf")


def test_the_teacher_runs_only_when_a_variant_asks_for_it() -> None:
    with mock.patch.object(Task, "teacher_logits", autospec=True) as teacher:
        teacher.side_effect = lambda self, inputs_B: torch.zeros(len(inputs_B), CLASSES)
        train_round(small_client(), [Norms()], SETTINGS)
        assert teacher.call_count == 0
        report = train_round(small_client(), [Teacher(), Norms()], SETTINGS)
        assert teacher.call_count == report.trained.steps


def test_an_option_that_uses_the_loss_before_training_has_the_teacher_too() -> None:
    shared, _ = train_rounds([Teacher(), ControlVariates(option="I")], COUNTS, SETTINGS)
    assert all(torch.isfinite(tensor).all() for tensor in shared.values())


def test_what_is_prepared_is_neither_sent_nor_kept() -> None:
    report = train_round(small_client(), [Prepared()], SETTINGS)
    assert not report.uploads and not report.memory


def test_soft_labels_and_other_labels() -> None:
    for variant in (Smoothed(), NextLabel()):
        made = task(variant)
        value = made.loss(torch.arange(len(made.client.samples)))
        client = small_client()
        targets = variant.labels(client)
        assert targets is not None
        torch.testing.assert_close(value, F.cross_entropy(logits_of(client), targets))


def test_other_hooks_see_the_samples_own_labels() -> None:
    client = small_client(broadcast={"class-weights": {"weights": torch.tensor([1.0, 2, 3, 4])}})
    made = task_of(client, [NextLabel(), ClassWeights()], SETTINGS)
    logits_BC, labels_B = torch.zeros(4, CLASSES), torch.arange(4)
    losses_B = made.losses(logits_BC, labels_B, (labels_B + 1) % 4)
    expected_B = (1.0 + torch.arange(4)) * torch.log(torch.tensor(4.0))
    torch.testing.assert_close(losses_B, expected_B)


def test_two_that_change_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="next-label and smoothed both want to change the labels"):
        train_round(small_client(), [Smoothed(), NextLabel()], SETTINGS)
    train_round(small_client(), [Smoothed()], SETTINGS)
    methods = {
        kind.name: Method(kind.name, "", "", "nothing", (kind.name,))
        for kind in (Smoothed, NextLabel)
    }
    with (
        mock.patch.dict(METHODS, methods),
        mock.patch.dict("client_app.variants.VARIANTS", {k.name: k for k in (Smoothed, NextLabel)}),
    ):
        with pytest.raises(
            SettingError,
            match=r"(next-label and smoothed|smoothed and next-label) want to change the labels, and one can",
        ):
            compose("smoothed+next-label")
        assert compose("smoothed+fedshift").variants == ("logit-shift", "smoothed")


def test_a_pure_term_trains_together_as_one_by_one() -> None:
    for variants in ([Norms()], [Norms(), MoreNorms(0.2), Halved()]):
        for model in ("small-cnn", "mlp-bn"):
            clients = clients_of(variants, model)
            assert_alike(
                together(clients, variants, STACKED),
                [alone(client, variants, STACKED) for client in clients],
            )


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        (Teacher(), "teacher asks for the logits of a second model, the one received"),
        (Smoothed(), "smoothed changes the labels"),
        (Prepared(), "prepared does not say that it can (@vectorizable at loss_term)"),
    ],
)
def test_what_vmap_cannot_map_is_named(variant: Variant, words: str) -> None:
    model = build("small-cnn", SHAPE, CLASSES, 0)
    assert obstacle(model, SHAPE, [variant]) == words
    assert obstacle(model, SHAPE, [Norms()]) == ""


def test_features_of_another_state_leave_the_model_alone() -> None:
    client, other = small_client(), build("mlp-bn", SHAPE, CLASSES, 5)
    before = digest([client.model.state_dict()])
    features_ND = client.features(other.state_dict())
    assert torch.equal(features_ND, replace(client, model=other).features())
    assert digest([client.model.state_dict()]) == before and client.model.training
    assert not torch.equal(features_ND, client.features())


def test_a_teacher_beside_clients_per_pass_is_refused_by_key() -> None:
    method = Method("teacher", "", "", "nothing", ("teacher",))
    with (
        mock.patch.dict(METHODS, {"teacher": method}),
        mock.patch.dict("client_app.variants.VARIANTS", {"teacher": Teacher}),
    ):
        config = {"dataset": "digits", "method": "teacher"}
        with pytest.raises(SettingError, match=r"^clients-per-pass = 2: does not go with teacher"):
            parse({**config, "clients-per-pass": 2})
        assert parse(config).training.clients_per_pass == 1
