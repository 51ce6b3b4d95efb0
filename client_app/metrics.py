"""Evaluation of a model on samples, as counts and sums that can be added over clients; never predictions.

Where samples are parts of a subject, as the windows of a scan, the subject is what is tested: its probabilities are the
mean of its samples' softmax, and it counts once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.models.classifier import HEAD, Classifier, in_batches
from client_app.ranking import COLUMNS, MOST_RANKED, contradiction, ranking
from client_app.state import State, copy
from data import Samples

BINS = 15
"""Confidence bins of the calibration error, equally wide, as usual since Guo et al. (2017)."""
NAMES = ("confusion", "loss", "calibration", "brier", "ranking")
"""Of the tensors of scores in a message, in the order of the fields of `Scores`."""
MOST, LARGEST_LOSS = 2**31, 1e30
"""Samples of a test set, and nats of a sample, that are believed at most."""


@dataclass(frozen=True)
class Scores:
    """Sums over samples, or over subjects; two sets of scores add up to those of the union, but for `pairs`."""

    confusion_CC: Tensor
    """int64: row the label, column the prediction."""
    loss: Tensor
    """() float64: summed cross-entropy in nats."""
    calibration: Tensor
    """(3, BINS) float64: of each confidence bin the samples, the correct ones, the summed confidence."""
    brier: Tensor
    """() float64: the summed Brier score, of every sample the squared differences of its probabilities from its label
    over the classes (Brier 1950); of two classes half of it, (p_1 - y)^2."""
    ranking: Tensor
    """(C, 8) float64: of every class against the rest what `client_app.ranking` sums.

    The pairs of a sum are those within its parts: the scores of two clients' models need not be comparable, and whoever
    has one class has no pair. Zeros for more than MOST_RANKED classes.
    """

    def __add__(self, other: "Scores") -> "Scores":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Scores(*[mine + theirs for mine, theirs in pairs])

    def state(self) -> dict[str, Tensor]:
        """Return the scores as named tensors, for a message."""
        return dict(zip(NAMES, vars(self).values(), strict=True))

    @staticmethod
    def of(state: State, classes: int, tested_C: Tensor | None = None) -> "Scores":
        """Undo `state`. Raises ValueError when the tensors cannot be scores over `classes` classes, or over samples of
        which `tested_C` (C,) are of each class, where it is known."""
        shapes = ((classes, classes), (), (3, BINS), (), (classes, len(COLUMNS)))
        expected = {name: (shape, torch.float64) for name, shape in zip(NAMES, shapes, strict=True)}
        expected["confusion"] = (classes, classes), torch.int64
        if {name: (tuple(part.shape), part.dtype) for name, part in state.items()} != expected:
            raise ValueError(f"the scores are not those of {classes} classes")
        for tensor in state.values():
            if not torch.isfinite(tensor).all() or (tensor < 0).any():
                raise ValueError("the scores hold a negative or non-finite value")
        scores = Scores(*[state[name] for name in NAMES])
        reason = scores.contradiction(tested_C)
        if reason:
            raise ValueError(f"the scores {reason}")
        return scores

    def contradiction(self, tested_C: Tensor | None) -> str:
        """Return how the numbers contradict each other or the test set, or an empty sentence."""
        samples_C = self.confusion_CC.sum(1)
        total = int(self.confusion_CC.sum())
        if not 0 <= total <= MOST or self.confusion_CC.max() > MOST:
            return f"are over {total} samples"
        if tested_C is not None and not torch.equal(samples_C, tested_C):
            return f"are over {samples_C.tolist()} samples of the classes, not {tested_C.tolist()}"
        if self.loss > LARGEST_LOSS * total:
            return "hold a loss that no probability gives"
        inside, correct, confidence = self.calibration
        right = int(self.confusion_CC.diagonal().sum())
        whole_numbers = not (inside % 1).any()
        same_samples = inside.sum() == total and correct.sum() == right
        if not (whole_numbers and same_samples) or (correct > inside).any():
            return "have other samples in their bins than in their classes"
        # Both bounds below leave room for the rounding of sums.
        if (confidence > inside + 1e-6 * total).any():
            return "are surer than sure"
        if self.brier > (2 + 1e-9) * total:
            return "hold a Brier score that no probability gives"
        return contradiction(self.ranking, samples_C)

    @staticmethod
    def of_probabilities(
        log_probabilities_NC: Tensor, labels_N: Tensor, subjects_N: Tensor | None = None
    ) -> "Scores":
        """Return the scores of logarithms of probabilities, (N, C) float64, of samples whose subjects may be known."""
        classes = log_probabilities_NC.shape[1]
        probabilities_NC = log_probabilities_NC.exp()
        confidence_N, predicted_N = probabilities_NC.max(1)
        cell_N = labels_N * classes + predicted_N  # of the confusion matrix, row by row
        confusion = torch.bincount(cell_N, minlength=classes**2)

        bins_N = (confidence_N * BINS).long().clamp(max=BINS - 1)  # 1 itself is in the last bin
        is_correct_N = (predicted_N == labels_N).double()
        summed = [torch.ones_like(confidence_N), is_correct_N, confidence_N]
        # Without a sample torch counts in int64, whatever the weights.
        bins = [torch.bincount(bins_N, part, BINS).double() for part in summed]
        errors_NC = probabilities_NC - F.one_hot(labels_N, classes)
        squares = errors_NC.square().sum()
        return Scores(
            confusion_CC=confusion.reshape(classes, classes),
            loss=F.nll_loss(log_probabilities_NC, labels_N, reduction="sum"),
            calibration=torch.stack(bins),
            brier=squares / 2 if classes == 2 else squares,
            ranking=ranking(log_probabilities_NC, labels_N, subjects_N),
        )


def local_accuracies(recall: Sequence[float], counts_KC: Tensor) -> list[float]:
    """Return each client's sum_k P_i(k) recall_k: the accuracy to expect on the client's own class distribution.

    P_i is over the classes with test samples, as the others have no recall; NaN for a client that holds none of them.
    """
    recall_C = torch.tensor(recall, dtype=torch.float64)
    has_recall_C = ~recall_C.isnan()
    counted_KC = counts_KC.double() * has_recall_C
    right_KC = counted_KC * recall_C.nan_to_num()
    accuracy_K = right_KC.sum(1) / counted_KC.sum(1)
    return accuracy_K.tolist()


def probabilities_of(
    logits_NC: Tensor, labels_N: Tensor, groups_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the probabilities of what is tested, samples or groups, (N, C) float64, and its labels.

    Raises FloatingPointError when a logit is not finite.
    """
    if not torch.isfinite(logits_NC).all():
        raise FloatingPointError("the model's outputs are not finite")
    log_probabilities_NC = F.log_softmax(logits_NC.double().cpu(), dim=1)
    labels_N = labels_N.cpu()
    if groups_N is None or len(labels_N) == 0:
        return log_probabilities_NC, labels_N
    return by_group(log_probabilities_NC, labels_N, groups_N.cpu())


def by_group(
    log_probabilities_NC: Tensor, labels_N: Tensor, groups_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ln of each group's mean probabilities, (G, C), and its label, (G,), which its samples have in common."""
    means = []
    labels = []
    for group in torch.unique(groups_N):
        members_M = torch.nonzero(groups_N == group).squeeze(1)
        log_sum_C = log_probabilities_NC[members_M].logsumexp(0)
        means.append(log_sum_C - math.log(len(members_M)))
        first = members_M[0]
        labels.append(labels_N[first])
    return torch.stack(means), torch.stack(labels)


@torch.no_grad()
def evaluate_models(
    model: Classifier,
    states: Mapping[str, State],
    samples: Samples,
    kept: dict[str, State] | None = None,
) -> dict[str, Scores]:
    """Return the scores of `model` with each of the `states` on all of `samples`, in eval mode, by name.

    States that differ in nothing but the head (CReFF's and the average) share one pass through the features, which is
    where the time goes. Into `kept` go, by name, the logarithms of the probabilities of what is ranked, its labels, and
    its subjects where they are known.
    """
    model.eval()
    subjects_N = None if samples.subjects_N is None else samples.subjects_N.cpu()
    scores: dict[str, Scores] = {}
    for names in sharing_features(states):
        model.load(states[names[0]])
        weights = [states[name]["head.weight"].to(samples.labels_N.device) for name in names]
        biases = [states[name]["head.bias"].to(samples.labels_N.device) for name in names]
        logits_of_heads = partial(stacked_logits, model, weights, biases)
        logits_NHC = in_batches(logits_of_heads, samples)
        for name, logits_NC in zip(names, logits_NHC.unbind(1), strict=True):
            output = probabilities_of(logits_NC, samples.labels_N, samples.groups_N)
            scores[name] = Scores.of_probabilities(*output, subjects_N)
            if kept is not None and model.head.out_features <= MOST_RANKED:
                log_probabilities, labels = output
                ranked = {"log-probabilities": log_probabilities, "labels": labels}
                if subjects_N is not None:
                    ranked["subjects"] = subjects_N
                kept[name] = copy(ranked)  # in a file no two tensors share memory
    return {name: scores[name] for name in states}


def stacked_logits(
    model: Classifier, weights: Sequence[Tensor], biases: Sequence[Tensor], inputs_B: Tensor
) -> Tensor:
    """Return (B, H, C): the logits of H heads on the model's features."""
    features_BD = model.features(inputs_B)
    heads = zip(weights, biases, strict=True)
    return torch.stack([F.linear(features_BD, weight, bias) for weight, bias in heads], 1)


def sharing_features(states: Mapping[str, State]) -> list[list[str]]:
    """Return the states' names in groups that are equal in everything but the head."""
    groups: list[list[str]] = []
    for name, state in states.items():
        for group in groups:
            first = states[group[0]]
            if same_features(state, first):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def same_features(state: State, other: State) -> bool:
    """Return whether two states are equal in everything but the head."""
    names = [name for name in state if not name.startswith(HEAD)]
    return all(torch.equal(state[name], other[name]) for name in names)
