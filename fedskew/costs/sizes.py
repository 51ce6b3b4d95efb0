"""The number of samples of a run's clients, and of the steps that they take.

Samples are counted where the data are there, else they follow from what is known of the data set.
"""

from dataclasses import dataclass, replace

from client_app.optimizer import TrainingSettings
from data import DataSettings, federate
from data.dataset import missing
from data.long_tail import long_tail_counts
from data.readers.catalog import KNOWN, is_sites, members


@dataclass(frozen=True)
class Sizes:
    """Samples, as far as they decide what a run costs."""

    train: tuple[int, ...]
    """Training samples of each client."""
    held: tuple[int, ...]
    """Classes of which each client holds a sample."""
    test: int
    """Test samples, of all domains together."""
    own_tests: bool
    """Whether every client has test samples of its own."""
    holdout: int
    """Samples that the server keeps."""
    validation: int = 0
    """Validation samples, of all clients together."""


def sizes_of(data: DataSettings, seed: int) -> Sizes | None:
    """Return the sizes; None where the data are missing and their sizes are not known.

    Raises:
        DataError, SettingError: as `federate` does.
    """
    if is_sites(data.dataset):
        return None
    if missing(replace(data, download=False)):
        return expected_sizes(data)
    federation = federate(data, seed)
    classes_K = (federation.counts_KC > 0).sum(1)
    return Sizes(
        train=tuple(len(indices) for indices in federation.train_indices),
        held=tuple(classes_K.tolist()),
        test=len(federation.global_test),
        own_tests=federation.test_indices is not None,
        holdout=len(federation.holdout_indices),
        validation=len(federation.tested_indices("validation")) if federation.validated else 0,
    )


def expected_sizes(data: DataSettings) -> Sizes | None:
    """Return the sizes by the catalog, as if every client had an equal share of all classes; None for other data."""
    names = members(data.dataset)
    classes = data.num_classes
    known = all(name in KNOWN and all(KNOWN[name].sizes) for name in names)
    if not known or data.recipe != "none":  # a recipe cuts the data to sizes of its own
        return None

    train = sum(KNOWN[name].sizes[0] for name in names)
    test = sum(KNOWN[name].sizes[1] for name in names)
    if data.cinic_train == "train":  # without its validation half
        train //= 2
    holdout = data.holdout_per_class * classes * len(names)
    train -= holdout
    if data.train_images:
        train = data.train_images * len(names)
    elif data.imbalance_factor > 1 or data.largest_class:
        largest = data.largest_class or train // classes
        train = int(long_tail_counts(largest, data.imbalance_factor, classes).sum())
    if data.test_images:
        test = data.test_images * len(names)

    per_client = int(train * data.domain_percent / 100 / data.clients)
    if data.parts_per_domain:
        per_client = train // (10 * len(names))
    return Sizes(
        train=(per_client,) * data.clients,
        held=(min(classes, per_client),) * data.clients,
        test=test,
        own_tests=data.partition == "domains",
        holdout=holdout,
    )


def mean_steps(training: TrainingSettings, sizes: Sizes) -> float:
    """Return the training steps of a client in a round, the mean over all clients."""
    return sum(map(training.steps, sizes.train)) / len(sizes.train)
