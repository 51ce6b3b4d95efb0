"""The model and the data of the app."""

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

CLASSES = 4
WORDS = 64
"""Tokens of the vocabulary."""
LENGTH = 12
"""Tokens of a sequence."""
SAMPLES = 96
"""Sequences of a client."""


def Net() -> BertForSequenceClassification:
    """Return a small classifier with random weights, in the place of a pretrained one."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
        initializer_range=0.2,  # of weights that no pretraining has made
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


class Sequences(Dataset[dict[str, Tensor]]):
    """Sequences in which every other token, on average, is typical of the class."""

    def __init__(self, seed: int, labels: Tensor) -> None:
        draws = torch.Generator().manual_seed(seed)
        tokens = torch.randint(WORDS, (len(labels), LENGTH), generator=draws)
        typical = torch.rand(tokens.shape, generator=draws) < 1 / 2
        self.tokens = torch.where(typical, labels[:, None].expand_as(tokens), tokens)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def load_data(partition_id: int) -> Sequences:
    """Return a client's sequences; more than half of them are of the client's own class."""
    labels = torch.arange(SAMPLES) % CLASSES
    labels[: SAMPLES // 2] = partition_id % CLASSES
    return Sequences(1 + partition_id, labels)


@torch.no_grad()
def accuracy(net: BertForSequenceClassification, data: Sequences) -> float:
    """Return the model's accuracy."""
    net.eval()
    return float((net(input_ids=data.tokens).logits.argmax(1) == data.labels).float().mean())
