"""Batch norm that a site uploads once, for a site that joins after training."""

from dataclasses import dataclass
from typing import Annotated

import torch

from client_app.client import Client, Upload, Variant
from client_app.models.classifier import Classifier
from client_app.state import State
from data import DataSettings, Rule
from data.text import is_whole

QUESTION = "norm-statistics"
REFUSAL: State = {"refused": torch.ones(())}
"""The answer of a site that does not want to tell: no failure, and not to be asked again."""


NUMBERS = Rule(
    lambda text: not text or all(is_whole(number.strip()) for number in text.split(",")),
    "must be client numbers separated by commas",
)


@dataclass(frozen=True)
class PrivateNorm(Variant):
    """A variant that keeps tensors of batch norm on the client.

    They stay there for ever, unless `share-norm-statistics` is set: then a client answers the question after the last
    round with them. A site refuses by `refused-by`, or by share-norm-statistics = false in its own node's
    configuration. The answer reveals mean and variance of every channel over about the client's last batches, and what
    FedBN keeps beside: the fewer samples there are, the more it says about each.
    """

    share_norm_statistics: bool = False
    """After the last round, ask the clients for their batch norm, for the study of unseen-domain."""
    refused_by: Annotated[str, NUMBERS] = ""
    """Numbers of clients that refuse, comma-separated; a node can refuse by its own configuration."""

    def validate(self) -> None:
        rule = "has no effect without share-norm-statistics"
        self.require(self.share_norm_statistics or not self.refused_by, "refused_by", rule)

    def check(self, data: DataSettings) -> None:
        idle = self.share_norm_statistics and not data.unseen_domain
        self.require(not idle, "share_norm_statistics", "has no effect without unseen-domain")
        rule = f"must be below clients = {data.clients}"
        self.require(max(self.refusing, default=0) < data.clients, "refused_by", rule)

    @property
    def refusing(self) -> frozenset[int]:
        """The clients that refuse."""
        if not self.refused_by:
            return frozenset()
        return frozenset(map(int, self.refused_by.split(",")))

    @property
    def upload(self) -> Upload:
        if not self.share_norm_statistics:
            return Upload()
        return Upload("batch-norm", self.private_bytes, once=True)

    def private_bytes(self, model: Classifier, classes_held: int) -> int:
        """Return the bytes of the tensors kept."""
        state = model.state_dict()
        kept = [state[name] for name in self.private_names(model)]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    def answer(self, client: Client, question: str) -> State:
        """Return the tensors kept, by name, or REFUSAL."""
        if question != QUESTION or not self.share_norm_statistics:
            return {}
        node_agrees = client.node_config.get("share-norm-statistics", True) is True
        if not node_agrees or client.id in self.refusing:
            return REFUSAL
        return client.memory["private"]
