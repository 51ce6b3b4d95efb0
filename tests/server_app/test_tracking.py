"""TensorBoard's event files hold what rounds.jsonl holds, once, however often the run was stopped."""

import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import FedSkew
from in_process import PLACES, FinishedRun, kill, small
from rich.console import Console

from data import SettingError
from fedskew.engines import execute
from fedskew.sweep import run_all
from server_app.run_folder import RunFolder
from server_app.settings import parse
from server_app.trackers import Tracker, scalars

pytest.importorskip("tensorboard")

Train = Callable[..., FinishedRun]
Curves = dict[str, list[tuple[int, float]]]


def curves(folder: RunFolder) -> Curves:
    """Return steps and values of every scalar that TensorBoard reads, by step: two starts may share a second."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {
        tag: sorted((event.step, event.value) for event in events.Scalars(tag))
        for tag in events.Tags()["scalars"]
    }


def recorded(folder: RunFolder) -> Curves:
    """Return the same from rounds.jsonl."""
    result: Curves = {}
    for record in folder.rounds():
        for tag, value in scalars(record):
            result.setdefault(tag, []).append((record.round, value))
    return result


def assert_equal(drawn: Curves, wanted: Curves) -> None:
    """Event files hold float32."""
    assert drawn.keys() == wanted.keys()
    for tag, points in wanted.items():
        assert [step for step, _ in drawn[tag]] == [step for step, _ in points], tag
        assert all(
            math.isclose(a, b, rel_tol=1e-6)
            for (_, a), (_, b) in zip(drawn[tag], points, strict=True)
        ), tag


def test_the_curves_are_the_records(train: Train) -> None:
    outcome = train(method="creff", rounds=3, tensorboard=True)
    drawn = curves(outcome.folder)
    assert_equal(drawn, recorded(outcome.folder))
    for tag in ("balanced-accuracy/creff", "balanced-accuracy/average", "run/loss", "run/matching-loss", "run/bytes-up",
                "run/seconds-clients", "run/failures", "local-accuracy-worst-decile/creff"):  # fmt: skip
        assert [step for step, _ in drawn[tag]] == [1, 2, 3]


def test_a_run_is_the_same_with_and_without(train: Train) -> None:
    with_curves, without = train("with", tensorboard=True), train("without")
    assert with_curves.hash == without.hash and with_curves.records == without.records
    assert with_curves.folder.path.name == without.folder.path.name
    assert not (without.folder.path / "tensorboard").exists()


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_with_the_same_curve(train: Train, tmp_path: Path, place: str) -> None:
    changes = {"rounds": 4, "tensorboard": True}
    kill(tmp_path / "results", place, changes)
    for file in (tmp_path / "results").rglob(
        "events.out.tfevents.*"
    ):  # which are read in the order of their seconds
        began = re.sub(
            r"tfevents\.(\d+)", lambda second: f"tfevents.{int(second[1]) - 1}", file.name
        )
        file.rename(file.with_name(began))
    outcome = train(**changes)
    assert any("resuming" in line for line in outcome.lines)
    assert_equal(curves(outcome.folder), recorded(outcome.folder))
    assert [step for step, _ in curves(outcome.folder)["run/loss"]] == [1, 2, 3, 4]


def test_a_finished_run_can_still_be_drawn_and_a_repeated_one_begins_anew(train: Train) -> None:
    train()
    for changes in ({}, {}, {"overwrite": True}):
        outcome = train(tensorboard=True, **changes)
        assert_equal(curves(outcome.folder), recorded(outcome.folder))


@pytest.mark.parametrize("way", ["a sweep", "ray"])
def test_a_finished_run_is_drawn_without_being_conducted(
    train: Train, tmp_path: Path, way: str
) -> None:
    outcome, config = train(), small(tmp_path / "results", tensorboard=True)
    if way == "ray":
        execute(config, "ray", print)
    else:
        run_all([config], [], Console(file=io.StringIO()))
    assert_equal(curves(outcome.folder), recorded(outcome.folder))


def test_the_command_has_the_option(tmp_path: Path, fedskew: FedSkew) -> None:
    words = ("--engine", "inprocess", "--tensorboard", "--results", tmp_path, "--set", "rounds=1")
    assert fedskew("run", *words)[0] == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert_equal(curves(RunFolder(folder)), recorded(RunFolder(folder)))


def test_a_tracker_hears_of_the_end_also_when_the_run_fails(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []

    class Listening(Tracker):
        def begin(self, settings, records) -> None:
            heard.append(("begin", settings["rounds"], len(records)))

        def round(self, record) -> None:
            heard.append(record.round)

        def end(self, summary) -> None:
            heard.append(summary and summary["rounds"])

    monkeypatch.setattr("server_app.app.tracker_of", lambda settings, folder: Listening())
    train()
    assert heard == [("begin", 2, 0), 1, 2, 2]
    heard.clear()
    with pytest.raises(RuntimeError):
        train(learning_rate=1e30)
    assert heard == [("begin", 2, 0), None]


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.run_settings.find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match=r"tensorboard = True: .*pip install 'fedskew\[tensorboard\]'"
    ):
        parse({"tensorboard": True})
    parse({})
