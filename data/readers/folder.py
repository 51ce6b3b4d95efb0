"""folder:PATH: images in a folder for each class, or DICOM files whose labels are beside them (setting `labels`)."""

import shlex
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, SettingError
from data.packages import needed
from data.readers.catalog import labels_file, members
from data.readers.dicom_headers import PATIENT, headers_of, notes_of_others, plain, with_origins
from data.readers.image_files import ANY_SIZE, ImageFiles
from data.readers.rows import (
    DROP_ROWS,
    LABEL,
    check_labels,
    classes_of,
    complete_rows,
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
Row = Mapping[str, str]
"""What is known of one image, by role."""


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
    files: list[str] = []
    columns: dict[str, list[str]] = {LABEL: [], "split": []}
    notes: list[Remedy] = []
    sides = split_folders(path)
    class_names = names_of_classes(settings)
    found: set[str] = set()
    for side, folder in sides.items():
        found |= class_folders(folder, class_names).keys()
        beside = sum(entry.is_file() for entry in visible(folder))
        if beside:
            notes.append(f"{folder}: {beside} files beside the class folders are left out")
        for file, name in files_of_classes(folder, path, class_names):
            files.append(file)
            columns[LABEL].append(name)
            columns["split"].append(side)
    # A folder without images is a class all the same: another site may have images of it.
    classes = sorted(found)
    notes += [f"class {name} has no image" for name in sorted(found.difference(columns[LABEL]))]
    depth = 2 if "" in sides else 3
    inner = [file for file in files if len(Path(file).parts) > depth]
    if inner:
        notes.append(
            f"images in folders inside a class folder, such as {inner[0]}, are of its class too"
        )
    empty = [folder for side, folder in sides.items() if side not in columns["split"]]
    refuse_no_classes(path, empty, classes, settings)
    if "" in sides:
        del columns["split"]
    manifest = Manifest(
        where=str(path),
        inputs=ImageFiles.of(path, files, ANY_SIZE, settings),
        columns=columns,
        names={LABEL: "class folder", "split": "folder"},
        classes=classes,
        notes=tuple(notes),
    )
    manifest = with_origins(manifest, settings)
    refuse_patients(path, manifest)
    if "" in sides:
        refuse_sites(path)
    return manifest


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
    return unicodedata.normalize("NFC", name.strip())


def class_folders(folder: Path, class_names: Sequence[str] = ()) -> dict[str, Path]:
    """Return the folders by class: by their own names, or in the order of `class_names`.

    Raises:
        DataError: a folder is none of the classes, or two are one.
    """
    found: dict[str, Path] = {}
    for path in visible(folder):
        if not path.is_dir():
            continue
        name = composed(path.name)
        if class_names:
            number = class_number(name, class_names)
            if number is None:
                rule = f"must be one of classes = {name_list(class_names, ', ')}"
                raise DataError(f"class folder {name}: {rule}", where=folder)
            name = class_names[number]
        if name in found:
            rule = f"is also called {found[name].name}: rename one"
            raise DataError(f"class folder {path.name}: {rule}", where=folder)
        found[name] = path
    return {name: found[name] for name in class_names or found if name in found}


def files_of_classes(
    folder: Path, root: Path, class_names: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return the files in the class folders of a folder: paths from `root`, each with the name of its class.

    Raises DataError as class_folders does.
    """
    files = []
    for name, class_folder in class_folders(folder, class_names).items():
        files += [(str(file.relative_to(root)), name) for file in below(class_folder)]
    return files


def class_number(name: str, class_names: Sequence[str]) -> int | None:
    """Return a class's number by its name, also in other capital letters where it is then one class's alone."""
    known = [composed(class_name) for class_name in class_names]
    name = composed(name)
    if name in known:
        return known.index(name)
    alike = [number for number, each in enumerate(known) if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def split_folders(path: Path) -> dict[str, Path]:
    """Return the folders of train, test and perhaps val; `path` itself by "" where it holds class folders.

    Raises:
        DataError: there is no train, or no test.
    """
    named: dict[str, Path] = {}
    for folder in visible(path):
        side = SPLITS.get(folder.name.lower())
        if side and folder.is_dir():
            named.setdefault(side, folder)  # of `val` and `valid` the first by name
    if not named:
        return {"": path}
    for side in ("train", "test"):
        if side not in named:
            remedy: Remedy = ""
            if "train" in named:
                option = SetOption("dataset", f"folder:{named['train']}")
                remedy = option, " tests on a fifth of train"
            rule = f"there is no such folder; {path} {LAYOUT}"
            raise DataError(rule, where=path / side, remedy=remedy)
    return {side: named[side] for side in ("train", "test", "val") if side in named}


def refuse_no_classes(
    path: Path, empty: Sequence[Path], classes: Sequence[str], settings: DataSettings
) -> None:
    """Raise DataError where a split is empty, or there are no two classes."""
    if empty:
        rule = f"no image in any class folder: {LAYOUT}"
        raise DataError(rule, where=empty[0], remedy=remedy_for(path))
    is_alone = len(members(settings.dataset)) == 1  # another site may have images of other classes
    if len(classes) < 2 and is_alone and not settings.classes.strip():
        rule = f"holds images of one class, {classes[0]}: {LAYOUT}"
        raise DataError(rule, where=path, remedy=remedy_for(path))


def remedy_for(path: Path) -> Remedy:
    """Return what a folder that holds no two classes may be instead."""
    tables = [entry for entry in visible(path) if entry.suffix.lower() == ".csv"]
    folders = [entry for entry in visible(path) if entry.is_dir()]
    if tables:
        option = SetOption("dataset", f"csv:{tables[0]}")
        return "if the table has columns path and label: ", option
    if headers_of([*below(path)]):
        return with_labels(path)
    if len(folders) == 1 and any(entry.is_dir() for entry in visible(folders[0])):
        option = SetOption("dataset", f"folder:{folders[0]}")
        return "if the classes are in that folder: ", option
    return ""


def refuse_sites(path: Path) -> None:
    """Raise DataError where the folders are sites and not classes: all hold the same folders, or train and test."""
    folders = [folder for folder in visible(path) if folder.is_dir()]
    inner = [[child.name for child in visible(folder) if child.is_dir()] for folder in folders]
    first = inner[0]
    have_files = any(entry.is_file() for folder in folders for entry in visible(folder))
    are_same = len(first) > 1 and not have_files and all(names == first for names in inner)
    are_split = all("train" in {SPLITS.get(name.lower()) for name in names} for names in inner)
    if are_same or are_split:
        dataset = f"domains:{name_list([f'folder:{folder}' for folder in folders])}"
        raise DataError(
            f"every folder holds folders of its own, such as {', '.join(first[:4])}",
            where=path,
            remedy=(
                "if these are classes or splits, the others are sites: ",
                SetOption("dataset", dataset),
            ),
        )


def refuse_patients(path: Path, manifest: Manifest) -> None:
    """Raise DataError where the folders are those of an archive's patients, and not of classes."""
    labels = manifest.of(LABEL)
    pairs = set(zip(labels, manifest.of("patient"), strict=False))
    if len(pairs) < FEWEST_PATIENTS or len(pairs) > len({*labels}):
        return
    raise DataError(
        f"each of the {len(pairs)} class folders, such as {labels[0]}, holds one alone by "
        f"{manifest.names['patient']}, so that these look like patients and not like classes",
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


def scan_labelled(path: Path, settings: DataSettings) -> Manifest:
    """Return the DICOM images below a folder with the label of each, by its patient's row or by an element.

    Images are ordered by path. Splits are those of the table, else the folders train and test.

    Raises:
        DataError: no DICOM image, a table that cannot be used, or a file without a label, unless `missing` is drop.
    """
    table = labels_file(settings.labels, settings.data_root)
    keyword = "" if table else checked_keyword(settings.labels)
    files = [file for file in below(path) if file != table]
    headers = headers_of(files, keyword)
    images = [file for file in files if file in headers and headers[file].has_image]
    if not images:
        rule = f"holds no DICOM image, and labels = {settings.labels!r} is for those"
        raise DataError(rule, where=path, remedy="for other images: csv:FILE")

    notes = notes_of_others(path, files, images)
    if table:
        patient_of = {file: headers[file].patient for file in images}
        rows, names, of_table = rows_by_patient(table, set(patient_of.values()), settings)
        notes += of_table
        labelled = {file: rows[each] for file, each in patient_of.items() if each in rows}
    else:
        names = {LABEL: f"DICOM element {keyword}"}
        texts = {file: headers[file].label for file in images}
        labelled = {file: {LABEL: text} for file, text in texts.items() if not is_missing(text)}
    where = str(table or path)
    without = [file for file in images if file not in labelled]
    if without:
        example = f"{without[0].relative_to(path)} ({PATIENT} {headers[without[0]].patient!r})"
        found = f"{len(without)} of {len(images)} files have no label, such as {example}"
        if settings.missing != "drop" or not labelled:
            remedy = (DROP_ROWS, " leaves these out") if labelled else ""
            raise DataError(found, where=where, remedy=remedy)
        notes.append(f"{found}: left out by missing = drop")

    columns = {role: [row[role] for row in labelled.values()] for role in names}
    check_labels(where, names[LABEL], columns[LABEL], names_of_classes(settings))
    relative = [file.relative_to(path).as_posix() for file in labelled]
    sides = [SPLITS.get(name.split("/")[0].lower(), "") for name in relative]
    if not {"split", "fold"} & columns.keys() and {"train", "test"} <= {*sides} and all(sides):
        columns["split"], names["split"] = sides, "folder"
    manifest = Manifest(
        where=where,
        inputs=ImageFiles.of(path, relative, ANY_SIZE, settings),
        columns=columns,
        names=names,
        classes=classes_of(columns[LABEL]),
        notes=tuple(notes),
    )
    return with_origins(manifest, settings, headers_by_file=headers)


def checked_keyword(labels: str) -> str:
    """Return the keyword of a DICOM element. Raises SettingError for a text that is none."""
    datadict = needed("pydicom.datadict", "medical", f"labels = {labels!r}")
    if datadict.tag_for_keyword(labels) is None:
        rule = "must be a CSV file, such as labels.csv, or the keyword of a DICOM element, such as BodyPartExamined"
        raise SettingError("labels", labels, rule)
    return labels


def rows_by_patient(
    file: Path, patients: Collection[str], settings: DataSettings
) -> tuple[dict[str, Row], dict[str, str], list[str]]:
    """Return a table's rows by patient, what sentences call each role, and what has to be said of the table.

    Args:
        file: A table with a column PatientID, or one with the role patient, and label; site, split and fold count too.
        patients: Those of the images.
        settings: Of these, `columns` and `missing` count.

    Raises:
        DataError: no column of patients, two rows of one that differ, or a missing value, unless `missing` is drop.
    """
    table = read_table(file)
    stated = roles_of(str(file), table.header, settings)
    likely = next((name for name in table.header if role_like(name) == "patient"), "")
    stated.setdefault("patient", likely)
    roles = {role: name for role, name in stated.items() if name and role != "path"}
    if "patient" not in roles:
        rule = f"must have a column {PATIENT}, and has {name_list(table.header, ', ')[:200]}"
        raise DataError(rule, where=file, remedy="a table of the files' paths is csv:FILE")
    names = {role: f"column {name}" for role, name in roles.items()}
    cells = {role: table.columns[name] for role, name in roles.items()}
    kept, dropped = complete_rows(
        str(file), cells, names, lambda place: f"row {table.lines[place]}", settings
    )
    rows: dict[str, Row] = {}
    for place in kept:
        row = {role: column[place] for role, column in cells.items()}
        patient = plain(row["patient"])
        row["patient"] = patient
        if rows.setdefault(patient, row) != row:
            rule = "is in another row with other values: must have one row, or equal ones"
            found = f"row {table.lines[place]}, {names['patient']}: {patient[:80]!r}"
            raise DataError(f"{found} {rule}", where=file)
    notes = left_out(dropped)
    unused = sorted(rows.keys() - {*patients})
    if unused:
        notes.append(
            f"{len(unused)} of {len(rows)} patients of {file.name} have no file, such as {unused[0]}"
        )
    return rows, names, notes
