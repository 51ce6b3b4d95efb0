"""The number of samples of a run's clients, and of the steps that they take.

Samples are counted where the data are there, else they follow from what is known of the data set.
"""

from dataclasses import dataclass, replace

from client_app.optimizer import TrainingSettings
from data import DataSettings, federate
from data.dataset import missing
from data.long_tail import long_tail_counts
from data.readers.catalog import FAMILIES, KNOWN, has_domains, is_sites, members


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


def sizes_of(data: DataSettings, seed: int) -> Sizes | None:
    """Return the sizes; where the data are missing every client is taken to hold an equal share of all classes.

    None where even that is not known. Raises what `federate` raises.
    """
    if is_sites(data.dataset):
        return None
    if not missing(replace(data, download=False)):
        federation = federate(data, seed)
        return Sizes(
            train=tuple(len(indices) for indices in federation.train_indices),
            held=tuple((federation.counts_KC > 0).sum(1).tolist()),
            test=len(federation.global_test),
            own_tests=federation.test_indices is not None,
            holdout=len(federation.holdout_indices),
        )
    names, classes = members(data.dataset), data.num_classes
    if not all(name in KNOWN and all(KNOWN[name].sizes) for name in names):
        return None
    train, test = pooled(data, names)
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


def pooled(data: DataSettings, names: tuple[str, ...]) -> tuple[int, int]:
    """Return the training and test samples of all members together, before anything is drawn."""
    sizes = [KNOWN[name].sizes for name in names]
    if data.cinic_train == "train":
        sizes = [(train // 2, test) for train, test in sizes]
    if has_domains(data.dataset) and data.recipe == "fedbn":
        family = FAMILIES[KNOWN[names[0]].family]
        pools = [
            (int(0.8 * sum(both)), int(0.2 * sum(both))) if family.resplit else both
            for both in sizes
        ]
        smallest = min(train for train, _ in pools)
        return int(smallest * family.train_share) * len(names), sum(test for _, test in pools)
    return sum(train for train, _ in sizes), sum(test for _, test in sizes)


def mean_steps(training: TrainingSettings, sizes: Sizes) -> float:
    """Return the training steps of a client in a round, the mean over all clients."""
    return sum(map(training.steps, sizes.train)) / len(sizes.train)
