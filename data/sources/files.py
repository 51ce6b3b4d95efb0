"""Images that stay in their files until they are needed."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.settings import DataError, DataSettings
from data.text import printable

IGNORED = ("Thumbs.db", "desktop.ini")
EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""PIL's modes that convert to L or RGB without clipping; 16-bit ones would lose nearly everything in silence."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Like an array (N, H, W, C) of uint8 that decodes what is asked for; a client's inputs, like a tensor on the CPU.

    Every image is resized: directly to the shape, or, where `central`, its shorter side to 8/7 of it and the center cut
    out (256 and 224 for ImageNet).
    """

    root: Path
    names: NDArray[np.uint8]
    """(N, L): paths below root in UTF-8, padded with zeros."""
    size: tuple[int, int, int]
    """Channels, height, width."""
    central: bool = False
    max_pixels: int = DataSettings.max_image_pixels
    """Of a file that is decoded."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    device = torch.device("cpu")

    @staticmethod
    def of(root: Path, files: list[str], size: tuple[int, ...], max_pixels: int, central: bool = False) -> "ImageFiles":
        """Of paths below root."""
        encoded = [os.fsencode(file) for file in files]
        width = max(map(len, encoded), default=1)
        names = np.frombuffer(b"".join(name.ljust(width, b"\0") for name in encoded), np.uint8)
        channels, height, length = size
        return ImageFiles(root, names.reshape(len(files), width), (channels, height, length), central, max_pixels)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As the array would have it."""
        return (len(self), *self.size[1:], self.size[0])

    def path(self, index: int) -> Path:
        """The file of one image."""
        return self.root / os.fsdecode(self.names[index].tobytes().rstrip(b"\0"))

    def only(self, indices: NDArray[np.int64]) -> "ImageFiles":
        """Some of the images, still undecoded."""
        return replace(self, names=np.ascontiguousarray(self.names[indices]))

    def decoded(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """(n, H, W, C).

        Raises:
            DataError: a file that is missing or no 8-bit image.
        """
        chosen = np.arange(len(self)) if indices is None else indices
        channels, height, width = self.size
        images = np.empty((len(chosen), height, width, channels), np.uint8)
        for place, index in enumerate(chosen.tolist()):
            images[place] = open_image(self.path(index), channels, (width, height), self.central, self.max_pixels)
        return images

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """(n, C, H, W), uint8: what a tensor of all images would give, along dimension 0."""
        assert dim == 0
        return torch.from_numpy(self.decoded(indices.numpy())).movedim(-1, 1)


def said(error: Exception) -> str:
    """What an error of another library says, in one line that is not endless: it may quote the file."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def open_image(
    file: Path,
    channels: int,
    size: tuple[int, int] | None = None,
    central: bool = False,
    max_pixels: int = DataSettings.max_image_pixels,
) -> NDArray[np.uint8]:
    """One image (H, W, channels); 0 channels is as many as it has, no size (width, height) is its own.

    Raises:
        DataError: a file that is missing, no 8-bit image, or of more pixels than `max_pixels`, which PIL counts before
            it takes memory for them.
    """
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a file says beside its pixels
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                if opened.mode not in EIGHT_BIT:
                    raise DataError(f"{file}: mode {opened.mode}: must be an image of 8 bits a channel")
                grey = channels == 1 or (channels == 0 and opened.mode in ("1", "L", "LA"))
                image = opened.convert("L" if grey else "RGB")
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{file}: is an image of more pixels than max-image-pixels = {max_pixels}") from None
    except Exception as error:  # a damaged file surfaces as anything, a SyntaxError among others
        raise DataError(f"{file}: cannot be read as an image: {said(error)}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = before
    box = None
    if size is not None and central:
        scale = 7 / 8 * min(image.width / size[0], image.height / size[1])
        half = size[0] * scale / 2, size[1] * scale / 2
        middle = image.width / 2, image.height / 2
        box = (middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1])
    if size is not None and (image.size != size or box is not None):
        image = image.resize(size, Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image, np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels
