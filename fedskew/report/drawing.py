"""A figure of one panel: three ways to draw one, and its file as SVG, PDF or PNG."""

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.rcsetup import cycler

from data import SettingError
from fedskew.report.format import ends_words, first_upper
from fedskew.report.inference import Estimate, Floats

COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b")
"""Okabe and Ito's palette, which color-blind readers can tell apart, with a brown for its yellow."""
INK, BLUE = COLORS[:2]
MOST_BANDS = 3
"""More bands than these melt into one."""
INCHES = 4.4
"""Width of a panel: that of a paper's column, or of a phone."""
STYLE: dict[Any, Any] = {
    "axes.prop_cycle": cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.4,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""The formats, each with the metadata that leaves the date out."""


@dataclass(frozen=True)
class Figure:
    """A panel, which is drawn when it is saved. The same panel gives the same bytes."""

    alt: str
    """Its numbers in words, for readers who do not see the drawing."""
    draw: Callable[[Axes], None]
    height: float
    """Inches."""
    title: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the figure as SVG, PDF or PNG, as the path's ending says, and return the path.

        Raises SettingError for another ending and for a file that cannot be written.
        """
        file = Path(path)
        form = file.suffix.lower().removeprefix(".")
        if form not in UNDATED:
            raise SettingError("figure", str(file), "must end in .svg, .pdf or .png")
        try:
            with file.open("wb") as target:
                self.write(target, form)
        except OSError as error:
            rule = f"cannot be written: {error.strerror}"
            raise SettingError("figure", str(file), rule) from error
        return file

    def element(self, name: str = "") -> str:
        """Return the figure as an SVG element for a page; `name` keeps its ids apart from another figure's."""
        target = io.BytesIO()
        self.write(target, "svg", name)
        _, _, svg = target.getvalue().decode().partition("<svg")
        # matplotlib counts its groups in every figure anew, and refers to none of them.
        return "<svg" + re.sub(r' id="[\w.]+_\d{1,4}"', "", svg)

    def write(self, target: IO[bytes], form: str, name: str = "") -> None:
        """Draw the figure into an open file; `form` is a key of UNDATED."""
        with matplotlib.rc_context(STYLE | {"svg.hashsalt": name or self.title}):
            canvas = Canvas(figsize=(INCHES, self.height), layout="constrained")
            axes = canvas.subplots()
            self.draw(axes)
            canvas.suptitle(textwrap.fill(self.title, 48), fontsize=11)  # wider than the panel
            labels = axes.get_legend_handles_labels()[1]
            if labels:
                # Below the panel: no corner of it is free in every figure.
                columns = 1 if max(map(len, labels)) > 24 else 2
                canvas.legend(loc="outside lower center", ncols=columns)
            canvas.savefig(target, format=form, dpi=200, metadata=UNDATED[form])

    def _repr_svg_(self) -> str:
        """Return the figure as a notebook shows it."""
        return self.element()


Points = Sequence[Floats] | None
"""A row's line: x and y, and the lower and upper edge of a band where it has one; None for a row without numbers."""


def lines(
    by_row: Mapping[str, Points],
    x: str,
    y: str,
    *,
    at: float | None = None,
    dotted: tuple[Sequence[float], Sequence[float], str] | None = None,
) -> Figure | None:
    """Return a figure of lines; None where no row has one.

    Args:
        by_row: of all rows of the experiment: a row's place gives its line one look in every figure.
        x, y: labels of the axes.
        at: where the text alternative reads the lines; None for each line's own end.
        dotted: a line of reference, such as chance: x, y and label.
    """
    values = {}
    for row, points in by_row.items():
        if points is not None:
            xs, ys, *_ = points
            values[row] = float(ys[-1] if at is None else np.interp(at, xs, ys))
    if not values:
        return None

    def draw(axes: Axes) -> None:
        for row, points in by_row.items():
            # A row without a line takes its look from the cycle as well; matplotlib keeps "_" out of the legend.
            xs, ys, *band = points or ([], [])
            marker = "o" if len(xs) == 1 else ""
            (line,) = axes.plot(xs, ys, marker=marker, label=row if points else "_")
            if band and len(by_row) <= MOST_BANDS:
                lower, upper = band
                axes.fill_between(
                    xs,
                    lower,
                    upper,
                    color=line.get_color(),
                    alpha=0.13,
                    linewidth=0,
                )
        if dotted is not None:
            reference_x, reference_y, label = dotted
            axes.plot(
                reference_x,
                reference_y,
                ":k",
                linewidth=0.8,
                label=label,
            )
        axes.set(xlabel=x, ylabel=y)
        if x == "round":
            axes.locator_params("x", integer=True)
        axes.grid()

    highest_first = sorted(values, key=values.__getitem__, reverse=True)
    numbers = ", ".join(f"{row} {values[row]:.3g}" for row in highest_first)
    where = "the end" if at is None else f"{at:g}"
    return Figure(f"{y} by {x}; at {where}: {numbers}.", draw, 3.0 + 0.1 * len(by_row))


class Effect(NamedTuple):
    """A difference in a forest plot."""

    name: str
    found: Estimate
    decided: bool
    """Whether the interval leaves out the margin, with more than one seed."""
    of_paper: float | None = None
    """The paper's own number."""


def forest(effects: Sequence[Effect], x: str) -> Figure | None:
    """Return differences: a dot per seed, a band for the interval, a tick for the margin, a diamond for the mean.

    The diamond is filled where the difference is decided; a star is the paper's own number.

    Args:
        effects: one a line, the first on top.
        x: what the differences are of, in words.
    """
    if not effects:
        return None

    def draw(axes: Axes) -> None:
        for y, (_, found, decided, of_paper) in enumerate(effects):
            axes.hlines(y, *found.ends, color=BLUE, linewidth=6, alpha=0.3)
            axes.scatter([*found.by_seed.values()], [y] * found.n, s=14, color=BLUE)
            inside = BLUE if decided else "none"
            axes.scatter(found.mean, y, s=60, marker="D", facecolor=inside, edgecolor=BLUE)
            axes.vlines(found.margin, y - 0.3, y + 0.3, color=INK)
            if of_paper is not None:
                axes.scatter(of_paper, y, s=90, marker="*", color=COLORS[2], zorder=3)
        axes.scatter([], [], marker="D", color=BLUE, label="mean (filled: decided)")
        axes.scatter([], [], s=14, color=BLUE, label="a seed")
        axes.plot([], [], color=BLUE, linewidth=6, alpha=0.3, label="95 % interval")
        if any(effect.of_paper is not None for effect in effects):
            axes.scatter([], [], s=90, marker="*", color=COLORS[2], label="the paper")
        names = [textwrap.fill(effect.name, 26, max_lines=3) for effect in effects]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
        axes.grid(axis="x")
        axes.set_xlabel(x)

    texts = []
    for name, found, _, of_paper in effects:
        beside = "" if of_paper is None else f" (the paper {of_paper:+g})"
        texts.append(f"{name} {found.mean:+.1f}{ends_words(*found.ends)}{beside}")
    return Figure(f"{first_upper(x)}: {'; '.join(texts)}.", draw, 0.4 * len(effects) + 1.5)


def matrix(
    shares_RC: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str],
    alt: str,
    percent: bool = False,
) -> Figure:
    """Return shares from 0 to 1 as shades.

    Args:
        shares_RC: by row and column; NaN stays white.
        rows, columns: their names.
        labels: of the axes: what the rows are, and the columns.
        alt: the text alternative.
        percent: whether to write the shares too, where there is room.
    """

    def draw(axes: Axes) -> None:
        axes.imshow(
            shares_RC,
            "Blues",
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        if percent and len(columns) <= 10:
            for (row, column), share in np.ndenumerate(shares_RC):
                color = "white" if share > 0.6 else INK
                text = f"{100 * share:.0f}" if share >= 0.005 else ""
                axes.text(
                    column,
                    row,
                    text,
                    color=color,
                    ha="center",
                    va="center",
                )
        axes.set(ylabel=labels[0], xlabel=labels[1])
        axes.set_yticks(*ticks(rows, 24))
        turned = sum(map(len, columns)) > 40
        axes.set_xticks(*ticks(columns, 12), rotation=90 if turned else 0)

    return Figure(alt, draw, float(np.clip(0.2 * len(rows) + 1.3, 1.6, 6.0)))


def ticks(names: Sequence[str], most: int) -> tuple[range, list[str]]:
    """Return the places that there is room to name, evenly spaced, and their names."""
    places = range(0, len(names), 1 + (len(names) - 1) // most)
    return places, [textwrap.shorten(names[place], 16, placeholder="...") for place in places]
