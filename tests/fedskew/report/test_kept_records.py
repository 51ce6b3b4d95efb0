"""Kept records: written from a finished run, checked when read, and refused with one sentence where they are wrong."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

import fedskew.report.kept_records as kept_records
from data import DataError
from fedskew.engines.local import LocalGrid
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.experiments import experiment as read_experiment
from fedskew.experiments.plan import plan, runs
from fedskew.report.differences import differences
from fedskew.report.kept_records import KeptRecords, KeptRun, file_of, keep, origins, packed, read
from fedskew.report.results import ExperimentResults, gather
from fedskew.report.run_records import RunRecords
from fedskew.report.verification import verified_run
from server_app.app import run
from server_app.run_settings import RunSettings
from tests.in_process import KEEP_BEST, SMALL
from tests.in_process import small as small_settings

SETTINGS = {key: value for key, value in SMALL.items() if key not in ("method", "device")}
ENTRY: dict[str, Any] = {
    "title": "small",
    "settings": {**SETTINGS, "rounds": 6},
    "methods": ["fedavg", "fedprox"],
    "metric": "accuracy",
    "selection": "mean-of-last-5",
}
Change = Callable[[dict[str, Any]], object]
Records = TypeVar("Records", bound=RunRecords)


@pytest.fixture(scope="module")
def small() -> Experiment:
    return read_experiment("small", ENTRY)


@pytest.fixture(scope="module")
def trained(small: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the entry's finished runs."""
    results = tmp_path_factory.mktemp("results")
    for settings in runs(plan(small, {"results": str(results), "device": "cpu"})):
        with LocalGrid() as grid:
            run(grid, settings, lambda line: None)
    return results


def planned(small: Experiment, results: Path) -> list[RunSettings]:
    return runs(plan(small, {"results": str(results), "device": "cpu"}))


@pytest.fixture
def folder(small: Experiment, trained: Path, tmp_path: Path) -> Path:
    """A folder of records of these runs."""
    written, _ = keep(list(map(RunRecords.read, planned(small, trained))), tmp_path / "kept")
    assert len(written) == 2
    return tmp_path / "kept"


def on_gpu(run: Records, model: str) -> Records:
    """The same run as if a GPU of this model had trained it."""
    workers = [{"process": 1, "device": "cuda", "visible-gpus": "0", "gpu": model}]
    return replace(run, records=[replace(record, workers=workers) for record in run.records])


def results_of(small: Experiment, results: Path, records: Path | None) -> ExperimentResults:
    overrides = {"results": str(results), "device": "cpu"}
    return gather(small, overrides, kept=KeptRecords(records).of)


def test_a_report_from_kept_records_is_the_report_from_the_runs(
    small: Experiment, trained: Path, folder: Path, tmp_path: Path
) -> None:
    there = results_of(small, trained, None)
    elsewhere = results_of(small, tmp_path / "empty", folder)
    assert len(there.finished) == len(elsewhere.finished) == 2
    assert all(isinstance(run, KeptRun) for run in elsewhere.runs.values())
    assert not results_of(small, tmp_path / "empty", None).finished
    for row in ("fedavg", "fedprox"):
        (ours,), (theirs,) = there.of(row, ""), elsewhere.of(row, "")
        assert [point.numbers["accuracy"] for point in ours.points] == [
            point.numbers["accuracy"] for point in theirs.points
        ]
    assert str(differences(there, "")) == str(differences(elsewhere, ""))


def test_a_finished_run_of_the_results_folder_goes_before_a_kept_one(
    small: Experiment, trained: Path, folder: Path
) -> None:
    both = results_of(small, trained, folder)
    assert not any(isinstance(run, KeptRun) for run in both.runs.values())


def test_a_record_has_no_path_and_says_where_it_comes_from(
    small: Experiment, trained: Path, folder: Path
) -> None:
    settings = planned(small, trained)[0]
    file = file_of(folder, settings.run_id)
    text = gzip.decompress(file.read_bytes()).decode()
    assert str(trained) not in text and len(file.read_bytes()) < 8000
    run = read(file, settings)
    assert origins([run]) == [
        f"1 run of commit {run.commit[:12]}, CPU type {run.cpu}, "
        f"torch {run.origin['versions']['torch']}"
    ]
    old = [replace(record, workers=[{"device": "cuda"}]) for record in run.records]
    assert ", a GPU, torch" in origins([replace(run, records=old)])[0]
    assert ", cuda (GPU A), torch" in origins([on_gpu(run, "GPU A")])[0]


def test_a_record_has_the_model_of_the_gpu(
    small: Experiment, trained: Path, tmp_path: Path
) -> None:
    settings = planned(small, trained)[0]
    run = on_gpu(RunRecords.read(settings), "GPU A")
    (file,), _ = keep([run], tmp_path)
    kept = read(file, settings)
    assert kept.versions["device"] == "cuda (GPU A)"
    assert [record.workers for record in kept.records] == [
        [{"device": "cuda", "gpu": "GPU A"}] for _ in run.records
    ]

    elsewhere = replace(on_gpu(run, "GPU B"), summary={**run.summary, "hash": {"all": "0" * 64}})
    cells = plan(small, {"results": str(trained), "device": "cpu"})
    other = verified_run(kept, elsewhere, cells, {"small": small})
    assert other.holds and other.words.startswith("agrees: another device, and every number")
    again = verified_run(kept, on_gpu(elsewhere, "GPU A"), cells, {"small": small})
    assert not again.holds, "another hash on the same GPU"

    content = json.loads(gzip.decompress(file.read_bytes()))
    del content["checksum"]
    content["rounds"][0]["workers"][0]["memory"] = "80 GB"
    file.write_bytes(packed(content))
    with pytest.raises(DataError, match="workers"):
        read(file, settings)


def test_the_same_runs_give_the_same_bytes_and_a_second_time_nothing_is_written(
    small: Experiment, trained: Path, folder: Path
) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    written, total = keep(list(map(RunRecords.read, planned(small, trained))), folder)
    assert written == [] and total == sum(map(len, before.values()))
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_more_bytes_than_the_repository_takes_are_refused(
    small: Experiment, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_records, "LARGEST_FOLDER", 1000)
    with pytest.raises(DataError, match="at most 1000 are kept"):
        keep(list(map(RunRecords.read, planned(small, trained))), tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def round_of(content: dict[str, Any], number: int = 5) -> dict[str, Any]:
    (model,) = content["rounds"][number]["models"].values()
    assert isinstance(model, dict)
    return model


WRONG: dict[str, tuple[Change, str]] = {
    "another run": (lambda c: c.update(run="digits-x"), "is of run digits-x, not digits-fedavg"),
    "a later format": (lambda c: c.update(format=2), "has format 2, not 1"),
    "an unknown key": (lambda c: c.update(weights=[1.0]), "weights is no key of a kept run"),
    "a key that is missing": (lambda c: c.pop("hash"), "is damaged"),
    "another setting": (
        lambda c: c["settings"].update(alpha=0.7),
        "settings: alpha is 0.7 in the file and 0.5 in the run",
    ),
    "a setting of no run": (
        lambda c: c["settings"].update({"of-nothing": 1}),
        "settings: of-nothing is 1 in the file and None in the run",
    ),
    "a version that is no text": (lambda c: c["versions"].update(cpu=5), "versions: cpu must be"),
    "a version of control characters": (
        lambda c: c["versions"].update(commit="\x1b[31m"),
        "versions: commit must be",
    ),
    "a hash that is none": (lambda c: c["hash"].update(all="zz"), "hash: all must be 8 to 64"),
    "no hash of the run": (lambda c: c["hash"].pop("all"), "hash: all must be 8 to 64"),
    "failures below 0": (lambda c: c.update(failures=-1), "failures must be 0 or more"),
    "samples of another shape": (
        lambda c: c["samples"].update(test=[1, 2]),
        "samples: test must be counts of shape 10",
    ),
    "a round twice": (lambda c: c["rounds"].append(c["rounds"][-1]), "rounds must be the rounds 1"),
    "a round too few": (lambda c: c["rounds"].pop(), "rounds must be the rounds 1 to 6"),
    "an evaluated round without numbers": (
        lambda c: c["rounds"][2].update(models={}),
        "round 3: models must have the numbers",
    ),
    "an accuracy above 1": (
        lambda c: round_of(c).update(accuracy=1.5),
        "round 6: average: accuracy must be a number between 0 and 1",
    ),
    "an accuracy as text": (
        lambda c: round_of(c).update(accuracy="0.5"),
        "round 6: average: accuracy must be a number between 0 and 1",
    ),
    "an accuracy as an integer": (
        lambda c: round_of(c).update(accuracy=1),
        "round 6: average: accuracy must be a number between 0 and 1",
    ),
    "an unknown number": (
        lambda c: round_of(c).update(score=0.5),
        "round 6: average: score is no number of a kept run",
    ),
    "recalls of other classes": (
        lambda c: round_of(c).update(recall=[0.5]),
        "round 6: average: recall must be 10 numbers",
    ),
    "a confusion matrix below 0": (
        lambda c: round_of(c)["confusion"][0].__setitem__(0, -1),
        "round 6: average: confusion must be 10 x 10 counts",
    ),
    "a model's name with a path": (
        lambda c: c["rounds"][0]["models"].update({"../x": {}}),
        "must be a model's name",
    ),
    "a time below 0": (
        lambda c: c["rounds"][0]["seconds"].update(round=-1.0),
        "round 1: seconds: round must be a number of 0 or more",
    ),
    "a method's number that is text": (
        lambda c: c["rounds"][0].update({"matching-loss": "low"}),
        "round 1: matching-loss must be a number",
    ),
    "an early end without patience": (
        lambda c: (c.update(ended={"round": 5, "reason": "patience"}), c["rounds"].pop()),
        "ended: round must be a round before round 6 of a run with patience",
    ),
    "a best round without keep-best": (
        lambda c: round_of(c).update(best=True),
        "round 6: average: best must be true, with keep-best",
    ),
    "a model without a row": (lambda c: c.update(rows={}), "rows: average must be the name"),
}


@pytest.mark.parametrize("name", ["nothing", *WRONG])
def test_a_file_with_something_wrong_is_refused_by_name(
    name: str, small: Experiment, trained: Path, folder: Path
) -> None:
    settings = planned(small, trained)[0]
    file = file_of(folder, settings.run_id)
    content = json.loads(gzip.decompress(file.read_bytes()))
    del content["checksum"]
    if name == "nothing":  # the control
        file.write_bytes(packed(content))
        assert read(file, settings).finished
        return
    change, sentence = WRONG[name]
    change(content)
    file.write_bytes(packed(content))
    with pytest.raises(DataError) as refused:
        read(file, settings)
    assert str(refused.value).startswith(f"{file}: ") and sentence in str(refused.value)
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value)


def test_a_run_that_ended_early_keeps_its_best_round_and_its_reason(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, "method": "fedbn", "learning_rate": 0.3, "patience": 1}
    settings = small_settings(tmp_path / "results", **changes)
    with LocalGrid() as grid:
        run(grid, settings, lambda line: None)
    trained = RunRecords.read(settings)
    assert trained.ended and trained.rounds == 3
    (written,), _ = keep([trained], tmp_path / "kept")
    kept = read(written, settings)
    assert kept.finished and kept.ended == trained.ended and kept.summary is not None
    best = kept.summary["models"]["average"]["best"]
    assert best["round"] == 2 == trained.summary["models"]["average"]["best"]["round"]  # type: ignore[index]

    content = json.loads(gzip.decompress(written.read_bytes()))
    del content["checksum"]
    for ended in ({"round": 7, "reason": "x"}, {"round": 3, "reason": 5}, {"round": "3"}, {}):
        written.write_bytes(packed({**content, "ended": ended}))
        with pytest.raises(DataError, match=r"ended|is damaged"):
            read(written, settings)
    written.write_bytes(packed(content))
    assert read(written, settings).finished, "the control"


@pytest.mark.parametrize("damage", ["cut", "no gzip", "a changed digit", "NaN", "empty", "large"])
def test_a_damaged_file_is_refused(
    damage: str, small: Experiment, trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = planned(small, trained)[0]
    file = file_of(folder, settings.run_id)
    content = file.read_bytes()
    text = gzip.decompress(content)
    accuracy = text.index(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    other = b"1" if text[accuracy : accuracy + 1] != b"1" else b"2"
    changed = {
        "cut": content[:-100],
        "no gzip": b"{}",
        "a changed digit": gzip.compress(text[:accuracy] + other + text[accuracy + 1 :]),
        "NaN": gzip.compress(text.replace(b'"failures": 0', b'"failures": NaN')),
        "empty": b"",
        "large": gzip.compress(b" " * 10**6),
    }
    monkeypatch.setattr(kept_records, "LARGEST_TEXT", 10**5)
    assert read(file, settings).finished  # the control
    file.write_bytes(changed[damage])
    with pytest.raises(DataError, match=file.name):
        read(file, settings)


def test_a_repeated_run_is_identical_and_a_changed_number_is_found(
    small: Experiment, trained: Path, folder: Path
) -> None:
    settings = planned(small, trained)[0]
    file = file_of(folder, settings.run_id)
    repeated = RunRecords.read(settings)
    cells = plan(small, {"results": str(trained), "device": "cpu"})
    kept = read(file, settings)
    same = verified_run(kept, repeated, cells, {"small": small})
    assert same.holds and same.words == "identical: the same hash and numbers"
    assert [check.agrees for check in same.cells] == [True]

    content = json.loads(gzip.decompress(file.read_bytes()))
    del content["checksum"]
    round_of(content, 2)["accuracy"] += 0.01
    file.write_bytes(packed(content))
    changed = verified_run(read(file, settings), repeated, cells, {"small": small})
    assert not changed.holds and changed.words.startswith("differs: the same hash, and other")

    round_of(content, 2)["accuracy"] -= 0.01
    content["hash"]["all"] = "0" * 64
    file.write_bytes(packed(content))
    other = verified_run(read(file, settings), repeated, cells, {"small": small})
    assert not other.holds and "another hash with the same CPU type" in other.words

    content["versions"]["cpu"] = "NEON"
    file.write_bytes(packed(content))
    elsewhere = verified_run(read(file, settings), repeated, cells, {"small": small})
    assert elsewhere.holds and elsewhere.words.startswith("agrees: another cpu, and every number")

    for number in range(6):
        model = round_of(content, number)
        model["accuracy"] = model["balanced-accuracy"] = 0.05
        if "recall" in model:
            model["recall"] = [0.05] * 10
    file.write_bytes(packed(content))
    far = verified_run(read(file, settings), repeated, cells, {"small": small})
    assert not far.holds and far.words.endswith("a number lies outside its interval")
