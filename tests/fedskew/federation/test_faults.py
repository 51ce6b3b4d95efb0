"""Some rows of `make faults`, once each: real SuperLink, gateway and SuperNodes, what is done to them, and the hash."""

import importlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]


def has_network_namespaces() -> bool:
    """Return whether this machine lets us make one."""
    if os.geteuid() or not shutil.which("ip"):
        return False
    name = f"fedskew-try-{os.getpid()}"
    tries = [
        subprocess.run(["ip", "netns", word, name], capture_output=True) for word in ("add", "del")
    ]
    return not any(done.returncode for done in tries)


@pytest.mark.slow
def test_a_supernode_a_server_a_gate_and_a_superexec_are_killed_and_a_site_lies() -> None:
    """Rows 2, 5, 7 and 15, after which the hash is the undisturbed one, and 13, whose site is left out by name."""
    if not has_network_namespaces():
        pytest.skip("a network namespace wants root, iproute2 and a kernel that lets it be made")
    rows = ["--row", "2", "5", "7", "13", "15"]
    command = [sys.executable, "deploy/try_faults.py", "--times", "1", *rows]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 missed" in done.stdout, (
        done.stdout[-3000:] + done.stderr[-2000:]
    )


def test_a_row_is_chosen_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    faults = importlib.import_module("try_faults")
    assert faults.chosen([1, 13, 15], "Superexec") == [(15, 0)]
    assert faults.chosen([1, 13, 15], "nan") == [(13, 0)]
    assert faults.chosen([1, 13], "") == [(1, 0), *((13, place) for place in range(4))]
    assert faults.chosen([1, 13], "no such words") == []


def test_chaos_causes_faults_until_the_run_ends_and_starts_what_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    chaos = importlib.import_module("try_chaos")
    monkeypatch.setattr(chaos.time, "sleep", lambda seconds: None)
    done: list[str] = []

    def gone(stage: object) -> None:
        raise RuntimeError("no flwr-serverapp after 240 s")

    monkeypatch.setattr(chaos, "FAULTS", {"a": lambda stage: done.append("a"), "b": gone})
    stage = SimpleNamespace(supervise=lambda: done.append("started"))
    ends = iter([None] * 41 + [0])  # two looks a fault
    job = SimpleNamespace(process=SimpleNamespace(poll=lambda: next(ends)))
    caused = chaos.disturb(stage, job, random.Random(3), 20.0)
    assert caused.keys() == {"a"} and 5 < caused["a"] < 15, (
        "one that cannot be caused does not count"
    )
    assert done == ["a", "started"] * caused["a"]
