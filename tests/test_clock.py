"""A clock that is set back or on changes nothing: durations are by one that nobody sets, and no date decides."""

import ast
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server_app.lock import FolderBusy, locked

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data", "client_app", "strategies", "server_app", "fedskew")
OF_THE_WALL = {
    "time",
    "time_ns",
    "now",
    "utcnow",
    "today",
    "getmtime",
    "getctime",
    "st_mtime",
    "st_ctime",
}


def test_nothing_reads_the_clock_of_the_wall() -> None:
    """A file's time of change, of nanoseconds, is only ever compared for being the same."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    # Certificates hold from day to day, signatures for minutes; a site was heard of, a metric logged at a time.
    # A page of results says its day.
    # Former texts of federation.toml are named by their time, and a run of the queue says when it was asked for.
    # A message waits until its time is over.
    dated = {
        "certificates.py",
        "gateway.py",
        "gateway_metrics.py",
        "membership.py",
        "queue.py",
        "report.py",
        "trackers.py",
        "waiting_messages.py",
    }
    for file in (file for file in files if file.name not in dated):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in OF_THE_WALL, f"{file}:{node.lineno}: {node.attr}"
                if node.attr == "st_mtime_ns":
                    assert file.name in {"cache.py", "tables.py", "backbone.py", "file_stamps.py"}


@pytest.mark.slow
def test_a_run_goes_on_whatever_the_time_is(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"method": "fedbn", "rounds": 2}
    whole = train("whole", **changes)
    backwards = itertools.count(time.time(), -3600)
    monkeypatch.setattr(time, "time", lambda: next(backwards))
    run = train("again", **changes).folder
    folder = run.path
    for name in ("summary.json", "checkpoint.safetensors"):
        (folder / name).unlink()
    (folder / "previous.safetensors").rename(folder / "checkpoint.safetensors")
    for file in folder.rglob("*"):
        os.utime(file, (4e9, 4e9))  # as of the year 2096
    with locked(folder), pytest.raises(FolderBusy):
        train("again", **changes)
    resumed = train("again", **changes)
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert all(record.seconds.round > 0 for record in run.rounds())
