"""What a site's processes hold of each other: the secret of its two halves, the lock on its state, its key."""

import os
import stat
from pathlib import Path

import pytest

from data import DataError
from site_agent import service
from site_agent.config import Link
from site_agent.service import is_at_work, link_only, only_one, read_secret


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(0o640)
    return file


def test_the_halves_secret_is_for_both_of_them(secret: Path) -> None:
    assert len(read_secret(secret)) == 32


@pytest.mark.parametrize("mode", [0o644, 0o642, 0o641])
def test_a_secret_that_everybody_can_read_is_refused(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(DataError, match=r"be closed to others \(chmod o= "):
        read_secret(secret)


def test_a_short_and_a_missing_secret_are_refused(secret: Path) -> None:
    secret.write_bytes(b"x" * 31)
    with pytest.raises(DataError, match="at least 32 random bytes"):
        read_secret(secret)
    secret.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_secret(secret)


def test_a_state_is_worked_on_once(tmp_path: Path) -> None:
    twice = pytest.raises(DataError, match="another `fedskew-site start` is at work there")
    with only_one(tmp_path), twice, only_one(tmp_path):
        pytest.fail("it works twice")
    assert not is_at_work(tmp_path)
    with only_one(tmp_path):
        assert is_at_work(tmp_path)
    assert not is_at_work(tmp_path)


def test_the_link_becomes_a_process_without_the_data(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replaced(Exception):
        """In place of another program in this process."""

    commands: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        commands.append(words)
        raise Replaced

    monkeypatch.setattr(service.os, "execv", execv)
    with pytest.raises(Replaced):
        link_only(
            Link("gateway:1", tmp_path / "node.key", tmp_path / "ca.crt"),
            tmp_path / "state",
            9,
            secret,
        )
    words = " ".join(commands[0])
    assert (
        "-m site_agent.supernode_watch" in words
        and "--isolation process" in words
        and f"{tmp_path}/node.key" in words
    )
    assert stat.S_IMODE(secret.stat().st_mode) == 0o640 and (tmp_path / "state/link").is_dir()
