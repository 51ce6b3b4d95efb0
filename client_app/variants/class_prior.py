"""The clients' class priors, for the variants that correct them.

The prior over all clients comes from one sum of integers, so that a sum of masked integers can take its place: client i
contributes n_ik + a, in units of 2^-16, and nothing else.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, InvalidReply, Requirements, Upload, Variant
from client_app.models.classifier import Classifier
from client_app.state import State
from data import Rule

UNIT = 2**16
LARGEST = 2**45
"""Of a class, in units: half a billion samples; the sum over a hundred thousand clients still fits 64 bits."""
QUESTION = "class-counts"


@dataclass(frozen=True)
class PriorCorrection(Variant):
    """A variant that compares the client's class prior P_i with the prior P of all clients."""

    requirements: ClassVar[Requirements] = Requirements(uncorrected_prior=True)

    smoothing: Annotated[
        float, Ge(0), Rule(lambda a: (a * UNIT).is_integer(), "must be a multiple of 2^-16")
    ] = 1.0
    """Laplace constant a added to class counts, a multiple of 2^-16; 0 leaves missing classes out of the softmax."""

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-counts",
            counts_bytes,
            self.check_counts,
            once=True,
            question=QUESTION,
            of_counts=self.of_counts,
        )

    def answer(self, client: Client, question: str) -> State:
        """Return {"counts": (C,) int64}: n_ik + a in units of 2^-16."""
        if question != QUESTION:
            return {}
        smoothed_C = client.counts_C + self.smoothing
        return {"counts": (smoothed_C * UNIT).round().long()}

    def of_counts(self, total: State, clients: int) -> State:
        """Return the sum of so many clients' answers from the sum of their class counts, to the bit."""
        smoothing = round(self.smoothing * UNIT)  # whole: a is a multiple of 2^-16
        return {"counts": total["counts"] * UNIT + clients * smoothing}

    def check_counts(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the counts are of. Raises InvalidReply."""
        not_counts = InvalidReply(f"class counts are not int64 of {classes}")
        if answer.keys() != {"counts"}:
            raise not_counts
        counts_C = answer["counts"]
        if counts_C.dtype != torch.int64 or counts_C.shape != (classes,):
            raise not_counts
        if counts_C.min() < 0 or counts_C.max() > LARGEST:
            raise InvalidReply(f"class counts are not between 0 and {LARGEST}")
        total = int(counts_C.sum())
        added = classes * self.smoothing
        if samples is not None and total != (samples + added) * UNIT:
            raise InvalidReply(f"class counts are those of {total / UNIT:g}")
        return math.ceil(total / UNIT - added)

    def local_prior(self, client: Client) -> Tensor:
        """Return (C,) P_i(k) = (n_ik + a) / (n_i + aK), for the distribution the client trains on."""
        counts_C = client.drawn_C + self.smoothing
        return counts_C / counts_C.sum()

    def global_prior(self, client: Client) -> Tensor:
        """Return (C,) P(k) = sum_i (n_ik + a) / sum_i (n_i + aK), from the server's sum."""
        counts_C = client.broadcast[self.name]["counts"].double().cpu()
        return counts_C / counts_C.sum()


def counts_bytes(model: Classifier, classes_held: int) -> int:
    """Return the bytes of one int64 per class."""
    return 8 * model.head.out_features
