"""A user's own table, csv:FILE: a column `label`, and columns of numbers or a column with the paths of images."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy, SetOption
from data.readers.abide import folds
from data.readers.dicom_headers import INSTITUTION, headers_of, origins_of, unknown_patients
from data.readers.image_files import ImageFiles, shape_of
from data.readers.medians import filled, notes_of_gaps
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
    gap_of,
    header_of,
    is_missing,
    missing_in,
    named,
    names_of_classes,
    numbered_labels,
    opened,
    remedy_for_gap,
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
    """(rows, columns of numbers): the inputs; NaN where `missing = median` fills a gap."""
    inputs: tuple[str, ...]
    """The names of the columns of numbers, in file order."""
    rows: SampleMetadata
    """The other columns, by role."""
    notes: tuple[str, ...] = ()
    """Notes for the user about the file's encoding and separator, one sentence each."""


INPUT, IGNORED = "input", "ignored"
"""What `columns_of` calls columns without a role."""
FEWEST_IDS = 20
"""Rows from which a column of different whole numbers is asked about: a few rows differ by chance."""


@dataclass
class ColumnSummary:
    """What one column of a table holds."""

    name: str
    role: str
    """One of ROLES, input or ignored."""
    missing: int = 0
    """Cells that are missing values."""
    numbers: int = 0
    """Cells that are numbers."""
    whole: int = 0
    """Cells that are whole numbers."""
    least: float = math.inf
    largest: float = -math.inf
    different: set[str] = field(default_factory=set)
    """The texts of its cells without the missing ones."""
    present: int = 0
    """Cells that are not missing."""

    def add(self, cell: str, commas: bool) -> None:
        """Count a cell; `commas` says whether a comma can be a decimal mark."""
        text = cell.strip()
        number = text.replace(",", ".", 1) if commas else text
        try:
            value = finite_number(number)
        except ValueError:
            if is_missing(cell):
                self.missing += 1
                return
        else:
            self.numbers += 1
            self.whole += value.is_integer()
            self.least = min(self.least, value)
            self.largest = max(self.largest, value)
        self.present += 1
        self.different.add(text)

    @property
    def type(self) -> str:
        """whole numbers, numbers, numbers and text, text, or empty."""
        if not self.present:
            return "empty"
        if not self.numbers:
            return "text"
        if self.numbers < self.present:
            return "numbers and text"
        return "whole numbers" if self.whole == self.present else "numbers"

    @property
    def range(self) -> str:
        """Least and largest number, or how many different texts there are."""
        if self.numbers < self.present:
            return f"{len(self.different)} different"
        if not self.present:
            return ""
        return f"{self.least:.6g}..{self.largest:.6g}"

    @property
    def is_text_input(self) -> bool:
        """Whether it is one of the inputs and most of its cells are text: of others a cell may be mistyped."""
        return self.role == INPUT and 2 * self.numbers < self.present

    @property
    def counts_rows(self) -> bool:
        """Whether every row has another whole number, as a column of ids has."""
        every_row = not self.missing and self.whole == self.present == len(self.different)
        return every_row and self.present >= FEWEST_IDS


def columns_of(path: Path, settings: DataSettings) -> list[ColumnSummary]:
    """Return what each column of a table holds, in file order. Raises DataError for a table without label or header."""
    with opened(path, settings) as rows:
        commas = writing_of(path, {*LIKE_LABELS, *named(settings)}).separator != ","
        header = header_of(path, rows)
        roles = {name: role for role, name in roles_of(path, header, settings).items()}
        without_role = IGNORED if "path" in roles.values() else INPUT
        columns = []
        for name in header:
            role = roles.get(name, without_role)
            columns.append(
                ColumnSummary(name, IGNORED if name in settings.ignored_columns else role)
            )
        for line, row in rows:
            check_length(path, line, row, header)
            for column, cell in zip(columns, row, strict=True):
                column.add(cell, commas)
    return columns


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
        return filled(replace(divided, input_columns=table.inputs), settings)

    left_out = (rows.left_out,) if rows.left_out else ()
    # Number the label names in sorted order here, so that the split does not depend on the order of `classes`.
    _, names_N = np.unique(np.array(rows.of(LABEL)), return_inverse=True)
    subjects = rows.of(SUBJECT)
    if not subjects:
        train_rows, test_rows = stratified(names_N, where)
        train = everything.take(np.sort(train_rows), "")
        test = everything.take(np.sort(test_rows), "")
        return filled(Raw(train, test, notes=left_out, input_columns=table.inputs), settings)

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
    return filled(Raw(train, test, notes=left_out, input_columns=table.inputs), settings)


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
    inputs = inputs_of(header, roles, numbers.settings)
    columns = [header.index(name) for name in inputs]
    if not columns:
        others = ", ".join([*roles.values(), *numbers.settings.ignored_columns])
        raise DataError(f"there is no column of numbers beside {others}", where=str(path))
    cells = Cells(path, header, roles, numbers.settings)
    numbers_NF: list[NDArray[np.float32]] = []
    for line, row in rows:
        check_length(path, line, row, header)
        of_roles = cells.checked(line, row)
        if of_roles is None:
            continue
        values, gap = numbers.read_row(line, row, columns)
        if gap and numbers.settings.missing == "drop":
            cells.dropped.append(gap)
            continue
        cells.append(of_roles)
        numbers_NF.append(np.array(values, np.float32))
    metadata = cells.metadata()  # refuses a table without rows
    return Table(
        numbers_NF=np.stack(numbers_NF),
        inputs=inputs,
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
        cells = self.checked(line, row)
        if cells is None:
            return False
        self.append(cells)
        return True

    def append(self, cells: Mapping[str, str]) -> None:
        """Add the cells of a row, by role."""
        for role, cell in cells.items():
            self.by_role[role].append(cell)

    def checked(self, line: int, row: Sequence[str]) -> dict[str, str] | None:
        """Return the cells of a row by role; None for a row that is left out. Raises DataError as `add`."""
        cells = {role: row[self.header.index(name)].strip() for role, name in self.roles.items()}
        missing = missing_in(
            str(self.path), f"row {line}", cells, self.roles, self.class_names, self.settings
        )
        if missing:
            self.dropped.append(missing)
            return None
        return cells

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
    of_model: bool = False
    """Whether a model says which columns are inputs, so that none of them is to be taken as anything else."""
    marks: dict[str, str] = field(default_factory=dict)
    """The decimal marks found so far, each with the row, column and cell where it was found first."""

    def read(self, line: int, column: str, cell: str) -> float:
        """Return a cell's number; NaN for a missing value.

        Raises:
            DataError: text, or a number that does not fit float32.
        """
        text = cell.strip()
        where = f"row {line}, column {column}: {cell[:80]!r}"
        # A point alone, or n.a., is a gap and has no decimal mark.
        if self.commas and ("," in text or "." in text) and not is_missing(cell):
            self.marks.setdefault("comma" if "," in text else "point", where)
            text = text.replace(",", ".", 1)
        try:
            value = finite_number(text)
            fits = abs(value) <= LARGEST
        except ValueError:
            fits = False
            if is_missing(cell):
                return math.nan
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

    def read_row(
        self, line: int, row: Sequence[str], columns: Sequence[int]
    ) -> tuple[list[float], str]:
        """Return the numbers in these columns of a row, NaN for missing values, and words for the first of these.

        Raises:
            DataError: as `read`, or a missing value and `missing` is refuse.
        """
        values = []
        gap = ""
        for column in columns:
            name = self.header[column]
            value = self.read(line, name, row[column])
            values.append(value)
            if gap or not math.isnan(value):
                continue
            gap = gap_of(f"row {line}", name, row[column])
            if self.settings.missing == "refuse":
                others = name if len(columns) > 1 else ""
                remedy = remedy_for_gap(self.settings, others)
                raise DataError(gap, where=str(self.path), remedy=remedy)
        return values, gap

    def remedy_for(self, column: str, text: str) -> Remedy:
        """Return the remedy for a cell that is not a number; empty if none is known."""
        if "," in text and not self.commas:
            return "a decimal comma needs semicolons or tabs between the columns"
        if self.of_model:
            return ""
        others = inputs_of(self.header, self.roles, self.settings)
        likely = likely_roles(others, self.roles)
        if text.lower().endswith(IMAGE_SUFFIXES):
            option = cure_of(self.settings, {"path": column, **likely})
            return "if it is the image's file: ", option
        for role, name in likely.items():
            if name == column:
                return f"if it is the {role}: ", cure_of(self.settings, {role: column})
        texts = [each.name for each in columns_of(self.path, self.settings) if each.is_text_input]
        if column not in texts or len(texts) == len(others):
            return ""
        which = "it is no input" if len(texts) == 1 else f"{', '.join(texts)} are no inputs"
        leave_out = cure_of(self.settings, {}, texts)
        return f"if {which}: ", leave_out, ", else write numbers for its texts"


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table of images or numbers. Raises DataError."""
    if has_image_paths(path, settings):
        return guess_image_settings(path, settings)
    table = read_table(path, settings)
    notes: list[Remedy] = [*table.notes, *table.rows.notes]
    gaps_F = np.isnan(table.numbers_NF).sum(axis=0)
    notes += [*notes_of_gaps(gaps_F, table.inputs), *_ids(path, table, settings)]
    for name in table.inputs:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.rows.columns:
            option = cure_of(settings, {role: name})
            notes.append((f"column {name} is one of the inputs; if it is the {role}: ", option))
    classes = classes_of(table.rows.of(LABEL))
    proposed = {"classes": name_list(classes), "input-shape": str(len(table.inputs))}
    return Guess(proposed, tuple(notes))


def _ids(path: Path, table: Table, settings: DataSettings) -> list[Remedy]:
    """Return a question about inputs that are another whole number in every row, as an id is; none where none is."""
    ids = []
    for column in columns_of(path, settings):
        named = role_like(column.name) in ("site", "patient")  # asked about below
        if column.role == INPUT and column.counts_rows and not named:
            ids.append(column.name)
    if not ids or len(ids) == len(table.inputs):
        return []
    remedy = cure_of(settings, {}, ids)
    if len(ids) == 1:
        question = f"{ids[0]} has another number in every row: if it is an id, leave it out"
    else:
        question = (
            f"{', '.join(ids)} have another number in every row: if they are ids, leave them out"
        )
    return [(f"{question}: ", remedy)]


def inputs_of(
    header: Sequence[str], roles: Mapping[str, str], settings: DataSettings
) -> tuple[str, ...]:
    """Return the names of the columns without a role that are not left out: the inputs of a table of numbers."""
    others = {*roles.values(), *settings.ignored_columns}
    return tuple(name for name in header if name not in others)


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
    return inputs_of(header, roles, settings)


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
    notes: tuple[str, ...] = ()
    """What a user has to know of the patients, a sentence each."""

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
    """Return a table of images, with the patients that headers name where no column does.

    The table is read again only if the file's size or modification time changes. Raises DataError.
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
    table = _read_image_table(path, stat.st_size, stat.st_mtime_ns, relevant)
    metadata, notes = _with_patients(path, table.metadata, settings)
    return replace(table, metadata=metadata, notes=notes)


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
            name = checked_path(path, line, root, paths[-1], settings)
            paths[-1] = name
            if name in row_of_file:
                rule = f"{name} is the file of row {row_of_file[name]} too"
                raise DataError(f"row {line}: {rule}", where=str(path))
            row_of_file[name] = line
    return ImageTable(
        folder=path.parent,
        metadata=cells.metadata(),
        unused=inputs_of(header, roles, settings),
    )


def _with_patients(
    path: Path, rows: SampleMetadata, settings: DataSettings
) -> tuple[SampleMetadata, tuple[str, ...]]:
    """Return the rows with the patients of DICOM files where no column names them, and what has to be said of these."""
    if rows.patients or settings.column_names.get("patient") == "":
        return rows, ()
    files = [path.parent / cell for cell in rows.of("path")]
    known = origins_of(files, headers_of(files), settings)
    notes = list(known.notes)
    if known.sites and not rows.sites:
        number = len(set(known.sites))
        notes.append(
            f"the files name {number} institutions ({INSTITUTION}): a column site would make them clients"
        )
    if not known.patients:
        return rows, tuple(notes)
    with_patients = replace(
        rows,
        columns={**rows.columns, "patient": known.by},
        cells={**rows.cells, "patient": known.patients},
        from_headers=frozenset({"patient"}),
    )
    return with_patients, tuple(notes)


def checked_path(path: Path, line: int, root: Path, cell: str, settings: DataSettings) -> str:
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
    stated = {**settings.column_names, **likely_roles(table.unused, rows.columns)}
    if not rows.patients and "patient" not in stated:
        notes.append(unknown_patients(path, "a column patient"))
    writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
    notes += [*table.notes, *writing.notes, *rows.notes]
    classes = name_list(classes_of(rows.of(LABEL)))
    return Guess({"classes": classes, "input-shape": shape}, tuple(notes))
