"""keep-best and patience: which round is kept, when a run ends, and that a kill at any write changes neither."""

import json
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import KEEP_BEST, FinishedRun, TamperingGrid, contents_of, cut, experiment, small

import client_app.tensor_files
import fedskew
from client_app.memory import BEST_ROUNDS, folder_of, prune
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.state import digest
from client_app.tensor_files import read
from data import DataError, DataSettings, SettingError
from fedskew.costs.estimate import rounds_left
from fedskew.export.from_run import TrainedRun
from fedskew.report.result_warnings import state_warnings
from fedskew.report.run_records import RunRecords
from fedskew.sweep import finished
from server_app.best_round import METRICS, Best, BestRounds, why_ended
from server_app.checkpoint import Checkpoint, best_checkpoint, check_memory
from server_app.evaluation import metrics_from
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder
from server_app.run_settings import GeneralSettings
from server_app.setting_rules import check_keep_best
from server_app.trackers import scalars

RUNS: dict[str, dict[str, Any]] = {
    "ends in round 3, the best is 2": {"method": "fedbn", "learning_rate": 0.3, "patience": 1},
    "a last question in round 3": {"method": "ccvr", "learning_rate": 1.0, "patience": 2},
    "a best round of each model": {
        "method": "creff+fedbn",
        "learning_rate": 1.0,
        "patience": 1,
    },
    "a head of each client": {"method": "fedper", "learning_rate": 1.0, "patience": 1},
    "every second round": {
        "method": "scaffold+silobn",
        "learning_rate": 0.3,
        "rounds": 5,
        "evaluate_every": 2,
        "patience": 0,
    },
}


def numbers(value: float, metric: str = "accuracy") -> dict[str, ModelNumbers]:
    """Return one model's numbers, with this value on validation data and another one on the test set."""
    return {
        "average": ModelNumbers({metric: -value}, validation=ModelNumbers({metric: value})),
    }


def best_after(values: list[float], metric: str = "accuracy") -> BestRounds:
    """Return the best rounds after rounds with these values."""
    best = BestRounds()
    for round, value in enumerate(values, start=1):
        best = best.after(round, metric, numbers(value, metric))
    return best


@pytest.mark.parametrize(
    ("metric", "values", "round"),
    [
        ("accuracy", [0.5, 0.9, 0.9, 0.2], 2),
        ("macro-f1", [0.5, 0.9, 0.95], 3),
        ("loss", [0.5, 0.9, 0.5, 0.4, 0.4], 4),
        ("brier", [0.2, 0.1], 2),
        ("calibration-error", [0.1, 0.2], 1),
        ("accuracy", [math.nan, 0.1, math.nan, 0.0], 2),
        ("loss", [math.nan, math.inf, 7.0, math.nan], 3),
    ],
)
def test_the_first_best_round_by_the_metrics_own_direction(
    metric: str, values: list[float], round: int
) -> None:
    best = best_after(values, metric).best_of("average")
    assert best == Best(round, values[round - 1])
    again = best_after([*values], metric).after(len(values), metric, numbers(values[-1], metric))
    assert again.best_of("average") == best, "a round that is made again changes nothing"


def test_a_number_that_is_never_finite_has_no_best_round() -> None:
    best = best_after([math.nan, math.nan])
    assert best.best_of("average") is None and best.latest == 0
    assert best_after([math.nan, 0.0]).best_of("average") == Best(2, 0.0)


def test_best_rounds_that_a_checkpoint_may_name_stay() -> None:
    best = best_after([0.1, 0.2, 0.3, 0.4, 0.5])
    assert best.named_since(5) == [5] and best.named_since(4) == [4, 5]
    assert best.named_since(3) == [3, 4, 5] == best.named_since(1), "older ones are dropped"
    assert best_after([0.5, 0.2, 0.3, 0.4]).named_since(2) == [1]
    assert BestRounds.of(json.loads(json.dumps(best.to_json()))).to_json() == best.to_json()


@pytest.mark.parametrize(
    ("values", "every", "patience", "ends"),
    [
        ([0.5, 0.4, 0.3], 1, 2, 3),
        ([0.5, 0.4, 0.6, 0.5, 0.6], 1, 2, 5),
        ([0.5, 0.5], 1, 1, 2),
        ([0.1, 0.2, 0.3], 1, 1, None),
        ([0.5, 0.4, 0.3], 1, 0, None),
        ([math.nan, math.nan, math.nan], 1, 2, 2),
        ([9, 0.5, 9, 0.4, 9, 0.3], 2, 2, 6),
    ],
)
def test_patience_counts_evaluated_rounds(
    values: list[float], every: int, patience: int, ends: int | None
) -> None:
    best = BestRounds()
    ended = None
    for round, value in enumerate(values, start=1):
        if round % every:
            continue
        best = best.after(round, "accuracy", numbers(value))
        reason = why_ended(best, round, "accuracy", patience, lambda round: round % every == 0)
        if reason and ended is None:
            ended = round
            assert reason.startswith(f"patience = {patience}: ")
    assert ended == ends


def test_patience_waits_for_every_model() -> None:
    best = BestRounds()
    for round, value in enumerate([0.1, 0.2, 0.3], start=1):
        models = {"average": numbers(0.5)["average"], "creff": numbers(value)["average"]}
        best = best.after(round, "accuracy", models)
        assert not why_ended(best, round, "accuracy", 1, lambda round: True)
    assert best.best_of("average") == Best(1, 0.5) and best.best_of("creff") == Best(3, 0.3)


def test_every_metric_is_one_that_an_evaluation_has() -> None:
    from client_app.metrics import Scores

    measured = metrics_from(Scores.of_batch(torch.eye(3), torch.arange(3)))
    assert set(METRICS) <= measured.means.keys()


class Killed(BaseException):
    """The process is dead: nothing in it writes from here on."""


@contextmanager
def killed_at(number: int, die: Callable[[], None] = lambda: None) -> Iterator[list[str]]:
    """Within this context every write, rename and deletion from the given one on fails; count them in a list."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def dying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def write(*arguments: Any, **options: Any) -> Any:
                made.append(name)
                if len(made) >= number:
                    die()
                    raise Killed(name)
                return original(*arguments, **options)

            return write

        for owner, name in (
            (Path, "replace"),
            (Path, "unlink"),
            (client_app.tensor_files, "save_file"),
            (RunFolder, "add_round"),
        ):
            patch.setattr(owner, name, dying(name, getattr(owner, name)))
        yield made


def killed_everywhere(tmp_path: Path, changes: dict[str, Any], step: int) -> FinishedRun:
    """Kill a run at every `step`-th of its writes and resume it: it must leave the files of a run that was not."""
    # The names of the results folders enter the files: all have the same one.
    whole = experiment(tmp_path / "whole" / "results", **changes)
    expected = contents_of(whole.folder)
    with killed_at(10**6) as made:
        experiment(tmp_path / "counted" / "results", **changes)
    assert made.count("add_round") == len(whole.records)
    for number in range(1, len(made) + 1, step):
        results = tmp_path / f"killed-{number}" / "results"
        with killed_at(number), pytest.raises(Killed):
            experiment(results, **changes)
        resumed = experiment(results, **changes)
        assert contents_of(resumed.folder) == expected, f"{number} {made[number - 1]}"
        for file in resumed.folder.path.glob("best-*"):
            round = int(file.stem.removeprefix("best-"))
            check_memory(resumed.folder, best_checkpoint(resumed.folder, round))
        again = experiment(results, **changes)
        assert any("finished earlier" in line for line in again.lines)
    return whole


def test_killed_at_writes_of_a_run_that_ends_early(tmp_path: Path) -> None:
    whole = killed_everywhere(
        tmp_path, {**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]}, step=5
    )
    assert whole.summary["ended"]["round"] == 3
    assert whole.summary["models"]["average"]["best"]["round"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_every_write(tmp_path: Path, name: str) -> None:
    """A kill before each write, rename and deletion, of the clients' memory too, and the same files in the end."""
    changes = {**KEEP_BEST, **RUNS[name]}
    whole = killed_everywhere(tmp_path, changes, step=1)
    assert ("ended" in whole.summary) == (changes["patience"] > 0)


def killed_by_signal(results: str, number: int, changes: dict[str, Any]) -> None:
    """Run an experiment in a process that kills itself (kill -9) before one of its writes."""
    with killed_at(number, partial(os.kill, os.getpid(), signal.SIGKILL)):
        experiment(Path(results), **changes)


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]}
    whole = experiment(tmp_path / "whole" / "results", **changes)
    expected = contents_of(whole.folder)
    resumed_after: set[str] = set()
    # A thread writes the checkpoints beside the round, so that one number may stand before or after a checkpoint.
    # From 42 on, the third round is being recorded and the second one's checkpoint is whole.
    for number in (14, 22, 26, 30, 34, 38, 42, 46):
        results = tmp_path / f"killed-{number}" / "results"
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=killed_by_signal, args=(str(results), number, changes))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        resumed = experiment(results, **changes)
        resumed_after |= {line for line in resumed.lines if line.startswith("resuming after")}
        assert contents_of(resumed.folder) == expected
    assert resumed_after >= {"resuming after round 1", "resuming after round 2"}


def test_the_best_round_is_the_whole_model_of_that_round(tmp_path: Path) -> None:
    """What is kept of round 2 is what a run of two rounds ends with, each client's batch norm too."""
    changes = {**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]}
    kept = experiment(tmp_path / "kept", **changes)
    assert [path.name for path in kept.folder.path.glob("best-*")] == ["best-000002.safetensors"]
    best = best_checkpoint(kept.folder, 2)

    short = {**changes, "rounds": 2, "patience": 0, "keep_best": ""}
    two_rounds = experiment(tmp_path / "short", **short)
    last = Checkpoint.load(two_rounds.folder.checkpoint_file)
    assert best.round == last.round == 2 and best.memory_rounds == last.memory_rounds
    assert set(best.memory_rounds.values()) == {1, 2}, "one client took no part in round 2"
    assert digest([*best.deployed.values()]) == digest([*last.deployed.values()])
    for client, round in best.memory_rounds.items():
        ours = load_memory(folder_of(kept.folder.path, client), round)
        theirs = load_memory(folder_of(two_rounds.folder.path, client), round)
        assert ours["private"].keys() == theirs["private"].keys() and ours["private"]
        assert digest([ours["private"]]) == digest([theirs["private"]])
    entry = kept.summary["models"]["average"]
    assert entry["best"]["round"] == 2 and entry["last"]["recall"] != entry["best"]["recall"]
    assert entry["best"]["recall"] == two_rounds.summary["models"]["average"]["last"]["recall"]


def test_memory_of_a_best_round_long_ago_stays(tmp_path: Path) -> None:
    """Round 1 stays the best one, while clients delete what they keep of rounds that nobody names any more."""
    changes = {**KEEP_BEST, "method": "fedbn", "keep_best": "calibration-error"}
    run = experiment(tmp_path, **{**changes, "learning_rate": 1.0, "participation": 1.0})
    assert run.summary["models"]["average"]["best"]["round"] == 1
    checkpoint = best_checkpoint(run.folder, 1)
    assert set(checkpoint.memory_rounds.values()) == {1}
    check_memory(run.folder, checkpoint)
    for client in range(3):
        folder = folder_of(run.folder.path, client)
        rounds = [int(path.stem.removeprefix("round-")) for path in sorted(folder.iterdir())]
        assert rounds == [1, 4, 5, 6, 7], "of the best round, and of those that checkpoints name"


def test_the_previous_checkpoint_still_has_its_best_round(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, "method": "fedbn", "learning_rate": 0.3, "rounds": 2}
    run = experiment(tmp_path, **changes)
    assert run.summary["models"]["average"]["best"]["round"] == 2
    previous = Checkpoint.load(run.folder.previous_file)
    assert previous.best.named_since(previous.round) == [1]
    check_memory(run.folder, best_checkpoint(run.folder, 1))
    run.folder.summary_file.unlink()
    cut(run.folder.checkpoint_file, 7)
    resumed = experiment(tmp_path, **changes)
    assert "resuming after round 1" in resumed.lines
    assert not any("is lost" in line for line in resumed.lines)
    assert resumed.summary["hash"] == run.summary["hash"]


def test_clients_keep_the_last_memory_up_to_a_best_round(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", 0)
    for round in (1, 3, 4, 6, 7, 8, 9):
        save_memory(folder, round, {"private": {"x": torch.ones(1)}})
    prune(folder, 8, best_rounds=[5])
    kept = [int(path.stem.removeprefix("round-")) for path in sorted(folder.iterdir())]
    assert kept == [4, 6, 7, 8], "round 9 was not used, and in round 5 the client took no part"
    prune(folder, 8)
    assert len([*folder.iterdir()]) == 3


def test_a_last_question_is_asked_in_the_round_that_ends_early(tmp_path: Path) -> None:
    run = experiment(tmp_path, **{**KEEP_BEST, **RUNS["a last question in round 3"]})
    assert [[*record["models"]] for record in run.records] == [
        ["average"],
        ["average"],
        ["average", "ccvr"],
    ]
    assert run.summary["models"]["ccvr"]["best"]["round"] == 3, "it has no other round"
    assert run.summary["models"]["average"]["best"]["round"] == 1
    assert Checkpoint.load(run.folder.checkpoint_file).deployed.keys() == {"average", "ccvr"}


def test_clients_fine_tune_in_the_round_that_ends_early(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, "method": "fedavg", "learning_rate": 0.3, "patience": 1}
    run = experiment(tmp_path, **changes, finetune_epochs=1)
    last = run.summary["ended"]["round"]
    assert last < 7
    names = [[*record["models"]] for record in run.records]
    assert names == [["average"]] * (last - 1) + [["average", "fine-tuned"]]
    fine_tuned = run.summary["models"]["fine-tuned"]
    assert "last" in fine_tuned and "best" not in fine_tuned, "its weights are kept nowhere"


def test_a_run_that_ended_early_is_finished_wherever_one_asks(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]}
    settings = small(tmp_path, **changes)
    assert rounds_left(settings) == 7
    run = experiment(tmp_path, **changes)
    reason = "patience = 1: balanced-accuracy on validation data has not improved since round 2"
    assert run.summary["ended"] == {"round": 3, "reason": reason}
    assert [record.get("ended") for record in run.records] == [None, None, reason]
    assert f"last round: {reason}" in run.lines[-2]

    assert rounds_left(settings) == 0
    assert run.folder.finished(7) is not None and run.folder.damage(7) == ""
    assert finished([settings]).keys() == {settings.run_id}
    records = RunRecords.read(settings)
    assert records.finished and records.state == "finished" and not records.lost
    assert state_warnings([records]) == [] and reason in records.ended
    assert TrainedRun(run.folder).finished
    loaded = fedskew.load(run.folder.path)
    assert loaded.finished and loaded.ended == reason
    grid = TamperingGrid()
    again = experiment(tmp_path, grid, **changes)
    assert grid.asked == [] and again.summary == run.summary

    cut(run.folder.rounds_file, 7)
    assert "of 3 rounds it holds 2" in run.folder.damage(7) and rounds_left(settings) == 1
    assert not RunRecords.read(settings).finished
    mended = experiment(tmp_path, **changes)
    assert (mended.records, mended.hash) == (run.records, run.hash)


def test_a_lost_last_record_is_made_again_with_its_reason(tmp_path: Path) -> None:
    for name, changes in RUNS.items():
        if not changes["patience"]:
            continue
        whole = experiment(tmp_path / name / "results", **{**KEEP_BEST, **changes})
        expected = contents_of(whole.folder)
        whole.folder.summary_file.unlink()
        whole.folder.previous_file.unlink()
        cut(whole.folder.rounds_file, 7)
        again = experiment(tmp_path / name / "results", **{**KEEP_BEST, **changes})
        found = contents_of(again.folder)
        # Who trained in that round is not known any more; what is measured again is.
        for key in ("models", "ended"):
            assert found["rounds.jsonl"][-1][key] == expected["rounds.jsonl"][-1][key], name
        assert found["checkpoint.safetensors"] == expected["checkpoint.safetensors"]
        assert found["summary.json"] == expected["summary.json"]


def test_a_run_without_the_settings_has_nothing_of_them(train: Callable[..., FinishedRun]) -> None:
    run = train(method="fedbn", validation_fraction=0.3)
    _, text = read(run.folder.checkpoint_file)
    assert not {"best", "ended"} & json.loads(text["fedskew"]).keys()
    assert not any("ended" in record for record in run.records)
    assert not any("best" in record["models"]["average"] for record in run.records)
    assert "ended" not in run.summary and "best" not in run.summary["models"]["average"]
    assert not [*run.folder.path.glob("best-*")]


def test_requests_name_best_rounds_only_where_there_are_some(tmp_path: Path) -> None:
    def named(grid: TamperingGrid) -> list[str]:
        tasks = [dict(message.content.config_records["task"]) for message in grid.asked]
        return [str(task.get(BEST_ROUNDS)) for task in tasks if "round" in task]

    changes = {
        **KEEP_BEST,
        "method": "fedbn",
        "learning_rate": 0.3,
        "rounds": 3,
        "participation": 1,
    }
    grid = TamperingGrid()
    experiment(tmp_path, grid, **changes)
    kinds = [kind for kind in grid.kinds() if kind != "query"]
    of_training = [text for text, kind in zip(named(grid), kinds, strict=True) if kind == "train"]
    assert of_training[0] == "None" and of_training[1] == "1" and of_training[2] == "1 2"
    plain = TamperingGrid()
    experiment(tmp_path, plain, **{**changes, "keep_best": ""})
    assert set(named(plain)) == {"None"}


def test_a_lost_best_file_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    changes = {**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]}
    run = experiment(tmp_path, **changes)
    run.folder.summary_file.unlink()
    cut(run.folder.best_file(2), 7)
    resumed = experiment(tmp_path, **changes)
    (line,) = [line for line in resumed.lines if "the best model of round 2 is lost" in line]
    assert "best-000002.safetensors is damaged" in line and "overwrite = true" in line
    assert resumed.hash == run.hash
    with pytest.raises(DataError, match=r"best-000002.safetensors is damaged.*overwrite = true"):
        TrainedRun(run.folder, round="best")
    run.folder.best_file(2).unlink()
    with pytest.raises(DataError, match=r"best-000002.safetensors is missing: overwrite = true"):
        TrainedRun(run.folder, round="best")
    assert TrainedRun(run.folder).checkpoint.round == 3, "the last round is there"
    again = experiment(tmp_path, overwrite=True, **changes)
    assert TrainedRun(again.folder, round="best").checkpoint.round == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"keep_best": "accurracy"}, "keep-best = 'accurracy': must be one of balanced-accuracy, accuracy"),
        ({"keep_best": "", "patience": 2}, "patience = 2: has no effect without keep-best"),
        ({"patience": -1}, "patience = -1: must be 0 or more"),
        ({"evaluate_every": 0}, "keep-best = 'balanced-accuracy': has no effect with evaluate-every = 0"),
        ({"rounds": 0, "method": "fed-lda"}, "keep-best = 'balanced-accuracy': has no effect with rounds = 0"),
        (
            {"evaluate_on": "validation"},
            "keep-best = 'balanced-accuracy': needs validation data, and evaluate-on = validation makes them",
        ),
        ({"validation_fraction": 0.0}, "keep-best = 'balanced-accuracy': needs validation data, and the data"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as error:
        experiment(tmp_path, **{**KEEP_BEST, "rounds": 1, **changes})
    assert str(error.value).startswith(sentence)
    assert not [*tmp_path.glob("*/rounds.jsonl")], "nothing has begun"


def test_good_input_of_the_same_kind_runs(tmp_path: Path) -> None:
    run = experiment(tmp_path, **{**KEEP_BEST, "rounds": 1, "keep_best": "loss", "patience": 1})
    assert run.summary["models"]["average"]["best"]["round"] == 1


def test_rankings_of_many_classes_are_refused() -> None:
    hundred = DataSettings(classes="100")
    more = DataSettings(dataset="tiny-imagenet", classes="200")
    check_keep_best(GeneralSettings(keep_best="auroc"), hundred)
    check_keep_best(GeneralSettings(keep_best="loss"), more)
    sentence = "keep-best = 'auroc': is measured for at most 100 classes, and tiny-imagenet has 200"
    with pytest.raises(SettingError, match=sentence):
        check_keep_best(GeneralSettings(keep_best="auroc"), more)


def test_sites_keep_their_validation_data_to_themselves() -> None:
    sites = DataSettings(dataset="sites:/nowhere/federation.toml")
    with pytest.raises(SettingError, match="keep-best = 'loss': needs validation data, and sites"):
        check_keep_best(GeneralSettings(keep_best="loss"), sites)
    check_keep_best(GeneralSettings(), sites)


def test_the_settings_name_another_run(tmp_path: Path) -> None:
    plain = small(tmp_path, validation_fraction=0.3)
    kept = small(tmp_path, validation_fraction=0.3, keep_best="loss")
    patient = small(tmp_path, validation_fraction=0.3, keep_best="loss", patience=5)
    assert len({plain.run_id, kept.run_id, patient.run_id}) == 3
    spelled_out = small(tmp_path, validation_fraction=0.3, keep_best="", patience=0)
    assert spelled_out.run_id == plain.run_id
    keys = plain.hashed_settings().keys()
    assert not {"keep-best", "patience"} & keys


def test_trackers_get_no_flag(tmp_path: Path) -> None:
    run = experiment(tmp_path, **{**KEEP_BEST, **RUNS["ends in round 3, the best is 2"]})
    for record in run.folder.rounds():
        tags = [tag for tag, _ in scalars(record)]
        assert "balanced-accuracy/average" in tags
        assert not any(tag.startswith(("best", "run/ended")) for tag in tags)
