"""CCVR's client side: each class's features, as a mean and a covariance (Luo et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, InvalidReply, TensorSpec, Upload, Variant, integers
from client_app.models.classifier import Classifier
from client_app.state import State
from data import OneOf
from data.agreement import MOST_SAMPLES


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
            self.tensors,
            by_class=True,
            validate=self.check_statistics,
            question=self.name,
            at_end=True,
        )

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what a class's row of an answer must be."""
        width = model.head.in_features
        shape = (width,) if self.covariance == "diagonal" else (width, width)
        return {
            "counts": integers(low=self.min_class_samples, high=MOST_SAMPLES),
            "means": TensorSpec(torch.float64, (width,)),
            "covariances": TensorSpec(torch.float64, shape),
        }

    def answer(self, client: Client) -> State:
        """Return {"classes": (n,) ascending, "counts": (n,) int64, "means": (n, D), "covariances": (n, D, D)}.

        Of the covariances (n, D) where only their diagonals are asked for.
        """
        features_ND = client.features().double().cpu()
        diagonal = self.covariance == "diagonal"
        return class_statistics(
            features_ND, client.labels_N.cpu(), self.min_class_samples, diagonal
        )

    def check_statistics(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the statistics are of. Raises InvalidReply."""
        covariances = answer["covariances"]
        full = self.covariance == "full"
        variances = covariances.diagonal(dim1=-2, dim2=-1) if full else covariances
        if (variances < 0).any():
            raise InvalidReply("a variance is negative")
        if full and not torch.allclose(covariances, covariances.mT):
            raise InvalidReply("covariances are not symmetric")

        counted = int(answer["counts"].sum())
        if samples is not None:
            # Classes of few samples are held back, and then fewer samples are counted.
            fits = counted <= samples if self.min_class_samples > 1 else counted == samples
            if not fits:
                raise InvalidReply(f"counts are of {counted} samples, and the client has {samples}")
        return counted


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
