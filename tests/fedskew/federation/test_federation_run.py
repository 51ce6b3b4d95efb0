"""`federation run` submits a run again where its process or the SuperLink was lost, and ends where the app failed."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.processes import LaunchFailed
from fedskew.federation import run as run_module
from fedskew.federation.control import Failing, RunLost, RunStatus, Unreachable
from server_app.record import RoundRecord
from server_app.run_folder import FolderBusy, RunFolder, locked
from server_app.run_settings import RunSettings
from server_app.settings import parse

PENDING, RUNNING = RunStatus("pending", ""), RunStatus("running", "")
AWAY, UNKNOWN = Unreachable("the SuperLink does not answer"), RunLost("not listed")
Answer = RunStatus | Exception


def failed(details: str) -> RunStatus:
    return RunStatus("finished:failed", details)


END = failed("ServerApp failed with exception: the app's own end")
"""How each of these runs ends at last: an app that fails is not submitted again."""


class SuperLink:
    """Answers about each submission with its list of answers, the last one again and again.

    Its clock goes on where somebody sleeps, and with each look at the machine's processes not at all.
    """

    def __init__(self, *submissions: list[Answer]) -> None:
        self.submissions = [[*answers] for answers in submissions]
        self.number = 0
        self.now = 0.0
        self.moments: list[float] = []
        """When a run was submitted."""
        self.stopped: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens before a look at a run's status."""

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def submit(self, app: Any, config: dict[str, Any]) -> int:
        self.config = config
        self.moments.append(self.now)
        self.number += 1
        first = self.answers[0]
        if isinstance(first, Exception) and not isinstance(first, RunLost):
            self.status(self.number)
        return self.number

    @property
    def answers(self) -> list[Answer]:
        return self.submissions[min(self.number, len(self.submissions)) - 1]

    def status(self, number: int) -> RunStatus:
        self.meanwhile()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self, number: int) -> None:
        self.stopped.append(number)


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    settings = parse({"dataset": "digits", "rounds": 3, "results": str(tmp_path)})
    settings.folder.mkdir()
    return settings


Run = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def run(tmp_path: Path, settings: RunSettings, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs the settings at a SuperLink; returns the error's sentence, and what was reported."""
    folder = SimpleNamespace(
        path="chest",
        state=tmp_path,
        log=tmp_path / "superlink.log",
        database=tmp_path / "state.db",
        coordinator_key=tmp_path / "coordinator.key",
        agreement=SimpleNamespace(sha256="0" * 64, run_key=""),
    )
    monkeypatch.setattr(run_module, "running", lambda folder, service: [])

    def begin(superlink: SuperLink, stated: RunSettings = settings) -> tuple[str, list[str]]:
        monkeypatch.setattr(run_module, "time", superlink)
        monkeypatch.setattr(run_module, "Control", lambda folder: superlink)
        lines: list[str] = []
        with pytest.raises(LaunchFailed) as ended:
            run_module.run(folder, stated, lines.append)  # type: ignore[arg-type]
        assert superlink.config["run-signature"] == ""
        return str(ended.value), [line for line in lines if not line.startswith("run folder:")]

    return begin


@pytest.mark.parametrize(
    ("answers", "submissions"),
    [
        ([failed("No heartbeat received from the task")], 2),
        ([RUNNING, failed("SuperLink was restarted")], 2),
        ([RUNNING, UNKNOWN], 2),
        ([RUNNING, AWAY], 2),
        ([AWAY], 2),
        ([RUNNING, END], 1),
        ([failed("ServerApp failed with exception: Task failed with unknown error.")], 1),
    ],
)
def test_a_run_that_is_lost_is_submitted_again_and_one_that_failed_is_not(
    run: Run, answers: list[Answer], submissions: int
) -> None:
    superlink = SuperLink(answers, [END])
    sentence, lines = run(superlink)
    assert superlink.number == submissions
    assert len([line for line in lines if "submit" in line]) == submissions - 1
    assert submissions == 1 or sentence == "the app's own end"


def test_a_process_that_is_gone_is_lost_before_its_heartbeat_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = SuperLink([RUNNING], [END])
    gone = SimpleNamespace(terminate=lambda: None)
    monkeypatch.setattr(run_module.psutil, "wait_procs", lambda processes, timeout: ([], []))
    monkeypatch.setattr(
        run_module, "running", lambda folder, service: [gone] * (superlink.number == 1)
    )
    monkeypatch.setattr(run_module, "alive", lambda process: False)
    _, lines = run(superlink)
    assert superlink.number == 2 and "process of run 1 is gone" in lines[0]
    assert superlink.moments[1] < 15


@pytest.mark.parametrize(("rounds_after", "submissions"), [(set(), 5), ({1, 5, 9}, 13)])
def test_a_run_that_is_lost_again_and_again_without_a_round_is_given_up(
    run: Run, settings: RunSettings, rounds_after: set[int], submissions: int
) -> None:
    superlink = SuperLink([failed("SuperLink was restarted")])

    def record_a_round() -> None:
        if superlink.number in rounds_after:
            with RunFolder(settings.folder).rounds_file.open("a") as file:
                file.write("a round\n")

    superlink.meanwhile = record_a_round
    sentence, _ = run(superlink)
    assert superlink.number == submissions and "5 times in a row" in sentence


def test_every_round_is_told_once_also_the_last_one_before_a_failure(
    run: Run, settings: RunSettings
) -> None:
    superlink = SuperLink([RUNNING, failed("SuperLink was restarted")], [RUNNING, END])
    folder = RunFolder(settings.folder)

    def record_a_round() -> None:
        number = len(folder.rounds()) + 1
        folder.add_round(RoundRecord(number, line=f"round {number}"))

    superlink.meanwhile = record_a_round
    _, lines = run(superlink)
    told = [line for line in lines if line.startswith("round")]
    assert told == ["round 1", "round 2", "round 3", "round 4"]


@pytest.mark.parametrize(("answers", "minutes"), [((), 10), ((60, 118), 20)])
def test_a_superlink_that_is_gone_for_good_ends_the_run_and_one_that_comes_back_does_not(
    run: Run, answers: tuple[int, ...], minutes: int
) -> None:
    """It takes some of the submissions, one every 5 seconds, and is gone again."""
    submissions: list[list[Answer]] = [[AWAY] for _ in range(300)]
    for number in answers:
        submissions[number - 1] = [RUNNING, AWAY]
    superlink = SuperLink(*submissions)
    sentence, lines = run(superlink)
    assert "for 10 minutes" in sentence and "fedskew federation up chest" in sentence
    assert superlink.now // 60 == minutes
    assert len([line for line in lines if "is submitted again" in line]) == 1 + len(answers)


def test_a_run_that_nothing_begins_is_stopped_after_two_minutes_and_one_that_begins_is_not(
    run: Run,
) -> None:
    superlink = SuperLink([PENDING])
    sentence, _ = run(superlink)
    assert "was pending for 120 s" in sentence
    assert superlink.stopped == [1] and 120 < superlink.now < 130
    superlink = SuperLink([PENDING] * 20 + [RUNNING] * 20 + [END])
    assert run(superlink) == ("the app's own end", []) and not superlink.stopped


def test_it_is_told_once_for_whom_the_run_waits_and_no_former_words_are(
    run: Run, settings: RunSettings
) -> None:
    folder, waits = RunFolder(settings.folder), "waiting for site north since 60 s"
    folder.note_waiting("of a process that was killed while it waited")
    superlink = SuperLink([RUNNING] * 3 + [END])
    assert run(superlink) == ("the app's own end", [])
    superlink = SuperLink([RUNNING] * 3 + [END])
    superlink.meanwhile = lambda: folder.note_waiting(waits)
    assert run(superlink) == ("the app's own end", [waits])


def test_a_superlink_that_fails_ends_the_run(run: Run) -> None:
    superlink = SuperLink([Failing("the SuperLink fails at StartRun (500)")])
    assert "fails at StartRun" in run(superlink)[0] and superlink.number == 1


def test_a_federation_trains_one_run_at_a_time(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would end each other's server process as an orphan, again and again."""
    monkeypatch.setattr("server_app.run_folder.LOCK_WAIT", 0.0)
    superlink = SuperLink([END])
    with locked(tmp_path), pytest.raises(FolderBusy) as busy:
        run(superlink)
    assert f"process {os.getpid()}" in str(busy.value) and not superlink.number
    run(superlink)
    assert superlink.number == 1
