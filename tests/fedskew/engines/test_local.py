"""The grid without Ray: workers that die or dawdle, and calls it does not offer."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from in_process import Outcome, TamperingGrid, number_of

from fedskew.engines import appended
from fedskew.engines.local import LocalGrid
from strategies.exchange import TooFewReplies

Train = Callable[..., Outcome]


class Deadly(TamperingGrid):
    """Kills (kill -9) a worker that answered in round 1, before round 2 is sent: at once, or after a while."""

    def __init__(self, pause: float) -> None:
        super().__init__(workers=2)
        self.pause = pause
        self.workers_seen: list[int] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if number_of(messages[0]) == 2 and messages[0].metadata.message_type == "train" and len(self.workers_seen) == 2:
            os.kill(self.workers_seen[0], signal.SIGKILL)
            time.sleep(self.pause)
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(message_ids):
            records = reply.content.config_records
            self.workers_seen += [
                int(str(r["process"])) for name, r in records.items() if name in ("0/worker", "1/worker")
            ]
            yield reply


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_worker_that_died_is_replaced(train: Train, caplog: pytest.LogCaptureFixture, pause: float) -> None:
    outcome = train("workers", grid=(grid := Deadly(pause)), method="fedbn", rounds=3)
    assert "a worker process died" in caplog.text
    assert grid.workers_seen[0] not in grid.workers_seen[2:]
    assert outcome.summary["failures"] == 0
    assert outcome.hash == train("here", method="fedbn", rounds=3).hash


def test_no_reply_in_time(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(TooFewReplies, match=r"round 1: 0 good replies of 4.*client 0: no reply"):
        train(grid=LocalGrid(workers=1), timeout=0.001, local_epochs=500)  # longer than one look for replies
    assert "no reply after 0.001 s" in caplog.text


@pytest.mark.parametrize("call", ["create_message", "set_run"])
def test_takes_messages_and_gives_replies_alone(call: str) -> None:
    arguments: list[Any] = [[]]
    with pytest.raises(NotImplementedError, match="only takes messages"):
        getattr(LocalGrid(), call)(*arguments)
    with pytest.raises(NotImplementedError, match="only takes messages"):
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
