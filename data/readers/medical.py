"""DICOM images (pydicom) and slices of NIfTI volumes (nibabel) as pixels on the scale 0..1."""

import math
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.readers.intensity import WINDOWS, Stored, Window, chosen_frame
from data.settings import DataSettings
from data.text import said

MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


def needed(module: str, extra: str, where: object) -> Any:
    """A module of an extra. Raises DataError, naming the extra, where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0]
        rule = f"{package} reads it and is not installed: pip install 'fedskew[{extra}]'"
        raise DataError(rule, where=str(where)) from None


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
        rows, columns, photometric = (
            data.get(key) for key in ("Rows", "Columns", "PhotometricInterpretation")
        )
        if not rows or not columns or "PixelData" not in data:
            raise DataError("is a DICOM file without an image", where=str(file))
        if rows * columns > settings.max_image_pixels:
            most = settings.max_image_pixels
            raise DataError(
                f"is an image of more pixels than max-image-pixels = {most}", where=str(file)
            )
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
            raise DataError(
                f"pydicom cannot read its pixels: {said(error)}", where=str(file)
            ) from error
    bits = 8 * color.dtype.itemsize
    return np.asarray(color[..., :3] >> (bits - 8), np.uint8)


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
    center, width = data.get("WindowCenter"), data.get("WindowWidth")
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
    allowed = window.width >= least if least else window.width > 0
    if not (math.isfinite(window.center) and math.isfinite(window.width) and allowed):
        rule = (
            f"must be {'at least 1' if least else 'greater than 0'} for {function}, and both finite"
        )
        raise DataError(
            f"DICOM window of center {window.center:g} and width {window.width:g}: the width "
            f"{rule} (PS3.3 C.11.2.1)",
            where=str(file),
            remedy=remedy,
        )
    return window


def _first(value: Any) -> float:
    """The first of several values as a number; NaN for what is none."""
    several = hasattr(value, "__len__") and not isinstance(value, str)
    try:
        return float(value[0] if several else value)
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
    largest = slope * (2 ** int(data.BitsStored) - 1) + intercept
    return min(intercept, largest), max(intercept, largest)


def read_nifti(file: Path, settings: DataSettings) -> Stored:
    """Grey numbers (H, W): an image, or the slice along the last axis that `frame` says.

    Rows are from the second axis' end.

    Raises:
        DataError: several slices without `frame`, or more than three axes.
    """
    volume = needed("nibabel", "medical", file).load(file)
    shape = [*volume.shape]
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    if len(shape) not in (2, 3) or volume.get_data_dtype().kind not in "iuf":
        kind = f"{'x'.join(map(str, volume.shape))} of {volume.get_data_dtype()}"
        raise DataError(
            f"is a NIfTI file of {kind}: must be an image, or a volume of grey slices",
            where=str(file),
        )
    if shape[0] * shape[1] > settings.max_image_pixels:
        raise DataError(
            f"is an image of more pixels than max-image-pixels = {settings.max_image_pixels}",
            where=str(file),
        )
    place: list[Any] = [slice(None), slice(None)]
    if len(shape) == 3:
        place.append(chosen_frame(file, shape[2], settings))
    place += [0] * (len(volume.shape) - len(place))
    numbers = np.asarray(volume.dataobj[tuple(place)], np.float32)
    bytes_as_they_are = (
        volume.get_data_dtype() == np.uint8
        and volume.dataobj.slope == 1
        and volume.dataobj.inter == 0
    )
    span = (0.0, 255.0) if bytes_as_they_are else None
    return Stored(np.ascontiguousarray(np.rot90(numbers)), "NIfTI numbers", span)
