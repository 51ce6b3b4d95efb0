"""Ditto: a personal model beside the global one, pulled towards it (Li et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.client import Client, Contribution, Trained, Variant
from client_app.state import copy
from client_app.training import train_round
from client_app.variants.proximal import Proximal


@dataclass(frozen=True)
class PersonalModel(Variant):
    """Train a model of the client's own beside the shared one: v <- v - rate (grad L_i(v) + strength (v - w^t)).

    These are descents of L_i(v) + strength/2 ||v - w^t||^2, w^t as received (Li et al., ICML 2021, Algorithm 1). L_i is
    the plain cross-entropy. The personal model begins as the received one and goes on from round to round; it takes
    the steps of the round, with the run's optimizer, on the same batches; beside a sampler it shuffles. What a client
    keeps of the shared model (as with FedBN) its personal model has from that round's training at first, and nothing
    pulls it.
    Nothing else changes: the shared model trains as without the variant, to the bit. Only v is kept at the client.
    """

    name: ClassVar[str] = "personal-model"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights"})
    personal_model: ClassVar[bool] = True

    strength: Annotated[float, Ge(0)] = 1.0
    """Strength of the pull, the paper's lambda; 0 trains each client's model alone."""

    def after(self, client: Client, trained: Trained) -> Contribution:
        """Train the personal model and keep it; the model that is loaded is the shared one again afterwards."""
        kept = client.memory.get(self.name, {})
        client.model.load({**trained.state, **client.start, **kept})
        own = train_round(client, [Proximal(self.strength)], trained.settings)
        client.model.load(trained.state)
        return Contribution(memory=copy(own.trained.state))
