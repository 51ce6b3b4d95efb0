"""The clients' class priors, for the variants that correct them, and reweighting by them (FedShift paper, Table 1).

The prior over all clients comes from one sum of integers, so that a sum of masked integers can take its place: client i
contributes n_ik + a, in units of 2^-16, and nothing else.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from client_app.client import (
    Client,
    InvalidReply,
    TensorSpec,
    Upload,
    Variant,
    integers,
    vectorizable,
)
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

    needs: ClassVar[frozenset[str]] = frozenset({"uncorrected-prior"})

    smoothing: Annotated[
        float, Ge(0), Rule(lambda a: (a * UNIT).is_integer(), "must be a multiple of 2^-16")
    ] = 1.0
    """Laplace constant a added to class counts, a multiple of 2^-16; 0 leaves missing classes out of the softmax."""

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-counts",
            self.tensors,
            validate=self.check_counts,
            question=QUESTION,
            of_counts=self.of_counts,
        )

    def answer(self, client: Client) -> State:
        """Return {"counts": (C,) int64}: n_ik + a in units of 2^-16."""
        return self.of_counts({"counts": client.counts_C.long()}, clients=1)

    def of_counts(self, total: State, clients: int) -> State:
        """Return the sum of so many clients' answers from the sum of their class counts, to the bit."""
        smoothing = round(self.smoothing * UNIT)  # whole: a is a multiple of 2^-16
        return {"counts": total["counts"] * UNIT + clients * smoothing}

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an answer must be."""
        return {"counts": integers(model.head.out_features, low=0, high=LARGEST)}

    def check_counts(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the counts are of. Raises InvalidReply."""
        total = int(answer["counts"].sum())
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


@dataclass(frozen=True)
class Reweighting(PriorCorrection):
    """Weight every sample's cross-entropy by P(y) / P_i(y).

    The mean over the batch is not divided by the weights' sum: that is the importance-sampling estimator of the loss
    under P. Identity: a client whose prior is the global one.
    """

    name: ClassVar[str] = "reweighting"

    @vectorizable
    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        weights_C = self.global_prior(client) / self.local_prior(client)  # w_ik = P(k) / P_i(k)
        return weights_C.to(logits_BC)[labels_B]
