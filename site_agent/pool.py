"""The processes that run clients: one at a time, pre-forked, replaced for every run and every 200 messages.

They are forked from a process that has imported everything and computed nothing, so a new one costs no time and little
memory.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict

from client_app.local_site import NotAllowed
from client_app.messages import bytes_of, unpack
from client_app.serialization import DecodeError
from client_app.state import State, norm

logger = logging.getLogger("fedskew.site")
MOST_MESSAGES = 200
"""Messages after which a process is replaced, so that what a library leaks goes with it."""
REFUSED = 7
"""flwr's code INVALID_FAB: what the site's policy does not let run, or leave."""
RAISED, CRASHED = 2, 8
"""flwr's codes CLIENT_APP_RAISED_EXCEPTION and CLIENT_APP_CRASHED."""
DIED = "the worker died"

App = Callable[[Message, Context], Message]
Leaving = list[dict[str, Any]]
"""name, bytes and norm of every record that leaves."""


class TaskAbandoned(Exception):
    """Nobody waits for the reply of this task any more."""


class Pool:
    """The worker that runs at the moment, if any."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.process: ForkProcess | None = None
        self.run = 0
        self.messages = 0

    def run_task(
        self,
        run: int,
        message: Message,
        context: Context,
        waiting: Callable[[], None],
    ) -> tuple[Message, Leaving, str]:
        """Run one message in the worker. Return the reply, what leaves in it, and why it was refused or failed, or "".

        `waiting` is called every second until then. `context` gets the app's new state, unless the app failed or its
        reply was refused. If the worker dies, the reply is an error, and the server asks again.
        """
        is_usable = self.process is not None and self.process.is_alive()
        if not is_usable or run != self.run or self.messages >= MOST_MESSAGES:
            self.renew(run)
        assert self.process is not None
        self.messages += 1
        try:
            self.connection.send((message, context))
            while not (ready := wait([self.connection, self.process.sentinel], timeout=1.0)):
                waiting()
            if self.connection in ready:
                reply, rows, why, state = self.receive()
                if state is not None:
                    context.state = state
                return reply, rows, why
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        self.process.join(1)
        logger.error("%s (status %s)", DIED, self.process.exitcode)
        self.end()
        return Message(Error(CRASHED, f"{DIED}; see the site's log"), reply_to=message), [], DIED

    def receive(self) -> tuple[Message, Leaving, str, RecordDict | None]:
        """Return what the worker has sent. Raises EOFError if it has died, also in the middle of its reply."""
        try:
            answer: tuple[Message, Leaving, str, RecordDict | None] = self.connection.recv()
        except OSError as error:  # of half a message
            raise EOFError from error
        return answer

    def renew(self, run: int) -> None:
        """End the worker, if there is one, and start a new one for a run."""
        self.end()
        fork = get_context("fork")
        self.connection, theirs = fork.Pipe()
        self.process = fork.Process(
            target=serve,
            args=(theirs, self.connection, self.app),
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.run = run
        self.messages = 0

    def end(self) -> None:
        """End the worker; nothing of a run stays in memory."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def serve(
    connection: Connection,
    parents: Connection,
    app: App,
) -> None:
    """In the worker: run the app on every message that arrives through the pipe, until the process is killed."""
    parents.close()  # inherited by the fork; only the parent may keep this end open
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    while True:
        message, context = connection.recv()
        rows: Leaving = []
        why, state = "", None
        try:
            reply = app(message, context)
            rows = leaving(reply, message)
            state = context.state
        except NotAllowed as error:
            logger.error("refused: %s", error)
            reason = f"policy: {error.permission}"  # the site's numbers stay in its own log
            reply = Message(Error(REFUSED, reason), reply_to=message)
            why = str(error)
        except Exception as error:
            logger.exception("the app failed")
            why = type(error).__name__
            reply = Message(Error(RAISED, why), reply_to=message)
        connection.send((reply, rows, why, state))


def end_with_parent() -> None:
    """End this worker once its parent has ended, however that happened."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def leaving(reply: Message, message: Message) -> Leaving:
    """Return name and bytes of every record of a reply, the norm of one that holds arrays, the reason of an error.

    Of a record that answers one of the message's of the same name, it is the norm of the change.
    """
    received = message.content.array_records if message.has_content() else {}
    rows: Leaving = []
    for name, record in reply.content.items():
        row: dict[str, Any] = {"name": name, "bytes": bytes_of(record)}
        if isinstance(record, ArrayRecord):
            # FedSkew's reply has 0/model of client 0 for the message's model.
            asked = received.get(name, received.get(name.partition("/")[2]))
            length = norm_of(state_in(record), {} if asked is None else state_in(asked))
            row["norm"] = float(f"{length:.6g}")
        elif "reason" in record:
            row["why"] = record["reason"]
        rows.append(row)
    return rows


def state_in(record: ArrayRecord) -> State:
    """Return the tensors of a record by name, whether FedSkew has packed them or not."""
    try:
        return unpack(record)
    except DecodeError:
        state = {}
        for name, array in record.items():
            values = array.numpy()
            # torch has no other byte order than this machine's, and no float wider than this one.
            kind = np.float64 if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
            state[name] = torch.tensor(values.astype(kind))
        return state


def norm_of(state: State, known: State) -> float:
    """Return the norm of tensors, or of their change where all of them are known with the same shapes.

    A whole number that has a former value is left out: batch norm's step counter would be larger than any weight.
    """
    changes = {}
    for name, tensor in state.items():
        before = known.get(name)
        if before is None or before.shape != tensor.shape:
            return norm(state)
        if tensor.dim() or before.is_floating_point():
            changes[name] = tensor.double() - before.double()
    return norm(changes)
