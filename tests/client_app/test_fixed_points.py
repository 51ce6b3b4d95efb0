"""FedShift's theorems through the real training loop, on a problem whose optimum is a table.

Inputs are one-hot x in {0, 1, 2}, so a linear model is a free table f(x). P(x|y) is the same at both clients, their
class priors are swapped, and client 1 holds three times as much as client 0. All counts are whole, so the clients'
samples are distributed exactly as stated.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from client_builders import FLOAT, broadcast_of, client_of, linear_model
from torch import nn

from client_app.client import Client, Contribution, Loss, Variant, affects_training
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from client_app.variants import VARIANTS
from client_app.variants.logit_shift import LogitShift

LIKELIHOOD_XC = torch.tensor([[0.5, 0.25], [0.25, 0.25], [0.25, 0.5]], dtype=FLOAT)
COUNTS_KC = [(36, 4), (12, 108)]
JOINT_XC = LIKELIHOOD_XC * torch.tensor(COUNTS_KC).double().sum(0)
POSTERIOR_XC = JOINT_XC / JOINT_XC.sum(1, keepdim=True)
SHIFT = LogitShift(smoothing=0.0)


def client(k: int, model: Classifier, **fields: object) -> Client:
    cells_XC = (LIKELIHOOD_XC * torch.tensor(COUNTS_KC[k])).long()
    x_N = torch.cat([torch.repeat_interleave(torch.arange(3), cells_XC[:, c]) for c in range(2)])
    y_N = torch.repeat_interleave(torch.arange(2), cells_XC.sum(0))
    return client_of(model, torch.eye(3, dtype=FLOAT)[x_N], y_N, 2, seed=k, **fields)


def federation(variants: list[Variant], models: list[Classifier]) -> list[Client]:
    clients = [client(k, model) for k, model in enumerate(models)]
    return [replace(member, broadcast=broadcast_of(variants, clients)) for member in clients]


@dataclass(frozen=True)
class ExpectedGradient(Variant):
    """Upload the gradient of the combined loss, expected over what training draws, at the model as received."""

    name: ClassVar[str] = "expected-gradient"

    def before(self, client: Client, loss: Loss) -> Contribution:
        total = torch.zeros((), dtype=FLOAT)
        for label, share in enumerate(client.effective_prior_C):
            if share:
                members = (client.labels_N == label).nonzero().flatten()
                total = total + share * loss(members)
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


COMPANIONS = {
    name: variant
    for name, variant in VARIANTS.items()
    if affects_training(variant) and "uncorrected-prior" not in variant.needs
}
"""Variants that change training and are not refused beside the shift, as those that correct the prior are."""
TWO_PARTS = "head-then-features"
"""Of the same loss; the model here has no features that train."""
ANOTHER_MINIMIZER = {"focal", "decorrelation"}
"""Decorrelation's is of the features, which a table does not have."""
BESIDE = [name for name in COMPANIONS if name not in {TWO_PARTS, *ANOTHER_MINIMIZER}]


def gradient_beside(variants: list[Variant], k: int) -> float:
    """Return the largest expected slope at the posterior, with ExpectedGradient beside the variants."""
    batch_norm = any("batch-norm" in variant.needs for variant in variants)
    variants = [*variants, ExpectedGradient()]
    member = federation(variants, [posterior_model(batch_norm) for _ in range(2)])[k]
    settings = TrainingSettings(local_steps=1, batch_size=200, learning_rate=1.0)
    slopes = train_round(member, variants, settings).uploads["expected-gradient"]
    return max(float(slope.abs().max()) for slope in slopes.values())


@pytest.mark.parametrize("name", BESIDE)
def test_the_posterior_is_at_rest_beside_every_companion_and_without_the_shift_it_is_not(
    name: str,
) -> None:
    companion = VARIANTS[name]()
    assert gradient_beside([SHIFT, companion], 0) < 1e-12
    assert gradient_beside([SHIFT, companion], 1) < 1e-12
    assert gradient_beside([companion], 0) > 0.01
