"""SCAFFOLD's server side: the clients' mean, and the mean of their control variates (Karimireddy et al. 2020)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from client_app.state import CHUNK, State, empty, fill, weighted_mean
from data import OneOf
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class Scaffold(ServerMethod):
    """x <- mean over S of y_i;  c <- c + |S| / N mean over S of (c_i+ - c_i), from zero.

    Clients weigh the same however many samples they hold, as in the paper, buffers included; with weighting = samples
    y_i weighs as in FedAvg, and c is as before. The server's step size eta_g is server-learning-rate. c is kept in
    float64 and sent in the weights' own precision.
    """

    name: ClassVar[str] = "scaffold"
    uses: ClassVar[str] = "control-variates"

    weighting: Annotated[str, OneOf("uniform", "samples")] = "uniform"
    """Weights of the clients' models in their mean: uniform (the paper's), or by their samples."""

    def initial_state(self, server: Server) -> State:
        """Return c = 0 for every shared parameter."""
        controls = {}
        for name in sorted(server.parameters):
            controls[name] = torch.zeros_like(server.start[name], dtype=torch.float64)
        return controls

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        controls = {}
        for name, control in state.items():
            controls[name] = control.to(server.start[name].dtype)
        return {self.uses: controls}

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        weights = [1.0 if self.weighting == "uniform" else update.examples for update in updates]
        shared = weighted_mean([update.shared for update in updates], weights)
        names = list(state)
        controls = empty(state, names)
        changes = [update.uploads[self.uses] for update in updates]
        add_shares = partial(control_after, clients=server.clients)
        fill([controls], add_shares, [state, *changes], names, CHUNK)
        return shared, controls


def control_after(control: Tensor, *changes: Tensor, clients: int) -> Sequence[Tensor]:
    """Return c + sum over S of (c_i+ - c_i) / N, of one tensor or a part of it."""
    control = control.clone()  # the state before the round stays, as its result may be thrown away
    for change in changes:
        control += change.to(control) / clients
    return [control]
