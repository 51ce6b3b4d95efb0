"""ABIDE I: the correlations of windows of each subject's time series, split by subject, from an npz file per site."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.readers.npz import read_arrays
from data.readers.splits import Raw, Split, folds
from data.settings import DataSettings

WINDOW_WIDTH = 32
"""Time points in a window."""


def read_site(file: Path, settings: DataSettings) -> Raw:
    """Return the windows of one site's subjects. The fifth that test-fold names tests, no subject is on both sides.

    The file has `ts` (sum of lengths, regions), the series of one subject after the other, and `length` and `label`
    (subjects,), 1 for autism.

    Raises:
        DataError: arrays that are missing or do not fit each other, or a subject with less than one window.
    """
    arrays = read_arrays(file, ("ts", "length", "label"), (), settings)
    series = arrays["ts"]
    length_S, label_S = arrays["length"].astype(np.int64), arrays["label"].astype(np.int64)
    subjects, total = length_S.size, length_S.sum()
    is_one_each = length_S.shape == label_S.shape == (subjects,)
    if series.ndim != 2 or not subjects or not is_one_each or total != len(series):
        shapes = (
            f"ts {series.shape}, length {length_S.shape} (sum {total}) and label {label_S.shape}"
        )
        rule = f"{shapes} do not fit: ts must be (sum of length, regions)"
        raise DataError(rule, where=file)
    if length_S.min() < WINDOW_WIDTH:
        first = int(np.argmin(length_S))
        has = f"subject {first} has {length_S[first]} time points"
        rule = f"{has}, a window of {WINDOW_WIDTH} needs more"
        raise DataError(rule, where=file)

    # NaN would correlate with nothing, as a constant region does, and a label of 0.5 would become 0.
    if not np.isfinite(series).all() or (label_S != arrays["label"]).any():
        raise DataError("ts must be finite, and label whole numbers", where=file)

    windows_S = []
    for of_subject in np.split(series, np.cumsum(length_S)[:-1]):
        windows_S.append(window_correlations(of_subject, WINDOW_WIDTH, settings.window_stride))
    tested = folds(label_S, file.stem)[settings.test_fold]
    trained = np.setdiff1d(np.arange(subjects), tested)
    if not len(tested) or not len(trained):
        rule = f"test-fold = {settings.test_fold} of {subjects} subjects leaves none to train or none to test"
        raise DataError(rule, where=file)
    splits = []
    for key, chosen in (("train", trained), ("test", tested)):
        windows = [windows_S[subject] for subject in chosen]
        subject_N = np.repeat(chosen, list(map(len, windows)))
        split = Split(
            images=np.concatenate(windows),
            labels=label_S[subject_N],
            where=str(file),
            key=key,
            subjects=subject_N,
            tested_as_one=True,  # by all windows of a subject together
        )
        splits.append(split)
    return Raw(*splits)


def window_correlations(
    series: NDArray[np.generic], width: int, stride: int
) -> NDArray[np.float32]:
    """Return (W, R (R - 1) / 2): Fisher's z of the regions' correlations in each window of `width` time points.

    A region that is constant in a window correlates with nothing there; |r| is kept below 1 - 1e-6, so z is finite.
    """
    every_window = np.lib.stride_tricks.sliding_window_view(
        series.astype(np.float64),
        width,
        axis=0,
    )
    windows = every_window[::stride]
    centered = windows - windows.mean(axis=2, keepdims=True)
    norms = np.sqrt((centered**2).sum(axis=2, keepdims=True))
    unit = np.divide(centered, norms, out=np.zeros_like(centered), where=norms > 1e-12)
    upper = np.triu_indices(series.shape[1], k=1)
    correlations = np.stack([(window @ window.T)[upper] for window in unit])
    inside = np.clip(correlations, -1 + 1e-6, 1 - 1e-6)
    fisher_z: NDArray[np.float32] = np.arctanh(inside).astype(np.float32)
    return fisher_z
