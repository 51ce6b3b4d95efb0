"""Known failures. Each rule rests on an experiment of experiments.yaml, measured in docs/guides/diagnose.md.

A rule needs a decided claim: the whole interval of the difference to FedAvg lies below 0.
"""

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
from fedskew.diagnosis.statistics import (
    Shift,
    Statistics,
    independent_samples,
    shift_of,
    statistics,
)
from fedskew.diagnosis.table import Moments, SiteTable, chosen
from server_app.methods import METHODS

if TYPE_CHECKING:  # it imports torch, which a table needs not
    from server_app.run_settings import RunSettings


@dataclass(frozen=True)
class Plan:
    """The settings of the training that a diagnosis depends on."""

    batch_size: int = 32
    fixed_features: bool = False
    """Whether the model's features stay as they are, as a backbone's with freeze = all."""


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
        sizes_K = self.table.counts_KC.sum(1)
        return chosen(self.table.sites, sizes_K <= self.plan.batch_size)

    @property
    def remark(self) -> str:
        """What the table cannot show, and what to look at besides."""
        remarks = []
        if self.numbers.information_p > 0.01 and self.numbers.resolution > RESOLVED:
            seen = f"below {self.numbers.resolution:.0%} of the classes' entropy"
            remarks.append(f"{self.numbers.samples} samples are too few to see a label skew {seen}")
        if self.shift is None:
            remarks.append("counts cannot show scanners: state --moments")
        if SCANNER in self.names:
            remarks.append(
                "where scanners differ far, a site alone may be better than any shared model: "
                "look at singleset beside fedbn (demo-scanners)"
            )
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


@dataclass(frozen=True, eq=False)
class Source:
    """What is to be diagnosed."""

    title: str
    table: SiteTable
    plan: Plan
    moments: Moments | None = None
    """The sites' features, where they can be looked at."""
    own_names: Sequence[str] = ()
    """What reports call the table's sites, in its order: `north` where the table has `0 north`. Empty where they are
    called as in the table."""


Sources = Iterator[Source]


def diagnose(
    table: SiteTable,
    moments: Moments | None = None,
    plan: Plan | None = None,
) -> Diagnosis:
    """Return which skews a table of counts shows, and of the sites' moments where these are given."""
    numbers = statistics(table.counts_KC, table.subjects)
    shift = None
    if moments is not None:
        shift = shift_of(moments, independent_samples(table.counts_KC, table.subjects))
    return Diagnosis(table, numbers, shift, skews(numbers, shift), plan or Plan())


def plan_of(run: "RunSettings") -> Plan:
    """Return what a run's settings say of the training."""
    return Plan(run.training.batch_size, run.has_fixed_features)


def has(*names: str) -> Callable[[Diagnosis], bool]:
    """Return what tells whether a diagnosis has one of the skews."""

    def has_one(diagnosis: Diagnosis) -> bool:
        return any(name in diagnosis.names for name in names)

    return has_one


def every_site_has_one_class(diagnosis: Diagnosis) -> bool:
    """Return whether every site holds samples of one class and not a single one of another."""
    return len(diagnosis.numbers.one_class_sites) == diagnosis.numbers.sites


RULES: Sequence[Rule] = (
    Rule(
        "fedlc", "fails-fedlc-one-class",
        "it leaves classes that a site lacks out of its softmax: a site with one class has no loss and trains nothing, "
        "and where every site has one the model stays at chance",
        every_site_has_one_class,
    ),
    Rule(
        "feddf", "fails-long-tail",
        "the mean of the clients' logits, which it distills, has the tail: measured at imbalance 50",
        has(GLOBAL_TAIL),
    ),
)  # fmt: skip


def known_failures(diagnosis: Diagnosis) -> list[Rule]:
    """Return the rules that apply: which methods are known to fail on such a table, and why."""
    return [rule for rule in RULES if rule.applies(diagnosis)]


ANSWERS: Mapping[str, Sequence[str]] = {
    SCANNER: ("fedbn",),
    GLOBAL_TAIL: ("ccvr", "creff"),
    LOCAL_TAILS: ("iwds",),
    LABEL: ("fedshift", "ccvr"),
}
"""The methods that answer a skew, by its paper and docs/start/choosing-a-method.md, the most particular skew first."""


CLOSED_FORM = ("fed-lda", "fed-lda-pooled", "fed3r", "fedncm")
"""Heads in closed form, the most accurate first: docs/results/pretrained.md. Any partition gives the same head, so that
no skew of the labels matters to them; fedcof's alone depends on it."""


def heads_first(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the heads in closed form to try before any training, each with what it uploads.

    Empty where training changes the model's features, or nothing is known of the model.
    """
    if not diagnosis.plan.fixed_features:
        return {}
    return {name: METHODS[name].reveals for name in CLOSED_FORM}


def recommended_order(diagnosis: Diagnosis, methods: Sequence[str]) -> list[str]:
    """Return `methods` ordered from most to least promising.

    Heads in closed form come first where the features stay as they are. Then come methods that answer a diagnosed
    skew, in the order of ANSWERS. Methods known to fail under this diagnosis come last, unless they also answer one of
    its skews.

    Args:
        diagnosis: What the table shows; a skew that is there perhaps counts for nothing.
        methods: The names to order, which are those returned.
    """
    skews_seen = {skew.name for skew in diagnosis.skews if skew.confidence != "perhaps"}
    failures = {rule.method for rule in known_failures(diagnosis)}

    answers = [head for head in heads_first(diagnosis) if head in methods]
    for skew, answering_methods in ANSWERS.items():
        if skew in skews_seen:
            answers += [method for method in answering_methods if method in methods]

    first = list(dict.fromkeys(answers))  # two skews can share an answer
    last = [method for method in methods if method in failures and method not in first]
    middle = [method for method in methods if method not in first and method not in last]
    return first + middle + last


def line(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in a line: the skews, whether features were looked at, and what is known to fail."""
    skews_seen = [f"{skew.name} ({skew.confidence})" for skew in diagnosis.skews]
    words = f"Skew: {', '.join(skews_seen) or none_words(diagnosis.numbers)}"
    if diagnosis.shift is None:
        words += "; scanners: not looked at"  # counts alone must not be read as "no scanner skew"
    words += "."
    methods = dict.fromkeys(rule.method for rule in known_failures(diagnosis))
    if methods:
        words += f" Known to fail there: {', '.join(methods)}."
    return words


def none_words(numbers: Statistics) -> str:
    """Return how sure it is that there is none."""
    if numbers.resolution <= TELLS:
        return "none"
    return "none that so few samples show"


def as_json(diagnosis: Diagnosis) -> Mapping[str, object]:
    """Return all of a diagnosis, for `--json`; indices of sites and classes as names."""
    table = diagnosis.table
    numbers = dict(vars(diagnosis.numbers))
    for key in ("one_class_sites", "dominated_sites"):
        numbers[key] = sorted(table.sites[index] for index in numbers[key])
    numbers["single_site_classes"] = sorted(
        table.classes[index] for index in numbers["single_site_classes"]
    )

    seen = []
    for skew in diagnosis.skews:
        # "sure" is the key of the public JSON; the field is called confidence.
        seen.append({"name": skew.name, "sure": skew.confidence, "because": skew.because})
    failures = []
    for rule in known_failures(diagnosis):
        failures.append({"method": rule.method, "why": rule.why, "experiment": rule.experiment})
    first = []
    for method, uploads in heads_first(diagnosis).items():
        first.append({"method": method, "uploads": uploads})
    shift = diagnosis.shift
    return {
        "skews": seen,
        "failing": failures,
        "try-first": first,
        "line": line(diagnosis),
        "remark": diagnosis.remark,
        "small-sites": sorted(diagnosis.small_sites),
        "without-samples": sorted(table.without),
        "statistics": with_dashes(numbers),
        "moments": None if shift is None else with_dashes(vars(shift)),
    }


def with_dashes(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a dataclass under the keys of the JSON."""
    return {key.replace("_", "-"): value for key, value in fields.items()}
