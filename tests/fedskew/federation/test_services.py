"""A service is started where it is not up, waited for, and its last words are told where it does not come."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.processes import LaunchFailed
from fedskew.federation import services
from fedskew.federation.services import wait_for
from fedskew.federation.superlink import Unreachable


def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *there: bool
) -> tuple[Callable[[bool], None], list[str]]:
    """Return a wait for a SuperLink that is there or not whenever that is looked at, and what is started meanwhile."""
    states, started = list(there), list[str]()
    folder = SimpleNamespace(path=tmp_path, state=tmp_path)
    monkeypatch.setattr(services, "running", lambda path, program: [program] * states[0])
    monkeypatch.setattr(services, "start", lambda folder: started.append("superlink"))
    monkeypatch.setattr(services.time, "sleep", lambda seconds: None)

    def look() -> None:
        """Answer once nothing changes any more."""
        states.pop(0)
        if not states:
            return
        raise Unreachable("away")

    return lambda starts: wait_for(folder, look, starts), started  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "times"),
    [([True], 0), ([False, True], 1), ([True, False, True], 1)],
)
def test_a_service_is_started_where_it_is_not_up_or_is_being_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[bool], times: int
) -> None:
    wait, started = watched(tmp_path, monkeypatch, *there)
    wait(True)
    assert started == ["superlink"] * times


@pytest.mark.parametrize(("starts", "there"), [(True, [False, False]), (False, [False])])
def test_a_service_that_does_not_come_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool, there: list[bool]
) -> None:
    (tmp_path / "superlink.log").write_text("the port is taken")
    wait, started = watched(tmp_path, monkeypatch, *there, True)
    with pytest.raises(LaunchFailed) as failed:
        wait(starts)
    assert "the port is taken" in str(failed.value)
    assert started == ["superlink"] * starts


def test_what_a_service_writes_is_for_the_coordinator_s_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log, and what the process itself and those that it starts create, under the usual umask."""
    folder, before = SimpleNamespace(path=tmp_path, state=tmp_path), os.umask(0o022)
    script = "from pathlib import Path; Path('made').mkdir(); Path('made/scores').touch()"
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(services, "service_command", lambda folder: command)
    started = []
    popen = subprocess.Popen

    def recorded(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **more))
        return started[-1]

    monkeypatch.setattr(services.subprocess, "Popen", recorded)
    try:
        services.start(folder)  # type: ignore[arg-type]
        assert started[0].wait(60) == 0
    finally:
        assert os.umask(before) == 0o022
    names = ("superlink.log", "made/scores", "made")
    assert [f"{(tmp_path / name).stat().st_mode & 0o777:o}" for name in names] == [
        "600",
        "600",
        "700",
    ]


def test_a_halted_gate_does_not_answer_though_its_connections_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel takes connections for a process that is stopped: only a handshake shows that it works."""
    monkeypatch.setattr(services, "HANDSHAKE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as halted:
        port = halted.getsockname()[1]
        folder = SimpleNamespace(coordinator=SimpleNamespace(listen="0.0.0.0", port=port))
        with pytest.raises(TimeoutError):
            services.handshake(folder)  # type: ignore[arg-type]
