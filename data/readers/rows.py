"""A CSV file as columns of texts, what its columns mean, and which cells say that there is no value."""

import csv
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy, SetOption, either
from data.settings import IGNORE, ROLES, DataSettings
from data.text import finite_number, is_whole, name_list, printable, said

LABEL = "label"
LIKE_ROLES = {
    LABEL: ("label", "labels", "class", "classes", "target", "targets", "diagnosis", "category", "y", "ground_truth"),
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "img",
             "image_path", "image_file", "image_name", "picture", "scan"),
    "site": ("site", "sites", "site_id", "hospital", "hospital_id", "center", "centre", "center_id",
             "clinic", "institution", "institute"),
    "patient": ("patient", "patients", "patient_id", "patientid", "pid", "subject", "subject_id",
                "subjectid", "person", "person_id"),
    "split": ("split", "splits", "data_split", "subset"),
    "fold": ("fold", "folds", "cv_fold", "kfold"),
}  # fmt: skip
"""What columns of a role may be called, in small letters and with _ for spaces and hyphens."""
MISSING = frozenset((
    "na", "n/a", "n.a.", "<na>", "nan", "-nan", "nat", "null", "(null)", "none", "\\n", "?", "-", "--", "\u2013",
    "\u2014", ".", "#na", "#n/a", "#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#null!", "#value!", "#ref!",
    "#name?", "#num!", "#div/0!",
))  # fmt: skip
"""What pandas, databases, spreadsheets and statistics programs write for a missing value, in small letters. Some of
these can be the name of a class (none, or - beside +): they are one if `classes` lists them. Words that are names as
often (unknown, other, missing, undefined, nil) are not among them."""
DROP_ROWS = SetOption("missing", "drop")
FILL_CELLS = SetOption("missing", "median")
MOST_FRACTIONS = 20
"""Different labels that can be classes, where they are numbers and not whole: ratings such as 0, 0.5, 1 have few."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a cell may have: inputs are float32."""
SWAPPED = str.maketrans(",.", ".,")
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas"}
"""What may separate the columns. The first that the header holds does: a name with a comma is likelier than one with a
semicolon."""


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    """By name, in file order, a text a row, without spaces around it."""
    lines: Sequence[int]
    """The line of each row in the file."""
    separator: str

    @property
    def header(self) -> list[str]:
        """The columns' names."""
        return list(self.columns)

    def place(self, row: int, name: str) -> str:
        """Return what a sentence calls a cell, and what it holds."""
        return f"row {self.lines[row]}, column {name}: {self.columns[name][row][:80]!r}"


def read_table(path: Path, most: int | None = None) -> Table:
    """Return the cells of a CSV file in UTF-8 or UTF-16 whose columns commas, semicolons or tabs separate.

    Args:
        path: The file. Excel may have written `sep=;` before its header.
        most: Read no more than so many rows, of which the first that is not empty is the header.

    Raises:
        DataError: there is no such file, it is no such text, a column has no name or another's, or a row
            has not one cell per column.
    """
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    try:
        rows, separator = _rows_in(path, most)
    except (csv.Error, UnicodeError) as error:
        remedy = "save it as UTF-8 (in Excel: CSV UTF-8)" if isinstance(error, UnicodeError) else ""
        rule = f"cannot be read as a CSV file in UTF-8: {said(error)}"
        raise DataError(rule, where=path, remedy=remedy) from error

    columns = _columns_in(path, rows, separator)
    return Table(path, columns, [line for line, _ in rows[1:]], separator)


def _columns_in(
    path: Path, rows: Sequence[tuple[int, list[str]]], separator: str
) -> dict[str, list[str]]:
    """Return the cells by the names in the first row. Raises DataError."""
    if not rows:
        raise DataError("is empty; its first row must name the columns", where=path)
    header = [name.strip() for name in rows[0][1]]
    for name in header:
        if not name or header.count(name) > 1:
            rule = "every column must have a name of its own"
            raise DataError(f"column {name[:80]!r}: {rule}", where=path)
    for line, row in rows[1:]:
        if len(row) != len(header):
            rule = f"has {len(row)} cells, and there are {len(header)} columns"
            remedy = ""
            if separator != ",":  # the header may have only a name with such a character in it
                taken = f"{SEPARATORS[separator]} are taken to separate them"
                remedy = f"{taken}; if commas do, a first line sep=, says so"
            raise DataError(f"row {line}: {rule}", where=path, remedy=remedy)
    body = [row for _, row in rows[1:]]
    return {name: [row[place].strip() for row in body] for place, name in enumerate(header)}


def _rows_in(path: Path, most: int | None) -> tuple[list[tuple[int, list[str]]], str]:
    """Return the rows of a CSV file that are not empty, each with its line, and the separator.

    Raises:
        UnicodeError, csv.Error: it is no such text.
    """
    with path.open("rb") as start:
        is_utf_16 = start.read(2) in (b"\xff\xfe", b"\xfe\xff")
    encoding = "utf-16" if is_utf_16 else "utf-8-sig"  # spreadsheets write a mark in UTF-8, too
    with path.open(encoding=encoding) as file:
        first = next((line for line in file if line.strip()), "").strip("\n")
        file.seek(0)
        stated = re.fullmatch(r"sep=([,;\t])", first)
        unquoted = re.sub(r'"[^"]*"', "", first)  # a name in quotes may hold any of them
        separator = next((mark for mark in SEPARATORS if mark in unquoted), ",")
        if stated:
            separator = stated[1]
        reader = csv.reader(file, delimiter=separator, strict=True)
        rows = [(reader.line_num, row) for row in islice(reader, most) if row]
    return rows[1:] if stated else rows, separator


def role_like(name: str) -> str:
    """Return the role that a column of that name probably has; empty for none."""
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    return next((role for role, names in LIKE_ROLES.items() if plain in names), "")


def likely_roles(
    columns: Sequence[str], roles: Collection[str], settings: DataSettings
) -> dict[str, str]:
    """Return, by role, the columns whose names look like sites, patients or who tests, of the roles that are free."""
    likely: dict[str, str] = {}
    for name in columns:
        role = role_like(name)
        # `columns` may state that there is none of a role.
        if role not in ("", LABEL, "path", *roles, *settings.column_names):
            likely.setdefault(role, name)
    # One column says who tests.
    if "split" in (*roles, *likely):
        likely.pop("fold", None)
    elif "fold" in roles:
        likely.pop("split", None)
    return likely


def is_missing(cell: str, names: Collection[str] = ()) -> bool:
    """Return whether a cell, which is none of `names`, is blank or says that there is no value."""
    # Blank is also what prints nothing, such as a zero-width space.
    blank = not any(letter.isprintable() and not letter.isspace() for letter in cell)
    return blank or (cell.strip().lower() in MISSING and cell.strip() not in names)


def decimal_mark(table: Table, names: Sequence[str]) -> str:
    """Return the decimal mark of some columns: a comma where a number has one and none separates the columns."""
    if table.separator == ",":
        return "."
    with_comma = (cell for name in names for cell in table.columns[name] if "," in cell)
    return "," if any(number_in(cell, ",") is not None for cell in with_comma) else "."


def number_in(cell: str, mark: str) -> float | None:
    """Return a cell's number, NaN for a missing value, and None for a text or a number that does not fit float32."""
    try:
        number = finite_number(cell.translate(SWAPPED) if mark == "," else cell)
    except ValueError:
        return math.nan if is_missing(cell) else None
    return number if abs(number) <= LARGEST else None


def names_of_classes(settings: DataSettings) -> tuple[str, ...]:
    """Return the classes that the setting lists; empty where it lists none yet. Raises SettingError."""
    return settings.class_names if settings.classes.strip() else ()


def complete_rows(
    where: str,
    cells: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    row: Callable[[int], str],
    settings: DataSettings,
    class_names: Collection[str] = (),
) -> tuple[list[int], list[str]]:
    """Return the places of the rows without a missing value, and what is missing in each row that is left out.

    Args:
        where: The file, for an error.
        cells: A text a row, by role. A label that is one of `class_names`, or of the setting, is not missing.
        names: What sentences call each role.
        row: What a sentence calls the row of a place.
        settings: Of these, `missing` counts.
        class_names: The classes, as far as the file says them.

    Raises:
        DataError: something is missing, and `missing` is not drop.
    """
    classes = {*class_names, *names_of_classes(settings)}
    missing: dict[int, str] = {}
    for role, texts in cells.items():
        known = classes if role == LABEL else ()
        for place, text in enumerate(texts):
            if is_missing(text, known):
                missing.setdefault(place, role)
    dropped = []
    for place, role in sorted(missing.items()):
        text = cells[role][place]
        what = f"{text!r} is a missing value" if text else "is empty"
        dropped.append(f"{row(place)}, {names[role]}: {what}")
        if settings.missing != "drop":
            remedy = " leaves out such rows"
            if role == LABEL and text:
                remedy += "; if it is the name of a class, list it in classes"
            raise DataError(dropped[0], where=where, remedy=(DROP_ROWS, remedy))
    return [place for place in range(len(cells[LABEL])) if place not in missing], dropped


def left_out(dropped: Sequence[str]) -> list[str]:
    """Return the sentence about rows that were left out, by what was missing in each; none for none."""
    found = f"missing = drop leaves out {len(dropped)} of the rows"
    return [f"{found}, first: {dropped[0]}"] if dropped else []


def check_labels(
    where: str, column: str, labels: Sequence[str], class_names: Collection[str]
) -> None:
    """Refuse labels of fewer than two classes, lists, and numbers of a continuous scale. Of `class_names` any is one.

    Raises:
        DataError: one of these.
    """
    distinct = sorted(set(labels).difference(class_names))
    found = f"{len(labels)} rows of {len(set(labels))} classes"
    if len(set(labels)) < 2:
        raise DataError(f"{column}: {found}: at least 2", where=where)
    for label in distinct:
        if label.startswith("[") and label.endswith("]"):
            rule = "is a list: a row must have one label (several labels of one row cannot be trained on)"
            raise DataError(f"{column}: {label[:80]!r}: {rule}", where=where)
    try:
        # A decimal comma, too: nothing else is read from the numbers than whether they are whole.
        values = [finite_number(label.replace(",", ".", 1)) for label in distinct]
    except ValueError:
        return
    fractions = [label for label, value in zip(distinct, values, strict=True) if value % 1]
    # Of whole numbers more can be classes, such as people's.
    most = MOST_FRACTIONS if fractions else max(MOST_FRACTIONS, len(labels) // 2)
    if len(distinct) > most:
        example = (fractions or distinct)[0]
        rule = f"has {len(distinct)} different numbers in {len(labels)} rows, such as {example}"
        remedy = "labels must be classes: make a few classes of them, such as low and high"
        raise DataError(f"{column} {rule}", where=where, remedy=remedy)


def cure_of(
    settings: DataSettings, roles: Mapping[str, str], ignore: Sequence[str] = ()
) -> SetOption:
    """Return the setting that adds roles, each with its column, and columns to leave out to what `columns` states."""
    parts = [f"{role}={name}" for role, name in {**settings.column_names, **roles}.items()]
    given = [name for name in settings.ignored_columns if name not in roles.values()]
    for place, name in enumerate([*given, *ignore]):
        # The first one needs the word, and so does a name that would read as ROLE=NAME.
        parts.append(f"{IGNORE}={name}" if not place or "=" in name else name)
    return SetOption("columns", name_list(parts))


def notes_of_unused(
    columns: Sequence[str], roles: Collection[str], settings: DataSettings
) -> list[Remedy]:
    """Return the note about columns beside images that are not used, and what their names look like; none for none."""
    unused = [name for name in columns if name not in settings.ignored_columns]
    if not unused:
        return []
    likely = likely_roles(unused, roles, settings)
    meanings = " and ".join(f"{name} is the {role}" for role, name in likely.items())
    cure = (f"; if {meanings}: ", cure_of(settings, likely)) if likely else ()
    return [(f"columns that are not used: {', '.join(unused)}", *cure)]


def roles_of(where: str, header: Sequence[str], settings: DataSettings) -> dict[str, str]:
    """Return the columns' names by role: by `columns`, then by the roles' own names. A column subject is the patient.

    Raises:
        DataError: a column that is not there, or none or two that may be the label.
    """
    stated, ignored = settings.column_names, settings.ignored_columns
    shown = printable(name_list(header, ", ")[:200])
    for name in (*stated.values(), *ignored):
        if name and name not in header:
            rule = f"columns = {settings.columns!r}: there is no column {name!r}, only {shown}"
            raise DataError(rule, where=where)
    roles = {role: stated.get(role, role) for role in (*stated, *ROLES)}
    if roles["patient"] not in header and "patient" not in stated:
        roles["patient"] = "subject"
    roles = {role: name for role, name in roles.items() if name in header and name not in ignored}
    if stated.get(LABEL):
        return roles

    taken = {*ignored, *(name for role, name in roles.items() if role != LABEL)}
    others = [name for name in header if name not in taken]
    alike = [name for name in others if role_like(name) == LABEL]
    if len(alike) > 1 and any(name.lower() == "x" for name in others):
        alike = [name for name in alike if name.lower() != "y"]  # it is a coordinate
    if len(alike) > 1:
        rule = f"columns {' and '.join(alike)} both look like the label"
        ways = [cure_of(settings, {LABEL: name}) for name in alike]
        raise DataError(rule, where=where, remedy=either(ways))
    if LABEL not in roles:
        unknown = replace(cure_of(settings, {LABEL: "NAME"}), is_example=True)
        remedy: Remedy = ("say which it is: ", unknown)
        if alike:
            meanings = {LABEL: alike[0], **likely_roles(others, roles, settings)}
            is_role = [f"{name} is the {role}" for role, name in meanings.items()]
            supposed = " and ".join(is_role) if len(is_role) > 1 else "that is it"
            remedy = (f"if {supposed}: ", cure_of(settings, meanings))
        raise DataError(f"there is no column {LABEL!r}, only {shown}", where=where, remedy=remedy)
    return roles


def classes_of(labels: Sequence[str]) -> list[str]:
    """Return the classes in order: by value where all are whole numbers, else by name."""
    names = sorted(set(labels))
    return sorted(names, key=int) if all(map(is_whole, names)) else names
