"""The candidates of a race: trainings, and all heads that each of them can deploy.

A head that is made after the training, as CCVR's, costs next to nothing: it is one more candidate of the same training.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from data import SettingError, require
from fedskew.diagnosis.rules import CLOSED_FORM, Diagnosis, recommended_order
from fedskew.diagnosis.skews import SCANNER
from fedskew.method_selection.uploads import permissions_of, permitted
from server_app.composition import ComposedMethod, closed_form_methods, compose, starting_heads
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
FROM = " from "
"""Stands between a training and the head in closed form that it begins with: `fedshift from fed-lda`."""
SLOW_STARTERS: Mapping[str, Sequence[str]] = {SCANNER: ("fedbn",)}
"""Trainings that are behind after a third of the rounds and ahead at the end, by the skew that they answer."""


def split_start(name: str) -> tuple[str, str]:
    """Return the method of a candidate's name, and the head that its training begins with; "" for random weights."""
    method, _, head = name.partition(FROM)
    return method, head


def settings_of(name: str) -> dict[str, Scalar]:
    """Return the settings that make a candidate by its name: method, and head-start where it has one."""
    method, head = split_start(name)
    return {"method": method, "head-start": head} if head else {"method": method}


def composed(name: str) -> ComposedMethod:
    """Return the parts of a candidate's method. Raises SettingError for a name that there is not."""
    method, _ = split_start(name)
    return compose(method)


@dataclass(frozen=True, order=True)
class Candidate:
    """A method with a learning rate."""

    method: str
    """Its name in the race: `fedshift`, or `fedshift from fed-lda`."""
    learning_rate: float

    def as_json(self) -> dict[str, Scalar]:
        """Return what makes the candidate, by the settings' keys; `learning_rate` as result.json has always had it."""
        return {**settings_of(self.method), "learning_rate": self.learning_rate}

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
    continued: frozenset[str] = frozenset()
    """Trainings whose longer runs continue the shorter ones; all others start anew with every number of rounds."""

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
        composed(method)  # a name that there is not is an error
        try:
            runs[method] = parse({**settings, **settings_of(method)})
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


def from_best_head(
    methods: Sequence[str], settings: Mapping[str, Scalar], without: Collection[str] = ()
) -> list[str]:
    """Return the methods of a race in which training begins with the best head in closed form, where one fits.

    FedAvg and the heads that its training gives stay as they are, since the head in closed form is one of them. All
    other trainings begin with it, and so does FedAvg's in one more candidate. Nothing changes where the features are
    trained or augmented, where nobody trains, where the settings name a head themselves, or where a permission in
    `without` keeps the head's statistics at the sites.
    """
    if "head-start" in settings:
        return list(methods)
    head = best_start(settings, without)
    if not head:
        return list(methods)
    started = []
    for method in methods:
        names = composed(method).names
        of_fedavg = all(name in (BASELINE, *CHEAP_HEADS, *closed_form_methods()) for name in names)
        started.append(method if of_fedavg else f"{method}{FROM}{head}")
    return [*started, f"{BASELINE}{FROM}{head}"]


def best_start(settings: Mapping[str, Scalar], without: Collection[str]) -> str:
    """Return the most accurate head that training can begin with here; empty where there is none."""
    for head in sorted(starting_heads(), key=CLOSED_FORM.index):
        try:
            run = parse({**settings, **settings_of(f"{BASELINE}{FROM}{head}")})
        except SettingError as error:
            # What else is wrong with the settings is wrong for every method, and is refused there.
            if error.key not in ("model", "method", "head-start", "augmentation"):
                raise
            continue
        if not permissions_of(run) & frozenset(without):
            return head
    return ""


def contenders_by_training(
    runs: Mapping[str, RunSettings], diagnosis: Diagnosis | None
) -> Contenders:
    """Return the candidates by training, the diagnosis's recommendations first: time may not be enough for all."""
    heads = [*CHEAP_HEADS, *closed_form_methods()]
    trainings: dict[str, list[str]] = {BASELINE: []}
    # FedAvg is the first of the runs, and the last of its own heads.
    for method in sorted(runs, key=lambda name: name == BASELINE):
        names = composed(method).names
        trained = "+".join(name for name in names if name not in heads) or BASELINE
        _, head = split_start(method)
        if head:
            trained = f"{trained}{FROM}{head}"
        trainings.setdefault(trained, []).append(method)
    skews = [] if diagnosis is None else diagnosis.names
    slow = []
    for skew in skews:
        slow += [name for name in SLOW_STARTERS.get(skew, ()) if name in trainings]
    order = list(trainings)
    if diagnosis is not None:
        # A training answers the same skews whatever weights it begins with.
        by_method = {split_start(name)[0]: name for name in trainings if name != BASELINE}
        recommended = recommended_order(diagnosis, list(by_method))
        order = [BASELINE, *(by_method[method] for method in recommended)]
    return Contenders(
        {name: tuple(trainings[name]) for name in order},
        runs,
        always=(BASELINE, *slow),
        slow=tuple(slow),
    )
