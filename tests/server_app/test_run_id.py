"""A run's id: stable when settings are added, and another one for everything that can change a number."""

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from client_app.optimizer import TrainingSettings
from data.renamed_settings import stored
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS
from server_app.settings import defaults, parse

PINNED: dict[str, dict[str, Any]] = {
    "digits-fedshift-seed0-3dc1a6a8fb": {},
    "cifar10-creff+fedavgm-seed2-89b7e40555": {
        "method": "creff+fedavgm",
        "dataset": "cifar10",
        "clients": 20,
        "imbalance-factor": 50.0,
        "participation": 0.4,
        "seed": 2,
    },
    "domains-mnist-usps-fedbn+iwds-seed0-d49fc41bb1": {
        "method": "fedbn+iwds",
        "dataset": "domains:mnist,usps",
        "resampling.decay": 0.5,
    },
}
"""Finished runs are found by these names: they stay."""
DEFAULTS = json.loads((Path(__file__).parent / "defaults.json").read_text())


@dataclass(frozen=True)
class MoreTrainingSettings(TrainingSettings):
    later_setting: int = 0


@pytest.mark.parametrize("run_id", PINNED)
def test_ids_stay_and_a_new_setting_at_its_default_renames_no_run(run_id: str) -> None:
    settings = parse(PINNED[run_id])
    assert settings.run_id == run_id
    values = {
        field.name: getattr(settings.training, field.name) for field in fields(TrainingSettings)
    }
    assert replace(settings, training=MoreTrainingSettings(**values)).run_id == run_id
    assert (
        replace(settings, training=MoreTrainingSettings(**values, later_setting=1)).run_id != run_id
    )


def test_what_is_resolved_and_what_a_name_sets_is_the_same_run_spelled_out() -> None:
    plain = parse({"method": "fedavgm", "dataset": "cifar10"})
    spelled = {"server-momentum": 0.9, "mean": "0.4914,0.4822,0.4465", "clients": 10, "classes": "10",
               "partition": "lda", "model": plain.general.model, "input-shape": "3x32x32"}  # fmt: skip
    assert parse({"method": "fedavgm", "dataset": "cifar10", **spelled}).run_id == plain.run_id
    assert parse(plain.flat()).run_id == plain.run_id


def test_no_default_that_ids_leave_out_is_changed() -> None:
    """A changed one would give runs of other numbers the id of finished ones."""
    known = stored(
        {key: value for key, value in defaults().items() if key not in WITHOUT_EFFECT_ON_NUMBERS}
    )
    assert {key: known.get(key) for key in DEFAULTS} == DEFAULTS


OWN = {"classes": "a,b", "input-shape": "1x4x4", "method": "fedavg"}


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("csv:/home/somebody/study/rows.csv", "rows-csv"),
        ("folder:scans", "scans"),
        ("domains:npz:/home/somebody/north.npz,folder:/home/somebody/south", "north-npz-south"),
    ],
)
def test_a_run_s_name_leaves_out_the_folders_of_the_user(
    dataset: str, name: str, tmp_path: Path
) -> None:
    stated = {**OWN, "dataset": dataset, "results": str(tmp_path)}
    run = parse(stated)
    assert run.run_id.startswith(f"{name}-fedavg-seed0-") and "somebody" not in run.run_id
    # a run of an earlier version, whose name began with the path, is found and not repeated
    former = f"{re.sub('[^a-z0-9]+', '-', dataset)[:40]}-fedavg-seed0-{run.run_id[-10:]}"
    (tmp_path / former).mkdir()
    assert parse(stated).run_id == former
    assert parse({**stated, "seed": 1}).run_id.startswith(f"{name}-fedavg-seed1-")
    (tmp_path / run.run_id).mkdir()
    assert parse(stated).run_id == run.run_id
