"""A sweep on a Ray cluster: what each run asks of a machine, and two raylets of which one is killed."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import FedSkew
from in_process import SMALL, experiment, small

from data import SettingError
from fedskew.engines.processes import free_port
from fedskew.scheduling import CUDA_CONTEXT, Job
from fedskew.sweep.cluster import Demand, demand_of
from fedskew.sweep.cluster_node import Machine, SharedFolders, problem
from server_app.lock import FolderBusy, locked
from server_app.run_folder import RunFolder

GIB = 2**30


def node(alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


def test_machines_hold_as_many_runs_as_every_resource_allows() -> None:
    nodes = [
        node(CPU=4, memory=8 * GIB),
        node(CPU=16, GPU=2, memory=3 * GIB),
        node(False, CPU=64, memory=99 * GIB),
    ]
    assert Demand(1, 0, 2 * GIB).fits(nodes) == 4 + 1
    assert Demand(3, 0, GIB).fits(nodes) == 1 + 3
    assert Demand(1, 1 / 3, 0).fits(nodes) == 6
    assert Demand(1, 1, 4 * GIB).fits(nodes) == 0


def test_a_run_asks_for_no_more_than_the_largest_machine_has(tmp_path: Path) -> None:
    config = small(tmp_path)
    jobs = [Job(config, "small", GIB), Job(config, "large", 20 * GIB)]
    nodes = [node(CPU=2, memory=8 * GIB), node(CPU=4, memory=4 * GIB)]
    assert demand_of(jobs, 8, nodes, []) == Demand(4, 0, 8 * GIB)
    anywhere = [Job(replace(config, general=replace(config.general, device="auto")), "a run", GIB)]
    machines = [Machine("a", gpu_memory=(40 * GIB, 3 * (GIB + CUDA_CONTEXT)))]
    assert demand_of(anywhere, 1, [node(CPU=4, GPU=2, memory=8 * GIB)], machines) == Demand(
        1, 1 / 3, GIB
    )
    demanding = [Job(replace(config, general=replace(config.general, device="cuda")), "a run", GIB)]
    with pytest.raises(SettingError, match="device = 'cuda': no machine of the cluster has a GPU"):
        demand_of(demanding, 1, nodes, [])


def test_a_machine_says_why_it_can_take_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedskew.sweep.cluster_node.code_version", lambda *packages: "this")
    monkeypatch.setattr("server_app.lock.LOCK_WAIT", 0.1)
    monkeypatch.chdir(tmp_path)
    shared = SharedFolders(str(tmp_path), (str(tmp_path / "check"),), "this")
    assert "has no folder" in problem(replace(shared, folder=str(tmp_path / "elsewhere")))
    assert "another version of FedSkew's code" in problem(replace(shared, code="that"))
    assert "does not see what is written" in problem(shared)
    with locked(tmp_path / "check"):
        assert problem(shared) == ""
    assert "takes a lock" in problem(shared) and "flock" in problem(shared)


def test_a_lock_s_holder_on_another_machine_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.lock.LOCK_WAIT", 0.1)
    with locked(tmp_path):
        monkeypatch.setattr("server_app.lock.gethostname", lambda: "here")
        with pytest.raises(
            FolderBusy, match=f"process {os.getpid()} of machine {socket.gethostname()} is working"
        ):
            locked(tmp_path).__enter__()


def test_a_wrong_address_is_one_sentence(tmp_path: Path, fedskew: FedSkew) -> None:
    words = (
        "run",
        "--method",
        "fedavg,fedprox",
        "--set",
        "train-images=200",
        "--results",
        tmp_path / "results",
    )
    address = f"127.0.0.1:{free_port()}"
    for wrong, rule in ((address, "nobody answers there"), ("auto", "must be HOST:PORT")):
        status, _, errors = fedskew(*words, "--cluster", wrong)
        assert (
            status == 2
            and f"--cluster = '{wrong}': {rule}" in errors
            and len(errors.strip().splitlines()) == 1
        )
    assert fedskew("run", "--cluster", address)[::2] == (
        2,
        f"fedskew: --cluster = '{address}': is for several runs\n",
    )


@contextmanager
def raylet(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a raylet, with all that it starts; whatever is left of it at the end is killed by process id."""
    command = [
        Path(sys.executable).parent / "ray",
        "start",
        "--block",
        "--node-ip-address",
        "127.0.0.1",
    ]
    process = subprocess.Popen(
        [*command, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all below it, by their process ids."""
    with_children = [psutil.Process(process.pid)] if process.poll() is None else []
    for member in [
        child for parent in with_children for child in parent.children(recursive=True)
    ] + with_children:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def until(holds: Callable[[], object], seconds: float = 900) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_runs_go_on_elsewhere_when_a_machine_is_killed(tmp_path: Path) -> None:
    methods, rounds = ["fedavg", "fedbn", "fedprox", "iwds"], 40
    changes = {"rounds": rounds, "local-epochs": 5}
    port, results = free_port(), tmp_path / "results"
    stated = {key: value for key, value in (SMALL | changes).items() if key != "method"}
    words = [f"--set={key}={value}" for key, value in stated.items()]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))
        environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": folder,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TERM": "dumb",
        }
        common = ("--num-cpus", "1", "--object-store-memory", "100000000", "--memory", str(8 * GIB))
        head = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", folder)
        stack.enter_context(raylet(environment, *head, *common))
        until(lambda: answers(port))
        second = stack.enter_context(raylet(environment, "--address", f"127.0.0.1:{port}", *common))
        until(
            lambda: any(
                "raylet" in child.name()
                for child in psutil.Process(second.pid).children(recursive=True)
            )
        )
        time.sleep(5)  # until the head knows it
        command = [
            sys.executable,
            "-m",
            "fedskew",
            "run",
            "--cluster",
            f"127.0.0.1:{port}",
            "--method",
        ]
        sweep = subprocess.Popen(
            [*command, ",".join(methods), "--results", str(results), *words],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.callback(sweep.kill)
        below = {child.pid for child in psutil.Process(second.pid).children(recursive=True)}

        def conducting() -> list[dict[str, Any]]:
            """Return who works on a run, of those that the second raylet has started."""
            below.update(child.pid for child in psutil.Process(second.pid).children(recursive=True))
            records = [RunFolder(path).rounds() for path in results.glob("digits-*")]
            workers = [
                recorded[-1].workers[0] for recorded in records if 0 < len(recorded) < rounds
            ]
            return [worker for worker in workers if int(worker["process"]) in below]

        until(conducting)
        kill(second)
        output = sweep.communicate(timeout=900)[0]
    assert sweep.returncode == 0, output
    assert "another one goes on from the last finished round" in output
    for method in methods:
        alone = experiment(tmp_path / "alone", method=method, rounds=rounds, local_epochs=5)
        there = RunFolder(results / alone.folder.path.name).summary()
        assert there is not None and there["hash"] == alone.summary["hash"]


def answers(port: int) -> bool:
    """Return whether somebody listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
