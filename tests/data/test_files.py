"""Logs rotate: by size, with so many former ones, while another process writes them."""

import logging
import shutil

import pytest

from data.files import rotate
from site_agent import service


def test_a_log_that_is_small_stays(tmp_path):
    log = tmp_path / "gate.log"
    rotate(log, largest=4)  # there is none
    log.write_bytes(b"1234")
    rotate(log, largest=4)
    assert log.read_bytes() == b"1234" and len(list(tmp_path.iterdir())) == 1


def former(log):
    return log.with_name(f"{log.name}.1")


def test_the_former_log_is_replaced_and_its_owners_alone(tmp_path):
    log = tmp_path / "gate.log"
    for number in range(3):
        log.write_bytes(f"log {number}".encode())
        rotate(log, largest=4)
    assert former(log).read_text() == "log 2" and log.read_bytes() == b""
    assert len(list(tmp_path.iterdir())) == 2 and former(log).stat().st_mode & 0o777 == 0o600


def test_who_has_the_log_open_to_append_writes_on_at_its_beginning(tmp_path):
    log = tmp_path / "superlink.log"
    with log.open("ab", buffering=0) as written:
        written.write(b"before\n")
        rotate(log, largest=4)
        written.write(b"after\n")
    assert log.read_bytes() == b"after\n" and former(log).read_bytes() == b"before\n"


def test_a_copy_that_fails_costs_no_line(tmp_path, monkeypatch):
    log = tmp_path / "gate.log"
    log.write_bytes(b"12345")
    former(log).write_bytes(b"older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError):
        rotate(log, largest=4)
    assert log.read_bytes() == b"12345" and former(log).read_bytes() == b"older"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_sites_log_rotates_while_it_is_written(tmp_path, monkeypatch):
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
    assert len(list(tmp_path.iterdir())) == 2
    assert "line 19" in (tmp_path / "site.log").read_text()
