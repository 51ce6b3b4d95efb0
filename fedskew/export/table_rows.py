"""The rows of a table for predictions: all of them, in file order, with or without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import DataError, DataSettings, SettingError
from data.readers import huggingface
from data.readers.folder import class_number
from data.readers.image_files import ImageFiles
from data.readers.input_columns import order_of
from data.readers.medians import column_labels, fill, notes_of_gaps
from data.readers.metadata import SampleMetadata
from data.readers.rows import (
    DROP_ROWS,
    FILL_CELLS,
    LABEL,
    LIKE_LABELS,
    check_length,
    cure_of,
    gap_of,
    header_of,
    is_missing,
    like_labels,
    named,
    opened,
    writing_of,
)
from data.readers.splits import Split, checked
from data.readers.tables import Numbers, checked_path, inputs_of
from data.settings import ROLES
from data.text import name_list, printable
from fedskew.export.model_folder import Description

NAMED = 10
"""Rows that a note about rows without a prediction names."""


@dataclass(frozen=True)
class Read:
    """What a reader makes of a file."""

    images: NDArray[np.generic] | ImageFiles
    labels_N: NDArray[np.int64]
    """0 where the label is unknown."""
    names: list[str]
    known_N: NDArray[np.bool_]
    """Whether each input's label is known."""
    lines: Sequence[int] = ()
    """Of a table: each input's line in the file; empty for other files."""
    columns: Sequence[Mapping[str, str]] = ()
    """Each input's cells that are no inputs, as they stand in the file, by column; empty where there are none."""
    left_out: tuple[str, ...] = ()
    """What was missing in each row that `missing = drop` left out."""
    notes: tuple[str, ...] = ()
    """What the user has to know, a sentence each."""


@dataclass
class Gaps:
    """What becomes of missing values among the inputs: they are filled, left out or refused."""

    where: str
    about: Description
    settings: DataSettings
    left_out: list[str] = field(default_factory=list)

    def stays(self, gap: str) -> bool:
        """Return whether a row with a missing value is predicted. Raises DataError where it is refused.

        Args:
            gap: words for the missing value, with its row.
        """
        missing = self.settings.missing
        if missing == "drop":
            self.left_out.append(gap)
            return False
        if missing == "median" and self.about.median_of:
            return True
        if self.about.median_of:
            remedy = (
                DROP_ROWS,
                " leaves out such rows, ",
                FILL_CELLS,
                " fills them as in training",
            )
            raise DataError(gap, where=self.where, remedy=remedy)
        rule = gap
        if len(self.about.shape) == 1:  # medians are of numbers, and an image has no other input
            rule += ", and the model keeps no medians of its training rows to fill it with"
        raise DataError(rule, where=self.where, remedy=(DROP_ROWS, " leaves out such rows"))

    def filled(self, inputs_NF: NDArray[np.generic]) -> tuple[NDArray[np.float32], list[str]]:
        """Return the vectors with the model's medians in place of NaN, and a note about them."""
        names = column_labels(self.about.column_names, inputs_NF.shape[1])
        missing_F = np.isnan(inputs_NF).sum(axis=0)
        if not missing_F.any():
            return np.asarray(inputs_NF, np.float32), []
        medians_F = np.array([self.about.median_of[name] for name in names])
        return fill(inputs_NF, medians_F), notes_of_gaps(missing_F, names)

    @property
    def notes(self) -> list[str]:
        """A sentence that names the rows that are left out; none where none is."""
        gaps = self.left_out
        if not gaps:
            return []
        rows = "1 row is" if len(gaps) == 1 else f"{len(gaps)} rows are"
        more = f"; and {len(gaps) - NAMED} more" if len(gaps) > NAMED else ""
        return [f"{rows} left out by missing = drop: {'; '.join(gaps[:NAMED])}{more}"]


@dataclass
class Labels:
    """Collects the class of each row that says one."""

    where: str
    column: str
    """The name of the column of labels; empty without one."""
    settings: DataSettings
    class_names: Sequence[str]
    numbers: list[int] = field(default_factory=list)
    known: list[bool] = field(default_factory=list)

    def add(self, place: str, cell: str) -> None:
        """Add a row's cell. Raises DataError for a text that is none of the model's classes; `place` is the row."""
        text = cell.strip()
        is_known = bool(self.column) and not is_missing(cell, self.class_names)
        number = 0
        if is_known:
            found = class_number(text, self.class_names)
            if found is None:
                rule = f"must be one of classes = {printable(name_list(self.class_names, ', '))}"
                without = cure_of(self.settings, {LABEL: ""})
                raise DataError(
                    f"{place}, column {self.column}: {text[:80]!r}: {rule}",
                    where=self.where,
                    remedy=(without, " predicts without labels"),
                )
            number = found
        self.numbers.append(number)
        self.known.append(is_known)

    @property
    def notes(self) -> list[str]:
        """A sentence where not all of the rows say their class."""
        unknown = self.known.count(False)
        if not self.column or not unknown:
            return []
        if not any(self.known):
            return [f"no row has a label in column {self.column}, so there are no metrics"]
        return [f"{unknown} of {len(self.known)} rows have no label: the metrics are of the others"]


def csv_rows(path: Path, about: Description, settings: DataSettings) -> Read:
    """Return all rows of a CSV file: of numbers in the model's order of columns, or of images.

    Raises:
        DataError: a column that the model needs is missing, or a row cannot be used.
    """
    vectors = len(about.shape) == 1
    with opened(path, settings) as rows:
        writing = writing_of(
            path, {*LIKE_LABELS, *named(settings), *map(str.lower, about.column_names)}
        )
        header = header_of(path, rows)
        roles = roles_in(path, header, about, settings)
        settings = replace(settings, columns=stated_there(roles, header, settings))
        if vectors:
            inputs = inputs_in(path, header, roles, about, settings)
        else:
            inputs = (path_column(path, header, roles, settings),)
        places = [header.index(name) for name in inputs]
        numbers = Numbers(
            path,
            header,
            roles,
            # Gaps are this module's affair, as the medians are the model's.
            replace(settings, missing="median"),
            commas=writing.separator != ",",
            of_model=True,
        )
        gaps = Gaps(str(path), about, settings)
        labels = Labels(str(path), roles.get(LABEL, ""), settings, about.class_names)
        root = path.parent.resolve()
        values: list[list[float]] = []
        images: list[str] = []
        lines: list[int] = []
        columns: list[dict[str, str]] = []
        for line, row in rows:
            check_length(path, line, row, header)
            if vectors:
                numbers_F, gap = numbers.read_row(line, row, places)
            else:
                cell = row[places[0]].strip()
                gap = gap_of(f"row {line}", inputs[0], cell) if is_missing(cell) else ""
            if gap and not gaps.stays(gap):
                continue
            if vectors:
                values.append(numbers_F)
            else:
                images.append(checked_path(path, line, root, cell, settings))
            labels.add(f"row {line}", row[header.index(labels.column)] if labels.column else "")
            lines.append(line)
            others = zip(header, row, strict=True)
            columns.append(
                {name: text for name, text in others if not (vectors and name in inputs)}
            )
    if not lines:
        left = f": {gaps.notes[0]}" if gaps.notes else ""
        raise DataError(f"holds no row to predict{left}", where=str(path))
    notes = [*gaps.notes, *labels.notes]
    read: NDArray[np.generic] | ImageFiles
    if vectors:
        read, of_gaps = gaps.filled(np.array(values, np.float32))
        notes += of_gaps
        names = [f"row {line}" for line in lines]
    else:
        read = ImageFiles.of(path.parent, images, about.shape, settings, about.crop == "center")
        names = images
    if not labels.column and LABEL not in settings.column_names:
        notes += label_hint(header, inputs, settings)
    return Read(
        images=read,
        labels_N=np.array(labels.numbers, np.int64),
        names=names,
        known_N=np.array(labels.known),
        lines=lines,
        columns=columns,
        left_out=tuple(gaps.left_out),
        notes=tuple(notes),
    )


def roles_in(
    path: Path, header: Sequence[str], about: Description, settings: DataSettings
) -> dict[str, str]:
    """Return the roles of the columns that are there: new rows lack a label, and perhaps more.

    Raises:
        DataError: `columns`, as the user states it for this file, names a column that is not there.
        SettingError: it names one of the model's inputs.
    """
    stated = settings.column_names
    if settings.columns != about.columns:
        for name in (*stated.values(), *settings.ignored_columns):
            if name and name not in header:
                shown = printable(name_list(header, ", ")[:200])
                rule = f"columns = {settings.columns!r}: there is no column {name!r}, only {shown}"
                raise DataError(rule, where=str(path))
            if name in about.column_names:
                rule = f"names {name!r}, which is an input of the model: must name other columns"
                raise SettingError("columns", settings.columns, rule, where=str(path))
    roles = {}
    for role in (*stated, *ROLES):
        name = stated.get(role, role)
        left_out = name in settings.ignored_columns or name in about.column_names
        if name in header and not left_out:
            roles[role] = name
    return roles


def stated_there(roles: Mapping[str, str], header: Sequence[str], settings: DataSettings) -> str:
    """Return the setting `columns` with what of it is in this table."""
    parts = []
    for role, name in settings.column_names.items():
        if not name or role in roles:
            parts.append(f"{role}={name}")
    parts += [f"ignore={name}" for name in settings.ignored_columns if name in header]
    return name_list(parts)


def inputs_in(
    path: Path,
    header: Sequence[str],
    roles: Mapping[str, str],
    about: Description,
    settings: DataSettings,
) -> tuple[str, ...]:
    """Return the names of the model's input columns in its order. Any other column is no input.

    A model without names of columns takes all columns without a role, in file order.

    Raises:
        DataError: one of the model's columns is missing, or there are more or fewer columns than it takes.
    """
    wanted = about.column_names
    if wanted:
        # Of other columns nothing is said.
        order_of([name for name in wanted if name in header], wanted, str(path), "the model")
        return wanted
    present = inputs_of(header, roles, settings)
    (features,) = about.shape
    if len(present) != features:
        rule = f"has {len(present)} columns of inputs, and the model takes {features}"
        remedy = (
            (cure_of(settings, {}, ["NAME"]), " leaves out a column")
            if len(present) > features
            else ""
        )
        raise DataError(rule, where=str(path), remedy=remedy)
    return present


def path_column(
    path: Path, header: Sequence[str], roles: Mapping[str, str], settings: DataSettings
) -> str:
    """Return the name of the column with the images' files. Raises DataError where there is none."""
    if "path" in roles:
        return roles["path"]
    shown = printable(name_list(header, ", ")[:200])
    rule = f"the model takes images, and there is no column 'path', only {shown}"
    way = cure_of(settings, {"path": "NAME"})
    raise DataError(rule, where=str(path), remedy=("say which has their files: ", way))


def label_hint(header: Sequence[str], inputs: Sequence[str], settings: DataSettings) -> list[str]:
    """Return a sentence about a column that may be the label; none where none is called so."""
    alike = like_labels([name for name in header if name not in inputs])
    if len(alike) != 1:
        return []
    remedy = cure_of(settings, {LABEL: alike[0]})
    return [f"no column is the label, so there are no metrics; if {alike[0]} is: {remedy}"]


def hf_rows(path: Path, about: Description, settings: DataSettings) -> Read:
    """Return all rows of all splits of a data set that the datasets library saved.

    Raises:
        DataError: it cannot be read, or has no single column of images.
    """
    source = huggingface.source_of(path, settings)
    parts = huggingface.parts_of(source, settings.download)
    features = huggingface.features_of(parts)
    header = list(features)
    roles = roles_in(path, header, about, settings)
    of_images = [name for name in header if type(features[name]).__name__ == "Image"]
    if len(about.shape) == 1 or (roles.get("path") not in of_images and len(of_images) != 1):
        rule = "must have one column of images, for a model of images"
        raise DataError(f"{len(of_images)} columns of images: {rule}", where=source)
    if roles.get("path") not in of_images:
        roles["path"] = of_images[0]
    alike = like_labels(header)
    if LABEL not in roles and LABEL not in settings.column_names and len(alike) == 1:
        roles[LABEL] = alike[0]  # as in training

    labels = Labels(source, roles.get(LABEL, ""), settings, about.class_names)
    names: list[str] = []
    columns: list[dict[str, str]] = []
    single = [name for name in header if type(features[name]).__name__ in ("Value", "ClassLabel")]
    for key, part in parts.items():
        with huggingface.quietly(source):
            cells = {name: huggingface.cells_of(part, name) for name in single}
        for row in range(len(part)):
            place = f"row {row} (from 0) of split {key}"
            label = cells[labels.column][row] if labels.column else ""
            is_none = label == "-1" and "-1" not in about.class_names  # what the library writes
            labels.add(place, "" if is_none else label)
            names.append(place)
            columns.append({name: texts[row] for name, texts in cells.items()})
    metadata = SampleMetadata(source, roles, {LABEL: [str(number) for number in labels.numbers]})
    pixels = huggingface.pixels_of(parts, metadata, about.shape, settings)
    split = Split(pixels, np.array(labels.numbers, np.int64), source, "")
    images, labels_N = checked(split, about.shape, len(about.class_names))
    return Read(
        images=images,
        labels_N=labels_N,
        names=names,
        known_N=np.array(labels.known),
        columns=columns,
        notes=tuple(labels.notes),
    )
