"""matplotlib figures as SVG elements that take their colors and font from the page, light or dark."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from data import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLORS = ("#000001", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b")
"""Okabe and Ito's palette, black first and a brown for its yellow; the page has a lighter set for a dark background."""
DASHES = ("", "6 2", "1.5 1.5", "6 2 1.5 2")
INK, FAINT = "#000002", "#000003"
WIDTH = 4.4
"""Inches of 72 units: a panel is as wide as a phone, and a wide screen shows several side by side."""
WIDE = 9.0
"""Inches of a section's only panel on a wide screen; its text is then as large as that of two panels side by side."""

UNDATED: Mapping[str, Mapping[str, None]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {},
}
"""The endings of files that a figure is written to, each with what leaves the date out."""
PNG_DPI = 200
"""Pixels per inch of a PNG file: a figure of 4.4 inches is then sharp in a paper's column and on a slide."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn in every figure. No two rows have the same color and the same dashes."""

    label: str
    number: int

    @property
    def color(self) -> str:
        return COLORS[self.number % len(COLORS)]

    @property
    def variable(self) -> str:
        """The color's name in the page's style sheet."""
        return f"var(--series-{self.number % len(COLORS)})"

    @property
    def dashes(self) -> str:
        return DASHES[(self.number + self.number // len(COLORS)) % len(DASHES)]

    @property
    def line(self) -> "Literal['-'] | tuple[float, tuple[float, ...]]":
        """The dashes as matplotlib wants them."""
        if self.dashes:
            return (0.0, tuple(map(float, self.dashes.split())))
        return "-"


@dataclass(frozen=True)
class Drawing:
    """One panel that can be drawn for a phone and for a wide screen."""

    name: str
    """Makes the ids unique in the page."""
    height: float
    """Inches."""
    draw: Callable[["Axes"], None]

    @property
    def narrow(self) -> str:
        """The SVG element, as wide as a phone."""
        return drawn(self.name, self.height, self.draw)

    @property
    def wide(self) -> str:
        """The SVG element, as wide as the page on a large screen."""
        return drawn(f"{self.name}-wide", self.height, self.draw, WIDE)


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and its text alternative."""

    title: str
    alt: str
    svg: Drawing
    fixed: bool = False
    """Whether its width is that of its contents, as for a matrix, instead of the page's."""
    by_row: bool = False
    """Whether it draws one line per row, so that it needs a legend of the rows where it stands alone."""


def drawn(name: str, height: float, draw: Callable[["Axes"], None], width: float = WIDTH) -> str:
    """Return one panel as an SVG element, `height` by `width` inches; `name` makes its ids unique in the page."""
    from matplotlib.figure import Figure as Canvas

    with drawing_style(name):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        axes = canvas.subplots()
        draw(axes)
        file = io.StringIO()
        canvas.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None},
        )
    return inlined(file.getvalue(), name)


def write_file(figure: Figure, legend: Sequence[Style], file: Path) -> None:
    """Write a figure with its title, and with a legend of the rows where there are any.

    The file's ending, a key of UNDATED, decides the format. The same figure gives the same bytes: the file holds no
    date.

    Raises:
        SettingError: another ending.
        OSError: the file cannot be written.
    """
    ending = file.suffix.lower()
    if ending not in UNDATED:
        raise SettingError("figure", str(file), "must end in .svg, .pdf or .png")
    image = drawn_alone(figure, legend, ending)
    file.write_bytes(image)


def text_of(figure: Figure, legend: Sequence[Style]) -> str:
    """Return the same figure as the text of an SVG file."""
    return drawn_alone(figure, legend, ".svg").decode()


def drawn_alone(figure: Figure, legend: Sequence[Style], ending: str) -> bytes:
    """Return a figure with its title and legend as the contents of a file of that ending."""
    file = io.BytesIO()
    with drawing_style(figure.svg.name):
        canvas_of(figure, legend).savefig(
            file, format=ending.removeprefix("."), dpi=PNG_DPI, metadata=UNDATED[ending]
        )
    return file.getvalue()


def canvas_of(figure: Figure, legend: Sequence[Style]) -> "Canvas":
    """Return a figure with its title and legend, drawn."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    canvas = Canvas(figsize=(WIDTH, figure.svg.height), layout="constrained")
    axes = canvas.subplots()
    figure.svg.draw(axes)
    if figure.title:
        axes.set_title(figure.title)
    if legend:
        handles = []
        for style in legend:
            handle = Line2D(
                [],
                [],
                color=style.color,
                linestyle=style.line,
                label=style.label,
            )
            handles.append(handle)
        # Below the panel: rows may be many, and no corner of a panel is free in every figure.
        canvas.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(3, len(handles)),
            fontsize=8,
            frameon=False,
        )
    return canvas


def drawing_style(name: str) -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws as the report does; `name` makes the ids of an SVG file unique."""
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10, "axes.titlesize": 11,
            "text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
            "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT, "grid.color": FAINT,
            "axes.spines.top": False, "axes.spines.right": False, "grid.linewidth": 0.4, "grid.alpha": 0.5,
        }
    )  # fmt: skip


def inlined(text: str, name: str) -> str:
    """Return matplotlib's SVG file as an element for a page: no size of its own, the page's colors and font."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"',
        r'\1 aria-hidden="true"',
        text,
        count=1,
    )
    text = re.sub(r"font: ([^;\"]*?)(\d+px) [^;\"]*", r"font-size: \2", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r'id="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    for number, color in enumerate(COLORS):
        text = text.replace(color, f"var(--series-{number})")
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    return re.sub(r"\s*\n\s*", " ", text)
