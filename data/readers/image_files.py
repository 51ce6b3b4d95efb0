"""Images that stay in their files until they are needed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.settings import DataSettings

IGNORED = ("Thumbs.db", "desktop.ini")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Like an array (N, H, W, C) of bytes that decodes what is asked for; a client's inputs, like a tensor on the CPU.

    Every image is resized: directly to the shape, or, where `central`, its shorter side to 8/7 of it and the center cut
    out (256 and 224 for ImageNet).
    """

    root: Path
    names: NDArray[np.uint8]
    """(N, L): paths below root in UTF-8, padded with zeros."""
    size: tuple[int, int, int]
    """Channels, height, width."""
    central: bool = False
    settings: DataSettings = field(default_factory=DataSettings)
    """How files are read: max-image-pixels, pixel-range and frame."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    device = torch.device("cpu")

    @staticmethod
    def of(
        root: Path,
        files: list[str],
        size: tuple[int, ...],
        settings: DataSettings,
        central: bool = False,
    ) -> "ImageFiles":
        """Of paths below root."""
        encoded = [os.fsencode(file) for file in files]
        width = max(map(len, encoded), default=1)
        names = np.frombuffer(b"".join(name.ljust(width, b"\0") for name in encoded), np.uint8)
        channels, height, length = size
        return ImageFiles(
            root, names.reshape(len(files), width), (channels, height, length), central, settings
        )

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

    def decoded(
        self, indices: NDArray[np.int64] | None = None
    ) -> NDArray[np.uint8] | NDArray[np.float32]:
        """(n, H, W, C): bytes, or float32 on the scale 0..1 where a file has more than 8 bits.

        Raises:
            DataError: a file that is missing or no image.
        """
        from data.readers.images import (
            open_image,  # it loads PIL, which a process without files does not need
        )

        chosen = np.arange(len(self)) if indices is None else indices
        channels, height, width = self.size
        images: NDArray[np.uint8] | NDArray[np.float32] = np.empty(
            (len(chosen), height, width, channels), np.uint8
        )
        for place, index in enumerate(chosen.tolist()):
            image = open_image(
                self.path(index), channels, (width, height), self.central, self.settings
            )
            if image.dtype != np.uint8 and images.dtype == np.uint8:
                images = as_float(images)
            images[place] = image if image.dtype == images.dtype else as_float(image)
        return images

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """(n, C, H, W), uint8: what a tensor of all images would give, along dimension 0."""
        assert dim == 0
        # of named data sets alone, all of whose files are of 8 bits
        return torch.from_numpy(self.decoded(indices.numpy())).movedim(-1, 1)


def joined(images: Iterable[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Images of one shape as an array (N, H, W, C): of bytes, or float32 on the scale 0..1 if one is."""
    every = list(images)
    mixed = len({image.dtype for image in every}) > 1
    return np.stack(
        [as_float(image) if mixed and image.dtype == np.uint8 else image for image in every]
    )


def as_float(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Bytes on the scale 0..1."""
    return np.asarray(images, np.float32) / np.float32(255)
