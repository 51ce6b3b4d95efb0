"""FedNCM: the nearest class mean of frozen features (Legate et al., NeurIPS 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from client_app.state import State
from strategies.closed_form import ClosedFormHead, Head, Statistics


@dataclass(frozen=True)
class FedNCM(ClosedFormHead):
    """Deploy the head whose largest score is that of the nearest class mean.

        mu_c = sum_k s_kc / sum_k n_kc,   W_c = mu_c,   b_c = -||mu_c||^2 / 2

    with the sum s_kc of client k's features of class c; |z - mu_c|^2 is smallest where W_c z + b_c is largest. The
    authors' code has W_c = mu_c / ||mu_c|| and no such bias.
    """

    name: ClassVar[str] = "fedncm"
    uses: ClassVar[str] = "class-means"

    def head(self, statistics: Statistics, answer: State, step: float) -> Head:
        means_CD = statistics.means_CD
        return means_CD, -means_CD.square().sum(1) / 2
