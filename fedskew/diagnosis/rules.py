"""What is known to fail where: each rule rests on an experiment of experiments.yaml, measured in docs/diagnose.md."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedskew.diagnosis.skews import (
    GLOBAL_TAIL,
    LABEL,
    LOCAL_TAILS,
    RESOLVED,
    SCANNER,
    TELLS,
    Skew,
    skews,
)
from fedskew.diagnosis.statistics import Shift, Statistics, shift_of, statistics
from fedskew.diagnosis.table import Moments, SiteTable

if TYPE_CHECKING:  # it imports torch, which a table needs not
    from server_app.run_settings import RunSettings


@dataclass(frozen=True)
class Plan:
    """What is known of the training beside the counts."""

    batch_size: int = 32
    participation: float = 1.0


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a table shows."""

    table: SiteTable
    numbers: Statistics
    shift: Shift | None
    skews: Sequence[Skew]
    plan: Plan = field(default_factory=Plan)

    @property
    def names(self) -> tuple[str, ...]:
        """The skews' names; none is an empty tuple."""
        return tuple(skew.name for skew in self.skews)

    @property
    def small_sites(self) -> tuple[str, ...]:
        """The sites of one batch or less."""
        sizes = self.table.counts_KC.sum(1).tolist()
        return tuple(
            site
            for site, size in zip(self.table.sites, sizes, strict=True)
            if size <= self.plan.batch_size
        )

    @property
    def remark(self) -> str:
        """What the table cannot show."""
        remarks = []
        if self.numbers.information_p > 0.01 and self.numbers.resolution > RESOLVED:
            seen = f"below {self.numbers.resolution:.0%} of the classes' entropy"
            remarks.append(f"{self.numbers.samples} samples are too few to see a label skew {seen}")
        if self.shift is None:
            remarks.append("counts cannot show scanners: state --moments")
        return "; ".join(remarks)


@dataclass(frozen=True)
class Rule:
    """A method that is known to fail where something holds of a table."""

    method: str
    experiment: str
    """The entry of experiments.yaml that shows it."""
    why: str
    """Where it fails, and what was measured: percent of balanced accuracy, a mean of three seeds."""
    applies: Callable[[Diagnosis], bool]


Sources = Iterator[tuple[str, SiteTable, Plan]]
"""By title."""


def diagnose(
    table: SiteTable, moments: Moments | None = None, plan: Plan | None = None
) -> Diagnosis:
    """Return which skews a table of counts shows, and of the sites' moments where these are given."""
    numbers = statistics(table.counts_KC)
    shift = None if moments is None else shift_of(moments, table.counts_KC.sum(1))
    return Diagnosis(table, numbers, shift, skews(numbers, shift), plan or Plan())


def plan_of(run: "RunSettings") -> Plan:
    """Return what a run's settings say of the training."""
    return Plan(run.training.batch_size, run.general.participation)


def has(*names: str) -> Callable[[Diagnosis], bool]:
    """Return whether a table has one of the skews."""
    return lambda diagnosis: bool({*names} & {*diagnosis.names})


def mostly_one_class(diagnosis: Diagnosis) -> bool:
    """Return whether most sites have one class to learn from, and all take part in every round."""
    number = len(diagnosis.numbers.dominated_sites)
    return 2 * number > diagnosis.numbers.sites and diagnosis.plan.participation == 1


RULES: Sequence[Rule] = (
    Rule(
        "fedshift", "fails-fedshift-one-class",
        "where most sites have one class its shifted loss is nearly zero: with all of them in every round its gain is "
        "not sure, with half of them it is",
        mostly_one_class,
    ),
    Rule(
        "fedshift", "fails-long-tail", "under a long tail it aims at the sites' pooled prior, which has the tail",
        has(GLOBAL_TAIL),
    ),
    Rule(
        "creff", "fails-creff-two-classes",
        "of two classes it matches one direction each, and features with a large mean share that; ccvr does not fail",
        lambda diagnosis: diagnosis.numbers.classes == 2,
    ),
    Rule(
        "creff", "fails-creff-no-tail", "where no class is rare it has nothing to gain and costs a little",
        lambda diagnosis: GLOBAL_TAIL not in diagnosis.names and diagnosis.numbers.classes > 2,
    ),
    Rule(
        "fedbn", "demo-scanners", "where scanners differ far, a site alone may be better: look at singleset beside it",
        has(SCANNER),
    ),
    Rule(
        "feddf", "fails-long-tail", "the mean of the clients' logits, which it distills, has the tail",
        has(GLOBAL_TAIL),
    ),
    Rule(
        "reweighting", "fails-long-tail", "it weighs few samples up and leaves the rare classes unlearnt",
        has(GLOBAL_TAIL),
    ),
)  # fmt: skip


def failing(diagnosis: Diagnosis) -> list[Rule]:
    """Return what is known to fail where the table is as it is."""
    return [rule for rule in RULES if rule.applies(diagnosis)]


ANSWERS: Mapping[str, Sequence[str]] = {
    SCANNER: ("fedbn",),
    GLOBAL_TAIL: ("ccvr", "creff"),
    LOCAL_TAILS: ("iwds",),
    LABEL: ("fedshift", "ccvr"),
}
"""What a skew is to be answered with, by its paper and docs/choosing.md, the most particular skew first."""


def worth_trying(diagnosis: Diagnosis, methods: Sequence[str]) -> list[str]:
    """Return the methods in the order in which they are worth trying: first what answers the table's skews, last what
    is known to fail there and answers none of them."""
    named = {skew.name for skew in diagnosis.skews if skew.sure != "perhaps"}
    answers = [method for skew, answer in ANSWERS.items() if skew in named for method in answer]
    failing_there = {rule.method for rule in failing(diagnosis)} - {*answers}
    places = {method: place for place, method in enumerate([*answers, *methods][::-1])}
    return sorted(methods, key=lambda method: (method in failing_there, -places[method]))


def line(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in a line."""
    named = ", ".join(f"{skew.name} ({skew.sure})" for skew in diagnosis.skews) or none_words(
        diagnosis.numbers
    )
    methods = ", ".join(dict.fromkeys(rule.method for rule in failing(diagnosis)))
    return f"Skew: {named}." + (f" Known to fail there: {methods}." if methods else "")


def none_words(numbers: Statistics) -> str:
    """Return how sure it is that there is none."""
    return "none" if numbers.resolution <= TELLS else "none that so few samples show"


def as_json(diagnosis: Diagnosis) -> Mapping[str, object]:
    """Return everything that is known, for `--json`; indices of sites and classes as names."""
    table, numbers = diagnosis.table, dict(vars(diagnosis.numbers))
    for key, names in (
        ("one_class_sites", table.sites), ("dominated_sites", table.sites), ("single_site_classes", table.classes),
    ):  # fmt: skip
        numbers[key] = sorted(names[index] for index in numbers[key])
    shift = diagnosis.shift
    return {
        "skews": [vars(skew) for skew in diagnosis.skews],
        "failing": [
            {"method": rule.method, "why": rule.why, "experiment": rule.experiment}
            for rule in failing(diagnosis)
        ],
        "line": line(diagnosis),
        "remark": diagnosis.remark,
        "small-sites": sorted(diagnosis.small_sites),
        "without-samples": sorted(table.without),
        "statistics": {key.replace("_", "-"): value for key, value in numbers.items()},
        "moments": shift and {key.replace("_", "-"): value for key, value in vars(shift).items()},
    }
