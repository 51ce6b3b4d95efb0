"""IWDS: class-balanced sampling that decays over the rounds (IWDS poster; Cui et al. 2019 for the weights)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from client_app.client import Client, Variant


@dataclass(frozen=True)
class Resampling(Variant):
    """Draw sample i of class y with probability proportional to (1 - beta_t) / (1 - beta_t^N_y).

    beta_t = beta_m + (beta_0 - beta_m) rho^t with t = round - 1: from nearly class-balanced towards uniform. Draws are
    with replacement, as many an epoch as the client has samples. There is no identity setting: with beta = 0 all
    weights are 1, which draws uniformly with replacement.
    """

    name: ClassVar[str] = "resampling"

    beta_start: Annotated[float, Ge(0), Le(1)] = 0.9999
    """beta_0, in the first round."""
    beta_end: Annotated[float, Ge(0), Le(1)] = 0.8
    """beta_m, the limit of beta_t."""
    decay: Annotated[float, Ge(0), Le(1)] = 0.992
    """rho: factor on beta_t - beta_m per round; 1 keeps beta_0."""

    def validate(self) -> None:
        has_effect = self.decay < 1 or self.is_default("beta_end")
        self.require(has_effect, "beta_end", "has no effect with decay = 1")
        is_usual = self.decay == 1 or self.is_default("decay")
        has_effect = is_usual or self.beta_start != self.beta_end
        self.require(has_effect, "decay", "has no effect with beta-start = beta-end")

    def beta(self, round: int) -> float:
        """Return beta_t of `round` (1-based)."""
        return self.beta_end + (self.beta_start - self.beta_end) * self.decay ** (round - 1)

    def sample_weights(self, client: Client) -> Tensor | None:
        """Return (N,) float64 weights."""
        weights_C = class_balanced_weights(client.counts_C, self.beta(client.round))
        return weights_C[client.labels_N.cpu()]


def class_balanced_weights(counts_C: Tensor, beta: float) -> Tensor:
    """Return (C,) float64 (1 - beta) / (1 - beta^N_c); the limit beta = 1 is 1 / N_c; an absent class counts as one."""
    counts_C = counts_C.double().clamp(min=1)
    if beta in (0.0, 1.0):
        return counts_C**-beta
    logarithm = torch.log1p(torch.tensor(beta - 1.0, dtype=torch.float64))
    return (beta - 1.0) / torch.expm1(counts_C * logarithm)  # stable where beta^N is next to 1
