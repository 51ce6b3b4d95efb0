"""One image file as pixels: all formats of Pillow, 16 bits per channel included, DICOM, and slices of NIfTI volumes."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from data.errors import DataError
from data.readers.file_type import is_dicom, is_nifti, truly
from data.readers.intensity import Stored, chosen_frame, shown
from data.readers.medical import read_dicom, read_nifti
from data.settings import DataSettings
from data.text import said

EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""PIL's modes that convert to L or RGB without clipping; 16-bit ones would lose nearly everything in silence."""
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")

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
    stored = stored_in(file, channels, settings)
    if isinstance(stored, Stored):
        return Image.fromarray(shown(file, stored, settings))
    return stored


def stored_in(file: Path, channels: int, settings: DataSettings) -> Stored | Image.Image:
    """The numbers of a file whose black and white are a question, else an image of mode L or RGB.

    Raises:
        DataError: as open_image does, but for numbers of no known scale.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(132)
        if is_dicom(head):
            read = read_dicom(file, channels, settings)
            return read if isinstance(read, Stored) else Image.fromarray(read)
        if is_nifti(file):
            return read_nifti(file, settings)
        return _with_pil(file, channels, settings)
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


def _with_pil(file: Path, channels: int, settings: DataSettings) -> Stored | Image.Image:
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = settings.max_image_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata beside the pixels
            # Pillow warns from the limit on, and raises only from twice the limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                if opened.format == "TIFF":
                    frames = getattr(opened, "n_frames", 1)
                    opened.seek(chosen_frame(file, frames, settings))
                return stored_of_pil(opened, channels)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def from_pil(file: Path, opened: Image.Image, channels: int, settings: DataSettings) -> Image.Image:
    """An image of any of PIL's modes as L, RGB or F. Raises DataError for numbers of no known scale."""
    stored = stored_of_pil(opened, channels)
    if isinstance(stored, Stored):
        return Image.fromarray(shown(file, stored, settings))
    return stored


def stored_of_pil(opened: Image.Image, channels: int) -> Stored | Image.Image:
    """An image of any of PIL's modes: as L or RGB, or its numbers where they are wider than bytes."""
    if opened.mode in EIGHT_BIT:
        stored_grey = opened.mode in ("1", "L", "LA")
        grey = channels == 1 or (channels == 0 and stored_grey)
        return opened.convert("L" if grey else "RGB")
    return Stored(
        numbers=np.asarray(opened).astype(np.float32),
        what=f"mode {opened.mode}: pixels",
        span=(0.0, 65535.0) if opened.mode in SIXTEEN_BIT else None,
    )


def why_not(file: Path, error: Exception) -> str:
    """The sentence about a file that is no image, or a damaged one."""
    kind = truly(file)
    if kind.endswith("TIFF image") and isinstance(error, UnidentifiedImageError):
        remedy = "save it with 8 bits, or as PNG"
        reason = (
            f"is {kind} of a kind that Pillow does not read, such as 16 bits in color: {remedy}"
        )
    elif kind.endswith("image"):
        reason = f"is {kind}, damaged: {said(error)}"
    elif kind:
        reason = f"is {kind}"
    else:
        reason = said(error)
    return f"{file}: cannot be read as an image: {reason}"
