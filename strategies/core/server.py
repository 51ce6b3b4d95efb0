"""The interface of server methods: their inputs (Server, Update) and their hooks (ServerMethod)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import torch

from client_app.client import Variant, check_needs
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, seed_of
from data import Samples, SettingError, Settings
from data.agreement import Member

AVERAGE = "average"
"""Name of the combined model among the deployed ones."""


class Diverged(RuntimeError):
    """A model that is no longer finite: the run ends, its last checkpoint kept.

    Args:
        round: in which it happened.
        reason: what is not finite.
        remedy: what may help.
        client: the name of the client to blame; empty where none is.
    """

    def __init__(
        self,
        round: int,
        reason: str,
        remedy: str = "a lower learning-rate may help",
        client: str = "",
    ) -> None:
        super().__init__(f"diverged in round {round}: {reason} ({remedy})")
        self.round = round
        self.reason = reason
        self.remedy = remedy
        self.client = client


@dataclass(frozen=True)
class Update:
    """One client's validated reply in a round."""

    client: int
    shared: State
    examples: int
    uploads: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """loss, steps, coefficient-sum (FedNova's ||a||_1), seconds; and the methods' numbers, by VARIANT/NAME."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the client's memory and of its data, as far as it has any."""


@dataclass(frozen=True)
class Server:
    """The server at the end of one round: everything a server method may look at, but for its own state."""

    model: Classifier
    """For shapes and for forward passes; its weights have no meaning."""
    start: State
    """The shared weights when the round began."""
    clients: int
    """All clients K, taking part or not."""
    round: int
    seed: int
    training: TrainingSettings
    device: str = "cpu"
    """Where a method's own optimization runs."""
    parameters: frozenset[str] = frozenset()
    """Names of the parameters; the other names of the state are buffers."""
    examples_by_client: Mapping[int, int] = field(default_factory=dict)
    """Training samples of each client: known from the start, or what a client said first."""
    proximal_mu: float = 0.0
    """Strength mu of the clients' pull towards `start`; 0 without."""
    holdout: Samples | None = None
    """The server's own samples, which no client holds."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """The local variants at work, by name."""
    answers: Mapping[str, State] = field(default_factory=dict)
    """Of the questions before round 1, by variant: the sums of all clients' answers, or the answers themselves, stacked
    in the order of the clients, where the variant's `Upload.by_client` says so."""
    final_answers: Mapping[int, State] = field(default_factory=dict)
    """The answers to a question after the last round, sorted by client; none before it is asked."""
    sites: Sequence[Member] = ()
    """Between sites those of the agreement, by client; none in a simulation."""

    @property
    def examples(self) -> int:
        """Training samples of all clients together; 0 where the server does not know all of them."""
        if len(self.examples_by_client) == self.clients:
            return sum(self.examples_by_client.values())
        return 0

    def own_samples(self, method: str) -> Samples:
        """Return the hold-out on the server's device. Raises SettingError where there is none."""
        if self.holdout is None:
            raise needs_holdout(method)
        return self.holdout

    def generator(self, method: str) -> torch.Generator:
        """Return a generator for `method`'s draws in this round; no two methods share a stream."""
        return torch.Generator().manual_seed(seed_of(self.seed, "server", self.round, method))


def needs_holdout(method: str) -> SettingError:
    """Return the error of a method that works on images of the server's own where there are none."""
    return SettingError(
        "holdout-per-class", 0, f"{method} needs images of the server's own: must be at least 1"
    )


Numbers = Mapping[str, float | Sequence[float]]
"""What a method tells the round's record, by name; of one by class the name ends in `-by-class`."""


class Unit(StrEnum):
    """The unit of a recorded number; a share is shown in percent."""

    PERCENT = "percent"
    NATS = "nats"
    NONE = ""


@dataclass(frozen=True)
class Deployment:
    """The models that a method deploys beside the combined model."""

    models: Mapping[str, State]
    """Shared weights, by the name under which they are evaluated."""
    state: State = field(default_factory=dict)
    metrics: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class ServerMethod(Settings):
    """A method's server side; its fields are the hyper-parameters. It fills `combine`, which one method of a run does,
    or `deploy`, which any number do.

    State is an argument and a result, named tensors like everything else, so that checkpoints and resume need no code
    in a method.
    """

    name: ClassVar[str]
    uses: ClassVar[str] = ""
    """The local variant whose `Upload` the method needs. It says when that is sent: with every update (uploads that no
    method uses are refused), in `Server.answers` before round 1, or in `Server.final_answers` after the last round,
    when `deploy` is called once."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it requires of a run: words of NEEDS."""
    adds_model: ClassVar[bool] = True
    """Whether `deploy` adds models; False where it only records numbers, and keeps a state that `broadcast` sends."""
    deploys_for_evaluation: ClassVar[bool] = False
    """Whether what it deploys matters to evaluation alone: it keeps no state and records no numbers, so that it deploys
    in evaluated rounds and not in between."""
    units: ClassVar[Mapping[str, Unit]] = {}
    """The unit of every number that the method tells the round's record, by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_needs(cls)

    @property
    def needs_holdout(self) -> bool:
        """Whether the method works on `Server.holdout`."""
        return False

    def initial_state(self, server: Server) -> State:
        """Return the state before round 1."""
        return {}

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        """Return what is sent to clients beside the model, by variant."""
        return {}

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        """Return the shared weights made from the updates (sorted by client), and the new state."""
        raise TypeError(f"{self.name} does not combine updates")

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        """Return the models to evaluate and ship beside `shared`, the new state, and what to record."""
        raise TypeError(f"{self.name} does not deploy")
