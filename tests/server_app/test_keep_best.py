"""keep-best: which round is kept, and that a kill at any write does not change it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import KEEP_BEST, FinishedRun, contents_of, cut, experiment

import client_app.tensor_files
from client_app.memory import folder_of, prune
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.state import digest
from data import DataError, SettingError
from fedskew.export.from_run import TrainedRun
from server_app.checkpoint import Checkpoint, best_checkpoint, check_memory
from server_app.record import ModelNumbers
from server_app.round_selection import Best, BestRounds
from server_app.run_folder import RunFolder
from server_app.settings import parse

RUNS: dict[str, dict[str, Any]] = {
    "the best is 2 of 3": {"method": "fedbn", "learning_rate": 0.3, "rounds": 3},
    "a best round of each model": {"method": "creff+fedbn", "learning_rate": 1.0, "rounds": 4},
    "every second round": {
        "method": "scaffold+silobn",
        "learning_rate": 0.3,
        "rounds": 5,
        "evaluate_every": 2,
    },
}
BEST_IS_2: dict[str, Any] = {**KEEP_BEST, **RUNS["the best is 2 of 3"]}


def numbers(value: float, metric: str = "accuracy") -> dict[str, ModelNumbers]:
    """Return one model's numbers, with this value on validation data and another one on the test set."""
    return {
        "average": ModelNumbers({metric: -value}, validation=ModelNumbers({metric: value})),
    }


@pytest.mark.parametrize(
    ("metric", "values", "round"),
    [
        ("accuracy", [0.5, 0.9, 0.9, 0.2], 2),
        ("loss", [0.5, 0.9, 0.5, 0.4, 0.4], 4),
        ("accuracy", [math.nan, 0.1, math.nan, 0.0], 2),
        ("loss", [math.nan, math.inf, 7.0, math.nan], 3),
    ],
)
def test_the_first_best_round_by_the_metrics_own_direction(
    metric: str, values: list[float], round: int
) -> None:
    best = BestRounds()
    for number, value in enumerate(values, start=1):
        best = best.after(number, metric, numbers(value, metric))
    assert best.best_of("average") == Best(round, values[round - 1])
    again = best.after(len(values), metric, numbers(values[-1], metric))
    assert again.best_of("average") == best.best_of("average"), "a round made again changes nothing"


def test_each_model_has_a_best_round_of_its_own() -> None:
    best = BestRounds()
    for round, value in enumerate([0.1, 0.2, 0.3], start=1):
        models = {"average": numbers(0.5)["average"], "creff": numbers(value)["average"]}
        best = best.after(round, "accuracy", models)
    assert best.best_of("average") == Best(1, 0.5) and best.best_of("creff") == Best(3, 0.3)


class Killed(BaseException):
    """The process is dead: nothing in it writes from here on."""


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """Within this context every write, rename and deletion from the given one on fails; count them in a list."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def dying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def write(*arguments: Any, **options: Any) -> Any:
                made.append(name)
                if len(made) >= number:
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
    return whole


def test_killed_at_writes(tmp_path: Path) -> None:
    whole = killed_everywhere(tmp_path, BEST_IS_2, step=13)
    assert whole.summary["models"]["average"]["best"]["round"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a best round of each model", "every second round"])
def test_killed_at_every_write(tmp_path: Path, name: str) -> None:
    """A kill before each write, rename and deletion, of the clients' memory too, and the same files in the end."""
    killed_everywhere(tmp_path, {**KEEP_BEST, **RUNS[name]}, step=1)


def test_clients_keep_the_last_memory_up_to_a_best_round(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", 0)
    for round in (1, 3, 4, 6, 7, 8, 9):
        save_memory(folder, round, {"private": {"x": torch.ones(1)}})
    prune(folder, 8, best_rounds=[5])
    kept = [int(path.stem.removeprefix("round-")) for path in sorted(folder.iterdir())]
    assert kept == [4, 6, 7, 8], "round 9 was not used, and in round 5 the client took no part"
    prune(folder, 8)
    assert len([*folder.iterdir()]) == 3


def test_the_best_round_is_the_whole_model_of_that_round(tmp_path: Path) -> None:
    """What is kept of round 2 is what a run of two rounds ends with, each client's batch norm too."""
    kept = experiment(tmp_path / "kept", **BEST_IS_2)
    best = best_checkpoint(kept.folder, 2)
    without = {**BEST_IS_2, "rounds": 2, "keep_best": ""}
    two_rounds = experiment(tmp_path / "short", **without)
    last = Checkpoint.load(two_rounds.folder.checkpoint_file)
    assert best.round == last.round == 2 and best.memory_rounds == last.memory_rounds
    assert set(best.memory_rounds.values()) == {1, 2}, "one client took no part in round 2"
    assert digest([*best.deployed.values()]) == digest([*last.deployed.values()])
    for client, round in best.memory_rounds.items():
        ours, theirs = (
            load_memory(folder_of(run.folder.path, client), round)["private"]
            for run in (kept, two_rounds)
        )
        assert digest([ours]) == digest([theirs])
    ours, theirs = kept.summary["models"]["average"], two_rounds.summary["models"]["average"]
    assert ours["best"]["recall"] == theirs["last"]["recall"] != ours["last"]["recall"]
    assert "best" not in theirs


def test_a_model_of_the_last_round_alone_has_its_best_round_there(tmp_path: Path) -> None:
    changes = {"method": "ccvr", "learning_rate": 1.0, "rounds": 3, "finetune_epochs": 1}
    run = experiment(tmp_path, **{**KEEP_BEST, **changes})
    names = [[*record["models"]] for record in run.records]
    assert names == [["average"], ["average"], ["average", "ccvr", "fine-tuned"]]
    models = run.summary["models"]
    assert models["ccvr"]["best"]["round"] == 3, "it has no other round"
    assert models["average"]["best"]["round"] == 1
    assert "best" not in models["fine-tuned"], "its weights are kept nowhere"
    assert Checkpoint.load(run.folder.checkpoint_file).deployed.keys() == {"average", "ccvr"}


def test_a_lost_best_file_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    run = experiment(tmp_path, **BEST_IS_2)
    run.folder.summary_file.unlink()
    cut(run.folder.best_file(2), 7)
    resumed = experiment(tmp_path, **BEST_IS_2)
    assert any("the best model of round 2 is lost" in line for line in resumed.lines)
    assert resumed.hash == run.hash
    with pytest.raises(DataError):
        TrainedRun(run.folder, round="best")
    assert TrainedRun(run.folder).checkpoint.round == 3, "the last round is there"


def test_a_metric_that_no_round_has_is_refused(tmp_path: Path) -> None:
    many = {"dataset": "tiny-imagenet", "method": "fedavg"}
    assert parse({**many, "keep-best": "loss"})
    with pytest.raises(SettingError) as refused:
        parse({**many, "keep-best": "auroc"})
    assert refused.value.key == "keep-best"
    for changes in ({"evaluate_on": "validation"}, {"validation_fraction": 0.0}):
        with pytest.raises(SettingError) as refused:
            experiment(tmp_path, **{**KEEP_BEST, **changes})
        assert refused.value.key == "keep-best"
