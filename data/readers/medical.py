"""DICOM images (pydicom) and slices of NIfTI volumes (nibabel) as grey numbers or bytes of color."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.extras import needed
from data.readers.array_types import Array, Booleans, Bytes, Floats, Shape
from data.readers.intensity import Stored, chosen_frame
from data.settings import LARGEST_IMAGE, DataSettings
from data.text import said

MONOCHROME = ("MONOCHROME1", "MONOCHROME2")
COLOR = ("RGB", "PALETTE COLOR", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Photometric interpretations that pydicom gives as red, green and blue."""
WINDOWS = {"LINEAR": 1.0, "LINEAR_EXACT": 5e-324, "SIGMOID": 5e-324}
"""The functions of DICOM's windows and their least width by PS3.3 C.11.2.1: at least 1, or greater than 0."""
PIXELS = {"PixelData": "", "FloatPixelData": "Float", "DoubleFloatPixelData": "Double"}
"""Elements that hold an image, and how the names of their padding values begin."""
OF_A_FRAME = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
"""The functional groups of enhanced files that say how a frame is shown."""
OWN_RANGE = (
    SetOption("pixel-range", "LOW,HIGH", is_example=True),
    " takes a range of yours in its place, for all files",
)


def read_dicom(file: Path, channels: int, settings: DataSettings) -> Stored | Bytes:
    """Return grey numbers after the modality transformation, or (H, W, 3) bytes of a color image.

    Modality LUT or rescale slope, VOI LUT, else the first window (DICOM PS3.3 C.11), color tables and conversions are
    pydicom's, with what an enhanced file states of the frame. Without VOI LUT and window, black and white are the ends
    of the stored bits, where these are unsigned. MONOCHROME1 or a Presentation LUT Shape INVERSE invert once. Padding
    values are black and no part of the range.

    Raises:
        DataError: a file without pixels, several frames without `frame`, color where grey is set or of more than 8
            bits, a window that the standard forbids, unless pixel-range takes its place, or what pydicom cannot read.
    """
    where = str(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        data = dicom_data(file)
        rows, columns = data.get("Rows"), data.get("Columns")
        if not rows or not columns or not any(element in data for element in PIXELS):
            raise DataError("is a DICOM file without an image", where=where)
        refuse_large(file, rows * columns)
        # In small letters pydicom does not know it.
        data.PhotometricInterpretation = text_of(data, "PhotometricInterpretation")
        photometric = data.PhotometricInterpretation
        if photometric not in MONOCHROME + COLOR:
            rule = f"must be one of {', '.join(MONOCHROME + COLOR)}"
            raise DataError(f"photometric interpretation {photometric!r}: {rule}", where=where)
        if photometric in COLOR and channels == 1:
            rule = f"is a color DICOM image ({photometric}), and grey is set"
            color = SetOption("input-shape", f"3x{rows}x{columns}")
            raise DataError(rule, where=where, remedy=(color, " is its own"))
        frame = chosen_frame(file, int(data.get("NumberOfFrames") or 1), settings)
        try:
            complete(data, frame)
            if photometric in MONOCHROME:
                return grey_of(file, data, frame, settings)
            return color_of(file, data, frame)
        except DataError:
            raise
        except Exception as error:  # a damaged file surfaces as anything
            rule = f"pydicom cannot read its pixels: {said(error)}"
            raise DataError(rule, where=where) from error


def dicom_data(file: Path, **options: Any) -> Any:
    """Return what pydicom reads of a file with or without a preamble, with the transfer syntax that its bytes show."""
    pydicom = needed("pydicom", "medical", file)
    data = pydicom.dcmread(file, force=True, **options)
    if "TransferSyntaxUID" not in data.file_meta:
        is_implicit, is_little_endian = data.original_encoding
        kind = "Implicit" if is_implicit else "Explicit"
        order = "Little" if is_little_endian or is_implicit else "Big"
        data.file_meta.TransferSyntaxUID = getattr(pydicom.uid, f"{kind}VR{order}Endian")
    return data


def text_of(data: Any, keyword: str) -> str:
    """Return an element's text in capital letters; empty where it has none."""
    return str(data.get(keyword) or "").strip().upper()


def complete(data: Any, frame: int) -> None:
    """Put what a file states of one frame, and half a rescale, where pydicom's functions look for it."""
    shared = [*(data.get("SharedFunctionalGroupsSequence") or [])][:1]
    of_frames = [*(data.get("PerFrameFunctionalGroupsSequence") or [])]
    for groups in shared + of_frames[frame : frame + 1]:
        for name in OF_A_FRAME:
            for stated in [*(groups.get(name) or [])][:1]:
                data.update(stated)
    usual = {"RescaleSlope": 1, "RescaleIntercept": 0}
    missing = [name for name in usual if data.get(name) in (None, "")]
    for name in missing:
        data.pop(name, None)  # an empty element is no number
        if len(missing) == 1:  # pydicom ignores half a rescale
            setattr(data, name, usual[name])


def refuse_large(file: Path, pixels: int) -> None:
    """Raise DataError for an image of more pixels than LARGEST_IMAGE, before it takes memory."""
    if pixels > LARGEST_IMAGE:
        raise DataError(f"is an image of more than {LARGEST_IMAGE} pixels", where=file)


def color_of(file: Path, data: Any, frame: int) -> Bytes:
    """Return red, green and blue (H, W, 3). Raises DataError for more than 8 bits a channel."""
    pixels = needed("pydicom.pixels", "medical", file)
    color = pixels.pixel_array(data, index=frame)
    if data.PhotometricInterpretation == "PALETTE COLOR":
        color = pixels.apply_color_lut(color, data)[..., :3]
        # A table of 16 bits has colors of 16; some devices write those of 8 into it.
        color = color >> (8 if color.max() > 255 else 0)
    elif data.BitsStored > 8:
        rule = f"is a color DICOM image of {data.BitsStored} bits a channel: must have 8"
        raise DataError(rule, where=file)
    return np.asarray(color, np.uint8)


def grey_of(file: Path, data: Any, frame: int, settings: DataSettings) -> Stored:
    """Return grey values with what the file says of them. Raises DataError as read_dicom does."""
    pixels = needed("pydicom.pixels", "medical", file)
    stored = pixels.pixel_array(data, index=frame)
    span: tuple[float, float] | None = None
    what = "DICOM pixels"
    if data.get("ModalityLUTSequence"):
        apply = pixels.apply_modality_lut
        values, largest = through_table(file, stored, data, "ModalityLUTSequence", apply)
        span = 0.0, largest
    else:
        if data.get("RescaleSlope") == 0:
            rule = "rescale slope 0 gives all pixels one value: must not be 0"
            raise DataError(rule, where=file)
        values = pixels.apply_modality_lut(stored, data)
        if stored.dtype.kind != "f" and not data.get("PixelRepresentation"):
            ends = np.array([0, 2 ** int(data.BitsStored) - 1])
            # A negative slope makes the largest stored number the smallest value.
            black, white = sorted(pixels.apply_modality_lut(ends, data).tolist())
            span = float(black), float(white)
        elif stored.dtype.kind != "f":
            what = "signed DICOM pixels without a window"
    return Stored(
        values,
        what,
        span=span,
        rendered=None if settings.pixel_range else rendered(file, data, values),
        inverted=is_inverted(file, data, settings),
        padding=padding_of(data, stored),
    )


def padding_of(data: Any, stored: Array) -> Booleans | None:
    """Return which stored pixels have the padding value, or lie between it and the padding range's limit."""
    name = next(f"{PIXELS[element]}PixelPadding" for element in PIXELS if element in data)
    value = data.get(f"{name}Value")
    if value is None:
        return None
    limit = data.get(f"{name}RangeLimit")
    ends = np.array([value, value if limit is None else limit])
    if stored.dtype.kind in "iu":
        # Some files write a negative value as unsigned, or the other way about: the bits are kept.
        ends = ends.astype(np.int64).astype(stored.dtype)
    is_padding = (stored >= ends.min()) & (stored <= ends.max())
    return is_padding if is_padding.any() else None


def is_inverted(file: Path, data: Any, settings: DataSettings) -> bool:
    """Return whether the largest value is black.

    Raises:
        DataError: a presentation LUT that is neither identity nor its inverse, unless pixel-range takes its place.
    """
    shape = text_of(data, "PresentationLUTShape") or "IDENTITY"
    if data.get("PresentationLUTSequence"):
        shape = "of a table"
    if not settings.pixel_range and shape not in ("IDENTITY", "INVERSE"):
        rule = f"presentation LUT shape {shape[:40]!r}: must be IDENTITY or INVERSE"
        raise DataError(rule, where=file, remedy=OWN_RANGE)
    # Films state both for the same inversion.
    return data.PhotometricInterpretation == "MONOCHROME1" or shape == "INVERSE"


def rendered(file: Path, data: Any, values: Array) -> Floats | None:
    """Return values on the scale 0..1 through the first VOI LUT, else the first window; None where there is none.

    Raises:
        DataError: a center or width that is no finite number, a width or a function that DICOM PS3.3 C.11.2.1 forbids.
            Such a window would show black and white alone, or an inverted image.
    """
    pixels = needed("pydicom.pixels", "medical", file)
    if data.get("VOILUTSequence"):
        shown, largest = through_table(file, values, data, "VOILUTSequence", pixels.apply_voi)
        return np.asarray(shown / largest, np.float32)
    window = [data.get("WindowCenter"), data.get("WindowWidth")]
    if None in window or "" in window:
        return None
    function = text_of(data, "VOILUTFunction") or "LINEAR"
    try:
        # Of several windows the first: what follows it may be no number.
        center, width = (float(np.ravel(np.asarray(stated, object))[0]) for stated in window)
    except (IndexError, TypeError, ValueError):
        center = width = math.nan
    least = WINDOWS.get(function, math.inf)
    if not (math.isfinite(center) and least <= width < math.inf):
        rule = "must be finite, of a width of at least 1 for LINEAR, or above 0 for LINEAR_EXACT and SIGMOID (PS3.3)"
        found = f"DICOM window {function[:40]} of center {center:g} and width {width:g}"
        raise DataError(f"{found}: {rule}", where=file, remedy=OWN_RANGE)

    # pydicom's windows end where the stored bits do. This file has one bit, so that they end at 0 and 1.
    one_bit = needed("pydicom", "medical", file).Dataset()
    one_bit.PhotometricInterpretation = "MONOCHROME2"
    one_bit.BitsStored = 1
    one_bit.PixelRepresentation = 0
    one_bit.VOILUTFunction = function
    one_bit.add(data["WindowCenter"])
    one_bit.add(data["WindowWidth"])
    return np.asarray(pixels.apply_windowing(values, one_bit), np.float32)


def through_table(
    file: Path,
    values: NDArray[Any],
    data: Any,
    sequence: str,
    apply: Callable[[Any, Any], NDArray[Any]],
) -> tuple[NDArray[Any], float]:
    """Return values through the first table of a sequence by pydicom's function, and the largest entry of its bits.

    Raises:
        DataError: entries of less than 8 or more than 16 bits.
    """
    table = data[sequence].value[0]
    count, first, bits = (int(number) for number in table.LUTDescriptor)
    if not 8 <= bits <= 16:
        raise DataError(f"{sequence}: entries of {bits} bits: must have 8 to 16", where=file)
    if first >= 2**15 and values.min() < 0:
        first -= 2**16  # a negative number, written as unsigned
    # pydicom counts in the type of its input or of the table's entries, which may overflow: it gets places from 0 on.
    table.LUTDescriptor = [count, 0, 16]
    last = (count or 2**16) - 1
    places = np.clip(np.rint(values) - first, 0, last).astype(np.int64)
    return apply(places, data), float(2**bits - 1)


@dataclass(frozen=True)
class Plane:
    """How a NIfTI file's images lie in it."""

    orientation: NDArray[np.float64]
    """(3, 2): nibabel's, of the three axes."""
    shape: Shape
    """The lengths of the three axes, to the right, front and top of the body."""
    through: int
    """Which of them counts the images: one of length 1, else the last."""
    remark: str
    """What is done to them that a user has to know, as the predicate of a sentence."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        width, height = (length for axis, length in enumerate(self.shape) if axis != self.through)
        return height, width


def nifti_plane(file: Path, volume: Any) -> Plane:
    """Return how a NIfTI file's images lie in it, by its sform, else its qform.

    Raises:
        DataError: more than three axes, or numbers that are no grey; an affine that says no orientation, or two that
            say different ones.
    """
    dtype = volume.get_data_dtype()
    lengths = [*volume.shape, 1]  # (H, W) is an image, and so is (H, W, 1, 1)
    if len(lengths) < 3 or {*lengths[3:]} - {1} or dtype.kind not in "iuf":
        found = f"{'x'.join(map(str, volume.shape))} of {dtype}"
        rule = f"is a NIfTI file of {found}: must be an image, or a volume of grey slices"
        raise DataError(rule, where=file)
    orientation, remark = nifti_orientation(file, volume)
    by_axis = orientation[:, 0].astype(int).tolist()
    shape = tuple(lengths[by_axis.index(axis)] for axis in range(3))
    through = max((axis for axis in range(3) if shape[axis] == 1), default=2)
    return Plane(orientation, shape, through, remark)


def nifti_orientation(file: Path, volume: Any) -> tuple[NDArray[np.float64], str]:
    """Return nibabel's orientation (3, 2) of a file's axes, and what has to be said of it. Raises DataError."""
    nibabel = needed("nibabel", "medical", file)
    in_order = np.array([[0, 1], [1, 1], [2, 1]], np.float64)
    found: dict[str, NDArray[np.float64]] = {}
    for name in ("sform", "qform"):
        if int(volume.header[f"{name}_code"]) > 0:
            affine = getattr(volume.header, f"get_{name}")()
            is_finite = np.isfinite(affine).all()
            found[name] = nibabel.io_orientation(affine) if is_finite else np.full((3, 2), np.nan)
            if np.isnan(found[name]).any():
                raise DataError(f"{name} gives one of its axes no direction", where=file)
    if not found:
        remark = "have neither sform nor qform: their axes are taken to be right, front, top"
        return in_order, remark
    words = {name: "".join(nibabel.orientations.ornt2axcodes(found[name])) for name in found}
    if len(set(words.values())) > 1:
        listed = " and ".join(f"{name} says {word}" for name, word in words.items())
        rule = "must say the same orientation, or the code of one of them must be 0"
        raise DataError(f"{listed}: {rule}", where=file)
    orientation = next(iter(found.values()))
    if np.array_equal(orientation, in_order):
        return orientation, ""
    return orientation, "are turned to the closest canonical orientation (right, front, top)"


def read_nifti(file: Path, settings: DataSettings) -> Stored:
    """Return grey numbers (H, W) in nibabel's closest canonical orientation: an image, or the slice of `frame`.

    Slices count from the bottom of the body to its top. The columns of one go to the right of the body, its rows from
    the front to the back.

    Raises:
        DataError: several slices without `frame`, or as nifti_plane does.
    """
    nibabel = needed("nibabel", "medical", file)
    volume = nibabel.load(file)
    plane = nifti_plane(file, volume)
    height, width = plane.size
    refuse_large(file, height * width)
    count = plane.shape[plane.through]
    place = chosen_frame(file, count, settings)

    axis = plane.orientation[:, 0].astype(int).tolist().index(plane.through)
    if plane.orientation[axis, 1] < 0:
        place = count - 1 - place
    # One slice alone is read from the disk, of the axes that the file has.
    index: list[Any] = [slice(None)] * 3 + [0] * len(volume.shape)
    index[axis] = slice(place, place + 1)
    numbers = np.asarray(volume.dataobj[tuple(index[: len(volume.shape)])], np.float32)
    numbers = numbers.reshape(numbers.shape + (1,) * (3 - numbers.ndim))
    slice_of_body = nibabel.apply_orientation(numbers, plane.orientation).take(0, plane.through)

    unscaled = volume.dataobj.slope == 1 and volume.dataobj.inter == 0
    is_bytes = volume.get_data_dtype() == np.uint8
    return Stored(
        # The second axis of what is left goes up.
        numbers=np.ascontiguousarray(np.rot90(slice_of_body)),
        what="NIfTI numbers",
        span=(0.0, 255.0) if is_bytes and unscaled else None,
    )
