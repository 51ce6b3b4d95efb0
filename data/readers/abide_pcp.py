"""ABIDE I as the Preprocessed Connectomes Project (Craddock et al., 2013) gives it out and nilearn downloads it."""

import csv
import warnings
from pathlib import Path

import numpy as np

from data.readers.abide import Site
from data.settings import DataError

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
            f"{folder}: {site} is there as {' and as '.join(sorted(kinds))}: keep one of them"
        )
    diagnoses, kept, labels = _diagnoses(folder, site), [], []
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
            raise DataError(f"{file}: {error}") from error
        if (series != series[:1]).any(axis=0).all():
            kept.append(series)
            labels.append(LABELS[group])
    if not kept:
        raise DataError(f"{folder}: every subject of {site} has a region that never changes")
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
            f"{root}: nilearn cannot download ABIDE: {type(error).__name__}: {error}"
        ) from error


def _diagnoses(folder: Path, site: str) -> dict[str, str]:
    """DX_GROUP by FILE_ID, of the site's subjects that have files."""
    with (folder / PHENOTYPES).open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file) if row["SITE_ID"] == site]
    return {row["FILE_ID"]: row["DX_GROUP"] for row in rows if row["FILE_ID"] != "no_filename"}
