"""A user's own table, csv:FILE: a column `label`, and columns of numbers or a column with the paths of images."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.files import FileStamp, stamp_of
from data.readers.array_types import Floats
from data.readers.dicom_headers import with_origins
from data.readers.image_files import ANY_SIZE, ImageFiles
from data.readers.input_columns import notes_of_gaps, remedy_for_gap
from data.readers.rows import (
    LABEL,
    Table,
    check_labels,
    classes_of,
    complete_rows,
    cure_of,
    gap_of,
    is_missing,
    left_out,
    names_of_classes,
    read_table,
    role_like,
    roles_of,
)
from data.readers.splits import Manifest
from data.settings import DataSettings
from data.text import finite_number

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a cell may have: inputs are float32."""
INPUT, IGNORED = "input", "ignored"
"""What `columns_of` calls columns without a role."""
OF_READING = ("classes", "columns", "missing", "outside_folder")
"""The settings that change what a scan finds."""
HEADER_ROWS = 20
"""Rows among which the header is looked for: those before it are empty."""
MOST_KEPT = 4
"""Scans that a process keeps: a check and a run look at a data set several times."""
FEWEST_IDS = 20
"""Rows from which a column of different whole numbers is asked about: a few rows differ by chance."""


def roles_in(path: Path, settings: DataSettings) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns' names by role, and those without one that are not left out. Raises DataError.

    No row but the header is read.
    """
    table = read_table(path, settings, most=HEADER_ROWS)
    roles = roles_of(str(path), table.header, settings)
    return roles, others_of(table.header, roles, settings)


def others_of(
    header: Sequence[str], roles: Mapping[str, str], settings: DataSettings
) -> tuple[str, ...]:
    """Return the names of the columns without a role that are not left out: a table of numbers has its inputs there."""
    taken = {*roles.values(), *settings.ignored_columns}
    return tuple(name for name in header if name not in taken)


def input_columns(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of a table's columns of numbers, in file order; empty for images. Raises DataError."""
    roles, others = roles_in(path, settings)
    return () if "path" in roles else others


def scan(path: Path, settings: DataSettings) -> Manifest:
    """Return the rows of a table: images, or vectors (features,) in column order.

    A table of images is read once until it changes.

    Raises:
        DataError: a row, column or value that cannot be used for training.
    """
    reading = DataSettings(**{name: getattr(settings, name) for name in OF_READING})
    roles, others = roles_in(path, settings)
    if "path" in roles:
        # The files may change while their table stays as it is, so that nothing of them is kept with it.
        return with_origins(_images(path, stamp_of(path), reading), settings, roles=("patient",))
    if not others:
        rule = f"there is no column of numbers beside {', '.join(roles.values())}"
        raise DataError(rule, where=path)
    table = read_table(path, reading)
    rows, dropped = _complete_rows(table, roles, reading)
    numbers_NF, rows, gaps = read_numbers(table, others, rows, reading, roles)
    manifest = _manifest(table, roles, numbers_NF, rows, reading)
    notes = (*left_out(dropped + gaps), *manifest.notes)
    return replace(manifest, input_columns=others, notes=notes)


def _complete_rows(
    table: Table, roles: Mapping[str, str], settings: DataSettings
) -> tuple[list[int], list[str]]:
    """Return the places of the rows without a missing value, and what is missing in each other. Raises DataError."""
    cells = {role: table.columns[name] for role, name in roles.items()}
    names = {role: f"column {name}" for role, name in roles.items()}
    lines = table.lines
    return complete_rows(
        str(table.path), cells, names, lambda place: f"row {lines[place]}", settings
    )


def _manifest(
    table: Table,
    roles: Mapping[str, str],
    inputs: Floats | ImageFiles,
    rows: Sequence[int],
    settings: DataSettings,
) -> Manifest:
    """Return the manifest of some rows of a table. Raises DataError for labels that are no classes."""
    columns: dict[str, Sequence[str]] = {}
    for role, name in roles.items():
        if role != "path":
            columns[role] = [table.columns[name][row] for row in rows]
    names = {role: f"column {roles[role]}" for role in columns}
    check_labels(str(table.path), names[LABEL], columns[LABEL], names_of_classes(settings))
    classes = classes_of(columns[LABEL])
    return Manifest(str(table.path), inputs, columns, names, classes, tuple(table.notes))


@lru_cache(maxsize=MOST_KEPT)
def _images(path: Path, stamp: FileStamp, settings: DataSettings) -> Manifest:
    """Return the images of a table. The stamp only serves as a key of the cache."""
    roles, unused = roles_in(path, settings)
    table = read_table(path, settings)
    rows, dropped = _complete_rows(table, roles, settings)
    files = checked_paths(table, table.columns[roles["path"]], rows, settings)
    _refuse_repeated(table, files, rows)
    images = ImageFiles.of(path.parent, files, ANY_SIZE, settings)
    manifest = _manifest(table, roles, images, rows, settings)
    notes: list[Remedy] = [*left_out(dropped), *manifest.notes]
    likely = likely_roles(unused, roles)
    if unused:
        note = f"columns that are not used: {', '.join(unused)}"
        meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
        cure = (f"; if {meanings}: ", cure_of(settings, likely)) if likely else ()
        notes.append((note, *cure))
    return replace(manifest, notes=tuple(notes))


def questions(path: Path, manifest: Manifest, settings: DataSettings) -> list[Remedy]:
    """Return what is asked about the inputs of a table of numbers: gaps, ids, sites and patients."""
    inputs = manifest.inputs
    if isinstance(inputs, ImageFiles):
        return []
    notes: list[Remedy] = [*notes_of_gaps(np.isnan(inputs).sum(axis=0), manifest.input_columns)]
    likely = likely_roles(manifest.input_columns, manifest.names)
    ids = []
    for column in columns_of(path, settings):
        if column.role == INPUT and column.counts_rows and column.name not in likely.values():
            ids.append(column.name)
    if ids and len(ids) < len(manifest.input_columns):
        question = (
            f"{', '.join(ids)}: another number in every row; if that is an id, leave it out: "
        )
        notes.append((question, cure_of(settings, {}, ids)))
    for role, name in likely.items():
        option = cure_of(settings, {role: name})
        notes.append((f"column {name} is one of the inputs; if it is the {role}: ", option))
    return notes


def likely_roles(columns: Sequence[str], roles: Collection[str]) -> dict[str, str]:
    """Return, by role, the columns whose names look like a site or a patient, of the roles that no column has yet."""
    likely: dict[str, str] = {}
    for name in columns:
        role = role_like(name)
        if role in ("site", "patient") and role not in roles:
            likely.setdefault(role, name)
    return likely


# ---- numbers ---------------------------------------------------------------------------------------------------------


def read_numbers(
    table: Table,
    inputs: Sequence[str],
    rows: Sequence[int],
    settings: DataSettings,
    roles: dict[str, str] | None = None,
) -> tuple[Floats, list[int], list[str]]:
    """Return the numbers of some columns and rows, the rows that are left, and what is missing in each other one.

    The decimal mark is a point, or a comma where no comma separates the columns.

    Args:
        table: The cells.
        inputs: The columns' names.
        rows: The places of the rows.
        settings: Of these, `missing` counts: a missing value is refused, its row left out, or NaN.
        roles: The other columns, by role; None where a model says which are the inputs, and no other is proposed.

    Raises:
        DataError: text, a number that does not fit float32, two decimal marks, or a missing value that is refused.
    """
    numbers_NF = np.empty((len(rows), len(inputs)), np.float32)
    for place, name in enumerate(inputs):
        cells = [table.columns[name][row] for row in rows]
        numbers = [number_in(cell, table.comma_is_decimal) for cell in cells]
        if None in numbers:
            row = rows[numbers.index(None)]
            remedy = remedy_for(table, name, table.columns[name][row], settings, roles)
            rule = f"{table.place(row, name)}: must be a finite number"
            raise DataError(rule, where=table.path, remedy=remedy)
        numbers_NF[:, place] = np.array(numbers, np.float64)
    if table.comma_is_decimal:
        _refuse_two_marks(table, inputs, rows)
    if settings.missing == "median":
        return numbers_NF, [*rows], []
    gaps_NF = np.isnan(numbers_NF)
    has_gap_N = gaps_NF.any(axis=1)
    found = []
    for number in np.flatnonzero(has_gap_N).tolist():
        name = inputs[int(gaps_NF[number].argmax())]
        cell = table.columns[name][rows[number]]
        found.append(gap_of(f"row {table.lines[rows[number]]}", f"column {name}", cell))
        if settings.missing == "refuse":
            remedy = remedy_for_gap(settings, name if len(inputs) > 1 else "")
            raise DataError(found[0], where=table.path, remedy=remedy)
    return numbers_NF[~has_gap_N], np.array(rows, np.int64)[~has_gap_N].tolist(), found


def _refuse_two_marks(table: Table, inputs: Sequence[str], rows: Sequence[int]) -> None:
    """Raise DataError where a comma marks decimals in one cell, and a point in another."""
    marks: dict[str, str] = {}
    for name in inputs:
        for row in rows:
            cell = table.columns[name][row]
            for mark in {*cell} & {",", "."}:
                if not is_missing(cell):
                    marks.setdefault(mark, table.place(row, name))
    if len(marks) > 1:
        first, second = marks.values()
        rule = "the decimal mark must be a point in every row, or a comma in every row"
        raise DataError(f"{second}: {rule}; {first}", where=table.path)


def number_in(cell: str, comma_is_decimal: bool) -> float | None:
    """Return a cell's number, NaN for a missing value, and None for a text or a number that does not fit float32."""
    try:
        number = finite_number(cell.replace(",", ".", 1) if comma_is_decimal else cell)
    except ValueError:
        return math.nan if is_missing(cell) else None
    return number if abs(number) <= LARGEST else None


def remedy_for(
    table: Table, column: str, cell: str, settings: DataSettings, roles: dict[str, str] | None
) -> Remedy:
    """Return the remedy for a cell that is not a number; empty if none is known."""
    if "," in cell and not table.comma_is_decimal:
        return "a decimal comma needs semicolons or tabs between the columns"
    if roles is None:
        return ""
    role = role_like(column)
    if role and role not in roles:
        return f"if it is the {role}: ", cure_of(settings, {role: column})
    inputs = others_of(table.header, roles, settings)
    texts = [name for name in inputs if summary_of(table, name, INPUT).is_text]
    if column not in texts or len(texts) == len(inputs):
        return ""
    which = "it is no input" if len(texts) == 1 else f"{', '.join(texts)} are no inputs"
    return f"if {which}: ", cure_of(settings, {}, texts), ", else write numbers for its texts"


@dataclass(frozen=True)
class ColumnSummary:
    """What one column of a table holds."""

    name: str
    role: str
    """One of ROLES, input or ignored."""
    texts: Sequence[str]
    """Its cells without the missing ones."""
    numbers: Sequence[float]
    """Those of them that are numbers."""
    missing: int
    """Cells that are missing values."""

    @property
    def is_text(self) -> bool:
        """Whether most of its cells are text: of others a cell may be mistyped."""
        return 2 * len(self.numbers) < len(self.texts)

    @property
    def counts_rows(self) -> bool:
        """Whether every row has another whole number, as a column of ids has."""
        every_row = not self.missing and FEWEST_IDS <= len(self.texts) == len(set(self.numbers))
        return every_row and all(map(float.is_integer, self.numbers))

    @property
    def type(self) -> str:
        """numbers, numbers and text, text, or empty."""
        if not self.texts:
            return "empty"
        if len(self.numbers) < len(self.texts):
            return "numbers and text" if self.numbers else "text"
        return "numbers"

    @property
    def range(self) -> str:
        """Least and largest number, or how many different texts there are."""
        if len(self.numbers) < len(self.texts):
            return f"{len(set(self.texts))} different"
        return f"{min(self.numbers):.6g}..{max(self.numbers):.6g}" if self.numbers else ""


def summary_of(table: Table, name: str, role: str) -> ColumnSummary:
    """Return what a column holds."""
    cells = table.columns[name]
    texts, numbers = [], []
    for cell in cells:
        number = number_in(cell, table.comma_is_decimal)
        if number is None or not math.isnan(number):
            texts.append(cell)
        if number is not None and not math.isnan(number):
            numbers.append(number)
    return ColumnSummary(name, role, texts, numbers, len(cells) - len(texts))


def columns_of(path: Path, settings: DataSettings) -> list[ColumnSummary]:
    """Return what each column of a table holds, in file order. Raises DataError for a table without label or header."""
    table = read_table(path, settings)
    roles = roles_of(str(path), table.header, settings)
    meaning = {name: role for role, name in roles.items()}
    meaning |= dict.fromkeys(settings.ignored_columns, IGNORED)
    other = IGNORED if "path" in roles else INPUT
    return [summary_of(table, name, meaning.get(name, other)) for name in table.header]


# ---- paths -----------------------------------------------------------------------------------------------------------


def checked_paths(
    table: Table, cells: Sequence[str], rows: Sequence[int], settings: DataSettings
) -> list[str]:
    """Return the paths of some rows, relative to the table's folder.

    Raises:
        DataError: a file does not exist, or is outside the folder and outside-folder is false.
    """
    root = table.path.parent.resolve()
    names = []
    for place in rows:
        where = f"{table.path}: row {table.lines[place]}"
        cell = cells[place]
        shown = repr(cell[:200])
        if "\0" in cell:
            raise DataError(f"{shown}: no path holds such a character", where=where)
        # The table may have been written on Windows.
        name = cell if (root / cell).exists() else cell.replace("\\", "/")
        if not settings.outside_folder and not (root / name).resolve().is_relative_to(root):
            remedy = (SetOption("outside-folder", "true"), " allows that")
            raise DataError(f"{shown} leads out of the table's folder", where=where, remedy=remedy)
        if not (root / name).is_file():
            raise DataError(f"{shown}: there is no such file below {root}", where=where)
        names.append(name)
    return names


def _refuse_repeated(table: Table, files: Sequence[str], rows: Sequence[int]) -> None:
    """Raise DataError for a file in two rows, one of which might train and the other test."""
    row_of_file: dict[str, int] = {}
    for name, place in zip(files, rows, strict=True):
        if name in row_of_file:
            where = f"{table.path}: row {table.lines[place]}"
            raise DataError(f"{name} is the file of row {row_of_file[name]} too", where=where)
        row_of_file[name] = table.lines[place]
