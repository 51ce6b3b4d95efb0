"""A user's own table: csv:FILE, with a column `label`, columns of numbers and, if there, a column `subject`."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.settings import DataError, DataSettings
from data.sources.abide import folds
from data.sources.files import said
from data.sources.splits import Raw, Split, stratified

LABEL, SUBJECT = "label", "subject"
MIB = 2**20
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Table:
    """What a table holds."""

    numbers_NF: NDArray[np.float32]
    labels: Sequence[str]
    subjects: Sequence[str]
    """One a row; empty where there is no such column."""


def read_csv(path: Path, class_names: tuple[str, ...], settings: DataSettings) -> Raw:
    """Vectors (features,) in the order of the columns, 80 % to train on: by class, and by subject where there are any.

    Raises:
        DataError: what cannot be trained on, said in one sentence with row and column.
    """
    table, where = read_table(path, settings), str(path)
    if unknown := [label for label in table.labels if label not in class_names]:
        rule = f"must be one of classes = {', '.join(class_names)}"
        raise DataError(f"{path}: column {LABEL}: {unknown[0][:80]!r}: {rule}")
    labels_N = np.array([class_names.index(label) for label in table.labels], np.int64)
    names_N = np.unique(np.array(table.labels), return_inverse=True)[1]  # the split does not go by the classes' order
    if not table.subjects:
        parts = stratified(names_N, where)
        train, test = (Split(table.numbers_NF, labels_N, where, "").take(np.sort(part), "") for part in parts)
    else:
        names, first, subjects_N = np.unique(np.array(table.subjects), return_index=True, return_inverse=True)
        if (torn := np.flatnonzero(labels_N != labels_N[first][subjects_N])).size:
            rule = "has rows of several classes, and a subject is tested as one"
            raise DataError(f"{path}: column {SUBJECT}: {table.subjects[torn[0]][:80]!r}: {rule}")
        if len(names) < 2:
            raise DataError(f"{path}: column {SUBJECT}: names one subject; some must train and others test")
        tested_N = np.isin(subjects_N, folds(names_N[first], "csv")[0])
        everything = Split(table.numbers_NF, labels_N, where, "", subjects_N.astype(np.int64))
        train, test = (everything.take(np.flatnonzero(chosen), "") for chosen in (~tested_N, tested_N))
    return Raw(train, test)


def read_table(path: Path, settings: DataSettings) -> Table:
    """The rows of a CSV file: UTF-8, commas, a first row of names. Raises DataError."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.stat().st_size > settings.max_unpacked_mib * MIB:
        raise DataError(f"{path}: is larger than max-unpacked-mib = {settings.max_unpacked_mib} allows")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a mark before the first name
            reader = csv.reader(file, strict=True)
            rows = ((reader.line_num, row) for row in reader if row)
            return _table(path, rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8: {said(error)}") from error


def _table(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Table:
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if not header:
        raise DataError(f"{path}: is empty; its first row must name the columns")
    for name in header:
        if not name or header.count(name) > 1:
            raise DataError(f"{path}: column {name[:80]!r}: every column must have a name of its own")
    if LABEL not in header:
        shown = ", ".join(header)[:200]
        raise DataError(f"{path}: there is no column {LABEL!r}, only {shown}; commas must separate the columns")
    places = [place for place, name in enumerate(header) if name not in (LABEL, SUBJECT)]
    if not places:
        raise DataError(f"{path}: there is no column of numbers beside {LABEL}")
    words: dict[str, list[str]] = {LABEL: [], SUBJECT: []}
    numbers: list[NDArray[np.float32]] = []
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}: row {line}: has {len(row)} cells, and there are {len(header)} columns")
        numbers.append(np.array([_number(path, line, header[place], row[place]) for place in places], np.float32))
        for name in words.keys() & set(header):
            if not (word := row[header.index(name)].strip()):
                raise DataError(f"{path}: row {line}, column {name}: is empty")
            words[name].append(word)
    if len(set(words[LABEL])) < 2:
        raise DataError(f"{path}: column {LABEL}: {len(numbers)} rows of {len(set(words[LABEL]))} classes: at least 2")
    return Table(np.stack(numbers), words[LABEL], words[SUBJECT])


def _number(path: Path, line: int, column: str, cell: str) -> float:
    """A cell's number. Raises DataError for what is none, or none that float32 holds."""
    try:
        value = math.nan if "_" in cell else float(cell)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise DataError(f"{path}: row {line}, column {column}: {cell[:80]!r}: must be a finite number")
    return value


def classes_of(labels: Sequence[str]) -> list[str]:
    """The classes in order: by value where all are whole numbers, else by name."""
    names = set(labels)
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)
