"""The SuperNode is kept running without the data, and ends with the one who keeps it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from client_app import local_site
from site_agent import service
from site_agent.config import Link
from site_agent.executor import Executor
from site_agent.service import SuperNode, environment, link_only
from tests.site_agent.hospital import Hospital


class Kept(SuperNode):
    """A SuperNode whose process is a script: it lives as long as the test says."""

    def __init__(self, home: Path) -> None:
        self.now, self.starts, self.status = 0.0, 0, None
        super().__init__(["node"], home, lambda: self.now)

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self.status: int | None = None
        return SimpleNamespace(poll=lambda: self.status, returncode=1)  # type: ignore[return-value]

    def wait_after(self, lived: float) -> float:
        """Return the seconds between the end of a process that lived that long and the next start."""
        self.now += lived
        self.status, ended, starts = 1, self.now, self.starts
        while self.starts == starts:
            self.restart_if_dead()
            self.now += 0.5
        return self.now - 0.5 - ended


def test_a_refused_supernode_is_started_without_end_after_growing_waits(tmp_path: Path) -> None:
    node = Kept(tmp_path)
    node.restart_if_dead()
    node.restart_if_dead()
    assert node.starts == 1, "one that runs is left alone"
    assert [node.wait_after(1.0) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert node.wait_after(100.0) == 1, "it lived well in between"


def test_the_link_becomes_a_process_without_the_data_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def replaced(program: str, words: list[str]) -> None:
        commands.append(words)
        raise KeyboardInterrupt  # in place of another program in this process

    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o640)
    link = Link("gateway:1", tmp_path / "node.key", tmp_path / "ca.crt")
    monkeypatch.setattr(service.os, "execv", replaced)
    with pytest.raises(KeyboardInterrupt):
        link_only(link, tmp_path / "state", 9, secret)
    words = " ".join(commands[0])
    for part in ("--superlink gateway:1", "--isolation process", "--host 127.0.0.1 --port 9", f"{link.key}",
                 "-m site_agent.service keep-supernode", f"--superexec-auth-secret-file {secret}"):  # fmt: skip
        assert part in words
    assert "--insecure" not in words and (tmp_path / "state/link").is_dir()
    monkeypatch.setenv("NO_PROXY", "inside.example")
    chosen = environment(tmp_path)
    assert chosen["NO_PROXY"] == chosen["no_proxy"] == "inside.example,127.0.0.1"
    assert chosen["FLWR_HOME"] == str(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_supernode_outlives_its_keeper(tmp_path: Path, number: signal.Signals) -> None:
    os.mkfifo(tmp_path / "pid")
    code = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"
    node = [sys.executable, "-c", code, str(tmp_path / "pid")]
    command = [sys.executable, "-m", "site_agent.service", "keep-supernode", str(tmp_path), *node]
    keeper = subprocess.Popen(command)
    kept = psutil.Process(int((tmp_path / "pid").read_text()))  # once it has started
    try:
        keeper.send_signal(number)
        assert keeper.wait(20) == (0 if number == signal.SIGTERM else -number)
        assert not psutil.wait_procs([kept], timeout=20)[1]
    finally:
        keeper.kill()
        if kept.is_running():
            kept.kill()


def test_a_running_site_starts_again_once_another_text_is_approved(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another program: the text may be for another release."""
    commands: list[list[str]] = []

    def replaced(program: str, words: list[str]) -> None:
        commands.append(words)

    def take_none(executor: Executor) -> None:
        hospital.receive(min_sites=3)
        hospital.approve()

    first = hospital.receive()
    hospital.approve()
    monkeypatch.setattr(Executor, "take", take_none)
    monkeypatch.setattr(service.os, "execv", replaced)
    for name in ("write_log", "environment"):
        monkeypatch.setattr(service, name, lambda path: {})
    monkeypatch.setattr(service.signal, "signal", lambda number, handler: None)
    try:
        service.execute(hospital.site, 9, b"secret", None, 0)
    finally:
        local_site.install({})
    assert commands == [[sys.executable, *sys.orig_argv[1:]]]
    events = [entry["event"] for entry in hospital.entries()]
    assert events == ["approved", "started", "approved", "stopped"]
    assert hospital.entries()[1]["federation"] == first
