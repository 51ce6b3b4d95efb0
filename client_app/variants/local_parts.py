"""Parts of the model that stay on the client.

Batch norm, all of it (FedBN, Li et al. 2021) or its statistics (SiloBN, Andreux et al. 2020); the head (FedPer,
Arivazhagan et al. 2019, and FedRep, Collins et al. 2021); or the whole model (SingleSet, the lower bar in Li et al.
2021).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import nn

from client_app.client import Variant
from client_app.models.classifier import HEAD, batch_norm_names


@dataclass(frozen=True)
class LocalBatchNorm(Variant):
    """Keep everything a batch-norm layer owns (weight, bias, running mean and variance, counter).

    Layers are found by type, not by name. There is no identity setting: a test holds that the names sent are exactly
    the others, and that the kept tensors come back bit by bit.
    """

    name: ClassVar[str] = "local-batch-norm"
    needs: ClassVar[frozenset[str]] = frozenset({"batch-norm", "shared-weights"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return batch_norm_names(model)


@dataclass(frozen=True)
class LocalStatistics(Variant):
    """Keep running mean, running variance and counter of every batch-norm layer; weight and bias are shared.

    Layers are found by type, not by name. There is no identity setting. A test checks instead that the names sent are
    exactly the model's parameters, and that the kept tensors come back bit by bit.
    """

    name: ClassVar[str] = "local-statistics"
    needs: ClassVar[frozenset[str]] = frozenset({"batch-norm", "shared-weights"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return batch_norm_names(model) & {name for name, _ in model.named_buffers()}


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


@dataclass(frozen=True)
class HeadThenFeatures(LocalHead):
    """Keep the head; train it for head-epochs under the features as received, then the features under that head.

    h_i <- descent of L_i(phi, h) in h with phi = phi^t, then phi_i <- descent of L_i(phi, h_i) in phi for the round's
    epochs or steps, and the features alone are averaged (Collins et al., ICML 2021, Algorithm 1). The optimizer starts
    anew for the features. Batch norm normalizes by the batch in both parts, and its statistics move in both. Steps and
    training loss of a round are those of the features. Clients train one by one.
    There is no identity setting: a test compares both parts with torch's own SGD.
    """

    name: ClassVar[str] = "head-then-features"

    head_epochs: Annotated[int, Ge(1)] = 10
    """Passes over the client's data that train the head before the features train; the paper's number."""

    @property
    def head_first(self) -> int:
        return self.head_epochs


@dataclass(frozen=True)
class LocalModel(Variant):
    """Keep the whole model for ever: nothing is sent, and the clients are separate trainings from one common start.

    There is no identity setting: a test holds that every client's model is the one it trains alone, to the bit.
    """

    name: ClassVar[str] = "local-model"
    needs: ClassVar[frozenset[str]] = frozenset({"separate-models"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return frozenset(model.state_dict())
