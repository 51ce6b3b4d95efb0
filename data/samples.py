"""The samples of one client on its device, batches of them, and the samples that a process keeps."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from torch import Generator, Tensor

from data.augmentation import AUGMENTATIONS
from data.readers.image_files import ImageFiles

CACHE_BYTES = 2**28
"""Bytes that are kept together."""
OVERHEAD_BYTES = 2**12
"""Bytes that samples take beside their values."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels, contiguous on one device (files aside), not normalized yet."""

    inputs_N: Tensor | ImageFiles
    """(N, C, H, W) or (N, F), uint8 or float32; or the files of images, which are decoded as they are asked for."""
    labels_N: Tensor
    """(N,), int64."""
    mean: Tensor
    """Float32, broadcasts against one input: (C, 1, 1), or (1,) or (F,) for vectors."""
    std: Tensor
    """As `mean`."""
    augmentation: str = "none"
    """How `batch` changes images at random, when it is given a generator."""
    groups_N: Tensor | None = None
    """(N,) int64: the subject of each sample, which is tested as a whole; None where a sample stands for itself."""
    subjects_N: Tensor | None = None
    """(N,) int64: the subject of each sample that is tested by itself. Samples of one subject are alike, so that errors
    of estimates count subjects; None where nobody knows them, or where `groups_N` says them."""

    def __len__(self) -> int:
        return len(self.labels_N)

    def only(self, indices: Tensor) -> "Samples":
        """Some of the samples; files stay undecoded."""
        inputs = self.inputs_N
        changed: dict[str, Tensor | ImageFiles] = {}
        if isinstance(inputs, ImageFiles):
            changed["inputs_N"] = inputs[indices.cpu().numpy()]
        for name, of_each in vars(self).items():
            if name.endswith("_N") and isinstance(of_each, Tensor):
                changed[name] = of_each[indices]
        return replace(self, **changed)  # type: ignore[arg-type]

    def batch(self, indices: Tensor, draws: Generator | None = None) -> Tensor:
        """The inputs at `indices`, float32, normalized: uint8 as (x/255 - mean)/std, float32 as (x - mean)/std.

        With `draws`, for a training step, each image is augmented by numbers drawn from it.
        """
        where_inputs_are = indices.to(self.inputs_N.device)
        chosen = self.inputs_N.index_select(0, where_inputs_are).to(self.mean.device)
        scaled = chosen if chosen.is_floating_point() else chosen.float() / 255
        if draws is None:
            return (scaled - self.mean) / self.std
        before, after = AUGMENTATIONS[self.augmentation]
        for change in before:
            scaled = change(scaled, draws)
        normalized = (scaled - self.mean) / self.std
        for change in after:
            normalized = change(normalized, draws)
        return normalized


class SampleCache:
    """Samples by key: those asked for last, at least one, as many as have CACHE_BYTES bytes together."""

    def __init__(self) -> None:
        self.samples: OrderedDict[Hashable, Samples] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable, make: Callable[[], Samples]) -> Samples:
        """Return the samples of a key, made if they are not kept."""
        if key not in self.samples:
            samples = make()
            self.samples[key] = samples
            self.bytes += bytes_of(samples)
            while self.bytes > CACHE_BYTES and len(self.samples) > 1:
                _, oldest = self.samples.popitem(last=False)
                self.bytes -= bytes_of(oldest)
        self.samples.move_to_end(key)
        return self.samples[key]


def bytes_of(samples: Samples) -> int:
    """Return the bytes of the samples; files, which stay on the disk, have none."""
    inputs = samples.inputs_N.nbytes if isinstance(samples.inputs_N, Tensor) else 0
    return OVERHEAD_BYTES + inputs + samples.labels_N.nbytes
