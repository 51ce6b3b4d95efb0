"""The final models' predictions for each sample of the server's test and validation set, in a file of the run's folder.

With it a report resamples test examples and compares two methods on the same ones, and a race does so on validation
data. Only a server that measures on a test set of its own has it: clients send sums.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from client_app.state import State, size, with_prefix
from client_app.tensor_files import KIND, Damaged, read, write_atomically
from server_app.run_folder import RunFolder

LARGEST = 2**24
"""Bytes; what is larger is not written."""


class Predictions(NamedTuple):
    """One model's predictions for the test samples or subjects."""

    log_probabilities_NC: NDArray[np.float64]
    labels_N: NDArray[np.int64]
    subjects_N: NDArray[np.int64] | None = None
    """The subject of each sample, where the data name it and samples are tested one by one."""
    samples_N: NDArray[np.int64] | None = None
    """The number of each sample in its data set, the same in runs with other seeds; None for whole subjects."""


def identity(run: str) -> dict[str, str]:
    """Return what the file says of itself."""
    return {KIND: "test-predictions", "run": run}


def write_predictions(folder: RunFolder, kept: Mapping[str, State]) -> None:
    """Write what every model said of the test set, unless that is too large.

    Args:
        folder: of the run.
        kept: as `evaluate_models` gives it, by the model's name.

    Raises:
        WriteFailed: the disk is full.
    """
    tensors: dict[str, Tensor] = {}
    for name, state in kept.items():
        tensors |= with_prefix(name, state)
    folder.predictions_file.unlink(missing_ok=True)
    if tensors and size(tensors) <= LARGEST:
        write_atomically(folder.predictions_file, tensors, identity(folder.run))


def read_predictions(folder: RunFolder, model: str) -> Predictions | None:
    """Return what a model said; None where the run kept nothing of it, or the file is damaged."""
    try:
        tensors, _ = read(folder.predictions_file, identity(folder.run))
        subjects = tensors.get(f"{model}/subjects")
        samples = tensors.get(f"{model}/samples")
        return Predictions(
            log_probabilities_NC=tensors[f"{model}/log-probabilities"].numpy(),
            labels_N=tensors[f"{model}/labels"].numpy(),
            subjects_N=None if subjects is None else subjects.numpy(),
            samples_N=None if samples is None else samples.numpy(),
        )
    except (OSError, Damaged, KeyError):
        return None
