"""Clients in this process, one after the other, or in worker processes that share memory with it."""

import io
import logging
import math
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.handlers import ClientOutcome, ClientReply, ClientRequest, ExpectedState, answers
from client_app.messages import handing_over
from client_app.run_spec import RunSpec
from client_app.runtime import simulation_runtime
from client_app.state import State
from data.text import printable, sentence
from fedskew.engines.local import Refusing, identify
from fedskew.signals import blocked
from strategies.core.exchange import DirectGrid, Request, WorkersLost

log = logging.getLogger("fedskew")
UNGUARDED = (
    "the worker processes end as they begin: Python begins each by importing the script again, so a script calls what "
    'uses the engine workers below `if __name__ == "__main__":`'
)
QUIET = "ignore:resource_tracker"
"""An option of Python's: its resource tracker deletes the semaphores of killed workers without a warning."""
PARTS = 4
"""The next chunk has 1 / (PARTS * workers) of the samples that are left, so that all workers end at about one time."""
ALIGNMENT = 64
"""Bytes; torch allocates so, and a matrix product's last bits depend on where its operand begins."""
Bytes = NDArray[np.uint8]


class WorkersGrid(Refusing, DirectGrid):
    """Runs clients in worker processes of one thread each, or with workers = 0 in this process, one after the other.

    All give the same results to the bit. To be used as a context manager.
    """

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers
        self.stack = ExitStack()
        self.pool: ProcessPoolExecutor | None = None
        self.requests = 0

    def __enter__(self) -> "WorkersGrid":
        identify()
        simulation_runtime.cache_clear()  # it has data that may have changed since the last run
        with ExitStack() as stack:
            stack.enter_context(handing_over())
            if self.workers:
                self.start(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def start(self, stack: ExitStack) -> None:
        """Start the workers. Raises RuntimeError where a script has no main guard."""
        one_thread_each()
        context = fork_server("fedskew.engines.workers")
        ours, theirs = context.Pipe()
        self.pool = ProcessPoolExecutor(
            self.workers,
            mp_context=context,
            initializer=end_with,
            initargs=(theirs,),
        )
        stack.callback(self.pool.shutdown, cancel_futures=True)
        stack.callback(ours.close)  # first: nobody waits for a client that still trains
        try:
            self.pool.submit(os.getpid).result()
        except BrokenProcessPool:
            raise RuntimeError(UNGUARDED) from None

    def restart(self) -> None:
        """End the workers with whatever they still do, and start others."""
        self.stack.close()
        self.__enter__()

    def get_node_ids(self) -> Iterable[int]:
        """Return a node for each worker, or the one that runs every client."""
        return range(1, max(1, self.workers) + 1)

    def outcomes(
        self,
        request: Request,
        clients: Sequence[int],
        timeout: float,
    ) -> Iterator[ClientOutcome]:
        """Yield the clients' answers. A worker that died is replaced, and clients without an answer are asked again."""
        expected = {client: request.expected_state(client) for client in clients}
        if self.pool is None:
            yield from run_here(request, expected)
            return
        deadline = time.monotonic() + timeout
        for last in (False, True):
            left = deadline - time.monotonic()
            try:
                for client, outcome in self.from_workers(request, expected, left):
                    del expected[client]
                    yield client, outcome
                return
            except BrokenProcessPool:
                self.restart()
                if last:
                    raise WorkersLost("two worker processes died") from None
                log.warning("a worker process died and is replaced; its clients are asked again")
            except futures.TimeoutError:
                self.restart()
                log.warning("no reply after %g s", timeout)
                return
            except Exception as error:
                self.restart()
                raise WorkersLost(printable(sentence(error))) from error

    def from_workers(
        self,
        request: Request,
        expected: Mapping[int, ExpectedState],
        timeout: float,
    ) -> Iterator[ClientOutcome]:
        """Yield the workers' answers. Raises BrokenProcessPool when one of them died, and TimeoutError."""
        assert self.pool is not None
        file = SharedFile()
        try:
            self.requests += 1
            written = file.write(request.client_request)
            tasks = []
            for chunk in chunks(
                list(expected), request.examples, self.workers, together_in(request)
            ):
                of_chunk = {client: expected[client] for client in chunk}
                tasks.append(self.pool.submit(run_chunk, self.requests, written, of_chunk))
            for task in futures.as_completed(tasks, max(0.0, timeout)):
                yield from task.result().read()
        finally:
            file.close()


def run_here(request: Request, expected: Mapping[int, ExpectedState]) -> Iterator[ClientOutcome]:
    """Yield clients' answers from this process. Raises WorkersLost for what prevents every client from running."""
    try:
        for client, outcome in answers(request.client_request, expected):
            if isinstance(outcome, ClientReply):
                outcome = replace(outcome, states=laid_out(outcome))
            yield client, outcome
    except Exception as error:
        raise WorkersLost(printable(sentence(error))) from error


def laid_out(answer: ClientReply) -> dict[str, State]:
    """Return an answer's states on the CPU, in the memory order of their shapes."""
    states: dict[str, State] = {}
    for name, state in answer.states.items():
        states[name] = {key: tensor.cpu().contiguous() for key, tensor in state.items()}
    return states


def together_in(request: Request) -> int:
    """Return how many clients a worker trains in one pass: the setting clients-per-pass."""
    return RunSpec.from_json(request.run_spec).training.clients_per_pass


def chunks(
    clients: Sequence[int],
    examples: Mapping[int, int],
    workers: int,
    together: int = 1,
) -> Iterator[Sequence[int]]:
    """Yield the clients, sorted by samples, in chunks that a worker runs as one task.

    They become smaller towards the end, so that workers end together; of few clients each is a chunk. Clients that
    train in one pass are in one chunk, unless a worker would have nothing to do.

    Args:
        clients: sorted by samples, most first.
        examples: samples of each client.
        workers: that run chunks.
        together: clients of one pass.
    """
    fewest = min(together, math.ceil(len(clients) / workers))
    costs = [max(1, examples.get(client, 1)) for client in clients]
    left = sum(costs)
    begin = 0
    while begin < len(clients):
        end = begin + 1
        cost = costs[begin]
        while end < len(clients):
            has_room = (cost + costs[end]) * PARTS * workers <= left
            if end - begin >= fewest and not has_room:
                break
            cost += costs[end]
            end += 1
        yield clients[begin:end]
        left -= cost
        begin = end


# ---- shared memory ---------------------------------------------------------------------------------------------------
# Objects for another process of this machine are pickled, with their tensors in memory that both processes map. The
# kernel takes the memory back with the last process that holds it, however that one ends.


class TensorPickler(pickle.Pickler):
    """Pickles an object without its tensors' bytes, which `arrays` collects: one array per tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self.collect)
        self.arrays: list[Bytes] = []

    def collect(self, buffer: pickle.PickleBuffer) -> None:
        """Keep a tensor's bytes out of the pickle."""
        self.arrays.append(np.frombuffer(buffer.raw(), np.uint8))

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor to its bytes on the CPU, in the memory order of its shape."""
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().cpu().contiguous().reshape(-1)
        buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy().data)
        return tensor_of, (buffer, value.dtype, tuple(value.shape))


def tensor_of(values: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of these bytes: without a copy, unless they are read-only."""
    if values.size and values.flags.writeable:
        return torch.from_numpy(values).view(dtype).reshape(shape)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = values
    return tensor


def packed(value: object) -> tuple[bytes, list[Bytes]]:
    """Return an object's pickle and its tensors' bytes; `pickle.loads(text, buffers=arrays)` returns the object."""
    file = io.BytesIO()
    pickler = TensorPickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.arrays


@dataclass(frozen=True)
class Written:
    """An object in a file: its pickle, and where the bytes of each of its tensors begin and end."""

    path: str
    text: bytes
    spans: tuple[tuple[int, int], ...]

    def read(self) -> Any:
        """Return the object; its tensors are the file's memory, which stays as long as one of them."""
        memory = np.memmap(self.path, np.uint8, "r+")
        arrays = [memory[begin:end] for begin, end in self.spans]
        return pickle.loads(self.text, buffers=arrays)


class SharedFile:
    """A file in memory, which another process of this machine opens by its path; gone when nobody has it open."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.number = os.memfd_create("fedskew")
            self.path = f"/proc/{os.getpid()}/fd/{self.number}"
        else:
            self.number, self.path = tempfile.mkstemp(prefix="fedskew-")

    def write(self, value: object) -> Written:
        """Write an object's tensors, and return what reads them."""
        text, arrays = packed(value)
        spans = []
        end = 0
        for array in arrays:
            spans.append((end, end + array.size))
            end += math.ceil(array.size / ALIGNMENT) * ALIGNMENT
        memory = np.memmap(self.path, np.uint8, "r+", shape=max(1, end))
        for array, (begin, end) in zip(arrays, spans, strict=True):
            memory[begin:end] = array
        return Written(self.path, text, tuple(spans))

    def close(self) -> None:
        """Give the file up; who has read an object in it keeps its memory."""
        os.close(self.number)
        if not self.path.startswith("/proc/"):
            Path(self.path).unlink()


# ---- worker processes ------------------------------------------------------------------------------------------------

LONGEST_TEMPORARY = 60
"""Letters of a temporary folder in which processes can meet: a socket's path has at most 107 bytes."""


def one_thread_each() -> None:
    """Let processes that are started from now on compute in one thread, unless the user has said otherwise."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def fork_server(*preload: str) -> ForkServerContext:
    """Return the context of worker processes that have imported `preload` once and for all, and that get no signal."""
    if len(tempfile.gettempdir()) > LONGEST_TEMPORARY:
        tempfile.tempdir = "/tmp"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    if QUIET not in sys.warnoptions:  # from which both processes take their options
        sys.warnoptions.append(QUIET)
    # A block each: starting the resource tracker unblocks signals.
    with blocked():
        resource_tracker.ensure_running()
    with blocked():
        forkserver.ensure_running()
    return context


def end_with(other: Connection | int) -> None:
    """In a worker: end at once when the other end of a connection is closed, or the process of a sentinel is gone."""

    def watch() -> None:
        wait([other])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_replies: list[SharedFile] = []
"""In a worker: what it has answered to the request that is open; the server reads that before it asks again."""


@lru_cache(maxsize=1)
def opened(number: int, written: Written) -> ClientRequest:
    """In a worker: return the request of this number to its clients; its tensors stay in shared memory."""
    while _replies:
        _replies.pop().close()
    request: ClientRequest = written.read()
    return request


def run_chunk(number: int, written: Written, clients: Mapping[int, ExpectedState]) -> Written:
    """In a worker: answer a request for some clients, and return where the outcomes are."""
    outcomes = list(answers(opened(number, written), clients))
    file = SharedFile()
    _replies.append(file)
    return file.write(outcomes)
