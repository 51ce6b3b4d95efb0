"""The counts to diagnose from a run, an experiment, or the partition of planned settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_app.models import has_fixed_features
from data import DataError, DataSettings, Federation, federate, resolve
from data.partitions import Indices
from fedskew.diagnosis.rules import Diagnosis, Plan, Source, Sources, diagnose, line, plan_of
from fedskew.diagnosis.table import (
    Floats,
    Moments,
    SiteTable,
    Subjects,
    TableError,
    read_counts,
    site_table,
    table_of_samples,
)
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.lookup import find_all
from fedskew.experiments.plan import plan
from fedskew.formatting import site_names
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import defaults, parse, parse_texts

CHUNK = 2**22
"""Numbers that are converted to float64 at a time: 32 MiB, however many samples there are."""
SMALLEST = 1e-6
"""Least standard deviation of a feature at a site, over that of all samples: a site that did not measure a feature, and
wrote the same number for everybody, has none."""


def planned_sources(source: str, texts: Sequence[str]) -> Sources:
    """Yield the tables to diagnose: one, or one for each column of an experiment's first seed.

    Args:
        source: a run's folder, a CSV file of counts, or an experiment's name; empty for the partition of the settings.
        texts: settings as KEY=VALUE.
    """
    path = Path(source)
    overrides = parse_texts(texts)
    if not source:
        yield of_settings(parse(overrides))
    elif path.is_dir():
        yield of_run(path)
    elif path.is_file():
        yield Source(source, read_counts(path), plan_of(parse(overrides)))
    elif path.suffix or len(path.parts) > 1:
        raise DataError("there is no such file or folder", where=source)
    else:
        for experiment in find_all([source]):
            yield from of_experiment(experiment, overrides)


def of_settings(run: RunSettings) -> Source:
    """Return the partition of settings."""
    title = f"{run.data.dataset}, partition {run.data.partition}, seed {run.general.seed}"
    if is_simulated(run.data):
        title += " (FedSkew's simulated partition, which says nothing of your own sites)"
    return planned(title, run)


def of_experiment(experiment: Experiment, overrides: Mapping[str, Scalar]) -> Sources:
    """Yield the partition of each column of an experiment, from the column's first run."""
    first_runs: dict[str, RunSettings] = {}
    for cell in plan(experiment, overrides):
        first_runs.setdefault(cell.column, cell.run)
    for column, run in first_runs.items():
        title = f"{experiment.name}, {column}" if column else experiment.name
        yield planned(title, run)


def of_run(folder: Path) -> Source:
    """Return the counts that a run's settings.json has of its data."""
    origin = RunFolder(folder, moved=True).origin()
    if not origin:
        raise DataError("holds no settings.json that is whole", where=str(folder))
    table = table_of_samples(str(folder), origin.get("samples"))
    if table is None:
        reason = "its settings.json has no counts, as of more than 100 clients or classes"
        raise DataError(reason, where=str(folder))
    settings = {**defaults(), **origin["settings"]}
    fixed = has_fixed_features(settings["model"], settings["freeze"])
    training = Plan(settings["batch-size"], fixed)
    return Source(str(folder), table, training, own_names=site_names(table.sites))


def planned(title: str, run: RunSettings) -> Source:
    """Return the partition that settings give, with the moments of its features; the data are read."""
    federation = federate(run.data, run.general.seed)
    table = table_of_federation(federation)
    moments = moments_of(federation, table)
    return Source(title, table, plan_of(run), moments, site_names(table.sites))


def table_of_federation(federation: Federation) -> SiteTable:
    """Return the counts of a federation, and whose its samples are. Raises TableError for one client."""
    return site_table(
        "these settings",
        federation.client_names,
        federation.dataset.class_names,
        federation.counts_KC,
        subjects_of(federation),
    )


def subjects_of(federation: Federation) -> Subjects | None:
    """Return the subjects of the clients' training samples; None where the data do not name them."""
    classes = federation.dataset.num_classes
    sites, counts = [], []
    for client, indices in enumerate(federation.train_indices):
        subjects_N = federation.subjects(client)
        if subjects_N is None:
            return None
        names, index_N = np.unique(subjects_N, return_inverse=True)
        number = len(names)
        labels_N = federation.dataset.train_labels[indices]
        # One number per pair of subject and class, so that one call counts all pairs.
        pairs_N = index_N * classes + labels_N
        counts_of_pairs = np.bincount(pairs_N, minlength=number * classes)
        counts.append(counts_of_pairs.reshape(number, classes))
        sites.append(np.full(number, client, np.int64))
    counts_SC = np.concatenate(counts).astype(np.int64)
    return Subjects(np.concatenate(sites), counts_SC)


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
    """Return the diagnosis of a federation in a line; of a single client there is none."""
    diagnosis = diagnosis_of_federation(federation)
    return "" if diagnosis is None else line(diagnosis)


def diagnosis_of(run: RunSettings) -> Diagnosis | None:
    """Return the diagnosis of the partition of settings; None for a single client."""
    federation = federate(run.data, run.general.seed)
    return diagnosis_of_federation(federation, plan_of(run))


def diagnosis_of_federation(
    federation: Federation, training: Plan | None = None
) -> Diagnosis | None:
    """Return the diagnosis of a federation, by its counts, its subjects and its features; of a single client None."""
    try:
        table = table_of_federation(federation)
    except TableError:
        return None
    return diagnose(table, moments_of(federation, table), training)


def moments_of(federation: Federation, table: SiteTable) -> Moments | None:
    """Return mean and standard deviation of each client's training samples, in the order of the table's sites.

    Of images they are those of all pixels, of a table of numbers of each column. None where the images are not in
    memory, as files are too slow to read for a line of text.
    """
    inputs = federation.dataset.train_inputs
    if not isinstance(inputs, np.ndarray):
        return None
    is_image = len(federation.dataset.shape) == 3
    parts = [part for part in federation.train_indices if len(part)]
    assert len(parts) == len(table.sites), "a site of the table is a client with samples"

    strongest_noise, _ = federation.noise
    means, squares, fourth_powers = [], [], []
    for client, part in enumerate(parts):
        mean_F, square_F, fourth_power_F = central_moments(inputs, part, is_image)
        if strongest_noise:  # which is added when a client's samples are read
            scale = 255.0 if inputs.dtype == np.uint8 else 1.0
            variance = strongest_noise * (client + 1) / federation.clients
            square_F += variance * scale**2
        means.append(mean_F)
        squares.append(square_F)
        fourth_powers.append(fourth_power_F)
    means_KF = np.array(means)
    squares_KF = np.array(squares)
    fourth_KF = np.array(fourth_powers)

    sizes_K = np.array([len(part) for part in parts], np.float64)
    weights_K1 = sizes_K[:, None]
    weights_K1 /= weights_K1.sum()
    center_F = (weights_K1 * means_KF).sum(0)
    around_center_KF = squares_KF + (means_KF - center_F) ** 2
    overall_F = np.sqrt((weights_K1 * around_center_KF).sum(0))
    # Where the same number stands everywhere there is no skew, and no division by zero.
    least_F = np.where(overall_F > 0, SMALLEST * overall_F, 1.0)
    deviations_KF = np.maximum(np.sqrt(squares_KF), least_F)
    if is_image:
        return Moments(("pixels",), means_KF, deviations_KF)

    within_F = (weights_K1 * squares_KF).sum(0)
    variance_F = np.maximum(within_F, least_F**2)
    kurtosis_F = (weights_K1 * fourth_KF).sum(0) / variance_F**2
    # A normal feature has 3; with less, as of yes and no, standard deviations vary less by chance than is counted here.
    kurtosis_F = np.maximum(3.0, kurtosis_F)
    features = means_KF.shape[1]
    names = tuple(f"number {number} of {features}" for number in range(1, features + 1))
    return Moments(names, means_KF, deviations_KF, kurtosis_F)


def central_moments(
    inputs: NDArray[np.generic],
    part: Indices,
    is_image: bool,
) -> tuple[Floats, Floats, Floats]:
    """Return (F,) each: the mean, and the means of (x - mean)^2 and (x - mean)^4, over the samples of a part.

    Of images they are those of all pixels, F being 1, and the last is 0: it is not needed.
    """
    size = int(np.prod(inputs.shape[1:]))
    number = len(part) * (size if is_image else 1)
    features = 1 if is_image else size
    step = max(1, CHUNK // max(1, size))
    starts = range(0, len(part), step)

    def chunk(start: int) -> Floats:
        """Return (numbers, F)."""
        numbers = inputs[part[start : start + step]].astype(np.float64)
        if is_image:
            return numbers.reshape(-1, 1)
        return numbers.reshape(len(numbers), -1)

    mean_F = np.zeros(features)
    for start in starts:
        mean_F += chunk(start).sum(0) / number

    # A second pass: the mean of squares less the squared mean would lose digits.
    square_F = np.zeros(features)
    fourth_power_F = np.zeros(features)
    for start in starts:
        squares_NF = np.square(chunk(start) - mean_F)
        square_F += squares_NF.sum(0) / number
        if not is_image:
            fourth_power_F += np.square(squares_NF).sum(0) / number
    return mean_F, square_F, fourth_power_F
