"""MLflow as a tracker: the run's settings as parameters, and every round's numbers as metrics."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.record import RoundRecord
from server_app.run_settings import Scalar
from server_app.tracking import Tracker, scalars

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "fedskew"
FORBIDDEN = re.compile(r"[^\w./ -]")
"""What a metric's name must not hold."""
QUIET = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""The file store has to be asked for, and nothing is told to anybody; the user's environment goes before both."""
PARAMETER = 6000
"""Characters that a parameter may have."""


class MLflow(Tracker):
    """A run of MLflow's, in the file store `mlruns` of the results folder, or where MLFLOW_TRACKING_URI says."""

    def __init__(self, results: Path, run: str) -> None:
        self.results, self.name = results, run
        self.client: MlflowClient | None = None
        self.run_id = ""

    def begin(self, settings: Mapping[str, Scalar], records: Sequence[RoundRecord]) -> None:
        """Write what is on record as a new run, and delete an earlier start's: MLflow takes no point back."""
        for variable, value in QUIET.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (self.results / "mlruns").resolve().as_uri()
        self.client = MlflowClient(uri)
        known = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self.client.create_experiment(EXPERIMENT)
        for earlier in self.client.search_runs(
            [experiment], f"attributes.run_name = '{self.name}'"
        ):
            self.client.delete_run(earlier.info.run_id)
        self.run_id = self.client.create_run(experiment, run_name=self.name).info.run_id
        parameters = [Param(key, str(value)[:PARAMETER]) for key, value in settings.items()]
        self.client.log_batch(self.run_id, params=parameters)
        for record in records:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        """Write a round's numbers."""
        from mlflow.entities import Metric

        assert self.client is not None, "begin comes first"
        now = int(time.time() * 1000)
        metrics = [
            Metric(FORBIDDEN.sub("_", tag), value, now, record.round)
            for tag, value in scalars(record)
        ]
        for first in range(0, len(metrics), 1000):  # as many as a call takes
            self.client.log_batch(self.run_id, metrics=metrics[first : first + 1000])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id, "FAILED" if summary is None else "FINISHED")
