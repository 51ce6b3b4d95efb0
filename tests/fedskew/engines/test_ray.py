"""Runs on Ray: the results of one process, failures with their reason, and nothing left after a kill."""

import io
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from in_process import contents_of, small
from rich.console import Console

from fedskew.engines import Resources, execute
from fedskew.sweep.pool import Job, conduct
from server_app.run_folder import RunFolder

pytestmark = pytest.mark.slow

RUNS: dict[str, dict[str, Any]] = {
    "creff+fedbn": {"method": "creff+fedbn", "rounds": 3, "participation": 0.5},
    "diverges": {"learning_rate": 1e30},
    "scaffold": {"method": "scaffold"},
}
Ends = dict[str, dict[str, Any]]


def on_ray(results: Path, runs: dict[str, dict[str, Any]]) -> tuple[Ends, dict[str, str]]:
    """Conduct runs one after the other on Ray; return the files of those that finish, and why others did not."""
    planned = {name: small(results, **changes) for name, changes in runs.items()}
    jobs = [Job(run, name) for name, run in planned.items()]
    resources = Resources("ray", 1, 2)
    outcomes = conduct(jobs, resources, Console(file=io.StringIO()))
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
    execute(run, Resources("inprocess"), lambda line: None)
    return contents_of(RunFolder(run.folder))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return on_ray(tmp_path_factory.mktemp("ray"), RUNS)


@pytest.mark.parametrize("name", ["creff+fedbn", "scaffold"])
def test_a_run_on_ray_leaves_the_files_of_one_process(swept, tmp_path, name):
    files, _ = swept
    expected = alone(tmp_path, RUNS[name])
    assert files[name] == expected


def test_a_run_that_fails_on_ray_says_why_and_the_next_one_does_not_notice(swept):
    files, reasons = swept
    assert reasons.keys() == {"diverges"} and "scaffold" in files
    assert reasons["diverges"].startswith("diverged in round 1: ")


MODEL = """
import os, signal
from pathlib import Path
import torch
from torch import nn
from client_app.models import Classifier

class Model(nn.Module):
    def forward(self, x):
        if MODE == "memory" and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if self.training and Path(MARK).exists():
            Path(MARK).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return x.flatten(1)

def build(shape, classes):
    return Classifier(Model(), nn.Linear(64, classes))
"""
"""A model that finds no memory, or that kills its process (kill -9) once."""


def own_model(folder: Path, name: str, mode: str) -> str:
    """Write a model of the user's own and return its setting."""
    text = MODEL.replace("MODE", repr(mode)).replace("MARK", repr(str(folder / "mark")))
    (folder / f"{name}.py").write_text(text)
    return f"{name}:build"


def test_a_client_that_a_gpu_has_no_memory_for_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = own_model(tmp_path, "large_model", "memory")
    _, reasons = on_ray(tmp_path / "results", {"large": {"model": model}})
    assert re.fullmatch(
        r"client \d needs more memory than its GPU has: give it a larger share \(--client-gpus, now 0\), "
        "or set a smaller batch-size",
        reasons["large"],
    )


def test_a_worker_that_is_killed_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {"model": own_model(tmp_path, "deadly_model", "kill")}
    (tmp_path / "mark").touch()
    files, _ = on_ray(tmp_path / "results", {"killed": changes})
    assert not (tmp_path / "mark").exists()
    assert files["killed"] == alone(tmp_path / "alone", changes)


def test_a_killed_command_is_heard_on_this_machine_alone_and_leaves_no_process(tmp_path):
    """After kill -9 the same command goes on."""
    changes: dict[str, Any] = {"method": "fedbn", "rounds": 15, "local_epochs": 10}
    run = small(tmp_path / "results", **changes)
    settings = [f"--set={key}={value}" for key, value in run.flat().items()]
    words = [sys.executable, "-m", "fedskew", "run", "--engine", "ray", "--workers", "2", *settings]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (run.folder / "checkpoint.safetensors").exists():
        assert command.poll() is None
        time.sleep(0.02)
    processes = psutil.Process(command.pid).children(recursive=True)
    assert {"raylet", "gcs_server"} <= {process.name() for process in processes}
    sockets = [one for process in processes for one in process.net_connections()]
    listening = {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    command.kill()
    command.wait()
    left = {process.name() for process in psutil.wait_procs(processes, timeout=5)[1]}
    assert left <= {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}, "these two wait for a minute"
    assert not (run.folder / "summary.json").exists()
    files, _ = on_ray(tmp_path / "results", {"fedbn": changes})
    assert files["fedbn"] == alone(tmp_path / "alone", changes)
