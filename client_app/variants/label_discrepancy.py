"""FedDisco's client side: how far a client's classes are from equal shares (Ye et al. 2023)."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from client_app.client import Client, InvalidReply, Upload, Variant
from client_app.models.classifier import Classifier
from client_app.state import State
from data import OneOf

UNIT = 2**32
"""A discrepancy of 1, in the integers that answers are made of."""


@dataclass(frozen=True)
class LabelDiscrepancy(Variant):
    """Answer, before round 1, with d_i, the distance between the client's class shares and equal ones.

    kl: sum_c P_i(c) ln(C P_i(c)). l2: sqrt(sum_c (P_i(c) - 1 / C)^2). The server learns one number of each client and
    no class counts (Ye et al., ICML 2023; the authors' code reads the counts). Nothing else changes: training is the
    plain one to the bit.
    """

    name: ClassVar[str] = "label-discrepancy"

    measure: Annotated[str, OneOf("kl", "l2")] = "kl"
    """The distance: the Kullback-Leibler divergence to equal shares, or the Euclidean distance."""

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-counts",
            one_number,
            self.check_number,
            once=True,
            question=self.name,
            shapes=shapes,
            by_client=True,
            returned=False,
        )

    def answer(self, client: Client, question: str) -> State:
        """Return {"discrepancy": (1,) int64}: d_i in units of 2^-32."""
        if question != self.name:
            return {}
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

    def check_number(self, answer: State, classes: int, samples: int | None) -> int:
        """Return 0: the answer covers no samples. Raises InvalidReply for a number that no class shares have."""
        most = math.log(classes) if self.measure == "kl" else math.sqrt(1 - 1 / classes)
        number = int(answer["discrepancy"])
        if not 0 <= number <= math.ceil(most * UNIT):
            raise InvalidReply(
                f"discrepancy is {number / UNIT:g}, and at most {most:g} is possible"
            )
        return 0


def one_number(model: Classifier, classes_held: int) -> int:
    """Return the bytes of one int64."""
    return 8


def shapes(model: Classifier) -> dict[str, tuple[int, ...]]:
    """Return the shape of an answer."""
    return {"discrepancy": (1,)}
