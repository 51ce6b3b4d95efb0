"""The grid without Ray: workers that die or dawdle, and calls it does not offer."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun

from client_app.handlers import ClientOutcome, ClientReply
from fedskew.engines import appended
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid, chunks
from strategies.core.exchange import TRAIN, Request, TooFewReplies

Train = Callable[..., FinishedRun]


class Deadly(WorkersGrid):
    """Kills (kill -9) a worker that answered in round 1, before round 2 is asked: at once, or after a while."""

    def __init__(self, pause: float) -> None:
        super().__init__(2)
        self.pause, self.killed, self.seen_later = pause, 0, set[int]()

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
            time.sleep(self.pause)


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_worker_that_died_is_replaced(
    train: Train, caplog: pytest.LogCaptureFixture, pause: float
) -> None:
    outcome = train("workers", grid=(grid := Deadly(pause)), method="fedbn", rounds=3)
    assert "a worker process died" in caplog.text
    assert grid.seen_later and grid.killed not in grid.seen_later
    assert outcome.summary["failures"] == 0
    assert outcome.hash == train("here", method="fedbn", rounds=3).hash


def test_no_reply_in_time(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(TooFewReplies, match=r"round 1: 0 good replies of 4.*client 0: no reply"):
        train(
            grid=WorkersGrid(1), timeout=0.001, local_epochs=500
        )  # longer than one look for replies
    assert "no reply after 0.001 s" in caplog.text


@pytest.mark.parametrize("call", ["create_message", "set_run"])
def test_takes_messages_and_gives_replies_alone(call: str) -> None:
    arguments: list[Any] = [[]]
    with pytest.raises(NotImplementedError, match="offers nothing else"):
        getattr(LocalGrid(), call)(*arguments)
    with pytest.raises(NotImplementedError, match="offers nothing else"):
        _ = LocalGrid().run


def test_a_follower_reads_what_was_appended_and_no_line_twice(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    assert appended(file, 0) == ([], 0)
    file.write_text("one\ntwo")
    assert appended(file, 0) == (["one"], 4)
    file.write_text("one\ntwo\nthree\n")
    assert appended(file, 4) == (["two", "three"], 14)
    file.write_text("one\n")  # cut by a run that goes on
    assert appended(file, 14) == ([], 4)
    file.write_text("ONE\nfour\n")
    assert appended(file, 4) == (["four"], 9)


def test_few_clients_are_a_chunk_each_and_many_share_one_the_longest_first() -> None:
    assert [*chunks([3, 0, 1], {0: 5, 1: 5, 3: 90}, 2)] == [[3], [0], [1]]
    assert [*chunks([0, 1, 2], {}, 4)] == [[0], [1], [2]]
    assert [*chunks(range(10), {}, 2, together=4)] == [range(4), range(4, 8), range(8, 10)]
    assert [*chunks(range(4), {}, 2, together=32)] == [range(2), range(2, 4)]
    parts = [*chunks(range(1000), dict.fromkeys(range(1000), 20), 2)]
    assert [client for part in parts for client in part] == [*range(1000)]
    sizes = [*map(len, parts)]
    assert (
        sizes == sorted(sizes, reverse=True)
        and sizes[0] == 125
        and sizes[-1] == 1
        and len(sizes) < 50
    )


def test_a_chunk_is_no_more_than_its_share_of_the_samples() -> None:
    examples = {client: 1000 // (client + 1) for client in range(100)}
    for part in chunks(range(100), examples, 2):
        assert len(part) == 1 or sum(map(examples.__getitem__, part)) <= sum(examples.values()) / 8
