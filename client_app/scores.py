"""How well a model does on some samples: counts and sums that add up over clients, never predictions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


@torch.no_grad()
def measure(model: nn.Module, samples: Samples, classes: int, batch_size: int = 512) -> Scores:
    """Return the scores of `model` on all of `samples`, in eval mode; the last batch counts like any other."""
    model.eval()
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    loss, calibration = torch.zeros((), dtype=torch.float64), torch.zeros(3, BINS, dtype=torch.float64)
    for indices_B in torch.split(torch.arange(len(samples), device=samples.labels_N.device), batch_size):
        labels_B = samples.labels_N[indices_B].cpu()
        log_probabilities_BC = F.log_softmax(model(samples.batch(indices_B)).double().cpu(), dim=1)
        loss += F.nll_loss(log_probabilities_BC, labels_B, reduction="sum")
        confidence_B, predicted_B = log_probabilities_BC.exp().max(1)
        confusion += torch.bincount(labels_B * classes + predicted_B, minlength=classes * classes)
        bins_B = (confidence_B * BINS).long().clamp(max=BINS - 1)
        correct_B = (predicted_B == labels_B).double()
        calibration += torch.stack(
            [
                torch.bincount(bins_B, weights, BINS)
                for weights in (torch.ones_like(confidence_B), correct_B, confidence_B)
            ]
        )
    return Scores(confusion.reshape(classes, classes), loss, calibration)
