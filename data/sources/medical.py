"""DICOM images (pydicom) and slices of NIfTI volumes (nibabel) as pixels on the scale 0..1."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.settings import DataError, DataSettings
from data.sources.scale import chosen_frame, on_scale, scaled
from data.text import said

Grey = NDArray[np.float32]
MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


def needed(module: str, extra: str, where: object) -> Any:
    """A module of an extra. Raises DataError, naming the extra, where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0]
        rule = f"{package} reads it and is not installed: pip install 'fedskew[{extra}]'"
        raise DataError(f"{where}: {rule}") from None


def read_dicom(file: Path, channels: int, settings: DataSettings) -> Grey | NDArray[np.uint8]:
    """(H, W) grey, or (H, W, 3) bytes of a color image.

    Grey goes through the modality transformation (rescale slope and intercept), then by pixel-range or the file's first
    window (DICOM PS3.3 C.11.2.1.2) to 0..1; without either the range of the stored bits. MONOCHROME1 is inverted.

    Raises:
        DataError: a file without pixels, several frames without `frame`, color where grey is set, or signed numbers
            without a window.
    """
    dicom, pixels = needed("pydicom", "medical", file), needed("pydicom.pixels", "medical", file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        data = dicom.dcmread(file)
        rows, columns, photometric = (
            data.get(key) for key in ("Rows", "Columns", "PhotometricInterpretation")
        )
        if not rows or not columns or "PixelData" not in data:
            raise DataError(f"{file}: is a DICOM file without an image")
        if rows * columns > settings.max_image_pixels:
            most = settings.max_image_pixels
            raise DataError(f"{file}: is an image of more pixels than max-image-pixels = {most}")
        if photometric not in MONOCHROME and channels == 1:
            rule = "and grey is set: --set input-shape=3xHEIGHTxWIDTH, or leave it out"
            raise DataError(f"{file}: is a color DICOM image ({photometric}), {rule}")
        frame = chosen_frame(file, int(data.get("NumberOfFrames") or 1), settings)
        try:
            stored = pixels.pixel_array(data, index=frame)
            if photometric in MONOCHROME:
                return grey_of(
                    file, stored, data, pixels.apply_modality_lut(stored, data), settings
                )
            color = (
                pixels.apply_color_lut(stored, data) if photometric == "PALETTE COLOR" else stored
            )
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            raise DataError(f"{file}: pydicom cannot read its pixels: {said(error)}") from error
    bits = 8 * color.dtype.itemsize
    return np.asarray(color[..., :3] >> (bits - 8), np.uint8)


def grey_of(
    file: Path,
    stored: NDArray[np.generic],
    data: Any,
    values: NDArray[np.generic],
    settings: DataSettings,
) -> Grey:
    """Grey values on the scale 0..1, white as 1."""
    window, numbers = window_of(data), np.asarray(values, np.float32)
    if window is None or settings.pixel_range:
        span = None if data.get("PixelRepresentation") else span_of(data)
        shown = scaled(file, "signed DICOM pixels without a window", numbers, span, settings)
    else:
        shown = windowed(np.asarray(values, np.float64), *window)
    return 1 - shown if data.PhotometricInterpretation == "MONOCHROME1" else shown


def window_of(data: Any) -> tuple[float, float, str] | None:
    """Center, width and function of a file's first window; None where it has none."""
    center, width = data.get("WindowCenter"), data.get("WindowWidth")
    if center is None or width is None or center == "" or width == "":
        return None
    first = [
        value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value
        for value in (center, width)
    ]
    return float(first[0]), float(first[1]), str(data.get("VOILUTFunction") or "LINEAR")


def windowed(values: NDArray[np.float64], center: float, width: float, function: str) -> Grey:
    """Values through a window, as 0..1: LINEAR, LINEAR_EXACT or SIGMOID of DICOM PS3.3 C.11.2.1."""
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - center) / width)), np.float32)
    if function == "LINEAR_EXACT":
        return on_scale(values, center - width / 2, center + width / 2)
    if width <= 1:
        return np.asarray(values > center - 0.5, np.float32)
    return on_scale(values, center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2)


def span_of(data: Any) -> tuple[float, float]:
    """The values of the smallest and the largest stored number that the bits allow."""
    if sequence := data.get("ModalityLUTSequence"):
        return 0.0, float(2 ** int(sequence[0].LUTDescriptor[2]) - 1)
    slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    largest = slope * (2 ** int(data.BitsStored) - 1) + intercept
    return min(intercept, largest), max(intercept, largest)


def read_nifti(file: Path, settings: DataSettings) -> Grey:
    """(H, W): an image, or the slice along the last axis that `frame` says; rows from the second axis' end.

    Raises:
        DataError: several slices without `frame`, more than three axes, or numbers of no known scale.
    """
    volume = needed("nibabel", "medical", file).load(file)
    shape = [*volume.shape]
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    if len(shape) not in (2, 3) or volume.get_data_dtype().kind not in "iuf":
        kind = f"{'x'.join(map(str, volume.shape))} of {volume.get_data_dtype()}"
        raise DataError(
            f"{file}: is a NIfTI file of {kind}: must be an image, or a volume of grey slices"
        )
    if shape[0] * shape[1] > settings.max_image_pixels:
        raise DataError(
            f"{file}: is an image of more pixels than max-image-pixels = {settings.max_image_pixels}"
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
    return np.ascontiguousarray(np.rot90(scaled(file, "NIfTI numbers", numbers, span, settings)))
