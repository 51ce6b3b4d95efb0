"""Continuation: a run that takes over the rounds of a shorter one ends as a run from scratch, to the bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import TamperingGrid, contents_of, small

from server_app.app import run
from server_app.continuation import can_continue, continue_from, without_rounds
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings

RUNGS = (1, 3, 5)
SMALL: dict[str, Any] = {
    "clients": 3,
    "train_images": 100,
    "test_images": 50,
    "local_epochs": 1,
    # As a race measures: the last round alone, on validation data.
    "evaluate_every": 0,
    "validation_fraction": 0.3,
}
METHODS: dict[str, dict[str, Any]] = {
    "server state": {"method": "scaffold"},
    "memory at clients, of whom half take part": {"method": "fedbn", "participation": 0.5},
    "a decay that counts rounds": {"method": "iwds", "resampling__decay": 0.5},
    "a warm-up that ends between rungs": {"method": "iwds", "resampling__warm_up_rounds": 2},
    "a rate that decays": {"method": "fedavg", "learning_rate_decay": 0.5},
    "server momentum": {"method": "fedavgm"},
    "a head after the last round": {"method": "scaffold+ccvr"},
    "a deployed head in every round": {"method": "creff"},
    "fine-tuning after the last round": {"method": "fedavg", "finetune_epochs": 1},
    "evaluations in between": {"method": "fedavg", "evaluate_every": 2},
    "a cosine of its own length": {"schedule": "cosine", "schedule_rounds": 7},
}


def trained(settings: RunSettings) -> list[int]:
    """Execute a run, and return the rounds that it trained."""
    with TamperingGrid() as grid:
        run(grid, settings, lambda line: None)
    rounds = [
        int(message.content["task"]["round"])  # type: ignore[arg-type, call-overload]
        for message in grid.asked
        if message.metadata.message_type.startswith("train")
    ]
    return sorted({*rounds})


def rung(folder: Path, rounds: int, **changes: Any) -> RunSettings:
    return small(folder, rounds=rounds, **{**SMALL, **changes})


@pytest.mark.parametrize("changes", METHODS.values(), ids=list(METHODS))
def test_a_run_continued_rung_by_rung_is_the_run_from_scratch(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    shorter: RunSettings | None = None
    for rounds in RUNGS:
        settings = rung(tmp_path / "rungs", rounds, **changes)
        taken_over = 0
        if shorter is not None:
            assert can_continue(settings, shorter)
            taken_over = continue_from(settings, shorter)
            # Of a single round there is no checkpoint before the last one.
            assert taken_over == shorter.general.rounds - 1
        assert trained(settings) == list(range(taken_over + 1, rounds + 1))
        shorter = settings
    from_scratch = rung(tmp_path / "scratch", RUNGS[-1], **changes)
    trained(from_scratch)
    assert shorter is not None
    assert contents_of(RunFolder(shorter.folder)) == contents_of(RunFolder(from_scratch.folder))


@pytest.mark.parametrize(
    "changes",
    [{"schedule": "cosine"}, {"keep_best": "loss", "evaluate_every": 1}],
    ids=["a cosine over the run's rounds", "best rounds"],
)
def test_a_run_whose_rounds_depend_on_their_number_starts_anew(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    control = {"learning_rate_decay": 0.5}
    assert can_continue(rung(tmp_path, 5, **control), rung(tmp_path, 3, **control))
    assert not can_continue(rung(tmp_path, 5, **changes), rung(tmp_path, 3, **changes))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"learning_rate": 0.3}, {"method": "fedshift"}])
def test_another_run_is_not_continued(changes: dict[str, Any], tmp_path: Path) -> None:
    longer, shorter = rung(tmp_path, 5), rung(tmp_path, 3)
    assert can_continue(longer, shorter) and without_rounds(longer) == without_rounds(shorter)
    assert not can_continue(longer, rung(tmp_path, 3, **changes))
    assert not can_continue(shorter, longer) and not can_continue(longer, longer)
    again = replace(longer, general=replace(longer.general, overwrite=True))
    assert not can_continue(again, shorter), "overwrite starts again"


def test_a_run_starts_anew_where_the_shorter_one_s_files_do_not_suffice(tmp_path: Path) -> None:
    longer, shorter = rung(tmp_path, 4, method="fedbn"), rung(tmp_path, 3, method="fedbn")
    assert continue_from(longer, shorter) == 0, "nobody has trained it"
    trained(shorter)
    folder = RunFolder(shorter.folder)
    previous = folder.previous_file.read_bytes()
    folder.previous_file.write_bytes(previous[:-1])
    assert continue_from(longer, shorter) == 0, "its checkpoint is damaged"
    folder.previous_file.write_bytes(previous)
    for memory in folder.path.glob("memory/*/round-000002.safetensors"):
        memory.rename(memory.with_suffix(".away"))
    assert continue_from(longer, shorter) == 0, "a client's memory is gone"
    for memory in folder.path.glob("memory/*/*.away"):
        memory.rename(memory.with_suffix(".safetensors"))
    assert not RunFolder(longer.folder).checkpoint_file.exists()
    assert continue_from(longer, shorter) == 2
    assert continue_from(longer, shorter) == 0, "it has begun"
    origin = json.loads(RunFolder(longer.folder).settings_file.read_text())
    assert origin["run"] == longer.run_id, "other data are refused from the first start on"
