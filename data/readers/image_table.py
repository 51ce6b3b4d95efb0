"""csv:FILE of images: a path and a label a row and, if there, site, patient, and split or fold."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.readers.image_files import ImageFiles
from data.readers.metadata import Belonging
from data.readers.rows import (
    LABEL,
    LIKE_LABELS,
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
from data.readers.splits import Guess, Raw, Split
from data.settings import DataError, DataSettings


@dataclass(frozen=True)
class ImageTable:
    """The rows of a table of images."""

    folder: Path
    belonging: Belonging
    unused: tuple[str, ...]
    """Columns that mean nothing here."""

    @property
    def paths(self) -> list[Path]:
        """Each row's file."""
        return [self.folder / cell for cell in self.belonging.of("path")]


def read_images(
    path: Path, class_names: tuple[str, ...], shape: tuple[int, ...], settings: DataSettings
) -> Raw:
    """The images of a table, on their sides.

    Raises:
        DataError: what cannot be trained on, said in one sentence with row and column.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        rule = "must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for a table of images"
        raise DataError(f"{path}: input-shape = {settings.input_shape!r}: {rule}")
    table = image_table(path, settings)
    rows = table.belonging
    labels = numbered_labels(path, rows.of(LABEL), class_names, rows.columns[LABEL])
    images = ImageFiles.of(table.folder, list(rows.of("path")), shape, settings)
    return rows.divided(Split(images, np.array(labels, np.int64), str(path), ""), settings)


def image_table(path: Path, settings: DataSettings) -> ImageTable:
    """The table, read once as long as it is the same. Raises DataError."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
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
                    f"{path}: row {line}: has {len(row)} cells, and there are {len(header)} columns"
                )
            for role, name in roles.items():
                if not (word := row[header.index(name)].strip()):
                    raise DataError(f"{path}: row {line}, column {name}: is empty")
                cells[role].append(word)
            name = cells["path"][-1] = _inside(path, line, root, cells["path"][-1], settings)
            if name in lines:
                raise DataError(f"{path}: row {line}: {name} is the file of row {lines[name]} too")
            lines[name] = line
    if len(set(cells[LABEL])) < 2:
        rule = f"{len(lines)} rows of {len(set(cells[LABEL]))} classes: at least 2"
        raise DataError(f"{path}: column {roles[LABEL]}: {rule}")
    belonging = Belonging(str(path), roles, {role: tuple(column) for role, column in cells.items()})
    return ImageTable(
        path.parent, belonging, tuple(name for name in header if name not in roles.values())
    )


def _inside(path: Path, line: int, root: Path, cell: str, settings: DataSettings) -> str:
    """A row's path, as it is opened from the table's folder. Raises DataError for one that leads out, or nowhere."""
    if "\0" in cell:
        raise DataError(f"{path}: row {line}: its path holds a character that no path has")
    name = (
        cell if (root / cell).exists() else cell.replace("\\", "/")
    )  # as it was written on Windows
    file = root / name
    if not settings.outside_folder and not file.resolve().is_relative_to(root):
        rule = "leads out of the table's folder: --set outside-folder=true allows that"
        raise DataError(f"{path}: row {line}: {cell[:200]!r} {rule}")
    if not file.is_file():
        raise DataError(f"{path}: row {line}: {cell[:200]!r}: there is no such file below {root}")
    return name


def _hint(table: ImageTable, settings: DataSettings) -> str:
    """How unused columns get the role that their names speak of, as the end of a sentence; empty where none does."""
    likely: dict[str, str] = {}
    for name in table.unused:
        role = role_like(name)
        if role in ("site", "patient") and role not in table.belonging.columns:
            likely.setdefault(role, name)
    if not likely:
        return ""
    meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
    return f"; if {meanings}: {cure_of(settings, likely)}"


def look_at_images(path: Path, settings: DataSettings) -> Guess:
    """What would fit a table of images. Raises DataError."""
    from data.readers.image_files import shape_of  # it loads PIL

    table = image_table(path, settings)
    rows, paths = table.belonging, table.paths
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
