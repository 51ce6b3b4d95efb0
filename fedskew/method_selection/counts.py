"""`--match-counts`: a data set partitioned by exactly the counts of a table, as a partition file."""

from pathlib import Path

import numpy as np

from data import DataError, Dataset
from data.partition_files import SavedPartition, save
from data.partitions import Indices
from data.random_draws import generator
from fedskew.diagnosis.table import SiteTable


def partition_by_counts(table: SiteTable, data: Dataset, path: Path, where: str) -> None:
    """Write a partition of a data set in which each site has as many samples of each class as the table.

    The table's classes stand for the data's first classes, in their order. The test set is the data's own samples of
    these classes.

    Args:
        table: of counts.
        data: to partition.
        path: the file to write.
        where: the name of the table in errors.

    Raises:
        DataError: the data have fewer classes, or fewer samples of one.
    """
    classes = len(table.classes)
    if classes > data.num_classes:
        rule = f"has {classes} classes, and {data.name} {data.num_classes}"
        raise DataError(f"{rule}: state another --set dataset", where=where)
    draws = generator(0, "like a table")
    parts: list[list[Indices]] = [[] for _ in table.sites]
    for label, name in enumerate(table.classes):
        available = np.flatnonzero(data.train_labels == label)
        wanted_K = table.counts_KC[:, label]
        if wanted_K.sum() > len(available):
            wanted = f"class {name} has {wanted_K.sum()} samples"
            rule = f"{wanted}, and class {label} of {data.name} {len(available)}"
            remedy = "divide the counts, or state a larger data set with --set dataset"
            raise DataError(f"{rule}: {remedy}", where=where)
        ends_K = np.cumsum(wanted_K)
        chosen = np.split(draws.permutation(available), ends_K)
        for part, samples in zip(parts, chosen, strict=False):  # the last piece is left over
            part.append(samples)
    train = tuple(np.sort(np.concatenate(part)) for part in parts)
    test = np.flatnonzero(data.test_labels < classes)
    no_samples = train[0][:0]
    save(path, SavedPartition(data.content, train, test, None, no_samples))
