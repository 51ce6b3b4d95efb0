"""FedLDA with a covariance in which every sample weighs the same: one exchange, no class counts first."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.fed_lda import FedLDA


@dataclass(frozen=True)
class FedLDAPooled(FedLDA):
    """FedLDA with v_c = 1: Sigma is the pooled covariance within the classes.

    One question is enough. Under long tails the covariance is that of the large classes, and the head finds rare
    classes a little less often.
    """

    name: ClassVar[str] = "fed-lda-pooled"
    asks: ClassVar[str] = "feature-statistics"

    def weights(self, counts_C: Tensor) -> Tensor | None:
        return None
