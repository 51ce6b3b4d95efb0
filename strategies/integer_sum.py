"""How the server learns a sum of the clients' integers: plainly for now.

A masked sum fills the same place: the clients' variants would answer with masked integers (their sum modulo 2^64 is
what counts), and `total` would be all the server can compute from them.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from client_app.state import State


class IntegerSum(Protocol):
    """Turns every client's answer into their sum."""

    def total(self, answers: Mapping[int, State]) -> dict[str, Tensor]:
        """Return the sum of the clients' int64 tensors, by name. Raises ValueError when names or shapes differ."""


class PlainSum:
    """The answers themselves, added up: the server sees each client's class counts."""

    def total(self, answers: Mapping[int, State]) -> dict[str, Tensor]:
        """Return the sum of the clients' int64 tensors, by name. Raises ValueError when names or shapes differ."""
        first = next(iter(answers.values()))
        for client, answer in answers.items():
            shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in answer.items()}
            if shapes != {name: (tensor.shape, torch.int64) for name, tensor in first.items()}:
                raise ValueError(f"client {client} answered {shapes}, not like the others")
        return {name: torch.stack([answer[name] for answer in answers.values()]).sum(0) for name in first}
