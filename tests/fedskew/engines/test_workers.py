"""Clients in worker processes: workers that die or dawdle, and how clients are shared among them."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from in_process import FinishedRun

from client_app.handlers import ClientOutcome, ClientReply
from fedskew.engines import workers
from fedskew.engines.workers import ALIGNMENT, SharedFile, WorkersGrid, chunks
from strategies.core.exchange import TRAIN, Request, TooFewReplies

Train = Callable[..., FinishedRun]


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
                assert isinstance(outcome, ClientReply)
                process = int(str(outcome.worker["process"]))
                if request.task["round"] == 1:
                    self.killed = process
                else:
                    self.seen_later.add(process)
            yield client, outcome
        if request.kind == TRAIN and request.task["round"] == 1:
            os.kill(self.killed, signal.SIGKILL)


def test_a_worker_that_dies_is_replaced_and_the_hash_is_that_of_one_process(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = train("workers", grid=(grid := Deadly()), method="fedbn", rounds=3)
    assert "a worker process died" in caplog.text
    assert grid.seen_later and grid.killed not in grid.seen_later
    assert outcome.summary["failures"] == 0
    assert outcome.hash == train("here", method="fedbn", rounds=3).hash


def test_a_round_without_a_reply_in_time_fails(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(TooFewReplies):
        train(grid=WorkersGrid(1), timeout=0.001, local_epochs=500)
    assert "no reply after 0.001 s" in caplog.text


def test_few_clients_are_a_chunk_each_and_many_share_one_the_longest_first() -> None:
    assert [*chunks([3, 0, 1], {0: 5, 1: 5, 3: 90}, 2)] == [[3], [0], [1]]
    assert [*chunks(range(10), {}, 2, together=4)] == [range(4), range(4, 8), range(8, 10)]
    assert [*chunks(range(4), {}, 2, together=32)] == [range(2), range(2, 4)]
    parts = [*chunks(range(1000), dict.fromkeys(range(1000), 20), 2)]
    sizes = [*map(len, parts)]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == 1000
    assert (sizes[0], sizes[-1]) == (125, 1)


def test_a_chunk_is_no_more_than_its_share_of_the_samples() -> None:
    examples = {client: 1000 // (client + 1) for client in range(100)}
    for part in chunks(range(100), examples, 2):
        assert len(part) == 1 or sum(map(examples.__getitem__, part)) <= sum(examples.values()) / 8


def test_what_was_read_from_shared_memory_stays_when_the_file_is_gone() -> None:
    file = SharedFile()
    first, second = file.write([{"a": torch.ones(2)}, {"b": torch.arange(3)}]).read()
    file.close()
    assert not Path(file.path).exists()
    assert torch.equal(first["a"], torch.ones(2)) and torch.equal(second["b"], torch.arange(3))


def test_tensors_of_every_type_and_shape_arrive_in_shared_memory_as_they_were() -> None:
    sent = {
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(7),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
    }
    received = SharedFile().write(("states", sent)).read()[1]
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)
        assert received[name].is_contiguous() and received[name].data_ptr() % ALIGNMENT == 0


def test_a_worker_keeps_the_memory_of_its_answers_to_one_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "answers", lambda request, clients: [torch.ones(2)])
    request = SharedFile().write("a request")
    kept = [len(workers._replies) for number in (1, 1, 2) if workers.run_chunk(number, request, {})]
    assert kept == [1, 2, 1]
