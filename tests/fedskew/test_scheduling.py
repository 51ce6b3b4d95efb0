"""How a machine is shared among a sweep's runs: cores, GPUs, memory, and the order of the runs."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import jobs_of, small

from data import SettingError
from fedskew import scheduling as jobs_module
from fedskew.scheduling import Job, allocate, ordered


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
def test_cores_are_shared_without_idle_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    number: int,
    asked: Mapping[str, Any],
    expected: tuple[str, int, int],
) -> None:
    monkeypatch.setattr(jobs_module, "cores", lambda: cores)
    allocation = allocate(jobs_of(tmp_path, number), **asked)
    assert (allocation.engine, allocation.jobs, allocation.workers) == expected


def test_ray_takes_one_run_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        allocate(jobs_of(tmp_path), "ray", at_once=2)
    assert (caught.value.key, caught.value.value) == ("--jobs", 2)


def test_gpus_take_as_many_runs_as_their_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "cores", lambda: 16)
    monkeypatch.setattr(jobs_module, "visible_gpus", lambda: {"0": 10 * 2**30, "3": 4 * 2**30})
    allocation = allocate(jobs_of(tmp_path, 40, 2 * 2**30, device="auto"))
    assert (allocation.jobs, allocation.gpus) == (3 + 1, ("0", "0", "0", "3"))
    assert (allocation.engine, allocation.workers) == ("inprocess", 1), (
        "more processes a run would need more memory"
    )
    assert allocate(jobs_of(tmp_path, 40, 2 * 2**30)).gpus == (), "device = cpu"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["0", "1"]),
        ("GPU-b,0", ["GPU-b", "0"]),
        ("", []),
        ("0, -1, 1", ["0"]),
    ],
)
def test_visible_gpus_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: list[str]
) -> None:
    answer = subprocess.CompletedProcess([], 0, "0, GPU-a, 1000\n1, GPU-b, 2000\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **more: answer)
    monkeypatch.setattr("torch.version.cuda", "12.4")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    gpus = jobs_module.visible_gpus()
    assert list(gpus) == expected
    assert all(gpus[name] == (1000 if name == "0" else 2000) * 2**20 for name in gpus)


def test_runs_of_the_same_data_come_after_one_another(tmp_path: Path) -> None:
    jobs = [
        Job(small(tmp_path, seed=seed, method=method), f"{method} {seed}")
        for method in ("fedavg", "fedshift")
        for seed in (0, 1)
    ]
    assert [job.label for job in ordered(jobs)] == [
        "fedavg 0",
        "fedshift 0",
        "fedavg 1",
        "fedshift 1",
    ]
    heavy = [replace(job, work=1.0) if job.label == "fedshift 0" else job for job in jobs]
    assert [job.label for job in ordered(heavy)] == [
        "fedshift 0",
        "fedavg 0",
        "fedavg 1",
        "fedshift 1",
    ]
