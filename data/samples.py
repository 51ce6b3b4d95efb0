"""The samples of one client on its device, and batches of them."""

from dataclasses import dataclass, replace

from torch import Generator, Tensor

from data.augmentation import AUGMENTATIONS
from data.readers.image_files import ImageFiles


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
        chosen = (
            inputs.only(indices.cpu().numpy())
            if isinstance(inputs, ImageFiles)
            else inputs[indices]
        )
        groups = None if self.groups_N is None else self.groups_N[indices]
        subjects = None if self.subjects_N is None else self.subjects_N[indices]
        labels_N = self.labels_N[indices]
        return replace(
            self, inputs_N=chosen, labels_N=labels_N, groups_N=groups, subjects_N=subjects
        )

    def batch(self, indices: Tensor, draws: Generator | None = None) -> Tensor:
        """The inputs at `indices`, float32, normalized: uint8 as (x/255 - mean)/std, float32 as (x - mean)/std.

        With `draws`, for a training step, each image is augmented by numbers drawn from it.
        """
        chosen = self.inputs_N.index_select(0, indices.to(self.inputs_N.device)).to(
            self.mean.device
        )
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
