"""A user's own table, csv:FILE: a column `label`, and columns of numbers or a column with the paths of images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.files import FileStamp, stamp_of
from data.readers.array_types import Floats
from data.readers.dicom_headers import with_origins
from data.readers.image_files import ANY_SIZE, ImageFiles
from data.readers.input_columns import notes_of_gaps, rows_without_gaps
from data.readers.rows import (
    LABEL,
    Table,
    check_labels,
    classes_of,
    complete_rows,
    cure_of,
    decimal_mark,
    left_out,
    likely_roles,
    names_of_classes,
    number_in,
    read_table,
    role_like,
    roles_of,
)
from data.readers.splits import Manifest
from data.settings import DataSettings

INPUT, IGNORED = "input", "ignored"
"""What `columns_of` calls columns without a role."""
OF_READING = ("classes", "columns", "missing", "outside_folder")
"""The settings that change what a scan finds."""
HEADER_ROWS = 20
"""Rows among which the header is looked for: those before it are empty."""
MOST_KEPT = 4
"""Tables of images that a process keeps: a check and a run look at a data set several times."""
FEWEST_IDS = 20
"""Rows from which a column of different whole numbers is asked about: a few rows differ by chance."""


def roles_in(path: Path, settings: DataSettings) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns' names by role, and the inputs. Raises DataError. No row but the header is read."""
    return roles_and_inputs(read_table(path, most=HEADER_ROWS), settings)


def roles_and_inputs(
    table: Table, settings: DataSettings
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns' names by role, and those without one that are not left out. Raises DataError."""
    roles = roles_of(str(table.path), table.header, settings)
    taken = {*roles.values(), *settings.ignored_columns}
    return roles, tuple(name for name in table.header if name not in taken)


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
    if "path" not in roles_in(path, settings)[0]:
        return _scan(path, None, reading)
    # The files may change while their table stays as it is, so that nothing of them is kept with it.
    return with_origins(_kept(path, stamp_of(path), reading), settings, roles=("patient",))


def _scan(path: Path, stamp: FileStamp, settings: DataSettings) -> Manifest:
    """Return the rows of a table. The stamp only serves as a key of `_kept`."""
    table = read_table(path)
    roles, others = roles_and_inputs(table, settings)
    cells = {role: table.columns[name] for role, name in roles.items()}
    names = {role: f"column {name}" for role, name in roles.items()}

    def row_of(place: int) -> str:
        return f"row {table.lines[place]}"

    rows, dropped = complete_rows(str(path), cells, names, row_of, settings)
    inputs: ImageFiles | Floats
    if "path" in roles:
        files = checked_paths(table, cells.pop("path"), rows, settings)
        _refuse_repeated(table, files, rows)
        inputs, others = ImageFiles.of(path.parent, files, ANY_SIZE, settings), ()
    elif others:
        inputs, rows, gaps = read_numbers(table, others, rows, settings, roles)
        dropped += gaps
    else:
        rule = f"there is no column of numbers beside {', '.join(roles.values())}"
        raise DataError(rule, where=path)
    columns = {role: [texts[row] for row in rows] for role, texts in cells.items()}
    check_labels(str(path), names[LABEL], columns[LABEL], names_of_classes(settings))
    return Manifest(
        where=str(path),
        inputs=inputs,
        columns=columns,
        names=names,
        classes=classes_of(columns[LABEL]),
        notes=(*left_out(dropped), *table.notes),
        input_columns=others,
    )


_kept = lru_cache(maxsize=MOST_KEPT)(_scan)


def questions(path: Path, manifest: Manifest, settings: DataSettings) -> list[Remedy]:
    """Return what is said and asked about a table's columns: gaps, ids, sites, patients and what is not used."""
    roles, others = roles_in(path, settings)
    likely = likely_roles(others, roles)
    inputs = manifest.inputs
    if isinstance(inputs, ImageFiles):
        notes: list[Remedy] = []
        if others:
            meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
            cure = (f"; if {meanings}: ", cure_of(settings, likely)) if likely else ()
            notes.append((f"columns that are not used: {', '.join(others)}", *cure))
        return notes
    notes = [*notes_of_gaps(np.isnan(inputs).sum(axis=0), others)]
    ids = []
    for column in columns_of(path, settings):
        if column.role == INPUT and column.counts_rows and column.name not in likely.values():
            ids.append(column.name)
    if ids and len(ids) < len(others):
        what = f"{', '.join(ids)}: another number in every row; if that is an id, leave it out: "
        notes.append((what, cure_of(settings, {}, ids)))
    for role, name in likely.items():
        option = cure_of(settings, {role: name})
        notes.append((f"column {name} is one of the inputs; if it is the {role}: ", option))
    return notes


# ---- numbers ---------------------------------------------------------------------------------------------------------


def read_numbers(
    table: Table,
    inputs: Sequence[str],
    rows: Sequence[int],
    settings: DataSettings,
    roles: Mapping[str, str] | None = None,
) -> tuple[Floats, list[int], list[str]]:
    """Return the numbers of some columns and rows, the rows that are left, and what is missing in each other one.

    The decimal mark is a point, or a comma where no comma separates the columns and a cell of theirs has one.

    Args:
        table: The cells.
        inputs: The columns' names.
        rows: The places of the rows.
        settings: Of these, `missing` counts: a missing value is refused, its row left out, or NaN.
        roles: The other columns, by role; None where a model says which are the inputs, and no other is proposed.

    Raises:
        DataError: text, a number that does not fit float32, another decimal mark, or a missing value that is refused.
    """
    mark = decimal_mark(table, inputs)
    numbers_NF = np.empty((len(rows), len(inputs)), np.float32)
    for place, name in enumerate(inputs):
        cells = [table.columns[name][row] for row in rows]
        numbers = [number_in(cell, mark) for cell in cells]
        if None in numbers:
            row = rows[numbers.index(None)]
            rule = f"{table.place(row, name)}: must be a finite number"
            remedy = _remedy_for(table, row, name, inputs, settings, roles)
            raise DataError(rule, where=table.path, remedy=remedy)
        numbers_NF[:, place] = np.array(numbers, np.float64)

    def cell(place: int, name: str) -> str:
        return table.place(rows[place], name)

    kept, found = rows_without_gaps(numbers_NF, inputs, cell, table.path, settings, of_table=True)
    return numbers_NF[kept], [rows[place] for place in kept.tolist()], found


def _remedy_for(
    table: Table,
    row: int,
    column: str,
    inputs: Sequence[str],
    settings: DataSettings,
    roles: Mapping[str, str] | None,
) -> Remedy:
    """Return the remedy for a cell that is not a number; empty if none is known."""
    cell = table.columns[column][row]
    if number_in(cell, ".") is not None:
        return "the decimal mark of other cells is a comma"
    if number_in(cell, ",") is not None:
        return "a decimal comma needs semicolons or tabs between the columns"
    if roles is None:
        return ""
    role = role_like(column)
    if role and role not in roles:
        return f"if it is the {role}: ", cure_of(settings, {role: column})
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
    mark = decimal_mark(table, [name])
    texts, numbers = [], []
    for cell in table.columns[name]:
        number = number_in(cell, mark)
        if number is None or not math.isnan(number):
            texts.append(cell)
        if number is not None and not math.isnan(number):
            numbers.append(number)
    return ColumnSummary(name, role, texts, numbers, len(table.lines) - len(texts))


def columns_of(path: Path, settings: DataSettings) -> list[ColumnSummary]:
    """Return what each column of a table holds, in file order. Raises DataError for a table without label or header."""
    table = read_table(path)
    roles, inputs = roles_and_inputs(table, settings)
    meaning = dict.fromkeys(table.header, IGNORED)
    if "path" not in roles:
        meaning |= dict.fromkeys(inputs, INPUT)
    meaning |= {name: role for role, name in roles.items()}
    return [summary_of(table, name, meaning[name]) for name in table.header]


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
    line_of_file: dict[str, int] = {}
    for name, place in zip(files, rows, strict=True):
        line = table.lines[place]
        first = line_of_file.setdefault(name, line)
        if first != line:
            where = f"{table.path}: row {line}"
            raise DataError(f"{name} is the file of row {first} too", where=where)
