"""A loss of power leaves part of a line at the end of a file: it is left out, and the next line takes its place."""

from pathlib import Path

import pytest
import torch

from client_app.local_site import RunNotAllowed
from site_agent.config import read_site
from tests.site_agent.test_command import run
from tests.site_agent.test_policy import policy_of
from tests.site_agent.test_site_metrics import Scraped
from tests.site_files import site_folders

TORN = {
    "nothing": b"",
    "a byte": b"{",
    "the beginning": b'{"time": "2026-11-28T0',
    "a character in two": b'{"time": "2026", "event": "\xc3',
    "no UTF-8": b'{"time": "\xff\xfe\xfa',
    "all but the newline": b'{"time": "2026-11-28T00:00:00", "event": "answered", "before": ""}',
    "blocks never written": bytes(200_000),
    "a block never written after one that was": b'{"time": "2026-' + bytes(4096),
    "a block never written before one that was": bytes(4096) + b'", "before": "00"}\n',
}
"""By what the disk has of the last line, that."""
EVENTS = "fedskew_site_events_total{event=answered}"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with four entries in its audit log."""
    file = site_folders(tmp_path) / "north/site.toml"
    audit = read_site(file).audit
    audit.path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"name": "0/model", "bytes": 8, "norm": 1.5}]
    for number in range(4):
        audit.write("answered", message=str(number), kind="train", seconds=1.0, left=rows)
    return file


@pytest.mark.parametrize("torn", TORN)
def test_every_command_reads_a_log_that_ends_in_part_of_a_line(
    site: Path, torn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = read_site(site).audit
    whole = audit.path.read_bytes()
    scraped = Scraped(audit.path.parent)
    with audit.path.open("ab") as file:
        file.write(TORN[torn])

    assert run(monkeypatch, "log", "--site", site) == 0
    shown = capsys.readouterr()
    assert shown.out.count("answered") == 4
    assert ("the last line is incomplete" in shown.err) == bool(TORN[torn])
    assert run(monkeypatch, "log", "--verify", "--site", site) == 0
    assert capsys.readouterr().out == "4 lines follow from each other\n"
    assert run(monkeypatch, "status", "--site", site) == 0
    assert "message 3 " in capsys.readouterr().out
    assert run(monkeypatch, "report", "--site", site) == 0
    assert "4 answered messages" in capsys.readouterr().out
    assert scraped.values()[EVENTS] == 4

    read_site(site).audit.write("answered", message="next", kind="train")
    assert audit.verify() == 5
    assert audit.path.read_bytes().startswith(whole) and len(audit.lines()) == 5
    assert scraped.values()[EVENTS] == 5


@pytest.mark.parametrize("damage", [b"no JSON\n", b"[1]\n", b"\xff\n", bytes(9) + b"\n", b"\n"])
def test_a_damaged_line_among_others_is_named_and_hides_no_other(
    site: Path,
    damage: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is no torn line: others were written after it."""
    audit = read_site(site).audit
    lines = audit.path.read_bytes().splitlines(keepends=True)
    audit.path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    for words in (["log"], ["log", "--verify"], ["report"]):
        assert run(monkeypatch, *words, "--site", site) == 2
        shown = capsys.readouterr()
        assert f"{audit.path}: line 3 is no entry of an audit log" in shown.err
        assert shown.out.count("answered") == (4 if words == ["log"] else 0)
    assert run(monkeypatch, "status", "--site", site) == 0
    assert Scraped(audit.path.parent).values()[EVENTS] == 4


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_last_line_that_somebody_cuts_is_found(site: Path, kept: int) -> None:
    """A loss of power cuts a line that is not on the disk yet, and whose hash is not kept."""
    audit = read_site(site).audit
    lines = audit.path.read_bytes().splitlines(keepends=True)
    audit.path.write_bytes(b"".join(lines[:3]) + lines[3][:kept])
    with pytest.raises(ValueError, match="missing at the end"):
        audit.verify()


def test_a_long_last_line_is_found(site: Path) -> None:
    audit = read_site(site).audit
    audit.write("run", text="x" * 3_000_000)
    with audit.path.open("ab") as file:
        file.write(b"{")
    audit.write("answered")
    assert audit.verify() == 6


@pytest.mark.parametrize(("failing", "lines"), [(1, 4), (2, 5)])
def test_a_full_disk_leaves_a_log_that_is_whole(
    site: Path, failing: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is written first, and then its hash."""
    audit = read_site(site).audit
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            audit.write("answered")
    assert audit.verify() == lines
    audit.write("answered")
    assert audit.verify() == lines + 1


@pytest.mark.parametrize("torn", TORN)
def test_a_question_counts_once_whatever_a_loss_of_power_left(tmp_path: Path, torn: str) -> None:
    policy = policy_of(tmp_path, [8, 8, 8], max_rounds=3)
    folder = tmp_path / "run"
    states = [{"w": torch.full((2,), float(number))} for number in range(4)]
    policy.count_question(folder, 1, states[:1])
    ledger = next(folder.iterdir())
    with ledger.open("ab") as file:
        file.write(TORN[torn])
    for number in (1, 2, 0, 1, 2):  # the last three are repeated questions
        policy.count_question(folder, 1, [states[number]])
    with pytest.raises(RunNotAllowed, match="max-rounds"):
        policy.count_question(folder, 1, [states[3]])
