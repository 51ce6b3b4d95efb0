"""CCVR's client side: each class's features, as a mean and a covariance (Luo et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Variant
from client_app.models.classifier import Classifier
from client_app.state import State


@dataclass(frozen=True)
class ClassStatistics(Variant):
    """Answer, after the last round, with n, mean and unbiased covariance of the features of every class held.

    The features are those of the final shared model in eval mode. Nothing else changes: training is the plain one to
    the bit. The answer reveals how many samples of which classes a client holds, and of a class with a single sample
    its feature; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "class-statistics"

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Send a class only when the client has at least that many samples of it."""

    def upload_bytes(self, model: Classifier, classes_held: int) -> int:
        width = model.head.in_features
        return classes_held * (16 + 8 * width + 8 * width**2)

    def extra_samples(self, samples: int, classes_held: int) -> float:
        return samples / 3

    def answer(self, client: Client, question: str) -> State:
        """Return {"classes": (n,) ascending, "counts": (n,) int64, "means": (n, D), "covariances": (n, D, D)}."""
        if question != self.name:
            return {}
        return class_statistics(client.features().double().cpu(), client.labels_N.cpu(), self.min_class_samples)


def class_statistics(features_ND: Tensor, labels_N: Tensor, min_class_samples: int = 1) -> dict[str, Tensor]:
    """Return the statistics of each class held; the covariance of a single sample is 0."""
    counts_C = torch.bincount(labels_N)
    held_n, width = (counts_C >= min_class_samples).nonzero().flatten(), features_ND.shape[1]
    means_nD, covariances_nDD = (
        features_ND.new_zeros(len(held_n), width),
        features_ND.new_zeros(len(held_n), width, width),
    )
    for row, label in enumerate(held_n.tolist()):
        of_class_MD = features_ND[labels_N == label]
        means_nD[row] = of_class_MD.mean(0)
        deviations_MD = of_class_MD - means_nD[row]
        covariances_nDD[row] = deviations_MD.T @ deviations_MD / max(1, len(of_class_MD) - 1)
    return {"classes": held_n, "counts": counts_C[held_n], "means": means_nD, "covariances": covariances_nDD}
