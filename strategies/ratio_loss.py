"""Ratio Loss's server side: class weights from how far each class moves the head (Wang et al., AAAI 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from client_app.client import Client
from client_app.state import State, seed_of
from client_app.training import train_round
from data import Samples
from strategies.core.server import Deployment, Server, ServerMethod, Unit, Update

NO_OTHER, LARGEST = 10.0, 5000.0
"""The ratio of a class whose weights no other class moves, and the largest of all the others: the authors' numbers."""


@dataclass(frozen=True)
class RatioLoss(ServerMethod):
    """Weigh every sample of class p by alpha + beta Ra_p in the next round's losses; in round 1 by 1.

    The server trains one copy of the round's starting model for each class p, on the hold-out's images of p alone and
    as a client trains. Delta^(p) is what that moves the head's weights by: far for a class the model does not know.

        Ra_p = |sum Delta^(p)| / |sum mean_{q != p} Delta^(q)|

    over the head's weights that p dominates (`dominated`), 10 where the denominator is 0. Identity: beta = 0.
    """

    name: ClassVar[str] = "ratio-loss"
    needs_holdout: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model"})
    adds_model: ClassVar[bool] = False
    units: ClassVar[Mapping[str, Unit]] = {"class-weights": Unit.NONE}

    alpha: Annotated[float, Gt(0)] = 1.0
    """Weight of every class, before its ratio is added."""
    beta: Annotated[float, Ge(0)] = 0.1
    """Factor on a class's ratio."""

    def initial_state(self, server: Server) -> State:
        """Return weights (C,) of 1."""
        return {"weights": torch.ones(server.model.head.out_features)}

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        return {"class-weights": state}

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        samples = server.own_samples(self.name)
        weights_C = self.alpha + self.beta * ratios(self.displacements(server, samples))
        numbers = {"class-weights": weights_C.tolist()}
        return Deployment({}, {"weights": weights_C.float()}, numbers)

    def displacements(self, server: Server, samples: Samples) -> Tensor:
        """Return (C, C, D) float64 Delta^(p): what a round on class p's samples moves the head's weights by.

        Raises ValueError for a class without a sample.
        """
        model = server.model.to(server.device)
        start_CD = server.start["head.weight"].double()
        moved = []
        for label in range(len(start_CD)):
            model.load_state_dict(server.start)
            of_class = (samples.labels_N == label).nonzero().flatten()
            if not len(of_class):
                raise ValueError(f"the server's own samples lack class {label}, and need every one")
            client = Client(
                id=label,
                model=model,
                samples=samples.only(of_class),
                num_classes=len(start_CD),
                round=server.round,
                seed=seed_of(server.seed, "server", server.round, self.name, label),
            )
            report = train_round(client, [], server.training)
            trained_CD = report.shared["head.weight"].cpu().double()
            moved.append(trained_CD - start_CD)
        return torch.stack(moved)


def dominated(displacements_CCD: Tensor) -> Tensor:
    """Return (C, C, D) bool: the weights that each class p dominates; no weight belongs to two.

    p moves it furthest upwards, and no other class moves it, either way, by more than 0.8 of that. A weight that no
    class moves upwards belongs to none: a feature that only one class's images excite says nothing about the others.
    """
    largest_CD, dominant_CD = displacements_CCD.max(0)
    far_CCD = displacements_CCD.abs() > 0.8 * largest_CD
    alone_CD = (far_CCD.sum(0) < 2) & (largest_CD > 0)
    classes_C11 = torch.arange(len(displacements_CCD))[:, None, None]
    return alone_CD & (dominant_CD == classes_C11)


def ratios(displacements_CCD: Tensor) -> Tensor:
    """Return (C,) Ra_p in [0, 5000]; scaling all displacements changes nothing."""
    is_dominated_CCD = dominated(displacements_CCD)
    own_CCD = displacements_CCD * is_dominated_CCD
    own_C = own_CCD.sum((1, 2)).abs()

    # The mean over the other classes, q != p.
    others = len(displacements_CCD) - 1
    mean_of_others_CCD = (displacements_CCD.sum(0) - displacements_CCD) / others
    others_CCD = mean_of_others_CCD * is_dominated_CCD
    others_C = others_CCD.sum((1, 2)).abs()

    ratio_C = torch.where(others_C > 0, own_C / others_C, NO_OTHER)
    return ratio_C.clamp(max=LARGEST)
