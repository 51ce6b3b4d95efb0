"""SingleSet: every client trains a model of its own (the lower bar in Li et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from client_app.client import Variant


@dataclass(frozen=True)
class LocalModel(Variant):
    """Keep the whole model for ever: nothing is sent, and the clients are separate trainings from one common start.

    There is no identity setting: a test holds that every client's model is the one it trains alone, to the bit.
    """

    name: ClassVar[str] = "local-model"
    needs: ClassVar[frozenset[str]] = frozenset({"separate-models"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return frozenset(model.state_dict())
