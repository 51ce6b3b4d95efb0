"""Small models and clients for the tests of this folder."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from client_app.client import Client, Report, Variant
from client_app.metrics import Scores, evaluate_models
from client_app.models import Classifier, build
from client_app.models.classifier import INFERENCE_BATCH
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, weighted_mean
from client_app.training import train_round
from client_app.variants import VARIANTS
from data import Samples

CLASSES = 4
SHAPE = (1, 4, 4)
FLOAT = torch.float64


def samples_of(inputs_N: Tensor, labels_N: Tensor, groups_N: Tensor | None = None) -> Samples:
    """Return samples that are normalized already."""
    return Samples(inputs_N, labels_N, torch.zeros(1), torch.ones(1), groups_N=groups_N)


def labels_of(counts_C: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(counts_C)), torch.tensor(counts_C))


def linear_model(features: int, classes: int, bias: bool = True) -> Classifier:
    """Return a linear model of float64 that starts at zero."""
    model = Classifier(nn.Flatten(), nn.Linear(features, classes, bias=bias)).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def client_of(
    model: Classifier, inputs_N: Tensor, labels_N: Tensor, classes: int = CLASSES, **fields: Any
) -> Client:
    fields.setdefault("start", copy(model.state_dict()))
    fields.setdefault("id", 0)
    return Client(
        model=model, samples=samples_of(inputs_N, labels_N), num_classes=classes, **fields
    )


def counting_client(counts_C: Sequence[int], **fields: Any) -> Client:
    """Return a client with these class counts, whose inputs are all zero."""
    labels_N = labels_of(counts_C)
    inputs_N = torch.zeros(len(labels_N), 1, dtype=FLOAT)
    return client_of(linear_model(1, len(counts_C)), inputs_N, labels_N, len(counts_C), **fields)


def broadcast_of(variants: Sequence[Variant], clients: Sequence[Client]) -> dict[str, State]:
    """Return what the server would send: the sum of the clients' answers, CReFF's head, SCAFFOLD's first c, weights."""
    sent: dict[str, State] = {}
    for variant in variants:
        if variant.upload.is_answer and variant.upload.returned:
            answers = [variant.answer(client) for client in clients]
            sent[variant.name] = {
                "counts": torch.stack([answer["counts"] for answer in answers]).sum(0)
            }
    parameters = clients[0].model.named_parameters()
    sent["control-variates"] = {
        name: torch.zeros_like(weight.detach()) for name, weight in parameters
    }
    head = clients[0].model.head
    sent["class-weights"] = {"weights": 1 + torch.arange(head.out_features) / 2}
    generator = torch.Generator().manual_seed(17)
    sent["feature-gradients"] = sent["augmented-gradients"] = {
        "weight": torch.randn(head.weight.shape, generator=generator),
        "bias": torch.randn(head.out_features, generator=generator),
    }
    return sent


def small_client(
    counts_C: Sequence[int] = (5, 3, 2, 1), seed: int = 1, model: str = "mlp-bn", **fields: Any
) -> Client:
    """Return a client with random 4x4 images."""
    labels_N = labels_of(counts_C)
    inputs_N = torch.randn(len(labels_N), *SHAPE, generator=torch.Generator().manual_seed(seed))
    fields.setdefault("seed", seed)
    # The sum that goes with the question of balanced-statistics.
    fields.setdefault("broadcast", {"label-counts": {"counts": torch.tensor(counts_C)}})
    return client_of(
        build(model, SHAPE, len(counts_C), 0), inputs_N, labels_N, len(counts_C), **fields
    )


def all_variants() -> list[Variant]:
    return [variant() for variant in VARIANTS.values()]


def train_rounds(
    variants: Sequence[Variant],
    counts_KC: Sequence[Sequence[int]],
    settings: TrainingSettings,
    rounds: int = 2,
) -> tuple[dict[str, Tensor], list[Report]]:
    """Play rounds of a federation as the server would; return the average and the last round's reports."""
    clients = [small_client(counts, seed=k + 1) for k, counts in enumerate(counts_KC)]
    model, initial = clients[0].model, clients[0].start
    private = frozenset().union(*(variant.private_names(model) for variant in variants))
    shared = {name: tensor for name, tensor in initial.items() if name not in private}
    broadcast = broadcast_of(variants, clients)
    memories: list[Mapping[str, State]] = [{} for _ in clients]
    for round in range(1, rounds + 1):
        reports = []
        for client, memory in zip(clients, memories, strict=True):
            received = {"round": round, "start": copy(shared), "broadcast": broadcast}
            client = replace(client, **received, memory=memory)
            client.model.load_state_dict({**initial, **shared, **memory.get("private", {})})
            reports.append(train_round(client, variants, settings))
        memories = [report.memory for report in reports]
        examples = [report.examples for report in reports]
        shared = dict(weighted_mean([report.shared for report in reports], examples))
    return shared, reports


class Echo(nn.Module):
    """Features are the inputs; counts its passes, which must be in eval mode and without gradient."""

    passes = 0

    def forward(self, inputs_B: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        self.passes += 1
        return inputs_B


def echo(classes: int) -> Classifier:
    """Return a model of float64 whose logits are its inputs."""
    model = Classifier(Echo(), nn.Linear(classes, classes)).double()
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(classes))
        model.head.bias.zero_()
    return model


def case(
    size: int = 203, classes: int = 5, seed: int = 0, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,), of which none is 0."""
    generator = torch.Generator().manual_seed(seed)
    logits_NC = scale * torch.randn(size, classes, dtype=FLOAT, generator=generator)
    labels_N = torch.randint(classes - 1, (size,), generator=generator) + 1
    logits_NC[torch.arange(size), labels_N] += 1
    return logits_NC, labels_N


def measured(
    logits_NC: Tensor,
    labels_N: Tensor,
    groups_N: Tensor | None = None,
    batch_size: int = 512,
    state: State | None = None,
) -> Scores:
    """Return the scores of logits, those of `state`'s head if it is given, of subjects if there are groups."""
    model = echo(logits_NC.shape[1])
    samples = samples_of(logits_NC.double(), labels_N, groups_N)
    with batches_of(batch_size):
        return evaluate_models(model, {"": state or model.state_dict()}, samples)[""]


def batches_of(size: int) -> AbstractContextManager[object]:
    """Within this context, passes without gradient go in batches of that size."""
    return mock.patch.dict(INFERENCE_BATCH, {"cpu": size})


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two states are equal to the bit, names and all."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )
