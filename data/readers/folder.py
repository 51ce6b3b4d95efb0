"""folder:PATH: images in a folder for each class, or DICOM files whose labels are beside them (setting `labels`)."""

import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, SettingError
from data.packages import needed
from data.readers.catalog import labels_file, members
from data.readers.dicom_headers import PATIENT, headers_of, notes_of_others, plain, with_origins
from data.readers.image_files import ImageFiles, letters_of
from data.readers.rows import (
    LABEL,
    complete_rows,
    names_of_classes,
    notes_of_unused,
    read_table,
    role_like,
    roles_of,
)
from data.readers.splits import SPLITS, Manifest, manifest_of_rows
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
    splits = split_folders(path)
    class_names = names_of_classes(settings)
    found: set[str] = set()
    for side, folder in splits.items():
        found |= class_folders(folder, class_names).keys()
        beside = sum(entry.is_file() for entry in visible(folder))
        if beside:
            notes.append(f"{folder}: {beside} files beside the class folders are left out")
        listed = files_of_classes(folder, path, class_names)
        if not listed:
            rule = f"no image in any class folder: {LAYOUT}"
            raise DataError(rule, where=folder, remedy=remedy_for(path))
        files += [file for file, _ in listed]
        columns[LABEL] += [name for _, name in listed]
        columns["split"] += [side] * len(listed)
    # A folder without images is a class all the same: another site may have images of it.
    classes = sorted(found)
    notes += [f"class {name} has no image" for name in sorted(found.difference(columns[LABEL]))]
    is_whole = "" in splits  # no folder says who tests
    # Of several sites another may have images of other classes.
    if len(classes) < 2 and not class_names and len(members(settings.dataset)) == 1:
        rule = f"holds images of one class, {classes[0]}: {LAYOUT}"
        raise DataError(rule, where=path, remedy=remedy_for(path))
    if is_whole:
        del columns["split"]
    manifest = Manifest(
        where=str(path),
        inputs=ImageFiles(path, letters_of(files), settings=settings),
        columns=columns,
        names={LABEL: "class folder", "split": "folder"},
        classes=classes,
        notes=tuple(notes),
    )
    manifest = with_origins(manifest, settings)
    refuse_patients(path, manifest)
    if is_whole:
        refuse_sites(path, class_names)
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


def remedy_for(path: Path) -> Remedy:
    """Return what a folder that holds no two classes may be instead."""
    return with_labels(path) if headers_of([*below(path)]) else ""


def refuse_sites(path: Path, class_names: Sequence[str]) -> None:
    """Raise DataError where the folders are sites and not classes: they share folders' names, or hold train and test.

    A site may lack some of the others' classes. Folders that `class_names` state are classes, whatever they hold.
    """
    folders = [folder for folder in visible(path) if folder.is_dir()]
    inner = [[child.name for child in visible(folder) if child.is_dir()] for folder in folders]
    most = max(inner, key=len)
    have_files = any(entry.is_file() for folder in folders for entry in visible(folder))
    times = Counter(name for names in inner for name in names)
    are_alike = len(most) > 1 and all(any(times[name] > 1 for name in names) for names in inner)
    are_sites = are_alike and not have_files and not class_names
    are_split = all("train" in {SPLITS.get(name.lower()) for name in names} for names in inner)
    if not are_sites and not are_split:
        return
    dataset = f"domains:{name_list([f'folder:{folder}' for folder in folders])}"
    remedy: Remedy = (
        "if these are classes or splits, the others are sites: ",
        SetOption("dataset", dataset),
    )
    if are_sites:
        outer = SetOption("classes", name_list([folder.name for folder in folders]))
        remedy = (*remedy, "; if the others are the classes: ", outer)
    found = f"every folder holds folders of its own, such as {', '.join(most[:4])}"
    raise DataError(found, where=path, remedy=remedy)


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
    check = f"fedskew data check {shlex.quote(str(path.absolute()))} --set labels=labels.csv"
    return f"write labels.csv with columns {PATIENT} and label, and check: {check}"


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

    notes: list[Remedy] = [*notes_of_others(path, files, images)]
    names = {LABEL: f"DICOM element {keyword}"}
    rows: list[Row] = [{LABEL: headers[file].label} for file in images]
    patients = [headers[file].patient for file in images]
    if table:
        by_patient, names, notes_of_table = rows_by_patient(table, settings)
        notes += notes_of_table
        rows = [by_patient.get(patient, {}) for patient in patients]
        unused = sorted(by_patient.keys() - {*patients})
        if unused:
            found = f"{len(unused)} of {len(by_patient)} patients of {table.name} have no file"
            notes.append(f"{found}, such as {unused[0]!r}")
    relative = [file.relative_to(path).as_posix() for file in images]

    def row_of(place: int) -> str:
        no_row = "" if rows[place] else ", without a row"
        return f"{relative[place]} ({PATIENT} {patients[place]!r}{no_row})"

    where = str(table or path)
    cells = {role: [row.get(role, "") for row in rows] for role in names}
    kept, dropped = complete_rows(where, cells, names, row_of, settings)
    columns = {role: [texts[place] for place in kept] for role, texts in cells.items()}
    labelled = [relative[place] for place in kept]
    sides = [SPLITS.get(name.split("/")[0].lower(), "") for name in labelled]
    if not {"split", "fold"} & columns.keys() and {"train", "test"} <= {*sides} and all(sides):
        columns["split"], names["split"] = sides, "folder"
    inputs = ImageFiles(path, letters_of(labelled), settings=settings)
    manifest = manifest_of_rows(where, inputs, columns, names, settings, dropped, notes)
    return with_origins(manifest, settings, headers_by_file=headers)


def checked_keyword(labels: str) -> str:
    """Return the keyword of a DICOM element. Raises SettingError for a text that is none."""
    datadict = needed("pydicom.datadict", "medical", f"labels = {labels!r}")
    if datadict.tag_for_keyword(labels) is None:
        rule = "must be a CSV file, such as labels.csv, or the keyword of a DICOM element, such as BodyPartExamined"
        raise SettingError("labels", labels, rule)
    return labels


def rows_by_patient(
    file: Path, settings: DataSettings
) -> tuple[dict[str, Row], dict[str, str], list[Remedy]]:
    """Return a table's rows by patient, what sentences call each role, and the note about columns that are not used.

    The table has a column PatientID, or one with the role patient, and label; site, split and fold count too.

    Raises:
        DataError: no column of patients, or two rows of one that differ.
    """
    table = read_table(file)
    roles = roles_of(str(file), table.header, settings)
    roles.pop("path", "")
    if not settings.column_names.get("patient") and "patient" not in table.header:
        likely = (name for name in table.header if role_like(name) == "patient")
        roles["patient"] = next(likely, "")
    if not roles.get("patient"):
        rule = f"must have a column {PATIENT}, and has {name_list(table.header, ', ')[:200]}"
        raise DataError(rule, where=file, remedy="a table of the files' paths is csv:FILE")
    names = {role: f"column {name}" for role, name in roles.items()}
    rows: dict[str, Row] = {}
    for place, line in enumerate(table.lines):
        row = {role: table.columns[name][place] for role, name in roles.items()}
        patient = row["patient"] = plain(row["patient"])
        if rows.setdefault(patient, row) != row:
            rule = "is in another row with other values: must have one row, or equal ones"
            found = f"row {line}, {names['patient']}: {patient[:80]!r}"
            raise DataError(f"{found} {rule}", where=file)
    others = [name for name in table.header if name not in roles.values()]
    return rows, names, notes_of_unused(others, roles, settings)
