"""The settings of a model beside its name."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from data import OneOf, Settings


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Initial weights, frozen layers, and normalization."""

    weights: str = ""
    """File of a backbone's initial weights: safetensors, or a .pth of tensors alone; empty draws them."""
    freeze: Annotated[str, OneOf("none", "stages", "all")] = "none"
    """A backbone's part that keeps its weights: none, stages (all but the last blocks, which hold a fifth of the
    numbers) or all, whose features are computed once and kept beside the data's copy, so that the head alone is trained
    and sent."""
    image_side: Annotated[int, Ge(0), Le(4096)] = 0
    """Pixels to which a backbone resizes each side of its images, bilinear; 0 does not resize."""
    norm: Annotated[str, OneOf("batch", "group")] = "batch"
    """batch, or group: a small model's batch norms become group norms of two groups (Reddi et al. 2021)."""

    width: Annotated[int, Ge(0), Le(1024)] = 0
    """Channels of resnet-8's stem and first stage, doubled in each of the other two; 0 is the paper's 64."""

    def validate(self) -> None:
        rule = "would keep random features: it needs weights"
        self.require(self.freeze == "none" or bool(self.weights), "freeze", rule)


PLAIN = ModelSettings()
"""All at their defaults."""
