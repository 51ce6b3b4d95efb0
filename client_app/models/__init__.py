"""Models: one file a family, every one a `Classifier`; a user's own is the setting model = MODULE:FUNCTION."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from client_app.models.backbone import backbone, check_images, is_backbone, width_of
from client_app.models.classifier import (
    Classifier,
    batch_norm_names,
    channels_go_last,
    group_norms,
    has_batch_norm,
    he_weights,
    same_logits,
    why_not_linear,
    with_hidden_layer,
)
from client_app.models.random_conv import FEATURES, random_conv
from client_app.models.resnet import (
    resnet8,
    resnet18,
    resnet18_imagenet,
    resnet50,
    resnet50_imagenet,
)
from client_app.models.settings import PLAIN, ModelSettings
from client_app.models.small_networks import (
    abide_mlp,
    alexnet_bn,
    digit_model,
    linear,
    mcmahan_cnn,
    mlp_bn,
    small_cnn,
    vgg9,
)
from client_app.user_code import load
from data import SettingError, require

__all__ = [
    "FIXED_FEATURES", "LINEAR", "MODELS", "PLAIN", "RANDOM_CONV", "Classifier", "ModelSettings", "batch_norm_names",
    "build", "check", "has_batch_norm", "has_fixed_features", "is_backbone", "is_own_model", "kept_width",
]  # fmt: skip

LINEAR = "linear"
"""The model whose features are its inputs."""
RANDOM_CONV = "random-conv"
FIXED_FEATURES = (LINEAR, RANDOM_CONV)
"""The models whose features nothing trains."""
MODELS: dict[str, Callable[..., Classifier]] = {
    "small-cnn": small_cnn,
    "mcmahan-cnn": mcmahan_cnn,
    "digit-model": digit_model,
    "vgg-9": vgg9,
    "alexnet-bn": alexnet_bn,
    "resnet-8": resnet8,
    "resnet-18": resnet18,
    "resnet-50": resnet50,
    "resnet-18-imagenet": resnet18_imagenet,
    "resnet-50-imagenet": resnet50_imagenet,
    "mlp-bn": mlp_bn,
    "abide-mlp": abide_mlp,
    LINEAR: linear,
    RANDOM_CONV: random_conv,
}
VECTOR_MODELS = {"mlp-bn", "abide-mlp", LINEAR}
SMALLEST_SIDE = {"vgg-9": 8, "alexnet-bn": 63, RANDOM_CONV: 8}
"""Pixels that are left by no pooling below; 4 for every model that is not listed."""


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    settings: ModelSettings = PLAIN,
) -> Classifier:
    """Return the model `name` for inputs of `shape`, its weights drawn from `seed` alone, or begun with a file's.

    Of a backbone that keeps all of its weights, and of random-conv for its features, what takes the features is
    returned: the head, after a hidden layer where there is one.
    Convolutions keep their channels last in memory, which CPUs and tensor cores compute faster, unless they are too
    narrow (`channels_go_last`); shapes do not change, and states are copied out of models without that (`state.copy`).
    Raises SettingError for inputs the model cannot take, and for a user's own model that is no Classifier.
    """
    check(name, shape, settings)
    with torch.random.fork_rng(devices=[]):
        if is_own_model(name):
            torch.manual_seed(seed)  # on every device: who knows where it draws
            return load_own(name, shape, classes)
        torch.default_generator.manual_seed(seed)
        if settings.freeze == "all" or takes_random_features(name, shape, settings):
            model = Classifier(nn.Identity(), nn.Linear(kept_width(name, settings), classes))
        elif is_backbone(name):
            model = backbone(name, classes, settings)
        else:
            model = MODELS[name](shape, classes)
        if settings.hidden:
            model = with_hidden_layer(model, settings.hidden)
        if settings.norm == "group":
            group_norms(model)
        if settings.initialization == "he":
            he_weights(model.features)
        if channels_go_last(model):
            model = model.to(memory_format=torch.channels_last)
        return model


def is_own_model(name: str) -> bool:
    """Return whether `name` is MODULE:FUNCTION."""
    return ":" in name and not is_backbone(name)


def load_own(name: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """Return what FUNCTION of MODULE makes of the inputs' shape and the number of classes.

    Raises SettingError when it cannot be found, fails, or makes anything but a `Classifier` whose features fit its
    head, whose head has `classes` outputs and is linear with a bias, and which does nothing beside the two.
    """
    function: Callable[..., Classifier] = load("model", name, "function")
    try:
        model = function(shape, classes)
    except Exception as error:
        rule = f"failed for shape {shape} and {classes} classes: {type(error).__name__}: {error}"
        raise SettingError("model", name, rule) from error
    rule = f"must return a fedskew.methods.Classifier, not {type(model).__name__}"
    require(isinstance(model, Classifier), "model", name, rule)
    head = model.head
    fits = isinstance(head, nn.Linear) and head.bias is not None and head.out_features == classes
    rule = f"its head must be a torch.nn.Linear with a bias and {classes} outputs, not {head}"
    require(fits, "model", name, rule)
    model.eval()
    inputs = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            features = model.features(inputs)
    except Exception as error:
        described = "x".join(map(str, shape))
        raise SettingError("model", name, f"cannot take inputs of {described}: {error}") from error
    wanted = (2, head.in_features)
    rule = f"its features have shape {tuple(features.shape)} for 2 inputs, not {wanted} as its head takes"
    require(features.shape == wanted, "model", name, rule)
    reason = why_not_linear(head, features)
    require(not reason, "model", name, f"its head {reason}")
    with torch.no_grad():
        logits, expected = model(inputs), head(features)
    # Training calls features and head: what a forward does between them in training would be left out in silence.
    plain = type(model).forward is Classifier.forward
    rule = "it must return its head's logits, by Classifier's own forward, and do nothing beside features and head"
    require(plain and same_logits(logits, expected), "model", name, rule)
    model.train()
    return model


def check(name: str, shape: tuple[int, ...], settings: ModelSettings) -> None:
    """Raise SettingError for inputs that the model cannot take, and settings that it does not go with."""
    images = len(shape) == 3
    # A head alone takes vectors: the features that are kept.
    features = settings.freeze == "all" and not images
    features = features or takes_random_features(name, shape, settings)
    if not (features or name in VECTOR_MODELS or is_own_model(name)):
        # images that are enlarged before the model sees them may have any size
        side = 1 if settings.image_side else SMALLEST_SIDE.get(name, 4)
        described = "x".join(map(str, shape))
        rule = f"needs images of {side}x{side} pixels or more, not {described}"
        require(images and min(shape[1:]) >= side, "model", name, rule)
    backbones = (is_backbone(name), "backbones (torchvision:NAME and timm:NAME)")
    small_models = (name in MODELS, "the small models")
    are_frozen = settings.freeze == "all" or name == RANDOM_CONV
    frozen = (are_frozen, "frozen features (freeze = all, or random-conv)")
    for field, (fits, models) in {
        "weights": backbones,
        "freeze": backbones,
        "image_side": backbones,
        "norm": small_models,
        "initialization": small_models,
        "components": frozen,
        "hidden": frozen,
    }.items():
        rule = f"is for {models}, and model is {name}"
        settings.require(fits or settings.is_default(field), field, rule)
    if is_backbone(name) and images:
        check_images(name, shape, settings.image_side)
    if settings.components:
        width = kept_width(name, replace(settings, components=0))
        rule = f"must be at most {width}, the number of the features of {name}"
        settings.require(settings.components <= width, "components", rule)


def has_fixed_features(name: str, freeze: str, hidden: int) -> bool:
    """Return whether training leaves the features of a model as they are: its head alone is trained."""
    return not hidden and (freeze == "all" or name in FIXED_FEATURES)


def kept_width(name: str, settings: ModelSettings) -> int:
    """Return the number of a sample's features that are kept of a frozen model: all, or principal components."""
    return settings.components or (FEATURES if name == RANDOM_CONV else width_of(name))


def takes_random_features(name: str, shape: tuple[int, ...], settings: ModelSettings) -> bool:
    """Return whether the inputs are the kept features of random-conv, in the place of images."""
    return name == RANDOM_CONV and shape == (kept_width(name, settings),)
