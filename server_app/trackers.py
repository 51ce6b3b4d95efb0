"""The trackers that a run's settings ask for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.mlflow_tracker import MLflow
from server_app.record import RoundRecord
from server_app.run_settings import RunSettings, Scalar
from server_app.tracking import TensorBoard, Tracker
from server_app.wandb_tracker import WeightsAndBiases


class Trackers(Tracker):
    """Several at once."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = trackers

    def begin(self, settings: Mapping[str, Scalar], records: Sequence[RoundRecord]) -> None:
        for tracker in self.trackers:
            tracker.begin(settings, records)

    def round(self, record: RoundRecord) -> None:
        for tracker in self.trackers:
            tracker.round(record)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        for tracker in self.trackers:
            tracker.end(summary)


def tracker_of(settings: RunSettings, folder: Path) -> Trackers:
    """Return the trackers that the settings ask for."""
    general = settings.general
    known = {
        TensorBoard(folder / "tensorboard"): general.tensorboard,
        MLflow(Path(general.results), settings.run_id): general.mlflow,
        WeightsAndBiases(folder, settings.run_id): general.wandb,
    }
    return Trackers([tracker for tracker, asked in known.items() if asked])
