"""One image file as pixels: all formats of Pillow, 16 bits per channel included, DICOM, and slices of NIfTI volumes."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps

from data.errors import DataError
from data.extras import needed
from data.readers.array_types import Bytes, Floats
from data.readers.file_type import is_dicom_file, is_nifti, truly
from data.readers.intensity import Stored, chosen_frame, shown
from data.readers.medical import dicom_data, nifti_plane, read_dicom, read_nifti
from data.settings import LARGEST_IMAGE, DataSettings
from data.text import said

EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""PIL's modes that convert to L or RGB without clipping; 16-bit ones would lose nearly everything in silence."""
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")
FIRST_IS_WHOLE = ("MPO", "PSD")
"""Formats whose first image is the picture, and whose others are previews or layers."""
WHITE_IS_ZERO = 0
"""TIFF's photometric interpretation, which Pillow follows in up to 8 bits alone."""
SIGNED = 2
"""TIFF's sample format."""
METADATA = frozenset({"exif", "xmp", "XML:com.adobe.xmp"})
"""Keys of Pillow's `info` that may hold an orientation."""
TURNED, SIDEWAYS = range(2, 9), range(5, 9)
"""Orientations of Exif but for the normal one, and those of them that exchange height and width."""
J2K_SIZE = b"\xff\x4f\xff\x51"
"""The start of JPEG 2000 data; 38 bytes on, the bits of the first channel less 1, above them a sign."""

Pixels = Bytes | Floats


def brought(
    image: Image.Image,
    channels: int,
    size: tuple[int, int] | None = None,
    central: bool = False,
) -> Pixels:
    """Return an image of mode L, RGB or F as pixels (H, W, channels).

    Args:
        image: As `as_image` returns it.
        channels: 0 for as many as it has.
        size: Width and height; None for its own.
        central: Whether the center is cut out: 7/8 of the shorter side.
    """
    if size is not None and central:
        scale = 7 / 8 * min(image.width / size[0], image.height / size[1])
        x, y = image.width / 2, image.height / 2
        half_width, half_height = size[0] * scale / 2, size[1] * scale / 2
        box = (x - half_width, y - half_height, x + half_width, y + half_height)
        image = image.resize(size, Image.Resampling.BILINEAR, box)
    elif size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.atleast_3d(np.asarray(image))
    return np.repeat(pixels, 3, axis=2) if channels == 3 and pixels.shape[2] == 1 else pixels


def as_image(file: Path, stored: Stored | Image.Image, settings: DataSettings) -> Image.Image:
    """Return what stored_in returns as an image of mode L, RGB or, on the scale 0..1, F.

    Raises:
        DataError: numbers of no known scale.
    """
    if isinstance(stored, Stored):
        return Image.fromarray(shown(file, stored, settings))
    return stored


def stored_in(file: Path, channels: int, settings: DataSettings) -> Stored | Image.Image:
    """Return the numbers of a file whose black and white are a question, else an image of mode L or RGB.

    Raises:
        DataError: a file that is missing, no image, or of more pixels than LARGEST_IMAGE, which are counted before it
            takes memory for them.
    """
    try:
        if is_dicom_file(file):
            read = read_dicom(file, channels, settings)
            return read if isinstance(read, Stored) else Image.fromarray(read)
        if is_nifti(file):
            return read_nifti(file, settings)
        with file.open("rb") as stream:
            return read_with_pil(file, stream, channels, settings)
    except DataError:
        raise
    # A damaged file surfaces as anything, a SyntaxError among others.
    except Exception as error:
        # Pillow raises OSError as well, but without the system's number.
        if isinstance(error, OSError) and error.errno is not None:
            reason = str(error.strerror)
        else:
            kind = truly(file)
            reason = f"is {kind}" if kind else said(error)
            if kind.endswith("image"):
                reason += f", damaged or of a kind that Pillow does not read: {said(error)}"
        rule = f"cannot be read as an image: {reason}"
        raise DataError(rule, where=file) from error


def read_with_pil(
    file: Path, stream: BinaryIO, channels: int, settings: DataSettings
) -> Stored | Image.Image:
    """Return what stored_in does, of an image in one of Pillow's formats. `file` is what a refusal names."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = LARGEST_IMAGE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata beside the pixels
            # Pillow warns from the limit on, and raises only from twice the limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Not by its name: Pillow maps such a file into memory, and a TIFF image on its side then comes out garbled.
            with Image.open(stream) as opened:
                if settings.frame or opened.format not in FIRST_IS_WHOLE:
                    opened.seek(chosen_frame(file, getattr(opened, "n_frames", 1), settings))
                refuse_what_pillow_loses(file, opened)
                return stored_of_pil(file, opened, channels)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        rule = f"is an image of more than {LARGEST_IMAGE} pixels"
        raise DataError(rule, where=file) from None
    finally:
        Image.MAX_IMAGE_PIXELS = before


def stored_of_pil(file: Path, opened: Image.Image, channels: int) -> Stored | Image.Image:
    """Return an image of any of PIL's modes as L or RGB, or its numbers where they are wider than bytes.

    It is turned as its Exif or TIFF orientation says.

    Raises:
        DataError: a picture that is in the transparency alone.
    """
    ImageOps.exif_transpose(opened, in_place=True)
    if opened.mode in EIGHT_BIT:
        if opened.mode == "La":  # Pillow converts it to LA alone
            opened = opened.convert("LA")
        refuse_picture_in_alpha(file, opened)
        grey = channels == 1 or (channels == 0 and opened.mode in ("1", "L", "LA"))
        return opened.convert("L" if grey else "RGB")

    tags = tiff_tags(opened)
    numbers = np.asarray(opened)
    signed = SIGNED in tags.get(ExifTags.Base.SampleFormat, ())
    if numbers.dtype == np.int32 and tags and not signed:
        numbers = numbers.view(np.uint32)  # Pillow has no mode of 32 bits without a sign
    white = 2.0 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    return Stored(
        numbers=numbers.astype(np.float32),
        what=f"mode {opened.mode}: pixels",
        span=(0.0, white) if opened.mode in SIXTEEN_BIT else None,
        inverted=tags.get(ExifTags.Base.PhotometricInterpretation) == WHITE_IS_ZERO,
    )


def tiff_tags(opened: Image.Image) -> Mapping[int, Any]:
    """Return the tags of a TIFF file's image; none of other formats."""
    return getattr(opened, "tag_v2", {})


def refuse_what_pillow_loses(file: Path, opened: ImageFile.ImageFile) -> None:
    """Raise DataError for an image that Pillow reads as bytes and that is none.

    These are more than 8 bits in color or beside transparency, and signed bytes.
    """
    if opened.mode not in EIGHT_BIT:
        return
    bits = bits_before_pillow(opened)
    if bits > 8:
        rule = "which Pillow cuts to 8: save it with 8 bits, or as PNG in grey without transparency"
        found = f"is a {opened.format} image of {bits} bits a channel"
        raise DataError(f"{found}, {rule}", where=file)
    if SIGNED in tiff_tags(opened).get(ExifTags.Base.SampleFormat, ()):
        rule = "which Pillow takes as unsigned: save it with 16 bits"
        raise DataError(f"is a TIFF image of signed bytes, {rule}", where=file)


def bits_before_pillow(opened: ImageFile.ImageFile) -> int:
    """Return the bits of a channel in the file of an image that Pillow has not decoded yet."""
    tags = tiff_tags(opened)
    if tags:
        return int(max(tags.get(ExifTags.Base.BitsPerSample, (1,))))
    if opened.format == "JPEG2000":
        assert opened.fp is not None
        place = opened.fp.tell()
        opened.fp.seek(0)
        size = opened.fp.read(2**16).partition(J2K_SIZE)[2]
        opened.fp.seek(place)
        return (size[38] & 0x7F) + 1 if len(size) > 38 else 8
    codec, _, _, arguments = opened.tile[0] if opened.tile else ("", None, 0, "")
    if codec in ("ppm", "ppm_plain") and isinstance(arguments, tuple):
        return int(arguments[-1]).bit_length()
    return 16 if codec == "SGI16" or ";16" in str(arguments) else 8


def refuse_picture_in_alpha(file: Path, opened: Image.Image) -> None:
    """Raise DataError for one color under a transparency that varies: without it nothing would be left."""
    if not opened.has_transparency_data:
        return
    *colors, alpha = (band.getextrema() for band in opened.convert("RGBA").split())
    if all(low == high for low, high in colors) and alpha[0] != alpha[1]:
        rule = "must be in its colors: save it on a background without transparency"
        found = "has one color, and its picture is in its transparency"
        raise DataError(f"{found}: {rule}", where=file)


@dataclass(frozen=True)
class Head:
    """What a file's head says of its image."""

    size: tuple[int, int]
    """Height and width."""
    remark: str = ""
    """What is done to it that a user has to know, as the predicate of a sentence."""


def head_of(file: Path) -> Head | None:
    """Return what a file's head says of its image; None where it has none that can be read."""
    try:
        if is_dicom_file(file):
            dicom = dicom_data(file, specific_tags=["Rows", "Columns"])
            return Head((int(dicom.Rows), int(dicom.Columns)))
        if is_nifti(file):
            plane = nifti_plane(file, needed("nibabel", "medical", file).load(file))
            return Head(plane.size, plane.remark)
        with Image.open(file) as opened:
            # Of a PNG image without them, Pillow would decode all pixels in search of them.
            has_metadata = opened.format != "PNG" or not METADATA.isdisjoint(opened.info)
            orientation = opened.getexif().get(ExifTags.Base.Orientation, 1) if has_metadata else 1
            size = opened.height, opened.width
            if orientation in SIDEWAYS and opened.format != "TIFF":  # Pillow turns it of TIFF
                size = opened.width, opened.height
            if orientation in TURNED:
                return Head(size, "are turned as their Exif or TIFF orientation says")
            if opened.has_transparency_data:
                remark = "have transparency, which is left out: colors are taken as stored"
                return Head(size, remark)
            return Head(size)
    except Exception:  # the reader of the whole file says why
        return None
