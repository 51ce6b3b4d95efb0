"""DICOM images (pydicom) and slices of NIfTI volumes (nibabel) as pixels on the scale 0..1."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.extras import needed
from data.readers.intensity import WINDOWS, Stored, Window, chosen_frame
from data.settings import DataSettings
from data.text import said

MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


def read_dicom(file: Path, channels: int, settings: DataSettings) -> Stored | NDArray[np.uint8]:
    """Grey numbers after the modality transformation (rescale slope, intercept), or (H, W, 3) bytes of a color image.

    Black and white are of the file's first window (DICOM PS3.3 C.11.2.1.2); without one of the stored bits, where these
    are unsigned. MONOCHROME1 is inverted.

    Raises:
        DataError: a file without pixels, several frames without `frame`, color where grey is set, or a window that the
            standard forbids, unless pixel-range takes its place.
    """
    dicom = needed("pydicom", "medical", file)
    pixels = needed("pydicom.pixels", "medical", file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        data = dicom.dcmread(file)
        rows = data.get("Rows")
        columns = data.get("Columns")
        photometric = data.get("PhotometricInterpretation")
        if not rows or not columns or "PixelData" not in data:
            raise DataError("is a DICOM file without an image", where=str(file))
        refuse_large(file, rows * columns, settings)
        if photometric not in MONOCHROME and channels == 1:
            rule = "and grey is set: --set input-shape=3xHEIGHTxWIDTH, or leave it out"
            raise DataError(f"is a color DICOM image ({photometric}), {rule}", where=str(file))
        frame = chosen_frame(file, int(data.get("NumberOfFrames") or 1), settings)
        try:
            stored = pixels.pixel_array(data, index=frame)
            if photometric in MONOCHROME:
                return grey_of(file, data, pixels.apply_modality_lut(stored, data), settings)
            if photometric == "PALETTE COLOR":
                color = pixels.apply_color_lut(stored, data)
            else:
                color = stored
        except DataError:
            raise
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            rule = f"pydicom cannot read its pixels: {said(error)}"
            raise DataError(rule, where=str(file)) from error
    bits = 8 * color.dtype.itemsize
    highest_byte = color[..., :3] >> (bits - 8)
    return np.asarray(highest_byte, np.uint8)


def refuse_large(file: Path, pixels: int, settings: DataSettings) -> None:
    """Raise DataError for an image of more pixels than the settings allow, before it takes memory."""
    most = settings.max_image_pixels
    if pixels > most:
        rule = f"is an image of more pixels than max-image-pixels = {most}"
        raise DataError(rule, where=str(file))


def grey_of(file: Path, data: Any, values: NDArray[np.generic], settings: DataSettings) -> Stored:
    """Grey values with what the file says of them. Raises DataError for a window that the standard forbids."""
    signed = bool(data.get("PixelRepresentation"))
    return Stored(
        values,
        "signed DICOM pixels without a window" if signed else "DICOM pixels",
        span=None if signed else span_of(data),
        window=None if settings.pixel_range else window_of(file, data),
        inverted=data.PhotometricInterpretation == "MONOCHROME1",
    )


def window_of(file: Path, data: Any) -> Window | None:
    """A file's first window; None where it has none.

    Raises:
        DataError: a center or width that is no finite number, a width or a function that DICOM PS3.3 C.11.2.1 forbids.
            Such a window would show black and white alone, or an inverted image.
    """
    center = data.get("WindowCenter")
    width = data.get("WindowWidth")
    if center is None or width is None or center == "" or width == "":
        return None
    own_range = SetOption("pixel-range", "LOW,HIGH")
    remedy = (own_range, " takes a range of yours in its place, for all files")
    function = str(data.get("VOILUTFunction") or "LINEAR")
    if function not in WINDOWS:
        rule = f"must be one of {', '.join(WINDOWS)}"
        rule = f"VOI LUT function {function[:40]!r}: {rule} (DICOM PS3.3)"
        raise DataError(rule, where=str(file), remedy=remedy)

    window = Window(_first(center), _first(width), function)
    least = WINDOWS[function]
    finite = math.isfinite(window.center) and math.isfinite(window.width)
    wide_enough = window.width >= least if least else window.width > 0
    if finite and wide_enough:
        return window
    bound = "at least 1" if least else "greater than 0"
    raise DataError(
        f"DICOM window of center {window.center:g} and width {window.width:g}: the width "
        f"must be {bound} for {function}, and both finite (PS3.3 C.11.2.1)",
        where=str(file),
        remedy=remedy,
    )


def _first(value: Any) -> float:
    """The first of several values as a number; NaN for what is none."""
    several = hasattr(value, "__len__") and not isinstance(value, str)
    try:
        first = value[0] if several else value
        return float(first)
    except (IndexError, TypeError, ValueError):
        return math.nan


def span_of(data: Any) -> tuple[float, float]:
    """The values of the smallest and the largest stored number that the bits allow."""
    sequence = data.get("ModalityLUTSequence")
    if sequence:  # a table: the third number of its descriptor says how many bits an entry has
        bits = int(sequence[0].LUTDescriptor[2])
        return 0.0, float(2**bits - 1)
    slope = float(data.get("RescaleSlope", 1))
    intercept = float(data.get("RescaleIntercept", 0))
    largest_stored = 2 ** int(data.BitsStored) - 1
    at_largest = slope * largest_stored + intercept
    # A negative slope makes the largest stored number the smallest value.
    return min(intercept, at_largest), max(intercept, at_largest)


def read_nifti(file: Path, settings: DataSettings) -> Stored:
    """Grey numbers (H, W): an image, or the slice along the last axis that `frame` says.

    Rows are from the second axis' end.

    Raises:
        DataError: several slices without `frame`, or more than three axes.
    """
    volume = needed("nibabel", "medical", file).load(file)
    dtype = volume.get_data_dtype()
    shape = [*volume.shape]
    while len(shape) > 2 and shape[-1] == 1:  # (H, W, 1, 1) is an image
        shape.pop()
    if len(shape) not in (2, 3) or dtype.kind not in "iuf":
        found = f"{'x'.join(map(str, volume.shape))} of {dtype}"
        rule = f"is a NIfTI file of {found}: must be an image, or a volume of grey slices"
        raise DataError(rule, where=str(file))
    refuse_large(file, shape[0] * shape[1], settings)

    index: list[Any] = [slice(None), slice(None)]
    if len(shape) == 3:
        index.append(chosen_frame(file, shape[2], settings))
    axes_of_one = len(volume.shape) - len(index)
    index += [0] * axes_of_one
    numbers = np.asarray(volume.dataobj[tuple(index)], np.float32)
    unscaled = volume.dataobj.slope == 1 and volume.dataobj.inter == 0
    return Stored(
        # The first axis of NIfTI goes to the right, and the second one up.
        numbers=np.ascontiguousarray(np.rot90(numbers)),
        what="NIfTI numbers",
        span=(0.0, 255.0) if dtype == np.uint8 and unscaled else None,
    )
