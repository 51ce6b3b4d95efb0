"""FedRep: the client's own head trains first, the shared features after it (Collins et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.variants.local_head import LocalHead


@dataclass(frozen=True)
class HeadThenFeatures(LocalHead):
    """Keep the head; train it for head-epochs under the features as received, then the features under that head.

    h_i <- descent of L_i(phi, h) in h with phi = phi^t, then phi_i <- descent of L_i(phi, h_i) in phi for the round's
    epochs or steps, and the features alone are averaged (Collins et al., ICML 2021, Algorithm 1). The optimizer starts
    anew for the features. Batch norm normalizes by the batch in both parts, and its statistics move in both. Steps and
    training loss of a round are those of the features. Clients train one by one.
    There is no identity setting: a test compares both parts with torch's own SGD.
    """

    name: ClassVar[str] = "head-then-features"

    head_epochs: Annotated[int, Ge(1)] = 10
    """Passes over the client's data that train the head before the features train; the paper's number."""

    @property
    def head_first(self) -> int:
        return self.head_epochs
