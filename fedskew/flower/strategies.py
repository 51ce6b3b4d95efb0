"""FedSkew's server methods as flwr strategies, one class per method, made from the list of methods."""

from flwr.app import ArrayRecord
from torch import Tensor

from fedskew.flower.heads import HeadStrategy
from fedskew.flower.method_strategy import MethodStrategy
from server_app.methods import METHODS
from strategies import SERVER_METHODS


class ExactFedAvg(MethodStrategy):
    """FedAvg in float64 and in the order of the clients, so that a run repeats to the bit. Clients: any.

    flwr's FedAvg sums float32 values in the order in which replies arrive.
    """

    exact = True


class TauNorm(MethodStrategy):
    """FedAvg, and `deployed["tau-norm"]`: the head's rows divided by a power of their norms (Kang et al. 2020).

    Clients: any.
    """

    methods = ("tau-norm",)

    def normalize(self, arrays: ArrayRecord) -> dict[str, dict[str, Tensor]]:
        """Return the normalized models of any other strategy's result, by name."""
        self._begin(self.server.round, arrays, 0)
        for part in self.parts:
            self._keep(part.deploy(self.server, {}, self.server.start, []))
        return self.deployed


GENERATED = {
    "CCVR": "ccvr",
    "CReFF": "creff",
    "CReFFCode": "creff-code",
    "Fed3R": "fed3r",
    "FedBE": "fedbe",
    "FedDF": "feddf",
    "FedLDA": "fed-lda",
    "FedLDAPooled": "fed-lda-pooled",
    "FedNCM": "fedncm",
    "FedNova": "fednova",
    "Median": "median",
    "NormClipping": "norm-clipping",
    "RatioLoss": "ratio-loss",
    "Scaffold": "scaffold",
    "TrimmedMean": "trimmed-mean",
}
"""The other classes by name, and their methods."""


def strategy_of(name: str) -> type[MethodStrategy]:
    """Return the class of GENERATED with this name."""
    method = METHODS[GENERATED[name]]
    server = SERVER_METHODS[method.serving[0]]
    base = HeadStrategy if server.final_question or server.closed_form else MethodStrategy
    clients = f"`variants=[{method.name!r}]`" if method.variants else "any"
    words = f"{method.name}: {method.what} ({method.paper}). Clients: {clients}."
    return type(
        name, (base,), {"methods": (method.name,), "__doc__": words, "__module__": __name__}
    )


STRATEGIES: dict[str, type[MethodStrategy]] = {
    "ExactFedAvg": ExactFedAvg,
    "TauNorm": TauNorm,
    **{name: strategy_of(name) for name in GENERATED},
}
globals().update(STRATEGIES)  # where help() and pickle look for them
