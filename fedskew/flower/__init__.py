"""FedSkew's methods inside any Flower app: strategies for its server, functions and mods for its clients.

On the client, `local_round` answers flwr's train message with a round of local training. `load_model` loads a model for
the app's own evaluation, `local_loss` replaces the loss of the app's own training loop, and `fedbn_mod` and
`silobn_mod` keep batch norm on the client.
On the server, every strategy is a subclass of flwr's FedAvg and takes its arguments; `class_counts` asks the clients
for what FedShift needs, and `flat_arrays` sends a model as one array. See docs/guides/flower.md.
"""

from typing import TYPE_CHECKING, Any

from fedskew.flower.client import load_model, local_loss, local_round
from fedskew.flower.method_strategy import MethodStrategy
from fedskew.flower.mods import fedbn_mod, silobn_mod
from fedskew.flower.questions import class_counts
from fedskew.flower.records import flat_arrays
from fedskew.flower.strategies import STRATEGIES

PUBLIC = (
    MethodStrategy, class_counts, fedbn_mod, flat_arrays, load_model, local_loss, local_round,
    silobn_mod,
)  # fmt: skip
globals().update(STRATEGIES)
__all__ = [*(public.__name__ for public in PUBLIC), *STRATEGIES]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Stand for the strategies, which are made when this package is imported."""
