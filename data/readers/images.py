"""One image file as pixels: all formats of Pillow, 16 bits per channel included, DICOM, and slices of NIfTI volumes."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from data.errors import DataError
from data.extras import needed
from data.readers.file_type import is_dicom_file, is_nifti, truly
from data.readers.intensity import Stored, chosen_frame, shown
from data.readers.medical import dicom_data, nifti_plane, read_dicom, read_nifti
from data.settings import DataSettings
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
TURNED = range(2, 9)
"""Orientations of Exif but for the normal one."""
SIDEWAYS = range(5, 9)
"""Those of them that exchange height and width."""
J2K_SIZE = b"\xff\x4f\xff\x51"
"""The start of JPEG 2000 data; 38 bytes on, the bits of the first channel less 1, above them a sign."""

Pixels = NDArray[np.uint8] | NDArray[np.float32]


def open_image(
    file: Path,
    channels: int,
    size: tuple[int, int] | None = None,
    central: bool = False,
    settings: DataSettings | None = None,
) -> Pixels:
    """One image (H, W, channels); 0 channels is as many as it has, no size (width, height) is its own.

    Bytes, or float32 on the scale 0..1 where the file has more than 8 bits a channel.

    Raises:
        DataError: a file that is missing, no image, one whose black and white nothing says, or of more pixels than
            max-image-pixels, which are counted before it takes memory for them.
    """
    return brought(decode(file, channels, settings or DataSettings()), channels, size, central)


def brought(
    image: Image.Image,
    channels: int,
    size: tuple[int, int] | None = None,
    central: bool = False,
) -> Pixels:
    """An image of mode L, RGB or F as pixels of a size (width, height), as open_image says."""
    box = None
    if size is not None and central:
        box = _central_box(image.size, size)
    if size is not None and (image.size != size or box is not None):
        image = image.resize(size, Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if channels == 3 and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return pixels


def _central_box(
    image_size: tuple[int, int], size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """The left, top, right and bottom of an image's center that becomes an image of `size`: 7/8 of its shorter side."""
    image_width, image_height = image_size
    width, height = size
    scale = 7 / 8 * min(image_width / width, image_height / height)
    half_width = width * scale / 2
    half_height = height * scale / 2
    x = image_width / 2
    y = image_height / 2
    return x - half_width, y - half_height, x + half_width, y + half_height


def decode(file: Path, channels: int, settings: DataSettings) -> Image.Image:
    """An image of mode L, RGB or, on the scale 0..1, F. Raises DataError as open_image does."""
    return as_image(file, stored_in(file, channels, settings), settings)


def as_image(file: Path, stored: Stored | Image.Image, settings: DataSettings) -> Image.Image:
    """What stored_in gives as an image of mode L, RGB or, on the scale 0..1, F.

    Raises:
        DataError: numbers of no known scale.
    """
    if isinstance(stored, Stored):
        return Image.fromarray(shown(file, stored, settings))
    return stored


def stored_in(file: Path, channels: int, settings: DataSettings) -> Stored | Image.Image:
    """The numbers of a file whose black and white are a question, else an image of mode L or RGB.

    Raises:
        DataError: as open_image does, but for numbers of no known scale.
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
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        rule = f"is an image of more pixels than max-image-pixels = {settings.max_image_pixels}"
        raise DataError(rule, where=str(file)) from None
    # A damaged file surfaces as anything, a SyntaxError among others.
    except Exception as error:
        # Pillow raises OSError as well, but without the system's number.
        if isinstance(error, OSError) and error.errno is not None:
            rule = f"cannot be read as an image: {error.strerror}"
            raise DataError(rule, where=str(file)) from error
        raise DataError(why_not(file, error)) from error


def read_with_pil(
    file: Path, stream: BinaryIO, channels: int, settings: DataSettings
) -> Stored | Image.Image:
    """As stored_in, of an image in one of Pillow's formats. `file` is what a refusal names."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = settings.max_image_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata beside the pixels
            # Pillow warns from the limit on, and raises only from twice the limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Not by its name: Pillow maps such a file into memory, and a TIFF image on its side then comes out garbled.
            with Image.open(stream) as opened:
                choose_frame(file, opened, settings)
                refuse_what_pillow_loses(file, opened)
                return stored_of_pil(file, opened, channels)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def choose_frame(file: Path, opened: Image.Image, settings: DataSettings) -> None:
    """Seek the image that `frame` says. Raises DataError for several images of which nothing says the one to take."""
    count = getattr(opened, "n_frames", 1)
    if opened.format in FIRST_IS_WHOLE and not settings.frame:
        return
    opened.seek(chosen_frame(file, count, settings))


def stored_of_pil(file: Path, opened: Image.Image, channels: int) -> Stored | Image.Image:
    """An image of any of PIL's modes: as L or RGB, or its numbers where they are wider than bytes.

    It is turned as its Exif or TIFF orientation says.

    Raises:
        DataError: a picture that is in the transparency alone.
    """
    ImageOps.exif_transpose(opened, in_place=True)
    if opened.mode in EIGHT_BIT:
        if opened.mode == "La":  # Pillow converts it to LA alone
            opened = opened.convert("LA")
        refuse_picture_in_alpha(file, opened)
        stored_grey = opened.mode in ("1", "L", "LA")
        grey = channels == 1 or (channels == 0 and stored_grey)
        return opened.convert("L" if grey else "RGB")

    tags = tiff_tags(opened)
    numbers = np.asarray(opened)
    if (
        numbers.dtype == np.int32
        and tags
        and SIGNED not in tags.get(ExifTags.Base.SampleFormat, ())
    ):
        numbers = numbers.view(np.uint32)  # Pillow has no mode of 32 bits without a sign
    white = 2 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    return Stored(
        numbers=numbers.astype(np.float32),
        what=f"mode {opened.mode}: pixels",
        span=(0.0, float(white)) if opened.mode in SIXTEEN_BIT else None,
        inverted=tags.get(ExifTags.Base.PhotometricInterpretation) == WHITE_IS_ZERO,
    )


def tiff_tags(opened: Image.Image) -> Mapping[int, Any]:
    """The tags of a TIFF file's image; none of other formats."""
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
        raise DataError(f"{found}, {rule}", where=str(file))
    if SIGNED in tiff_tags(opened).get(ExifTags.Base.SampleFormat, ()):
        rule = "which Pillow takes as unsigned: save it with 16 bits"
        raise DataError(f"is a TIFF image of signed bytes, {rule}", where=str(file))


def bits_before_pillow(opened: ImageFile.ImageFile) -> int:
    """The bits of a channel in the file of an image that Pillow has not decoded yet."""
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
        raise DataError(
            f"has one color, and its picture is in its transparency: {rule}", where=str(file)
        )


@dataclass(frozen=True)
class Head:
    """What a file's head says of its image."""

    size: tuple[int, int]
    """Height and width."""
    remark: str = ""
    """What is done to it that a user has to know, as the predicate of a sentence."""


def head_of(file: Path) -> Head | None:
    """What a file's head says of its image; None where it has none that can be read."""
    try:
        if is_dicom_file(file):
            dicom = dicom_data(file, specific_tags=["Rows", "Columns"])
            return Head((int(dicom.Rows), int(dicom.Columns)))
        if is_nifti(file):
            volume = needed("nibabel", "medical", file).load(file)
            plane = nifti_plane(file, volume)
            return Head(plane.size, plane.remark)
        with Image.open(file) as opened:
            return head_of_pil(opened)
    except Exception:  # the reader of the whole file says why
        return None


def head_of_pil(opened: Image.Image) -> Head:
    """What Pillow has read of an image before its pixels."""
    height, width = opened.height, opened.width
    # Of a PNG image without them, Pillow would decode all pixels in search of them.
    states_orientation = opened.format != "PNG" or not METADATA.isdisjoint(opened.info)
    orientation = opened.getexif().get(ExifTags.Base.Orientation, 1) if states_orientation else 1
    if orientation in SIDEWAYS and opened.format != "TIFF":  # of TIFF Pillow turns the size itself
        height, width = width, height
    if orientation in TURNED:
        return Head((height, width), "are turned as their Exif or TIFF orientation says")
    if opened.has_transparency_data:
        return Head(
            (height, width), "have transparency, which is left out: colors are taken as stored"
        )
    return Head((height, width))


def why_not(file: Path, error: Exception) -> str:
    """The sentence about a file that is no image, or a damaged one."""
    kind = truly(file)
    if kind.endswith("TIFF image") and isinstance(error, UnidentifiedImageError):
        remedy = "save it as PNG"
        reason = (
            f"is {kind} of a kind that Pillow does not read, such as floats of 64 bits: {remedy}"
        )
    elif kind.endswith("image"):
        reason = f"is {kind}, damaged: {said(error)}"
    elif kind:
        reason = f"is {kind}"
    else:
        reason = said(error)
    return f"{file}: cannot be read as an image: {reason}"
