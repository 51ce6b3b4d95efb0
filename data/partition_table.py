"""Writing partition files, from settings or from a CSV file with columns sample and client."""

from pathlib import Path

import numpy as np

from data.dataset import Dataset
from data.errors import DataError
from data.federation import Federation
from data.partition_files import SavedPartition, save
from data.readers.rows import header_of, opened
from data.rules import require
from data.settings import DataSettings
from data.text import is_whole

SAMPLE, CLIENT = "sample", "client"


def save_partition(federation: Federation, path: Path) -> None:
    """Write who holds what into a file for the setting partition-file.

    Raises:
        SettingError: it cannot be written, or a domain is left out, which the file does not say.
    """
    unseen, data = federation.unseen, federation.dataset
    rule = "cannot be told by a partition file"
    require(unseen is None, "unseen-domain", unseen and data.domain_names[unseen.index], rule)
    test, domains = federation.global_test, federation.domains
    save(
        path,
        SavedPartition(
            data.content, federation.train_indices, test, domains, federation.holdout_indices
        ),
    )


def partition_by_table(path: Path, data: Dataset) -> SavedPartition:
    """Every row gives a training sample, by its place from 0, to a client, by name or number; the others stay unused.

    Clients are numbered in the order of their names, of their values where all are whole numbers.

    Raises:
        DataError: a column that is missing, a sample that is none or is there twice.
    """
    held: dict[str, list[int]] = {}
    rows_of: dict[int, int] = {}
    with opened(path, DataSettings(), {SAMPLE, CLIENT}) as rows:
        header = header_of(path, rows)
        if missing := [name for name in (SAMPLE, CLIENT) if name not in header]:
            raise DataError(
                f"there is no column {missing[0]!r}, only {', '.join(header)[:200]}",
                where=str(path),
            )
        for line, row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"row {line}: has {len(row)} cells, and there are {len(header)} columns",
                    where=str(path),
                )
            cell, client = (row[header.index(name)].strip() for name in (SAMPLE, CLIENT))
            number = int(cell) if is_whole(cell) and len(cell) < 12 else -1
            if not 0 <= number < len(data.train_labels):
                rule = f"must be a training sample's place, 0..{len(data.train_labels) - 1}"
                raise DataError(
                    f"row {line}, column {SAMPLE}: {cell[:80]!r}: {rule}", where=str(path)
                )
            if number in rows_of:
                raise DataError(
                    f"row {line}: sample {number} is that of row {rows_of[number]} too",
                    where=str(path),
                )
            if not client:
                raise DataError(f"row {line}, column {CLIENT}: is empty", where=str(path))
            rows_of[number] = line
            held.setdefault(client, []).append(number)
    if not held:
        raise DataError("names no sample", where=str(path))
    names = sorted(held, key=int) if all(map(is_whole, held)) else sorted(held)
    train = tuple(np.sort(np.array(held[name], np.int64)) for name in names)
    nothing = np.zeros(0, np.int64)
    return SavedPartition(
        data.content, train, np.arange(len(data.test_labels), dtype=np.int64), None, nothing
    )
