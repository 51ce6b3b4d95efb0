"""Clients on Ray: each worker is a Ray actor with a core and a share of a GPU, on this machine or in a cluster.

Ray and its workers stay until this process ends, so that the next run of a command finds them warm.
"""

import atexit
import itertools
import logging
import os
import pickle
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from client_app.handlers import GPU_MEMORY, ClientFailure, ClientOutcome, ExpectedState, answers
from client_app.state import cores
from client_app.user_code import look_in_folder
from data import SettingError, require
from data.text import printable, sentence
from fedskew.engines.local import Refusing, identify
from fedskew.engines.workers import Bytes, chunks, packed, together_in
from fedskew.signals import current_handlers
from strategies.core.exchange import DirectGrid, Request, WorkersLost

ENVIRONMENT = {  # the user's environment goes before them; Ray reads some at its import
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux as well: Ray then listens on the loopback address alone
    "RAY_raylet_start_wait_time_s": "120",  # 30 are too few where the cores have other work
    "RAY_worker_niceness": "0",  # 15 gives the clients nothing where the cores have other work
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

import ray  # noqa: E402
from ray.exceptions import RayError, RayTaskError  # noqa: E402
from ray.util import ActorPool  # noqa: E402

log = logging.getLogger("fedskew")
LONGEST = 20
"""Characters in the name of the temporary folders' place, up to which Ray's long paths below it can name sockets."""
NO_GPU_MEMORY = (
    "needs more memory than its GPU has: give it a larger share (--client-gpus, now {:g}), "
    "or set a smaller batch-size"
)
_numbers = itertools.count(1)
"""Of this process's requests, of all its runs."""


class RayGrid(Refusing, DirectGrid):
    """Runs clients in Ray's workers; to be used as a context manager.

    Args:
        workers: that run clients; fewer where Ray has no room for so many.
        client_gpus: the share of a GPU that each has.
        address: of a running Ray cluster, HOST:PORT or auto; empty starts Ray on this machine.
    """

    def __init__(self, workers: int, client_gpus: float = 0.0, address: str = "") -> None:
        self.workers = workers
        self.client_gpus = client_gpus
        self.address = address

    def __enter__(self) -> "RayGrid":
        """Start Ray and the workers, unless they are there. Raises SettingError where there are none to be had."""
        connect(self.address)
        identify()
        self.workers = min(self.workers, places(self.client_gpus))
        rule = "no machine of Ray has so much of a GPU for one client"
        require(self.workers > 0, "--client-gpus", self.client_gpus, rule)
        self.start_workers()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave Ray and its workers to the next run."""

    def start_workers(self) -> None:
        """Start the workers that are missing."""
        self.crew = crew(self.client_gpus)
        worker = ray.remote(RayWorker).options(
            num_cpus=1,
            num_gpus=self.client_gpus,
            max_restarts=-1,
            max_task_retries=1,
        )
        while len(self.crew) < self.workers:
            self.crew.append(worker.remote())

    def get_node_ids(self) -> Iterable[int]:
        """Return a node for each worker."""
        return range(1, self.workers + 1)

    def outcomes(
        self,
        request: Request,
        clients: Sequence[int],
        timeout: float,
    ) -> Iterator[ClientOutcome]:
        """Yield the clients' answers. A worker that dies is replaced, and its clients are asked again once.

        Raises WorkersLost as a DirectGrid does, and RuntimeError for a client that its GPU has no memory for.
        """
        deadline = time.monotonic() + timeout
        number = next(_numbers)
        reference = ray.put((str(Path.cwd()), *packed(request.client_request)))

        def ask(worker: Any, chunk: Sequence[int]) -> Any:
            expected = {client: request.expected_state(client) for client in chunk}
            return worker.answer.remote(number, [reference], expected)

        pool: Any = ActorPool(self.crew[: self.workers])
        together = together_in(request)
        for chunk in chunks(clients, request.examples, self.workers, together):
            pool.submit(ask, chunk)
        while pool.has_next():
            try:
                text, arrays = pool.get_next_unordered(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                log.warning("no reply after %g s", timeout)
                self.replace_workers()
                return
            except RayTaskError as error:
                raise WorkersLost(printable(sentence(error.cause))) from error
            except RayError as error:
                kind = type(error).__name__
                raise WorkersLost(f"a worker died ({kind}); out of memory?") from error
            for client, outcome in pickle.loads(text, buffers=arrays):
                if isinstance(outcome, ClientFailure) and outcome.kind == GPU_MEMORY:
                    raise RuntimeError(f"client {client} {NO_GPU_MEMORY.format(self.client_gpus)}")
                yield client, outcome

    def replace_workers(self) -> None:
        """End the workers with whatever they still do, and start others."""
        for worker in self.crew:
            ray.kill(worker)
        self.crew.clear()
        self.start_workers()


class RayWorker:
    """In a process of Ray's: answers requests for clients."""

    number = 0
    """Of the request that is open."""

    def answer(
        self, number: int, reference: Sequence[Any], clients: Mapping[int, ExpectedState]
    ) -> tuple[bytes, list[Bytes]]:
        """Return the outcomes of clients; a request stays open for the tasks that follow."""
        if number != self.number:
            folder, text, arrays = ray.get(reference[0])
            os.chdir(folder)  # from which relative paths count, on every machine of a cluster
            look_in_folder()
            self.request = pickle.loads(text, buffers=arrays)
            self.number = number
        return packed(list(answers(self.request, clients)))


@cache
def crew(client_gpus: float) -> list[Any]:
    """Return the workers of this process's Ray that have such a share of a GPU; a list that grows."""
    return []


def places(client_gpus: float) -> int:
    """Return how many workers fit Ray's machines."""
    total = 0
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if not node["Alive"]:
            continue
        fitting = int(node["Resources"].get("CPU", 0))
        if client_gpus:
            gpus = node["Resources"].get("GPU", 0)
            at_once = gpus / client_gpus + 1e-9  # 1 / (1 / 3) is a little below 3
            fitting = min(fitting, int(at_once))
        total += fitting
    return total


@cache
def connect(address: str) -> None:
    """Connect this process to a running Ray, or start one that ends with it. Raises SettingError."""
    options: dict[str, Any] = {"address": address}
    if not address:
        usual = tempfile.gettempdir()
        folder = tempfile.mkdtemp(prefix="ray-", dir=usual if len(usual) <= LONGEST else "/tmp")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        options = {"address": "local", "num_cpus": cores(), "_temp_dir": folder}
        options["_node_ip_address"] = "127.0.0.1"
    handlers = current_handlers()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about GPUs, in which nothing changes
            ray.init(
                **options, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
            )
    except (RuntimeError, OSError, ValueError, RayError) as error:
        rule = f"Ray does not take this process in: {printable(sentence(error))}"
        raise SettingError("--ray-address", address, rule) from error
    finally:
        for number, handler in handlers.items():  # Ray sets one of its own for SIGTERM
            signal.signal(number, handler)
    atexit.register(ray.shutdown)
