"""The trackers that follow a run: TensorBoard, MLflow, and Weights & Biases.

When one is made it deletes what an earlier start has written, as points cannot be taken back. `round` takes a round
before its checkpoint: a run that is killed in between repeats it. `end` closes, whether the run is finished (its
summary) or not (None).
"""

import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from server_app.record import RoundRecord, to_json
from server_app.run_settings import RunSettings

PROJECT = "fedskew"
"""The name of all runs' project, or experiment, at a tracker."""
FORBIDDEN = re.compile(r"[^\w./ -]")
"""What a metric's name must not hold."""
QUIET = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""The file store has to be asked for, and no usage is reported; the user's environment goes before both."""
PARAMETER = 6000
"""Characters that a parameter may have."""

OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
"""Nothing leaves the machine; the user's environment goes before it."""
PLACES = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
"""What would be written into the user's home."""


class TensorBoard:
    """Scalars in event files; `tensorboard --logdir results` shows all runs."""

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        events = folder / "tensorboard"
        shutil.rmtree(events, ignore_errors=True)
        self.writer = SummaryWriter(str(events))
        rows = "".join(f"| {key} | {value} |\n" for key, value in settings.flat().items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def round(self, record: RoundRecord) -> None:
        for tag, value in scalars(record):
            self.writer.add_scalar(tag, value, record.round)
        self.writer.flush()  # visible at once

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.writer.close()


class MLflow:
    """A run of MLflow's, in the file store `mlruns` of the results folder, or where MLFLOW_TRACKING_URI says."""

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        for variable, value in QUIET.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        store = Path(settings.general.results) / "mlruns"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store.resolve().as_uri()
        self.client = MlflowClient(uri)
        existing = self.client.get_experiment_by_name(PROJECT)
        experiment = existing.experiment_id if existing else self.client.create_experiment(PROJECT)
        name = settings.run_id
        for earlier in self.client.search_runs([experiment], f"attributes.run_name = '{name}'"):
            self.client.delete_run(earlier.info.run_id)
        self.run_id = self.client.create_run(experiment, run_name=name).info.run_id
        stated = settings.flat().items()
        parameters = [Param(key, str(value)[:PARAMETER]) for key, value in stated]
        self.client.log_batch(self.run_id, params=parameters)

    def round(self, record: RoundRecord) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(FORBIDDEN.sub("_", tag), value, timestamp=now, step=record.round)
            for tag, value in scalars(record)
        ]
        for first in range(0, len(metrics), 1000):  # as many as a call takes
            self.client.log_batch(self.run_id, metrics=metrics[first : first + 1000])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if summary is None else "FINISHED")


class WeightsAndBiases:
    """A run in the folder wandb of the run's own, with the settings as its configuration."""

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        wandb_folder = folder / "wandb"
        shutil.rmtree(wandb_folder, ignore_errors=True)
        inside = dict.fromkeys(PLACES, str(wandb_folder.resolve()))
        for variable, value in {**OFFLINE, **inside}.items():
            os.environ.setdefault(variable, value)
        wandb_folder.mkdir(parents=True)
        import wandb

        quiet = wandb.Settings(
            silent=True, console="off", save_code=False, disable_git=True, x_disable_stats=True
        )
        self.run = wandb.init(
            project=PROJECT,
            name=settings.run_id,
            dir=str(folder),
            config=dict(settings.flat()),
            settings=quiet,
            reinit="create_new",
        )

    def round(self, record: RoundRecord) -> None:
        self.run.log(dict(scalars(record)), step=record.round)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.run.finish(exit_code=int(summary is None))


Tracker = TensorBoard | MLflow | WeightsAndBiases


def trackers_of(
    settings: RunSettings, folder: Path, records: Sequence[RoundRecord]
) -> Iterator[Tracker]:
    """Yield the trackers that the settings ask for, a line each here, with the rounds so far.

    One after the other: where one cannot be made, its caller has those before, and ends them.
    """
    kinds: dict[str, type[Tracker]] = {
        "tensorboard": TensorBoard,
        "mlflow": MLflow,
        "wandb": WeightsAndBiases,
    }
    for name, kind in kinds.items():
        if not getattr(settings.general, name):
            continue
        tracker = kind(settings, folder)
        for record in records:
            tracker.round(record)
        yield tracker


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield tag and value: METRIC/MODEL, so that a chart compares the deployed models, and run/NAME for the rest.

    A number of the clients' methods is method-numbers/VARIANT/NAME, its mean, and method-numbers/VARIANT/NAME/CLIENT.
    """
    for model, numbers in record.models.items():
        for name, value in finite_numbers(to_json(numbers)):
            yield f"{name}/{model}", value
    for name, own in (record.method_numbers or {}).items():
        by_client = zip(record.clients, own.values, strict=True)
        tagged = {name: own.mean, **{f"{name}/{client}": value for client, value in by_client}}
        for tag, value in finite_numbers(tagged):
            yield f"method-numbers/{tag}", value
    rest = replace(record, models={}, failures={}, method_numbers=None).to_json()
    rest["failures"] = rest.pop("failed")
    for name, value in finite_numbers(rest):
        if name != "round":
            yield f"run/{name}", value


def finite_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a mapping and of those in it, named OUTER-INNER; neither lists nor NaN."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            for inner, number in finite_numbers(value):
                yield f"{name}-{inner}", number
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int | float) and math.isfinite(value):
            yield name, value
