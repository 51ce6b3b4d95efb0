"""DICOM images (pydicom) and slices of NIfTI volumes (nibabel) as grey numbers or bytes of color."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.packages import needed
from data.readers.array_types import Array, Booleans, Bytes, Floats
from data.readers.intensity import Stored, chosen_frame
from data.settings import DataSettings

MONOCHROME = ("MONOCHROME1", "MONOCHROME2")
COLOR = ("RGB", "PALETTE COLOR", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Photometric interpretations that pydicom gives as red, green and blue."""
WINDOWS = {"LINEAR": 1.0, "LINEAR_EXACT": 5e-324, "SIGMOID": 5e-324}
"""The functions of DICOM's windows and their least width by PS3.3 C.11.2.1: at least 1, or greater than 0."""
OF_A_FRAME = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
"""The functional groups of enhanced files that say how a frame is shown."""
RESCALE = {"RescaleSlope": 1, "RescaleIntercept": 0}
"""What these are where a file states one or none of them; pydicom ignores half a rescale."""
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
            bits, or a window that the standard forbids, unless pixel-range takes its place.
        Exception: anything else that pydicom cannot read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        data = dicom_data(file)
        rows, columns = data.get("Rows"), data.get("Columns")
        if not rows or not columns or "PixelData" not in data:
            raise DataError("is a DICOM file without an image (PixelData)", where=file)
        photometric = text_of(data, "PhotometricInterpretation")
        if photometric not in MONOCHROME + COLOR:
            rule = f"must be one of {', '.join(MONOCHROME + COLOR)}"
            raise DataError(f"photometric interpretation {photometric!r}: {rule}", where=file)
        if photometric in COLOR and channels == 1:  # among scans it is a report or a screenshot
            rule = f"is a color DICOM image ({photometric}), and grey is set"
            color = SetOption("input-shape", f"3x{rows}x{columns}")
            raise DataError(rule, where=file, remedy=(color, " is its own"))
        data.PhotometricInterpretation = photometric  # in small letters pydicom does not know it
        frame = chosen_frame(file, int(data.get("NumberOfFrames") or 1), settings)
        complete(data, frame)
        stored = needed("pydicom.pixels", "medical", file).pixel_array(data, index=frame)
        if photometric in MONOCHROME:
            return grey_of(file, data, stored, settings)
        return color_of(file, data, stored)


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
    """Put what a file states of one frame, and the rescale that it leaves out, where pydicom looks for it."""
    shared = data.get("SharedFunctionalGroupsSequence") or []
    of_frames = data.get("PerFrameFunctionalGroupsSequence") or []
    for groups in [*shared[:1], *of_frames[frame : frame + 1]]:
        for name in OF_A_FRAME:
            for stated in groups.get(name) or ():
                data.update(stated)
    for name, usual in RESCALE.items():
        if data.get(name) in (None, ""):
            setattr(data, name, usual)


def color_of(file: Path, data: Any, color: Any) -> Bytes:
    """Return red, green and blue (H, W, 3). Raises DataError for more than 8 bits a channel."""
    if data.PhotometricInterpretation == "PALETTE COLOR":
        pixels = needed("pydicom.pixels", "medical", file)
        color = pixels.apply_color_lut(color, data)[..., :3]
        # A table of 16 bits has colors of 16; some devices write those of 8 into it.
        color = color >> (8 if color.max() > 255 else 0)
    elif data.BitsStored > 8:
        rule = f"is a color DICOM image of {data.BitsStored} bits a channel: must have 8"
        raise DataError(rule, where=file)
    return np.asarray(color, np.uint8)


def grey_of(file: Path, data: Any, stored: Array, settings: DataSettings) -> Stored:
    """Return grey values with what the file says of them. Raises DataError as read_dicom does."""
    pixels = needed("pydicom.pixels", "medical", file)
    span: tuple[float, float] | None = None
    if data.get("ModalityLUTSequence"):
        values, largest = through_table(file, stored, data, "ModalityLUTSequence")
        span = 0.0, largest
    else:
        if data.RescaleSlope == 0:
            rule = "rescale slope 0 gives all pixels one value: must not be 0"
            raise DataError(rule, where=file)
        values = pixels.apply_modality_lut(stored, data)
        if not data.get("PixelRepresentation"):
            ends = np.array([0, 2 ** int(data.BitsStored) - 1])
            # A negative slope makes the largest stored number the smallest value.
            black, white = sorted(pixels.apply_modality_lut(ends, data).tolist())
            span = float(black), float(white)
    what = "DICOM pixels" if span else "signed DICOM pixels without a window"
    windowed = None if settings.pixel_range else rendered(file, data, values)
    if windowed is not None:
        values, span = windowed, (0.0, 1.0)
    elif settings.pixel_range and ("WindowWidth" in data or "VOILUTSequence" in data):
        span = None  # with a window the bits do not say how bright an image is
    return Stored(
        values,
        what,
        span,
        inverted=is_inverted(file, data, settings),
        padding=padding_of(data, stored),
    )


def padding_of(data: Any, stored: Array) -> Booleans | None:
    """Return which stored pixels have the padding value, or lie between it and the padding range's limit."""
    value = data.get("PixelPaddingValue")
    if value is None:
        return None
    limit = data.get("PixelPaddingRangeLimit")
    ends = np.array([value, value if limit is None else limit], np.int64)
    # Some files write a negative value as unsigned, or the other way about: the bits are kept.
    low, high = sorted(ends.astype(stored.dtype))
    is_padding = (stored >= low) & (stored <= high)
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
        shown, largest = through_table(file, values, data, "VOILUTSequence")
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
    file: Path, values: Array, data: Any, sequence: str
) -> tuple[NDArray[Any], float]:
    """Return values through a modality or VOI LUT (DICOM PS3.3 C.11.1, C.11.2), and the largest entry of its bits.

    pydicom's own functions count in the type of their input or of the entries, which may overflow.

    Raises:
        DataError: entries of less than 8 or more than 16 bits, or fewer of them than the table states.
    """
    table = data[sequence].value[0]
    count, first, bits = (int(number) for number in table.LUTDescriptor)
    if not 8 <= bits <= 16:
        raise DataError(f"{sequence}: entries of {bits} bits: must have 8 to 16", where=file)
    if first >= 2**15 and values.min() < 0:
        first -= 2**16  # a negative number, written as unsigned
    stored = table.LUTData
    _, is_little_endian = data.original_encoding
    entries: NDArray[Any] = np.asarray(stored)
    if isinstance(stored, bytes):
        entries = np.frombuffer(stored, "<u2" if is_little_endian else ">u2")
    last = (count or 2**16) - 1  # an even number of bytes may follow it
    if entries.size <= last:  # such as those of 8 bits, two in a word
        rule = f"must have {last + 1} entries of 16 bits, and has {entries.size}"
        raise DataError(f"{sequence}: {rule}", where=file)
    places = np.clip(np.rint(values) - first, 0, last)
    return entries[places.astype(np.int64)], float(2**bits - 1)


def read_nifti(file: Path, settings: DataSettings) -> Stored:
    """Return grey numbers (H, W) in nibabel's closest canonical orientation: an image, or the slice of `frame`.

    Slices count from the bottom of the body to its top, or along an axis of length 1. The columns of one go to the
    right of the body, its rows from the front to the back.

    Raises:
        DataError: several slices without `frame`, more than three axes, or numbers that are no grey; or as
            nifti_orientation does.
    """
    nibabel = needed("nibabel", "medical", file)
    volume = nibabel.load(file)
    dtype = volume.get_data_dtype()
    lengths = volume.shape
    if len(lengths) < 3 or {*lengths[3:]} - {1} or 0 in lengths or dtype.kind not in "iuf":
        found = f"{'x'.join(map(str, lengths))} of {dtype}"
        rule = f"is a NIfTI file of {found}: must be a volume of grey slices, which may be one"
        raise DataError(rule, where=file)

    orientation = nifti_orientation(file, volume.header)
    by_axis = orientation[:, 0].astype(int).tolist()
    flat = [by_axis[axis] for axis in range(3) if lengths[axis] == 1]
    through = max(flat, default=2)
    axis = by_axis.index(through)
    count = lengths[axis]
    place = chosen_frame(file, count, settings)
    if orientation[axis, 1] < 0:
        place = count - 1 - place
    # One slice alone is read from the disk.
    index: list[Any] = [slice(None)] * 3 + [0] * (len(lengths) - 3)
    index[axis] = slice(place, place + 1)
    numbers = np.asarray(volume.dataobj[tuple(index)], np.float32)
    slice_of_body = nibabel.apply_orientation(numbers, orientation).take(0, through)

    unscaled = volume.dataobj.slope == 1 and volume.dataobj.inter == 0
    return Stored(
        # The second axis of what is left goes up.
        numbers=np.ascontiguousarray(np.rot90(slice_of_body)),
        what="NIfTI numbers",
        span=(0.0, 255.0) if dtype == np.uint8 and unscaled else None,
    )


def nifti_orientation(file: Path, header: Any) -> NDArray[np.float64]:
    """Return nibabel's orientation (3, 2) of a file's axes by its sform and qform; with neither right, front, top.

    Raises:
        DataError: an axis without a direction, or two forms that say different ones.
    """
    nibabel = needed("nibabel", "medical", file)
    found: dict[str, str] = {}
    for name in ("sform", "qform"):
        if int(header[f"{name}_code"]) > 0:
            affine = getattr(header, f"get_{name}")()
            if not np.isfinite(affine).all() or None in nibabel.aff2axcodes(affine):
                raise DataError(f"{name} gives one of its axes no direction", where=file)
            found[name] = "".join(nibabel.aff2axcodes(affine))
    if len(set(found.values())) > 1:
        listed = " and ".join(f"{name} says {directions}" for name, directions in found.items())
        rule = "must say the same orientation, or the code of one of them must be 0"
        raise DataError(f"{listed}: {rule}", where=file)
    return np.asarray(nibabel.orientations.axcodes2ornt(next(iter(found.values()), "RAS")))
