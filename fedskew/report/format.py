"""Units, numbers and words of the report, and what a table holds; render.py lays it out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.report.inference import Estimate
from server_app.record import BY_CLASS
from strategies import SERVER_METHODS
from strategies.core.server import Unit

UNITS = {
    "loss": Unit.NATS,
    "brier": Unit.NONE,
    "client-brier": Unit.NONE,
    "bytes-down": Unit.NONE,
    "bytes-up": Unit.NONE,
}
"""Of the numbers that are no shares; a server method brings those of its own."""
for method in SERVER_METHODS.values():
    UNITS |= method.units


def unit_of(metric: str) -> Unit:
    """Return the unit of a number, of a part of one over the clients (`X.worst`), or of a mean over a shot group."""
    name = metric.partition(".")[0]
    if name in UNITS:
        return UNITS[name]
    # The mean over a shot group has its classes' unit.
    by_class = name.rpartition("-")[0] + BY_CLASS
    return UNITS.get(by_class, Unit.PERCENT)


def chance_of(metric: str, classes: int) -> float | None:
    """Return a number's value by chance, in percent; None where that depends on more than the classes."""
    by_chance = {"balanced-accuracy": 100 / classes, "auroc": 50.0}
    return by_chance.get(metric)


def in_percent(metric: str) -> bool:
    """Return whether a number is shown in percent."""
    return unit_of(metric) == Unit.PERCENT


def scale_of(metric: str) -> int:
    """Return what a recorded number is multiplied by where it is shown."""
    return 100 if in_percent(metric) else 1


SELECTION_WORDS = {
    "last": "last round",
    "best-test": "best test round (oracle)",
    "best-validation": "best validation round",
    "mean-of-last-5": "mean of the last 5",
    "mean-of-last-10": "mean of the last 10",
}
NONE = "—"


@dataclass(frozen=True)
class TableCell:
    """A cell of a table."""

    text: str
    below: str = ""
    """A second, smaller line."""
    strong: bool = False
    heat: float | None = None
    """A share to shade by."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    caption: str
    headings: Sequence[TableCell]
    rows: Sequence[Sequence[TableCell]]
    wordy: bool = False
    """Whether cells are sentences rather than numbers."""


Texts = Sequence[TableCell | str]
Line = list[TableCell | str]
"""A row of a table while cells are added to it."""


def table(caption: str, headings: Texts, rows: Sequence[Texts], wordy: bool = False) -> Table:
    """Return a table whose cells may be given as their texts alone."""
    lines = []
    for texts in (headings, *rows):
        cells = [TableCell(one) if isinstance(one, str) else one for one in texts]
        lines.append(cells)
    return Table(caption, lines[0], lines[1:], wordy)


def first_upper(text: str) -> str:
    """Return a caption or title with a capital letter first; the other letters stay as they are."""
    return text[:1].upper() + text[1:]


def words(metric: str) -> str:
    """Return a metric's key as words."""
    name, _, part = metric.replace("-", " ").partition(".")
    return f"{name} ({part})" if part else name


def words_and_unit(metric: str) -> str:
    """Return a metric's key as words, with its unit where it has one."""
    unit = unit_of(metric)
    return f"{words(metric)} in {unit}" if unit else words(metric)


def plain(number: float | None, metric: str = "") -> str:
    """Return a number: one decimal where it is in percent, else three."""
    if number is None:
        return NONE
    text = f"{number:.1f}" if in_percent(metric) else f"{number:.3f}"
    return text.replace("-", "\N{MINUS SIGN}")


def signed(number: float, metric: str = "") -> str:
    """Return a number with its sign; of -0.0, which a difference can be, the plus alone."""
    sign = "+" if number >= 0 else ""  # `plain` writes the minus
    return sign + plain(number + 0.0, metric)  # -0.0 + 0.0 is 0.0


def spread_words(found: Estimate | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if found is None:
        return NONE
    mean = plain(found.mean, metric)
    return mean if found.sd is None else f"{mean} ± {plain(found.sd, metric)}"


def ends_words(low: float, high: float, metric: str = "") -> str:
    """Return an interval after the number that it belongs to; nothing where it is NaN."""
    if math.isnan(low):
        return ""
    return f" [{signed(low, metric)}, {signed(high, metric)}]"


def named(column: str) -> str:
    """Return a caption's words for a column; a single column has no name."""
    return f"{column}: " if column else ""
