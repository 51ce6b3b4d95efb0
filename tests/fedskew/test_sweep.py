"""A sweep: failures and killed workers do not affect other runs, what is printed, and how the machine is shared."""

import io
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import cells_of, experiment, small
from rich.console import Console

import server_app.run_folder
from data import SettingError
from fedskew.engines import Resources, gpus_for
from fedskew.experiments.plan import Cell, runs
from fedskew.sweep import run_all
from fedskew.sweep.pool import Job, Running, RunPool
from server_app.run_folder import RunFolder


def conducted(
    cells: list[Cell], at_once: int = 2
) -> tuple[dict[str, dict[str, Any]], dict[str, str], str]:
    """Conduct the runs of cells and return summaries, failures and what was printed."""
    console = Console(file=io.StringIO(), width=200, soft_wrap=True)
    done, failed = run_all(runs(cells), cells, console, Resources("inprocess", at_once))
    return done, failed, console.file.getvalue()


def test_a_failed_run_costs_the_others_nothing_and_finished_ones_are_skipped(tmp_path):
    columns = {"slow": {}, "bad": {"learning-rate": 1e30}, "fast": {"learning-rate": 0.1}}
    cells = cells_of(tmp_path / "sweep", columns=columns)
    done, failed, output = conducted(cells)
    good = [cell for cell in cells if cell.column != "bad"]
    assert set(done) == {cell.run.run_id for cell in good}
    assert len(failed) == 2
    for name, reason in failed.items():
        assert "bad" in name and "not finite" in reason and "\n" not in reason
    assert "4 of 6 done, 0 running, 2 failed" in output and "round   1/2" not in output
    for cell in good:
        rate = cell.run.training.learning_rate
        changes = {"method": cell.row, "learning_rate": rate, "seed": cell.seed}
        alone = experiment(tmp_path / "alone", **changes)
        assert done[cell.run.run_id]["hash"] == alone.summary["hash"]
    again, failed_again, output = conducted(cells)
    assert again == done and list(failed_again) == list(failed)
    assert "4 of 6 runs finished earlier" in output and "2 of 6 runs diverged earlier" in output
    assert not any(f"{cell.row}, {cell.column}" in output for cell in good), "conducted again"


def test_a_fresh_run_whose_folder_is_busy_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app.run_folder, "LOCK_WAIT", 0.1)
    configs = [small(tmp_path, seed=seed) for seed in (0, 1)]
    planned = [replace(one, general=replace(one.general, overwrite=True)) for one in configs]
    with RunFolder(planned[0].folder).locked():
        done, failed = run_all(planned, [], Console(file=io.StringIO()), Resources("inprocess", 1))
    assert list(done) == [planned[1].run_id]
    assert "is working on" in failed[f"fedavg, seed 0 ({planned[0].run_id})"]


class Screen(io.StringIO):
    """What a console prints to; it gives a lock up as soon as somebody is seen to wait for it."""

    def __init__(self, lock: ExitStack) -> None:
        super().__init__()
        self.lock = lock

    def write(self, text: str) -> int:
        if "waits: process" in text:
            self.lock.close()
        return super().write(text)


def test_a_run_that_another_command_works_on_waits_for_its_turn(tmp_path):
    """So machines share a results folder: each takes the runs that nobody works on."""
    planned = [small(tmp_path, seed=seed) for seed in (0, 1)]
    with ExitStack() as lock:
        lock.enter_context(RunFolder(planned[0].folder).locked())
        screen = Screen(lock)
        console = Console(file=screen, width=200, soft_wrap=True)
        done, failed = run_all(planned, [], console, Resources("inprocess", 1))
    assert set(done) == {run.run_id for run in planned} and not failed
    lines = screen.getvalue().splitlines()
    waits, other, this = [line for line in lines if "seed" in line]
    assert f"is working on {planned[0].folder}" in waits
    assert other.startswith("fedavg, seed 1") and this.startswith("fedavg, seed 0")


DEADLY = """
import os, signal
from pathlib import Path
from types import SimpleNamespace
from torch import nn
from client_app.models import Classifier

class Deadly(nn.Module):
    calls = 0

    def forward(self, x):
        Deadly.calls += 1
        marks = sorted(Path(MARKS).iterdir())
        if Deadly.calls == 40 and marks:
            marks[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return x.flatten(1)

def build(shape, classes):
    return Classifier(nn.Sequential(Deadly(), nn.BatchNorm1d(64)), nn.Linear(64, classes))
"""
"""A model that kills its process (kill -9) in the third round, as often as there are marks."""


@pytest.mark.parametrize(("times", "methods"), [(1, ["fedbn", "fedshift"]), (2, ["fedbn"])])
def test_a_run_whose_process_is_killed_goes_on_in_another_one_once(
    tmp_path, times, methods, monkeypatch
):
    marks = tmp_path / "marks"
    marks.mkdir()
    for number in range(times):
        (marks / str(number)).touch()
    (tmp_path / f"deadly{times}.py").write_text(DEADLY.replace("MARKS", repr(str(marks))))
    monkeypatch.syspath_prepend(str(tmp_path))
    shape: dict[str, Any] = {"model": f"deadly{times}:build", "rounds": 8}
    cells = cells_of(tmp_path / "sweep", methods=methods, settings=shape)
    done, failed, _ = conducted(cells, at_once=1)
    assert not list(marks.iterdir())
    assert [len(done), len(failed)] == ([2, 0] if times == 1 else [0, 1])
    assert all("SIGKILL" in reason for reason in failed.values())
    done, _, _ = conducted(cells, at_once=1)
    for cell in cells:
        alone = experiment(tmp_path / "alone", method=cell.row, **shape)
        assert done[cell.run.run_id]["hash"] == alone.summary["hash"]


def test_data_that_are_missing_or_broken_cost_the_other_runs_nothing(tmp_path):
    broken = tmp_path / "own.npz"
    broken.write_bytes(b"no zip at all")
    shape = {"classes": "10", "input-shape": "1x8x8", "train-images": 0, "test-images": 0}
    columns = {
        "there": {},
        "gone": {"dataset": "mnist", "model": "small-cnn", "data-root": str(tmp_path)},
        "broken": {"dataset": f"npz:{broken}", **shape},
    }
    cells = cells_of(tmp_path / "sweep", columns=columns, methods=["fedavg"])
    done, failed, _ = conducted(cells)
    assert list(done) == [cells[0].run.run_id]
    (_, gone), (_, unread) = failed.items()
    assert "mnist is not there" in gone and "own.npz" in unread
    again, failed_again, _ = conducted(cells)
    assert (again, failed_again) == (done, failed), "the same at every start"


def test_what_is_said_of_the_data_is_said_once_for_all_runs(tmp_path):
    """Runs on two classes each say which is positive: 16 such lines would hide the 16 results."""
    settings = {"dataset": "digits-3-8", "test-images": 60}
    cells = cells_of(tmp_path, methods=["fedavg"], settings=settings, seeds=[0, 1])
    done, _, output = conducted(cells)
    assert len(done) == 2 and output.count("positive class: ") == 1


@pytest.mark.parametrize(
    ("cores", "number", "asked", "expected"),
    [
        (2, 4, {}, ("inprocess", 2, 1)),
        (16, 4, {}, ("workers", 4, 4)),
        (8, 40, {}, ("inprocess", 8, 1)),
        (8, 40, {"engine": "workers", "workers": 4}, ("workers", 2, 4)),
        (8, 40, {"engine": "ray"}, ("ray", 1, 0)),
    ],
)
def test_cores_are_shared_without_idle_ones(tmp_path, monkeypatch, cores, number, asked, expected):
    monkeypatch.setattr("client_app.state.cores", lambda: cores)
    shared = Resources(**asked).shared([small(tmp_path)] * number)
    assert (shared.engine, shared.jobs, shared.workers) == expected


@pytest.mark.parametrize(
    ("resources", "option"),
    [
        (Resources("ray", jobs=2), "--jobs"),
        (Resources("workers", client_gpus=0.5), "--client-gpus"),
        (Resources(ray_address="host:6379"), "--ray-address"),
        (Resources("gpu"), "--engine"),
    ],
)
def test_options_of_other_engines_are_refused(resources, option):
    with pytest.raises(SettingError) as caught:
        resources.check()
    assert caught.value.key == option
    Resources("ray", jobs=1, client_gpus=0.5, ray_address="host:6379").check()


@pytest.fixture
def pool(tmp_path):
    """A pool of eight runs, none of which has begun."""
    jobs = [Job(small(tmp_path, seed=seed), f"seed {seed}") for seed in range(8)]
    pool = RunPool(jobs, Resources("inprocess", 8), Console(file=io.StringIO()), 0)
    pool.gpus = []
    return pool


def begin(pool: RunPool, gpu: str = "", is_measured: bool = True) -> None:
    """Let a pool believe that a job runs, on a GPU."""
    unused: Any = None
    pool.running.append(Running(pool.waiting[0], gpu, unused, unused, is_measured))


def test_another_run_begins_where_what_is_free_holds_the_largest_so_far(pool, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=5 * 2**30))
    pool.memory = 6 * 2**30
    assert pool.has_memory(), "a run alone begins in any case"
    begin(pool)
    assert not pool.has_memory()
    pool.memory = 4 * 2**30
    assert pool.has_memory()
    begin(pool, is_measured=False)
    assert not pool.has_memory(), "what began last has not taken its memory yet"


def test_a_gpu_takes_one_run_and_then_as_many_as_its_memory_holds(pool):
    assert pool.free_gpu() == "", "on a machine without GPUs any number runs"
    pool.gpus = ["0", "3"]
    for share, expected in ((0.0, ["0", "3"]), (0.4, ["0", "0", "3", "3"])):
        pool.gpu_share = share  # 0 before a round has shown what a run needs
        while gpu := pool.free_gpu():
            begin(pool, gpu)
        assert sorted(one.gpu for one in pool.running) == expected


@pytest.mark.parametrize(
    ("listed", "count", "expected"),
    [
        (None, 2, ["0", "1"]),
        ("GPU-b,0", 2, ["GPU-b", "0"]),
        ("", 0, []),
        ("0,-1,1", 1, ["0"]),
    ],
)
def test_gpus_are_those_of_the_environment(tmp_path, monkeypatch, listed, count, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpus_for([small(tmp_path, device="auto")]) == expected
    assert gpus_for([small(tmp_path)]) == [], "device = cpu"
