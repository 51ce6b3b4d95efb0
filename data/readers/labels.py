"""The setting `labels`: a folder of DICOM files, as a hospital's archive exports them, with the labels beside them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError, SettingError
from data.extras import needed
from data.readers.catalog import labels_file, members
from data.readers.dicom_headers import (
    INDEX,
    PATIENT,
    SERIES,
    STUDY,
    Header,
    headers_of,
    notes_of_others,
    origins_of,
    plain,
)
from data.readers.image_files import ImageFiles, shape_of
from data.readers.metadata import SampleMetadata, left_out
from data.readers.rows import (
    DROP_ROWS,
    LABEL,
    LIKE_LABELS,
    check_labels,
    check_length,
    classes_of,
    cure_of,
    header_of,
    is_missing,
    missing_in,
    named,
    names_of_classes,
    numbered_labels,
    opened,
    role_like,
    roles_of,
    writing_of,
)
from data.readers.splits import SPLITS, Guess, Raw, Split
from data.settings import DataSettings
from data.text import name_list

PATH = "path"
KEYS = (PATH, SERIES, STUDY, PATIENT)
"""What a row of a table can be about, the most precise one first: a file, a series, a study or a patient."""
NO_LABELS = frozenset(("SQ", "OB", "OD", "OF", "OL", "OV", "OW", "UN"))
"""Types of DICOM elements that hold no text and no number."""


@dataclass(frozen=True)
class Labelled:
    """The images of a folder with their labels."""

    files: tuple[str, ...]
    """Paths below the folder."""
    rows: SampleMetadata
    notes: tuple[str, ...]
    """What a user has to know, a sentence each."""


@dataclass(frozen=True)
class LabelTable:
    """The rows of a table of labels."""

    file: Path
    key: str
    """One of KEYS."""
    columns: dict[str, str]
    """The columns' names by role, that of the key among them."""
    rows: dict[str, tuple[int, dict[str, str]]]
    """By key, the line number and the cells by role; that of the key is not among them."""
    dropped: tuple[str, ...]
    """What was missing in each row that was left out."""


def read_labelled(
    path: Path,
    files: Sequence[Path],
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """Read the DICOM images among the files below a folder, with the labels of the setting `labels`.

    Images are ordered by path. Splits are those of the table, else the folders train and test, else a fifth of the
    patients is for testing.

    Raises:
        DataError: what `labelled` refuses, or a label that is none of `class_names`.
    """
    found = labelled(path, files, settings)
    labels = numbered_labels(
        Path(found.rows.where), found.rows.of(LABEL), class_names, found.rows.columns[LABEL]
    )
    images = ImageFiles.of(path, list(found.files), shape, settings)
    everything = Split(images, np.array(labels, np.int64), str(path), "")
    return found.rows.divided(everything, settings)


def guess_labelled(path: Path, files: Sequence[Path], settings: DataSettings) -> Guess:
    """Propose settings for a folder with the setting `labels`. Raises DataError."""
    found = labelled(path, files, settings)
    images = [path / name for name in found.files]
    shape, notes = shape_of(images, settings, found.rows.sites_and_labels)
    table = labels_file(settings.labels, settings.data_root)
    if table is not None:
        notes += writing_of(table, {*LIKE_LABELS, *named(settings)}).notes
    classes = name_list(classes_of(found.rows.of(LABEL)))
    every_note = (*found.notes, *found.rows.notes, *notes)
    return Guess({"classes": classes, "input-shape": shape}, every_note)


def labelled(path: Path, files: Sequence[Path], settings: DataSettings) -> Labelled:
    """Return the DICOM images among the files below a folder, with the label, patient, site and split of each.

    Raises:
        DataError: no DICOM image, a table that cannot be used, or, unless `missing` is drop, a file without a label or
            a row without a file.
    """
    file = labels_file(settings.labels, settings.data_root)
    keyword = "" if file else checked_keyword(settings.labels)
    candidates = [entry for entry in files if entry != file and entry.name != INDEX]
    headers = headers_of(candidates, keyword)
    images = [entry for entry in candidates if entry in headers and headers[entry].has_image]
    if not images:
        rule = f"holds no DICOM image, and labels = {settings.labels!r} is for those"
        remedy = (
            "a table with columns path and label of other images is a data set itself: csv:FILE"
        )
        raise DataError(rule, where=str(path), remedy=remedy)
    by_name = {entry.relative_to(path).as_posix(): headers[entry] for entry in images}
    if file is None:
        rows = _rows_by_element(path, keyword, by_name, settings)
    else:
        rows = _rows_by_table(path, label_table(file, path, settings), by_name, settings)

    sides = _sides(rows.names)
    if sides and "split" not in rows.cells and "fold" not in rows.cells:
        rows.cells["split"] = sides
    known = origins_of(
        [path / name for name in rows.names],
        headers,
        settings,
        sides=rows.cells.get("split", ()),
        patients=rows.cells.get("patient", ()),
    )
    _check(rows, settings)
    # What the table says goes before the headers.
    by_header = {role: cells for role, cells in known.cells.items() if role not in rows.cells}
    metadata = SampleMetadata(
        where=rows.where,
        columns={**known.elements, **rows.columns},
        cells={**by_header, **rows.cells},
        left_out=rows.left_out,
        from_headers=frozenset(by_header) if file else frozenset({LABEL, *by_header}),
    )
    notes = [*known.notes, *notes_of_others(path, candidates, images)]
    return Labelled(rows.names, metadata, tuple(notes))


@dataclass(frozen=True)
class LabelRows:
    """The files that have a label, and what a table or an element says of them."""

    where: str
    """The file or folder that an error names."""
    names: tuple[str, ...]
    """Paths below the folder."""
    columns: dict[str, str]
    """The names of columns, or of the element, by role."""
    cells: dict[str, Sequence[str]]
    """By role, a cell per file."""
    left_out: str
    """What `missing = drop` has left out; empty for nothing."""


def _rows_by_element(
    path: Path, keyword: str, headers: Mapping[str, Header], settings: DataSettings
) -> LabelRows:
    """Return the files with the element as their label. Raises DataError for files without it."""
    names = tuple(name for name, header in headers.items() if not is_missing(header.label))
    without = [name for name, header in headers.items() if is_missing(header.label)]
    sentences = []
    if without:
        found = f"{len(without)} of {len(headers)} files have no {keyword}"
        sentences.append(f"{found}, such as {without[0]}")
    left = _left_out(path, sentences, settings)
    labels = tuple(headers[name].label for name in names)
    return LabelRows(str(path), names, {LABEL: keyword}, {LABEL: labels}, left)


def _rows_by_table(
    path: Path, table: LabelTable, headers: Mapping[str, Header], settings: DataSettings
) -> LabelRows:
    """Return the files with the cells of their rows. Raises DataError for files without a row, or rows without one."""
    keys = {name: key_of(table.key, name, header) for name, header in headers.items()}
    names = tuple(name for name, key in keys.items() if key in table.rows)
    sentences = _without_partner(table, keys, settings)
    left = _left_out(path, sentences, settings)
    if table.dropped:
        left = "; ".join(filter(None, [left_out(table.dropped), left]))
    cells: dict[str, Sequence[str]] = {}
    for role in table.columns:
        cells[role] = tuple(table.rows[keys[name]][1][role] for name in names)
    return LabelRows(str(table.file), names, table.columns, cells, left)


def _left_out(path: Path, sentences: Sequence[str], settings: DataSettings) -> str:
    """Return what `missing = drop` leaves out. Raises DataError under refuse."""
    if not sentences:
        return ""
    found = "; ".join(sentences)
    if settings.missing != "drop":
        raise DataError(found, where=str(path), remedy=(DROP_ROWS, " leaves these out"))
    return f"{found}: left out by missing = drop"


def _without_partner(
    table: LabelTable, keys: Mapping[str, str], settings: DataSettings
) -> list[str]:
    """Return sentences about files without a row and rows without a file. `keys` is what the table calls each file.

    Raises:
        DataError: no row is about a file.
    """
    there = set(keys.values())
    without = [name for name, key in keys.items() if key not in table.rows]
    rows = [(line, key) for key, (line, _) in table.rows.items() if key not in there]
    sentences = []
    if without:
        example = without[0]
        if table.key != PATH:
            example += (
                f" ({table.key} {keys[example]!r})" if keys[example] else f" (no {table.key})"
            )
        found = f"{len(without)} of {len(keys)} files have no row in {table.file.name}"
        sentences.append(f"{found}, such as {example}")
    none_fits = len(without) == len(keys)
    several = len(members(settings.dataset)) > 1  # one table of all: each folder has its part
    if rows and (none_fits or not several):
        line, key = rows[0]
        found = f"{len(rows)} of {len(table.rows)} rows of {table.file.name} have no file"
        sentences.append(f"{found}, such as row {line} ({table.key} {key[:80]!r})")
    if none_fits:
        raise DataError("; ".join(sentences), where=str(table.file))
    return sentences


def _check(rows: LabelRows, settings: DataSettings) -> None:
    """Raise DataError for labels that are no classes, or fewer than two."""
    labels = rows.cells[LABEL]
    column = rows.columns[LABEL]
    check_labels(rows.where, column, labels, names_of_classes(settings))
    classes = len(set(labels))
    if classes < 2:
        rule = f"{len(labels)} images of {classes} classes: at least 2"
        raise DataError(f"{column}: {rule}", where=rows.where)


def _sides(names: Sequence[str]) -> tuple[str, ...]:
    """Return the side of each file by the folder it is in; none where not all are in train, test or val."""
    sides = tuple(SPLITS.get(name.split("/")[0].lower(), "") for name in names)
    return sides if "" not in sides and {"train", "test"} <= set(sides) else ()


def checked_keyword(labels: str) -> str:
    """Return the keyword of a DICOM element. Raises SettingError for a text that is none."""
    datadict = needed("pydicom.datadict", "medical", f"labels = {labels!r}")
    tag = datadict.tag_for_keyword(labels)
    if tag is None:
        rule = "must be a CSV file, such as labels.csv, or the keyword of a DICOM element, such as BodyPartExamined"
        raise SettingError("labels", labels, rule)
    if set(datadict.dictionary_VR(tag).split(" or ")) & NO_LABELS:
        raise SettingError("labels", labels, "must be a DICOM element of a text or a number")
    return labels


def label_table(file: Path, folder: Path, settings: DataSettings) -> LabelTable:
    """Read a table of labels.

    Its first column of KEYS, or one with the role path or patient, says what its rows are about.

    Raises:
        DataError: no such column, two rows of one key that differ, or a missing value, unless `missing` is drop.
    """
    with opened(file, settings) as rows:
        header = header_of(file, rows)
        roles = {role: name for role, name in roles_of(file, header, settings).items() if name}
        key, columns = _key_and_columns(file, header, roles, settings)
        classes = names_of_classes(settings)
        by_key: dict[str, tuple[int, dict[str, str]]] = {}
        dropped: list[str] = []
        for line, row in rows:
            check_length(file, line, row, header)
            cells = {role: row[header.index(name)].strip() for role, name in columns.items()}
            found = missing_in(str(file), f"row {line}", cells, columns, classes, settings)
            if found:
                dropped.append(found)
                continue
            about = cells.pop(key)
            about = _below(about, file, folder) if key == PATH else plain(about)
            if "patient" in cells:
                cells["patient"] = plain(cells["patient"])
            first, cells_of_first = by_key.setdefault(about, (line, cells))
            if cells_of_first != cells:
                rule = f"is in row {first} with other values: must have one row, or equal ones"
                raise DataError(
                    f"row {line}, column {columns[key]}: {about[:80]!r} {rule}", where=str(file)
                )
    if not by_key:
        raise DataError("has no row with a label", where=str(file))
    del columns[key]
    return LabelTable(file, key, columns, by_key, tuple(dropped))


def _key_and_columns(
    file: Path, header: Sequence[str], roles: Mapping[str, str], settings: DataSettings
) -> tuple[str, dict[str, str]]:
    """Return what the rows are about, and the columns' names by role and by that. Raises DataError."""
    in_small_letters = {name.lower().replace(" ", "").replace("_", ""): name for name in header}
    columns = dict(roles)
    if "patient" not in columns and "patient" not in settings.column_names:
        likely = [name for name in header if role_like(name) == "patient"]
        if likely and likely[0] not in columns.values():
            columns["patient"] = likely[0]
    if PATH in columns:
        return PATH, columns
    for key in (SERIES, STUDY):
        if key.lower() in in_small_letters:
            return key, columns | {key: in_small_letters[key.lower()]}
    if "patient" in columns:
        name = columns.pop("patient")
        return PATIENT, columns | {PATIENT: name}
    shown = name_list(header, ", ")[:200]
    rule = f"no column says which files a row is about: must have one of {', '.join(KEYS)}, and has {shown}"
    way = cure_of(settings, {"patient": "NAME"})
    raise DataError(rule, where=str(file), remedy=("if one names the patient: ", way))


def _below(cell: str, file: Path, folder: Path) -> str:
    """Return the path of a row's file below the folder; the cell may be a path from the table's own folder, too."""
    name = cell.replace("\\", "/")  # the table was written on Windows
    if not (folder / name).is_file():
        name = os.path.relpath(file.absolute().parent / name, folder.absolute())
    return os.path.normpath(name)


def key_of(key: str, name: str, header: Header) -> str:
    """Return what a table of labels calls a file."""
    return {PATH: name, SERIES: header.series, STUDY: header.study, PATIENT: header.patient}[key]
