"""Real `flwr run`s on Ray: the same results as in one process, failures that are seen, GPUs shared as asked."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flower_command import flwr_run
from rich.console import Console

from fedskew.engines import APP, execute
from fedskew.engines.flower import LaunchFailed
from fedskew.engines.launcher import launch
from fedskew.engines.processes import SWEEP, marked
from fedskew.scheduling import Allocation, Job
from fedskew.sweep.progress import Overview
from fedskew.sweep.queue import conduct
from server_app.run_settings import RunSettings
from server_app.settings import parse

pytestmark = pytest.mark.slow

METHOD = {"method": "creff+fedbn", "model": "mlp-bn"}


def settings(folder: Path, **changes: Any) -> RunSettings:
    return parse({"rounds": 4, "participation": 0.5, "results": str(folder), **METHOD, **changes})


def silent(line: str) -> None:
    """Tell nobody."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hashes of the run in one process."""
    return execute(settings(tmp_path_factory.mktemp("inprocess")), "inprocess", silent)["hash"]


@pytest.mark.parametrize("nodes", [2, 10])
def test_ray_gives_the_hash_of_one_process(
    tmp_path: Path, expected: dict[str, str], nodes: int
) -> None:
    summary = execute(
        settings(tmp_path), "ray", silent, federation_config=f"num-supernodes={nodes}"
    )
    assert summary["hash"] == expected


def test_a_killed_run_goes_on_to_the_same_hash(tmp_path: Path, expected: dict[str, str]) -> None:
    config = settings(tmp_path)
    arguments = [text for key, value in METHOD.items() for text in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--engine",
        "ray",
        "--results",
        str(tmp_path),
        *arguments,
    ]
    command += ["--set", "rounds=4", "--set", "participation=0.5"]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    records = config.folder / "rounds.jsonl"
    deadline = time.monotonic() + 900
    while not (records.exists() and records.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    simulations = [
        process
        for process in marked(config.folder)
        if "flwr-simulation" in " ".join(process.cmdline()[:2])
    ]
    assert simulations, "the run's ServerApp was to be killed after its first round"
    for process in simulations:
        process.send_signal(signal.SIGKILL)
    errors = launcher.communicate(timeout=900)[1]
    assert launcher.returncode == 1
    assert "flwr-simulation" in errors
    assert not marked(config.folder)
    assert execute(config, "ray", silent)["hash"] == expected


def test_a_killed_launcher_is_taken_over(tmp_path: Path, expected: dict[str, str]) -> None:
    """kill -9 of the command itself leaves Ray's processes at work; the same command ends them and goes on."""
    config = settings(tmp_path)
    words = [text for key, value in config.flat().items() for text in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fedskew", "run", "--engine", "ray", *words]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 900
    while not (config.folder / "settings.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    launcher.kill()
    launcher.wait()
    assert marked(config.folder), "the launcher was to be killed while its run was going on"
    assert execute(config, "ray", silent)["hash"] == expected
    assert not marked(config.folder)


def test_a_wrong_setting_fails_flwr_run_with_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=re.escape("alpha = 0.0: must be greater than 0")):
        launch(
            APP, {"alpha": 0.0}, tmp_path, nodes=2, log=tmp_path / "log", result=tmp_path / "none"
        )


def test_a_failing_round_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    config = settings(tmp_path, **{"learning-rate": 1e30, "method": "fedavg"})
    with pytest.raises(LaunchFailed, match=r"^diverged in round \d: "):
        execute(config, "ray", silent)


def test_logical_gpus_hold_two_clients_each_and_change_nothing(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    federation = (
        "num-supernodes=10 init-args-num-gpus=4 client-resources-num-gpus=0.5 init-args-num-cpus=8"
    )
    config = settings(tmp_path)
    assert execute(config, "ray", silent, federation_config=federation)["hash"] == expected
    records = [
        json.loads(line) for line in (config.folder / "rounds.jsonl").read_text().splitlines()
    ]
    workers = {
        worker["process"]: worker["visible-gpus"]
        for record in records
        for worker in record["workers"]
    }
    held = Counter(workers.values())
    assert set(held) <= {"0", "1", "2", "3"}
    assert max(held.values()) <= 2
    assert len(workers) > 2, "clients ran side by side"


def test_plain_flwr_run_with_its_defaults_leaves_a_run_folder(tmp_path: Path) -> None:
    """`flwr run . --stream` as a newcomer types it, but for a home and a port of its own."""
    output = flwr_run(tmp_path, APP, "--run-config", "rounds=2")
    match = re.search(r"finished: (\S+)", output)
    assert match, output
    assert (Path(match[1]) / "summary.json").exists()
    assert Path(match[1]).parent == tmp_path / "fedskew-results"


def test_flwr_run_refuses_a_path_into_the_folder_of_its_superlink(tmp_path: Path) -> None:
    output = flwr_run(tmp_path, APP, "--run-config", 'rounds=1 results="mine"')
    text = re.sub(r"\s+", " ", output)
    assert "results = 'mine': must be an absolute path" in text, output[-3000:]
    assert not (tmp_path / "mine").exists()


def test_run_simulation_with_default_settings(tmp_path: Path) -> None:
    """flwr's own, deprecated, entry point passes no run config: the defaults hold."""
    program = (
        "from flwr.simulation import run_simulation\n"
        "from client_app.app import app as client\nfrom server_app.app import app as server\n"
        "run_simulation(server, client, num_supernodes=2)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, timeout=900
    )
    (summary,) = (tmp_path / "results").glob("*/summary.json")
    assert json.loads(summary.read_text())["rounds"] == 20


def in_a_sweep(planned: list[RunSettings]) -> dict[str, str]:
    """Conduct the runs on one Ray, in this order, and return each one's hashes as text, or why it failed, by its id."""
    jobs = [Job(run, run.run_id, work=-place) for place, run in enumerate(planned)]
    overview = Overview(Console(file=io.StringIO()), jobs, 1)
    outcomes = conduct(jobs, Allocation("ray", 1, 2), overview)
    ends = {}
    for name, result in outcomes.items():
        ends[name] = result.reason if result.summary is None else str(result.summary["hash"])
    return ends


def alone(run: RunSettings, results: Path) -> str:
    """Return the hashes of the run in one process, as text."""
    general = replace(run.general, results=str(results))
    return str(execute(replace(run, general=general), "inprocess", silent)["hash"])


def test_a_sweep_on_one_ray_gives_the_hashes_of_runs_alone(tmp_path: Path) -> None:
    """The third run fails: the fourth gets another Ray, and none of them notices."""
    results = tmp_path / "sweep"
    planned = [
        settings(results, method="fedavg"),
        settings(results),
        settings(results, method="fedavg", **{"learning-rate": 1e30}),
        settings(results, method="scaffold"),
    ]
    ends = in_a_sweep(planned)
    assert list(ends) == [run.run_id for run in planned]
    assert ends[planned[2].run_id].startswith("diverged in round ")
    for place in (0, 1, 3):
        run = planned[place]
        assert ends[run.run_id] == alone(run, tmp_path / "alone")
    logs = [(run.folder / "flwr.log").read_text() for run in planned]
    starts = [log.count("Successfully started run") for log in logs]
    assert starts == [1, 0, 0, 1]
    assert "Traceback" in logs[2] and "Traceback" not in logs[1]
    for place in (0, 1, 3):
        assert "round   4/4" in logs[place] and logs[place].count("finished: ") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_ended_in_its_second_run_goes_on_to_the_same_hashes(
    tmp_path: Path, number: signal.Signals
) -> None:
    results = tmp_path / "sweep"
    methods = ("fedavg", "fedbn")
    changes = {"rounds": 15, "participation": 1.0, "local-epochs": 5}
    planned = [settings(results, method=method, **changes) for method in methods]
    words = [f"--set={key}={value}" for key, value in {"model": "mlp-bn", **changes}.items()]
    command = [sys.executable, "-m", "fedskew", "run", "--engine", "ray", "--workers", "2"]
    command += ["--method", ",".join(methods), "--results", str(results), *words]
    launcher = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 900
    while len(list(results.glob("*/checkpoint.safetensors"))) < 2 and time.monotonic() < deadline:
        assert launcher.poll() is None
        time.sleep(0.01)
    launcher.send_signal(number)
    launcher.communicate(timeout=30)
    assert launcher.returncode == (130 if number is signal.SIGINT else -9)
    mark = results / f"{SWEEP}{launcher.pid}"
    assert bool(marked(mark)) == (number is signal.SIGKILL)
    done = [(run.folder / "summary.json").exists() for run in planned]
    assert sorted(done) == [False, True], "the second run was to be ended on its way"
    ends = in_a_sweep(planned)
    assert not marked(mark)
    for run in planned:
        assert ends[run.run_id] == alone(run, tmp_path / "alone")
