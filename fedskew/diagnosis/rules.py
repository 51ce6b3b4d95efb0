"""The skews that a table of counts shows, how certain they are, and the methods known to fail under them.

A rule of known failure rests on an experiment of experiments.yaml, measured in docs/guides/diagnose.md, and needs a
decided claim: the whole interval of the difference to FedAvg lies below 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.diagnosis.statistics import (
    DEVIATION_RATIO,
    LIKELY,
    MEAN_SHIFT,
    Shift,
    Statistics,
    independent_samples,
    shift_of,
    statistics,
)
from fedskew.diagnosis.table import Moments, SiteTable
from fedskew.formatting import plural

SURE = 0.001
"""p below which a skew is certain; below LIKELY it is named at all."""
TELLS = 0.02
"""Share of the classes' entropy from which a site that tells the class is a skew, however certain."""
MISSING = 0.25
"""Share of classes missing where they should be from which the skew is of classes that sites lack."""
IMBALANCE = 5
"""Largest class over smallest."""
SIZE_RATIO = 4
"""Largest site over the others' median."""
SIZE_RANGE = 5
"""Largest site over the smallest, as IMBALANCE of classes: the smallest then has a fifth of the largest one's weight in
FedAvg's mean, and takes a fifth of its steps in a round, though no site need stand out from the others' median."""
CONSTANT = 1e3
"""A ratio of standard deviations from which the smaller one is none to speak of, as where one site did not measure."""
FEW_SAMPLES = 200
"""Samples a site, in the mean, at which FedShift is below FedAvg in papers-shift-small; at 1,000 it is not decided."""
RESOLVED = 0.05
"""A smallest visible share of the entropy above which seeing nothing says little."""

LABEL, LOCAL_TAILS, GLOBAL_TAIL, QUANTITY, SCANNER = (
    "label",
    "local tails",
    "global tail",
    "quantity",
    "scanner",
)
NAMES = (LABEL, LOCAL_TAILS, GLOBAL_TAIL, QUANTITY, SCANNER)


@dataclass(frozen=True)
class Skew:
    """A skew that a table shows."""

    name: str
    """One of NAMES."""
    confidence: str
    """certain (p <= 0.001), likely (p <= 0.01), or perhaps: another skew of the table may be all there is to it."""
    because: str


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a table shows."""

    table: SiteTable
    numbers: Statistics
    shift: Shift | None
    skews: Sequence[Skew]

    @property
    def names(self) -> tuple[str, ...]:
        """The skews' names; none is an empty tuple."""
        return tuple(skew.name for skew in self.skews)

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
    """Where it fails, and what was measured: points of accuracy, a mean over the experiment's seeds."""
    applies: Callable[[Diagnosis], bool]


def diagnose(table: SiteTable, moments: Moments | None = None) -> Diagnosis:
    """Return which skews a table of counts shows, and of the sites' moments where these are given."""
    numbers = statistics(table.counts_KC, table.subjects)
    shift = None
    if moments is not None:
        shift = shift_of(moments, independent_samples(table.counts_KC, table.subjects))
    return Diagnosis(table, numbers, shift, skews(numbers, shift))


RULES: Sequence[Rule] = (
    Rule(
        "fedlc", "fails-fedlc-one-class",
        "it leaves classes that a site lacks out of its softmax: a site with one class has no loss and trains nothing, "
        "and where every site has one the model stays at chance",
        lambda found: len(found.numbers.one_class_sites) == found.numbers.sites,
    ),
    Rule(
        "feddf", "fails-long-tail",
        "the mean of the clients' logits, which it distills, has the tail: measured at imbalance 50",
        lambda found: GLOBAL_TAIL in found.names,
    ),
    Rule(
        "fedshift", "papers-shift-small",
        "it shifts logits by class shares, which a few hundred samples a site hardly tell: the best of 60 rounds is "
        "below FedAvg's by 2.5 [1.5, 3.4] at 200 samples a site, and above it by 1.9 [-0.2, 4.0] at 5,000",
        lambda found: LABEL in found.names and found.numbers.samples <= FEW_SAMPLES * found.numbers.sites,
    ),
)  # fmt: skip


def known_failures(diagnosis: Diagnosis) -> list[Rule]:
    """Return the rules that apply: which methods are known to fail on such a table, and why."""
    return [rule for rule in RULES if rule.applies(diagnosis)]


def line(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in a line: the skews, whether features were looked at, and what is known to fail."""
    skews_seen = [f"{skew.name} ({skew.confidence})" for skew in diagnosis.skews]
    none = "none"
    if diagnosis.numbers.resolution > TELLS:
        none = "none that so few samples show"
    words = f"Skew: {', '.join(skews_seen) or none}"
    if diagnosis.shift is None:
        words += "; scanners: not looked at"  # counts alone must not be read as "no scanner skew"
    words += "."
    methods = dict.fromkeys(rule.method for rule in known_failures(diagnosis))
    if methods:
        words += f" Known to fail there: {', '.join(methods)}."
    return words


def as_json(diagnosis: Diagnosis) -> Mapping[str, object]:
    """Return all of a diagnosis, for `--json`; indices of sites and classes as names."""
    table = diagnosis.table
    numbers = with_dashes(diagnosis.numbers)
    for key, names in (("one-class-sites", table.sites), ("single-site-classes", table.classes)):
        numbers[key] = sorted(names[index] for index in numbers[key])
    failures = known_failures(diagnosis)
    return {
        "skews": [
            # "sure" is the key of the public JSON; the field is called confidence.
            {"name": skew.name, "sure": skew.confidence, "because": skew.because}
            for skew in diagnosis.skews
        ],
        "failing": [
            {"method": rule.method, "why": rule.why, "experiment": rule.experiment}
            for rule in failures
        ],
        "line": line(diagnosis),
        "remark": diagnosis.remark,
        "without-samples": sorted(table.without),
        "statistics": numbers,
        "moments": None if diagnosis.shift is None else with_dashes(diagnosis.shift),
    }


def with_dashes(numbers: Statistics | Shift) -> dict[str, Any]:
    """Return the fields under the keys of the JSON."""
    return {key.replace("_", "-"): value for key, value in vars(numbers).items()}


# ---- skews -----------------------------------------------------------------------------------------------------------


def skews(table: Statistics, shift: Shift | None) -> list[Skew]:
    """Return the skews of a table, in the order of NAMES; several are a mixture, none is an empty list."""
    return [*of_classes(table), *of_sizes(table), *of_scanners(table, shift)]


def of_classes(table: Statistics) -> Iterator[Skew]:
    """Yield the label skew, of classes that sites lack or of tails of their own, and the tail of all sites pooled."""
    differs = sites_differ(table)
    if differs or table.single_site_classes:
        tails = differs and table.missing_share < MISSING and table.local_tail_share >= 0.5
        name = LOCAL_TAILS if tails else LABEL
        p = table.information_p if differs else LIKELY
        yield Skew(name, certainty(p), label_reasons(table, tails))
    if table.imbalance >= IMBALANCE and table.tail_p <= LIKELY:
        largest = f"the largest class has {table.imbalance:.3g} times the smallest one's samples"
        effective = f"{table.effective_classes:.1f} effective of {table.classes} classes"
        because = f"{largest}, {effective}"
        yield Skew(GLOBAL_TAIL, certainty(table.tail_p), because)


def sites_differ(table: Statistics) -> bool:
    """Return whether the site tells the class, more than by chance and more than a trifle."""
    return table.information_p <= LIKELY and table.information_share >= TELLS


def label_reasons(table: Statistics, tails: bool) -> str:
    """Return why a table shows a label skew; `tails` where it is one of tails."""
    p = "p < 0.001" if table.information_p < SURE else f"p = {table.information_p:.2g}"
    reasons = [
        f"the site tells {table.information_share:.0%} of a sample's class ({p})",
        f"{table.missing_share:.0%} of the classes are missing where they should be",
    ]
    if table.one_class_sites:
        reasons.append(f"{plural(len(table.one_class_sites), 'site')} with one class")
    if table.single_site_classes:
        classes = plural(len(table.single_site_classes), "class", "classes")
        reasons.append(f"{classes} at one site alone")
    if tails:
        share = f"{table.local_tail_share:.0%}"
        reasons.append(f"{share} of the samples are at sites with a tail of their own")
    return ", ".join(reasons)


def of_sizes(table: Statistics) -> Iterator[Skew]:
    """Yield the skew of sizes."""
    one_is_large = table.size_ratio >= SIZE_RATIO
    one_is_small = table.size_range >= SIZE_RANGE
    if table.size_p > LIKELY or not (one_is_large or one_is_small):
        return
    because = (
        f"the largest site has {table.size_ratio:.3g} times the others' median and "
        f"{table.size_range:.3g} times the smallest, "
        f"{table.effective_sites:.1f} effective of {table.sites} sites"
    )
    yield Skew(QUANTITY, certainty(table.size_p), because)


def of_scanners(table: Statistics, shift: Shift | None) -> Iterator[Skew]:
    """Yield the skew of features, from their moments; other classes shift these as well."""
    if shift is None:
        return
    p_values, reasons = [], []
    if shift.mean >= MEAN_SHIFT and shift.mean_p <= LIKELY:
        p_values.append(shift.mean_p)
        reasons.append(f"a site's mean is {shift.mean:.2g} standard deviations from all")
    if shift.deviation >= DEVIATION_RATIO and shift.deviation_p <= LIKELY:
        p_values.append(shift.deviation_p)
        if shift.deviation >= CONSTANT:
            reasons.append("at a site nearly all values are equal")
        else:
            reasons.append(f"standard deviations differ by {shift.deviation:.2g}")
    if not reasons:
        return

    because = " and ".join(reasons)
    if shift.feature:
        because += f" ({shift.feature})"
    confidence = certainty(min(p_values))
    if sites_differ(table):
        because += "; the sites' other classes may be the reason"
        confidence = "perhaps"
    yield Skew(SCANNER, confidence, because)


def certainty(p: float) -> str:
    """Return p in a word."""
    return "certain" if p <= SURE else "likely"
