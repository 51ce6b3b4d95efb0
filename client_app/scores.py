"""How well a model does on some samples: counts and sums that add up over clients, never predictions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.models import Classifier
from client_app.state import State
from data import Samples

BINS = 15
"""Confidence bins of the calibration error, equally wide, as usual since Guo et al. (2017)."""


@dataclass(frozen=True)
class Scores:
    """Sums over samples; two sets of scores add up to those of the union."""

    confusion_CC: Tensor
    """int64: row the label, column the prediction."""
    loss: Tensor
    """() float64: summed cross-entropy in nats."""
    calibration: Tensor
    """(3, BINS) float64: of each confidence bin the samples, the correct ones, the summed confidence."""

    def __add__(self, other: "Scores") -> "Scores":
        return Scores(
            self.confusion_CC + other.confusion_CC, self.loss + other.loss, self.calibration + other.calibration
        )

    def state(self) -> dict[str, Tensor]:
        """Return the scores as named tensors, for a message."""
        return {"confusion": self.confusion_CC, "loss": self.loss, "calibration": self.calibration}

    @staticmethod
    def of(state: State, classes: int) -> "Scores":
        """Undo `state`. Raises ValueError when the tensors are not scores over `classes` classes."""
        wanted = Scores(torch.zeros(classes, classes).long(), torch.zeros(()).double(), torch.zeros(3, BINS).double())
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in wanted.state().items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} != expected:
            raise ValueError(f"the scores are not those of {classes} classes")
        if any(not torch.isfinite(tensor).all() or (tensor < 0).any() for tensor in state.values()):
            raise ValueError("the scores hold a negative or non-finite value")
        return Scores(state["confusion"], state["loss"], state["calibration"])

    @staticmethod
    def of_batch(logits_BC: Tensor, labels_B: Tensor) -> "Scores":
        """Return the scores of one batch, computed in float64 on the CPU.

        Raises FloatingPointError when a logit is not finite.
        """
        if not torch.isfinite(logits_BC).all():
            raise FloatingPointError("the model's outputs are not finite")
        labels_B, classes = labels_B.cpu(), logits_BC.shape[1]
        log_probabilities_BC = F.log_softmax(logits_BC.double().cpu(), dim=1)
        confidence_B, predicted_B = log_probabilities_BC.exp().max(1)
        bins_B = (confidence_B * BINS).long().clamp(max=BINS - 1)
        columns = (torch.ones_like(confidence_B), (predicted_B == labels_B).double(), confidence_B)
        return Scores(
            torch.bincount(labels_B * classes + predicted_B, minlength=classes**2).reshape(classes, classes),
            F.nll_loss(log_probabilities_BC, labels_B, reduction="sum"),
            torch.stack([torch.bincount(bins_B, column, BINS) for column in columns]),
        )


def measure(model: Classifier, samples: Samples, batch_size: int = 512) -> Scores:
    """Return the scores of `model` as it is on all of `samples`, in eval mode; the last batch counts like any other."""
    return measure_all(model, {"": model.state_dict()}, samples, batch_size)[""]


@torch.no_grad()
def measure_all(
    model: Classifier, states: Mapping[str, State], samples: Samples, batch_size: int = 512
) -> dict[str, Scores]:
    """Return the scores of `model` with each of the `states`, by name.

    States that differ in nothing but the head (CReFF's and the average, a sweep of tau) share one pass through the
    features, which is where the time goes.
    """
    model.eval()
    device = samples.labels_N.device
    scores: dict[str, Scores] = {}
    for names in sharing_features(states):
        model.load_state_dict(states[names[0]])
        heads = {name: [states[name][f"head.{part}"].to(device) for part in ("weight", "bias")] for name in names}
        for indices_B in torch.split(torch.arange(len(samples), device=device), batch_size):
            features_BD, labels_B = model.features(samples.batch(indices_B)), samples.labels_N[indices_B]
            for name, (weight_CD, bias_C) in heads.items():
                part = Scores.of_batch(F.linear(features_BD, weight_CD, bias_C), labels_B)
                scores[name] = scores[name] + part if name in scores else part
    return {name: scores[name] for name in states}


def sharing_features(states: Mapping[str, State]) -> list[list[str]]:
    """Return the states' names in groups that are equal in everything but the head."""
    groups: list[list[str]] = []
    for name, state in states.items():
        for group in groups:
            other = states[group[0]]
            if all(torch.equal(tensor, other[key]) for key, tensor in state.items() if not key.startswith("head.")):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups
