"""A user's own table: csv:FILE, with a column `label` and columns of numbers, or of paths of images."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    rows, subjects = table.rows, table.rows.of(SUBJECT)
    labels_N = np.array(
        numbered_labels(path, rows.of(LABEL), class_names, rows.columns[LABEL]), np.int64
    )
    everything = Split(table.numbers_NF, labels_N, where, "")
    if rows.cells.keys() - {LABEL, SUBJECT} or settings.split_seed or settings.test_fold:
        return rows.divided(everything, settings)
    names_N = np.unique(np.array(rows.of(LABEL)), return_inverse=True)[
        1
    ]  # the split goes by no order of the classes
    if not subjects:
        parts = stratified(names_N, where)
        train, test = (everything.take(np.sort(part), "") for part in parts)
    else:
        names, first, subjects_N = np.unique(
            np.array(subjects), return_index=True, return_inverse=True
        )
        if (torn := np.flatnonzero(labels_N != labels_N[first][subjects_N])).size:
            rule = "has rows of several classes, and a subject is tested as one"
            raise rows.error(SUBJECT, subjects[torn[0]], rule)
        if len(names) < 2:
            raise DataError(
                f"column {SUBJECT}: names one subject; some must train and others test",
                where=str(path),
            )
        tested_N = np.isin(subjects_N, folds(names_N[first], "csv")[0])
        everything = Split(table.numbers_NF, labels_N, where, "", subjects_N.astype(np.int64))
        train, test = (
            everything.take(np.flatnonzero(chosen), "") for chosen in (~tested_N, tested_N)
        )
    return Raw(train, test)


def read_table(path: Path, settings: DataSettings) -> Table:
    """The rows of a table of numbers. Raises DataError."""
    with opened(path, settings) as rows:
        writing = writing_of(path, {*LIKE_LABELS, *named(settings)})
        header = header_of(path, rows)
        roles = roles_of(path, header, settings)
        # Where commas do not separate the columns, one can be a decimal point.
        decimal_comma = writing.separator != ","
        numbers = Numbers(path, header, roles, settings, decimal_comma)
        return _table(path, header, roles, rows, numbers, tuple(writing.notes))


def _table(
    path: Path,
    header: list[str],
    roles: dict[str, str],
    rows: Rows,
    numbers: "Numbers",
    notes: tuple[str, ...],
) -> Table:
    places = [place for place, name in enumerate(header) if name not in roles.values()]
    if not places:
        raise DataError(
            f"there is no column of numbers beside {', '.join(roles.values())}", where=str(path)
        )
    cells: dict[str, list[str]] = {role: [] for role in roles}
    numbers_NF: list[NDArray[np.float32]] = []
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"row {line}: has {len(row)} cells, and there are {len(header)} columns",
                where=str(path),
            )
        values = [numbers.read(line, header[place], row[place]) for place in places]
        numbers_NF.append(np.array(values, np.float32))
        for role, name in roles.items():
            if not (word := row[header.index(name)].strip()):
                raise DataError(f"row {line}, column {name}: is empty", where=str(path))
            cells[role].append(word)
    labels = cells[LABEL]
    if len(set(labels)) < 2:
        raise DataError(
            f"column {roles[LABEL]}: {len(numbers_NF)} rows of {len(set(labels))} classes: at least 2",
            where=str(path),
        )
    return Table(
        np.stack(numbers_NF),
        tuple(header[place] for place in places),
        SampleMetadata(str(path), roles, {role: tuple(words) for role, words in cells.items()}),
        notes,
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
        likely: dict[str, str] = {}
        for name in self.header:
            role = role_like(name)
            if (
                role in ("site", "patient")
                and role not in self.roles
                and name not in self.roles.values()
            ):
                likely.setdefault(role, name)
        if text.lower().endswith(LIKE_IMAGES):
            likely.pop("path", None)
            option = cure_of(self.settings, {"path": column, **likely})
            return "if it is the image's file: ", option
        if column in likely.values():
            role = next(role for role, name in likely.items() if name == column)
            return f"if it is the {role}: ", cure_of(self.settings, {role: column})
        if "," in text and not self.commas:
            return "a decimal comma needs semicolons or tabs between the columns"
        return ""


def look(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table, of images or of numbers. Raises DataError."""
    if is_of_images(path, settings):
        return look_at_images(path, settings)
    table = read_table(path, settings)
    classes = ",".join(classes_of(table.rows.of(LABEL)))
    notes = [*table.notes, *table.rows.notes]
    for name in table.inputs:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.rows.columns:
            cure = cure_of(settings, {role: name})
            notes.append(f"column {name} is one of the inputs; if it is the {role}: {cure}")
    return Guess({"classes": classes, "input-shape": str(table.numbers_NF.shape[1])}, tuple(notes))


def is_of_images(path: Path, settings: DataSettings) -> bool:
    """Whether a table has a column of paths. Raises DataError."""
    with opened(path, settings) as rows:
        return "path" in roles_of(path, header_of(path, rows), settings)


def files_of_table(path: Path, settings: DataSettings) -> list[Path]:
    """The table, and the images that it names. Raises DataError."""
    return [path, *(image_table(path, settings).paths if is_of_images(path, settings) else ())]


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
        cells: dict[str, list[str]] = {role: [] for role in roles}
        lines: dict[str, int] = {}
        root = path.parent.resolve()
        for line, row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"row {line}: has {len(row)} cells, and there are {len(header)} columns",
                    where=str(path),
                )
            for role, name in roles.items():
                if not (word := row[header.index(name)].strip()):
                    raise DataError(f"row {line}, column {name}: is empty", where=str(path))
                cells[role].append(word)
            name = cells["path"][-1] = _inside(path, line, root, cells["path"][-1], settings)
            if name in lines:
                raise DataError(
                    f"row {line}: {name} is the file of row {lines[name]} too", where=str(path)
                )
            lines[name] = line
    if len(set(cells[LABEL])) < 2:
        rule = f"{len(lines)} rows of {len(set(cells[LABEL]))} classes: at least 2"
        raise DataError(f"column {roles[LABEL]}: {rule}", where=str(path))
    metadata = SampleMetadata(
        str(path), roles, {role: tuple(column) for role, column in cells.items()}
    )
    return ImageTable(
        path.parent, metadata, tuple(name for name in header if name not in roles.values())
    )


def _inside(path: Path, line: int, root: Path, cell: str, settings: DataSettings) -> str:
    """A row's path, as it is opened from the table's folder. Raises DataError for one that leads out, or nowhere."""
    if "\0" in cell:
        raise DataError(f"row {line}: its path holds a character that no path has", where=str(path))
    name = (
        cell if (root / cell).exists() else cell.replace("\\", "/")
    )  # as it was written on Windows
    file = root / name
    if not settings.outside_folder and not file.resolve().is_relative_to(root):
        rule = "leads out of the table's folder"
        remedy = (SetOption("outside-folder", "true"), " allows that")
        where = f"{path}: row {line}"
        raise DataError(f"{cell[:200]!r} {rule}", where=where, remedy=remedy)
    if not file.is_file():
        raise DataError(
            f"row {line}: {cell[:200]!r}: there is no such file below {root}", where=str(path)
        )
    return name


def _hint(table: ImageTable, settings: DataSettings) -> str:
    """Advice on giving unused columns the role that their names suggest, as the end of a sentence; may be empty."""
    likely: dict[str, str] = {}
    for name in table.unused:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.metadata.columns:
            likely.setdefault(role, name)
    if not likely:
        return ""
    meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
    return f"; if {meanings}: {cure_of(settings, likely)}"


def look_at_images(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a table of images. Raises DataError."""
    from data.readers.image_files import shape_of  # it loads PIL

    table = image_table(path, settings)
    rows, paths = table.metadata, table.paths
    groups = list(zip(rows.of("site") or rows.of(LABEL), rows.of(LABEL), strict=True))
    shape, notes = shape_of(paths, settings, groups)
    if table.unused:
        notes.append(
            f"columns that are not used: {', '.join(table.unused)}{_hint(table, settings)}"
        )
    notes += [*writing_of(path, {*LIKE_LABELS, *named(settings)}).notes, *rows.notes]
    return Guess(
        {"classes": ",".join(classes_of(rows.of(LABEL))), "input-shape": shape}, tuple(notes)
    )
