"""A sweep on an existing Ray cluster: each run is a Ray task, in a results folder that all machines share."""

import contextlib
import logging
import pickle
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from client_app.process import code_version
from data import SettingError, require
from data.text import is_whole, printable, sentence
from fedskew.engines import following
from fedskew.formatting import in_bytes
from fedskew.scheduling import CUDA_CONTEXT, Job, JobResult, largest
from fedskew.signals import SIGNALS, one_interrupt
from fedskew.sweep.cluster_node import Machine, SharedFolders, check_node, run_job
from fedskew.sweep.progress import Overview
from fedskew.sweep.queue import INTERVAL, Queue
from server_app.lock import locked
from server_app.run_folder import RunFolder
from server_app.versions import PACKAGES

KEY = "--cluster"
ANSWER = 5.0
"""Seconds that the cluster's head has to answer."""
Node = Mapping[str, Any]
"""A machine as `ray.nodes` has it."""


@dataclass(frozen=True)
class Demand:
    """What a run asks of a machine."""

    cpus: int
    gpus: float
    memory_bytes: int

    def __str__(self) -> str:
        gpus = f"{self.gpus:.2g} of a GPU, " if self.gpus else ""
        return f"{self.cpus} CPU, {gpus}{in_bytes(self.memory_bytes)} of memory"

    def fits(self, machines: Iterable[Node]) -> int:
        """Return how many such runs the living machines hold at a time."""
        need = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_bytes}
        asked = {kind: amount for kind, amount in need.items() if amount}
        return sum(
            int(
                min(
                    node["Resources"].get(kind, 0) / amount + 1e-9 for kind, amount in asked.items()
                )
            )
            for node in machines
            if node["Alive"]
        )


def nodes() -> list[Node]:
    """Return the cluster's machines, the dead ones as well."""
    return list(ray.nodes())  # type: ignore[no-untyped-call]


def conduct_on(
    address: str,
    jobs: Sequence[Job],
    console: Console,
    engine: str,
    at_once: int,
    workers: int,
    finished: int,
) -> dict[str, JobResult]:
    """Conduct the jobs on the cluster whose head is at HOST:PORT, and return how each ended, by the run's id.

    This machine must be one of the cluster's. Whatever ends this, no run of it goes on. Raises SettingError for an
    address that nobody answers at, and for a machine that does not share folder, code and locks with this one.
    """
    with one_interrupt(), connected(address):
        shared, machines = check_nodes(address, jobs)
        demand = demand_of(jobs, workers or 1, nodes(), machines)
        at_once = min(at_once or len(jobs), max(1, demand.fits(nodes())))
        with Overview(console, jobs, at_once, finished) as overview:
            queue = ClusterQueue(jobs, overview, shared, demand, engine, at_once)
            try:
                return queue.run()
            finally:
                queue.end()


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Hold a connection to the cluster. Raises SettingError when there is none to be had."""
    host, _, port = address.rpartition(":")
    rule = "must be HOST:PORT of the head of a Ray cluster, as `ray start --head` prints it"
    require(bool(host) and is_whole(port), KEY, address, rule)
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except OSError as error:
        raise SettingError(KEY, address, f"nobody answers there ({error}): {rule}") from error
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS if main}
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
        )
    except (RuntimeError, OSError, ValueError, RayError) as error:
        raise SettingError(
            KEY, address, f"Ray does not take this machine in: {printable(sentence(error))}"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray takes SIGTERM
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def check_nodes(address: str, jobs: Sequence[Job]) -> tuple[SharedFolders, list[Machine]]:
    """Let every machine show that it can take runs. Raises SettingError with the first one's reason why it cannot."""
    with ExitStack() as stack:
        checks = []
        for results in sorted({job.settings.general.results for job in jobs}):
            Path(results).mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".cluster-", dir=results)
            )
            stack.enter_context(locked(Path(folder)))
            checks.append(folder)
        shared = SharedFolders(str(Path.cwd()), tuple(checks), code_version(*PACKAGES))
        ask = ray.remote(num_cpus=0, max_retries=0)(check_node)
        names = [node["NodeID"] for node in nodes() if node["Alive"]]
        tasks = [
            ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False)
            ).remote(shared)
            for name in names
        ]
        try:
            machines: list[Machine] = ray.get(tasks)
        except RayError as error:
            rule = f"a machine of it does not answer: is FedSkew installed there? {printable(sentence(error))}"
            raise SettingError(KEY, address, rule) from error
    for machine in machines:
        require(not machine.problem, KEY, address, f"its machine {machine.name} {machine.problem}")
    return shared, machines


def demand_of(
    jobs: Sequence[Job],
    cpus: int,
    there: Sequence[Node],
    machines: Sequence[Machine],
) -> Demand:
    """Return what the largest job asks of a machine: no more than the largest has, which is then its own.

    A GPU is shared among as many runs as the smallest GPU's memory holds.
    Raises SettingError for runs that want a GPU where no machine has any.
    """
    most = {
        kind: max((node["Resources"].get(kind, 0) for node in there if node["Alive"]), default=0)
        for kind in ("CPU", "GPU", "memory")
    }
    devices = {job.settings.general.device for job in jobs}
    require(
        bool(most["GPU"]) or "cuda" not in devices,
        "device",
        "cuda",
        "no machine of the cluster has a GPU",
    )
    need = largest(jobs)
    gpu_memory: list[int] = []
    for machine in machines:
        gpu_memory += machine.gpu_memory
    smallest = min(gpu_memory, default=0)
    shared = max(1, smallest // (need + CUDA_CONTEXT))
    gpus = 1 / shared if most["GPU"] and devices != {"cpu"} else 0.0
    return Demand(max(1, min(cpus, int(most["CPU"]))), gpus, int(min(need, most["memory"])))


class ClusterQueue(Queue):
    """The jobs, and the tasks of those that have begun."""

    def __init__(
        self,
        jobs: Sequence[Job],
        overview: Overview,
        shared: SharedFolders,
        demand: Demand,
        engine: str,
        at_once: int,
    ) -> None:
        super().__init__(jobs, overview)
        self.shared = shared
        self.demand = demand
        self.at_once = at_once
        self.engine = engine or ("workers" if demand.cpus > 1 else "inprocess")
        self.tasks: dict[Any, tuple[Job, ExitStack]] = {}
        """By Ray's reference: what it conducts, and what follows its records."""
        self.begun = set[str]()

    def run(self) -> dict[str, JobResult]:
        """Conduct everything."""
        while self.waiting or self.tasks:
            slots = min(self.at_once, self.demand.fits(nodes()))
            while self.waiting and len(self.tasks) < slots:
                self.begin(self.waiting.popleft())
            while self.waiting and not slots and not self.tasks:
                job = self.waiting.popleft()
                self.overview.started(job)
                self.settle(
                    job, JobResult(reason=f"the cluster has no machine left with {self.demand}")
                )
            for task in ray.wait([*self.tasks], timeout=INTERVAL)[0] if self.tasks else ():
                self.take_up(task)
        return self.outcomes

    def hand_over(self, job: Job) -> None:
        """Let Ray place a job on a machine with room for it, the next one each time."""
        memory = min(job.memory_bytes, self.demand.memory_bytes)
        task = ray.remote(run_job).options(
            name=job.label,
            num_cpus=self.demand.cpus,
            num_gpus=self.demand.gpus,
            memory=memory,
            max_retries=0,  # the queue lets a run go on, and says so
            scheduling_strategy="SPREAD",
        )
        again = job.settings.run_id in self.begun
        self.begun.add(job.settings.run_id)
        follower = ExitStack()
        follower.enter_context(
            following(RunFolder(job.settings.folder), lambda line: self.overview.on_line(job, line))
        )
        settings = pickle.dumps(job.settings)
        reference = task.remote(self.shared.folder, settings, self.engine, self.demand.cpus, again)
        self.tasks[reference] = job, follower

    def take_up(self, task: Any) -> None:
        """Take notice of a task that has ended."""
        job, follower = self.tasks.pop(task)
        follower.close()  # nothing is heard of a job that has ended
        try:
            event = ray.get(task)
        except RayTaskError as error:
            event = "failed", printable(sentence(error.cause))
        except NodeDiedError:
            self.attempts[job.settings.run_id] -= 1  # which is not the run's fault
            event = "died", "its machine is gone"
        except RayError as error:
            event = "died", f"its process ended ({type(error).__name__}); out of memory?"
        self.on_event(job, event)

    def end(self) -> None:
        """End every task."""
        for task, (_, follower) in self.tasks.items():
            ray.cancel(task, force=True)
            follower.close()
