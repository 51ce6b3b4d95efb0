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
from data.extras import needed
from data.readers.npz import read_arrays
from data.readers.splits import Raw, Split, folds
from data.settings import DataSettings

WINDOW_WIDTH = 32
"""Time points in a window."""


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
    one_label_each = len(lengths) == len(labels)
    if series.ndim != 2 or not one_label_each or total != len(series):
        shapes = f"ts {series.shape}, length {lengths.shape} (sum {total}) and label {labels.shape}"
        rule = f"{shapes} do not fit: ts must be (sum of length, regions)"
        raise DataError(rule, where=str(path))
    ends = np.cumsum(lengths)[:-1]
    return Site(
        name=path.stem,
        where=str(path),
        series=np.split(series, ends),
        labels=labels,
    )


def windows_of(site: Site, stride: int, fold: int, width: int = WINDOW_WIDTH) -> Raw:
    """The windows of one site's subjects: a fifth of the subjects is for testing, no subject is on both sides.

    Raises:
        DataError: subjects with other numbers of regions, or one with less than one window.
    """
    lengths = np.array([len(series) for series in site.series])
    if lengths.min() < width:
        first = int(np.argmin(lengths))
        has = f"subject {first} has {lengths[first]} time points"
        rule = f"{has}, a window of {width} needs more"
        raise DataError(rule, where=site.where)
    regions = sorted({series.shape[1] for series in site.series})
    if len(regions) > 1:
        listed = " and ".join(map(str, regions))
        raise DataError(f"subjects have {listed} regions, not all the same", where=site.where)

    tested = folds(site.labels, site.name)[fold]
    splits = []
    for key in ("train", "test"):
        is_chosen = np.isin(np.arange(len(lengths)), tested, invert=key == "train")
        windows = [
            window_correlations(series, width, stride)
            for series, chosen in zip(site.series, is_chosen, strict=True)
            if chosen
        ]
        subject_N = np.repeat(np.flatnonzero(is_chosen), list(map(len, windows)))
        split = Split(
            images=np.concatenate(windows),
            labels=site.labels[subject_N],
            where=site.where,
            key=key,
            subjects=subject_N,
            tested_as_one=True,  # by all windows of a subject together
        )
        splits.append(split)
    return Raw(*splits)


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
    versions = {
        f"{file.parent.relative_to(folder)} {file.stem.split('_rois_')[1]}" for file in files
    }
    if len(versions) > 1:
        listed = " and as ".join(sorted(versions))
        raise DataError(f"{site} is there as {listed}: keep one of them", where=str(folder))

    diagnoses = _diagnoses(folder, site)
    kept = []
    labels = []
    for file in files:
        group = diagnoses.get(_subject_of(file), "nothing")
        if group not in LABELS:
            rule = f"DX_GROUP of {_subject_of(file)} is {group}: must be 1 or 2"
            raise DataError(rule, where=str(folder / PHENOTYPES))
        series = _read_1d(file)
        changes = (series != series[:1]).any(axis=0)
        if changes.all():
            kept.append(series)
            labels.append(LABELS[group])
    if not kept:
        rule = f"every subject of {site} has a region that never changes"
        raise DataError(rule, where=str(folder))
    return Site(
        name=site,
        where=str(files[0].parent),
        series=kept,
        labels=np.array(labels, np.int64),
    )


def _subject_of(file: Path) -> str:
    """The FILE_ID in the name of a .1D file."""
    return file.stem.split("_rois_")[0]


def _read_1d(file: Path) -> NDArray[np.float32]:
    """(time points, regions). Raises DataError for a file that is damaged or has no number."""
    try:
        with warnings.catch_warnings():
            # numpy only warns of a file without a number, whose subject would then be left out.
            warnings.simplefilter("error")
            return np.loadtxt(file, np.float32, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise DataError(str(error), where=str(file)) from error


def incomplete(folder: Path, site: str) -> bool:
    """Whether a subject of `site` has no .1D file yet, as an interrupted download leaves it."""
    if not (folder / PHENOTYPES).is_file():
        return True
    present = {_subject_of(file) for file in folder.glob(f"*/*/{site}_*_rois_*.1D")}
    return not _diagnoses(folder, site).keys() <= present


def fetch_pcp(root: Path, site: str) -> None:
    """Let nilearn download what is missing of `site` into root/ABIDE_pcp, in the federated study's pipeline and atlas.

    Raises:
        DataError: nilearn is not installed, or the download failed.
    """
    datasets = needed("nilearn.datasets", "abide", "download = true", verb="downloads")
    try:
        datasets.fetch_abide_pcp(
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
        rule = f"nilearn cannot download ABIDE: {type(error).__name__}: {error}"
        raise DataError(rule, where=str(root)) from error


def _diagnoses(folder: Path, site: str) -> dict[str, str]:
    """DX_GROUP by FILE_ID, of the site's subjects that have files."""
    with (folder / PHENOTYPES).open(newline="", encoding="utf-8", errors="replace") as file:
        diagnoses = {}
        for row in csv.DictReader(file):
            if row["SITE_ID"] == site and row["FILE_ID"] != "no_filename":
                diagnoses[row["FILE_ID"]] = row["DX_GROUP"]
        return diagnoses
