"""The client, its report after a round, and the interface of local variants.

Shape letters, here and in the whole project: N a client's samples, B a batch, C classes, D features (the head's
inputs), K clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from client_app.models.classifier import Classifier, in_batches
from client_app.optimizer import TrainingSettings
from client_app.state import State, seed_of, split_prefix
from data import DataSettings, Samples, Settings


class Loss(Protocol):
    """The combined training loss, with gradients to the model's parameters."""

    def __call__(self, indices_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return the mean over the samples at `indices_B`, each times its weight; the weights' sum divides nothing."""


@dataclass(frozen=True)
class Client:
    """One client at the beginning of one round: everything a variant may look at."""

    id: int
    model: Classifier
    """The model as received: the server's shared weights, and this client's own private tensors."""
    samples: Samples
    num_classes: int
    round: int = 1
    """1-based; schedules count t = round - 1."""
    start: State = field(default_factory=dict)
    """The shared weights when the round began; private names are not among them."""
    broadcast: Mapping[str, State] = field(default_factory=dict)
    """What the server sent beside the model, by variant."""
    memory: Mapping[str, State] = field(default_factory=dict)
    """What this client kept in the last round whose update the server used, by variant."""
    seed: int = 0
    sampling_weights_N: Tensor | None = None
    """(N,) with which training draws the samples; None is a plain shuffle. `train_round` sets them."""
    prepared: Mapping[str, State] = field(default_factory=dict)
    """What the variants' `before` hooks prepared for this round's `loss_term`, by variant."""
    node_config: Mapping[str, object] = field(default_factory=dict)
    """What the configuration of the node that runs the client says; empty in a simulation."""

    @property
    def labels_N(self) -> Tensor:
        """(N,) int64."""
        return self.samples.labels_N

    @cached_property
    def counts_C(self) -> Tensor:
        """(C,) float64 on the CPU: samples of each class."""
        return torch.bincount(self.labels_N, minlength=self.num_classes).double().cpu()

    @cached_property
    def effective_prior_C(self) -> Tensor:
        """(C,) float64: the class distribution this client trains on, whatever sampler is at work."""
        if self.sampling_weights_N is None:
            return self.counts_C / len(self.samples)
        labels_N = self.labels_N.cpu()
        weights_N = self.sampling_weights_N.cpu()
        mass_C = torch.bincount(labels_N, weights_N, self.num_classes)
        return mass_C / mass_C.sum()

    @cached_property
    def drawn_C(self) -> Tensor:
        """(C,) float64: samples of each class that an epoch is expected to draw."""
        return self.effective_prior_C * len(self.samples)

    def features(self, state: State | None = None) -> Tensor:
        """Return (N, D) features of all samples, in eval mode and without gradient; the model's mode is restored.

        Args:
            state: the weights of another model of the same structure; None is the model as it is.
        """
        mode = self.model.training
        self.model.eval()
        features: Callable[[Tensor], Tensor] = self.model.features
        if state is not None:
            # The names are features.LAYER.TENSOR and head.TENSOR; a model without parameters there has no features.
            nested = {name: tensor for name, tensor in state.items() if "." in name}
            by_part = split_prefix(nested, ".")
            features = partial(functional_call, self.model.features, by_part.get("features", {}))
        features_ND = in_batches(features, self.samples)
        self.model.train(mode)
        return features_ND

    def generator(self, variant: str) -> torch.Generator:
        """Return a generator for `variant`'s draws in this round; no two variants share a stream."""
        return torch.Generator().manual_seed(seed_of(self.seed, variant))


@dataclass(frozen=True)
class Trained:
    """The result of local training, for the hooks that run after it."""

    steps: int
    """Optimizer steps taken."""
    coefficient_sum: float
    """||a||_1 of FedNova: the displacement, in units of the learning rate, under a gradient that is always 1.

    The variants' pull towards the start is part of it.
    """
    learning_rate: float
    state: State
    """The model's state after training, private names included."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    """How the run trains."""


@dataclass(frozen=True)
class Contribution:
    """The additions of a `before` or `after` hook to the report."""

    upload: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)
    prepared: State = field(default_factory=dict)
    """From `before` alone: for `loss_term`, in `client.prepared`. It is neither sent nor kept."""


@dataclass(frozen=True)
class Report:
    """A client's reply (shared, uploads, the numbers) and its memory."""

    examples: int
    loss: float
    """Mean training loss over the steps."""
    trained: Trained
    shared: State
    uploads: Mapping[str, State] = field(default_factory=dict)
    memory: Mapping[str, State] = field(default_factory=dict)


class InvalidReply(ValueError):
    """An error in a client's upload, as a sentence."""


@dataclass(frozen=True)
class UploadLimit:
    """The setting that bounds an upload, for a machine that cannot hold all of them."""

    setting: str
    """Its key, without the variant's section."""
    remedy: str
    """What it must then be, as `must be smaller`; ends the sentence of the error."""


def no_bytes(model: Classifier, classes_held: int) -> int:
    """Return 0: nothing is uploaded."""
    return 0


def anything_goes(reply: State, classes: int, samples: int | None) -> int:
    """Return 0: any reply is valid, and none says how many samples it describes."""
    return 0


@dataclass(frozen=True)
class Upload:
    """The upload of a variant beside the model. `Upload()` is nothing."""

    permission: str = ""
    """What it reveals, which a site allows or not: one of PERMISSIONS in local_site.py."""
    bytes: Callable[[Classifier, int], int] = no_bytes
    """(model, classes held) -> the bytes that a client with samples of so many classes sends at most.

    Of the model the shapes count, not the numbers.
    """
    validate: Callable[[State, int, int | None], int] = anything_goes
    """(reply, classes, samples) -> how many training samples the reply describes; 0 where it does not say.

    The server calls it for an answer. Raises InvalidReply. `samples` is the client's number of training
    samples, None where the server does not know it.
    """
    once: bool = False
    """Whether it is the variant's `answer`, sent once in a run; else it goes with every update."""
    question: str = ""
    """What the server asks all clients before round 1. The sum of their answers, which are int64, arrives
    in `client.broadcast`. Empty where nothing is asked then."""
    shapes: Callable[[Classifier], Mapping[str, tuple[int, ...]]] | None = None
    """model -> the names and shapes of the int64 tensors of an answer to `question`, where they are fixed."""
    question_needs: str = ""
    """The variant whose sum goes with the question, in `client.broadcast`; it is asked before."""
    by_client: bool = False
    """Whether the server keeps the answers apart, stacked in the order of the clients, in place of their sum."""
    returned: bool = True
    """Whether the sum is sent with every round. Server methods find it in `Server.answers` in any case."""
    limit: UploadLimit | None = None
    of_counts: Callable[[State, int], State] | None = None
    """({"counts": (C,) int64} summed over all clients, how many clients) -> the sum of the answers to `question`,
    where that is all they say: under masks one sum of class counts then serves every variant."""

    def __post_init__(self) -> None:
        if self.question and not self.once:
            raise ValueError(f"the answer to {self.question} is sent once: Upload(once=True)")
        if self.by_client and self.returned:
            raise ValueError("the clients' answers are not sent to each other: returned=False")


@dataclass(frozen=True)
class Requirements:
    """A variant's requirements of the model, the data, and the other variants and settings of a run."""

    batch_norm: bool = False
    """A model with batch norm. No other variant may say what of batch norm stays on the client."""
    images: bool = False
    """Images as inputs."""
    shared_weights: bool = False
    """Shared weights: where nothing is shared, the variant would do nothing."""
    own_head: bool = False
    """Features that train: each client keeps a head of its own, and no server method may need a shared one."""
    separate_models: bool = False
    """A model of its own for every client: nothing is shared."""
    uncorrected_prior: bool = False
    """No other variant that corrects the class prior, as this one does: it would be corrected twice."""
    sgd: bool = False
    """Local steps of SGD whose rate is the same in a round: the equations divide by the steps' lengths."""
    signed_loss: bool = False
    """A server that takes a negative training loss: a term of the loss has no lower bound."""
    teacher: bool = False
    """The logits of the model as received, in eval mode and without gradient: `loss_term`'s `teacher_BC`."""
    ignored_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that have no effect beside the variant, by key; the value is the reason.

    A run with another value than the default is refused. The reason ends the error
    "has no effect beside NAME, which ...".
    """


@dataclass(frozen=True)
class VariantTraits(Settings):
    """What a variant says about itself. Nothing of this changes the training."""

    name: ClassVar[str]
    requirements: ClassVar[Requirements] = Requirements()
    personal_model: ClassVar[bool] = False
    """Whether what a client keeps under the variant's name is a model of its own, which is measured beside the shared
    one. A client that keeps nothing yet has the shared one. Its training takes as many steps as the shared one's."""

    @property
    def upload(self) -> Upload:
        """What a client sends beside its model."""
        return Upload()

    def check(self, data: DataSettings) -> None:
        """Raise SettingError where the variant's settings do not go with the run's data."""

    def check_size(self, samples: int) -> None:
        """Raise SettingError where the variant's settings do not go with so many samples of all clients together."""

    def check_sum(self, total: State) -> None:
        """Raise SettingError where the variant's settings do not go with the sum of the answers to its question."""

    def kept_bytes(self, model: Classifier) -> int:
        """Return the bytes that a client keeps between rounds, its private tensors aside: for the cost estimate."""
        return 0

    def extra_samples(self, samples: int, classes_held: int) -> float:
        """Return how many samples a client passes through the model beside training: for the cost estimate.

        `samples` is how many it has. Forward and back; a forward pass alone counts a third. They count once in a
        run where the upload is sent once, and else once per round.
        """
        return 0.0


@dataclass(frozen=True)
class Variant(VariantTraits):
    """A local variant: its fields are the hyper-parameters, its hooks the paper's equations.

    Every hook returns a contribution that the training loop combines with those of the other variants by a commutative
    rule, so variants compose in any order. Variants hold no state: state enters by `client.memory` and leaves in the
    `Contribution`s.
    """

    @property
    def proximal_mu(self) -> float:
        """Strength mu of a pull mu (w - w^t) that `gradient_offset` adds: FedNova counts it. Combined by sum."""
        return 0.0

    @property
    def head_first(self) -> int:
        """Epochs in which the head alone trains, before the features alone do; 0 trains all together. Combined by
        maximum."""
        return 0

    def private_names(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the model's state that never leave the client. Combined by union."""
        return frozenset()

    def labels(self, client: Client) -> Tensor | None:
        """Return (N,) labels or (N, C) probabilities to train towards, or None for the samples' own labels.

        The cross-entropy alone uses them: other hooks see the samples' own. At most one variant changes labels.
        """
        return None

    def sample_weights(self, client: Client) -> Tensor | None:
        """Return (N,) float64 >= 0, unnormalized, or None for a plain shuffle. At most one variant samples."""
        return None

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,), or (C, C) with one row a label, to add to the training logits, or None. Combined by sum."""
        return None

    def logit_scale(self, client: Client) -> Tensor | None:
        """Return (C,) factors of the training logits, before any offset, or None. Combined by product."""
        return None

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return (B,) weights of the samples' cross-entropies; `logits_BC` have all offsets. Combined by product."""
        return torch.ones_like(logits_BC[:, 0])

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        """Return (B,) to add to the samples' losses, after all weights. Combined by sum.

        A term of the whole batch is the same number for each sample, as the loss is the mean over the batch.

        Args:
            indices_B: the samples: `client.labels_N[indices_B]` are their labels.
            features_BD: the head's inputs, with gradient, from the pass that gave the logits.
            logits_BC: the model's logits, without offsets.
            teacher_BC: the logits of the model as received for the same inputs, in eval mode and without
                gradient; None unless `Requirements.teacher` of some variant asks for them.
        """
        return torch.zeros_like(logits_BC[:, 0])

    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        """Return what to add to the gradient of parameter `name`, shaped like `weight`, or None. Combined by sum."""
        return None

    def before(self, client: Client, loss: Loss) -> Contribution:
        """Contribute what depends on the model as received. Disjoint by name."""
        return Contribution()

    def after(self, client: Client, trained: Trained) -> Contribution:
        """Contribute what depends on the trained model. Disjoint by name."""
        return Contribution()

    def answer(self, client: Client, question: str) -> State:
        """Return the answer to a question asked outside training, or nothing when it is another variant's."""
        return {}


REPORTING_HOOKS = frozenset({"before", "after", "answer"})
"""Hooks that only make uploads and memory, which the training itself never reads."""

Hook = TypeVar("Hook", bound=Callable[..., Tensor | None])


def vectorizable(hook: Hook) -> Hook:
    """Mark a variant's `loss_weights`, `loss_term` or `gradient_offset` as one that torch.vmap can map over clients.

    Such a hook branches on no tensor's values. Of the client it reads nothing but start, broadcast, memory,
    round, num_classes, counts_C, effective_prior_C, drawn_C and, in `loss_term`, labels_N[indices_B]. A sample's
    `loss_term` then depends on no other sample of its batch. The other hooks need no mark: they are called
    client by client.
    """
    hook.vectorizable = True  # type: ignore[attr-defined]
    return hook


def overrides(variant: Variant | type[Variant], hook: str) -> bool:
    """Return whether `variant` has its own `hook`: the loop skips the ones that would contribute nothing."""
    variant_class = variant if isinstance(variant, type) else type(variant)
    return getattr(variant_class, hook) is not getattr(Variant, hook)


def affects_training(variant_class: type[Variant]) -> bool:
    """Return whether training with the variant can differ from training without it.

    It can where the variant overrides a hook that does more than report. A new hook of `Variant` counts as one.
    """
    for name, member in vars(Variant).items():
        is_hook = isinstance(member, FunctionType | property) and not name.startswith("_")
        if is_hook and name not in REPORTING_HOOKS and overrides(variant_class, name):
            return True
    return False
