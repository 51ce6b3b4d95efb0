"""The class-by-client matrix as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTER, LINE = 0.075, 0.22
"""Inches of a letter's width and a line's height."""


def draw(counts_KC: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str]) -> "Figure":
    """Return a picture with a row a client and a column a class, the darker the more samples (by square root).

    A cell with room for it shows its number; classes beyond 40 and clients beyond 60 go without names.
    """
    from matplotlib.figure import Figure

    rows, columns = counts_KC.shape
    classes, clients = classes if columns <= 40 else [], clients if rows <= 60 else []
    longest = max(map(len, [*classes, str(counts_KC.max())]))
    wide, high = LETTER * longest + 0.1 if classes else 0.06, LINE if clients else 0.08
    beside, above = LETTER * max(map(len, clients), default=0) + 0.3, LINE * bool(classes) + 0.3
    figure = Figure(figsize=(wide * columns + beside, high * rows + above), layout="constrained")
    axes = figure.subplots()
    strength_KC = np.sqrt(counts_KC / max(counts_KC.max(), 1))
    axes.imshow(strength_KC, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.tick_params(
        length=0, labelsize=8, top=True, labeltop=True, bottom=False, labelbottom=False
    )
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(clients)), clients)
    axes.spines[:].set_visible(False)
    for (row, column), count in np.ndenumerate(counts_KC):
        if count and classes and clients:
            ink = "white" if strength_KC[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), color=ink, fontsize=8, ha="center", va="center")
    return figure
