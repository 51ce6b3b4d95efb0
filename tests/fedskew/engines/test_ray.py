"""Runs on Ray: the results of one process, failures with their reason, nothing left after a kill, and `flwr run .`."""

import io
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from flower_command import flwr_run
from in_process import KEEP_BEST, contents_of, small
from rich.console import Console

from fedskew.engines import APP, execute
from fedskew.engines.processes import marked
from fedskew.scheduling import Allocation, Job
from fedskew.sweep.progress import Overview
from fedskew.sweep.queue import conduct
from server_app.run_folder import RunFolder

pytestmark = pytest.mark.slow

ENDS_EARLY = {"method": "fedbn", "learning_rate": 0.3, "patience": 1}
RUNS: dict[str, dict[str, Any]] = {
    "creff+fedbn": {"method": "creff+fedbn", "rounds": 3, "participation": 0.5},
    "ends early": {**KEEP_BEST, **ENDS_EARLY},
    "diverges": {"learning_rate": 1e30},
    "scaffold": {"method": "scaffold"},
}
"""The third one fails, so that the fourth begins on another Ray."""
Ends = dict[str, dict[str, Any]]


def on_ray(results: Path, runs: dict[str, dict[str, Any]]) -> tuple[Ends, dict[str, str]]:
    """Conduct runs one after the other on Ray; return the files of those that finish, and why others did not."""
    planned = {name: small(results, **changes) for name, changes in runs.items()}
    jobs = [Job(run, name, work=-place) for place, (name, run) in enumerate(planned.items())]
    outcomes = conduct(
        jobs, Allocation("ray", 1, 2), Overview(Console(file=io.StringIO()), jobs, 1)
    )
    files, reasons = {}, {}
    for name, run in planned.items():
        outcome = outcomes[run.run_id]
        if outcome.summary is None:
            reasons[name] = outcome.reason
        else:
            files[name] = contents_of(RunFolder(run.folder))
    return files, reasons


def alone(results: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the files of a run in this process."""
    run = small(results, **changes)
    execute(run, "inprocess", lambda line: None)
    return contents_of(RunFolder(run.folder))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ends, dict[str, str]]:
    return on_ray(tmp_path_factory.mktemp("ray"), RUNS)


@pytest.mark.parametrize("name", ["creff+fedbn", "ends early", "scaffold"])
def test_a_run_on_ray_leaves_the_files_of_one_process(
    swept: tuple[Ends, dict[str, str]], tmp_path: Path, name: str
) -> None:
    files, _ = swept
    expected = alone(tmp_path, RUNS[name])
    assert files[name] == expected
    assert ("ended" in expected["summary.json"]) == (name == "ends early")


def test_a_run_that_fails_on_ray_says_why_and_the_next_one_does_not_notice(
    swept: tuple[Ends, dict[str, str]],
) -> None:
    files, reasons = swept
    assert reasons.keys() == {"diverges"} and "scaffold" in files
    assert reasons["diverges"].startswith("diverged in round 1: ")


def test_a_killed_command_is_heard_on_this_machine_alone_and_the_same_one_ends_the_same(
    tmp_path: Path,
) -> None:
    """kill -9 of the command itself leaves Ray's processes at work; the next command ends them and goes on."""
    changes: dict[str, Any] = {"method": "fedbn", "rounds": 15, "local_epochs": 10}
    run = small(tmp_path / "results", **changes)
    settings = [f"--set={key}={value}" for key, value in run.flat().items()]
    words = [sys.executable, "-m", "fedskew", "run", "--engine", "ray", "--workers", "2", *settings]
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (run.folder / "checkpoint.safetensors").exists():
        assert launcher.poll() is None
        time.sleep(0.02)
    sockets = [one for process in marked(run.folder) for one in process.net_connections()]
    launcher.kill()
    launcher.wait()
    listening = {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert marked(run.folder), "the launcher was to be killed while its run was going on"
    assert not (run.folder / "summary.json").exists()
    files, _ = on_ray(tmp_path / "results", {"fedbn": changes})
    assert files["fedbn"] == alone(tmp_path / "alone", changes)
    assert not marked(run.folder)


def test_plain_flwr_run_with_its_defaults_leaves_a_run_folder(tmp_path: Path) -> None:
    """`flwr run . --stream` as a newcomer types it, but for a home and a port of its own."""
    output = flwr_run(tmp_path, APP, "--run-config", "rounds=1")
    match = re.search(r"finished: (\S+)", output)
    assert match, output
    assert (Path(match[1]) / "summary.json").exists()
    assert Path(match[1]).parent == tmp_path / "fedskew-results"
