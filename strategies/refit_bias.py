"""Refit bias: the head's bias, so that all classes are predicted equally often."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from client_app.state import State
from client_app.variants.class_predictions import ROUNDING
from strategies.core.server import Deployment, Server, ServerMethod
from strategies.core.validation import RejectedUpdate, check_by_class

SMALLEST = 1e-300
"""Stands for a probability that is 0, whose logarithm there is none of."""


@dataclass(frozen=True)
class RefitBias(ServerMethod):
    """After the last round, deploy the average with another bias of its head: C numbers.

    The best bias for classes that count the same minimizes the balanced cross-entropy, and then the classes' mean
    predicted probabilities are all alike. One question is enough to come near to it: with P_cj, the mean probability
    of class j for the samples of class c at all clients, a Sinkhorn iteration (Sinkhorn and Knopp, 1967) finds b with

        sum_c P_cj exp(b_j) / sum_i P_ci exp(b_i) = 1   for every class j held,

    where each class stands as one sample with the probabilities P_c. One step, b_j = -log sum_c P_cj, is the first of
    the exact problem (generalized iterative scaling: Darroch and Ratcliff, 1972). The bias of a class that no client
    holds stays as it is, and the others' are those of a model without this class. Identity: steps = 0 deploys the
    average.
    """

    name: ClassVar[str] = "refit-bias"
    final_question: ClassVar[str] = "class-predictions"
    needs_whole_model: ClassVar[bool] = True

    steps: Annotated[int, Ge(0), Le(10_000)] = 100
    """Steps of the iteration; a few are enough for ten classes."""

    def accepts(self, server: Server, upload: State) -> None:
        """Accept classes and counts (n,) int64 and probabilities (n, C) float64, each row with sum 1."""
        classes = server.model.head.out_features
        rows = {"counts": ((), torch.int64), "probabilities": ((classes,), torch.float64)}
        check_by_class(upload, classes, rows)
        counts = upload["counts"]
        if (counts < 1).any():
            raise RejectedUpdate(f"counts are {counts.tolist()}, not all positive")
        probabilities_nC = upload["probabilities"]
        if (probabilities_nC < 0).any():
            raise RejectedUpdate("a probability is negative")
        off_n = (probabilities_nC.sum(1) - 1).abs()
        if (off_n > ROUNDING).any():
            raise RejectedUpdate(
                f"probabilities of a class differ from a sum of 1 by {float(off_n.max()):g}"
            )

    def deploy_finally(
        self,
        server: Server,
        state: State,
        shared: State,
        answers: Mapping[int, State],
    ) -> Deployment:
        if not self.steps:  # adding 0 would make +0.0 of a bias of -0.0
            return Deployment({self.name: shared}, state)
        held_h, probabilities_hC = pooled(answers.values(), len(shared["head.bias"]))
        change_C = balancing_bias(probabilities_hC, held_h, self.steps)
        bias = shared["head.bias"]
        refit = {**shared, "head.bias": bias + change_C.to(bias)}
        return Deployment({self.name: refit}, state)


def pooled(answers: Collection[State], classes: int) -> tuple[Tensor, Tensor]:
    """Return the classes that any client holds (h,), and each one's mean probabilities over all clients (h, C)."""
    counts_C = torch.zeros(classes, dtype=torch.float64)
    sums_CC = torch.zeros(classes, classes, dtype=torch.float64)
    for answer in answers:
        classes_n = answer["classes"]
        counts_n = answer["counts"].double()
        counts_C[classes_n] += counts_n
        sums_CC[classes_n] += counts_n[:, None] * answer["probabilities"]
    held_h = counts_C.nonzero().flatten()
    return held_h, sums_CC[held_h] / counts_C[held_h, None]


def balancing_bias(probabilities_hC: Tensor, held_h: Tensor, steps: int) -> Tensor:
    """Return (C,) what to add to the head's bias: mean 0 over the classes held, and 0 for the others.

    Args:
        probabilities_hC: (h, C) mean probabilities of the samples of each class held.
        held_h: the numbers of these classes.
        steps: of the iteration.
    """
    bias_C = probabilities_hC.new_zeros(probabilities_hC.shape[1])
    if not len(held_h):
        return bias_C
    # A class that nobody holds has no samples: only the classes held are balanced, among themselves.
    log_hh = probabilities_hC[:, held_h].clamp(min=SMALLEST).log()
    bias_h = log_hh.new_zeros(len(held_h))
    for _ in range(steps):
        predicted_h = (log_hh + bias_h).softmax(1).sum(0)
        bias_h -= predicted_h.clamp(min=SMALLEST).log()
    bias_C[held_h] = bias_h - bias_h.mean()
    return bias_C
