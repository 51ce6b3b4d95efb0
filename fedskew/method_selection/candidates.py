"""The candidates of a race: trainings, and all heads that each of them can deploy.

A head that is made after the training, as CCVR's, costs next to nothing: it is one more candidate of the same training.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from data import SettingError, require
from fedskew.diagnosis.rules import Diagnosis, recommended_order
from fedskew.diagnosis.skews import SCANNER
from fedskew.method_selection.uploads import permissions_of, permitted
from server_app.composition import closed_form_methods, compose
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse

BASELINE = "fedavg"
TRAININGS = (
    BASELINE,
    "scaffold",
    "fedshift",
    "iwds",
    "fedbn",
    "fedprox",
    "fedlc",
    "fedavgm",
    "creff",
)
"""Those that need nothing but what clients have."""
CHEAP_HEADS = ("ccvr", "tau-norm")
"""Heads that are made after the last round, of any training."""
COSTLY_HEADS = ("creff", "creff-code", "real-features", "real-blocks")
"""Heads that take many times longer than the training: each is a candidate with a training of its own."""
SLOW_STARTERS: Mapping[str, Sequence[str]] = {SCANNER: ("fedbn",)}
"""Trainings that are behind after a third of the rounds and ahead at the end, by the skew that they answer."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A method with a learning rate."""

    method: str
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.method} ({self.learning_rate:g})"


@dataclass(frozen=True, order=True)
class Entrant:
    """A training with a learning rate, which all candidates of that training share."""

    training: str
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.training} ({self.learning_rate:g})"


@dataclass(frozen=True)
class Contenders:
    """The candidates of a race."""

    methods: Mapping[str, tuple[str, ...]]
    """By training the methods that it gives: of `scaffold` these are scaffold, scaffold+ccvr and so on."""
    runs: Mapping[str, RunSettings] = field(compare=False)
    """The settings of each method's run."""
    always: tuple[str, ...] = (BASELINE,)
    """Trainings that are in every race."""
    slow: tuple[str, ...] = ()
    """Trainings that no cut before the last round's numbers may drop."""

    @property
    def uploads_nothing(self) -> frozenset[str]:
        """The methods that upload nothing beside the model."""
        return frozenset(name for name, run in self.runs.items() if not permissions_of(run))

    def training_of(self, method: str) -> str:
        """Return the training that gives a method."""
        return next(name for name, methods in self.methods.items() if method in methods)

    def entrant_of(self, candidate: Candidate) -> Entrant:
        """Return what is trained for a candidate."""
        return Entrant(self.training_of(candidate.method), candidate.learning_rate)

    def candidates_of(self, entrants: Iterable[Entrant]) -> list[Candidate]:
        """Return the candidates of trainings, in their order."""
        candidates = []
        for entrant in entrants:
            for method in self.methods[entrant.training]:
                candidates.append(Candidate(method, entrant.learning_rate))
        return candidates


def possible(
    methods: Sequence[str],
    settings: Mapping[str, Scalar],
    without: Collection[str] = (),
) -> dict[str, RunSettings]:
    """Return the methods that go with the model and the data, each with its run; what fails for FedAvg is an error.

    Methods that need one of the permissions in `without` are left out.
    """
    runs = {BASELINE: parse({**settings, "method": BASELINE})}
    for method in methods:
        compose(method)  # a name that there is not is an error
        try:
            runs[method] = parse({**settings, "method": method})
        except SettingError as error:
            if error.key not in ("model", "method"):
                raise
    rule = "none but FedAvg goes with the model and the data"
    require(len(runs) > 1, "--method", ",".join(methods), rule)
    allowed, left_out = permitted(runs, without)
    rule = f"leaves none but FedAvg: {', '.join(left_out)} upload it"
    require(len(allowed) > 1, "--without", ",".join(without), rule)
    return allowed


def all_methods() -> list[str]:
    """Return the methods that race where none are stated: heads in closed form, then every training with every head."""
    methods: list[str] = []
    for training in TRAININGS:
        heads = () if training in COSTLY_HEADS else CHEAP_HEADS
        for head in heads:
            method = head if training == BASELINE else f"{training}+{head}"
            with suppress(SettingError):  # a head can need the model to be the same everywhere
                compose(method)
                methods.append(method)
        methods.append(training)
    return [*closed_form_methods(), *methods]


def contenders_by_training(
    runs: Mapping[str, RunSettings], diagnosis: Diagnosis | None
) -> Contenders:
    """Return the candidates by training, the diagnosis's recommendations first: time may not be enough for all."""
    heads = [*CHEAP_HEADS, *closed_form_methods()]
    trainings: dict[str, list[str]] = {BASELINE: []}
    # FedAvg is the first of the runs, and the last of its own heads.
    for method in sorted(runs, key=lambda name: name == BASELINE):
        names = compose(method).names
        trained = "+".join(name for name in names if name not in heads) or BASELINE
        trainings.setdefault(trained, []).append(method)
    skews = [] if diagnosis is None else diagnosis.names
    slow = []
    for skew in skews:
        slow += [name for name in SLOW_STARTERS.get(skew, ()) if name in trainings]
    order = list(trainings)
    if diagnosis is not None:
        others = [name for name in trainings if name != BASELINE]
        order = [BASELINE, *recommended_order(diagnosis, others)]
    return Contenders(
        {name: tuple(trainings[name]) for name in order},
        runs,
        always=(BASELINE, *slow),
        slow=tuple(slow),
    )
