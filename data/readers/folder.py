"""folder:PATH: images in a folder for each class, or DICOM files whose labels are beside them (setting `labels`)."""

import os
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, SettingError
from data.extras import needed
from data.readers.catalog import labels_file, members
from data.readers.dicom_headers import (
    INDEX,
    PATIENT,
    SERIES,
    STUDY,
    Header,
    headers_of,
    is_dicom,
    notes_of_others,
    origins_of,
    plain,
    unknown_patients,
)
from data.readers.image_files import ANY_SIZE, ImageFiles
from data.readers.rows import (
    DROP_ROWS,
    LABEL,
    check_labels,
    classes_of,
    complete_rows,
    cure_of,
    is_missing,
    left_out,
    names_of_classes,
    read_table,
    role_like,
    roles_of,
)
from data.readers.splits import SPLITS, Manifest
from data.settings import DataSettings
from data.text import name_list

OF_SYSTEMS = ("Thumbs.db", "desktop.ini", "__MACOSX")
"""Files and folders that operating systems leave behind."""
LAYOUT = "must hold train/CLASS/* and test/CLASS/*, or CLASS/* alone, of which a fifth is then for testing"
FEWEST_PATIENTS = 3
"""Class folders of one patient each that are taken for an archive's folders of patients."""
PATH = "path"
KEYS = (PATH, SERIES, STUDY, PATIENT)
"""What a row of a table can be about, the most precise one first: a file, a series, a study or a patient."""
NO_LABELS = frozenset(("SQ", "OB", "OD", "OF", "OL", "OV", "OW", "UN"))
"""Types of DICOM elements that hold no text and no number."""


def scan(path: Path, settings: DataSettings) -> Manifest:
    """Return the images of train/CLASS/*, test/CLASS/* and, if there, val/CLASS/*; or of CLASS/*; or those of `labels`.

    Images are ordered by class, then by file name, those in folders of a class folder with the others.

    Raises:
        DataError: a folder is missing, or a class folder is none of the setting classes.
    """
    if not path.is_dir():
        raise DataError("there is no such folder", where=path)
    if settings.labels:
        return scan_labelled(path, settings)
    splits = split_folders(path)
    files: list[Path] = []
    columns: dict[str, list[str]] = {"label": [], "split": []}
    notes: list[Remedy] = []
    names: dict[str, None] = {}
    for side, folder in splits.items():
        folders = class_folders(folder)
        if settings.classes.strip():
            numbered = of_classes(folder, settings.class_names)
            folders = {settings.class_names[number]: numbered[number] for number in numbered}
        notes += notes_of(folder, folders)
        names |= dict.fromkeys(folders)
        before = len(files)
        for name, class_folder in folders.items():
            of_class = [*below(class_folder)]
            files += of_class
            columns["label"] += [name] * len(of_class)
            columns["split"] += [side] * len(of_class)
        if len(files) == before:
            raise DataError(f"no image in any class folder: {LAYOUT}", where=folder)
    classes = sorted(names)
    notes += [f"class {name} has no image" for name in classes if name not in columns["label"]]
    stated = {role: texts for role, texts in columns.items() if all(texts)}
    headers = headers_of(files)
    known = origins_of(files, headers, settings, stated)
    if len(classes) < 2 and headers and not settings.classes.strip():
        rule = f"holds DICOM files in the folder {classes[0]} alone, and there must be two classes"
        raise DataError(rule, where=path, remedy=with_labels(path))
    refuse_patients(path, columns["label"], known.columns.get("patient", ()), known.names)
    if not stated.get("split"):
        refuse_sites(path, [folder for folder in visible(path) if folder.is_dir()])
    notes += known.notes
    if "patient" not in known.columns and settings.column_names.get("patient") != "":
        notes.append(unknown_patients(path / "images.csv", "columns path, label and patient"))
    relative = [str(file.relative_to(path)) for file in files]
    return Manifest(
        where=str(path),
        inputs=ImageFiles.of(path, relative, ANY_SIZE, settings),
        columns={**stated, **known.columns},
        names={"label": "class folder", "split": "folder", **known.names},
        classes=classes,
        notes=tuple(notes),
    )


# ---- folders ---------------------------------------------------------------------------------------------------------


def visible(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder, sorted by name, without the files of operating systems."""
    # By name: all lie in one folder, and comparing whole paths is slow.
    for path in sorted(folder.iterdir(), key=attrgetter("name")):
        if not path.name.startswith(".") and path.name not in OF_SYSTEMS:
            yield path


def below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in those inside it."""
    for path in visible(folder):
        if path.is_dir():
            yield from below(path)
        else:
            yield path


def composed(name: str) -> str:
    """Return a name with letters and their marks as one character, whatever the file system made of them."""
    return unicodedata.normalize("NFC", name)


def class_folders(folder: Path) -> dict[str, Path]:
    """Return the folders by class. Raises DataError for a name that the setting classes cannot hold."""
    folders = {composed(path.name): path for path in visible(folder) if path.is_dir()}
    for name in folders:
        if name != name.strip():
            rule = "the name of a class must have no space around it: rename the folder"
            raise DataError(rule, where=folders[name])
    return folders


def class_number(name: str, class_names: Sequence[str]) -> int | None:
    """Return a class's number by its name, also in other capital letters where it is then one class's alone."""
    known = [composed(class_name) for class_name in class_names]
    name = composed(name)
    if name in known:
        return known.index(name)
    alike = [number for number, each in enumerate(known) if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def of_classes(folder: Path, class_names: Sequence[str]) -> dict[int, Path]:
    """Return the class folders of `folder` by the number of their class, in order.

    Raises:
        DataError: a folder is none of the classes, or two are one.
    """
    found: dict[int, Path] = {}
    for name, class_folder in class_folders(folder).items():
        number = class_number(name, class_names)
        rule = ""
        if number is None:
            rule = f"must be one of classes = {name_list(class_names, ', ')}"
        elif number in found:
            rule = f"is also called {found[number].name}: rename one"
        if number is None or rule:
            raise DataError(f"class folder {name}: {rule}", where=folder)
        found[number] = class_folder
    return dict(sorted(found.items()))


def notes_of(folder: Path, folders: Mapping[str, Path]) -> Iterator[str]:
    """Yield what a user has to know of the class folders of a folder, a sentence each."""
    beside = sum(path.is_file() for path in visible(folder))
    if beside:
        yield f"{folder}: {beside} files beside the class folders are left out"
    for name, inside in folders.items():
        if any(path.is_dir() for path in visible(inside)):
            yield f"{inside}: images in folders inside it are of class {name} too"


def split_folders(path: Path) -> dict[str, Path]:
    """Return the folders of train, test and perhaps val; `path` itself by "" where it holds class folders.

    Raises:
        DataError: there is only a part of them, or neither.
    """
    entries = list(visible(path))
    folders = [entry for entry in entries if entry.is_dir()]
    named: dict[str, Path] = {}
    for folder in folders:
        if folder.name.lower() in SPLITS:
            # Of `val` and `valid` the first by name.
            named.setdefault(SPLITS[folder.name.lower()], folder)
    if {"train", "test"} <= named.keys():
        return {key: named[key] for key in ("train", "test", "val") if key in named}
    if "train" in named:
        rule = f"there is no such folder; {path} {LAYOUT}"
        remedy = SetOption("dataset", f"folder:{named['train']}"), " tests on a fifth of train"
        raise DataError(rule, where=path / "test", remedy=remedy)
    if named:
        raise DataError(f"there is no such folder; {path} {LAYOUT}", where=path / "train")
    if not folders:
        raise _no_folders(path, entries)
    return {"": path}


def _no_folders(path: Path, entries: list[Path]) -> DataError:
    """Return the error of a folder that holds no folder, which names what its files may be instead."""
    remedy: Remedy = ""
    tables = [entry for entry in entries if entry.suffix == ".csv"]
    if any(entry.is_file() and is_dicom(entry) for entry in entries):
        remedy = f"if they are DICOM files: {with_labels(path)}"
    elif tables:
        option = SetOption("dataset", f"csv:{tables[0]}")
        remedy = "if the table has columns path and label: ", option
    there = f"holds {len(entries)} files and no folder" if entries else "is empty"
    return DataError(f"{there}: it {LAYOUT}", where=path, remedy=remedy)


def refuse_sites(path: Path, folders: list[Path]) -> None:
    """Raise DataError where the folders are sites and not classes: train/CLASS/* or the same classes are in each."""
    contents = [[*visible(folder)] for folder in folders]
    inner = [[child.name for child in children if child.is_dir()] for children in contents]
    names = [f"folder:{folder}" for folder in folders]
    dataset = names[0] if len(names) == 1 else f"domains:{name_list(names)}"
    if all({"train", "training"} & {*map(str.lower, children)} for children in inner):
        remedy = ("its folders do: ", SetOption("dataset", dataset))
        raise DataError(LAYOUT, where=path, remedy=remedy)
    first = inner[0]
    same = len(folders) > 1 and len(first) > 1 and all(children == first for children in inner)
    if same and not any(child.is_file() for children in contents for child in children):
        rule = f"every folder holds the same folders {', '.join(first[:4])}"
        remedy = ("if these are the classes, the others are sites: ", SetOption("dataset", dataset))
        raise DataError(rule, where=path, remedy=remedy)


def refuse_patients(
    path: Path, classes: Sequence[str], patients: Sequence[str], names: Mapping[str, str]
) -> None:
    """Raise DataError where the folders are those of an archive's patients, and not of classes."""
    pairs = set(zip(classes, patients, strict=False))
    if len(pairs) < FEWEST_PATIENTS or len(pairs) > len({*classes}):
        return
    raise DataError(
        f"each of the {len(pairs)} class folders, such as {classes[0]}, holds one alone by {names['patient']}, so that "
        "these look like patients and not like classes",
        where=path,
        remedy=(with_labels(path), "; or, if they are classes: ", SetOption("columns", "patient=")),
    )


def with_labels(path: Path) -> str:
    """Return what to do where folders are no classes, with the whole command."""
    table = f"write labels.csv with columns {PATIENT} and label, and check"
    return (
        f"{table}: fedskew data check {shlex.quote(str(path.absolute()))} --set labels=labels.csv"
    )


# ---- labels beside DICOM files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelTable:
    """The rows of a table of labels."""

    file: Path
    key: str
    """One of KEYS."""
    names: dict[str, str]
    """What sentences call each role but that of the key."""
    rows: dict[str, dict[str, str]]
    """By key, the cells by role; that of the key is not among them."""
    dropped: list[str]
    """What was missing in each row that was left out."""

    def key_of(self, name: str, header: Header) -> str:
        """Return what the table calls a file."""
        stated = {SERIES: header.series, STUDY: header.study, PATIENT: header.patient}
        return stated.get(self.key, name)


def scan_labelled(path: Path, settings: DataSettings) -> Manifest:
    """Return the DICOM images below a folder, with the label, patient, site and split of each.

    Images are ordered by path. Splits are those of the table, else the folders train and test.

    Raises:
        DataError: no DICOM image, a table that cannot be used, or, unless `missing` is drop, a file without a label or
            a row without a file.
    """
    file = labels_file(settings.labels, settings.data_root)
    keyword = "" if file else checked_keyword(settings.labels)
    candidates = [entry for entry in below(path) if entry != file and entry.name != INDEX]
    headers = headers_of(candidates, keyword)
    images = [entry for entry in candidates if entry in headers and headers[entry].has_image]
    if not images:
        rule = f"holds no DICOM image, and labels = {settings.labels!r} is for those"
        raise DataError(rule, where=path, remedy="for other images: csv:FILE")
    by_name = {entry.relative_to(path).as_posix(): headers[entry] for entry in images}
    if file:
        labelled, names, dropped = _by_table(label_table(file, path, settings), by_name, settings)
    else:
        names = {LABEL: f"DICOM element {keyword}"}
        texts = {name: header.label for name, header in by_name.items()}
        labelled = {name: {LABEL: text} for name, text in texts.items() if not is_missing(text)}
        without = [name for name in texts if name not in labelled]
        found = _found(without, len(texts), f"files have no {keyword}")
        dropped = _left_out(found, str(path), settings)

    where = str(file or path)
    columns = {role: [cells[role] for cells in labelled.values()] for role in names}
    check_labels(where, names[LABEL], columns[LABEL], names_of_classes(settings))
    sides = [SPLITS.get(name.split("/")[0].lower(), "") for name in labelled]
    if not {"split", "fold"} & columns.keys() and {"train", "test"} <= {*sides} and all(sides):
        columns["split"], names["split"] = sides, "folder"
    known = origins_of([path / name for name in labelled], headers, settings, columns)
    return Manifest(
        where=where,
        inputs=ImageFiles.of(path, list(labelled), ANY_SIZE, settings),
        columns={**columns, **known.columns},
        names={**names, **known.names},
        classes=classes_of(columns[LABEL]),
        notes=(*dropped, *known.notes, *notes_of_others(path, candidates, images)),
    )


def _by_table(
    table: LabelTable, headers: Mapping[str, Header], settings: DataSettings
) -> tuple[dict[str, dict[str, str]], dict[str, str], list[str]]:
    """Return the cells of each file that has a row, what sentences call their roles, and what is left out.

    Raises:
        DataError: no row is about a file, or a file has no row, or a row no file, and `missing` is not drop.
    """
    keys = {name: table.key_of(name, header) for name, header in headers.items()}
    labelled = {name: table.rows[key] for name, key in keys.items() if key in table.rows}
    without = [f"{name} ({table.key} {keys[name]!r})" for name in keys if name not in labelled]
    unused = [f"{table.key} {key[:80]!r}" for key in table.rows.keys() - {*keys.values()}]
    if labelled and len(members(settings.dataset)) > 1:
        unused = []  # one table of all: each folder has its part
    found = _found(without, len(keys), "files have no row")
    found += _found(sorted(unused), len(table.rows), "rows have no file")
    if not labelled:
        raise DataError("; ".join(found), where=table.file)
    dropped = _left_out(found, str(table.file), settings)
    return labelled, table.names, [*left_out(table.dropped), *dropped]


def _found(examples: Sequence[str], total: int, what: str) -> list[str]:
    """Return a sentence about so many of all that lack something; none for none."""
    return [f"{len(examples)} of {total} {what}, such as {examples[0]}"] if examples else []


def _left_out(found: Sequence[str], where: str, settings: DataSettings) -> list[str]:
    """Return what `missing = drop` leaves out, a sentence each. Raises DataError under any other setting."""
    if found and settings.missing != "drop":
        raise DataError("; ".join(found), where=where, remedy=(DROP_ROWS, " leaves these out"))
    return [f"{sentence}: left out by missing = drop" for sentence in found]


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
    table = read_table(file, settings)
    key, roles = _key_and_roles(file, table.header, settings)
    names = {role: f"column {name}" for role, name in roles.items()}
    cells = {role: table.columns[name] for role, name in roles.items()}
    kept, dropped = complete_rows(
        str(file), cells, names, lambda place: f"row {table.lines[place]}", settings
    )
    rows: dict[str, dict[str, str]] = {}
    for place in kept:
        row = {role: column[place] for role, column in cells.items()}
        if "patient" in row:
            row["patient"] = plain(row["patient"])
        about = row.pop(key)
        about = _below(about, file, folder) if key == PATH else plain(about)
        if rows.setdefault(about, row) != row:
            rule = "is in another row with other values: must have one row, or equal ones"
            where = f"row {table.lines[place]}, {names[key]}"
            raise DataError(f"{where}: {about[:80]!r} {rule}", where=file)
    del names[key]
    return LabelTable(file, key, names, rows, dropped)


def _key_and_roles(
    file: Path, header: Sequence[str], settings: DataSettings
) -> tuple[str, dict[str, str]]:
    """Return what the rows are about, and the columns' names by role and by that. Raises DataError."""
    roles = {role: name for role, name in roles_of(str(file), header, settings).items() if name}
    if "patient" not in settings.column_names:
        likely = (name for name in header if role_like(name) == "patient")
        roles.setdefault("patient", next(likely, ""))
    small_letters = {name.lower().replace(" ", "").replace("_", ""): name for name in header}
    named = {key: small_letters.get(key.lower(), "") for key in (SERIES, STUDY)}
    named = {PATH: roles.get(PATH, ""), **named, PATIENT: roles.get("patient", "")}
    key = next((key for key in KEYS if named[key]), "")
    if not key:
        shown = name_list(header, ", ")[:200]
        rule = f"no column says which files a row is about: must have one of {', '.join(KEYS)}, and has {shown}"
        way = cure_of(settings, {"patient": "NAME"})
        raise DataError(rule, where=file, remedy=("if one names the patient: ", way))
    if key == PATIENT:
        del roles["patient"]
    return key, {role: name for role, name in {**roles, key: named[key]}.items() if name}


def _below(cell: str, file: Path, folder: Path) -> str:
    """Return the path of a row's file below the folder; the cell may be a path from the table's own folder, too."""
    name = cell.replace("\\", "/")  # the table was written on Windows
    if not (folder / name).is_file():
        name = os.path.relpath(file.absolute().parent / name, folder.absolute())
    return os.path.normpath(name)
