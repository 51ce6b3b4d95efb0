"""Logs rotate: by size, with so many former ones, while another process writes them."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data.log_files import former, rotate
from site_agent import service
from site_agent.supernode_watch import LOG, SuperNode


def test_a_log_that_is_small_stays(tmp_path: Path) -> None:
    log = tmp_path / "gate.log"
    assert not rotate(log, largest=4)  # there is none
    log.write_bytes(b"1234")
    assert not rotate(log, largest=4) and log.read_bytes() == b"1234"
    assert list(tmp_path.iterdir()) == [log]


def test_former_logs_move_up_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "gate.log"
    for number in range(5):
        log.write_bytes(f"log {number}".encode())
        assert rotate(log, largest=4, kept=3)
    assert [former(log, number).read_text() for number in (1, 2, 3)] == ["log 4", "log 3", "log 2"]
    assert {file.name for file in tmp_path.iterdir()} == {log.name} | {
        f"gate.log.{n}" for n in (1, 2, 3)
    }
    assert log.read_bytes() == b"" and former(log, 1).stat().st_mode & 0o777 == 0o600


def test_who_has_the_log_open_to_append_goes_on_at_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    with log.open("ab", buffering=0) as written:
        written.write(b"before\n")
        assert rotate(log, largest=4)
        written.write(b"after\n")
    assert log.read_bytes() == b"after\n" and former(log, 1).read_bytes() == b"before\n"


def test_a_copy_that_fails_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "gate.log"
    log.write_bytes(b"12345")
    former(log, 1).write_bytes(b"older")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(shutil, "copyfileobj", full)
        rotate(log, largest=4)
    assert log.read_bytes() == b"12345" and former(log, 1).read_bytes() == b"older"
    assert not former(log, 0).exists()


def test_a_sites_log_rotates_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LARGEST", 100)
    logger = logging.getLogger("fedskew.site")
    before = logger.handlers[:]
    try:
        service.write_log(tmp_path / "site.log")
        for number in range(20):
            logger.error("line %d", number)
    finally:
        for handler in logger.handlers[len(before) :]:
            handler.close()
        logger.handlers[:] = before
    assert {file.name for file in tmp_path.iterdir()} == {"site.log"} | {
        f"site.log.{n}" for n in range(1, 6)
    }
    assert "line 19" in (tmp_path / "site.log").read_text()


def test_the_supernodes_log_rotates_while_it_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SuperNode(["flower-supernode"], tmp_path)
    node.process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    looked: list[Path] = []
    monkeypatch.setattr("site_agent.supernode_watch.rotate", looked.append)
    node.restart_if_dead()
    assert looked == [tmp_path / LOG]


def test_the_gateway_looks_at_both_services_logs_and_survives_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedskew.federation import gateway

    looked: list[str] = []

    def look(log: Path) -> bool:
        looked.append(log.name)
        raise OSError(28, "No space left on device")

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        if len(looked) >= 4:
            raise Enough

    monkeypatch.setattr(gateway, "rotate", look)
    monkeypatch.setattr(gateway.time, "sleep", sleep)
    with pytest.raises(Enough):
        gateway.keep_logs_small(SimpleNamespace(state=tmp_path))  # type: ignore[arg-type]
    assert looked == ["gate.log", "superlink.log"] * 2
    assert "gate.log does not rotate" in caplog.text
