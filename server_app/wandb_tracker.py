"""Weights & Biases as a tracker: a run in offline mode, which `wandb sync` can upload."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.record import RoundRecord
from server_app.run_settings import Scalar
from server_app.tracking import Tracker, scalars

if TYPE_CHECKING:
    from wandb import Run

PROJECT = "fedskew"
OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
"""Nothing leaves the machine; the user's environment goes before it."""
PLACES = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
"""What would be written into the user's home."""


class WeightsAndBiases(Tracker):
    """A run in the folder wandb of the run's own, with the settings as its configuration."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.name = folder, run
        self.run: Run | None = None

    def begin(self, settings: Mapping[str, Scalar], records: Sequence[RoundRecord]) -> None:
        """Write what is on record as a new run, in place of an earlier start's: no point can be taken back."""
        place = self.folder / "wandb"
        shutil.rmtree(place, ignore_errors=True)
        for variable, value in {**OFFLINE, **dict.fromkeys(PLACES, str(place.resolve()))}.items():
            os.environ.setdefault(variable, value)
        place.mkdir(parents=True)
        import wandb

        quiet = wandb.Settings(
            silent=True, console="off", save_code=False, disable_git=True, x_disable_stats=True
        )
        self.run = wandb.init(
            project=PROJECT,
            name=self.name,
            dir=str(self.folder),
            config=dict(settings),
            settings=quiet,
            reinit="create_new",
        )
        for record in records:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        """Write a round's numbers."""
        assert self.run is not None, "begin comes first"
        self.run.log(dict(scalars(record)), step=record.round)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        if self.run is not None:
            self.run.finish(exit_code=int(summary is None))
