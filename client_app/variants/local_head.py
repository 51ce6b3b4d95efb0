"""FedPer: the head stays on the client, the features are shared (Arivazhagan et al. 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from client_app.client import Variant
from client_app.models.classifier import HEAD


@dataclass(frozen=True)
class LocalHead(Variant):
    """Keep the head's weight and bias on the client, average the features: w_i <- (w_features, own head).

    That is FedPer with one personalization layer, the classifier (Arivazhagan et al. 2019,
    Algorithms 1 and 2). Head and features are trained jointly. All heads start from the run's
    initial weights.
    There is no identity setting: no setting makes this plain FedAvg. `test_personal_models.py`
    checks that exactly the features are sent, and that each client's head comes back bit-identical
    in the next round.
    """

    name: ClassVar[str] = "local-head"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights", "own-head"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return frozenset(name for name in model.state_dict() if name.startswith(HEAD))
