"""Which samples are for testing where the data do not say it: a fifth, by class and site, and whole patients."""

import numpy as np
from numpy.typing import NDArray

from data.random_draws import generator
from data.settings import DataError, DataSettings

FOLDS = 5


def fifth(
    labels_N: NDArray[np.int64],
    settings: DataSettings,
    where: str,
    sites_N: NDArray[np.int64] | None = None,
    patients_N: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """(N,): True for a fifth of each site's patients (samples, without), which `test-fold` says, drawn by `split-seed`.

    Patients are dealt out class by class, each by the class of most of its samples and the site of its first; the only
    patient of a class at a site trains. Of fewer than five, one of so many parts is for testing.

    Raises:
        DataError: a site, or all, of one patient or sample.
    """
    if settings.test_fold >= FOLDS:
        raise DataError(
            f"{where}: test-fold = {settings.test_fold}: must be 0..{FOLDS - 1}, as nothing says who tests"
        )
    units_N = (
        np.arange(len(labels_N))
        if patients_N is None
        else np.unique(patients_N, return_inverse=True)[1]
    )
    first_U = np.unique(units_N, return_index=True)[1]
    label_U, site_U = (
        labels_N[first_U],
        (np.zeros_like(labels_N) if sites_N is None else sites_N)[first_U],
    )
    if patients_N is not None:
        counts_UC = np.zeros((len(first_U), int(labels_N.max()) + 1), np.int64)
        np.add.at(counts_UC, (units_N, labels_N), 1)
        label_U = counts_UC.argmax(axis=1)
    draws, tested = generator(settings.split_seed, "who tests"), []
    for site in np.unique(site_U):
        of_class = [
            np.flatnonzero((site_U == site) & (label_U == label)) for label in np.unique(label_U)
        ]
        dealt = [draws.permutation(units) for units in of_class if len(units) > 1]
        order = np.concatenate(dealt or [draws.permutation(np.concatenate(of_class))])
        if len(order) < 2:
            what = "sample" if patients_N is None else "patient"
            who = "there is" if sites_N is None else f"site {site} has"
            raise DataError(f"{where}: {who} one {what} alone: some must train and others test")
        parts = min(FOLDS, len(order))
        tested.append(order[settings.test_fold % parts :: parts])
    chosen: NDArray[np.bool_] = np.isin(units_N, np.concatenate(tested))
    return chosen
