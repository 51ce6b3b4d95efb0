"""A run of a federation goes on where its process or the SuperLink was lost, and ends where the app failed."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.flower import LaunchFailed
from fedskew.federation import submission
from fedskew.federation.control import RunStatus, Unreachable
from fedskew.federation.folder import FederationFolder
from fedskew.federation.submission import Lost, follow
from server_app.lock import FolderBusy, locked
from server_app.results import RunFolder
from server_app.settings import parse


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


@pytest.mark.parametrize(
    "details",
    [
        "No heartbeat received from the task",
        "SuperLink was restarted",
        "Task failed with unknown error.",
    ],
)
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


class Clock:
    """A clock that goes on where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("answers", "minutes"), [((), 10), ((7,), 10), ((60,), 15), ((60, 118), 19)]
)
def test_a_superlink_that_is_gone_for_good_ends_the_run_and_one_that_comes_back_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[int, ...], minutes: int
) -> None:
    """It answers some of the submissions, one every 5 seconds, and is gone again at once."""
    settings, clock, submissions = (
        parse({"dataset": "digits", "results": str(tmp_path)}),
        Clock(),
        list[float](),
    )

    def submit(app: str, config: Any) -> int:
        submissions.append(clock.now)
        if len(submissions) not in answers:
            raise Unreachable("the SuperLink does not answer")
        return 7

    def follow(*_: object) -> None:
        raise Unreachable("the SuperLink does not answer")

    folder = SimpleNamespace(
        path="chest",
        state=tmp_path / "state",
        coordinator=SimpleNamespace(superlink_port=1),
        authority=[b""],
    )
    monkeypatch.setattr(
        submission, "Control", lambda port, authority: SimpleNamespace(submit=submit)
    )
    monkeypatch.setattr(submission, "follow", follow)
    monkeypatch.setattr(submission, "time", clock)
    monkeypatch.setattr(submission, "LOOK", 5.0)
    lines: list[str] = []
    with pytest.raises(
        LaunchFailed, match=r"for 10 minutes: `fedskew federation up chest` starts it, and the same"
    ):
        submission.run(folder, settings, lines.append)  # type: ignore[arg-type]
    assert clock.now // 60 == minutes
    assert len([line for line in lines if "is submitted again" in line]) == 1 + len(answers)


def test_a_federation_trains_one_run_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would end each other's server process as an orphan, again and again."""
    monkeypatch.setattr("server_app.lock.LOCK_WAIT", 0.0)
    folder = SimpleNamespace(
        state=tmp_path, coordinator=SimpleNamespace(superlink_port=1), authority=[b""]
    )
    monkeypatch.setattr(submission, "Control", lambda port, authority: None)
    monkeypatch.setattr(
        submission, "end_orphans", lambda folder: pytest.fail("it ends the other's")
    )
    settings = parse({"dataset": "digits", "results": str(tmp_path / "results")})
    with (
        locked(tmp_path),
        pytest.raises(FolderBusy, match=rf"^process {os.getpid()} .*one run at a time$"),
    ):
        submission.run(folder, settings, lambda line: None)  # type: ignore[arg-type]


class Unlucky:
    """A SuperLink whose runs are lost; after some of them there is a round more."""

    def __init__(self, results: RunFolder, rounds_after: set[int]) -> None:
        self.results, self.rounds_after, self.submitted = results, rounds_after, 0

    def submit(self, app: str, config: Any) -> int:
        self.submitted += 1
        return self.submitted

    def follow(self, folder: FederationFolder, control: Any, number: int, results: Any) -> None:
        if number in self.rounds_after:
            with self.results.rounds_file.open("a") as file:
                file.write("a round\n")
        raise Lost(f"run {number} was lost (No heartbeat)")


@pytest.mark.parametrize(("rounds_after", "submissions"), [(set(), 5), ({3}, 7), ({1, 5, 9}, 13)])
def test_a_run_that_is_lost_again_and_again_without_a_round_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds_after: set[int], submissions: int
) -> None:
    settings = parse({"dataset": "digits", "rounds": 3, "results": str(tmp_path)})
    settings.folder.mkdir()
    superlink = Unlucky(RunFolder(settings.folder), rounds_after)
    folder = SimpleNamespace(
        path=tmp_path,
        state=tmp_path,
        coordinator=SimpleNamespace(superlink_port=1),
        authority=[b""],
    )
    monkeypatch.setattr(submission, "Control", lambda port, authority: superlink)
    monkeypatch.setattr(submission, "follow", superlink.follow)
    monkeypatch.setattr(submission, "LOOK", 0.0)
    with pytest.raises(
        LaunchFailed,
        match=r"^run \d+ was lost \(No heartbeat\), 5 times in a row without a round .*same command",
    ):
        submission.run(folder, settings, lambda line: None)  # type: ignore[arg-type]
    assert superlink.submitted == submissions
