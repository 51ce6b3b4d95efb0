"""Models: one file a family, every one a `Classifier`."""

from collections.abc import Callable

import torch

from client_app.models.classifier import Classifier, batch_norm_names, has_batch_norm
from client_app.models.cnn import digit_model, mcmahan_cnn, small_cnn
from client_app.models.mlp import mlp_bn
from client_app.models.resnet import resnet8

__all__ = ["MODELS", "Classifier", "batch_norm_names", "build", "has_batch_norm"]

MODELS: dict[str, Callable[..., Classifier]] = {
    "small-cnn": small_cnn,
    "mcmahan-cnn": mcmahan_cnn,
    "digit-model": digit_model,
    "resnet-8": resnet8,
    "mlp-bn": mlp_bn,
}
VECTOR_MODELS = {"mlp-bn"}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> Classifier:
    """Return the model `name` for inputs of `shape`, its weights drawn from `seed` alone.

    Raises SettingError for inputs the model cannot take.
    """
    from data import require

    described = "x".join(map(str, shape))
    if name not in VECTOR_MODELS:
        require(
            len(shape) == 3 and min(shape[1:]) >= 4,
            "model",
            name,
            f"needs images of 4x4 pixels or more, not {described}",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, classes)
