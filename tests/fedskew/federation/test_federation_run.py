"""A run of a federation goes on where its process or the SuperLink was lost, and ends where the app failed."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.engines.flower import LaunchFailed
from fedskew.federation import database, supervision
from fedskew.federation import run as run_module
from fedskew.federation.folder import FederationFolder
from fedskew.federation.run import RunLost, follow
from fedskew.federation.superlink import Failing, RunStatus, UnknownRun, Unreachable
from server_app.lock import FolderBusy, locked
from server_app.run_folder import RunFolder
from server_app.settings import parse
from tests.site_files import agreed, public_key, write


class Results:
    """A run folder whose summary comes after some looks."""

    def __init__(self, path: Path, looks: int) -> None:
        self.path, self.left = path, looks
        self.waiting_file = path / "waiting.txt"

    @property
    def summary_file(self) -> Any:
        self.left -= 1
        return SimpleNamespace(exists=lambda: self.left < 0)


def control(*answers: RunStatus | Exception) -> Any:
    """Return a control interface with these answers about a run, one a look; a run that is stopped is noted."""
    left, stopped = list(answers), list[int]()

    def status(run: int) -> RunStatus:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(status=status, stop=stopped.append, stopped=stopped)


def stand_in_folder(path: Path) -> Any:
    """Return what `run` reads of a federation's folder; nothing of it is on the disk."""
    coordinator = SimpleNamespace(superlink_port=1)
    return SimpleNamespace(path=path, state=path, coordinator=coordinator, authority=[b""])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "POLL", 0.0)
    monkeypatch.setattr(run_module, "LOOK", -1.0)
    monkeypatch.setattr(run_module, "running", lambda folder, service: [])
    monkeypatch.setattr(supervision, "restart_superexec", lambda folder: False)
    monkeypatch.setattr(supervision, "gateway_answers", lambda folder: True)
    monkeypatch.setattr(run_module, "gateway_answers", lambda folder: True)


def followed(tmp_path: Path, looks: int, *answers: RunStatus | Exception) -> list[str]:
    """Follow run 7 with these answers about it, and return what is told meanwhile."""
    lines: list[str] = []
    follow(
        FederationFolder(tmp_path),
        control(*answers),
        7,
        Results(tmp_path, looks),
        lines.append,  # type: ignore[arg-type]
    )
    return lines


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
    with pytest.raises(RunLost, match="run 7 was lost"):
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
    monkeypatch.setattr(run_module, "running", lambda folder, service: ["process"])
    monkeypatch.setattr(run_module, "alive", lambda process: False)
    monkeypatch.setattr(run_module, "FAREWELL", -1.0)
    with pytest.raises(RunLost, match="the process of run 7 is gone"):
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
        run_module, "Control", lambda port, authority: SimpleNamespace(submit=submit)
    )
    monkeypatch.setattr(run_module, "follow", follow)
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(run_module, "LOOK", 5.0)
    lines: list[str] = []
    with pytest.raises(
        LaunchFailed, match=r"for 10 minutes: `fedskew federation up chest` starts it, and the same"
    ):
        run_module.run(folder, settings, lines.append)  # type: ignore[arg-type]
    assert clock.now // 60 == minutes
    assert len([line for line in lines if "is submitted again" in line]) == 1 + len(answers)


def test_a_federation_trains_one_run_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would end each other's server process as an orphan, again and again."""
    monkeypatch.setattr("server_app.lock.LOCK_WAIT", 0.0)
    folder = stand_in_folder(tmp_path)
    monkeypatch.setattr(run_module, "Control", lambda port, authority: None)
    monkeypatch.setattr(
        run_module, "end_orphans", lambda folder: pytest.fail("it ends the other's")
    )
    settings = parse({"dataset": "digits", "results": str(tmp_path / "results")})
    with (
        locked(tmp_path),
        pytest.raises(FolderBusy, match=rf"^process {os.getpid()} .*one run at a time$"),
    ):
        run_module.run(folder, settings, lambda line: None)


class Unlucky:
    """A SuperLink whose runs are lost; after some of them there is a round more."""

    def __init__(self, results: RunFolder, rounds_after: set[int]) -> None:
        self.results, self.rounds_after, self.submitted = results, rounds_after, 0

    def submit(self, app: str, config: Any) -> int:
        self.submitted += 1
        return self.submitted

    def follow(
        self, folder: FederationFolder, control: Any, number: int, results: Any, report_line: Any
    ) -> None:
        if number in self.rounds_after:
            with self.results.rounds_file.open("a") as file:
                file.write("a round\n")
        raise RunLost(f"run {number} was lost (No heartbeat)")


@pytest.mark.parametrize(("rounds_after", "submissions"), [(set(), 5), ({3}, 7), ({1, 5, 9}, 13)])
def test_a_run_that_is_lost_again_and_again_without_a_round_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds_after: set[int], submissions: int
) -> None:
    settings = parse({"dataset": "digits", "rounds": 3, "results": str(tmp_path)})
    settings.folder.mkdir()
    superlink = Unlucky(RunFolder(settings.folder), rounds_after)
    folder = stand_in_folder(tmp_path)
    monkeypatch.setattr(run_module, "Control", lambda port, authority: superlink)
    monkeypatch.setattr(run_module, "follow", superlink.follow)
    monkeypatch.setattr(run_module, "LOOK", 0.0)
    with pytest.raises(
        LaunchFailed,
        match=r"^run \d+ was lost \(No heartbeat\), 5 times in a row without a round .*same command",
    ):
        run_module.run(folder, settings, lambda line: None)
    assert superlink.submitted == submissions


PENDING, RUNNING = RunStatus("pending", ""), RunStatus("running", "")


def test_a_superexec_that_was_killed_is_started_again_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [False, True, False]
    monkeypatch.setattr(supervision, "restart_superexec", lambda folder: gone.pop(0))
    lines = followed(tmp_path, 4, PENDING, PENDING, PENDING, RUNNING)
    assert [line for line in lines if "flower-superexec had ended" in line] == lines and len(
        lines
    ) == 1


def test_a_run_that_stays_pending_is_stopped_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a deadline `federation run` waits for ever for a run that nothing begins."""
    clock = Clock()
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(run_module, "POLL", 1.0)
    answers = control(*[PENDING] * 1000)
    with pytest.raises(
        LaunchFailed, match=r"^run 7 was pending for 120 s: flower-superexec.* does not take it"
    ):
        follow(FederationFolder(tmp_path), answers, 7, Results(tmp_path, 1000), print)  # type: ignore[arg-type]
    assert answers.stopped == [7] and 120 < clock.now < 125


def test_a_run_that_was_pending_for_long_and_goes_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(run_module, "POLL", 1.0)
    assert followed(tmp_path, 300, *[PENDING] * 100, *[RUNNING] * 300) == []


@pytest.mark.parametrize(
    "words",
    [
        "the superlink of these words is the app's",
        "round 3: client 0: no reply; a node reported: Error: Node Unavailable, it failed to report a heartbeat",
        "Task failed with unknown error.",
    ],
)
def test_no_sentence_of_the_app_counts_as_a_loss(tmp_path: Path, words: str) -> None:
    details = f"ServerApp failed with exception: {words}"
    with pytest.raises(LaunchFailed, match=words[:20]):
        followed(tmp_path, 99, RunStatus("finished:failed", details))


def test_a_run_that_failed_while_the_gate_was_silent_is_lost_and_the_gate_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(run_module, "POLL", 1.0)
    monkeypatch.setattr(supervision, "gateway_answers", lambda folder: clock.now < 5)
    lines: list[str] = []
    failed = RunStatus(
        "finished:failed", "ServerApp failed with exception: round 3: 0 good replies"
    )
    with pytest.raises(
        RunLost,
        match=r"whose gateway did not answer for \d+ s \(the run says: round 3: 0 good replies\)",
    ):
        follow(
            FederationFolder(tmp_path),
            control(*[RUNNING] * 60, failed),
            7,
            Results(tmp_path, 99),
            lines.append,  # type: ignore[arg-type]
        )
    assert len(lines) == 1 and lines[0].startswith("the gateway does not answer: no site can reach")


def test_a_gate_that_is_slow_once_explains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [True, False, True, True]
    monkeypatch.setattr(supervision, "gateway_answers", lambda folder: looks.pop(0))
    failed = RunStatus("finished:failed", "ServerApp failed with exception: no such method")
    with pytest.raises(LaunchFailed, match=r"^no such method$"):
        followed(tmp_path, 99, *[RUNNING] * 3, failed)


def test_after_a_loss_the_gate_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(run_module, "LOOK", 5.0)
    monkeypatch.setattr(run_module, "gateway_answers", lambda folder: clock.now > 300)
    run_module.wait_for_gateway(FederationFolder(tmp_path), RunLost("gone"))
    assert 300 < clock.now < 310
    monkeypatch.setattr(run_module, "gateway_answers", lambda folder: False)
    with pytest.raises(LaunchFailed, match=r"^gone; its gateway has not answered for 10 minutes"):
        run_module.wait_for_gateway(FederationFolder(tmp_path), RunLost("gone"))


def lost_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    submitted: Callable[[RunFolder], None],
    leave: Callable[[RunFolder], None] = lambda results: None,
) -> None:
    """Run until the second submission, which fails.

    `submitted` gets the run's folder at each of the two, `leave` before the first one and as that one is lost.
    """
    settings = parse({"dataset": "digits", "rounds": 3, "results": str(tmp_path)})
    settings.folder.mkdir()
    results = RunFolder(settings.folder)
    numbers = count()

    def submit(app: str, config: Any) -> int:
        submitted(results)
        return next(numbers)

    def follow(folder: Any, control: Any, number: int, *_: object) -> None:
        leave(results)
        if number == 0:
            raise RunLost("run 0 was lost")
        raise LaunchFailed("so far")

    folder = stand_in_folder(tmp_path)
    monkeypatch.setattr(
        run_module, "Control", lambda port, authority: SimpleNamespace(submit=submit)
    )
    monkeypatch.setattr(run_module, "follow", follow)
    leave(results)
    with pytest.raises(LaunchFailed, match="so far"):
        run_module.run(folder, settings, lambda line: None)


def test_a_run_that_is_lost_is_submitted_again_once_the_gate_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No site could take part before, and the run would be given up after five submissions in vain."""
    clock, moments = Clock(), list[float]()
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(run_module, "LOOK", 5.0)
    monkeypatch.setattr(run_module, "gateway_answers", lambda folder: clock.now > 300)
    lost_once(tmp_path, monkeypatch, lambda results: moments.append(clock.now))
    first, second = moments
    assert first == 0 and 300 < second < 320


def test_a_process_that_was_killed_while_it_waited_leaves_no_word_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of an earlier command nor of this one's submission before: the next one does not wait yet."""
    monkeypatch.setattr(run_module, "LOOK", 0.0)
    seen = list[str]()
    lost_once(
        tmp_path,
        monkeypatch,
        submitted=lambda results: seen.append(run_module.waiting_line(results)),
        leave=lambda results: results.note_waiting("waiting for site north since 60 s"),
    )
    assert seen == ["", ""]


def test_it_is_told_for_whom_the_run_waits(tmp_path: Path) -> None:
    words = "waiting for site north since 60 s; left out after timeout = 3600 s"
    (tmp_path / "waiting.txt").write_text(words)
    assert followed(tmp_path, 3, RUNNING, RUNNING, RUNNING) == [words], (
        "once, as long as it is the same"
    )


def test_a_run_that_a_new_database_does_not_know_is_lost(tmp_path: Path) -> None:
    with pytest.raises(RunLost, match="run 7 was lost"):
        followed(tmp_path, 99, RUNNING, UnknownRun("the SuperLink does not list run 7"))


def damaged(folder: Path) -> None:
    """Make a database of which a page in the middle is damaged."""
    file = folder / "state.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table runs (word text)")
        connection.executemany("insert into runs values (?)", [("x" * 3000,)] * 50)
        connection.commit()
    content = bytearray(file.read_bytes())
    content[8192:16384] = os.urandom(8192)
    file.write_bytes(content)


@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_database_ends_the_run_with_what_is_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    settings = parse({"dataset": "digits", "rounds": 3, "results": str(tmp_path)})
    settings.folder.mkdir()
    (damaged if not whole else lambda folder: None)(tmp_path)

    def submit(app: str, config: Any) -> int:
        raise Failing("the SuperLink fails at StartRun (500)")

    folder = stand_in_folder(tmp_path)
    monkeypatch.setattr(
        run_module, "Control", lambda port, authority: SimpleNamespace(submit=submit)
    )
    words = r"fails at StartRun \(500\);" if whole else r"state\.db is damaged .*move state\.db\*"
    with pytest.raises(LaunchFailed, match=words):
        run_module.run(folder, settings, lambda line: None)


def test_a_database_that_is_no_database_is_damaged_and_a_whole_or_locked_one_is_not(
    tmp_path: Path,
) -> None:
    folder: Any = SimpleNamespace(path=tmp_path, state=tmp_path)
    assert database.damage_of(folder) == "", "there is none yet"
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("create table runs (word text)")
        connection.commit()
        assert database.damage_of(folder) == ""
        connection.execute("begin exclusive")
        assert database.damage_of(folder) == ""
    (tmp_path / "state.db").write_bytes(os.urandom(8192))
    assert "file is not a database" in database.damage_of(folder)


@pytest.mark.parametrize(
    ("names", "method", "told"),
    [
        (("north", "east"), "fedshift", True),
        (("north", "east"), "reweighting", True),
        (("north", "east"), "fedavg", False),
        (("north", "east", "south"), "fedshift", False),
    ],
)
def test_it_is_told_that_two_sites_learn_each_others_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], method: str, told: bool
) -> None:
    members = [{"name": name, "key": public_key(name)} for name in names]
    file = write(tmp_path / "federation.toml", agreed(site=members, min_sites=2))
    results = str(tmp_path / "results")
    settings = parse({"dataset": f"sites:{file}", "method": method, "results": results})
    folder = stand_in_folder(tmp_path)

    def submit(app: str, config: Any) -> int:
        raise LaunchFailed("so far")

    monkeypatch.setattr(
        run_module, "Control", lambda port, authority: SimpleNamespace(submit=submit)
    )
    lines: list[str] = []
    with pytest.raises(LaunchFailed, match="so far"):
        run_module.run(folder, settings, lines.append)  # type: ignore[arg-type]
    words = f"{method} sends the sum of both sites' class counts to both: north and east learn"
    assert any(line.startswith(words) for line in lines) == told
