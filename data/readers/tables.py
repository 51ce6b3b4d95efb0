"""A user's own table: csv:FILE, with a column `label` and columns of numbers, or of paths of images."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy, SetOption
from data.readers.abide import folds
from data.readers.image_files import ImageFiles
from data.readers.metadata import SampleMetadata
from data.readers.rows import (
    LABEL,
    LIKE_LABELS,
    SUBJECT,
    Rows,
    check_length,
    classes_of,
    cure_of,
    header_of,
    named,
    numbered_labels,
    opened,
    role_like,
    roles_of,
    writing_of,
)
from data.readers.splits import Guess, Raw, Split, stratified
from data.settings import DataSettings
from data.text import finite_number

LARGEST = float(np.finfo(np.float32).max)
LIKE_IMAGES = (
    ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".dcm", ".nii", ".nii.gz",
)  # fmt: skip
"""How the names of images end."""


@dataclass(frozen=True)
class Table:
    """The contents of a table of numbers."""

    numbers_NF: NDArray[np.float32]
    inputs: tuple[str, ...]
    """The columns of numbers, in their order."""
    rows: SampleMetadata
    notes: tuple[str, ...] = ()
    """How the file is written, one sentence each."""


def read_csv(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """Images, or vectors (features,) in the order of the columns; a fifth is for testing where no column says it.

    Of numbers without columns named by `columns` it is drawn by class, and by subject where there are any, who are
    tested as one.

    Raises:
        DataError: what cannot be trained on, said in one sentence with row and column.
    """
    if is_of_images(path, settings):
        return read_images(path, class_names, shape, settings)
    table = read_table(path, settings)
    where = str(path)
    rows = table.rows
    labels = numbered_labels(path, rows.of(LABEL), class_names, rows.columns[LABEL])
    labels_N = np.array(labels, np.int64)
    everything = Split(table.numbers_NF, labels_N, where, "")
    if rows.cells.keys() - {LABEL, SUBJECT} or settings.split_seed or settings.test_fold:
        return rows.divided(everything, settings)

    # By the labels' names, so that the split does not depend on the order of `classes`.
    _, names_N = np.unique(np.array(rows.of(LABEL)), return_inverse=True)
    subjects = rows.of(SUBJECT)
    if not subjects:
        train_rows, test_rows = stratified(names_N, where)
        train = everything.take(np.sort(train_rows), "")
        test = everything.take(np.sort(test_rows), "")
        return Raw(train, test)

    subject_names, first_row_S, subjects_N = np.unique(
        np.array(subjects), return_index=True, return_inverse=True
    )
    label_S = labels_N[first_row_S]
    torn = np.flatnonzero(labels_N != label_S[subjects_N])
    if torn.size:
        rule = "has rows of several classes, and a subject is tested as one"
        raise rows.error(SUBJECT, subjects[torn[0]], rule)
    if len(subject_names) < 2:
        rule = f"column {SUBJECT}: names one subject; some must train and others test"
        raise DataError(rule, where=where)
    tested_S = folds(names_N[first_row_S], "csv")[0]
    is_test_N = np.isin(subjects_N, tested_S)
    everything = replace(everything, groups=subjects_N.astype(np.int64))
    train = everything.take(np.flatnonzero(~is_test_N), "")
    test = everything.take(np.flatnonzero(is_test_N), "")
    return Raw(train, test)


def read_table(path: Path, settings: DataSettings) -> Table:
    """The rows of a table of numbers. Raises DataError."""
    with opened(path, settings) as rows:
        writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
        numbers = Numbers(
            path=path,
            header=header,
            roles=roles,
            settings=settings,
            # Where commas do not separate the columns, one can be a decimal mark.
            commas=writing.separator != ",",
        )
        return _table(path, rows, numbers, tuple(writing.notes))


def _table(path: Path, rows: Rows, numbers: "Numbers", notes: tuple[str, ...]) -> Table:
    header, roles = numbers.header, numbers.roles
    columns = [column for column, name in enumerate(header) if name not in roles.values()]
    if not columns:
        others = ", ".join(roles.values())
        raise DataError(f"there is no column of numbers beside {others}", where=str(path))
    cells = Cells(path, header, roles)
    numbers_NF: list[NDArray[np.float32]] = []
    for line, row in rows:
        check_length(path, line, row, header)
        values = [numbers.read(line, header[column], row[column]) for column in columns]
        numbers_NF.append(np.array(values, np.float32))
        cells.add(line, row)
    metadata = cells.metadata()  # refuses a table without rows
    return Table(
        numbers_NF=np.stack(numbers_NF),
        inputs=tuple(header[column] for column in columns),
        rows=metadata,
        notes=notes,
    )


@dataclass
class Cells:
    """Collects the cells of a table's roles, row by row."""

    path: Path
    header: Sequence[str]
    roles: dict[str, str]
    """The columns' names by role."""
    by_role: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_role = {role: [] for role in self.roles}

    def add(self, line: int, row: Sequence[str]) -> None:
        """Add a row's cells. Raises DataError for an empty one."""
        for role, name in self.roles.items():
            column = self.header.index(name)
            cell = row[column].strip()
            if not cell:
                raise DataError(f"row {line}, column {name}: is empty", where=str(self.path))
            self.by_role[role].append(cell)

    def metadata(self) -> SampleMetadata:
        """Return all cells. Raises DataError for fewer than two classes."""
        labels = self.by_role[LABEL]
        classes = len(set(labels))
        if classes < 2:
            rule = f"{len(labels)} rows of {classes} classes: at least 2"
            raise DataError(f"column {self.roles[LABEL]}: {rule}", where=str(self.path))
        return SampleMetadata(
            where=str(self.path),
            columns=self.roles,
            cells={role: tuple(cells) for role, cells in self.by_role.items()},
        )


@dataclass
class Numbers:
    """Reads the numbers of one table, whose decimal mark is a point, or a comma where no comma separates columns."""

    path: Path
    header: Sequence[str]
    roles: dict[str, str]
    settings: DataSettings
    commas: bool
    """Whether a comma can be a decimal mark."""
    marks: dict[str, str] = field(default_factory=dict)
    """The decimal marks that were met, each with the row, column and cell where it first stood."""

    def read(self, line: int, column: str, cell: str) -> float:
        """A cell's number. Raises DataError for what is none, or none that float32 holds."""
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
                remedy=self.cure(column, text),
            )
        if len(self.marks) > 1:
            first, second = self.marks.values()
            rule = "the decimal mark must be a point in every row, or a comma in every row"
            raise DataError(f"{second}: {rule}; {first}", where=str(self.path))
        return value

    def cure(self, column: str, text: str) -> Remedy:
        """The remedy for a cell that is no number; empty if there is none."""
        others = [name for name in self.header if name not in self.roles.values()]
        likely = likely_roles(others, self.roles)
        if text.lower().endswith(LIKE_IMAGES):
            option = cure_of(self.settings, {"path": column, **likely})
            return "if it is the image's file: ", option
        for role, name in likely.items():
            if name == column:
                return f"if it is the {role}: ", cure_of(self.settings, {role: column})
        if "," in text and not self.commas:
            return "a decimal comma needs semicolons or tabs between the columns"
        return ""


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table, of images or of numbers. Raises DataError."""
    if is_of_images(path, settings):
        return look_at_images(path, settings)
    table = read_table(path, settings)
    notes = [*table.notes, *table.rows.notes]
    for name in table.inputs:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.rows.columns:
            cure = cure_of(settings, {role: name})
            notes.append(f"column {name} is one of the inputs; if it is the {role}: {cure}")
    classes = classes_of(table.rows.of(LABEL))
    proposed = {"classes": ",".join(classes), "input-shape": str(len(table.inputs))}
    return Guess(proposed, tuple(notes))


def likely_roles(columns: Sequence[str], roles: Collection[str]) -> dict[str, str]:
    """Return columns by the role, site or patient, that their names suggest and that no column has yet."""
    likely: dict[str, str] = {}
    for name in columns:
        role = role_like(name)
        if role in ("site", "patient") and role not in roles:
            likely.setdefault(role, name)
    return likely


def is_of_images(path: Path, settings: DataSettings) -> bool:
    """Whether a table has a column of paths. Raises DataError."""
    with opened(path, settings) as rows:
        return "path" in roles_of(path, header_of(path, rows), settings)


def files_of_table(path: Path, settings: DataSettings) -> list[Path]:
    """The table, and the images that it names. Raises DataError."""
    if not is_of_images(path, settings):
        return [path]
    return [path, *image_table(path, settings).paths]


def sites_of(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """The sites that a table names; none where it is not there or has no such column. Raises DataError."""
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
    """Columns that mean nothing here."""

    @property
    def paths(self) -> list[Path]:
        """Each row's file."""
        return [self.folder / cell for cell in self.metadata.of("path")]


def read_images(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """The images of a table, on their sides.

    Raises:
        DataError: what cannot be trained on, said in one sentence with row and column.
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
    """The table, read once as long as it is the same. Raises DataError."""
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    stat = path.stat()
    relevant = DataSettings(
        columns=settings.columns,
        outside_folder=settings.outside_folder,
        max_unpacked_mib=settings.max_unpacked_mib,
    )
    return _read(path, stat.st_size, stat.st_mtime_ns, relevant)


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed: int, settings: DataSettings) -> ImageTable:
    with opened(path, settings) as rows:
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
        cells = Cells(path, header, roles)
        paths = cells.by_role["path"]
        row_of_file: dict[str, int] = {}
        root = path.parent.resolve()
        for line, row in rows:
            check_length(path, line, row, header)
            cells.add(line, row)
            name = _inside(path, line, root, paths[-1], settings)
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


def _inside(path: Path, line: int, root: Path, cell: str, settings: DataSettings) -> str:
    """A row's path, as it is opened from the table's folder. Raises DataError for one that leads out, or nowhere."""
    if "\0" in cell:
        raise DataError(f"row {line}: its path holds a character that no path has", where=str(path))
    name = cell
    if not (root / cell).exists():
        name = cell.replace("\\", "/")  # as it was written on Windows
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


def _hint(table: ImageTable, settings: DataSettings) -> str:
    """Advice on giving unused columns the role that their names suggest, as the end of a sentence; may be empty."""
    likely = likely_roles(table.unused, table.metadata.columns)
    if not likely:
        return ""
    meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
    return f"; if {meanings}: {cure_of(settings, likely)}"


def look_at_images(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table of images. Raises DataError."""
    from data.readers.image_files import shape_of  # it loads PIL

    table = image_table(path, settings)
    rows = table.metadata
    shape, notes = shape_of(table.paths, settings, rows.sites_and_labels)
    if table.unused:
        listed = ", ".join(table.unused)
        notes.append(f"columns that are not used: {listed}{_hint(table, settings)}")
    writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
    notes += [*writing.notes, *rows.notes]
    classes = ",".join(classes_of(rows.of(LABEL)))
    return Guess({"classes": classes, "input-shape": shape}, tuple(notes))
