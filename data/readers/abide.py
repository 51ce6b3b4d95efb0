"""ABIDE I: from a site's time series to the correlations of windows, split by subject."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.random_draws import generator
from data.readers.npz import read_arrays
from data.readers.splits import Raw, Split
from data.settings import DataError, DataSettings

FOLDS = 5


@dataclass(frozen=True)
class Site:
    """The subjects of one site as they come from disk."""

    name: str
    where: str
    """File or folder that an error names."""
    series: Sequence[NDArray[np.generic]]
    """(time points, regions) of each subject."""
    labels: NDArray[np.int64]
    """(subjects,), 1 for autism."""


def read_site(path: Path, settings: DataSettings) -> Site:
    """The npz file of a site: `ts` (sum of lengths, regions), subject after subject, `length` and `label` (subjects,).

    Raises:
        DataError: arrays that are missing or do not fit each other.
    """
    arrays = read_arrays(path, ("ts", "length", "label"), (), settings)
    series, lengths, labels = (
        arrays["ts"],
        arrays["length"].astype(np.int64),
        arrays["label"].astype(np.int64),
    )
    if series.ndim != 2 or len(lengths) != len(labels) or lengths.sum() != len(series):
        rule = f"ts {series.shape}, length {lengths.shape} (sum {lengths.sum()}) and label {labels.shape} do not fit"
        raise DataError(f"{path}: {rule}: ts must be (sum of length, regions)")
    return Site(path.stem, str(path), np.split(series, np.cumsum(lengths)[:-1]), labels)


def windows_of(site: Site, width: int, stride: int, fold: int) -> Raw:
    """The windows of one site's subjects: a fifth of the subjects is for testing, no subject is on both sides.

    A split's `groups` are the subjects' numbers at the site, as a subject is tested by all its windows together.

    Raises:
        DataError: subjects with other numbers of regions, or one with less than one window.
    """
    lengths = np.array([len(series) for series in site.series])
    if lengths.min() < width:
        first = int(np.argmin(lengths))
        rule = (
            f"subject {first} has {lengths[first]} time points, window-width = {width} needs more"
        )
        raise DataError(f"{site.where}: {rule}")
    regions = sorted({series.shape[1] for series in site.series})
    if len(regions) > 1:
        raise DataError(
            f"{site.where}: subjects have {' and '.join(map(str, regions))} regions, not all the same"
        )
    counts = (lengths - width) // stride + 1
    is_test = np.isin(np.arange(len(lengths)), folds(site.labels, site.name)[fold])
    splits = []
    for key, chosen in (("train", np.flatnonzero(~is_test)), ("test", np.flatnonzero(is_test))):
        vectors = np.empty((counts[chosen].sum(), regions[0] * (regions[0] - 1) // 2), np.float32)
        ends = np.cumsum(counts[chosen])
        for subject, end in zip(chosen.tolist(), ends.tolist(), strict=True):
            vectors[end - counts[subject] : end] = window_correlations(
                site.series[subject], width, stride
            )
        groups = np.repeat(chosen, counts[chosen])
        splits.append(Split(vectors, site.labels[groups], site.where, key, groups))
    return Raw(*splits)


def folds(labels: NDArray[np.int64], site: str) -> list[NDArray[np.int64]]:
    """The subjects in five parts with nearly equal shares of each label; part of the data, so no run's seed."""
    draws = generator(0, f"abide {site}: folds")
    order = np.concatenate(
        [draws.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    )
    return [np.sort(order[fold::FOLDS]) for fold in range(FOLDS)]


def window_correlations(
    series: NDArray[np.generic], width: int, stride: int
) -> NDArray[np.float32]:
    """(W, R (R - 1) / 2): Fisher's z of the regions' correlations in each window of `width` time points.

    A region that is constant in a window correlates with nothing there; |r| is kept below 1 - 1e-6, so z is finite.
    """
    windows = np.lib.stride_tricks.sliding_window_view(series.astype(np.float64), width, axis=0)[
        ::stride
    ]
    centered = windows - windows.mean(axis=2, keepdims=True)
    norms = np.sqrt((centered**2).sum(axis=2, keepdims=True))
    unit = np.divide(centered, norms, out=np.zeros_like(centered), where=norms > 1e-12)
    upper = np.triu_indices(series.shape[1], k=1)
    correlations = np.stack([(window @ window.T)[upper] for window in unit])
    fisher_z: NDArray[np.float32] = np.arctanh(np.clip(correlations, -1 + 1e-6, 1 - 1e-6)).astype(
        np.float32
    )
    return fisher_z
