"""CReFF's client side: the gradient of the re-trained head, averaged over each class (Shang et al. 2022, Eq. 3).

AugmentedGradients is what the authors' code sends in its place, estimated from a few augmented samples.
"""

from collections.abc import Sequence
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
from data.augmentation import siamese


@dataclass(frozen=True)
class HeadGradients(Variant):
    """What both variants share: which classes a client sends, and the form of its upload."""

    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights"})
    of_bias: ClassVar[bool] = False
    """Whether a last column has the bias's gradient."""

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Minimum number of samples that a class must have for the client to send it."""

    @property
    def upload(self) -> Upload:
        return Upload("head-gradients", self.tensors, by_class=True)

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what a class's row of an upload must be: (C, D), or (C, D + 1) with the bias's gradient."""
        classes, width = model.head.weight.shape
        return {"gradients": TensorSpec(torch.float32, (classes, width + self.of_bias))}

    def sent_classes(self, client: Client) -> Tensor:
        """Return (n,) int64 ascending: the classes of enough samples."""
        is_sent_C = client.counts_C >= self.min_class_samples
        return is_sent_C.nonzero().flatten()


@dataclass(frozen=True)
class FeatureGradients(HeadGradients):
    """Send g_c = mean over the client's class-c samples of dCE/d(head weight), for every class c it holds.

    The features come from the model as received, before local training and in eval mode; the head is the re-trained
    one that the server broadcasts.
    Nothing else changes: features u and head v are bit-identical to FedAvg's.
    A class with a single sample reveals its feature up to scale; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "feature-gradients"

    classes_per_round: Annotated[int, Ge(0)] = 0
    """Largest number of classes to send, drawn again every round; 0 sends all of the client's classes."""

    def before(self, client: Client, loss: Loss) -> Contribution:
        """Upload {"classes": (n,) int64 ascending, "gradients": (n, C, D)}."""
        head = client.broadcast[self.name]
        held = self.sent_classes(client)
        if 0 < self.classes_per_round < len(held):
            order = torch.randperm(len(held), generator=client.generator(self.name))
            held = held[order[: self.classes_per_round]].sort().values
        features_ND = client.features()
        gradients_nCD = class_gradients(
            features_ND,
            client.labels_N,
            weight_CD=head["weight"].to(features_ND),
            bias_C=head["bias"].to(features_ND),
            classes=held.tolist(),
        )
        return Contribution(upload={"classes": held, "gradients": gradients_nCD.cpu()})


DRAWN = 32
"""Samples of a class in each draw of augmented-gradients."""


@dataclass(frozen=True)
class AugmentedGradients(HeadGradients):
    """Send g_c, of the re-trained head's weight and bias, for every class c held, as the code beside the paper does.

    g_c is the mean over the repeats of the gradient on some random samples of the class, all changed by one random
    operation. The features come from the model as received, in eval mode.
    Nothing else changes: features u and head v are bit-identical to FedAvg's.
    A class with a single sample reveals its feature exactly, as row / bias: with one repeat the feature
    of one augmented image, with more a mean over several; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "augmented-gradients"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights", "images"})
    of_bias: ClassVar[bool] = True

    repeats: Annotated[int, Ge(1)] = 10
    """Number of draws of samples and of an operation; the gradient is their mean."""

    @torch.no_grad()
    def before(self, client: Client, loss: Loss) -> Contribution:
        """Upload {"classes": (n,) int64 ascending, "gradients": (n, C, D + 1)}, the bias's the last column."""
        draws = client.generator(self.name)
        head = client.broadcast[self.name]
        weight_CE = with_bias(head["weight"], head["bias"])
        no_bias_C = torch.zeros_like(head["bias"])  # it is the weight's last column
        classes_n = self.sent_classes(client)
        total_nCE = weight_CE.new_zeros(len(classes_n), *weight_CE.shape)
        for _ in range(self.repeats):
            # All classes of a repeat before the next repeat: the order of the draws.
            for label, total_CE in zip(classes_n.tolist(), total_nCE, strict=True):
                samples_B = self.drawn_samples(client.labels_N, label, draws)
                images_B = siamese(client.samples.batch(samples_B), draws)
                features_BE = with_constant(client.model.features(images_B))
                labels_B = client.labels_N[samples_B]
                total_CE += class_gradients(features_BE, labels_B, weight_CE, no_bias_C, [label])[0]
        mean_nCE = total_nCE / self.repeats
        return Contribution(upload={"classes": classes_n, "gradients": mean_nCE.cpu()})

    def drawn_samples(self, labels_N: Tensor, label: int, draws: torch.Generator) -> Tensor:
        """Return (B,): DRAWN random samples of one class without replacement, or all."""
        members_M = (labels_N == label).nonzero().flatten()
        order_M = torch.randperm(len(members_M), generator=draws)
        first_B = order_M[:DRAWN].to(members_M.device)
        return members_M[first_B]


def class_gradients(
    features_ND: Tensor,
    labels_N: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor,
    classes: Sequence[int],
) -> Tensor:
    """Return (n, C, D): the mean gradient of cross-entropy in the head's weight, of each of n classes that are held.

    g_c = mean over the class's samples z of (softmax(W z + b) - e_c) z^T
    """
    probabilities_NC = torch.softmax(features_ND @ weight_CD.T + bias_C, dim=1)
    one_hot_NC = torch.nn.functional.one_hot(labels_N, len(weight_CD)).to(probabilities_NC)
    errors_NC = probabilities_NC - one_hot_NC
    gradients_nCD = features_ND.new_zeros(len(classes), *weight_CD.shape)
    for row, label in enumerate(classes):
        of_class_N = labels_N == label
        summed_CD = errors_NC[of_class_N].T @ features_ND[of_class_N]
        gradients_nCD[row] = summed_CD / of_class_N.sum()
    return gradients_nCD


def with_constant(features: Tensor) -> Tensor:
    """Return (..., D + 1): a last feature that is always 1, so that a last column of the weight is the bias."""
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)


def with_bias(weight_CD: Tensor, bias_C: Tensor) -> Tensor:
    """Return (C, D + 1): the weight of the same head on features `with_constant`."""
    return torch.cat([weight_CD, bias_C[:, None]], dim=1)
