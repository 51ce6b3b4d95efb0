"""The head re-trained on real, balanced features: what CReFF's federated features stand in for (Shang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt

from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.head import features_of, head_of, train_head, with_head


@dataclass(frozen=True)
class RealFeatures(ServerMethod):
    """Deploy the average under a head re-trained on the hold-out's features, as in the paper's Figures 1 and 2.

    It needs balanced labeled data at the server, so it is a yardstick and no method for use. The average itself is
    FedAvg's. Identity: head-steps = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "real-features"
    needs_holdout: ClassVar[bool] = True
    needs_whole_model: ClassVar[bool] = True
    deploys_for_evaluation: ClassVar[bool] = True

    head_steps: Annotated[int, Ge(0)] = 300
    """Full-batch steps of the head in a round, from the average's."""
    head_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the head."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        samples = server.own_samples(self.name)
        features_ND = features_of(server.model.to(server.device), shared, samples)
        head = train_head(
            head_of(shared, server.device),
            features_ND,
            samples.labels_N,
            steps=self.head_steps,
            learning_rate=self.head_learning_rate,
        )
        return Deployment({self.name: with_head(shared, head)}, state)
