"""A run of a federation goes on where its process or the SuperLink was lost, and ends where the app failed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.launcher import LaunchFailed
from fedskew.federation import submission
from fedskew.federation.control import RunStatus, Unreachable
from fedskew.federation.folder import FederationFolder
from fedskew.federation.submission import Lost, follow


class Results:
    """A run folder whose summary comes after some looks."""

    def __init__(self, path: Path, looks: int) -> None:
        self.path, self.left = path, looks

    @property
    def summary_file(self) -> Any:
        self.left -= 1
        return SimpleNamespace(exists=lambda: self.left < 0)


def control(*answers: RunStatus | Exception) -> Any:
    left = list(answers)

    def status(run: int) -> RunStatus:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(status=status)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "POLL", 0.0)
    monkeypatch.setattr(submission, "LOOK", -1.0)
    monkeypatch.setattr(submission, "running", lambda folder, service: [])


def followed(tmp_path: Path, looks: int, *answers: RunStatus | Exception) -> None:
    follow(FederationFolder(tmp_path), control(*answers), 7, Results(tmp_path, looks))  # type: ignore[arg-type]


def test_a_summary_ends_the_following(tmp_path: Path) -> None:
    followed(tmp_path, 2, RunStatus("running", ""), RunStatus("running", ""))


@pytest.mark.parametrize("details", ["No heartbeat received from the task", "SuperLink was restarted"])
def test_a_run_without_heartbeat_is_lost(tmp_path: Path, details: str) -> None:
    with pytest.raises(Lost, match="run 7 was lost"):
        followed(tmp_path, 99, RunStatus("running", ""), RunStatus("finished:failed", details))


def test_an_app_that_failed_is_not_submitted_again(tmp_path: Path) -> None:
    details = "ServerApp failed with exception: dataset = x: is no data set"
    with pytest.raises(LaunchFailed, match=r"^dataset = x: is no data set$"):
        followed(tmp_path, 99, RunStatus("finished:failed", details))


def test_a_superlink_that_is_away_is_no_failure_of_the_app(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        followed(tmp_path, 99, RunStatus("running", ""), Unreachable("away"))


def test_a_process_that_is_gone_is_lost_before_its_heartbeat_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "running", lambda folder, service: ["process"])
    monkeypatch.setattr(submission, "alive", lambda process: False)
    monkeypatch.setattr(submission, "FAREWELL", -1.0)
    with pytest.raises(Lost, match="the process of run 7 is gone"):
        followed(tmp_path, 99, RunStatus("running", ""))
