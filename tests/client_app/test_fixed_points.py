"""FedShift's theorems through the real training loop, on a problem whose optimum is a table.

Inputs are one-hot x in {0, 1, 2}, so a linear model is a free table f(x). P(x|y) is the same at both clients, their
class priors are swapped, and client 1 holds three times as much as client 0. All counts are whole, so the clients'
samples are distributed exactly as stated.
"""

import random
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from client_builders import FLOAT, broadcast_of, client_of, linear_model
from torch import Tensor, nn

from client_app.client import Client, Contribution, Loss, Variant, affects_training
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import weighted_mean
from client_app.training import train_round
from client_app.variants import VARIANTS
from client_app.variants.control_variates import ControlVariates
from client_app.variants.dynamic_regularization import DynamicRegularization
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.focal import Focal
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_head import LocalHead
from client_app.variants.local_model import LocalModel
from client_app.variants.local_statistics import LocalStatistics
from client_app.variants.logit_shift import LogitShift
from client_app.variants.model_contrast import ModelContrast
from client_app.variants.not_true_distillation import NotTrueDistillation
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from client_app.variants.restricted_softmax import RestrictedSoftmax

LIKELIHOOD_XC = torch.tensor([[0.5, 0.25], [0.25, 0.25], [0.25, 0.5]], dtype=FLOAT)
COUNTS_KC = [(36, 4), (12, 108)]
JOINT_XC = LIKELIHOOD_XC * torch.tensor(COUNTS_KC).double().sum(0)
POSTERIOR_XC = JOINT_XC / JOINT_XC.sum(1, keepdim=True)
SHIFT = LogitShift(smoothing=0.0)
TO_THE_END = TrainingSettings(local_steps=500, batch_size=200, learning_rate=4.0, momentum=0.9)
"""Full batches. The least curvature that is not zero is above 0.01, so heavy-ball steps at this rate shrink the error
by sqrt(0.9) each: 4e-12 after 500, far below the tolerance."""
TOLERANCE = 1e-9


def client(k: int, model: Classifier, **fields: object) -> Client:
    cells_XC = (LIKELIHOOD_XC * torch.tensor(COUNTS_KC[k])).long()
    x_N = torch.cat([torch.repeat_interleave(torch.arange(3), cells_XC[:, c]) for c in range(2)])
    y_N = torch.repeat_interleave(torch.arange(2), cells_XC.sum(0))
    assert y_N.bincount().tolist() == list(COUNTS_KC[k])
    return client_of(model, torch.eye(3, dtype=FLOAT)[x_N], y_N, 2, seed=k, **fields)


def federation(variants: list[Variant], models: list[Classifier]) -> list[Client]:
    clients = [client(k, model) for k, model in enumerate(models)]
    return [replace(member, broadcast=broadcast_of(variants, clients)) for member in clients]


def predicted(model: Classifier) -> Tensor:
    model.eval()
    with torch.no_grad():
        return torch.softmax(model(torch.eye(3, dtype=FLOAT)), dim=1)


def start_of(seed: int) -> Classifier:
    model = linear_model(3, 2)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)))
    return model


@pytest.mark.parametrize(("k", "seed"), [(0, 0), (1, 1)])
def test_every_client_alone_ends_at_the_posterior_of_all(k: int, seed: int) -> None:
    member = federation([SHIFT], [start_of(seed), start_of(seed)])[k]
    train_round(member, [SHIFT], TO_THE_END)
    assert torch.allclose(predicted(member.model), POSTERIOR_XC, atol=TOLERANCE)


@pytest.mark.parametrize("k", [0, 1])
def test_plain_training_ends_at_the_client_s_own_posterior(k: int) -> None:
    member = federation([], [start_of(0), start_of(0)])[k]
    train_round(member, [], TO_THE_END)
    own_XC = LIKELIHOOD_XC * torch.tensor(COUNTS_KC[k])
    assert torch.allclose(
        predicted(member.model), own_XC / own_XC.sum(1, keepdim=True), atol=TOLERANCE
    )
    assert (predicted(member.model) - POSTERIOR_XC).abs().max() > 0.1


@pytest.mark.parametrize(("variants", "arrives"), [([SHIFT], True), ([], False)])
def test_averaging_keeps_the_posterior_only_with_the_shift(
    variants: list[Variant], arrives: bool
) -> None:
    shared = dict(start_of(3).state_dict())
    for _ in range(2):
        models = [linear_model(3, 2), linear_model(3, 2)]
        for model in models:
            model.load_state_dict(shared)
        reports = [
            train_round(member, variants, TO_THE_END) for member in federation(variants, models)
        ]
        shared = weighted_mean([r.shared for r in reports], [r.examples for r in reports])
        average = linear_model(3, 2)
        average.load_state_dict(shared)
        error = (predicted(average) - POSTERIOR_XC).abs().max().item()
        # Plain: logits are averaged, so the prior's log-odds become (ln 9 - 3 ln 9) / 4 = -1.10, not ln(3/7) = -0.85.
        assert error < TOLERANCE if arrives else error > 0.03


@dataclass(frozen=True)
class ExpectedGradient(Variant):
    """Upload the gradient of the combined loss, expected over what training draws, at the model as received."""

    name: ClassVar[str] = "expected-gradient"

    def before(self, client: Client, loss: Loss) -> Contribution:
        share_C = client.effective_prior_C / client.counts_C.clamp(min=1)
        total = sum(
            share_C[label] * loss(torch.tensor([i]))
            for i, label in enumerate(client.labels_N.tolist())
        )
        names = dict(client.model.named_parameters())
        return Contribution(
            upload=dict(zip(names, torch.autograd.grad(total, list(names.values())), strict=True))
        )


def posterior_model(batch_norm: bool) -> Classifier:
    """Return the model whose table is ln P(y|x)."""
    model = linear_model(3, 2)
    if batch_norm:
        layer = nn.BatchNorm1d(3).double()
        layer.running_var.fill_(1 - layer.eps)  # in eval mode the layer is the identity
        model.features = nn.Sequential(nn.Flatten(), layer)
    with torch.no_grad():
        model.head.weight.copy_(POSTERIOR_XC.log().T)
    return model


COMPANIONS: list[list[Variant]] = [
    [],
    [Proximal(0.5)],
    [FeatureGradients()],
    [LocalBatchNorm()],
    [LocalStatistics()],
    [LocalHead()],
    [LocalModel()],
    [ControlVariates()],
    [ControlVariates(option="I"), Resampling()],
    [DynamicRegularization(0.5)],
    [ModelContrast()],
    [NotTrueDistillation()],
    [RestrictedSoftmax()],
    [Resampling()],
    [Resampling(beta_start=0.5, beta_end=0.5)],
    [Proximal(0.5), FeatureGradients(), LocalBatchNorm(), Resampling()],
]


def test_every_variant_is_a_companion_or_says_why_not() -> None:
    beside = {variant.name for variants in COMPANIONS for variant in variants}
    correcting = {
        name for name, variant in VARIANTS.items() if variant.requirements.uncorrected_prior
    }  # refused beside the shift
    uploading = {
        name for name, variant in VARIANTS.items() if not affects_training(variant)
    }  # training is untouched: test_variant_contract.py
    minimizing_another = {"focal", "decorrelation"}  # focal below
    two_parts = {"head-then-features"}  # of the same loss; this model has no features that train
    assert VARIANTS.keys() == beside | correcting | uploading | minimizing_another | two_parts


@pytest.mark.parametrize(
    "companions", COMPANIONS, ids=lambda variants: "+".join(v.name for v in variants) or "alone"
)
@pytest.mark.parametrize("k", [0, 1])
def test_the_posterior_is_at_rest_beside_every_companion(companions: list[Variant], k: int) -> None:
    variants = [SHIFT, *companions, ExpectedGradient()]
    random.Random(k).shuffle(variants)
    batch_norm = any(variant.requirements.batch_norm for variant in companions)
    member = federation(variants, [posterior_model(batch_norm), posterior_model(batch_norm)])[k]
    settings = TrainingSettings(local_steps=1, batch_size=200, learning_rate=1.0)
    report = train_round(member, variants, settings)
    for name, gradient in report.uploads["expected-gradient"].items():
        assert gradient.abs().max() < 1e-12, name
    samples = any(isinstance(variant, Resampling) for variant in companions)
    if (
        not samples and not batch_norm
    ):  # a full batch that is drawn, or normalized by itself, is not the expectation
        for name, tensor in report.shared.items():
            assert torch.allclose(tensor, member.start[name], atol=1e-12), name


def test_focal_loss_has_another_minimizer() -> None:
    """As its docstring says: P(y|x) is not at rest beside it, whatever the shift."""
    variants = [SHIFT, Focal(), ExpectedGradient()]
    member = federation(variants, [posterior_model(False), posterior_model(False)])[0]
    report = train_round(member, variants, TrainingSettings(local_steps=1))
    assert report.uploads["expected-gradient"]["head.weight"].abs().max() > 1e-3
    assert "not P(y|x)" in " ".join((Focal.__doc__ or "").split())


@pytest.mark.parametrize(
    "companions", COMPANIONS, ids=lambda variants: "+".join(v.name for v in variants) or "alone"
)
def test_without_the_shift_it_is_not(companions: list[Variant]) -> None:
    batch_norm = any(variant.requirements.batch_norm for variant in companions)
    variants = [*companions, ExpectedGradient()]
    member = federation(variants, [posterior_model(batch_norm), posterior_model(batch_norm)])[0]
    report = train_round(member, variants, TrainingSettings(local_steps=1))
    assert report.uploads["expected-gradient"]["head.weight"].abs().max() > 0.01


def test_the_pull_slows_the_way_but_leaves_its_end() -> None:
    """FedProx with the shift: rounds of pulled training tend to the posterior, the only point at rest."""
    shared = dict(linear_model(3, 2).state_dict())
    variants: list[Variant] = [SHIFT, Proximal(0.05)]
    errors = []
    for _ in range(30):
        models = [linear_model(3, 2), linear_model(3, 2)]
        for model in models:
            model.load_state_dict(shared)
        settings = replace(TO_THE_END, local_steps=60)
        reports = [
            train_round(member, variants, settings) for member in federation(variants, models)
        ]
        shared = weighted_mean([r.shared for r in reports], [r.examples for r in reports])
        average = linear_model(3, 2)
        average.load_state_dict(shared)
        errors.append((predicted(average) - POSTERIOR_XC).abs().max().item())
    assert errors[0] > 10 * errors[-1]
    assert errors[-1] < 1e-3
