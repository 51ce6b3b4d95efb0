"""The counts to diagnose: those of the partition that settings plan."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from data import DataSettings, Federation, federate, resolve
from data.partitions import Indices
from fedskew.diagnosis.rules import diagnose, line
from fedskew.diagnosis.table import (
    Floats,
    Moments,
    SiteTable,
    Subjects,
    TableError,
    site_table,
)
from fedskew.formatting import site_names
from server_app.settings import parse, parse_texts

CHUNK = 2**22
"""Numbers that are converted to float64 at a time: 32 MiB, however many samples there are."""
SMALLEST = 1e-6
"""Least standard deviation of a feature at a site, over that of all samples: a site that did not measure a feature, and
wrote the same number for everybody, has none."""


def planned_table(texts: Sequence[str]) -> tuple[str, SiteTable, Moments | None]:
    """Return the partition that settings give: its title, its counts, and its features where they are in memory.

    Args:
        texts: settings as KEY=VALUE.
    """
    run = parse(parse_texts(texts))
    title = f"{run.data.dataset}, partition {run.data.partition}, seed {run.general.seed}"
    if is_simulated(run.data):
        title += " (FedSkew's simulated partition, which says nothing of your own sites)"
    federation = federate(run.data, run.general.seed)
    return title, table_of_federation(federation), moments_of(federation)


def table_of_federation(federation: Federation) -> SiteTable:
    """Return the counts of a federation, and whose its samples are. Raises TableError for one client."""
    return site_table(
        "these settings",
        site_names(federation.client_names),
        federation.dataset.class_names,
        federation.counts_KC,
        subjects_of(federation),
    )


def subjects_of(federation: Federation) -> Subjects | None:
    """Return the subjects of the clients' training samples; None where the data do not name them."""
    sites, counts = [], []
    for client, indices in enumerate(federation.train_indices):
        subjects_N = federation.subjects("train", client)
        if subjects_N is None:
            return None
        names, index_N = np.unique(subjects_N, return_inverse=True)
        counts_SC = np.zeros((len(names), federation.dataset.num_classes), np.int64)
        np.add.at(counts_SC, (index_N, federation.dataset.train.labels[indices]), 1)
        counts.append(counts_SC)
        sites.append(np.full(len(names), client, np.int64))
    return Subjects(np.concatenate(sites), np.concatenate(counts))


def is_simulated(settings: DataSettings) -> bool:
    """Return whether FedSkew itself makes the partition: neither the data nor a partition file name the sites."""
    return resolve(settings).partition not in ("domains", "file")


def whose_partition(settings: DataSettings) -> str:
    """Return the words before a diagnosis that name the partition that it judges.

    Without sites in the data FedSkew makes the partition itself, and with it the skew.
    """
    if not is_simulated(settings):
        return "With this partition"
    resolved = resolve(settings)
    return (
        f"With FedSkew's simulated partition ({resolved.partition}, {resolved.clients} clients), "
        "which says nothing of your own sites"
    )


def line_of(federation: Federation) -> str:
    """Return the diagnosis of a federation in a line, by its counts, subjects and features; of a single client none."""
    try:
        table = table_of_federation(federation)
    except TableError:
        return ""
    return line(diagnose(table, moments_of(federation)))


def moments_of(federation: Federation) -> Moments | None:
    """Return mean and standard deviation of each client's training samples; clients without samples are left out.

    Of images they are those of all pixels, of a table of numbers of each column. None where the images are not in
    memory, as files are too slow to read for a line of text.
    """
    inputs = federation.dataset.train.inputs
    if not isinstance(inputs, np.ndarray):
        return None
    is_image = len(federation.dataset.shape) == 3
    parts = {client: part for client, part in enumerate(federation.train_indices) if len(part)}
    moments = [central_moments(inputs, part, is_image) for part in parts.values()]
    means_KF, squares_KF, fourth_KF = map(np.array, zip(*moments, strict=True))

    sizes_K = np.array([len(part) for part in parts.values()], np.float64)
    weights_K = sizes_K / sizes_K.sum()
    around_center_KF = squares_KF + (means_KF - weights_K @ means_KF) ** 2
    overall_F = np.sqrt(weights_K @ around_center_KF)
    # Where the same number stands everywhere there is no skew, and no division by zero.
    least_F = np.where(overall_F > 0, SMALLEST * overall_F, 1.0)
    deviations_KF = np.maximum(np.sqrt(squares_KF), least_F)
    if is_image:
        return Moments(("pixels",), means_KF, deviations_KF)

    variance_F = np.maximum(weights_K @ squares_KF, least_F**2)
    # A normal feature has 3; with less, as of yes and no, standard deviations vary less by chance than is counted here.
    kurtosis_F = np.maximum(3.0, weights_K @ fourth_KF / variance_F**2)
    features = means_KF.shape[1]
    names = tuple(f"number {number} of {features}" for number in range(1, features + 1))
    return Moments(names, means_KF, deviations_KF, kurtosis_F)


def central_moments(
    inputs: NDArray[np.generic], part: Indices, is_image: bool
) -> tuple[Floats, Floats, Floats]:
    """Return (F,) each: the mean, and the means of (x - mean)^2 and (x - mean)^4, over the samples of a part.

    Of images they are those of all pixels, F being 1, and the last is 0: it is not needed.
    """
    size = int(np.prod(inputs.shape[1:]))
    features = 1 if is_image else size
    starts = range(0, len(part), max(1, CHUNK // size))

    def mean_of(function: Callable[[Floats], Floats]) -> Floats:
        """Return (F,): the mean of a function of the numbers."""
        total_F = np.zeros(features)
        for start in starts:
            chosen = part[start : start + starts.step]
            numbers_NF = inputs[chosen].astype(np.float64).reshape(-1, features)
            total_F += function(numbers_NF).sum(0)
        return total_F * features / (len(part) * size)

    mean_F = mean_of(lambda numbers_NF: numbers_NF)
    # A second pass: the mean of squares less the squared mean would lose digits.
    square_F = mean_of(lambda numbers_NF: (numbers_NF - mean_F) ** 2)
    if is_image:
        return mean_F, square_F, np.zeros(1)
    return mean_F, square_F, mean_of(lambda numbers_NF: np.square(numbers_NF - mean_F) ** 2)
