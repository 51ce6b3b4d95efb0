"""`--match-counts`: a data set partitioned by exactly the counts of a table, as a partition file."""

from pathlib import Path

import numpy as np

from data import DataError, Dataset
from data.partition_files import SavedPartition, save
from data.partitions import Indices
from data.random_draws import generator
from fedskew.diagnosis.table import SiteTable


def partition_by_counts(table: SiteTable, data: Dataset, path: Path, where: str) -> None:
    """Write who holds what: of the data's first classes, in their order, as many samples as the table says.

    The test set is the data's own samples of these classes. Raises DataError where there are not so many.
    """
    classes = len(table.classes)
    if classes > data.num_classes:
        raise DataError(
            f"has {classes} classes, and {data.name} {data.num_classes}: state another --set dataset",
            where=where,
        )
    draws = generator(0, "like a table")
    parts: list[list[Indices]] = [[] for _ in table.sites]
    for label, name in enumerate(table.classes):
        available = np.flatnonzero(data.train_labels == label)
        wanted_K = table.counts_KC[:, label]
        if wanted_K.sum() > len(available):
            rule = (
                f"class {name} has {wanted_K.sum()} samples, "
                f"and class {label} of {data.name} {len(available)}"
            )
            raise DataError(
                f"{rule}: divide the counts, or state a larger data set with --set dataset",
                where=where,
            )
        chosen = np.split(draws.permutation(available), np.cumsum(wanted_K))
        for part, samples in zip(parts, chosen, strict=False):
            part.append(samples)
    train = tuple(np.sort(np.concatenate(part)) for part in parts)
    test = np.flatnonzero(data.test_labels < classes)
    save(path, SavedPartition(data.content, train, test, None, train[0][:0]))
