"""The audit log: every line follows from the one before, and what a loss of power leaves is no change of it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data import DataError
from site_agent.audit import FIRST, Audit
from site_agent.config import read_site
from tests.site_agent.conftest import FedSkewSite
from tests.site_files import site_folders

TORN = {
    "nothing": b"",
    "the beginning": b'{"time": "2026-11-28T0',
    "a character in two": b'{"time": "2026", "event": "\xc3',
    "all but the newline": b'{"time": "2026-11-28T00:00:00", "event": "answered", "before": ""}',
    "a block never written after one that was": b'{"time": "2026-' + bytes(4096),
    "a block never written before one that was": bytes(4096) + b'", "before": "00"}\n',
}
"""By what the disk has of the last line, that."""


@pytest.fixture
def site_file(tmp_path: Path) -> Path:
    """site.toml of a site with four entries in its audit log."""
    file = site_folders(tmp_path) / "north/site.toml"
    audit = read_site(file).audit
    audit.path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        audit.write("answered", message=str(number), kind="train", bytes=8)
    return file


@pytest.fixture
def audit(site_file: Path) -> Audit:
    return read_site(site_file).audit


def test_lines_follow_from_each_other(audit: Audit) -> None:
    assert audit.verify() == 4
    entries = [json.loads(line) for line in audit.lines()]
    assert entries[0]["before"] == FIRST
    assert [entry["message"] for entry in entries] == ["0", "1", "2", "3"]
    assert audit.path.stat().st_mode & 0o777 == audit.lock.stat().st_mode & 0o777 == 0o600
    assert Audit(audit.path.with_name("none")).verify() == 0


def test_a_log_and_a_line_of_more_than_a_block_go_on_behind_their_last_line(audit: Audit) -> None:
    for _ in range(3):
        audit.write("answered", message="x" * 50_000)
    audit.write("answered", message="y" * 150_000)
    audit.write("answered", message="z")
    assert audit.verify() == 4 + 5


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("new", [b"", b"changed", b"no JSON\n", b'{"event": "answered"}\n'])
def test_a_line_that_is_removed_changed_or_cut_is_found(
    audit: Audit, number: int, new: bytes
) -> None:
    """Also a last line that somebody cuts: a loss of power cuts one whose hash is not kept yet."""
    lines = audit.path.read_bytes().splitlines(keepends=True)
    changed = lines[number].replace(b'"bytes": 8', b'"bytes": 9')
    lines[number] = changed if new == b"changed" else new
    audit.path.write_bytes(b"".join(lines))
    with pytest.raises(DataError):
        audit.verify()
    audit.path.unlink()
    with pytest.raises(DataError):
        audit.verify()


@pytest.mark.parametrize("torn", TORN)
def test_what_a_loss_of_power_leaves_of_a_line_makes_room_for_the_next(
    site_file: Path, audit: Audit, torn: str, fedskew_site: FedSkewSite
) -> None:
    whole = audit.path.read_bytes()
    with audit.path.open("ab") as file:
        file.write(TORN[torn])
    at_site = ("--site", site_file)
    status, output, errors = fedskew_site("log", *at_site)
    assert status == 0 and output.count("answered") == 4
    assert bool(errors) == bool(TORN[torn])
    assert fedskew_site("log", "--verify", *at_site)[0] == 0
    audit.write("answered", message="next", text="x" * 200_000)
    assert audit.verify() == 5 and audit.path.read_bytes().startswith(whole)


def test_what_a_message_says_is_printed_in_one_line(
    site_file: Path, audit: Audit, fedskew_site: FedSkewSite
) -> None:
    audit.write("run", text="first\n\x1b[2Jsecond")
    _, output, _ = fedskew_site("log", "--site", site_file)
    assert output.splitlines()[-1].endswith("text first\\n\\x1b[2Jsecond")


def test_a_kill_between_a_line_and_its_hash_is_no_change(audit: Audit) -> None:
    last = audit.last.read_text()
    audit.write("answered")
    audit.last.write_text(last)
    assert audit.verify() == 5
    audit.write("answered")
    assert audit.verify() == 6
    audit.last.write_text(last)  # lines that somebody else has appended
    with pytest.raises(DataError):
        audit.verify()


@pytest.mark.parametrize(("failing", "lines"), [(1, 4), (2, 5)])
def test_a_full_disk_leaves_a_log_that_is_whole(
    audit: Audit, failing: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is written first, and then its hash."""
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError):
            audit.write("answered")
    assert audit.verify() == lines
    audit.write("answered")
    assert audit.verify() == lines + 1


def test_writers_at_the_same_time_take_turns(audit: Audit) -> None:
    """Each has its own Audit, as `fedskew-site approve` has beside `fedskew-site start`."""

    def write_five(number: int) -> None:
        for _ in range(5):
            Audit(audit.path).write("answered", message=str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_five, range(4)))
    assert audit.verify() == 24
