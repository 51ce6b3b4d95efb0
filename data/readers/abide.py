"""ABIDE I: the correlations of windows of each subject's time series, split by subject.

A site's subjects come from an npz file, or from the Preprocessed Connectomes Project (Craddock et al., 2013), which
nilearn downloads.
"""

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.random_draws import generator
from data.readers.npz import read_arrays
from data.readers.splits import Raw, Split
from data.settings import DataSettings

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
    series = arrays["ts"]
    lengths = arrays["length"].astype(np.int64)
    labels = arrays["label"].astype(np.int64)
    total = lengths.sum()
    if series.ndim != 2 or len(lengths) != len(labels) or total != len(series):
        shapes = f"ts {series.shape}, length {lengths.shape} (sum {total}) and label {labels.shape}"
        rule = f"{shapes} do not fit: ts must be (sum of length, regions)"
        raise DataError(rule, where=str(path))
    ends = np.cumsum(lengths)[:-1]
    return Site(path.stem, str(path), np.split(series, ends), labels)


def windows_of(site: Site, width: int, stride: int, fold: int) -> Raw:
    """The windows of one site's subjects: a fifth of the subjects is for testing, no subject is on both sides.

    A split's `groups` are the subjects' numbers at the site, as a subject is tested by all its windows together.

    Raises:
        DataError: subjects with other numbers of regions, or one with less than one window.
    """
    lengths = np.array([len(series) for series in site.series])
    if lengths.min() < width:
        first = int(np.argmin(lengths))
        has = f"subject {first} has {lengths[first]} time points"
        rule = f"{has}, window-width = {width} needs more"
        raise DataError(rule, where=site.where)
    regions = sorted({series.shape[1] for series in site.series})
    if len(regions) > 1:
        raise DataError(
            f"subjects have {' and '.join(map(str, regions))} regions, not all the same",
            where=site.where,
        )
    pairs = regions[0] * (regions[0] - 1) // 2
    counts = (lengths - width) // stride + 1
    tested = folds(site.labels, site.name)[fold]
    is_test = np.isin(np.arange(len(lengths)), tested)
    splits = []
    for key, chosen in (("train", np.flatnonzero(~is_test)), ("test", np.flatnonzero(is_test))):
        vectors = np.empty((counts[chosen].sum(), pairs), np.float32)
        ends = np.cumsum(counts[chosen])
        for subject, end in zip(chosen.tolist(), ends.tolist(), strict=True):
            begin = end - counts[subject]
            vectors[begin:end] = window_correlations(site.series[subject], width, stride)
        groups = np.repeat(chosen, counts[chosen])
        splits.append(Split(vectors, site.labels[groups], site.where, key, groups))
    return Raw(*splits)


def folds(labels: NDArray[np.int64], site: str) -> list[NDArray[np.int64]]:
    """The subjects in five parts with nearly equal shares of each label; part of the data, so no run's seed."""
    draws = generator(0, f"abide {site}: folds")
    shuffled = []
    for label in np.unique(labels):
        subjects = np.flatnonzero(labels == label)
        shuffled.append(draws.permutation(subjects))
    order = np.concatenate(shuffled)
    # Every fifth of an order that goes label by label has its share of each label.
    return [np.sort(order[fold::FOLDS]) for fold in range(FOLDS)]


def window_correlations(
    series: NDArray[np.generic], width: int, stride: int
) -> NDArray[np.float32]:
    """(W, R (R - 1) / 2): Fisher's z of the regions' correlations in each window of `width` time points.

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


PHENOTYPES = "Phenotypic_V1_0b_preprocessed1.csv"
LABELS = {"1": 1, "2": 0}
"""By DX_GROUP, which is 1 for autism and 2 for control."""


def read_pcp(folder: Path, site: str) -> Site:
    """The subjects of `site` in ABIDE_pcp: PIPELINE/STRATEGY/FILE_ID_rois_ATLAS.1D, and their DX_GROUP in the csv file.

    A .1D file is a line of region numbers after `#`, then a line a time point. A subject with a region that never
    changes, as it is outside of the scan, is left out, as in the federated study (Li et al., 2020), which was left with
    167 (NYU), 88 (UM_1), 52 (USM) and 63 (UCLA_1) subjects.

    Raises:
        DataError: files of several pipelines or atlases, or that cannot be read, or of a subject without diagnosis.
    """
    files = sorted(folder.glob(f"*/*/{site}_*_rois_*.1D"))
    kinds = {f"{file.parent.relative_to(folder)} {file.stem.split('_rois_')[1]}" for file in files}
    if len(kinds) > 1:
        raise DataError(
            f"{site} is there as {' and as '.join(sorted(kinds))}: keep one of them",
            where=str(folder),
        )
    diagnoses = _diagnoses(folder, site)
    kept = []
    labels = []
    for file in files:
        subject = file.stem.split("_rois_")[0]
        if (group := diagnoses.get(subject, "nothing")) not in LABELS:
            raise DataError(
                f"{folder / PHENOTYPES}: DX_GROUP of {subject} is {group}: must be 1 or 2"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "error"
                )  # of a file without a number, whose subject is not to be left out
                series = np.loadtxt(file, np.float32, ndmin=2)
        except (ValueError, UserWarning) as error:
            raise DataError(str(error), where=str(file)) from error
        if (series != series[:1]).any(axis=0).all():
            kept.append(series)
            labels.append(LABELS[group])
    if not kept:
        raise DataError(
            f"every subject of {site} has a region that never changes", where=str(folder)
        )
    return Site(site, str(files[0].parent), kept, np.array(labels, np.int64))


def incomplete(folder: Path, site: str) -> bool:
    """Whether a subject of `site` has no .1D file yet, as an interrupted download leaves it."""
    there = {file.stem.split("_rois_")[0] for file in folder.glob(f"*/*/{site}_*_rois_*.1D")}
    return not (folder / PHENOTYPES).is_file() or not _diagnoses(folder, site).keys() <= there


def fetch_pcp(root: Path, site: str) -> None:
    """Let nilearn download what is missing of `site` into root/ABIDE_pcp, in the federated study's pipeline and atlas.

    Raises:
        DataError: nilearn is not installed, or the download failed.
    """
    try:
        from nilearn.datasets import fetch_abide_pcp
    except ImportError:
        rule = "nilearn downloads ABIDE and is not installed: pip install 'fedskew[abide]'"
        raise DataError(f"download = true: {rule}") from None
    try:
        fetch_abide_pcp(
            data_dir=str(root),
            pipeline="cpac",
            band_pass_filtering=True,
            global_signal_regression=False,
            derivatives=["rois_ho"],
            quality_checked=False,
            SITE_ID=[site],
            verbose=0,
        )
    except Exception as error:  # whatever a server answers
        raise DataError(
            f"nilearn cannot download ABIDE: {type(error).__name__}: {error}", where=str(root)
        ) from error


def _diagnoses(folder: Path, site: str) -> dict[str, str]:
    """DX_GROUP by FILE_ID, of the site's subjects that have files."""
    with (folder / PHENOTYPES).open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file) if row["SITE_ID"] == site]
    return {row["FILE_ID"]: row["DX_GROUP"] for row in rows if row["FILE_ID"] != "no_filename"}
