"""The skews that a table of counts shows, and how certain they are."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedskew.diagnosis.statistics import DEVIATION_RATIO, LIKELY, MEAN_SHIFT, Shift, Statistics
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
    p = p_words(table.information_p)
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


def p_words(p: float) -> str:
    """Return p as a sentence has it."""
    return "p < 0.001" if p < SURE else f"p = {p:.2g}"
