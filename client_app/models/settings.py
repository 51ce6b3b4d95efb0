"""The settings of a model beside its name."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from data import OneOf, Settings


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Initial weights, frozen layers, and normalization."""

    weights: str = ""
    """File of a backbone's initial weights: safetensors, or a .pth of tensors alone; empty draws them."""
    freeze: Annotated[str, OneOf("none", "all")] = "none"
    """all keeps a backbone's weights: its features are computed once and kept beside the data's copy, and the head
    alone is trained and sent. none trains and sends everything."""
    image_side: Annotated[int, Ge(0), Le(4096)] = 0
    """Pixels to which a backbone resizes each side of its images, bilinear; 0 does not resize."""
    norm: Annotated[str, OneOf("batch", "group")] = "batch"
    """batch, or group: a small model's batch norms become group norms of two groups (Reddi et al. 2021)."""
    initialization: Annotated[str, OneOf("torch", "he")] = "torch"
    """torch, each layer's own initial weights, or he: a small model's layers before the head begin with normal weights
    of variance 2 / inputs and biases of zero (He et al. 2015), which a deep model without batch norm needs."""

    components: Annotated[int, Ge(0), Le(4096)] = 0
    """Frozen features (freeze = all, random-conv): so many principal components of the standardized features stand in
    their place, each with mean 0 and standard deviation 1 over all clients' training samples. 0 takes the features as
    they are."""
    hidden: Annotated[int, Ge(0), Le(4096)] = 0
    """Frozen features: units of a layer with ReLU between them and the head; 0 has none."""

    weights_sha256: ClassVar[str] = ""
    """What the weights' file must have when it is loaded: see `WeightsOfHash`. Empty where nobody has looked at it."""

    def validate(self) -> None:
        rule = "would keep random features: it needs weights"
        self.require(self.freeze == "none" or bool(self.weights), "freeze", rule)


@dataclass(frozen=True)
class WeightsOfHash(ModelSettings):
    """The same settings, of a file whose sha256 has been compared already: another file is not loaded in its place.

    No setting of a run and in no message: whoever has looked at the file makes it.
    """

    weights_sha256: str = ""  # type: ignore[misc]


def of_hash(settings: ModelSettings, sha256: str) -> ModelSettings:
    """Return the settings for a file of weights with that sha256."""
    return WeightsOfHash(**{**vars(settings), "weights_sha256": sha256})


PLAIN = ModelSettings()
"""All at their defaults."""
