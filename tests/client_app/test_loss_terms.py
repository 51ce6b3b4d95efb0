"""How the loss is made of the hooks of several variants, with variants made up for the purpose."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from client_builders import CLASSES, SHAPE, batches_of, small_client
from torch import Tensor

from client_app.client import Client, Variant, vectorizable
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.training import Task, task_of, train_round
from client_app.variants.focal import Focal
from client_app.variants.local_parts import LocalBatchNorm

SETTINGS = TrainingSettings(local_epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)


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
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})

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


SCALE_C = torch.tensor([1.0, 0.5, 0.5, 1.0])
OFFSET_C = torch.tensor([1.0, 0.0, -1.0, 2.0])


@dataclass(frozen=True)
class Halved(Variant):
    name: ClassVar[str] = "halved"

    def logit_scale(self, client: Client) -> Tensor | None:
        return SCALE_C.double()


@dataclass(frozen=True)
class Doubled(Variant):
    name: ClassVar[str] = "doubled"

    def logit_scale(self, client: Client) -> Tensor | None:
        return torch.full((CLASSES,), 2.0)


@dataclass(frozen=True)
class Shift(Variant):
    name: ClassVar[str] = "shift"

    def logit_offset(self, client: Client) -> Tensor | None:
        return OFFSET_C.double()


def task(*variants: Variant) -> Task:
    made = task_of(small_client(), variants, SETTINGS)
    if not any("teacher" in variant.needs for variant in variants):
        return made
    return replace(made, teacher=copy(made.client.model.state_dict()))


def test_terms_are_added_after_the_weights() -> None:
    """loss = mean(w CE) + mean(term), and the term sees logits without scales and offsets."""
    made = task(Norms(0.1), MoreNorms(0.3), Focal(gamma=0.0), Halved(), Doubled(), Shift())
    client, indices_B = made.client, torch.arange(11)
    with batches_of(100):
        value = made.loss(indices_B)
    model = build("mlp-bn", SHAPE, CLASSES, 0)
    features_BD = model.features(client.samples.batch(indices_B))
    logits_BC = model.head(features_BD)
    trained_BC = logits_BC * SCALE_C * 2 + OFFSET_C
    plain_B = F.cross_entropy(trained_BC, client.labels_N, reduction="none")
    squares_B = features_BD.square().sum(1) + logits_BC.square().sum(1)
    losses_B = plain_B + (0.1 + 0.3) * (client.labels_N + 1) * squares_B / 2
    torch.testing.assert_close(value, losses_B.mean())


def test_the_teacher_is_the_model_as_received_in_eval_mode_with_private_tensors() -> None:
    client = small_client()
    seen = []

    class Looking(Teacher):
        def loss_term(self, client: Client, *batch: Tensor | None) -> Tensor:  # type: ignore[override]
            seen.append((batch[0], batch[3]))
            return super().loss_term(client, *batch)  # type: ignore[arg-type]

    client.model.features[2].running_mean += 0.5  # type: ignore[index]
    received = build("mlp-bn", SHAPE, CLASSES, 0).eval()
    received.load_state_dict(copy(client.model.state_dict()))
    train_round(client, [Looking(), LocalBatchNorm()], SETTINGS)
    assert len(seen) > 2
    for indices_B, teacher_BC in seen:
        assert torch.equal(teacher_BC, received(client.samples.batch(indices_B)).detach())


def test_the_teachers_pass_leaves_each_layers_mode_as_it_is() -> None:
    made = task(Teacher())
    model = made.client.model
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm1d)]
    norms[0].eval()  # as frozen statistics are
    made.teacher_logits(made.client.samples.batch(torch.arange(4)))
    assert model.training and not norms[0].training
