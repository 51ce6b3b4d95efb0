"""Evaluation of a model on samples, as counts and sums that can be added over clients; never predictions.

Where samples are parts of a subject, as the windows of a scan, the subject is what is tested: its probabilities are the
mean of its samples' softmax, and it counts once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.models.classifier import HEAD, INFERENCE_BATCH, Classifier
from client_app.ranking import COLUMNS, MOST_RANKED, contradiction, ranking
from client_app.state import State
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
        expected = shapes_of(Scores.empty(classes).state())
        if shapes_of(state) != expected:
            raise ValueError(f"the scores are not those of {classes} classes")
        for tensor in state.values():
            if not torch.isfinite(tensor).all() or (tensor < 0).any():
                raise ValueError("the scores hold a negative or non-finite value")
        scores = Scores(*[state[name] for name in NAMES])
        reason = scores.contradiction(tested_C)
        if reason:
            raise ValueError(f"the scores {reason}")
        return scores

    @staticmethod
    def empty(classes: int) -> "Scores":
        """Return the scores of no samples."""
        return Scores(
            confusion_CC=torch.zeros(classes, classes, dtype=torch.int64),
            loss=torch.zeros((), dtype=torch.float64),
            calibration=torch.zeros(3, BINS, dtype=torch.float64),
            brier=torch.zeros((), dtype=torch.float64),
            ranking=torch.zeros(classes, len(COLUMNS), dtype=torch.float64),
        )

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

    def local_accuracy(self, counts_C: Tensor) -> float:
        """Return the accuracy to expect on the class distribution of `counts_C`, (C,); see `local_accuracies`."""
        confusion_CC = self.confusion_CC.double()
        recall_C = confusion_CC.diagonal() / confusion_CC.sum(1)
        return local_accuracies(recall_C.tolist(), counts_C[None])[0]

    @staticmethod
    def of_batch(logits_BC: Tensor, labels_B: Tensor, groups_B: Tensor | None = None) -> "Scores":
        """Return the scores of some samples, of each group as a whole, computed in float64 on the CPU.

        Raises FloatingPointError when a logit is not finite.
        """
        log_probabilities_BC, labels_B = tested(logits_BC, labels_B, groups_B)
        return Scores.of_probabilities(log_probabilities_BC, labels_B)

    @staticmethod
    def of_probabilities(
        log_probabilities_BC: Tensor, labels_B: Tensor, ranks: bool = True
    ) -> "Scores":
        """Return the scores of logarithms of probabilities, (B, C) float64, the ranking only where it is asked for."""
        classes = log_probabilities_BC.shape[1]
        confidence_B, predicted_B = log_probabilities_BC.exp().max(1)
        cell_B = labels_B * classes + predicted_B  # of the confusion matrix, row by row
        confusion = torch.bincount(cell_B, minlength=classes**2)

        bins_B = (confidence_B * BINS).long().clamp(max=BINS - 1)  # 1 itself is in the last bin
        is_correct_B = (predicted_B == labels_B).double()
        calibration = [
            torch.bincount(bins_B, torch.ones_like(confidence_B), BINS),
            torch.bincount(bins_B, is_correct_B, BINS),
            torch.bincount(bins_B, confidence_B, BINS),
        ]
        if ranks:
            ranking_CS = ranking(log_probabilities_BC, labels_B)
        else:
            ranking_CS = torch.zeros(classes, len(COLUMNS), dtype=torch.float64)
        return Scores(
            confusion_CC=confusion.reshape(classes, classes),
            loss=F.nll_loss(log_probabilities_BC, labels_B, reduction="sum"),
            calibration=torch.stack(calibration),
            brier=brier(log_probabilities_BC, labels_B),
            ranking=ranking_CS,
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


def tested(
    logits_NC: Tensor, labels_N: Tensor, groups_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the probabilities of what is tested, samples or groups, (N, C) float64, and its labels.

    Raises FloatingPointError when a logit is not finite.
    """
    if not torch.isfinite(logits_NC).all():
        raise FloatingPointError("the model's outputs are not finite")
    log_probabilities_NC = F.log_softmax(logits_NC.double().cpu(), dim=1)
    labels_N = labels_N.cpu()
    if groups_N is None:
        return log_probabilities_NC, labels_N
    return by_group(log_probabilities_NC, labels_N, groups_N.cpu())


def brier(log_probabilities_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Return the summed Brier score, () float64; see `Scores`."""
    classes = log_probabilities_NC.shape[1]
    errors_NC = log_probabilities_NC.exp() - F.one_hot(labels_N, classes)
    total = errors_NC.square().sum()
    return total / 2 if classes == 2 else total


def shapes_of(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape and dtype of every tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


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

    States that differ in nothing but the head (CReFF's and the average) share one pass through the
    features, which is where the time goes. Rankings and groups need all samples at once, other scores a batch. Into
    `kept` go, by name, the logarithms of the probabilities of what is ranked, its labels, and its subjects where they
    are known.
    """
    model.eval()
    ranks = model.head.out_features <= MOST_RANKED
    # A group's probabilities are a mean over all of its samples. Of two classes, kept records are sums over all
    # samples as well, and sums by batches would differ in their last bits.
    at_once = samples.groups_N is not None or model.head.out_features == 2
    scores: dict[str, Scores] = {}
    for names in sharing_features(states):
        outputs: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
        if at_once:
            logits: dict[str, list[Tensor]] = {name: [] for name in names}
            for name, _, logits_BC in logits_of_heads(model, states, names, samples):
                logits[name].append(logits_BC)
            for name in names:
                output = tested(torch.cat(logits[name]), samples.labels_N, samples.groups_N)
                outputs[name].append(output)
                scores[name] = Scores.of_probabilities(*output, ranks=False)
        else:
            for name, indices_B, logits_BC in logits_of_heads(model, states, names, samples):
                output = tested(logits_BC, samples.labels_N[indices_B])
                part = Scores.of_probabilities(*output, ranks=False)
                scores[name] = scores[name] + part if name in scores else part
                if ranks:  # without a ranking nothing needs the batch any more
                    outputs[name].append(output)

        for name in names:
            if ranks and outputs[name]:
                ranking_CS, ranked = rank_outputs(outputs[name], samples.subjects_N)
                scores[name] = replace(scores[name], ranking=ranking_CS)
                if kept is not None:
                    kept[name] = ranked
    return {name: scores[name] for name in states}


def logits_of_heads(
    model: Classifier, states: Mapping[str, State], names: Sequence[str], samples: Samples
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield, batch by batch, each state's name, the samples' indices (B,) and its logits (B, C).

    The states share the features, which a batch passes through once.
    """
    device = samples.labels_N.device
    model.load(states[names[0]])
    heads = {}
    for name in names:
        state = states[name]
        heads[name] = state["head.weight"].to(device), state["head.bias"].to(device)
    everything = torch.arange(len(samples), device=device)
    for indices_B in torch.split(everything, INFERENCE_BATCH[device.type]):
        features_BD = model.features(samples.batch(indices_B))
        for name, (weight_CD, bias_C) in heads.items():
            yield name, indices_B, F.linear(features_BD, weight_CD, bias_C)


def rank_outputs(
    outputs: Sequence[tuple[Tensor, Tensor]], subjects_N: Tensor | None
) -> tuple[Tensor, State]:
    """Return the ranking, and what was ranked: logarithms of probabilities, labels, and subjects if known.

    `outputs` are the batches of `tested`.
    """
    log_probabilities = torch.cat([log_probabilities for log_probabilities, _ in outputs])
    labels = torch.cat([labels for _, labels in outputs])
    ranked = {"log-probabilities": log_probabilities, "labels": labels}
    if subjects_N is not None:
        subjects_N = subjects_N.cpu()
        ranked["subjects"] = subjects_N
    return ranking(log_probabilities, labels, subjects_N), ranked


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
