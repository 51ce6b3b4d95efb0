"""A user's own model: the setting model = MODULE:FUNCTION."""

from collections.abc import Callable

import torch

from client_app.models.backbone import is_backbone
from client_app.models.classifier import Classifier, same_logits, why_not_linear
from client_app.user_code import load
from data import SettingError, require


def is_own_model(name: str) -> bool:
    """Return whether `name` is MODULE:FUNCTION."""
    return ":" in name and not is_backbone(name)


def load_own(name: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """Return what FUNCTION of MODULE makes of the inputs' shape and the number of classes.

    Raises SettingError when it cannot be found, fails, or makes anything but a `Classifier` whose features fit its
    head, whose head has `classes` outputs and is linear with a bias, and which does nothing after its head.
    """
    function: Callable[..., Classifier] = load("model", name, "function")
    try:
        model = function(shape, classes)
    except Exception as error:
        rule = f"failed for shape {shape} and {classes} classes: {type(error).__name__}: {error}"
        raise SettingError("model", name, rule) from error
    rule = f"must return a client_app.models.Classifier, not {type(model).__name__}"
    require(isinstance(model, Classifier), "model", name, rule)
    head = model.head
    require(isinstance(head, torch.nn.Linear), "model", name, "its head must be a torch.nn.Linear")
    require(head.bias is not None, "model", name, "its head must have a bias")
    rule = f"its head has {head.out_features} outputs, not {classes}"
    require(head.out_features == classes, "model", name, rule)
    model.eval()
    inputs = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            features = model.features(inputs)
    except Exception as error:
        described = "x".join(map(str, shape))
        raise SettingError("model", name, f"cannot take inputs of {described}: {error}") from error
    rule = (
        f"its features have shape {tuple(features.shape)} for 2 inputs, not (2, "
        f"{head.in_features}) as its head takes"
    )
    require(features.shape == (2, head.in_features), "model", name, rule)
    reason = why_not_linear(head, features)
    require(not reason, "model", name, f"its head {reason}")
    with torch.no_grad():
        logits, expected = model(inputs), head(features)
    rule = "it must return its head's logits and do nothing after the head"
    require(same_logits(logits, expected), "model", name, rule)
    model.train()
    return model
