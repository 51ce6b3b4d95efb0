"""The interface of trackers, and TensorBoard."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.record import RoundRecord, to_json
from server_app.run_settings import Scalar

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Tracker:
    """What follows a run; this one does nothing. Another one is a file with a subclass, and a line in trackers.py."""

    def begin(self, settings: Mapping[str, Scalar], records: Sequence[RoundRecord]) -> None:
        """Take the settings, and the rounds that an earlier start has finished: none, all, or those before a kill."""

    def round(self, record: RoundRecord) -> None:
        """Take a round, before its checkpoint: a run that is killed in between repeats it."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close, whether the run is finished (its summary) or not (None), and even if it never began."""


class TensorBoard(Tracker):
    """Scalars in event files; `tensorboard --logdir results` shows all runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def begin(self, settings: Mapping[str, Scalar], records: Sequence[RoundRecord]) -> None:
        """Go on after `records`: later points of an earlier start are purged, and points that it lacks are written."""
        from torch.utils.tensorboard import SummaryWriter

        if not records:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a run that is repeated
        followed = self.folder.exists()
        self.writer = SummaryWriter(
            str(self.folder), purge_step=records[-1].round + 1 if records else None
        )
        if not followed:
            rows = "".join(f"| {key} | {value} |\n" for key, value in settings.items())
            self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")
            for record in records:
                self.round(record)

    def round(self, record: RoundRecord) -> None:
        """Write a round's numbers and make them visible at once."""
        assert self.writer is not None, "begin comes first"
        for tag, value in scalars(record):
            self.writer.add_scalar(tag, value, record.round)
        self.writer.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        if self.writer is not None:
            self.writer.close()


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield tag and value: METRIC/MODEL, so that a chart compares the deployed models, and run/NAME for the rest."""
    for model, numbers in record.models.items():
        yield from ((f"{name}/{model}", value) for name, value in finite_numbers(to_json(numbers)))
    rest = replace(record, models={}, failures={}).to_json()
    rest["failures"] = rest.pop("failed")
    yield from (
        (f"run/{name}", value)
        for name, value in finite_numbers(rest)
        if name not in ("format", "round")
    )


def finite_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a mapping and of those in it, named OUTER-INNER; neither lists nor NaN."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            for inner, number in finite_numbers(value):
                yield f"{name}-{inner}", number
        elif isinstance(value, int | float) and math.isfinite(value):
            yield name, value
