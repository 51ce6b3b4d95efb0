"""A flwr Grid without Ray: the ClientApp in this process, or in worker processes."""

import logging
import multiprocessing
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.messages import handing_over
from data.text import printable, sentence
from fedskew.engines.processes import clear_leftovers, note_owner
from fedskew.interrupt import held_back
from strategies.replies import replies

log = logging.getLogger("fedskew")
UNGUARDED = (
    "the worker processes end as they begin: Python begins each by importing the script again, so a script calls what "
    'uses the engine workers below `if __name__ == "__main__":`'
)

QUIET = "ignore:resource_tracker"
"""An option of Python's: what deletes the semaphores of workers that a signal has ended does not complain of them."""
WHILE = 0.3
"""Seconds that workers are waited for when they are asked for replies."""


class LocalGrid(Grid):
    """Hands every message straight to the ClientApp and returns its replies.

    workers = 0 plays the clients in this process, one after the other; `faithful` then sends each message through
    flwr's own protobuf, as it would travel, instead of handing tensors over. workers > 0 plays them in that many
    processes of one thread each. All give the same results to the bit. To be used as a context manager.
    """

    def __init__(self, workers: int = 0, faithful: bool = False) -> None:
        self.workers, self.faithful = workers, faithful
        self.stack = ExitStack()
        self.pool: ProcessPoolExecutor | None = None
        self.out: dict[str, Message] = {}
        self.futures: dict[str, Future[Message]] = {}
        self.deaths = 0

    def __enter__(self) -> "LocalGrid":
        identify()
        with ExitStack() as stack:
            if self.workers:
                for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
                    os.environ.setdefault(variable, "1")
                context = fork_server("client_app.app")
                ours, theirs = context.Pipe()
                self.pool = ProcessPoolExecutor(
                    self.workers, mp_context=context, initializer=end_with, initargs=(theirs,)
                )
                stack.callback(self.pool.shutdown, cancel_futures=True)
                stack.callback(ours.close)  # first: nobody waits for a client that still trains
                try:
                    self.pool.submit(os.getpid).result()
                except BrokenProcessPool:
                    raise RuntimeError(UNGUARDED) from None
            elif not self.faithful:
                stack.enter_context(handing_over())
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def get_node_ids(self) -> Iterable[int]:
        """Return a node for each worker, or the one that plays every client."""
        return list(range(1, max(1, self.workers) + 1))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages and return their numbers; what was asked before and is still out has no reply any more."""
        self.out, self.futures, self.deaths = {}, {}, 0
        for message in messages:
            number = message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.out[number] = message
        return list(self.out)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there after a while; without workers, play the first message that is out."""
        asked = {number: self.out[number] for number in message_ids if number in self.out}
        if self.pool is None:
            replies = [self.play_here(message) for message in list(asked.values())[:1]]
        else:
            replies = self.from_workers(self.pool, asked)
        for reply in replies:
            del self.out[reply.metadata.reply_to_message_id]
        return replies

    def from_workers(self, pool: ProcessPoolExecutor, asked: Mapping[str, Message]) -> list[Message]:
        """Return the replies that workers have. A worker that died is replaced, and what was out is sent once more."""
        try:  # submitting raises as well, when a worker died between two rounds
            self.futures |= {n: pool.submit(play, message) for n, message in asked.items() if n not in self.futures}
            done = futures.wait([self.futures[number] for number in asked], WHILE, futures.FIRST_COMPLETED).done
            whole = [future.result() for future in done if not isinstance(future.exception(), BrokenProcessPool)]
            if len(whole) == len(done):
                return whole
        except BrokenProcessPool:
            whole = []
        self.deaths += 1
        if self.deaths > 1:
            numbers = asked.keys() - {reply.metadata.reply_to_message_id for reply in whole}
            return whole + [Message(Error(2, "two worker processes died"), reply_to=asked[n]) for n in sorted(numbers)]
        log.warning("a worker process died and is replaced; its clients are asked again")
        self.futures = {}
        self.stack.close()
        self.__enter__()
        return whole

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Yield the reply to each message that comes in time."""
        return replies(self, list(messages), timeout)

    def play_here(self, message: Message) -> Message:
        """Return the reply of this process's ClientApp."""
        if not self.faithful:
            return play(message)
        received = message_from_proto(message_to_proto(message))
        return message_from_proto(message_to_proto(play(received)))

    def refuse(self, *arguments: object) -> NoReturn:
        """Raise: what FedSkew's strategies do not need."""
        raise NotImplementedError("a LocalGrid only takes messages and gives replies")

    set_run: Callable[..., NoReturn] = refuse
    run: property = property(refuse)
    create_message: Callable[..., NoReturn] = refuse


def fork_server(*preload: str) -> ForkServerContext:
    """Return the context of worker processes that have imported `preload` once and for all, and that get no signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    clear_leftovers()
    if QUIET not in sys.warnoptions:  # from which both processes take their options
        sys.warnoptions.append(QUIET)
    for ensure_running in (resource_tracker.ensure_running, forkserver.ensure_running):  # the first ends a block's hold
        with held_back():
            ensure_running()
    if multiprocessing.parent_process() is None:  # a worker uses the folder of its parent, which outlives it
        note_owner(Path(get_temp_dir()))
    return context


def end_with(other: Connection | int) -> None:
    """In a worker: end at once when the other end of a connection is closed, or the process of a sentinel is gone."""

    def watch() -> None:
        wait([other])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def identify() -> None:
    """Tell flwr who this process is: its messages carry these numbers, which mean nothing here."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def play(message: Message) -> Message:
    """Return the ClientApp's reply to a message, or flwr's error message when it raised."""
    from client_app.app import app

    identify()
    context = Context(run_id=1, node_id=message.metadata.dst_node_id, node_config={}, state=RecordDict(), run_config={})
    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(2, printable(sentence(error))), reply_to=message)
