"""A sweep on an existing Ray cluster: each run is a Ray task, in a results folder that all machines share."""

import contextlib
import functools
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
        """Return how many such runs fit the living machines at a time."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_bytes}
        total = 0
        for node in machines:
            if not node["Alive"]:
                continue
            by_resource = []
            for resource, amount in needs.items():
                if amount:
                    available = node["Resources"].get(resource, 0)
                    by_resource.append(available / amount)
            total += int(min(by_resource) + 1e-9)  # 1 / (1 / 3) is a little below 3
        return total


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
    """Run the jobs on the cluster whose head is at HOST:PORT, and return each one's outcome by the run's id.

    This machine must be one of the cluster's. Whatever ends this, KeyboardInterrupt included, no run is left.

    Raises:
        SettingError: no cluster answers at the address, or a machine does not share folder, code and locks with this
            one.
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
    """Return a context with a connection to the cluster. Raises SettingError where there is no cluster."""
    host, _, port = address.rpartition(":")
    rule = "must be HOST:PORT of the head of a Ray cluster, as `ray start --head` prints it"
    require(bool(host) and is_whole(port), KEY, address, rule)
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except OSError as error:
        raise SettingError(KEY, address, f"nobody answers there ({error}): {rule}") from error
    # Ray sets a handler of its own for SIGTERM; only the main thread may set it back.
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
        )
    except (RuntimeError, OSError, ValueError, RayError) as error:
        rule = f"Ray does not take this machine in: {printable(sentence(error))}"
        raise SettingError(KEY, address, rule) from error
    finally:
        for number, handler in handlers.items():
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
        check = ray.remote(num_cpus=0, max_retries=0)(check_node)
        tasks = []
        for node in nodes():
            if node["Alive"]:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                tasks.append(check.options(scheduling_strategy=there).remote(shared))
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
    """Return what the largest job needs of a machine; a job that needs more than any machine has gets one to itself.

    A GPU is shared among as many runs as the smallest GPU's memory holds.

    Raises:
        SettingError: a run demands a GPU and no machine has one.
    """
    most = {"CPU": 0, "GPU": 0, "memory": 0}
    for node in there:
        if node["Alive"]:
            for resource in most:
                most[resource] = max(most[resource], node["Resources"].get(resource, 0))
    devices = {job.settings.general.device for job in jobs}
    rule = "no machine of the cluster has a GPU"
    require(bool(most["GPU"]) or "cuda" not in devices, "device", "cuda", rule)

    memory = largest(jobs)
    gpus = 0.0
    if most["GPU"] and devices != {"cpu"}:
        gpu_memory: list[int] = []
        for machine in machines:
            gpu_memory += machine.gpu_memory
        smallest = min(gpu_memory, default=0)
        runs_per_gpu = max(1, smallest // (memory + CUDA_CONTEXT))
        gpus = 1 / runs_per_gpu
    return Demand(
        cpus=max(1, min(cpus, int(most["CPU"]))),
        gpus=gpus,
        memory_bytes=int(min(memory, most["memory"])),
    )


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
                reason = f"the cluster has no machine left with {self.demand}"
                self.settle(job, JobResult(reason=reason))
            if self.tasks:
                ended, _ = ray.wait([*self.tasks], timeout=INTERVAL)
                for task in ended:
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
        folder = RunFolder(job.settings.folder)
        report_line = functools.partial(self.overview.on_line, job)
        follower.enter_context(following(folder, report_line))
        settings = pickle.dumps(job.settings)
        reference = task.remote(self.shared.folder, settings, self.engine, self.demand.cpus, again)
        self.tasks[reference] = job, follower

    def take_up(self, task: Any) -> None:
        """Handle a task that has ended."""
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
