"""A service is started where it is not up, waited for, and its last words are told where it does not come."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.processes import LaunchFailed
from fedskew.federation import service
from fedskew.federation.control import Unreachable


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what registers the sites at a SuperLink that is there or not whenever that is looked at."""

    def register(*there: bool, starts: bool = True, answers: bool = True) -> list[str]:
        states, begun = list(there), list[str]()

        def look(agreement: Any) -> None:
            if len(states) > 1 or not answers:
                raise Unreachable("away")

        def running(path: Path, program: str) -> list[str]:
            return [program] * (states.pop(0) if len(states) > 1 else states[0])

        folder = SimpleNamespace(path=tmp_path, log=tmp_path / "superlink.log", agreement=None)
        control = SimpleNamespace(register=look)
        monkeypatch.setattr(service, "Control", lambda folder: control)
        monkeypatch.setattr(service, "running", running)
        monkeypatch.setattr(service, "start", lambda folder: begun.append("superlink"))
        monkeypatch.setattr(service.time, "sleep", lambda seconds: None)
        try:
            service.register(folder, starts)  # type: ignore[arg-type]
        except LaunchFailed as error:
            begun.append(str(error))
        return begun

    return register


@pytest.mark.parametrize(
    ("there", "times"),
    [([True, True], 0), ([False, True, True], 1), ([True, False, True, True], 1)],
)
def test_a_service_is_started_where_it_is_not_up_or_is_being_ended(
    started: Callable[..., list[str]], there: list[bool], times: int
) -> None:
    assert started(*there) == ["superlink"] * times


@pytest.mark.parametrize(("starts", "there"), [(True, [False, False]), (False, [False])])
def test_a_service_that_does_not_come_leaves_its_last_words(
    tmp_path: Path, started: Callable[..., list[str]], starts: bool, there: list[bool]
) -> None:
    (tmp_path / "superlink.log").write_text("the port is taken")
    *begun, words = started(*there, starts=starts, answers=False)
    assert begun == ["superlink"] * starts and "the port is taken" in words


def test_what_a_service_writes_is_for_the_coordinator_s_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log, and what the process itself and those that it starts create, under the usual umask."""
    state = SimpleNamespace(path=tmp_path, state=tmp_path, log=tmp_path / "superlink.log")
    folder, before = state, os.umask(0o022)
    script = "from pathlib import Path; Path('made').mkdir(); Path('made/scores').touch()"
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(service, "service_command", lambda folder: command)
    started = []
    popen = subprocess.Popen

    def recorded(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **more))
        return started[-1]

    monkeypatch.setattr(service.subprocess, "Popen", recorded)
    try:
        service.start(folder)  # type: ignore[arg-type]
        assert started[0].wait(60) == 0
    finally:
        assert os.umask(before) == 0o022
    names = ("superlink.log", "made/scores", "made")
    assert [f"{(tmp_path / name).stat().st_mode & 0o777:o}" for name in names] == [
        "600",
        "600",
        "700",
    ]


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_a_halted_gate_does_not_answer_though_its_connections_are_accepted(
    monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    """The kernel takes connections for a process that is stopped: only a handshake shows that it works."""
    monkeypatch.setattr(service, "HANDSHAKE", 0.05)
    if ":" in listen and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    coordinator = SimpleNamespace(listen=listen, port=0)
    with service.sites_socket(coordinator) as halted:  # type: ignore[arg-type]
        coordinator.port = halted.getsockname()[1]
        folder = SimpleNamespace(coordinator=coordinator)
        with pytest.raises(TimeoutError):
            service.handshake(folder)  # type: ignore[arg-type]
