"""Which shape image files have, before one is stated that all are brought to."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from data.readers.file_type import is_dicom, is_nifti
from data.readers.images import open_image, stored_in
from data.readers.intensity import UnknownRange
from data.readers.medical import needed
from data.readers.stored_range import Look, look_at, note_of_cut, widened
from data.settings import DataError, DataSettings

MOST = 2000
"""Images whose sizes are compared: their heads are read for it."""


def shape_of(
    images: Sequence[Path], settings: DataSettings, groups: Sequence[Hashable] = ()
) -> tuple[str, list[str]]:
    """The shape of the first image, as a setting, and what has to be said of it.

    `groups` are the images' sites and classes, over which those are spread whose numbers are looked at; left out, the
    folders that they are in.

    Raises:
        DataError: an image that cannot be read, or of numbers of no known scale, with a range that fits the others too;
            medical images of several sizes, whose proportions mean something.
    """

    def look() -> Look | None:
        unscaled = replace(settings, pixel_range="")
        among = groups or [file.parent for file in images]
        return look_at(lambda place: stored_in(images[place], 0, unscaled), among)

    try:
        image = open_image(images[0], 0, settings=settings)
    except UnknownRange as error:
        raise widened(error, look()) from None
    shape, notes = "x".join(map(str, (image.shape[2], *image.shape[:2]))), list[str]()
    if settings.pixel_range:
        notes += note_of_cut(settings, look())
    if image.dtype == np.float32:
        notes.append("images of more than 8 bits are trained on as float32 on the scale 0..1")
    if settings.input_shape:
        return shape, notes
    sizes = Counter(size for file in images[:MOST] if (size := size_of(file)))
    if len(sizes) > 1:
        listed = ", ".join(
            f"{height}x{width} ({number})" for (height, width), number in sizes.most_common(3)
        )
        listed += ", ..." * (len(sizes) > 3)
        if is_nifti(images[0]) or is_dicom(head_of(images[0])):
            rule = f"must be of one size, or state the one that they are brought to: --set input-shape={shape}"
            raise DataError(f"{images[0].parent}: images of {len(sizes)} sizes, {listed}: {rule}")
        notes.append(
            f"images of {len(sizes)} sizes, {listed}, are all brought to input-shape, here the first one's"
        )
    return shape, notes


def head_of(file: Path) -> bytes:
    """The first bytes of a file."""
    with file.open("rb") as opened:
        return opened.read(132)


def size_of(file: Path) -> tuple[int, int] | None:
    """Height and width by a file's head; None where it has none that can be read."""
    try:
        if is_dicom(head_of(file)):
            dicom = needed("pydicom", "medical", file).dcmread(
                file, specific_tags=["Rows", "Columns"]
            )
            return int(dicom.Rows), int(dicom.Columns)
        if is_nifti(file):
            width, height = needed("nibabel", "medical", file).load(file).shape[:2]
            return height, width
        with Image.open(file) as image:
            return image.height, image.width
    except Exception:  # whoever reads it whole says why
        return None
