"""The SuperNode is kept running, and ends with the one who keeps it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from site_agent.supernode_watch import SuperNode, command_of, environment


class Kept(SuperNode):
    """A SuperNode whose process is a script: it lives as long as the test says."""

    def __init__(self, home: Path) -> None:
        self.now, self.starts, self.status = 0.0, 0, None
        super().__init__(["node"], home, lambda: self.now)

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self.status: int | None = None
        return SimpleNamespace(poll=lambda: self.status, returncode=1)  # type: ignore[return-value]


def waits(node: Kept, ends: int, lives: float) -> list[float]:
    """Return the seconds between ends and starts of a process that lives that long each time."""
    seconds = []
    for _ in range(ends):
        node.now += lives
        node.status, ended, starts = 1, node.now, node.starts
        while node.starts == starts:
            node.restart_if_dead()
            node.now += 0.5
        seconds.append(node.now - 0.5 - ended)
    return seconds


def test_a_refused_supernode_is_started_without_end_after_growing_waits(tmp_path: Path) -> None:
    node = Kept(tmp_path)
    node.restart_if_dead()
    assert waits(node, 7, 1.0) == [1, 2, 4, 8, 10, 10, 10]
    assert waits(node, 1, 100.0) == [1], "it lived well in between"
    assert node.starts == 9


def test_a_supernode_that_runs_is_left_alone(tmp_path: Path) -> None:
    node = Kept(tmp_path)
    for _ in range(5):
        node.restart_if_dead()
        node.now += 100
    assert node.starts == 1


def test_loopback_goes_past_the_proxy_and_flwr_has_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "inside.example")
    chosen = environment(tmp_path)
    assert chosen["NO_PROXY"] == chosen["no_proxy"] == "inside.example,127.0.0.1"
    assert chosen["FLWR_HOME"] == str(tmp_path)


def test_the_supernode_leaves_its_tasks_to_us_on_loopback(tmp_path: Path) -> None:
    command = command_of("host:1", tmp_path / "key", tmp_path / "ca", 9, tmp_path / "secret")
    text = " ".join(command)
    assert "-m site_agent.supernode flower-supernode --superlink host:1" in text
    assert "--isolation process" in text and "--host 127.0.0.1 --port 9" in text
    assert f"--superexec-auth-secret-file {tmp_path}/secret" in text and "--insecure" not in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_supernode_outlives_its_keeper(tmp_path: Path, number: signal.Signals) -> None:
    pid = tmp_path / "pid"
    script = f"import os, time, pathlib; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)"
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "site_agent.supernode_watch",
            str(tmp_path),
            sys.executable,
            "-c",
            script,
        ]
    )
    while not pid.exists() or not pid.read_text():
        time.sleep(0.05)
    keeper.send_signal(number)
    assert keeper.wait(20) == (0 if number == signal.SIGTERM else -number)
    process = Path(f"/proc/{pid.read_text()}")
    for _ in range(200):
        if not process.exists() or "(zombie)" in (process / "status").read_text():
            return
        time.sleep(0.05)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    pytest.fail("it is still there")


def test_a_supernode_that_gives_up_its_connection_ends_and_does_not_stay_as_a_server() -> None:
    """flwr returns from its main thread and leaves a thread that is no daemon: the process would never end."""
    script = (
        "import sys, threading, flwr.supernode.cli as cli\n"
        "cli.flower_supernode = lambda: threading.Thread(target=threading.Event().wait).start()\n"
        "sys.argv = ['module', 'flower-supernode']\n"
        "import site_agent.supernode\n"
        "site_agent.supernode.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        assert process.wait(60) == 1
    finally:
        process.kill()


def test_a_supernode_that_ends_by_itself_keeps_its_exit_status() -> None:
    script = (
        "import sys, flwr.supernode.cli as cli\n"
        "cli.flower_supernode = lambda: sys.exit(7)\n"
        "import site_agent.supernode\n"
        "site_agent.supernode.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 7
