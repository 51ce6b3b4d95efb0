"""Methods of one's own for FedSkew: what a client does differently, and how updates become a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedskew.methods import (
    Client,
    Method,
    Server,
    ServerMethod,
    State,
    Update,
    Variant,
    weighted_mean,
)


@dataclass(frozen=True)
class Tempered(Variant):
    """Weight every sample by its class's rarity at the client, to a power. Identity: power = 0."""

    name: ClassVar[str] = "rarity-weights"

    power: Annotated[float, Ge(0)] = 0.5
    """Exponent of the weights; 0 is plain training."""

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return (B,) (mean n / n_y)^power, n being the client's class counts plus one."""
        counts_C = client.counts_C + 1
        return ((counts_C.mean() / counts_C) ** self.power).to(logits_BC)[labels_B]


@dataclass(frozen=True)
class EvenMean(ServerMethod):
    """Average the clients' models, each client counting the same whatever it holds."""

    name: ClassVar[str] = "even-mean"

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        """Return the mean of the updates without weights."""
        return weighted_mean([update.shared for update in updates], [1.0] * len(updates)), {}


TEMPERED = Method(
    "tempered",
    "samples weighted by their class's rarity",
    "made up",
    "nothing",
    ("rarity-weights",),
    parts=(Tempered,),
)
