"""Which skew a table shows, and how sure that is."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedskew.diagnosis.statistics import Shift, Statistics

SURE, LIKELY = 0.001, 0.01
"""p below which a skew is certain, and below which it is named at all."""
TELLS = 0.02
"""Share of the classes' entropy from which a site that tells the class is a skew, however certain."""
MISSING = 0.25
"""Share of classes missing where they should be from which the skew is of classes that sites lack."""
IMBALANCE = 5
"""Largest class over smallest."""
SIZE_RATIO, EFFECTIVE_SITES = 4, 0.6
"""Largest site over the others' median; effective sites over sites."""
MEAN_SHIFT, DEVIATION_RATIO = 0.5, 1.5
"""Standard deviations between a site's mean and all (Cohen's medium effect); standard deviations over each other."""
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
    sure: str
    """certain (p <= 0.001), likely (p <= 0.01), or perhaps: another skew of the table may be all there is to it."""
    because: str


def skews(table: Statistics, shift: Shift | None) -> list[Skew]:
    """Return the skews of a table, in the order of NAMES; several are a mixture, none is an empty list."""
    return [*of_classes(table), *of_sizes(table), *of_scanners(table, shift)]


def of_classes(table: Statistics) -> Iterator[Skew]:
    """Yield the label skew, of classes that sites lack or of tails of their own, and the tail of all sites pooled."""
    differs = table.information_p <= LIKELY and table.information_share >= TELLS
    if differs or table.single_site_classes:
        tails = table.missing_share < MISSING and table.local_tail_share >= 0.5 and differs
        because = f"the site tells {table.information_share:.0%} of a sample's class ({p_words(table.information_p)})"
        because += f", {table.missing_share:.0%} of the classes are missing where they should be"
        if number := len(table.one_class_sites):
            because += f", {counted(number, 'site')} with one class"
        if number := len(table.single_site_classes):
            because += f", {counted(number, 'class', 'classes')} at one site alone"
        if tails:
            because += f", {table.local_tail_share:.0%} of the samples are at sites with a tail of their own"
        p = table.information_p if differs else LIKELY
        yield Skew(LOCAL_TAILS if tails else LABEL, certainty(p), because)
    if table.imbalance >= IMBALANCE and table.tail_p <= LIKELY:
        effective = f"{table.effective_classes:.1f} effective of {table.classes} classes"
        because = f"the largest class has {table.imbalance:.3g} times the smallest one's samples, {effective}"
        yield Skew(GLOBAL_TAIL, certainty(table.tail_p), because)


def of_sizes(table: Statistics) -> Iterator[Skew]:
    """Yield the skew of sizes."""
    few = table.effective_sites <= EFFECTIVE_SITES * table.sites
    if (few or table.size_ratio >= SIZE_RATIO) and table.size_p <= LIKELY:
        effective = f"{table.effective_sites:.1f} effective of {table.sites} sites"
        because = (
            f"the largest site has {table.size_ratio:.3g} times the others' median, {effective}"
        )
        yield Skew(QUANTITY, certainty(table.size_p), because)


def of_scanners(table: Statistics, shift: Shift | None) -> Iterator[Skew]:
    """Yield the skew of features, from their moments; other classes shift these as well."""
    if shift is None:
        return
    apart = [
        (
            shift.mean_p,
            f"a site's mean is {shift.mean:.2g} standard deviations from all",
            shift.mean >= MEAN_SHIFT,
        ),
        (
            shift.deviation_p,
            f"standard deviations differ by {shift.deviation:.2g}",
            shift.deviation >= DEVIATION_RATIO,
        ),
    ]
    seen = [(p, words) for p, words, far in apart if far and p <= LIKELY]
    if seen:
        feature = f" ({shift.feature})" if shift.feature else ""
        confounded = table.information_p <= LIKELY and table.information_share >= TELLS
        because = " and ".join(words for _, words in seen) + feature
        because += "; the sites' other classes may be the reason" * confounded
        yield Skew(
            SCANNER, "perhaps" if confounded else certainty(min(p for p, _ in seen)), because
        )


def certainty(p: float) -> str:
    """Return p in a word."""
    return "certain" if p <= SURE else "likely"


def p_words(p: float) -> str:
    """Return p as a sentence has it."""
    return "p < 0.001" if p < SURE else f"p = {p:.2g}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
