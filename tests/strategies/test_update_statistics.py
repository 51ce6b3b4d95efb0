"""Norm and cosine of every update, against the textbook's lines."""

import math

import pytest
import torch
from server_builders import server_of, state_of, updates_of

import strategies.core.update_statistics as statistics_module
from client_app.state import difference
from strategies.core.server import Update
from strategies.core.update_statistics import (
    VALUES,
    UpdateStatistics,
    median_norm,
    noteworthy,
    steps,
    update_statistics,
)


def steps_of(updates: list[Update]) -> torch.Tensor:
    """Return (K, P) float64: every update's step over the parameters."""
    server = server_of()
    moves = [difference(update.shared, server.start) for update in updates]
    return torch.stack(
        [torch.cat([m[n].flatten() for n in sorted(server.parameters)]) for m in moves]
    ).double()


@pytest.mark.parametrize(("name", "limit"), [("CHUNK", 7), ("VALUES", 30), ("VALUES", 1)])
def test_norms_and_cosines_by_hand(monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(statistics_module, name, limit)
    updates = updates_of(1, 2, 3, 4)
    steps_KP = steps_of(updates)
    directions_KP = steps_KP / steps_KP.norm(dim=1, keepdim=True)
    for place, moved in enumerate(update_statistics(server_of(), updates)):
        others_P = torch.cat([directions_KP[:place], directions_KP[place + 1 :]]).mean(0)
        assert moved.client == place and moved.examples == updates[place].examples
        assert moved.norm == pytest.approx(steps_KP[place].norm().item(), rel=1e-5)
        assert moved.cosine == pytest.approx(
            torch.cosine_similarity(directions_KP[place], others_P, 0).item(), abs=1e-5
        )


def test_many_clients_take_no_more_memory_than_few() -> None:
    start = {"weight": torch.zeros(40_000)}
    sizes = [part.shape for part in steps(start, [start] * 5000, ["weight"])]
    assert (
        max(clients * width for clients, width in sizes) <= VALUES
        and sum(width for _, width in sizes) == 40_000
    )


def test_nobody_to_compare_with_and_nothing_moved() -> None:
    (alone,) = update_statistics(server_of(), updates_of(1))
    assert math.isnan(alone.cosine) and alone.norm > 0
    still, moving = update_statistics(server_of(), [Update(0, state_of(50), 1), *updates_of(1)])
    assert median_norm([]) == 0.0
    assert still.norm == 0 and math.isnan(still.cosine) and math.isnan(moving.cosine)


def moved(client: int, norm: float, cosine: float = 0.5) -> UpdateStatistics:
    return UpdateStatistics(client, norm, cosine, examples=10)


def test_a_hundred_updates_are_told_one_by_one_and_of_more_the_furthest_out() -> None:
    hundred = [moved(client, 1.0 + client, cosine=0.9 - client / 1000) for client in range(100)]
    assert noteworthy(hundred) == hundred
    further = [*hundred, moved(100, 0.5, cosine=0.99)]
    assert [statistics.client for statistics in noteworthy(further)] == [*range(100)]
