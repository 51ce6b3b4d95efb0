"""A user's own table, csv:FILE: a column `label`, and columns of numbers or a column with the paths of images."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy
from data.readers.array_types import Floats
from data.readers.dicom_headers import with_origins
from data.readers.image_files import ImageFiles, letters_of
from data.readers.input_columns import notes_of_gaps
from data.readers.rows import (
    DROP_ROWS,
    FILL_CELLS,
    Table,
    complete_rows,
    cure_of,
    decimal_mark,
    likely_roles,
    notes_of_unused,
    number_in,
    read_table,
    role_like,
    roles_of,
)
from data.readers.splits import Manifest, manifest_of_rows
from data.settings import DataSettings

INPUT, IGNORED = "input", "ignored"
"""What `columns_of` calls columns without a role."""
HEADER_ROWS = 20
"""Rows among which the header is looked for: those before it are empty."""
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
    if "patient" in roles:
        taken.add("subject")  # it names people too, and a number of theirs is no input
    return roles, tuple(name for name in table.header if name not in taken)


def input_columns(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of a table's columns of numbers, in file order; empty for images. Raises DataError."""
    roles, others = roles_in(path, settings)
    return () if "path" in roles else others


def scan(path: Path, settings: DataSettings) -> Manifest:
    """Return the rows of a table: images, or vectors (features,) in column order.

    Raises:
        DataError: a row, column or value that cannot be used for training.
    """
    table = read_table(path)
    roles, others = roles_and_inputs(table, settings)
    cells = {role: table.columns[name] for role, name in roles.items()}
    names = {role: f"column {name}" for role, name in roles.items()}

    def row_of(place: int) -> str:
        return f"row {table.lines[place]}"

    rows, dropped = complete_rows(str(path), cells, names, row_of, settings)
    inputs: ImageFiles | Floats
    if "path" in roles:
        files = checked_paths(table, cells.pop("path"), rows)
        row_of_file: dict[str, int] = {}
        for row, file in zip(rows, files, strict=True):
            first = row_of_file.setdefault(os.path.normpath(path.parent / file), row)
            if first != row:  # one of them might train and the other test
                rule = f"{file} is the file of {row_of(first)} too"
                raise DataError(rule, where=f"{path}: {row_of(row)}")
        inputs, others = ImageFiles(path.parent, letters_of(files), settings=settings), ()
    elif others:
        inputs, rows, gaps = read_numbers(table, others, rows, settings, roles)
        dropped += gaps
    else:
        rule = f"there is no column of numbers beside {', '.join(roles.values())}"
        raise DataError(rule, where=path)
    columns = {role: [texts[row] for row in rows] for role, texts in cells.items()}
    manifest = manifest_of_rows(
        str(path), inputs, columns, names, settings, dropped, input_columns=others
    )
    return with_origins(manifest, settings, roles=("patient",))


def questions(path: Path, manifest: Manifest, settings: DataSettings) -> list[Remedy]:
    """Return what is said and asked about a table's columns: gaps, ids, sites, patients and what is not used."""
    roles, others = roles_in(path, settings)
    inputs = manifest.inputs
    if isinstance(inputs, ImageFiles):
        return notes_of_unused(others, roles, settings)
    notes: list[Remedy] = [*notes_of_gaps(np.isnan(inputs).sum(axis=0), others)]
    likely = likely_roles(others, roles, settings)
    ids = [
        column.name
        for column in columns_of(path, settings)
        if column.role == INPUT and column.counts_rows and column.name not in likely.values()
    ]
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
        numbers = [number_in(table.columns[name][row], mark) for row in rows]
        if None in numbers:
            row = rows[numbers.index(None)]
            rule = f"{table.place(row, name)}: must be a finite number"
            remedy = _remedy_for(table, row, name, inputs, settings, roles)
            raise DataError(rule, where=table.path, remedy=remedy)
        numbers_NF[:, place] = np.array(numbers, np.float64)
    if settings.missing == "median":
        return numbers_NF, [*rows], []

    gaps_NF = np.isnan(numbers_NF)
    has_gap_N = gaps_NF.any(axis=1)
    dropped = []
    for place in np.flatnonzero(has_gap_N).tolist():
        name = inputs[int(gaps_NF[place].argmax())]
        dropped.append(f"{table.place(rows[place], name)} is a missing value")
        if settings.missing == "refuse":
            filling = " fills them with the median of the column's training rows"
            remedy = (DROP_ROWS, " leaves out such rows, ", FILL_CELLS, filling)
            if len(inputs) > 1:
                remedy = *remedy, ", ", cure_of(settings, {}, [name]), " leaves out the column"
            raise DataError(dropped[0], where=table.path, remedy=remedy)
    kept = np.flatnonzero(~has_gap_N)
    return numbers_NF[kept], [rows[place] for place in kept.tolist()], dropped


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
    if roles is None or number_in(cell, ".") is not None or number_in(cell, ",") is not None:
        return ""
    role = role_like(column)
    if role == "path" or role in likely_roles([column], roles, settings):
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
    type: str
    """numbers, numbers and text, text, or empty."""
    range: str
    """Least and largest number, or how many different texts there are."""
    missing: int
    """Cells that are missing values."""
    is_text: bool
    """Whether most of its cells are text: of others a cell may be mistyped."""
    counts_rows: bool
    """Whether every row has another whole number, as a column of ids has."""


def summary_of(table: Table, name: str, role: str) -> ColumnSummary:
    """Return what a column holds."""
    mark = decimal_mark(table, [name])
    read = {cell: number_in(cell, mark) for cell in {*table.columns[name]}}
    # A missing value is NaN, and no other number is.
    gaps = {cell for cell, number in read.items() if number is not None and math.isnan(number)}
    texts = [cell for cell in table.columns[name] if cell not in gaps]
    numbers = [number for cell in texts if (number := read[cell]) is not None]
    kind, shown = "empty", ""
    if len(numbers) < len(texts):
        kind = "numbers and text" if numbers else "text"
        shown = f"{len(set(texts))} different"
    elif numbers:
        kind, shown = "numbers", f"{min(numbers):.6g}..{max(numbers):.6g}"
    missing = len(table.lines) - len(texts)
    every_row = not missing and FEWEST_IDS <= len(texts) == len(set(numbers))
    return ColumnSummary(
        name,
        role,
        kind,
        shown,
        missing,
        is_text=2 * len(numbers) < len(texts),
        counts_rows=every_row and all(map(float.is_integer, numbers)),
    )


def columns_of(path: Path, settings: DataSettings) -> list[ColumnSummary]:
    """Return what each column of a table holds, in file order. Raises DataError for a table without label or header."""
    table = read_table(path)
    roles, inputs = roles_and_inputs(table, settings)
    meaning = {name: role for role, name in roles.items()}
    if "path" not in roles:
        meaning |= dict.fromkeys(inputs, INPUT)
    return [summary_of(table, name, meaning.get(name, IGNORED)) for name in table.header]


# ---- paths -----------------------------------------------------------------------------------------------------------


def checked_paths(table: Table, cells: Sequence[str], rows: Sequence[int]) -> list[str]:
    """Return the paths of some rows: relative to the table's folder, or absolute.

    Raises:
        DataError: a file does not exist.
    """
    root = table.path.parent.resolve()
    names = []
    for place in rows:
        cell = cells[place]
        # The table may have been written on Windows.
        spellings = (cell, cell.replace("\\", "/"))
        # Path.is_file raises OSError for a text that is too long for a path; os.path.isfile does not.
        there = [name for name in spellings if os.path.isfile(root / name)]  # noqa: PTH113
        if not there:
            rule = f"{cell[:200]!r}: there is no such file below {root}"
            raise DataError(rule, where=f"{table.path}: row {table.lines[place]}")
        names.append(there[0])
    return names
