"""The refit bias's client side: what the shared model predicts for each class (see strategies/refit_bias.py)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Upload, Variant, check_counts
from client_app.models.classifier import Classifier
from client_app.state import State

ROUNDING = 1e-6
"""By how much a mean of probabilities may differ from a sum of 1: far more than rounding in float64 makes of it."""


@dataclass(frozen=True)
class ClassPredictions(Variant):
    """Answer, after the last round, with n and the mean predicted probabilities of the samples of every class held.

    The predictions are those of the final shared model in eval mode. Nothing else changes: training is the plain one to
    the bit. The answer reveals how many samples of which classes a client holds and how well the model knows them, and
    of a class with a single sample its prediction; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "class-predictions"

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Minimum number of samples that a class must have for the client to send it."""

    @property
    def upload(self) -> Upload:
        return Upload("class-predictions", self.answer_bytes, self.check_predictions, once=True)

    def answer_bytes(self, model: Classifier, classes_held: int) -> int:
        """Return the bytes of the classes' numbers, counts and mean probabilities."""
        number_and_count = 16
        return classes_held * (number_and_count + 8 * model.head.out_features)

    def answer(self, client: Client, question: str) -> State:
        """Return {"classes": (n,) ascending, "counts": (n,) int64, "probabilities": (n, C) float64}."""
        if question != self.name:
            return {}
        with torch.no_grad():
            logits_NC = client.model.head(client.features())
        probabilities_NC = logits_NC.double().softmax(1).cpu()
        return class_predictions(probabilities_NC, client.labels_N.cpu(), self.min_class_samples)

    def check_predictions(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the predictions are of. Raises InvalidReply."""
        return check_counts(answer["counts"], self.min_class_samples, samples)


def class_predictions(
    probabilities_NC: Tensor,
    labels_N: Tensor,
    min_class_samples: int = 1,
) -> dict[str, Tensor]:
    """Return the number of samples and the mean probabilities of each class held."""
    classes = probabilities_NC.shape[1]
    counts_C = torch.bincount(labels_N, minlength=classes)
    sums_CC = probabilities_NC.new_zeros(classes, classes)
    sums_CC.index_add_(0, labels_N, probabilities_NC)
    held_n = (counts_C >= min_class_samples).nonzero().flatten()
    return {
        "classes": held_n,
        "counts": counts_C[held_n],
        "probabilities": sums_CC[held_n] / counts_C[held_n, None],
    }
