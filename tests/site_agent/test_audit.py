"""The audit log: every line follows from the one before."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data import DataError
from site_agent.audit import FIRST, Audit


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    audit = Audit(tmp_path / "audit.jsonl")
    for number in range(4):
        audit.write(
            "answered", message=str(number), left=[{"name": "0/model", "bytes": 8, "norm": 1.5}]
        )
    return audit


def test_lines_follow_from_each_other(audit: Audit) -> None:
    assert audit.verify() == 4
    entries = [json.loads(line) for line in audit.lines()]
    assert entries[0]["before"] == FIRST and [entry["message"] for entry in entries] == [
        "0",
        "1",
        "2",
        "3",
    ]
    assert audit.path.stat().st_mode & 0o777 == 0o600


def test_no_log_is_a_log_of_no_lines(tmp_path: Path) -> None:
    assert Audit(tmp_path / "audit.jsonl").verify() == 0


@pytest.mark.parametrize("number", range(4))
def test_a_removed_line_is_found(audit: Audit, number: int) -> None:
    lines = audit.path.read_bytes().splitlines(keepends=True)
    audit.path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    with pytest.raises(DataError, match=r"missing|changed"):
        audit.verify()


@pytest.mark.parametrize("number", range(4))
def test_a_changed_line_is_found(audit: Audit, number: int) -> None:
    lines = audit.path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"bytes": 8', b'"bytes": 9')
    audit.path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match="changed"):
        audit.verify()


def test_a_file_that_is_gone_and_a_line_that_is_none_are_found(audit: Audit) -> None:
    audit.path.write_bytes(audit.path.read_bytes() + b"no json\n")
    with pytest.raises(DataError, match="line 5 is no entry"):
        audit.verify()
    audit.path.unlink()
    with pytest.raises(DataError, match="missing at the end"):
        audit.verify()


def test_half_a_line_makes_room_for_the_next(audit: Audit) -> None:
    audit.path.write_bytes(audit.path.read_bytes() + b'{"time": "2026')
    audit.write("started")
    assert audit.verify() == 5


def test_a_kill_between_a_line_and_its_hash_is_no_change(audit: Audit) -> None:
    last = audit.last.read_text()
    audit.write("answered")
    audit.last.write_text(last)
    assert audit.verify() == 5
    audit.write("answered")
    assert audit.verify() == 6


def test_writers_at_the_same_time_take_turns(audit: Audit) -> None:
    """Each has its own Audit, as `fedskew-site approve` has beside `fedskew-site start`."""

    def write(number: int) -> None:
        for _ in range(5):
            Audit(audit.path).write("answered", message=str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert audit.verify() == 24
    assert audit.lock.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_log_as_it_was(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            audit.write("answered")
    assert audit.verify() == 4
    audit.write("answered")
    assert audit.verify() == 5
