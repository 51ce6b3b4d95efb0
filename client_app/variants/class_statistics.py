"""CCVR's client side: each class's features, as a mean and a covariance (Luo et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, InvalidReply, Upload, Variant, check_counts
from client_app.models.classifier import Classifier
from client_app.state import State
from data import OneOf


@dataclass(frozen=True)
class ClassStatistics(Variant):
    """Answer, after the last round, with n, mean and unbiased covariance of the features of every class held.

    The features are those of the final shared model in eval mode. Nothing else changes: training is the plain one to
    the bit. The answer reveals how many samples of which classes a client holds, and of a class with a single sample
    its feature; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "class-statistics"

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Minimum number of samples that a class must have for the client to send it."""
    covariance: Annotated[str, OneOf("full", "diagonal")] = "full"
    """full: (D, D) a class. diagonal: its diagonal alone, (D,): every feature's own variance, as if they were
    independent; for many classes and wide models, whose full covariances no server can hold."""

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-statistics",
            self.statistics_bytes,
            self.check_statistics,
            once=True,
        )

    def statistics_bytes(self, model: Classifier, classes_held: int) -> int:
        """Return the bytes of the classes' numbers, counts, means and covariances."""
        width = model.head.in_features
        covariance = width**2 if self.covariance == "full" else width
        number_and_count = 16
        return classes_held * (number_and_count + 8 * width + 8 * covariance)

    def answer(self, client: Client, question: str) -> State:
        """Return {"classes": (n,) ascending, "counts": (n,) int64, "means": (n, D), "covariances": (n, D, D)}.

        Of the covariances (n, D) where only their diagonals are asked for.
        """
        if question != self.name:
            return {}
        features_ND = client.features().double().cpu()
        diagonal = self.covariance == "diagonal"
        return class_statistics(
            features_ND, client.labels_N.cpu(), self.min_class_samples, diagonal
        )

    def check_statistics(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the statistics are of. Raises InvalidReply."""
        dimensions = 2 if self.covariance == "diagonal" else 3
        if answer["covariances"].dim() != dimensions:
            raise InvalidReply(f"covariances are not {self.covariance}")
        return check_counts(answer["counts"], self.min_class_samples, samples)


def class_statistics(
    features_ND: Tensor,
    labels_N: Tensor,
    min_class_samples: int = 1,
    diagonal: bool = False,
) -> dict[str, Tensor]:
    """Return the statistics of each class held; the covariance of a single sample is 0."""
    counts_C = torch.bincount(labels_N)
    held_n = (counts_C >= min_class_samples).nonzero().flatten()
    width = features_ND.shape[1]
    shape = (width,) if diagonal else (width, width)
    means_nD = features_ND.new_zeros(len(held_n), width)
    covariances = features_ND.new_zeros(len(held_n), *shape)
    for row, label in enumerate(held_n.tolist()):
        of_class_MD = features_ND[labels_N == label]
        means_nD[row] = of_class_MD.mean(0)
        deviations_MD = of_class_MD - means_nD[row]
        scatter = deviations_MD.square().sum(0) if diagonal else deviations_MD.T @ deviations_MD
        covariances[row] = scatter / max(1, len(of_class_MD) - 1)
    return {
        "classes": held_n,
        "counts": counts_C[held_n],
        "means": means_nD,
        "covariances": covariances,
    }
