"""CReFF's client side: the gradient of the re-trained head, averaged over each class (Shang et al. 2022, Eq. 3)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import (
    Client,
    Contribution,
    Loss,
    TensorSpec,
    Upload,
    Variant,
)
from client_app.models.classifier import Classifier
from client_app.state import State


@dataclass(frozen=True)
class FeatureGradients(Variant):
    """Send g_c = mean over the client's class-c samples of dCE/d(head weight), for every class c it holds.

    The features come from the model as received, before local training and in eval mode; the head is the re-trained
    one that the server broadcasts.
    Nothing else changes: features u and head v are bit-identical to FedAvg's.
    A class with a single sample reveals its feature up to scale; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "feature-gradients"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights"})

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Minimum number of samples that a class must have for the client to send it."""
    classes_per_round: Annotated[int, Ge(0)] = 0
    """Largest number of classes to send, drawn again every round; 0 sends all of the client's classes."""

    @property
    def upload(self) -> Upload:
        return Upload("head-gradients", self.tensors, by_class=True)

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what a class's row of an upload must be: (C, D)."""
        return {"gradients": TensorSpec(torch.float32, tuple(model.head.weight.shape))}

    def before(self, client: Client, loss: Loss) -> Contribution:
        """Upload {"classes": (n,) int64 ascending, "gradients": (n, C, D)}."""
        head = client.broadcast[self.name]
        held = (client.counts_C >= self.min_class_samples).nonzero().flatten()
        if 0 < self.classes_per_round < len(held):
            order = torch.randperm(len(held), generator=client.generator(self.name))
            held = held[order[: self.classes_per_round]].sort().values
        features_ND = client.features()
        gradients_nCD = class_gradients(
            features_ND,
            client.labels_N,
            weight_CD=head["weight"].to(features_ND),
            bias_C=head["bias"].to(features_ND),
            classes=held,
        )
        return Contribution(upload={"classes": held, "gradients": gradients_nCD.cpu()})


def class_gradients(
    features_ND: Tensor,
    labels_N: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor,
    classes: Tensor | None = None,
) -> Tensor:
    """Return (n, C, D): each class's mean gradient of cross-entropy in the head's weight.

        g_c = mean over the class's samples z of (softmax(W z + b) - e_c) z^T

    `classes` (n,) selects the classes; by default all C. A class without samples has zeros.
    """
    probabilities_NC = torch.softmax(features_ND @ weight_CD.T + bias_C, dim=1)
    one_hot_NC = torch.nn.functional.one_hot(labels_N, len(weight_CD)).to(probabilities_NC)
    errors_NC = probabilities_NC - one_hot_NC
    wanted = range(len(weight_CD)) if classes is None else classes.tolist()
    gradients_nCD = features_ND.new_zeros(len(wanted), *weight_CD.shape)
    for row, label in enumerate(wanted):
        of_class_N = labels_N == label
        if of_class_N.any():
            summed_CD = errors_NC[of_class_N].T @ features_ND[of_class_N]
            gradients_nCD[row] = summed_CD / of_class_N.sum()
    return gradients_nCD


def with_constant(features: Tensor) -> Tensor:
    """Return (..., D + 1): a last feature that is always 1, so that a last column of the weight is the bias."""
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)


def with_bias(weight_CD: Tensor, bias_C: Tensor) -> Tensor:
    """Return (C, D + 1): the weight of the same head on features `with_constant`."""
    return torch.cat([weight_CD, bias_C[:, None]], dim=1)
