"""A round by hand: what is sent, which replies count, and the numbers of its record."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import small

from client_app.handlers import ClientOutcome, ClientReply, ExpectedState
from client_app.models import Classifier, build
from client_app.optimizer import expected_coefficient_sum
from client_app.state import State, copy
from client_app.training import steps_of
from client_app.variants.feature_statistics import ClassMeans, LabelCounts
from client_app.variants.logit_shift import LogitShift
from fedskew.engines.local import LocalGrid
from strategies.closed_form import FedNCM
from strategies.core.exchange import TRAIN, DirectGrid, Request
from strategies.core.node_assignment import ExchangeSettings
from strategies.core.rounds import Rounds
from strategies.core.server import Diverged
from strategies.fedavg import FedAvg

CLASSES, INPUTS = 3, 4
MODEL_BYTES = 4 * CLASSES * (INPUTS + 1)
COUNTS = {"counts": torch.tensor([5, 6, 7])}
COUNTS_BYTES = 8 * CLASSES


def model_of() -> Classifier:
    return build("linear", (1, 2, 2), CLASSES, 0)


def rounds_of(folder: Path, *variants: Any, **changes: Any) -> Rounds:
    """Return the rounds of three clients that train a linear model."""
    run_spec = replace(small(folder).run_spec(), variants=variants)
    return Rounds(model_of(), run_spec, clients=3, combine=FedAvg(), **changes)


class Replies(LocalGrid, DirectGrid):
    """Hands out replies that were made before, and notes which clients were asked."""

    def __init__(self, replies: dict[int, ClientReply]) -> None:
        super().__init__()
        self.replies = replies

    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[tuple[int, ClientOutcome]]:
        for client in clients:
            yield client, self.replies[client]


def moved(rounds: Rounds, by: float) -> State:
    """Return the shared weights with every number moved by as much."""
    return {name: tensor + by for name, tensor in rounds.shared.items()}


def reply(
    rounds: Rounds, by: float, examples: int, *, data: str = "", memory: str = "", **metrics: float
) -> ClientReply:
    """Return what an honest client of so many samples replies that moved every weight by as much."""
    steps = steps_of(examples, rounds.server.training)
    digests = {"data": data, "memory": memory}
    return ClientReply(
        {"model": moved(rounds, by)},
        {
            "num-examples": examples,
            "loss": 1.0,
            "steps": steps,
            "coefficient-sum": expected_coefficient_sum(
                steps, rounds.server.training.momentum, 0.0
            ),
            "seconds": 1.0,
            **metrics,
        },
        {"process": examples},
        {kind: digest for kind, digest in digests.items() if digest},
    )


def finish(rounds: Rounds, replies: dict[int, ClientReply], number: int = 1) -> None:
    """Run one round of these replies."""
    clients = rounds.begin_round(number)
    assert clients == sorted(replies)
    rounds.finish_round(rounds.ask(Replies(replies), clients, rounds.training_request()))


def test_a_round_by_hand(tmp_path: Path) -> None:
    """Clients of 10, 30 and 60 samples move every weight by 1, 2 and 3."""
    rounds = rounds_of(tmp_path, LogitShift())
    rounds.states["logit-shift"] = COUNTS
    before = copy(rounds.shared)
    replies = {
        0: reply(rounds, 1.0, 10, loss=0.5, seconds=2.0),
        1: reply(rounds, 2.0, 30, loss=1.5, seconds=3.0, memory="m1"),
        2: reply(rounds, 3.0, 60, loss=2.5, seconds=4.0),
    }
    finish(rounds, replies)
    for name, tensor in rounds.shared.items():
        assert torch.allclose(tensor, before[name] + 0.1 * 1 + 0.3 * 2 + 0.6 * 3), name
    last = rounds.last
    assert (rounds.round, last.clients, last.failures) == (1, [0, 1, 2], {})
    assert last.loss == pytest.approx(0.1 * 0.5 + 0.3 * 1.5 + 0.6 * 2.5)
    assert last.bytes_down == 3 * (MODEL_BYTES + COUNTS_BYTES)
    assert last.bytes_up == 3 * MODEL_BYTES
    assert last.seconds.client_work == 9.0
    assert 0 <= last.seconds.clients < 600 and 0 <= last.seconds.server < 600
    assert last.workers == [{"process": 10}, {"process": 30}, {"process": 60}]
    norms = [entry.norm for entry in rounds.update_statistics()]
    root = (CLASSES * (INPUTS + 1)) ** 0.5
    assert norms == pytest.approx([root, 2 * root, 3 * root])
    # What the server must know of the clients in the next round.
    assert rounds.client_states == {
        0: ExpectedState(examples=10),
        1: ExpectedState(1, "m1", examples=30),
        2: ExpectedState(examples=60),
    }
    rounds.begin_round(2)
    assert rounds.server.examples_by_client == {0: 10, 1: 30, 2: 60}


def test_a_client_has_the_data_of_its_first_answer(tmp_path: Path) -> None:
    """In round 2 client 1 comes with other data."""
    rounds = rounds_of(tmp_path, exchange=ExchangeSettings(min_reply_share=0.5))

    def replies(data_of_1: str) -> dict[int, ClientReply]:
        return {
            0: reply(rounds, 1.0, 10, data="a"),
            1: reply(rounds, 1.0, 10, data=data_of_1),
            2: reply(rounds, 1.0, 10),
        }

    finish(rounds, replies("b"))
    first = {
        0: ExpectedState(data="a", examples=10),
        1: ExpectedState(data="b", examples=10),
        2: ExpectedState(examples=10),
    }
    assert not rounds.last.failures and rounds.client_states == first
    finish(rounds, replies("c"), 2)
    assert rounds.last.clients == [0, 2] and list(rounds.last.failures) == [1]
    assert rounds.client_states == first
    # All three were sent the model, and two sent one.
    assert (rounds.last.bytes_down, rounds.last.bytes_up) == (3 * MODEL_BYTES, 2 * MODEL_BYTES)


def test_as_many_nodes_as_are_set_must_be_there_at_first_and_one_later(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, exchange=ExchangeSettings(nodes=2, node_wait=0.0))
    grid = Replies({0: reply(rounds, 1.0, 10)})
    with pytest.raises(TimeoutError):
        rounds.ask(grid, [0], rounds.training_request())
    grid.get_node_ids = lambda: [1, 2]  # type: ignore[method-assign]
    rounds.ask(grid, [0], rounds.training_request())
    del grid.get_node_ids
    assert list(rounds.ask(grid, [0], rounds.training_request()).answers) == [0]


def test_clients_are_sent_the_sums_that_their_training_needs_and_no_others(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, LabelCounts(), ClassMeans(), LogitShift())
    assert list(rounds.training_request().states) == ["model"], "nothing was asked yet"
    means = {**COUNTS, "sums": torch.ones(CLASSES, INPUTS, dtype=torch.int64)}
    rounds.states |= {"label-counts": COUNTS, "class-means": means, "logit-shift": COUNTS}
    request = rounds.training_request()
    assert list(request.states) == ["model", "broadcast/logit-shift"]
    assert request.kind == TRAIN and request.task == {"round": 0}
    rounds.begin_round(1)
    assert rounds.server.answers.keys() == {"label-counts", "class-means", "logit-shift"}


def test_without_rounds_the_questions_are_the_traffic(tmp_path: Path) -> None:
    """Each of three clients is sent the model once, and answers 3 counts, 3 x 4 sums and 17 numbers of outliers."""
    rounds = rounds_of(tmp_path, ClassMeans(), deploys=[FedNCM()])
    rounds.states["class-means"] = {
        **COUNTS,
        "sums": torch.ones(CLASSES, INPUTS, dtype=torch.int64),
        "outside": torch.zeros(17, dtype=torch.int64),
    }
    rounds.deploy_without_rounds()
    assert list(rounds.deployed) == ["fedncm"] and rounds.round == 0
    assert rounds.last.clients == [0, 1, 2]
    assert rounds.last.bytes_down == 3 * MODEL_BYTES
    assert rounds.last.bytes_up == 3 * 8 * (3 + 12 + 17)
    rounds.states["fedncm"] = {}
    rounds.states["class-means"] = {
        **rounds.states["class-means"], "sums": torch.full((CLASSES, INPUTS), math.inf),
    }  # fmt: skip
    with pytest.raises(Diverged):
        rounds.deploy_without_rounds()


@pytest.mark.parametrize(
    ("participation", "number"), [(1.0, 100), (0.29, 29), (0.299, 29), (0.001, 1)]
)
def test_a_share_of_the_clients_is_drawn_anew_in_every_round(
    participation: float, number: int, tmp_path: Path
) -> None:
    """Their number is rounded down, but 0.29 x 100 is a little less than 29 in floating point."""
    rounds = rounds_of(tmp_path, participation=participation)
    rounds.clients = 100
    drawn = [rounds.sample(round) for round in (1, 2, 1)]
    assert [len(set(clients)) for clients in drawn] == [number] * 3
    assert drawn[0] == sorted(drawn[0]) == drawn[2]
    assert (drawn[0] == drawn[1]) == (number == 100)
    if number == 29:
        in_time = {client for round in range(1, 61) for client in rounds.sample(round)}
        assert in_time == set(range(100))
