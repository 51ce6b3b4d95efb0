"""The SuperNode is kept running without the data, and ends with the one who keeps it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from client_app import local_site
from site_agent import service
from site_agent.config import Link
from site_agent.executor import Executor
from site_agent.service import SuperNode, environment, link_only
from tests.site_agent.hospital import Hospital


def test_a_supernode_that_ends_is_started_again_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAIT", 0.2)
    code = "import sys; open(sys.argv[1], 'a').write('x'); sys.stdin.read(); sys.exit(1)"
    node, starts = (
        SuperNode([sys.executable, "-c", code, str(tmp_path / "starts")], tmp_path),
        set(),
    )
    try:
        while len(starts) < 3:
            node.restart_if_dead()
            assert node.process
            starts.add(node.process.pid)
            node.process.wait(20)
            node.restart_if_dead()
            assert node.process is None, "it waits first"
            time.sleep(0.25)
    finally:
        node.stop()
    assert (tmp_path / "starts").read_text() == "xxx"


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
    link = Link.model_construct(
        address="gateway:1", key=tmp_path / "node.key", ca=tmp_path / "ca.crt"
    )
    monkeypatch.setattr(service.os, "execv", replaced)
    with pytest.raises(KeyboardInterrupt):
        link_only(link, tmp_path / "state", 9, secret)
    words = " ".join(commands[0])
    for part in (f"flower-supernode {os.getpid()} --superlink gateway:1", "--isolation process",
                 "--host 127.0.0.1 --port 9", f"{link.key}",
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
    code = """if True:
        import os, signal, sys
        from site_agent.service import end_with_parent
        end_with_parent(os.getppid())
        open(sys.argv[1], "w").write(str(os.getpid()))
        signal.pause()
    """
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
        assert len(hospital.entries()) == 2, "it has seen the approval and goes on"
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
