"""FedLC: logits calibrated by the client's class counts (Zhang et al. 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Variant


@dataclass(frozen=True)
class LogitCalibration(Variant):
    """Train on CE(f(x) - tau n^(-1/4), y): the pairwise margin of y over k is tau (n_y^(-1/4) - n_k^(-1/4)).

    n_k are the client's class counts. Where another variant draws the samples, n_k are the counts that it is expected
    to draw in an epoch. The denominator of the softmax includes the class y. A class that the client lacks gets the
    limit, -inf: it drops out of the softmax, and its logit receives no gradient. Counts are compared within the client
    alone, so the clients' optima differ: unlike with logit-shift, P(y|x) is no fixed point. Both correct the same
    prior, so they cannot be combined. Identity: tau = 0.
    """

    name: ClassVar[str] = "logit-calibration"
    needs: ClassVar[frozenset[str]] = frozenset({"uncorrected-prior"})

    tau: Annotated[float, Ge(0)] = 1.0
    """Strength of the margins; 0 is plain training."""

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,) -tau n^(-1/4)."""
        if not self.tau:
            return None
        return -self.tau * client.drawn_C**-0.25
