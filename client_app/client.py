"""The client, its report after a round, and `Variant`, the interface of local variants.

Shape letters in the whole project: N samples of a client, B samples of a batch, C classes, D features (the head's
inputs), K clients. A name such as logits_BC ends with its shape.
"""

import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from inspect import isclass
from types import FunctionType, ModuleType
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from client_app.models.classifier import Classifier, functional_parts, in_batches
from client_app.optimizer import TrainingSettings
from client_app.state import State, seed_of
from data import Samples, Settings

NUMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
"""VARIANT/NAME of a client's number: letters that a file of JSON and every tracker take."""
MOST_NUMBERS, LONGEST_NAME, LARGEST_NUMBER = 32, 64, 1e30
"""Numbers in a client's reply, characters of VARIANT/NAME, and the largest value, as of the loss."""

LARGEST_VALUE = 1e10
"""Largest absolute value in a tensor from a client. Successful training stays far below it, and sums of squares of such
values do not overflow float32."""

Loss = Callable[[Tensor], Tensor]
"""(indices_B) -> the combined training loss, its mean over these samples, with gradients to the model's parameters."""


@dataclass(frozen=True)
class Client:
    """One client at the beginning of a round: everything that a variant's hooks may read."""

    id: int
    model: Classifier
    """The model with the server's shared weights and this client's private tensors. Training changes it in place."""
    samples: Samples
    num_classes: int
    round: int = 1
    """1-based; schedules use t = round - 1. 0 for a question outside training."""
    start: State = field(default_factory=dict)
    """The shared weights at the beginning of the round, without private names."""
    broadcast: Mapping[str, State] = field(default_factory=dict)
    """The states that the server sent in addition to the model, by variant."""
    memory: Mapping[str, State] = field(default_factory=dict)
    """The states that this client saved in the last round whose update the server used, by variant."""
    seed: int = 0
    """Seed of this client's draws in this round."""
    sampling_weights_N: Tensor | None = None
    """(N,) weights with which training draws samples; None is a plain shuffle. `train_round` sets them."""
    prepared: Mapping[str, State] = field(default_factory=dict)
    """The states that `before` hooks prepared for this round's `loss_term`, by variant."""
    parameters: Mapping[str, State] = field(default_factory=dict)
    """The values of the variants' own parameters, by variant; every step of training changes them in place."""

    @property
    def labels_N(self) -> Tensor:
        """(N,) int64: the samples' class labels."""
        return self.samples.labels_N

    @cached_property
    def counts_C(self) -> Tensor:
        """(C,) float64 on the CPU: number of samples per class."""
        return torch.bincount(self.labels_N, minlength=self.num_classes).double().cpu()

    @cached_property
    def effective_prior_C(self) -> Tensor:
        """(C,) float64: the class distribution that training sees, with sampling weights if there are any."""
        if self.sampling_weights_N is None:
            return self.counts_C / len(self.samples)
        labels_N = self.labels_N.cpu()
        weights_N = self.sampling_weights_N.cpu()
        mass_C = torch.bincount(labels_N, weights_N, self.num_classes)
        return mass_C / mass_C.sum()

    @cached_property
    def drawn_C(self) -> Tensor:
        """(C,) float64: expected number of samples per class that an epoch draws."""
        return self.effective_prior_C * len(self.samples)

    def features(self, state: State | None = None) -> Tensor:
        """Return (N, D) features of all samples, in eval mode and without gradient; the model's mode is restored.

        Args:
            state: the state of another model of the same architecture; None uses `self.model` as it is.
        """
        mode = self.model.training
        self.model.eval()
        features: Callable[[Tensor], Tensor] = self.model.features
        if state is not None:
            features, _ = functional_parts(self.model, state)
        features_ND = in_batches(features, self.samples)
        self.model.train(mode)
        return features_ND

    def generator(self, variant: str) -> torch.Generator:
        """Return a new generator for the draws of `variant` in this round, seeded differently for each variant."""
        return torch.Generator().manual_seed(seed_of(self.seed, variant))


@dataclass(frozen=True)
class Trained:
    """The result of local training, for the hooks that run after it."""

    steps: int
    """Optimizer steps taken."""
    coefficient_sum: float
    """||a||_1 of FedNova: how far the steps move a weight, in units of the learning rate, if its gradient is always 1.

    Momentum and the proximal terms of the variants (`proximal_mu`) are included.
    """
    learning_rate: float
    """The rate of the round's steps."""
    state: State
    """The model's state after training, including private names."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    """The run's training settings."""


@dataclass(frozen=True)
class Contribution:
    """The result of a `before` or `after` hook."""

    upload: State = field(default_factory=dict)
    """Sent to the server with the update."""
    memory: State = field(default_factory=dict)
    """Saved at the client, which has it in `client.memory` once the server has used the update."""
    prepared: State = field(default_factory=dict)
    """Only from `before`: `loss_term` has it in `client.prepared`. It is neither sent nor saved."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Sent with the update and recorded under VARIANT/NAME: finite, at most MOST_NUMBERS of a client in a round.
    Between sites they need the permission `scores`, whatever samples they are about."""


@dataclass(frozen=True)
class Report:
    """The result of a client's round: what it sends (shared, uploads and numbers), and the memory that it saves."""

    examples: int
    """Number of the client's training samples N."""
    loss: float
    """Mean training loss over the steps."""
    trained: Trained
    shared: State
    """The model's state after training, without private names."""
    uploads: Mapping[str, State] = field(default_factory=dict)
    """By variant."""
    memory: Mapping[str, State] = field(default_factory=dict)
    """By variant, and the private tensors under "private"."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The variants' numbers, by VARIANT/NAME."""
    drawn: int | None = None
    """Different samples that a variant has drawn with replacement; None where none draws, or clients train stacked."""


class InvalidReply(ValueError):
    """A check found an error in a client's reply; the message is a sentence about it."""


def check_numbers(numbers: Mapping[str, float]) -> None:
    """Raise InvalidReply unless these can be a client's numbers, by VARIANT/NAME. Both sides of a message call it."""
    if len(numbers) > MOST_NUMBERS:
        raise InvalidReply(
            f"{len(numbers)} numbers of methods, and at most {MOST_NUMBERS} are taken"
        )
    for name, value in numbers.items():
        shown = ascii(name[:LONGEST_NAME])
        if len(name) > LONGEST_NAME or not NUMBER_NAME.fullmatch(name):
            rule = f"must be VARIANT/NAME of letters, digits and _.-, at most {LONGEST_NAME} characters"
            raise InvalidReply(f"number {shown} {rule}")
        if not math.isfinite(value):
            raise InvalidReply(f"number {shown} is not finite")
        if abs(value) > LARGEST_NUMBER:
            raise InvalidReply(f"number {shown} is {value:g} and must be within {LARGEST_NUMBER:g}")


class TensorSpec(NamedTuple):
    """What a tensor of an upload must be: the server checks it before it computes anything from it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    low: float = -LARGEST_VALUE
    high: float = LARGEST_VALUE
    """The smallest and the largest value."""


def integers(*shape: int, low: int = -(2**63), high: int = 2**63 - 1) -> TensorSpec:
    """Return what an int64 tensor must be, as in the answers of which the server takes the sum."""
    return TensorSpec(torch.int64, shape, low, high)


def no_tensors(model: Classifier, shared: State) -> dict[str, TensorSpec]:
    """Return {}: the default of `Upload.tensors`."""
    return {}


def anything_goes(reply: State, classes: int, samples: int | None) -> int:
    """Return 0: the default of `Upload.validate`, which accepts any reply."""
    return 0


@dataclass(frozen=True)
class Upload:
    """The states that a variant uploads in addition to the model. `Upload()` is no upload."""

    permission: str = ""
    """The permission that a site's policy must grant for this upload: one of PERMISSIONS in local_site.py."""
    tensors: Callable[[Classifier, State], Mapping[str, TensorSpec]] = no_tensors
    """(model, shared weights) -> the upload's tensors by name; only names and shapes of the arguments are used.

    The server refuses an upload with other tensors. It reads records up to a size that the model alone gives: 2 (C + 1)
    times its weights and a (D, D) float64 covariance of the features.
    """
    by_class: bool = False
    """Whether `tensors` are the rows of one class: the upload has n rows of each, and "classes", (n,) int64 ascending.
    """
    validate: Callable[[State, int, int | None], int] = anything_goes
    """(reply, classes, samples) -> how many training samples the reply describes; 0 if it does not say.

    The server calls it for a reply that has the stated tensors. `classes` is C, `samples` the client's number of
    training samples, or None if the server does not know it. Raises InvalidReply.
    """
    question: str = ""
    """Name of the question that the server asks all clients once, and that `answer` answers; "" where the upload is
    sent with every update."""
    at_end: bool = False
    """False: it is asked before round 1. The answers are int64 tensors, and clients have their sum in
    `client.broadcast`. True: it is asked after the last round, and only the server has the answers."""
    question_needs: str = ""
    """The variant whose sum clients need for their answer. Its question is asked first, and the sum is then sent with
    this question, in `client.broadcast`."""
    by_client: bool = False
    """Whether the server stacks the answers, one row per client in their order, and does not sum them."""
    returned: bool = True
    """Whether clients get the sum in every round. Server methods have it in `Server.answers` in any case."""
    of_counts: Callable[[State, int], State] | None = None
    """({"counts": (C,) int64} summed over all clients, number of clients) -> the sum of the answers to `question`.

    Set it if the answers follow from the class counts. With masked sums the server then asks for class counts only
    once for all such variants.
    """

    def __post_init__(self) -> None:
        if self.at_end and not self.question:
            raise ValueError("what is asked at the end is a question: name it")
        if self.by_client and self.returned:
            raise ValueError("the clients' answers are not sent to each other: returned=False")

    @property
    def is_answer(self) -> bool:
        """Whether it answers a question before round 1."""
        return self.question != "" and not self.at_end


NEEDS: Mapping[str, str] = {
    "batch-norm": "the model has batch norm, and no other variant decides which of its tensors stay on the client",
    "fixed-features": "the features stay as they are: what is deployed is made of answers before round 1 alone",
    "images": "the inputs are images",
    "own-head": "the features train, and no method needs a shared head: each client has its own",
    "separate-models": "every client has its own model, and no weights are shared",
    "sgd": "clients take steps of SGD at one rate per round, as the equations divide by the steps' lengths",
    "shared-head": "the head is shared: no client keeps its own",
    "shared-weights": "the clients share weights; without any the variant would have no effect",
    "signed-loss": "the server accepts a negative training loss, as one of the loss terms has no lower bound",
    "teacher": "`loss_term` gets `teacher_BC`: logits of the model as received, in eval mode and without gradient",
    "trained-features": "the features train: on features that stay as they are, nothing would be changed",
    "uncorrected-prior": "no other variant corrects the class prior, which would then be corrected twice",
    "whole-model": "the model is the same everywhere: no client keeps a part of it",
}
"""What variants and server methods may need of a run's model, data, settings and other methods."""


def check_needs(part: type) -> None:
    """Raise TypeError for a variant or server method that needs what is not in NEEDS."""
    unknown = part.needs - NEEDS.keys()  # type: ignore[attr-defined]
    if unknown:
        raise TypeError(f"{part.__name__}.needs: {min(unknown)} is none of {', '.join(NEEDS)}")


@dataclass(frozen=True)
class Variant(Settings):
    """A local variant: its fields are the hyper-parameters, its hooks the paper's equations.

    The training loop combines the results of each hook over all variants by the rule in the hook's docstring. The rules
    are commutative, so the order of the variants does not matter. A variant object has no state: it reads
    `client.memory` and returns new memory in a `Contribution`.
    """

    name: ClassVar[str]
    """The variant's name in `method` and the section of its settings."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it requires of a run: words of NEEDS."""
    personal_model: ClassVar[bool] = False
    """Whether the variant's memory is a personal model of the client, evaluated in addition to the shared model.

    A client without memory has the shared model. Training the personal model takes as many steps as the shared one.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_needs(cls)

    @property
    def upload(self) -> Upload:
        """The states that a client sends in addition to its model."""
        return Upload()

    def check_sum(self, total: State) -> None:
        """Raise SettingError if the variant's settings contradict `total`, the sum of the answers to its question."""

    @property
    def proximal_mu(self) -> float:
        """Strength mu of a term mu (w - w^t) that `gradient_offset` adds: FedNova counts it. Combined by sum."""
        return 0.0

    @property
    def head_first(self) -> int:
        """Epochs in which only the head trains, before only the features train; 0 trains all parameters together.
        Combined by maximum."""
        return 0

    def private_names(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the state's tensors that never leave the client. Combined by union."""
        return frozenset()

    def parameters(self, client: Client) -> State:
        """Return the initial values of parameters that the variant owns and the optimizer trains, by name.

        They take part in every step beside the model's, with its rate, weight decay and clip-norm. All other hooks have
        their current values in `client.parameters[NAME OF THE VARIANT]`, and `logit_scale` and `logit_offset` are asked
        anew in every step. They are the client's own: kept in its memory under the variant's name, where the next round
        finds them, and sent only by what `after` uploads. Floating-point tensors; others are converted.
        """
        return {}

    def sample_weights(self, client: Client) -> Tensor | None:
        """Return (N,) float64 weights >= 0 for drawing samples, unnormalized, or None. At most one variant samples."""
        return None

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,) to add to the training logits, or None. Combined by sum."""
        return None

    def logit_scale(self, client: Client) -> Tensor | None:
        """Return (C,) factors of the training logits, applied before the offsets, or None. Combined by product."""
        return None

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return (B,) factors of the samples' cross-entropies. Combined by product.

        `logits_BC` include all scales and offsets.
        """
        return torch.ones_like(logits_BC[:, 0])

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        """Return (B,) terms to add to the samples' weighted cross-entropies. Combined by sum.

        For a term of the whole batch, return the same number for each sample: the loss is the mean over the batch.

        Args:
            indices_B: indices of the samples; `client.labels_N[indices_B]` are their labels.
            features_BD: the head's inputs, with gradient, from the same forward pass as the logits.
            logits_BC: the model's logits, without scales and offsets.
            teacher_BC: the logits of the model as received for the same inputs, in eval mode and without
                gradient; None unless some variant needs a teacher.
        """
        return torch.zeros_like(logits_BC[:, 0])

    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        """Return what to add to the gradient of parameter `name`, shaped like `weight`, or None. Combined by sum."""
        return None

    def before(self, client: Client, loss: Loss) -> Contribution:
        """Return a contribution computed from the model as received, before training. Combined by name.

        `client.model` is in eval mode. A name must not be contributed by `after` as well.
        """
        return Contribution()

    def after(self, client: Client, trained: Trained) -> Contribution:
        """Return a contribution computed from the trained model. Combined by name, as that of `before`."""
        return Contribution()

    def answer(self, client: Client) -> State:
        """Return the answer to `upload.question`, which is asked outside training."""
        return {}


REPORTING_HOOKS = frozenset({"before", "after", "answer", "upload", "check_sum"})
"""Members that cannot change training: their results are sent, saved, checked, or read by another hook."""

Part = TypeVar("Part")
Hook = TypeVar("Hook", bound=Callable[..., Tensor | None])


def vectorizable(hook: Hook) -> Hook:
    """Decorator: declare that torch.vmap can map a `loss_weights`, `loss_term` or `gradient_offset` over clients.

    Such a hook must not branch on the values of tensors. Of the client it may read only start, broadcast, memory,
    round, num_classes, counts_C, effective_prior_C, drawn_C and, in `loss_term`, labels_N[indices_B]. The `loss_term`
    of a sample must not depend on the other samples of its batch. All other hooks are called client by client and need
    no declaration.
    """
    hook.vectorizable = True  # type: ignore[attr-defined]
    return hook


def overrides(variant: Variant | type[Variant], hook: str) -> bool:
    """Return whether `variant` overrides `hook`; the training loop skips hooks that are not overridden."""
    variant_class = variant if isinstance(variant, type) else type(variant)
    return getattr(variant_class, hook) is not getattr(Variant, hook)


def affects_training(variant_class: type[Variant]) -> bool:
    """Return whether the variant can change local training: whether it overrides a hook outside REPORTING_HOOKS.

    A hook that is added to `Variant` counts as changing training until it is listed there.
    """
    for name, member in vars(Variant).items():
        is_hook = isinstance(member, FunctionType | property) and not name.startswith("_")
        if is_hook and name not in REPORTING_HOOKS and overrides(variant_class, name):
            return True
    return False


def parts_in(package: ModuleType, base: type[Part]) -> dict[str, type[Part]]:
    """Return the subclasses of `base` that a package's modules define and name, by their names, in order."""
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    parts: dict[str, type[Part]] = {}
    for module in modules:
        for part in vars(module).values():
            if not isclass(part) or not issubclass(part, base):
                continue
            name = vars(part).get("name")  # its own, not one that it inherits
            if name is not None:
                parts[name] = part
    return parts
