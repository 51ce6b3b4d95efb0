"""A client's round asks the device for no value per step: on a GPU each would wait until all its work is done.

No GPU is needed for that: on a CPU the same operations read a value, and they are counted here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from client_builders import broadcast_of, small_client
from test_variant_contract import ROWS
from torch.utils._python_dispatch import TorchDispatchMode

from client_app.client import Variant
from client_app.optimizer import TrainingSettings
from client_app.training import train_round

READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal.default", "_unique")
"""Operations that wait for the device: a value or the shape of a result depends on what is computed there."""
ON_THE_CPU = {"vacant-classes": "it looks up the classes of client.counts_C, which no device holds"}
"""Variants whose reads in a step are of tensors that stay in main memory."""


class Counting(TorchDispatchMode):
    """Within this context, operations of READS are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = str(func)
        if any(part in name for part in READS):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def counts_of(variants: Sequence[Variant], epochs: int, clip_norm: float) -> Counter[str]:
    """Return what a round of so many epochs of a client waits for."""
    clients = [small_client(counts, id=k) for k, counts in enumerate([(5, 3, 2, 2), (4, 4, 2, 2)])]
    broadcast = broadcast_of(variants, clients)
    client = small_client((5, 3, 2, 2), broadcast=broadcast)
    settings = TrainingSettings(
        local_epochs=epochs, batch_size=4, learning_rate=0.1, clip_norm=clip_norm
    )
    for _ in range(
        2
    ):  # some numbers are computed once in a process: the second round is what counts
        with Counting() as counting:
            train_round(client, variants, settings)
    return counting.counts


def test_reads_are_counted() -> None:
    with Counting() as counting:
        torch.ones(2).sum().item()
        torch.ones(2).nonzero()
        torch.ones(2).double()
    assert sum(counting.counts.values()) == 2


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_plain_training_waits_once_for_its_mean_loss(clip_norm: float) -> None:
    assert counts_of([], 4, clip_norm).total() == 1


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.default.name not in ON_THE_CPU],
    ids=lambda row: row.default.name,
)
def test_a_round_of_many_steps_waits_no_more_often_than_one_of_few(
    row: Any, clip_norm: float
) -> None:
    few, many = (counts_of([row.default], epochs, clip_norm) for epochs in (1, 4))
    assert many == few
