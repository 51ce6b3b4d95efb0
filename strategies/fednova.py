"""FedNova: updates normalized by how far each client's steps could go (Wang et al. 2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from client_app.state import State, weighted_mean, weighted_sum
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class FedNova(ServerMethod):
    """w <- w - tau_eff sum_i p_i d_i with d_i = (w - w_i) / ||a_i||_1, p_i = |D_i| / sum over the participants.

    tau_eff = sum_i p_i ||a_i||_1, or sum_i p_i tau_i when the clients are pulled towards w (FedProx), as in the
    authors' code. ||a_i||_1 comes with the update: the displacement of the client's own optimizer under a gradient of
    one. Normalized are the parameters; buffers are averaged as in FedAvg, because a running variance that is
    extrapolated may turn negative. The paper's server momentum is server-momentum.
    Clients with equal steps are FedAvg's, but for the pull.
    """

    name: ClassVar[str] = "fednova"
    needs: ClassVar[frozenset[str]] = frozenset({"sgd"})

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        total = sum(update.examples for update in updates)
        p = [update.examples / total for update in updates]
        norms = [update.metrics["coefficient-sum"] for update in updates]
        if server.proximal_mu:
            lengths = [update.metrics["steps"] for update in updates]
        else:
            lengths = norms
        tau_eff = math.fsum(p_i * length for p_i, length in zip(p, lengths, strict=True))
        scales = [tau_eff * p_i / norm for p_i, norm in zip(p, norms, strict=True)]

        shared = [update.shared for update in updates]
        names = sorted(server.parameters)
        parameters = []
        for weights in (server.start, *shared):
            parameters.append({name: weights[name] for name in names})
        # w - sum_i s_i (w - w_i) = (1 - sum_i s_i) w + sum_i s_i w_i, with s_i = tau_eff p_i / ||a_i||_1
        moved = weighted_sum(parameters, [1 - math.fsum(scales), *scales])
        return {**weighted_mean(shared, p), **moved}, state
