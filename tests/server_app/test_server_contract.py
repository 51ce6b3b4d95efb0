"""What every server method promises: its inputs stay as they are, and the same inputs give the same to the bit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from in_process import SERVER_SMALL, FinishedRun

from server_app.methods import METHODS
from strategies.core.server import Server, ServerMethod
from strategies.registry import SERVER_METHODS

PLACES = ("combine", "monitor", "deploy", "deploy_finally")


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield copies of all tensors in nested states, updates and deployments."""
    if isinstance(value, torch.Tensor):
        yield value.clone()
    elif isinstance(value, Mapping):
        yield from (tensor for key in sorted(value, key=str) for tensor in tensors(value[key]))
    elif isinstance(value, list | tuple):
        yield from (tensor for item in value for tensor in tensors(item))
    elif is_dataclass(value):
        yield from (
            tensor for field in fields(value) for tensor in tensors(getattr(value, field.name))
        )


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Return whether two lists of tensors are equal to the bit."""
    bits = (
        (tensor.numpy().tobytes(), other.numpy().tobytes())
        for tensor, other in zip(left, right, strict=True)
    )
    return all(tensor == other for tensor, other in bits)


def method_with(name: str) -> str:
    """Return a method that has the server method `name` as a part."""
    return next((method.name for method in METHODS.values() if name in method.serving), "fedavg")


@pytest.mark.parametrize("name", SERVER_METHODS)
def test_a_place_leaves_its_inputs_and_repeats(
    name: str, train: Callable[..., FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, called = SERVER_METHODS[name], set()

    def twice(place: str, filled: Callable[..., Any]) -> Callable[..., Any]:
        def checked(self: ServerMethod, server: Server, *given: object) -> Any:
            before = list(tensors((given, server.start)))
            first = filled(self, server, *given)
            assert same(before, list(tensors((given, server.start)))), (
                f"{place} changes what it is given"
            )
            assert same(list(tensors(first)), list(tensors(filled(self, server, *given)))), (
                f"{place} does not repeat"
            )
            called.add(place)
            return first

        return checked

    for place in PLACES:
        if getattr(kind, place) is not getattr(ServerMethod, place):
            monkeypatch.setattr(kind, place, twice(place, getattr(kind, place)))
    method = method_with(name)
    assert train(method=method).summary["rounds"] == 2
    assert called, f"{method} does not fill a place with {name}"
    assert set(SERVER_SMALL) <= set(METHODS)
