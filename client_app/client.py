"""The client, its report after a round, and the interface of local variants.

Shape letters, here and in the whole project: N a client's samples, B a batch, C classes, D features (the head's
inputs), K clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from client_app.models.classifier import Classifier, in_batches
from client_app.state import State, seed_of
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
    node_config: Mapping[str, object] = field(default_factory=dict)
    """What the configuration of the node that plays the client says; empty in a simulation."""

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
        mass_C = torch.bincount(
            self.labels_N.cpu(), self.sampling_weights_N.cpu(), self.num_classes
        )
        return mass_C / mass_C.sum()

    @cached_property
    def drawn_C(self) -> Tensor:
        """(C,) float64: samples of each class that an epoch is expected to draw."""
        return self.effective_prior_C * len(self.samples)

    def features(self) -> Tensor:
        """Return (N, D) features of all samples, in eval mode and without gradient; the model's mode is restored."""
        mode = self.model.training
        self.model.eval()
        features_ND = in_batches(self.model.features, self.samples)
        self.model.train(mode)
        return features_ND

    def generator(self, variant: str) -> torch.Generator:
        """Return a generator for `variant`'s draws in this round; no two variants share a stream."""
        return torch.Generator().manual_seed(seed_of(self.seed, variant))


@dataclass(frozen=True)
class Trained:
    """What local training did, for the hooks that run after it."""

    steps: int
    """Optimizer steps taken."""
    coefficient_sum: float
    """||a||_1 of FedNova: the displacement, in units of the learning rate, under a gradient that is always 1.

    The variants' pull towards the start is part of it.
    """
    learning_rate: float
    state: State
    """The model's state after training, private names included."""


@dataclass(frozen=True)
class Contribution:
    """What a `before` or `after` hook adds to the report."""

    upload: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a client sends back (shared, uploads, the numbers) and what it keeps (memory)."""

    examples: int
    loss: float
    """Mean training loss over the steps."""
    trained: Trained
    shared: State
    uploads: Mapping[str, State] = field(default_factory=dict)
    memory: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant(Settings):
    """A local variant: its fields are the hyper-parameters, its hooks the paper's equations.

    Every hook returns a contribution that the training loop combines with those of the other variants by a commutative
    rule, so variants compose in any order. Variants hold no state: state enters by `client.memory` and leaves in the
    `Contribution`s.
    """

    name: ClassVar[str]
    corrects_prior: ClassVar[bool] = False
    """Whether the variant corrects the class prior; two that do would correct it twice and are refused together."""
    draws_samples: ClassVar[bool] = False
    """Whether the variant draws the samples; only one can."""
    needs_batch_norm: ClassVar[bool] = False
    """Whether the variant is about batch norm and refuses a model without."""
    needs_images: ClassVar[bool] = False
    """Whether the variant changes images and refuses inputs that are none."""
    needs_shared: ClassVar[bool] = False
    """Whether the variant would do nothing where no weights are shared."""
    trains_together: ClassVar[bool] = False
    """Whether torch.vmap can map `loss_weights` and `gradient_offset` over clients: no branch on a tensor's values, and
    of the client nothing but start, broadcast, memory, round, num_classes, counts_C, effective_prior_C and drawn_C. A
    variant that overrides neither needs no word: its other hooks are called client by client."""
    shares_nothing: ClassVar[bool] = False
    """Whether the variant keeps the whole model on the client."""
    upload_setting: ClassVar[str] = ""
    """The setting that bounds what is uploaded, for a machine that cannot hold it; empty where there is none."""
    upload_remedy: ClassVar[str] = ""
    """What that setting must then be, as `must be smaller`."""

    makes_idle: ClassVar[Mapping[str, str]] = {}
    """Keys of the run's settings that change nothing beside the variant, and what it does that this is so."""

    def check(self, data: DataSettings) -> None:
        """Raise SettingError where the variant's settings do not go with the run's data."""

    @property
    def pull(self) -> float:
        """Strength mu of a pull mu (w - w^t) that `gradient_offset` adds: FedNova counts it. Combined by sum."""
        return 0.0

    @property
    def question(self) -> str | None:
        """What all clients must be asked once before round 1; their answers' sum arrives in `client.broadcast`."""
        return None

    @property
    def reveals(self) -> str:
        """What a client tells with the upload: one of PERMISSIONS in local_site.py; empty where nothing is uploaded."""
        return ""

    @property
    def asked_once(self) -> bool:
        """Whether the upload is the answer to a question, sent once in a run; else it goes with every update."""
        return overrides(self, "answer")

    def upload_bytes(self, model: Classifier, classes_held: int) -> int:
        """Return the bytes that a client holding samples of so many classes uploads at most.

        Of the model the shapes count, not the numbers; so below.
        """
        return 0

    def kept_bytes(self, model: Classifier) -> int:
        """Return the bytes that a client keeps between rounds, its private tensors aside."""
        return 0

    def extra_samples(self, samples: int, classes_held: int) -> float:
        """Return how many samples a client that holds so many passes through the model beside training.

        Forward and back; a forward pass alone counts a third.
        """
        return 0.0

    def breach(self, answer: State, classes: int, samples: int | None) -> str:
        """Return what is wrong with a client's answer to `question`, or an empty sentence; the server asks.

        `samples` is the client's number of training samples, None where the server does not know it.
        """
        return ""

    def samples_told(self, answer: State) -> int:
        """Return of how many training samples a client's answer, in which `breach` finds nothing, tells; 0 of none."""
        return 0

    def private_names(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the model's state that never leave the client. Combined by union."""
        return frozenset()

    def sample_weights(self, client: Client) -> Tensor | None:
        """Return (N,) float64 >= 0, unnormalized, or None for a plain shuffle. At most one variant samples."""
        return None

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,), or (C, C) with one row a label, to add to the training logits, or None. Combined by sum."""
        return None

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return (B,) weights of the samples' cross-entropies; `logits_BC` have all offsets. Combined by product."""
        return torch.ones_like(logits_BC[:, 0])

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


def overrides(variant: Variant, hook: str) -> bool:
    """Return whether `variant` has its own `hook`: the loop skips the ones that would contribute nothing."""
    return getattr(type(variant), hook) is not getattr(Variant, hook)
