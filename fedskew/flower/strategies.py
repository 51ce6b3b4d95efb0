"""FedSkew's server methods as flwr strategies, one class per method; method_strategy.py has what they share."""

from flwr.app import ArrayRecord
from torch import Tensor

from fedskew.flower.method_strategy import MethodStrategy


class ExactFedAvg(MethodStrategy):
    """FedAvg in float64 and in the order of the clients, so that a run repeats to the bit. Clients: any.

    flwr's FedAvg sums float32 values in the order in which replies arrive.
    """

    exact = True


class CReFF(MethodStrategy):
    """FedAvg, and `deployed["creff"]`: the average under a head trained on federated features (Shang et al. 2022).

    Clients: `variants=["creff"]`.
    """

    methods = ("creff",)


class CReFFCode(MethodStrategy):
    """CReFF with the settings of its authors' code, `deployed["creff-code"]`. Clients: `variants=["creff-code"]`."""

    methods = ("creff-code",)


class TauNorm(MethodStrategy):
    """FedAvg, and `deployed["tau-norm"]`: the head's rows divided by a power of their norms (Kang et al. 2020).

    Clients: any.
    """

    methods = ("tau-norm",)

    def normalize(self, arrays: ArrayRecord) -> dict[str, dict[str, Tensor]]:
        """Return the normalized models of any other strategy's result, by name."""
        self._begin(self.server.round, arrays, 0)
        average = self.server.start
        for part in self.parts:
            made = part.deploy(self.server, {}, average, [])
            self._keep(made)
        return self.deployed


class Scaffold(MethodStrategy):
    """SCAFFOLD: control variates against the clients' drift (Karimireddy et al. 2020).

    Clients: `variants=["scaffold"]`. A client keeps its control variate in `context.state`; flwr does not take that
    back when the server refuses or loses the reply.
    """

    methods = ("scaffold",)


class FedNova(MethodStrategy):
    """FedNova: updates divided by the steps that they took (Wang et al. 2020).

    Clients: `local_round` with any variants; name FedProx in the strategy's `variants` as well.
    """

    methods = ("fednova",)


class RatioLoss(MethodStrategy):
    """Ratio Loss: class weights that the server measures on its `holdout` (Wang et al. 2021).

    Clients: `variants=["ratio-loss"]`. `training` is how the server trains on the hold-out, as the clients do.
    """

    methods = ("ratio-loss",)


class FedDF(MethodStrategy):
    """FedDF: the clients' ensemble distilled into the average on the server's `holdout` (Lin et al. 2020).

    Clients: any.
    """

    methods = ("feddf",)


class FedBE(MethodStrategy):
    """FedBE: an ensemble drawn around the clients' models, distilled on `holdout` (Chen and Chao 2021).

    Clients: any.
    """

    methods = ("fedbe",)


class Median(MethodStrategy):
    """The median of every coordinate (Yin et al. 2018). Clients: any."""

    methods = ("median",)


class TrimmedMean(MethodStrategy):
    """The mean of every coordinate without the lowest and highest clients (Yin et al. 2018). Clients: any."""

    methods = ("trimmed-mean",)


class NormClipping(MethodStrategy):
    """FedAvg of updates shortened to a bound, or to the median of their norms (Sun et al. 2019). Clients: any."""

    methods = ("norm-clipping",)
