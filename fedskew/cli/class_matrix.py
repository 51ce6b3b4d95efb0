"""The class-by-client matrix as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

DARK, BLANK = np.array([8, 48, 107]), np.array([247, 251, 255])
MARGIN, LETTER, LINE = 8, 6, 14
"""Pixels: around the picture, of a letter's width, of a line's height."""


def draw(counts_KC: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str]) -> "Image":
    """Return a picture with a row a client and a column a class, the darker the more samples (by square root).

    A cell with room for it shows its number; classes beyond 40 go without names.
    """
    from PIL import Image, ImageDraw

    rows, columns = counts_KC.shape
    wide = max(LETTER * max(len(str(counts_KC.max())), *map(len, classes)) + 8, 24) if columns <= 40 else 6
    high = 20 if rows <= 60 else 8
    left = MARGIN + LETTER * max(map(len, clients)) + 8 if rows <= 60 else MARGIN
    top = MARGIN + (LINE if columns <= 40 else 0)
    picture = Image.new("RGB", (left + wide * columns + MARGIN, top + high * rows + MARGIN), "white")
    pen = ImageDraw.Draw(picture)
    strength = np.sqrt(counts_KC / max(counts_KC.max(), 1))
    for row in range(rows):
        if rows <= 60:
            pen.text((MARGIN, top + high * row + 4), clients[row], fill="black")
        for column in range(columns):
            x, y = left + wide * column, top + high * row
            red, green, blue = (BLANK + (DARK - BLANK) * strength[row, column]).astype(int).tolist()
            pen.rectangle((x, y, x + wide - 2, y + high - 2), fill=(red, green, blue))
            if columns <= 40 and rows <= 60 and counts_KC[row, column]:
                ink = "white" if strength[row, column] > 0.5 else "black"
                pen.text((x + 4, y + 4), str(counts_KC[row, column]), fill=ink)
    for column in range(columns if columns <= 40 else 0):
        pen.text((left + wide * column + 4, MARGIN), classes[column], fill="black")
    return picture
