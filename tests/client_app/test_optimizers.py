"""Local optimizers and schedules: equal to torch's to the bit, and refused where a method assumes another."""

from typing import Any

import pytest
import torch
from client_builders import small_client
from test_training_loop import torchs_optimizer
from torch import nn

from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from data import SettingError
from server_app.settings import parse

STEPS = 50


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_fifty_steps_are_torchs_to_the_bit(optimizer: str) -> None:
    settings = TrainingSettings(optimizer=optimizer, learning_rate=0.02, weight_decay=0.03)
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(shape, generator=generator) for shape in ((7, 5), (5,), ())]
    ours = [tensor.clone() for tensor in start]
    theirs = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer_here = settings.local_optimizer(ours, 1)
    optimizer_there = torchs_optimizer(settings, theirs)
    for step in range(STEPS):
        rate = 0.02 * 0.97**step
        gradients = [torch.randn(tensor.shape, generator=generator) for tensor in start]
        optimizer_here.rate = optimizer_there.param_groups[0]["lr"] = rate
        optimizer_here.step(gradients)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        optimizer_there.step()
    for mine, parameter in zip(ours, theirs, strict=True):
        assert torch.equal(mine, parameter.detach())


def at_each_step(make: Any) -> list[float]:
    """Return a torch schedule's rates of 50 steps."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = make(optimizer)
    rates = []
    for step in range(STEPS):
        schedule.last_epoch = step
        rates.append(float(schedule._get_closed_form_lr()[0]))
    return rates


TORCHS = {
    "step": (
        {"learning_rate_decay": 0.7, "learning_rate_decay_every": 4},
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7),
    ),
    "cosine": (
        {"schedule_rounds": 50},
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50),
    ),
}


@pytest.mark.parametrize("schedule", TORCHS)
def test_schedules_are_torchs_to_the_bit(schedule: str) -> None:
    fields, make = TORCHS[schedule]
    settings = TrainingSettings(learning_rate=0.3, schedule=schedule, **fields)
    assert [settings.rate(round) for round in range(1, STEPS + 1)] == at_each_step(make)


def test_adam_counts_steps_alone() -> None:
    settings = TrainingSettings(optimizer="adamw", local_epochs=3, batch_size=4)
    report = train_round(small_client(), [], settings)
    assert report.trained.coefficient_sum == report.trained.steps == 9


DIGITS = {"dataset": "digits"}


@pytest.mark.parametrize(
    ("config", "key", "control"),
    [
        (
            {"schedule": "cosine", "learning-rate-decay": 0.5},
            "learning-rate-decay",
            {"schedule": "step"},
        ),
        ({"schedule-rounds": 5}, "schedule-rounds", {"schedule": "cosine"}),
        ({"local-steps": 1, "batch-limit": 2}, "batch-limit", {"local-steps": 0}),
        ({"optimizer": "adamw", "method": "fednova"}, "optimizer", {"method": "fedprox"}),
    ],
)
def test_what_does_not_go_together_is_refused_by_key(
    config: dict[str, Any], key: str, control: dict[str, Any]
) -> None:
    with pytest.raises(SettingError) as refused:
        parse({**DIGITS, **config})
    assert refused.value.key == key
    parse({**DIGITS, **config, **control})


def test_cosine_falls_over_all_rounds_of_the_run() -> None:
    cosine = parse({**DIGITS, "rounds": 8, "schedule": "cosine"})
    assert cosine.training.schedule_rounds == 8


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_part_of_an_optimizer_steps_its_rows_alone(kind: str) -> None:
    """Of four clients in one tensor the second and third go on, with the state that they had."""
    settings = TrainingSettings(optimizer=kind, learning_rate=0.1, weight_decay=0.01)
    draws = torch.Generator().manual_seed(0)
    weights = [torch.ones(4, 3), torch.ones(4, 3)]
    whole, cut = (settings.local_optimizer([weight], 1) for weight in weights)
    for step in range(4):
        gradient = torch.randn(4, 3, generator=draws)
        whole.step([gradient])
        if step < 2:
            cut.step([gradient])
            before = weights[1].clone()
            continue
        part = cut.rows(1, 3)
        part.step([gradient[1:3]])
        cut.taken = part.taken
    assert torch.equal(weights[1][1:3], weights[0][1:3])
    assert not torch.equal(weights[1][1:3], before[1:3])
    assert torch.equal(weights[1][[0, 3]], before[[0, 3]])
