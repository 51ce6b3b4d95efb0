"""FedDisco: weights that count a client's samples and how equal its classes are (Ye et al. 2023)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedskew.methods import (
    Classifier,
    Client,
    Method,
    OneOf,
    Server,
    ServerMethod,
    State,
    TensorSpec,
    Update,
    Upload,
    Variant,
    integers,
    weighted_mean,
)

UNIT = 2**32
"""A discrepancy of 1, in the integers that answers are made of."""


@dataclass(frozen=True)
class LabelDiscrepancy(Variant):
    """Answer, before round 1, with d_i, the distance between the client's class shares and equal ones.

    kl: sum_c P_i(c) ln(C P_i(c)). l2: sqrt(sum_c (P_i(c) - 1 / C)^2). The server learns one number of each client and
    no class counts (the authors' code reads the counts). Nothing else changes: training is the plain one to the bit.
    """

    name: ClassVar[str] = "label-discrepancy"

    measure: Annotated[str, OneOf("kl", "l2")] = "kl"
    """The distance: the Kullback-Leibler divergence to equal shares, or the Euclidean distance."""

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-counts",
            self.tensors,
            question=self.name,
            by_client=True,
            returned=False,
        )

    def answer(self, client: Client) -> State:
        """Return {"discrepancy": (1,) int64}: d_i in units of 2^-32."""
        distance = self.distance(client.counts_C / len(client.samples))
        return {"discrepancy": torch.tensor([round(distance * UNIT)])}

    def distance(self, shares_C: Tensor) -> float:
        """Return d of (C,) float64 class shares."""
        classes = len(shares_C)
        if self.measure == "l2":
            differences_C = shares_C - 1 / classes
            return float(differences_C.square().sum().sqrt())
        terms_C = torch.special.xlogy(shares_C, shares_C * classes)
        return float(terms_C.sum())

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an answer must be: a number that class shares can have."""
        classes = model.head.out_features
        most = math.log(classes) if self.measure == "kl" else math.sqrt(1 - 1 / classes)
        return {"discrepancy": integers(1, low=0, high=math.ceil(most * UNIT))}


@dataclass(frozen=True)
class FedDisco(ServerMethod):
    """w <- sum_i p_i w_i with p_i proportional to max(0, n_i - a d_i + b).

    n_i = |D_i| / sum over the participants, d_i the client's discrepancy (Ye et al., ICML 2023). Of the kl
    measure d_i is divided by the participants' sum, as in the authors' code. Where no weight is positive, p_i = n_i.
    """

    name: ClassVar[str] = "feddisco"

    a: Annotated[float, Ge(0)] = 0.5
    """Strength of the discrepancy."""
    b: Annotated[float, Ge(0)] = 0.1
    """Added to every weight."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        examples = [update.examples for update in updates]
        shared = [update.shared for update in updates]
        total = sum(examples)
        weights = [
            max(0.0, count / total - self.a * distance + self.b)
            for count, distance in zip(examples, discrepancies(server, updates), strict=True)
        ]
        if not any(weights):
            return weighted_mean(shared, examples), state
        return weighted_mean(shared, weights), state


def discrepancies(server: Server, updates: Sequence[Update]) -> list[float]:
    """Return d_i of every update's client."""
    asked = server.variants[LabelDiscrepancy.name]
    assert isinstance(asked, LabelDiscrepancy)
    numbers_K1 = server.answers[asked.name]["discrepancy"]
    distances = [int(numbers_K1[update.client]) / UNIT for update in updates]
    total = sum(distances)
    if asked.measure != "kl" or not total:
        return distances
    return [distance / total for distance in distances]


FEDDISCO = Method(
    "feddisco",
    "weights that also count how equal a client's classes are",
    "Ye et al., ICML 2023",
    "the distance of its class shares from equal ones, once",
    (LabelDiscrepancy.name,),
    combine=FedDisco.name,
    parts=(LabelDiscrepancy, FedDisco),
)
