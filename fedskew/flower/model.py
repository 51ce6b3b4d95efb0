"""Any torch model with a linear head as FedSkew's Classifier, for as long as a method works on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import Tensor, nn

from client_app.messages import to_flower
from client_app.models import Classifier
from client_app.models.classifier import why_not_linear
from client_app.state import State
from fedskew.flower.records import FLAT, flatten, state_like

FEATURES = "features.net."
"""Begins the classifier's names of what comes before the head."""


class HeadReached(Exception):
    """The forward pass has reached the head; what follows the head is not computed."""

    def __init__(self, features_BD: Tensor) -> None:
        super().__init__()
        self.features_BD = features_BD


class HeadTap(nn.Module):
    """Stands in the head's place and takes what the head would get."""

    def forward(self, features_BD: Tensor) -> None:
        """Raise HeadReached with the features."""
        raise HeadReached(features_BD)


class UpToHead(nn.Module):
    """A model up to its head."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return (B, D), the features that the head gets. Raises ValueError where it gets none."""
        try:
            call(self.net, inputs)
        except HeadReached as reached:
            features_BD = reached.features_BD
            if features_BD.dim() != 2:
                raise ValueError(
                    f"the head gets {features_BD.dim()} dimensions and must get (batch, features)"
                ) from None
            return features_BD
        raise ValueError("the forward pass does not use the head: name another layer with head=")


class WrappedModel(Classifier):
    """A classifier around a user's model.

    The head is taken out and a tap put in its place. Inside, its tensors are named `head.*` as in every Classifier;
    `inside` returns their names. The model is as it was after `release`.
    """

    def __init__(self, net: nn.Module, head: str) -> None:
        names: list[str] = list(net.state_dict())
        layer = net.get_submodule(head)
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise ValueError(
                f"head = {head!r} is {type(layer).__name__} and must be an nn.Linear with a bias: "
                "name another layer with head="
            )
        # Where a server wraps a model there are no samples; features of any values show most of such heads.
        any_features = torch.linspace(-1, 1, 2 * layer.in_features).reshape(2, -1)
        refuse_more_than_linear(head, layer, any_features.to(layer.bias))
        net.set_submodule(head, HeadTap())
        super().__init__(UpToHead(net), layer)
        self.head_name = head
        self.outside = {self.inside(name): name for name in names}
        self.unused: list[nn.Parameter] = []

    def inside(self, name: str) -> str:
        """Return the classifier's name of a user's tensor: `head.weight` of `fc3.weight`."""
        module, _, tensor = name.rpartition(".")
        return f"head.{tensor}" if module == self.head_name else FEATURES + name

    def check(self, inputs: Tensor | dict[str, Tensor], output: Tensor) -> None:
        """Raise ValueError unless the head's logits are what the whole model returned for `inputs`.

        Parameters that the logits do not depend on are frozen until `release`: they have no gradient.
        """
        features_BD = self.features(inputs)
        refuse_more_than_linear(self.head_name, self.head, features_BD)
        logits_BC = self.head(features_BD)
        if not equals_logits(output, logits_BC):
            raise ValueError(
                f"the model does more with the logits of {self.head_name!r} than a softmax: name the "
                "layer that makes its output with head="
            )
        weights = [weight for weight in self.parameters() if weight.requires_grad]
        gradients = torch.autograd.grad(logits_BC.sum(), weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                weight.requires_grad_(False)
                self.unused.append(weight)

    def release(self) -> None:
        """Give the model its head back."""
        self.features.get_submodule("net").set_submodule(self.head_name, self.head)
        for weight in self.unused:
            weight.requires_grad_(True)


def refuse_more_than_linear(name: str, head: nn.Linear, features_BD: Tensor) -> None:
    """Raise ValueError for a head that is more than its weight and bias."""
    reason = why_not_linear(head, features_BD)
    if reason:
        raise ValueError(f"head = {name!r} is {type(head).__name__}, which {reason}")


def equals_logits(output: Tensor, logits_BC: Tensor) -> bool:
    """Return whether a model's output is its head's logits or a softmax of them: training works on the logits."""
    expected = (logits_BC, F.log_softmax(logits_BC, 1), F.softmax(logits_BC, 1))
    return output.shape == logits_BC.shape and any(
        torch.allclose(output, own.to(output), 1e-3, 1e-5, equal_nan=True) for own in expected
    )


def call(net: nn.Module, inputs: Tensor | dict[str, Tensor]) -> Any:
    """Return what a model makes of a batch; inputs with names are passed by name."""
    return net(**inputs) if isinstance(inputs, dict) else net(inputs)


def last_linear(net: nn.Module) -> str:
    """Return the name of the nn.Linear that was registered last. Raises ValueError where there is none."""
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear) and name]
    if not names:
        raise ValueError(
            "the model has no nn.Linear inside: FedSkew's methods need features and a linear head"
        )
    return str(names[-1])


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a model returns: a tensor, Hugging Face's output, or the first of a tuple."""
    first = output[0] if isinstance(output, tuple) else output
    logits_BC = getattr(output, "logits", first)
    if not isinstance(logits_BC, Tensor):
        raise ValueError(
            f"the model returns {type(output).__name__} and must return logits, or an output with .logits"
        )
    return logits_BC


@contextmanager
def as_classifier(
    net: nn.Module,
    head: str = "",
    probe: Tensor | dict[str, Tensor] | None = None,
) -> Iterator[Classifier]:
    """Give a model as a Classifier; afterwards it is as it was, with the weights it has been given.

    Args:
        net: the model; one that is a Classifier is given as it is.
        head: the name of its linear head; the last nn.Linear when empty.
        probe: inputs of a few samples, with which the head is checked.

    Raises:
        ValueError: the model has no linear head with a bias, does something after it, or has a head that makes other
            logits than its weight and bias, as a subclass of nn.Linear and weight norm do.
    """
    if isinstance(net, Classifier):
        yield net
        return
    mode = net.training
    if probe is not None:
        with torch.no_grad():
            output = logits_of(call(net.eval(), probe))
        net.train(mode)
    wrapped = WrappedModel(net, head or last_linear(net))
    try:
        if probe is not None:
            wrapped.eval()
            wrapped.check(probe, output)
            wrapped.train(mode)
        yield wrapped
    finally:
        wrapped.train(mode)
        wrapped.release()


def outside_names(model: Classifier) -> dict[str, str]:
    """Return the user's name of each tensor of the classifier's state, in the order of the user's model."""
    if isinstance(model, WrappedModel):
        return model.outside
    return {name: name for name in model.state_dict()}


def to_outside(model: Classifier, state: State) -> dict[str, Tensor]:
    """Return a state by the user's names and in the order of the user's model.

    One that is not of the model's tensors keeps its names.
    """
    names = outside_names(model)
    if not state.keys() <= names.keys():
        return dict(state)
    return {outside: state[name] for name, outside in names.items() if name in state}


def to_inside(model: Classifier, state: State) -> dict[str, Tensor]:
    """Return a state by the classifier's names; one that is not of the model's tensors keeps its names."""
    names = {outside: name for name, outside in outside_names(model).items()}
    if not state.keys() <= names.keys():
        return dict(state)
    return {names[name]: tensor for name, tensor in state.items()}


def received(model: Classifier, record: ArrayRecord) -> dict[str, Tensor]:
    """Return a model's record, flat or not, by the classifier's names, in its dtypes and on its head's device.

    Raises ValueError for names or shapes that are not the model's.
    """
    own = to_outside(model, model.state_dict())
    return to_inside(model, state_like(record, own))


def sent(model: Classifier, state: State, like: ArrayRecord) -> ArrayRecord:
    """Return a state of the classifier as the record that stands for it: flat, or with the names, as `like` is."""
    tensors = to_outside(model, state)
    if FLAT in like:
        return to_flower(flatten(tensors))
    return to_flower({name: tensors[name] for name in like if name in tensors})
