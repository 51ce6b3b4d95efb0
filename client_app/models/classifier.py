"""The structure of every model: features, then one linear head."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from client_app.state import split_prefix
from data import Samples

INFERENCE_BATCH = {"cpu": 64, "cuda": 512}
"""Samples of a batch without gradient, by device: on a CPU the layers' outputs should stay in a core's cache."""

HEAD = "head."
"""How the names of the head's tensors begin."""

LOOKED_UP = ("tensors", "by_name", "every_module")
"""A classifier's cached properties."""


class Classifier(nn.Module):
    """`head(features(x))`, the head with a bias.

    The methods that touch the head alone, and evaluation, rely on this split: nothing comes between or after.
    A tiny client's training takes no longer than PyTorch's walk through a model's modules, so what a client needs of
    them is looked up once; they must not be exchanged later but by `to`. A parameter that requires no gradient is not
    trained.
    """

    def __init__(self, features: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, inputs_B: Tensor) -> Tensor:
        """Return (B, C) logits."""
        logits_BC: Tensor = self.head(self.features(inputs_B))
        return logits_BC

    def train(self, mode: bool = True) -> Self:
        """Change the mode of every module."""
        as_wanted = all(module.training is mode for module in self.every_module)
        if as_wanted:  # walking through the modules takes a tiny client's time
            return self
        return super().train(mode)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that require a gradient, by name."""
        return {name: weight for name, weight in self.by_name.items() if weight.requires_grad}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the tensors of a state, as `load_state_dict` does. Raises RuntimeError where names or shapes differ."""
        tensors = self.tensors
        same_names = state.keys() == tensors.keys()
        if same_names and all(state[name].shape == tensors[name].shape for name in tensors):
            values = [state[name] for name in tensors]
            torch._foreach_copy_(list(tensors.values()), values)
        else:
            self.load_state_dict(state)  # raises with the names that differ

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The model's state itself, no copy: what is written into it is what the model computes with."""
        return self.state_dict()

    @cached_property
    def by_name(self) -> dict[str, nn.Parameter]:
        """All parameters."""
        return dict(self.named_parameters())

    @cached_property
    def every_module(self) -> list[nn.Module]:
        """All modules."""
        return list(self.modules())

    def clear_lookups(self) -> None:
        """Delete what was looked up: the properties of LOOKED_UP."""
        for name in LOOKED_UP:
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle is made of, without what was looked up.

        A copied parameter has memory of its own, so the copy's `tensors` would no longer be its parameters.
        """
        return {name: value for name, value in self.__dict__.items() if name not in LOOKED_UP}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.clear_lookups()  # `to` gives parameters other memory
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def functional_parts(
    model: Classifier, state: Mapping[str, Tensor]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return the model's features and head as functions that compute with the tensors of a state."""
    nested = {name: tensor for name, tensor in state.items() if "." in name}
    by_part = split_prefix(nested, ".")  # features without tensors have no part
    features = partial(functional_call, model.features, by_part.get("features", {}))
    return features, partial(functional_call, model.head, by_part.get("head", {}))


@torch.no_grad()
def why_not_linear(head: nn.Linear, features_BD: Tensor) -> str:
    """Return why a head is more than its weight and bias, or an empty text where it is not.

    Methods compute with a head's weight and bias alone. A subclass of nn.Linear, a parametrization such as weight norm,
    and a hook can make other logits of the same features.
    """
    names = sorted(head.state_dict())
    if names != ["bias", "weight"]:
        return (
            f"has {', '.join(names)} and must have weight and bias alone: leave weight norm, pruning and other "
            "parametrizations off this layer"
        )
    was_training = head.training
    logits_BC = head.eval()(features_BD)
    head.train(was_training)
    expected_BC = F.linear(features_BD, head.weight, head.bias)
    if same_logits(logits_BC, expected_BC):
        return ""
    return (
        "makes other logits than nn.Linear does with its weight and bias: put what it does before or after into "
        "layers of their own"
    )


def same_logits(logits_BC: Tensor, expected_BC: Tensor) -> bool:
    """Return whether logits are as expected but for rounding, which depends on how they are computed."""
    return logits_BC.shape == expected_BC.shape and torch.allclose(
        logits_BC, expected_BC, rtol=1e-3, atol=1e-4
    )


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether any layer is a batch norm, by type: names say nothing (`downsample.1` is one)."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def channels_go_last(model: nn.Module) -> bool:
    """Return whether the model's images are to have channels last in memory: unless a shortcut is very narrow.

    With channels last, oneDNN 3.12 writes behind the input gradient of a 1x1 convolution with stride 2 that has fewer
    than 8 input channels, on processors without AVX-512: the process then ends by SIGSEGV or SIGABRT.
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d) or layer.in_channels >= 8:
            continue
        if layer.kernel_size == (1, 1) and layer.stride != (1, 1):
            return False
    return True


def he_weights(features: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers from N(0, 2 / inputs), and make their biases zero.

    Before a ReLU this keeps the variance of the activations from layer to layer (He et al. 2015, equation 10).
    """
    for layer in features.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def with_hidden_layer(model: Classifier, width: int) -> Classifier:
    """Return the model with a linear layer of `width` units and a ReLU after its features, and a head of these."""
    layer = nn.Linear(model.head.in_features, width)
    features = nn.Sequential(model.features, layer, nn.ReLU())
    return Classifier(features, nn.Linear(width, model.head.out_features))


def group_norms(model: nn.Module) -> None:
    """Put a group norm of two groups, or of one for an odd number of channels, in every batch norm's place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            channels = module.num_features
            groups = math.gcd(2, channels)
            model.set_submodule(name, nn.GroupNorm(groups, channels))


def batch_norm_names(model: nn.Module) -> frozenset[str]:
    """Return the names of everything that batch-norm layers own: weights, running statistics, counters."""
    names: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            prefix = f"{path}." if path else ""
            names.update(module.state_dict(prefix=prefix))
    return frozenset(names)


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], samples: Samples) -> Tensor:
    """Return what `function` makes of all samples' inputs, batch by batch, without gradient."""
    device = samples.labels_N.device
    everything = torch.arange(len(samples), device=device)
    outputs = []
    for indices_B in torch.split(everything, INFERENCE_BATCH[device.type]):
        outputs.append(function(samples.batch(indices_B)))
    return torch.cat(outputs)
