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
    known_of,
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

    def of(self, name: str, header: Header) -> dict[str, str] | None:
        """The cells of the row about a file, by its path below the folder and its header; None without a row."""
        line_and_cells = self.rows.get(key_of(self.key, name, header))
        return None if line_and_cells is None else line_and_cells[1]


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
    table_file = labels_file(settings.labels, settings.data_root)
    keyword = "" if table_file else checked_keyword(settings.labels)
    all_files = [entry for entry in files if entry != table_file and entry.name != INDEX]
    headers = headers_of(all_files, keyword)
    images = [entry for entry in all_files if entry in headers and headers[entry].has_image]
    if not images:
        rule = f"holds no DICOM image, and labels = {settings.labels!r} is for those"
        remedy = (
            "of other images a table with columns path and label is a data set itself: csv:FILE"
        )
        raise DataError(rule, where=str(path), remedy=remedy)
    header_of_name = {entry.relative_to(path).as_posix(): headers[entry] for entry in images}

    if table_file is None:
        columns = {LABEL: keyword}
        labels = {name: header.label for name, header in header_of_name.items()}
        cells = {name: {LABEL: text} for name, text in labels.items() if not is_missing(text)}
        sentences = _without_element(header_of_name, cells, keyword)
        from_headers = {LABEL}
    else:
        table = label_table(table_file, path, settings)
        columns = table.columns
        cells_or_none = {name: table.of(name, header) for name, header in header_of_name.items()}
        cells = {name: of_row for name, of_row in cells_or_none.items() if of_row is not None}
        sentences = _without_partner(table, header_of_name, cells, settings)
        from_headers = set[str]()
    if sentences and settings.missing != "drop":
        remedy = (DROP_ROWS, " leaves these out")
        raise DataError("; ".join(sentences), where=str(path), remedy=remedy)
    dropped = table.dropped if table_file else ()
    left = [left_out(dropped)] if dropped else []
    left += [f"{sentence}: left out by missing = drop" for sentence in sentences]

    names = tuple(cells)
    by_role = {role: tuple(cells[name][role] for name in names) for role in columns}
    sides = _sides(names)
    if sides and "split" not in columns and "fold" not in columns:
        by_role["split"] = sides
    known = known_of(
        [path / name for name in names],
        headers,
        settings,
        sides=by_role.get("split", ()),
        patients=by_role.get("patient", ()),
    )
    from_headers |= set(known.cells)
    found = known.cells | by_role  # what the table says goes before the headers
    notes = list(known.notes)
    others = [entry for entry in all_files if entry not in headers or not headers[entry].has_image]
    if others:
        example = others[0].relative_to(path)
        number = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        notes.append(f"{number} no DICOM image and left out, such as {example}")
    where = str(table_file or path)
    _check(where, found[LABEL], columns[LABEL], settings)
    rows = SampleMetadata(
        where=where,
        columns={**known.elements, **columns},
        cells=found,
        left_out="; ".join(left),
        from_headers=frozenset(from_headers - set(columns)) | frozenset(from_headers & {LABEL}),
    )
    return Labelled(names, rows, tuple(notes))


def _check(where: str, labels: Sequence[str], column: str, settings: DataSettings) -> None:
    """Raise DataError for labels that are no classes, or fewer than two."""
    check_labels(where, column, labels, names_of_classes(settings))
    classes = len(set(labels))
    if classes < 2:
        rule = f"{len(labels)} images of {classes} classes: at least 2"
        raise DataError(f"column {column}: {rule}", where=where)


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


def _without_element(
    headers: Mapping[str, Header], cells: Mapping[str, object], keyword: str
) -> list[str]:
    """Return a sentence about the files without the element; no sentence if all have it."""
    without = [name for name in headers if name not in cells]
    if not without:
        return []
    return [f"{len(without)} of {len(headers)} files have no {keyword}, such as {without[0]}"]


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


def _without_partner(
    table: LabelTable,
    headers: Mapping[str, Header],
    cells: Mapping[str, object],
    settings: DataSettings,
) -> list[str]:
    """Return sentences about files without a row and rows without a file.

    Raises:
        DataError: no row is about a file.
    """
    keys = {name: key_of(table.key, name, header) for name, header in headers.items()}
    without = [name for name in headers if name not in cells]
    there = set(keys.values())
    rows = [(line, key) for key, (line, _) in table.rows.items() if key not in there]
    sentences = []
    if without:
        example = without[0]
        if table.key != PATH:
            example += (
                f" ({table.key} {keys[example]!r})" if keys[example] else f" (no {table.key})"
            )
        found = f"{len(without)} of {len(headers)} files have no row in {table.file.name}"
        sentences.append(f"{found}, such as {example}")
    several = len(members(settings.dataset)) > 1  # one table of all: each folder has its part
    if rows and (not several or not cells):
        line, key = rows[0]
        found = f"{len(rows)} of {len(table.rows)} rows of {table.file.name} have no file"
        sentences.append(f"{found}, such as row {line} ({table.key} {key[:80]!r})")
    if not cells:
        raise DataError("; ".join(sentences), where=str(table.file))
    return sentences
