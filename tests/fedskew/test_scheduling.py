"""How a machine is shared among a sweep's runs: cores, GPUs and memory."""

import io
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import small
from rich.console import Console

from data import SettingError
from fedskew.engines import Resources, gpus_for
from fedskew.sweep.pool import Job, Running, RunPool


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
def test_options_of_other_engines_are_refused(resources: Resources, option: str) -> None:
    with pytest.raises(SettingError) as caught:
        resources.check()
    assert caught.value.key == option
    Resources("ray", jobs=1, client_gpus=0.5, ray_address="host:6379").check()


def pool_of(results: Path, jobs: int) -> RunPool:
    """Return a pool of runs, none of which has begun."""
    planned = [Job(small(results, seed=seed), f"seed {seed}") for seed in range(jobs)]
    pool = RunPool(planned, Resources("inprocess", jobs), Console(file=io.StringIO()), 0)
    pool.gpus = []
    return pool


def running(pool: RunPool, gpu: str = "", is_measured: bool = True) -> Running:
    """Return a job that runs on a GPU."""
    unused: Any = None
    return Running(pool.waiting[0], gpu, unused, unused, is_measured)


def test_another_run_begins_where_what_is_free_holds_the_largest_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(available=5 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    pool = pool_of(tmp_path, 4)
    pool.memory = 4 * 2**30
    pool.running = [running(pool)]
    assert pool.has_memory()
    pool.running.append(running(pool, is_measured=False))
    assert not pool.has_memory(), "what began last has not taken its memory yet"
    pool.memory = 6 * 2**30
    pool.running = [running(pool)]
    assert not pool.has_memory()
    pool.running = []
    assert pool.has_memory(), "a run alone begins in any case"


def test_a_gpu_takes_one_run_and_then_as_many_as_its_memory_holds(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, 8)
    pool.gpus = ["0", "3"]
    chosen = []
    for _ in range(3):
        gpu = pool.free_gpu()
        chosen.append(gpu)
        if gpu:
            pool.running.append(running(pool, gpu))
    assert chosen == ["0", "3", None], "before a round has shown what a run needs"
    pool.gpu_share = 0.4
    while gpu := pool.free_gpu():
        pool.running.append(running(pool, gpu))
    assert sorted(one.gpu for one in pool.running) == ["0", "0", "3", "3"]
    pool.gpus, pool.gpu_share = [], 0.0
    assert pool.free_gpu() == "", "on a machine without GPUs any number runs"


@pytest.mark.parametrize(
    ("listed", "count", "expected"),
    [
        (None, 2, ["0", "1"]),
        ("GPU-b,0", 2, ["GPU-b", "0"]),
        ("", 0, []),
        ("0,-1,1", 1, ["0"]),
    ],
)
def test_gpus_are_those_of_the_environment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: str | None,
    count: int,
    expected: list[str],
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpus_for([small(tmp_path, device="auto")]) == expected
    assert gpus_for([small(tmp_path)]) == [], "device = cpu"
