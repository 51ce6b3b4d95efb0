"""Augmentation in the training loop."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from client_builders import SHAPE, same, small_client

from client_app.client import Client, Contribution, Loss, Report, Variant
from client_app.optimizer import TrainingSettings
from client_app.training import train_round


@dataclass(frozen=True)
class Watching(Variant):
    """Uploads the loss of all samples twice, before training."""

    name: ClassVar[str] = "watching"

    def before(self, client: Client, loss: Loss) -> Contribution:
        indices = torch.arange(len(client.samples))
        return Contribution(upload={"loss": torch.stack([loss(indices), loss(indices)]).detach()})


def trained(augmentation: str, seed: int = 1) -> Report:
    client = small_client((6, 6), seed=seed)
    inputs_N = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(3))
    samples = replace(client.samples, inputs_N=inputs_N, augmentation=augmentation)
    return train_round(
        replace(client, samples=samples), [Watching()], TrainingSettings(batch_size=6)
    )


def test_it_is_in_the_steps_alone_and_repeats() -> None:
    """Hooks see the images as they are; the same client and round see the same augmented ones."""
    plain, first, again, other = (
        trained("none"),
        trained("crop-flip"),
        trained("crop-flip"),
        trained("crop-flip", 2),
    )
    assert same(first.shared, again.shared)
    assert not same(first.shared, plain.shared) and not same(first.shared, other.shared)
    assert torch.equal(first.uploads["watching"]["loss"], plain.uploads["watching"]["loss"])
