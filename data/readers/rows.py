"""A table in a CSV file: its rows, and the meaning of its columns."""

import csv
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, either
from data.readers.file_type import HEAD, truly
from data.settings import IGNORE, ROLES, DataSettings
from data.text import finite_number, is_whole, name_list, printable, said

LABEL, SUBJECT = "label", "subject"
LIKE_LABELS = (
    "label",
    "labels",
    "class",
    "classes",
    "target",
    "targets",
    "diagnosis",
    "category",
    "y",
    "ground_truth",
)
"""What a column of labels may be called, in small letters."""
LIKE_ROLES = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "img",
             "image_path", "image_file", "image_name", "picture", "scan"),
    "site": ("site", "sites", "site_id", "hospital", "hospital_id", "center", "centre", "center_id",
             "clinic", "institution", "institute"),
    "patient": ("patient", "patients", "patient_id", "patientid", "pid", "subject", "subject_id",
                "subjectid", "person", "person_id"),
}  # fmt: skip
"""What columns of other roles may be called, in small letters and with _ for spaces and hyphens."""
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
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""What may separate the columns; the first one is usual."""
STATED_SEPARATOR = re.compile(r"sep=([,;\t])")
"""The line by which Excel may say it, before the header."""
MOST_EMPTY_LINES = 20
"""Lines before the header that may be empty."""
CURE = "save it as UTF-8 (in Excel: CSV UTF-8)"
MIB = 2**20
Rows = Iterator[tuple[int, list[str]]]
"""Each row's line number and cells; the first one names the columns."""


@dataclass(frozen=True)
class Writing:
    """The text format of a table."""

    encoding: str
    separator: str
    stated: bool = False
    """Whether the first line says the separator, and is no header."""

    @property
    def notes(self) -> list[str]:
        """Notes for the user, one sentence each."""
        sentences = []
        if self.encoding.startswith("utf-16"):
            sentences.append("the text is read as UTF-16")
        if self.separator != ",":
            what = f"{SEPARATORS[self.separator]} separate the columns"
            sentences.append(f"{what}, and a comma in a number is its decimal mark")
        return sentences


def writing_of(path: Path, known: Collection[str] = ()) -> Writing:
    """Return how a table is written, by its first bytes and its first line.

    UTF-8 and UTF-16 are read, the latter also without a byte order mark. Commas, semicolons (as Excel writes them where
    the comma is the decimal mark) or tabs separate the columns. Where the header holds several of these, the one by
    which a column gets a name of `known`, in small letters; else the comma.

    Raises:
        OSError: the file cannot be opened.
        UnicodeError: the first line is no text of that encoding.
    """
    with path.open("rb") as file:
        encoding = _encoding_of(file.read(HEAD))
    header = ""
    with path.open(encoding=encoding, newline="") as text:
        for _ in range(MOST_EMPTY_LINES):
            header = text.readline(HEAD).strip("\r\n")
            if header:
                break
    if stated := STATED_SEPARATOR.fullmatch(header):
        return Writing(encoding, stated[1], stated=True)

    unquoted = re.sub(r'"[^"]*"', "", header)  # a name in quotes may hold any of them
    candidates = [separator for separator in SEPARATORS if separator in unquoted]
    if not candidates:
        return Writing(encoding, ",")
    if len(candidates) > 1:
        for separator in candidates:
            names = next(csv.reader([header], delimiter=separator), [])
            if any(name.strip().lower() in known for name in names):
                return Writing(encoding, separator)
    return Writing(encoding, candidates[0])


def _encoding_of(head: bytes) -> str:
    """Return the encoding of a text that begins so: UTF-16 by its byte order mark or its zeros, else UTF-8."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-8"  # the mark of UTF-32, which is refused as no UTF-8
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # Without a mark: of a Latin letter in UTF-16 one of the two bytes is zero.
    zeros = [byte == 0 for byte in head[:4]]
    if zeros == [False, True, False, True]:
        return "utf-16-le"
    if zeros == [True, False, True, False]:
        return "utf-16-be"
    return "utf-8-sig"  # spreadsheets write a mark before the first name


def rows_in(path: Path, writing: Writing) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row that is not empty.

    Raises:
        OSError, UnicodeError, csv.Error: the file cannot be opened, or is no such text.
    """
    with path.open(encoding=writing.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=writing.separator, strict=True)
        if writing.stated:
            next(reader)
        for row in reader:
            if row:
                yield reader.line_num, row


def named(settings: DataSettings) -> set[str]:
    """Return the names of columns that `columns` states, in small letters."""
    stated = (*settings.column_names.values(), *settings.ignored_columns)
    return {name.lower() for name in stated}


@contextmanager
def opened(
    path: Path, settings: DataSettings, known: Collection[str] = LIKE_LABELS
) -> Iterator[Rows]:
    """The rows of a CSV file in UTF-8 or UTF-16. Raises DataError, also for what is read inside.

    `known` are names of columns, in small letters, that help to tell what separates them (`writing_of`).
    """
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    most = settings.max_unpacked_mib
    if path.stat().st_size > most * MIB:
        raise DataError(f"is larger than max-unpacked-mib = {most} allows", where=str(path))
    try:
        writing = writing_of(path, {*known, *named(settings)})
        yield rows_in(path, writing)
    except (csv.Error, UnicodeError) as error:
        kind = truly(path)
        reason = said(error)
        if kind and not kind.startswith("text"):
            reason += f"; it is {kind}"
        elif isinstance(error, UnicodeError):
            reason += f"; {CURE}"
        raise DataError(
            f"cannot be read as a CSV file in UTF-8: {reason}", where=str(path)
        ) from error


def header_of(path: Path, rows: Rows) -> list[str]:
    """The columns' names. Raises DataError where one has none, or another's."""
    _, first_row = next(rows, (0, []))
    header = [name.strip() for name in first_row]
    if not header:
        raise DataError("is empty; its first row must name the columns", where=str(path))
    for name in header:
        if not name or header.count(name) > 1:
            raise DataError(
                f"column {name[:80]!r}: every column must have a name of its own", where=str(path)
            )
    return header


def check_length(path: Path, line: int, row: Sequence[str], header: Sequence[str]) -> None:
    """Raise DataError for a row that has not one cell per column."""
    if len(row) != len(header):
        rule = f"has {len(row)} cells, and there are {len(header)} columns"
        raise DataError(f"row {line}: {rule}", where=str(path))


def role_like(name: str) -> str:
    """Return the role that a column of that name probably has, beside label; empty for none."""
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    for role, names in LIKE_ROLES.items():
        if plain in names:
            return role
    return ""


def is_missing(cell: str, names: Collection[str] = ()) -> bool:
    """Return whether a cell, which is none of `names`, is blank or says that there is no value."""
    # Blank is also what prints nothing, such as a zero-width space.
    blank = not any(letter.isprintable() and not letter.isspace() for letter in cell)
    return blank or (cell.strip().lower() in MISSING and cell.strip() not in names)


def names_of_classes(settings: DataSettings) -> tuple[str, ...]:
    """Return the classes that the setting lists; empty where it lists none yet. Raises SettingError."""
    return settings.class_names if settings.classes.strip() else ()


def missing_in(
    where: str,
    row: str,
    cells: Mapping[str, str],
    columns: Mapping[str, str],
    class_names: Collection[str],
    settings: DataSettings,
) -> str:
    """Return what is missing in a row that `missing = drop` leaves out; empty where nothing is.

    Args:
        where: The file, for an error.
        row: What an error calls the row.
        cells: The row's cells by role. A label that is one of `class_names` is not missing.
        columns: The columns' names by role.
        class_names: The classes, as far as they are known.
        settings: Of these, `missing` counts.

    Raises:
        DataError: something is missing, and `missing` is refuse.
    """
    for role, cell in cells.items():
        if not is_missing(cell, class_names if role == LABEL else ()):
            continue
        what = f"{cell!r} is a missing value" if cell else "is empty"
        found = f"{row}, column {columns[role]}: {what}"
        if settings.missing == "drop":
            return found
        remedy = " leaves out such rows"
        if role == LABEL and cell:
            remedy += "; if it is the name of a class, list it in classes"
        raise DataError(found, where=where, remedy=(DROP_ROWS, remedy))
    return ""


def gap_of(row: str, column: str, cell: str) -> str:
    """Return the words for a missing value in a column of inputs."""
    what = f"{cell.strip()!r} is a missing value" if cell.strip() else "is empty"
    return f"{row}, column {column}: {what}"


def remedy_for_gap(settings: DataSettings, column: str = "") -> Remedy:
    """Return what to do about a missing value in the inputs; `column` is one that can be left out."""
    remedy: list[str | SetOption] = [
        DROP_ROWS,
        " leaves out such rows, ",
        FILL_CELLS,
        " fills them with the median of the column's training rows",
    ]
    if column:
        remedy += [", ", cure_of(settings, {}, [column]), " leaves out the column"]
    return tuple(remedy)


def check_labels(
    where: str, column: str, labels: Sequence[str], class_names: Collection[str]
) -> None:
    """Refuse labels that are no classes: lists, and numbers of a continuous scale. What `class_names` lists is one.

    Raises:
        DataError: one of these.
    """
    distinct = sorted(set(labels).difference(class_names))
    for label in distinct:
        if label.startswith("[") and label.endswith("]"):
            rule = "is a list: a row must have one label (several labels of one row cannot be trained on)"
            raise DataError(f"column {column}: {label[:80]!r}: {rule}", where=where)
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
        raise DataError(f"column {column} {rule}", where=where, remedy=remedy)


def cure_of(
    settings: DataSettings, roles: Mapping[str, str], ignore: Sequence[str] = ()
) -> SetOption:
    """Return the setting that adds roles, each with its column, and columns to leave out to what `columns` states."""
    return SetOption("columns", columns_text(settings, roles, ignore))


def columns_text(
    settings: DataSettings, roles: Mapping[str, str] | None = None, ignore: Sequence[str] = ()
) -> str:
    """Return what `columns` states, with further roles and further columns to leave out."""
    names = {**settings.column_names, **(roles or {})}
    parts = [f"{role}={name}" for role, name in names.items()]
    given = [name for name in settings.ignored_columns if name not in (roles or {}).values()]
    for place, name in enumerate([*given, *ignore]):
        # The first one needs the word, and so does a name that would read as ROLE=NAME.
        parts.append(f"{IGNORE}={name}" if not place or "=" in name else name)
    return name_list(parts)


def all_together(settings: DataSettings) -> Remedy:
    """Return what to do where the data's own splits do not say who tests."""
    pooled = cure_of(settings, {"split": ""})
    return pooled, " puts all together, and a fifth is for testing"


def like_labels(names: Sequence[str]) -> list[str]:
    """Return the columns' names that look like a label's."""
    alike = [name for name in names if name.lower() in LIKE_LABELS]
    small_letters = {name.lower() for name in names}
    if len(alike) > 1 and "x" in small_letters:
        # Beside x and another label y is a coordinate.
        return [name for name in alike if name.lower() != "y"]
    return alike


def roles_of(path: Path, header: Sequence[str], settings: DataSettings) -> dict[str, str]:
    """The roles of columns: by `columns`, then by the roles' own names.

    A table with a column `path` is one of images, any other one of numbers.

    Raises:
        DataError: a column that is not there, or two that may be the label.
    """
    stated = settings.column_names
    shown = printable(name_list(header, ", ")[:200])
    for name in (*stated.values(), *settings.ignored_columns):
        if name and name not in header:
            raise DataError(
                f"columns = {settings.columns!r}: there is no column {name!r}, only {shown}",
                where=str(path),
            )
    roles = {}
    for role in (*stated, *ROLES):
        name = stated.get(role, role)
        if name in header and name not in settings.ignored_columns:
            roles[role] = name
    if LABEL in stated and roles.get(LABEL):
        return roles

    taken = {name for role, name in roles.items() if role != LABEL}
    taken.update(settings.ignored_columns)
    alike = like_labels([name for name in header if name not in taken])
    ways = [cure_of(settings, {LABEL: name}) for name in alike]
    if len(alike) > 1:
        raise DataError(
            f"columns {' and '.join(alike)} both look like the label",
            where=str(path),
            remedy=either(ways),
        )
    if LABEL not in roles:
        unknown = replace(cure_of(settings, {LABEL: "NAME"}), is_example=True)
        way = ways[0] if ways else unknown
        advice = "if that is it: " if ways else "say which it is: "
        rule = f"there is no column {LABEL!r}, only {shown}"
        raise DataError(rule, where=str(path), remedy=(advice, way))
    return roles


def classes_of(labels: Sequence[str]) -> list[str]:
    """The classes in order: by value where all are whole numbers, else by name."""
    names = sorted(set(labels))
    return sorted(names, key=int) if all(map(is_whole, names)) else names


def numbered_labels(
    path: Path,
    labels: Sequence[str],
    class_names: tuple[str, ...],
    column: str,
) -> list[int]:
    """The labels' places in `class_names`. Raises DataError for one that is not there."""
    number = {name: label for label, name in enumerate(class_names)}
    for label in labels:
        if label not in number:
            rule = f"must be one of classes = {printable(name_list(class_names, ', '))}"
            raise DataError(f"column {column}: {label[:80]!r}: {rule}", where=str(path))
    return [number[label] for label in labels]
