"""A table in a CSV file: its rows, and which column means what."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data.settings import ROLES, DataError, DataSettings
from data.sources.first_bytes import truly
from data.text import said

LABEL, SUBJECT = "label", "subject"
LIKE_LABELS = (
    "label",
    "labels",
    "class",
    "classes",
    "target",
    "targets",
    "diagnosis",
    "category",
    "y",
    "ground_truth",
)
"""What a column of labels may be called, in small letters."""
MIB = 2**20
Rows = Iterator[tuple[int, list[str]]]
"""Each row's line number and cells; the first one names the columns."""


@contextmanager
def opened(path: Path, settings: DataSettings) -> Iterator[Rows]:
    """The rows of a CSV file: UTF-8, commas. Raises DataError, also for what is read inside."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.stat().st_size > settings.max_unpacked_mib * MIB:
        raise DataError(
            f"{path}: is larger than max-unpacked-mib = {settings.max_unpacked_mib} allows"
        )
    try:
        with path.open(
            encoding="utf-8-sig", newline=""
        ) as file:  # spreadsheets write a mark before the first name
            reader = csv.reader(file, strict=True)
            yield ((reader.line_num, row) for row in reader if row)
    except (csv.Error, UnicodeDecodeError) as error:
        kind = truly(path)
        reason = said(error) + f"; it is {kind}" * (bool(kind) and not kind.startswith("text"))
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8: {reason}") from error


def header_of(path: Path, rows: Rows) -> list[str]:
    """The columns' names. Raises DataError where one has none, or another's."""
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if not header:
        raise DataError(f"{path}: is empty; its first row must name the columns")
    for name in header:
        if not name or header.count(name) > 1:
            raise DataError(
                f"{path}: column {name[:80]!r}: every column must have a name of its own"
            )
    return header


def roles_of(path: Path, header: Sequence[str], settings: DataSettings) -> dict[str, str]:
    """Which column means what: by `columns`; then, in a table of images, by the roles' own names.

    A table of images has a column of paths. In one of numbers only label and subject mean something by their names.

    Raises:
        DataError: a column that is not there, or two that may be the label.
    """
    stated = settings.column_names
    shown = ", ".join(header)[:200]
    for name in stated.values():
        if name and name not in header:
            raise DataError(
                f"{path}: columns = {settings.columns!r}: there is no column {name!r}, only {shown}"
            )
    images = bool(stated.get("path", "path" in header))
    by_name = ROLES if images else (LABEL, SUBJECT)
    roles = {
        role: stated.get(role, role)
        for role in (*stated, *by_name)
        if stated.get(role, role) in header
    }
    if LABEL in stated and roles.get(LABEL):
        return roles
    taken = {name for role, name in roles.items() if role != LABEL}
    alike = [name for name in header if name.lower() in LIKE_LABELS and name not in taken]
    before = f"{settings.columns},".lstrip(",")
    ways = [f"--set 'columns={before}label={name}'" for name in alike]
    if len(alike) > 1:
        raise DataError(
            f"{path}: columns {' and '.join(alike)} both look like the label: {' or '.join(ways)}"
        )
    if LABEL not in roles:
        rule = f"if that is it: {ways[0]}" if ways else "commas must separate the columns"
        rule = (
            f"it is {kind}"
            if not ways and (kind := truly(path)).endswith(("semicolons", "tabs"))
            else rule
        )
        raise DataError(f"{path}: there is no column {LABEL!r}, only {shown}; {rule}")
    return roles


def classes_of(labels: Sequence[str]) -> list[str]:
    """The classes in order: by value where all are whole numbers, else by name."""
    names = set(labels)
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def numbered_labels(
    path: Path, labels: Sequence[str], class_names: tuple[str, ...], column: str
) -> list[int]:
    """The labels' places in `class_names`. Raises DataError for one that is not there."""
    number = {name: label for label, name in enumerate(class_names)}
    if unknown := next((label for label in labels if label not in number), None):
        rule = f"must be one of classes = {', '.join(class_names)}"
        raise DataError(f"{path}: column {column}: {unknown[:80]!r}: {rule}")
    return [number[label] for label in labels]
