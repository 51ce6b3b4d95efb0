"""One image file as pixels: the usual formats in 8 and 16 bits, DICOM, and slices of NIfTI volumes."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from data.errors import DataError
from data.readers.array_types import Bytes, Floats
from data.readers.file_type import is_dicom_file, is_nifti
from data.readers.intensity import Stored, chosen_frame
from data.readers.medical import read_dicom, read_nifti
from data.settings import DataSettings
from data.text import said

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
"""Formats whose files say how many bits they have. Pillow cuts those of others to 8 in silence."""
EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""PIL's modes that convert to L or RGB without clipping; 16-bit ones would lose nearly everything in silence."""
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")
WHITE_IS_ZERO = 0
"""TIFF's photometric interpretation, which Pillow follows in up to 8 bits alone."""
SIGNED = 2
"""TIFF's sample format."""
Pixels = Bytes | Floats


def pixels_of(
    image: Floats | Image.Image,
    channels: int,
    size: tuple[int, int] | None = None,
    central: bool = False,
) -> Pixels:
    """Return an image as pixels (H, W, channels).

    Args:
        image: Of mode L or RGB, or grey (H, W) on the scale 0..1.
        channels: 0 for as many as it has.
        size: Width and height; None for its own.
        central: Whether the center is cut out: 7/8 of the shorter side.
    """
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    if size is not None and central:
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR, bleed=1 / 16)
    elif size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.atleast_3d(np.asarray(image))
    return np.repeat(pixels, 3, axis=2) if channels == 3 and pixels.shape[2] == 1 else pixels


def stored_in(file: Path, channels: int, settings: DataSettings) -> Stored | Image.Image:
    """Return the numbers of a file whose black and white are a question, else an image of mode L or RGB.

    Raises:
        DataError: a file that is missing, no image, or of more pixels than Pillow opens.
    """
    try:
        if is_dicom_file(file):
            dicom = read_dicom(file, channels, settings)
            if isinstance(dicom, Stored):
                return dicom
            return in_channels(Image.fromarray(dicom), channels)
        if is_nifti(file):
            return read_nifti(file, settings)
        with file.open("rb") as stream:
            return read_with_pil(file, stream, channels, settings)
    except DataError:
        raise
    # A damaged file surfaces as anything, a SyntaxError among others.
    except Exception as error:
        rule = f"cannot be read as an image: {said(error)}"
        if isinstance(error, UnidentifiedImageError):
            rule = f"is damaged or no image: must be {', '.join(FORMATS)}, DICOM or NIfTI"
        raise DataError(rule, where=file) from error


def read_with_pil(
    file: Path, stream: BinaryIO, channels: int, settings: DataSettings
) -> Stored | Image.Image:
    """Return what stored_in does, of an image in one of FORMATS. `file` is what a refusal names.

    It is turned as its Exif or TIFF orientation says.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata beside the pixels
        # Not by its name: Pillow maps such a file into memory, and a TIFF image on its side then comes out garbled.
        with Image.open(stream, formats=FORMATS) as opened:
            # What a camera adds to a JPEG file are previews.
            if settings.frame or opened.format != "MPO":
                opened.seek(chosen_frame(file, getattr(opened, "n_frames", 1), settings))
            tags: Mapping[int, Any] = getattr(opened, "tag_v2", {})  # those of TIFF
            if opened.mode not in EIGHT_BIT:
                ImageOps.exif_transpose(opened, in_place=True)
                return wide_numbers(opened, tags)
            refuse_what_pillow_loses(file, opened, tags)
            ImageOps.exif_transpose(opened, in_place=True)
            # Pillow converts La to LA alone.
            image = opened.convert("LA") if opened.mode == "La" else opened
            refuse_picture_in_alpha(file, image)
            return in_channels(image, channels)


def in_channels(image: Image.Image, channels: int) -> Image.Image:
    """Return an image of 8 bits in mode L or RGB: in so many channels, or for 0 as many as it has."""
    is_grey = channels == 1 or (channels == 0 and image.mode in ("1", "L", "LA"))
    return image.convert("L" if is_grey else "RGB")


def wide_numbers(opened: Image.Image, tags: Mapping[int, Any]) -> Stored:
    """Return the numbers of an image of more than 8 bits."""
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


def refuse_what_pillow_loses(
    file: Path, opened: ImageFile.ImageFile, tags: Mapping[int, Any]
) -> None:
    """Raise DataError for an image that Pillow reads as bytes and that is none.

    These are more than 8 bits in color or beside transparency, and signed bytes.
    """
    bits = max(tags.get(ExifTags.Base.BitsPerSample, (8,)))
    # Pillow's own words for how the pixels are stored: such as RGB;16B, and of PPM the largest number.
    codec, _, _, arguments = opened.tile[0] if opened.tile else ("", None, 0, "")
    if ";16" in str(arguments):
        bits = 16
    if codec in ("ppm", "ppm_plain") and isinstance(arguments, tuple):
        bits = int(arguments[-1]).bit_length()
    if bits > 8:
        rule = "which Pillow cuts to 8: save it with 8 bits, or as PNG in grey without transparency"
        found = f"is a {opened.format} image of {bits} bits a channel"
        raise DataError(f"{found}, {rule}", where=file)
    if SIGNED in tags.get(ExifTags.Base.SampleFormat, ()):
        rule = "which Pillow takes as unsigned: save it with 16 bits"
        raise DataError(f"is a TIFF image of signed bytes, {rule}", where=file)


def refuse_picture_in_alpha(file: Path, opened: Image.Image) -> None:
    """Raise DataError for one color under a transparency that varies: without it nothing would be left."""
    if not opened.has_transparency_data:
        return
    *colors, alpha = (band.getextrema() for band in opened.convert("RGBA").split())
    if all(low == high for low, high in colors) and alpha[0] != alpha[1]:
        rule = "must be in its colors: save it on a background without transparency"
        found = "has one color, and its picture is in its transparency"
        raise DataError(f"{found}: {rule}", where=file)
