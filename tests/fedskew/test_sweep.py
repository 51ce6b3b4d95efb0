"""The sweep: finished runs skipped, failures that cost the others nothing, workers that die, one launcher a folder."""

import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew
from in_process import cells_of, experiment, jobs_of, small
from rich.console import Console

import fedskew.experiments.experiments
import fedskew.sweep.worker
import server_app.lock
from data import DataError, SettingError, federate
from fedskew.experiments.plan import Cell, runs
from fedskew.scheduling import Allocation, Job, JobResult
from fedskew.sweep import finished, run_all
from fedskew.sweep.progress import Overview
from fedskew.sweep.queue import LocalQueue, conduct
from fedskew.sweep.worker import Worker
from server_app.lock import locked
from server_app.run_folder import RunFolder

INPROCESS = Allocation("inprocess", 2, 1)


def conducted(
    cells: list[Cell], at_once: int = 2
) -> tuple[dict[str, dict[str, Any]], dict[str, str], str]:
    """Conduct the runs of cells and return summaries, failures and what was printed."""
    console = Console(file=io.StringIO(), width=200, soft_wrap=True)
    done, failed = run_all(runs(cells), cells, console, "inprocess", at_once)
    return done, failed, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_failed_run_costs_the_others_nothing_and_finished_ones_are_skipped(
    tmp_path: Path,
) -> None:
    columns = {"slow": {}, "bad": {"learning-rate": 1e30}, "fast": {"learning-rate": 0.1}}
    cells = cells_of(tmp_path / "sweep", columns=columns)
    done, failed, output = conducted(cells)
    good = [cell for cell in cells if cell.column != "bad"]
    assert set(done) == {cell.run.run_id for cell in good}
    assert len(failed) == 2
    for name, reason in failed.items():
        assert "bad" in name and "not finite" in reason and "\n" not in reason
    assert "4 of 6 done, 0 running, 2 failed" in output
    for cell in good:
        alone = experiment(tmp_path / "alone", method=cell.row, **changes_of(cell))
        assert done[cell.run.run_id]["hash"] == alone.summary["hash"]
    again, failed_again, output = conducted(cells)
    assert again == done and list(failed_again) == list(failed)
    assert "4 of 6 runs finished earlier" in output
    assert not any(f"{cell.row}, {cell.column}" in output for cell in good), "conducted again"


def changes_of(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell that differ from the small ones."""
    return {"learning_rate": cell.run.training.learning_rate, "seed": cell.seed}


class Killing(Overview):
    """Kills (kill -9) the worker of a run that tells of a line."""

    def __init__(self, console: Console, jobs: list[Job], words: str, times: int) -> None:
        super().__init__(console, jobs, 1)
        self.words, self.times = words, times
        self.killed: list[int] = []

    def on_line(self, job: Job, line: str) -> None:
        super().on_line(job, line)
        if self.words in line and len(self.killed) < self.times:
            worker = int(RunFolder(job.settings.folder).rounds()[-1].workers[0]["process"])
            self.killed.append(worker)
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_worker_is_replaced_once(tmp_path: Path, times: int) -> None:
    methods = ["fedbn", "fedshift"]
    planned = [small(tmp_path / "sweep", method=method, rounds=4) for method in methods]
    jobs = [Job(config, config.general.method) for config in planned]
    overview = Killing(Console(file=io.StringIO()), jobs, "round   2/4", times)
    outcomes = conduct(jobs, replace(INPROCESS, jobs=1), overview)
    assert len(overview.killed) == times
    hashes = {
        name: experiment(tmp_path / "alone", method=name, rounds=4).summary["hash"]
        for name in methods
    }
    ends = {job.label: outcomes[job.settings.run_id] for job in jobs}
    for method in methods:
        if times == 2 and method == "fedbn" and ends[method].summary is None:
            assert "SIGKILL" in ends[method].reason
        else:
            summary = ends[method].summary
            assert summary is not None
            assert summary["hash"] == hashes[method]
    # the second kill hits the run that went on, unless it had already told of round 2
    again = conduct(
        jobs, replace(INPROCESS, jobs=1), Overview(Console(file=io.StringIO()), jobs, 1)
    )
    assert [again[config.run_id].summary["hash"] for config in planned] == list(hashes.values())  # type: ignore[index]


def test_a_fresh_run_whose_first_worker_dies_is_conducted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path)
    allocation = replace(INPROCESS, jobs=1)
    conduct([Job(config, "a run")], allocation, Overview(Console(file=io.StringIO()), [], 1))
    take, killed = Worker.take, []

    def kill_first(self: Worker, *words: Any, **more: Any) -> None:
        if not killed:
            self.process.kill()
            self.process.join()
            killed.append(self)
        take(self, *words, **more)

    heard = list[str]()

    class Hearing(Overview):
        def on_line(self, job: Job, line: str) -> None:
            heard.append(line)
            super().on_line(job, line)

    monkeypatch.setattr(Worker, "take", kill_first)
    console = Console(file=io.StringIO(), width=200)
    again = Job(replace(config, general=replace(config.general, overwrite=True)), "a run")
    (result,) = conduct([again], allocation, Hearing(console, [again], 1)).values()
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert result.summary is not None and killed
    assert (
        "another one goes on" in output
        and any("round   1/2" in line for line in heard)
        and "finished earlier" not in output
    )


def test_a_fresh_run_starts_at_nought_in_the_overview(tmp_path: Path) -> None:
    config = small(tmp_path)
    jobs = [
        Job(replace(config, general=replace(config.general, overwrite=fresh)), "a run")
        for fresh in (False, True)
    ]
    rounds = []

    class Watching(Overview):
        def on_line(self, job: Job, line: str) -> None:
            super().on_line(job, line)
            rounds.append(self.running[job.settings.run_id].round)

    for job in jobs:
        rounds.clear()
        conduct([job], replace(INPROCESS, jobs=1), Watching(Console(file=io.StringIO()), [job], 1))
        assert rounds == [0, 1, 2, 2], "run folder, two rounds, finished"


def test_a_fresh_run_keeps_its_name_when_its_model_s_file_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sweep_model.py"
    file.write_text(
        "from torch import nn\nfrom client_app.models import Classifier\n"
        "def net(shape, classes):\n    return Classifier(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    class Changing(Overview):
        def started(self, job: Job) -> None:
            super().started(job)
            file.write_text(file.read_text() + "# another\n")

    config = small(tmp_path / "results", model="sweep_model:net", overwrite=True)
    jobs = [Job(config, "a run")]
    outcomes = conduct(
        jobs, replace(INPROCESS, jobs=1), Changing(Console(file=io.StringIO()), jobs, 1)
    )
    assert replace(config).run_id != config.run_id, "the file counts"
    assert list(outcomes) == [config.run_id] and outcomes[config.run_id].summary is not None
    assert [path.name for path in (tmp_path / "results").iterdir()] == [config.run_id]


def test_a_fresh_run_whose_folder_is_busy_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app.lock, "LOCK_WAIT", 0.1)
    planned = [
        replace(config, general=replace(config.general, overwrite=True))
        for config in (small(tmp_path, seed=s) for s in (0, 1))
    ]
    with RunFolder(planned[0].folder).locked():
        done, failed = run_all(planned, [], Console(file=io.StringIO()), "inprocess", 1)
    assert list(done) == [planned[1].run_id]
    assert "is working on" in failed[f"fedavg, seed 0 ({planned[0].run_id})"]


def test_a_worker_that_dies_idle_costs_the_next_run_no_attempt(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, 2)

    class KillingIdle(Overview):
        def ended(self, job: Job, result: JobResult) -> None:
            super().ended(job, result)
            (worker,) = queue.crew
            worker.process.kill()
            worker.process.join()

    queue = LocalQueue(
        jobs, replace(INPROCESS, jobs=1), KillingIdle(Console(file=io.StringIO()), jobs, 1)
    )
    try:
        outcomes = queue.run()
    finally:
        queue.end()
    assert all(result.summary is not None for result in outcomes.values())
    assert list(queue.attempts.values()) == [1, 1]


@pytest.mark.slow
def test_worker_processes_below_worker_processes(tmp_path: Path) -> None:
    """As where there are more cores than runs."""
    job = Job(small(tmp_path / "sweep", method="fedbn"), "fedbn")
    overview = Overview(Console(file=io.StringIO()), [job], 1)
    (result,) = conduct([job], Allocation("workers", 1, 2), overview).values()
    assert result.summary is not None
    assert result.summary["hash"] == experiment(tmp_path / "alone", method="fedbn").summary["hash"]
    records = RunFolder(job.settings.folder).rounds()
    processes = {worker["process"] for record in records for worker in record.workers}
    assert (
        1 <= len(processes) <= 2 and os.getpid() not in processes
    )  # with little work one may be ahead of the other


@pytest.mark.slow
def test_workers_that_have_no_job_end_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, they would leave the semaphores of their engine to the resource tracker, which complains on stderr."""
    end, codes = Worker.end, []

    def noting(self: Worker) -> None:
        end(self)
        codes.append(self.process.exitcode)

    monkeypatch.setattr(Worker, "end", noting)
    monkeypatch.setattr(fedskew.sweep.worker, "FAREWELL", 30.0)
    jobs = jobs_of(tmp_path, 2)
    conduct(jobs, Allocation("workers", 2, 2), Overview(Console(file=io.StringIO()), jobs, 2))
    assert codes == [0, 0]


def test_a_worker_that_is_ended_leaves_no_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the run's folder is another's by now."""
    monkeypatch.setattr(server_app.lock, "LOCK_WAIT", 0.1)
    (job,) = jobs_of(tmp_path, 1)
    folder = RunFolder(job.settings.folder)
    partial = folder.path / ".checkpoint.safetensors.4711"
    folder.path.mkdir(parents=True)
    partial.touch()
    with folder.locked():
        partial.touch()
        ended(job)
        assert partial.exists()
    ended(job)
    assert not partial.exists()


def ended(job: Job) -> None:
    """End a worker that has been given a job."""
    worker = Worker(multiprocessing.get_context("forkserver"), Allocation("inprocess", 1, 0), None)
    worker.job = job  # not sent, so that it writes nothing
    worker.end()


def test_a_federation_config_is_for_ray(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--federation-config.*ray"):
        run_all(
            [small(tmp_path)], [], Console(file=io.StringIO()), federation_config="num-supernodes=2"
        )


def demo(results: Path, *words: str) -> list[str]:
    """Return the command of a sweep of two runs."""
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "demo-missing",
        "--seed",
        "0",
        "--results",
        str(results),
    ]
    return [*command, "--set", "rounds=8", "--set", "local-epochs=2", *words]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_is_ended_leaves_no_process_and_the_same_command_ends_the_same(
    tmp_path: Path, number: signal.Signals
) -> None:
    import psutil

    subprocess.run(demo(tmp_path / "whole"), check=True, capture_output=True)
    running = subprocess.Popen(
        demo(tmp_path / "ended"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while len(list((tmp_path / "ended").glob("*/checkpoint.safetensors"))) < 2:
        assert running.poll() is None
        time.sleep(0.01)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 3, "a fork server and two workers"
    running.send_signal(number)
    errors = running.communicate(timeout=30)[1]
    assert running.returncode == (130 if number is signal.SIGINT else -9)
    assert number is not signal.SIGINT or errors.count("\n") == 1
    assert not psutil.wait_procs(children, timeout=10)[1]
    finished = subprocess.run(demo(tmp_path / "ended"), check=True, capture_output=True, text=True)
    assert "resuming after round" in finished.stdout
    for folder in (tmp_path / "whole").iterdir():
        if folder.is_dir():
            whole, ended = (
                RunFolder(tmp_path / name / folder.name).summary() for name in ("whole", "ended")
            )
            assert whole is not None and ended is not None and whole["hash"] == ended["hash"]


@pytest.mark.slow
def test_a_run_that_another_process_holds_is_named_and_the_others_go_on(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single run beside a sweep, or a second sweep, in one folder of results."""
    cells = cells_of(tmp_path, methods=["fedavg", "fedshift"])
    with RunFolder(cells[0].run.folder).locked():
        done, failed, _ = conducted(cells, at_once=1)
    assert list(done) == [cells[1].run.run_id]
    assert list(failed.values()) == [f"process {os.getpid()} is working on {cells[0].run.folder}"]
    assert list(conducted(cells)[0]) == [cell.run.run_id for cell in cells]


def test_a_lock_needs_no_room_on_the_disk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file may grow
    try:
        with locked(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_runs_whose_data_are_missing_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    columns = {
        "there": {},
        "gone": {"dataset": "mnist", "model": "small-cnn", "data-root": str(tmp_path)},
    }
    cells = cells_of(tmp_path / "sweep", columns=columns, methods=["fedavg"])
    done, failed, _ = conducted(cells)
    assert len(done) == 1
    ((name, reason),) = failed.items()
    assert "gone" in name and "mnist is not there" in reason
    again, failed_again, _ = conducted(cells)
    assert (again, failed_again) == (done, failed), (
        "the same at every start, though nothing is left to conduct"
    )


def test_where_all_data_are_missing_every_set_is_named_once(tmp_path: Path) -> None:
    columns = {
        name: {"dataset": name, "model": "small-cnn", "data-root": str(tmp_path)}
        for name in ("mnist", "usps")
    }
    with pytest.raises(DataError, match=r"mnist is not there.*usps is not there") as raised:
        conducted(cells_of(tmp_path / "sweep", columns=columns, methods=["fedavg"], seeds=[0, 1]))
    assert str(raised.value).count("mnist is not there") == 1


def test_a_broken_data_set_costs_the_others_nothing_also_when_they_are_finished(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own.npz"
    broken = {
        "dataset": f"npz:{file}",
        "classes": "10",
        "input-shape": "1x8x8",
        "train-images": 0,
        "test-images": 0,
    }
    cells = cells_of(
        tmp_path / "sweep",
        columns={"there": {}, "broken": broken},
        methods=["fedavg"],
        seeds=[0, 1],
    )
    file.write_bytes(b"no zip at all")
    done, failed, _ = conducted(cells)
    assert len(done) == 2 and len(failed) == 2
    assert all("broken" in name and "own.npz" in reason for name, reason in failed.items())
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (100, 8, 8), dtype=np.uint8), np.arange(100) % 10
    np.savez(
        file, train_images=images, train_labels=labels, test_images=255 - images, test_labels=labels
    )
    assert len(conducted(cells)[0]) == 4
    file.write_bytes(b"broken again")
    federate.cache_clear()
    assert len(conducted(cells)[0]) == 4, "results need no data"


def test_a_partition_that_cannot_be_dealt_for_one_seed_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(data: Any, seed: int) -> Any:
        if seed == 1:
            raise SettingError("min-samples", 9, "cannot be met")
        return federate(data, seed)

    monkeypatch.setattr("fedskew.sweep.federate", refused)
    with pytest.raises(SettingError, match="cannot be met"):
        conducted(cells_of(tmp_path / "sweep", methods=["fedavg"], seeds=[0, 1]))
    assert not (tmp_path / "sweep").exists()


def test_wrong_settings_are_told_before_anything_starts(tmp_path: Path) -> None:
    cells = cells_of(
        tmp_path / "sweep", columns={"few": {}, "many": {"clients": 2000}}, methods=["fedavg"]
    )
    with pytest.raises(SettingError, match="clients"):
        conducted(cells)
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_of_finished_runs_needs_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cells_of(tmp_path / "sweep", methods=["fedavg"])
    conducted(cells)
    monkeypatch.setattr("fedskew.sweep.checked", lambda jobs: pytest.fail("looked at the data"))
    done, failed, _ = conducted(cells)
    assert len(done) == 1 and not failed
    fresh = [replace(cell.run, general=replace(cell.run.general, overwrite=True)) for cell in cells]
    assert finished(fresh) == {}


def test_the_last_lines_and_the_exit_status_name_failed_runs(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(planned: Any, *rest: Any) -> Any:
        return {}, {config.run_id: "no luck" for config in planned}

    monkeypatch.setattr("fedskew.cli.run_execution.run_all", failing)
    status, _, errors = fedskew("run", "demo-missing", "--seed", 0, "--results", tmp_path)
    lines = errors.splitlines()
    assert status == 1
    assert lines[0] == "fedskew: 2 of 2 runs failed"
    assert len(lines) == 3 and all(line.endswith(": no luck") for line in lines[1:])
