"""Clients in worker processes: workers that die or dawdle, and how clients are shared among them."""

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from client_app.handlers import ClientOutcome
from fedskew.engines import workers
from fedskew.engines.workers import ALIGNMENT, SharedFile, WorkersGrid, chunks
from strategies.core.exchange import TRAIN, Request, TooFewReplies


class Deadly(WorkersGrid):
    """Kills (kill -9) a worker that answered in round 1, before round 2 is asked."""

    def __init__(self) -> None:
        super().__init__(2)
        self.killed, self.seen_later = 0, set[int]()

    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[ClientOutcome]:
        for client, outcome in super().outcomes(request, clients, timeout):
            if request.kind == TRAIN:
                process = int(str(outcome.worker["process"]))
                if request.task["round"] == 1:
                    self.killed = process
                else:
                    self.seen_later.add(process)
            yield client, outcome
        if request.kind == TRAIN and request.task["round"] == 1:
            os.kill(self.killed, signal.SIGKILL)


def test_a_worker_that_dies_is_replaced_and_the_hash_is_that_of_one_process(train, caplog):
    outcome = train("workers", grid=(grid := Deadly()), method="fedbn", rounds=3)
    assert "a worker process died" in caplog.text
    assert grid.seen_later and grid.killed not in grid.seen_later
    assert outcome.summary["failures"] == 0
    assert outcome.hash == train("here", method="fedbn", rounds=3).hash


def test_a_round_without_a_reply_in_time_fails(train, caplog):
    caplog.set_level(logging.WARNING)
    with pytest.raises(TooFewReplies):
        train(grid=WorkersGrid(1), timeout=0.001, local_epochs=500)
    assert "no reply after 0.001 s" in caplog.text


def test_chunks_become_smaller_and_no_worker_has_more_than_its_share():
    assert [*chunks([3, 0, 1], {0: 5, 1: 5, 3: 90}, 2)] == [[3], [0], [1]]
    assert [*chunks(range(10), {}, 2, together=4)] == [range(4), range(4, 8), range(8, 10)]
    assert [*chunks(range(4), {}, 2, together=32)] == [range(2), range(2, 4)]
    examples = {client: 1000 // (client + 1) for client in range(100)}
    parts = [*chunks(range(100), examples, 2)]
    assert [client for part in parts for client in part] == [*range(100)]
    assert len(parts[0]) == len(parts[-1]) == 1
    for part in parts:
        assert len(part) == 1 or sum(map(examples.__getitem__, part)) <= sum(examples.values()) / 8


def test_tensors_of_every_type_and_shape_arrive_in_shared_memory_and_stay():
    sent = {
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(7),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
    }
    file = SharedFile()
    received = file.write(("states", sent)).read()[1]
    file.close()
    assert not Path(file.path).exists()
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)
        assert received[name].is_contiguous() and received[name].data_ptr() % ALIGNMENT == 0


def test_a_worker_keeps_the_memory_of_its_answers_to_one_request_alone(monkeypatch):
    monkeypatch.setattr(workers, "answers", lambda request, clients: [torch.ones(2)])
    request = SharedFile().write("a request")
    kept = [len(workers._replies) for number in (1, 1, 2) if workers.run_chunk(number, request, {})]
    assert kept == [1, 2, 1]
