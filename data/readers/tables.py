"""A user's own table, csv:FILE: a column `label`, and columns of numbers or a column with the paths of images."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy, SetOption
from data.readers.abide import folds
from data.readers.image_files import ImageFiles, shape_of
from data.readers.metadata import SampleMetadata, left_out
from data.readers.rows import (
    LABEL,
    LIKE_LABELS,
    SUBJECT,
    Rows,
    check_labels,
    check_length,
    classes_of,
    cure_of,
    header_of,
    missing_in,
    named,
    names_of_classes,
    numbered_labels,
    opened,
    role_like,
    roles_of,
    writing_of,
)
from data.readers.splits import Guess, Raw, Split, stratified
from data.settings import DataSettings
from data.text import finite_number, name_list

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a cell may have: inputs are float32."""
IMAGE_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".dcm", ".nii", ".nii.gz",
)  # fmt: skip
"""Endings of file names by which a cell looks like the path of an image."""


@dataclass(frozen=True)
class Table:
    """The contents of a table of numbers."""

    numbers_NF: NDArray[np.float32]
    """(rows, columns of numbers): the inputs."""
    inputs: tuple[str, ...]
    """The names of the columns of numbers, in file order."""
    rows: SampleMetadata
    """The other columns, by role."""
    notes: tuple[str, ...] = ()
    """Notes for the user about the file's encoding and separator, one sentence each."""


def read_csv(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """Return the samples of a table: images, or vectors (features,) in column order, split into train and test.

    The column `split` or `fold` decides the split. Without them, a fifth of the rows is the test set. If the table has
    numbers and no roles besides label and subject, and split-seed and test-fold are 0, this fifth is drawn by class; or
    by subject, and then all rows of a subject are evaluated together. Otherwise `SampleMetadata.divided` draws it.

    Raises:
        DataError: a row, column or value that cannot be used for training.
    """
    if has_image_paths(path, settings):
        return read_images(path, class_names, shape, settings)
    table = read_table(path, settings)
    where = str(path)
    rows = table.rows
    labels = numbered_labels(path, rows.of(LABEL), class_names, rows.columns[LABEL])
    labels_N = np.array(labels, np.int64)
    everything = Split(table.numbers_NF, labels_N, where, "")
    if rows.cells.keys() - {LABEL, SUBJECT} or settings.split_seed or settings.test_fold:
        divided = rows.divided(everything, settings)
        return replace(divided, input_columns=table.inputs)

    # Number the label names in sorted order here, so that the split does not depend on the order of `classes`.
    _, names_N = np.unique(np.array(rows.of(LABEL)), return_inverse=True)
    subjects = rows.of(SUBJECT)
    if not subjects:
        train_rows, test_rows = stratified(names_N, where)
        train = everything.take(np.sort(train_rows), "")
        test = everything.take(np.sort(test_rows), "")
        return Raw(train, test, input_columns=table.inputs)

    subject_names, first_row_S, subjects_N = np.unique(
        np.array(subjects), return_index=True, return_inverse=True
    )
    label_S = labels_N[first_row_S]
    conflicts = np.flatnonzero(labels_N != label_S[subjects_N])
    if conflicts.size:
        rule = "has rows of several classes, and a subject is tested as one"
        raise rows.error(SUBJECT, subjects[conflicts[0]], rule)
    if len(subject_names) < 2:
        rule = f"column {SUBJECT}: names one subject; some must train and others test"
        raise DataError(rule, where=where)
    tested_S = folds(names_N[first_row_S], "csv")[0]
    is_test_N = np.isin(subjects_N, tested_S)
    everything = replace(everything, groups=subjects_N.astype(np.int64))
    train = everything.take(np.flatnonzero(~is_test_N), "")
    test = everything.take(np.flatnonzero(is_test_N), "")
    return Raw(train, test, input_columns=table.inputs)


def read_table(path: Path, settings: DataSettings) -> Table:
    """Read a table of numbers. Raises DataError."""
    with opened(path, settings) as rows:
        writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
        numbers = Numbers(
            path=path,
            header=header,
            roles=roles,
            settings=settings,
            # A comma can be a decimal mark if it does not separate the columns.
            commas=writing.separator != ",",
        )
        return _table(path, rows, numbers, tuple(writing.notes))


def _table(path: Path, rows: Rows, numbers: "Numbers", notes: tuple[str, ...]) -> Table:
    header, roles = numbers.header, numbers.roles
    columns = [column for column, name in enumerate(header) if name not in roles.values()]
    if not columns:
        others = ", ".join(roles.values())
        raise DataError(f"there is no column of numbers beside {others}", where=str(path))
    cells = Cells(path, header, roles, numbers.settings)
    numbers_NF: list[NDArray[np.float32]] = []
    for line, row in rows:
        check_length(path, line, row, header)
        if not cells.add(line, row):
            continue
        values = [numbers.read(line, header[column], row[column]) for column in columns]
        numbers_NF.append(np.array(values, np.float32))
    metadata = cells.metadata()  # refuses a table without rows
    return Table(
        numbers_NF=np.stack(numbers_NF),
        inputs=tuple(header[column] for column in columns),
        rows=metadata,
        notes=notes,
    )


@dataclass
class Cells:
    """Collects the cells of all columns that have a role (label, site, patient, ...), row by row."""

    path: Path
    header: Sequence[str]
    roles: dict[str, str]
    """The columns' names by role."""
    settings: DataSettings
    by_role: dict[str, list[str]] = field(default_factory=dict)
    """The cells by role, one per row."""
    dropped: list[str] = field(default_factory=list)
    """What was missing in each row that was left out."""

    def __post_init__(self) -> None:
        self.by_role = {role: [] for role in self.roles}
        self.class_names = frozenset(names_of_classes(self.settings))

    def add(self, line: int, row: Sequence[str]) -> bool:
        """Add the cells of a row; `line` is its line number. Return False for a row that is left out.

        Raises:
            DataError: a missing value, unless `missing` is drop.
        """
        cells = {role: row[self.header.index(name)].strip() for role, name in self.roles.items()}
        missing = missing_in(
            str(self.path), f"row {line}", cells, self.roles, self.class_names, self.settings
        )
        if missing:
            self.dropped.append(missing)
            return False
        for role, cell in cells.items():
            self.by_role[role].append(cell)
        return True

    def metadata(self) -> SampleMetadata:
        """Return all cells as metadata. Raises DataError for labels that are no classes, or fewer than two."""
        labels = self.by_role[LABEL]
        check_labels(str(self.path), self.roles[LABEL], labels, self.class_names)
        classes = len(set(labels))
        if classes < 2:
            rule = f"{len(labels)} rows of {classes} classes: at least 2"
            raise DataError(f"column {self.roles[LABEL]}: {rule}", where=str(self.path))
        return SampleMetadata(
            where=str(self.path),
            columns=self.roles,
            cells={role: tuple(cells) for role, cells in self.by_role.items()},
            left_out=left_out(self.dropped),
        )


@dataclass
class Numbers:
    """Parses the numbers of a table. The decimal mark is a point, or a comma if no comma separates the columns."""

    path: Path
    header: Sequence[str]
    roles: dict[str, str]
    settings: DataSettings
    commas: bool
    """Whether a comma can be a decimal mark."""
    marks: dict[str, str] = field(default_factory=dict)
    """The decimal marks found so far, each with the row, column and cell where it was found first."""

    def read(self, line: int, column: str, cell: str) -> float:
        """Return a cell's number. Raises DataError for text and for numbers that do not fit float32."""
        text = cell.strip()
        where = f"row {line}, column {column}: {cell[:80]!r}"
        if self.commas and ("," in text or "." in text):
            self.marks.setdefault("comma" if "," in text else "point", where)
            text = text.replace(",", ".", 1)
        try:
            value = finite_number(text)
            fits = abs(value) <= LARGEST
        except ValueError:
            fits = False
        if not fits:
            raise DataError(
                f"{where}: must be a finite number",
                where=str(self.path),
                remedy=self.remedy_for(column, text),
            )
        if len(self.marks) > 1:
            first, second = self.marks.values()
            rule = "the decimal mark must be a point in every row, or a comma in every row"
            raise DataError(f"{second}: {rule}; {first}", where=str(self.path))
        return value

    def remedy_for(self, column: str, text: str) -> Remedy:
        """Return the remedy for a cell that is not a number; empty if none is known."""
        others = [name for name in self.header if name not in self.roles.values()]
        likely = likely_roles(others, self.roles)
        if text.lower().endswith(IMAGE_SUFFIXES):
            option = cure_of(self.settings, {"path": column, **likely})
            return "if it is the image's file: ", option
        for role, name in likely.items():
            if name == column:
                return f"if it is the {role}: ", cure_of(self.settings, {role: column})
        if "," in text and not self.commas:
            return "a decimal comma needs semicolons or tabs between the columns"
        return ""


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table of images or numbers. Raises DataError."""
    if has_image_paths(path, settings):
        return guess_image_settings(path, settings)
    table = read_table(path, settings)
    notes: list[Remedy] = [*table.notes, *table.rows.notes]
    for name in table.inputs:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.rows.columns:
            option = cure_of(settings, {role: name})
            notes.append((f"column {name} is one of the inputs; if it is the {role}: ", option))
    classes = classes_of(table.rows.of(LABEL))
    proposed = {"classes": name_list(classes), "input-shape": str(len(table.inputs))}
    return Guess(proposed, tuple(notes))


def likely_roles(columns: Sequence[str], roles: Collection[str]) -> dict[str, str]:
    """Return, by role, the columns whose names look like a site or a patient.

    Leave out roles that are in `roles` already: they have a column.
    """
    likely: dict[str, str] = {}
    for name in columns:
        role = role_like(name)
        if role in ("site", "patient") and role not in roles:
            likely.setdefault(role, name)
    return likely


def has_image_paths(path: Path, settings: DataSettings) -> bool:
    """Return whether a table has a column with the role `path`. Raises DataError."""
    with opened(path, settings) as rows:
        return "path" in roles_of(path, header_of(path, rows), settings)


def input_columns(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of a table's columns of numbers, in file order; empty for images. Raises DataError.

    No row but the header is read.
    """
    with opened(path, settings) as rows:
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
    if "path" in roles:
        return ()
    return tuple(name for name in header if name not in roles.values())


def files_of_table(path: Path, settings: DataSettings) -> list[Path]:
    """Return the path of the table and those of the images in it. Raises DataError."""
    if not has_image_paths(path, settings):
        return [path]
    return [path, *image_table(path, settings).paths]


def sites_of(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """Return the sites of a table; empty if the file or the column is missing. Raises DataError."""
    if not path.is_file():
        return ()
    with opened(path, settings) as rows:
        roles = roles_of(path, header_of(path, rows), settings)
    if "site" not in roles:
        return ()
    if "path" in roles:
        return image_table(path, settings).metadata.sites
    return read_table(path, settings).rows.sites


@dataclass(frozen=True)
class ImageTable:
    """The rows of a table of images."""

    folder: Path
    metadata: SampleMetadata
    unused: tuple[str, ...]
    """The names of columns without a role, which are ignored."""

    @property
    def paths(self) -> list[Path]:
        """The path of each row's image."""
        return [self.folder / cell for cell in self.metadata.of("path")]


def read_images(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """Return the images of a table, split into train, test and perhaps validation.

    Raises:
        DataError: a row, column or value that cannot be used for training.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        rule = "must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for a table of images"
        raise DataError(f"input-shape = {settings.input_shape!r}: {rule}", where=str(path))
    table = image_table(path, settings)
    rows = table.metadata
    labels = numbered_labels(path, rows.of(LABEL), class_names, rows.columns[LABEL])
    images = ImageFiles.of(table.folder, list(rows.of("path")), shape, settings)
    every_row = Split(images, np.array(labels, np.int64), str(path), "")
    return rows.divided(every_row, settings)


def image_table(path: Path, settings: DataSettings) -> ImageTable:
    """Return a table of images. It is read again only if the file's size or modification time changes.

    Raises DataError.
    """
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    stat = path.stat()
    # Only these settings change how the table is read; the others must not be part of the cache's key.
    relevant = DataSettings(
        classes=settings.classes,
        columns=settings.columns,
        missing=settings.missing,
        outside_folder=settings.outside_folder,
        max_unpacked_mib=settings.max_unpacked_mib,
    )
    return _read_image_table(path, stat.st_size, stat.st_mtime_ns, relevant)


@lru_cache(maxsize=4)
def _read_image_table(path: Path, size: int, changed: int, settings: DataSettings) -> ImageTable:
    """Read a table of images. `size` and `changed` (bytes, nanoseconds) only serve as keys of the cache."""
    with opened(path, settings) as rows:
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
        cells = Cells(path, header, roles, settings)
        paths = cells.by_role["path"]
        row_of_file: dict[str, int] = {}
        root = path.parent.resolve()
        for line, row in rows:
            check_length(path, line, row, header)
            if not cells.add(line, row):
                continue
            name = _checked_path(path, line, root, paths[-1], settings)
            paths[-1] = name
            if name in row_of_file:
                rule = f"{name} is the file of row {row_of_file[name]} too"
                raise DataError(f"row {line}: {rule}", where=str(path))
            row_of_file[name] = line
    return ImageTable(
        folder=path.parent,
        metadata=cells.metadata(),
        unused=tuple(name for name in header if name not in roles.values()),
    )


def _checked_path(path: Path, line: int, root: Path, cell: str, settings: DataSettings) -> str:
    """Return the path in a row's cell, relative to `root`, the table's folder.

    Raises:
        DataError: the file does not exist, or is outside the folder and outside-folder is false.
    """
    if "\0" in cell:
        raise DataError(f"row {line}: its path holds a character that no path has", where=str(path))
    name = cell
    if not (root / cell).exists():
        name = cell.replace("\\", "/")  # the table was written on Windows
    file = root / name
    if not settings.outside_folder and not file.resolve().is_relative_to(root):
        rule = "leads out of the table's folder"
        remedy = (SetOption("outside-folder", "true"), " allows that")
        where = f"{path}: row {line}"
        raise DataError(f"{cell[:200]!r} {rule}", where=where, remedy=remedy)
    if not file.is_file():
        rule = f"{cell[:200]!r}: there is no such file below {root}"
        raise DataError(f"row {line}: {rule}", where=str(path))
    return name


def _hint(table: ImageTable, settings: DataSettings) -> tuple[str | SetOption, ...]:
    """Return the end of a sentence: how to give unused columns the roles that their names suggest. May be empty."""
    likely = likely_roles(table.unused, table.metadata.columns)
    if not likely:
        return ()
    meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
    return f"; if {meanings}: ", cure_of(settings, likely)


def guess_image_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table of images. Raises DataError."""
    table = image_table(path, settings)
    rows = table.metadata
    shape, notes_of_images = shape_of(table.paths, settings, rows.sites_and_labels)
    notes: list[Remedy] = [*notes_of_images]
    if table.unused:
        listed = ", ".join(table.unused)
        notes.append((f"columns that are not used: {listed}", *_hint(table, settings)))
    writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
    notes += [*writing.notes, *rows.notes]
    classes = name_list(classes_of(rows.of(LABEL)))
    return Guess({"classes": classes, "input-shape": shape}, tuple(notes))
