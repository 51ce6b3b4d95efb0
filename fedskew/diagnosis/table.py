"""Tables of sites, as CSV: the samples of each class, or the moments of each feature."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.readers.rows import CURE, rows_in, writing_of
from data.text import is_whole

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf|infinity)\s*",
    re.IGNORECASE | re.ASCII,  # `\d` alone is the digits of all scripts
)
LABELS = {"", "site", "client", "hospital"}
"""What stands above the sites' names: then classes may be called by any numbers."""
MOST = 10**12
"""Samples in a cell; sums of them stay far within 64 bits."""


class TableError(DataError):
    """A table that cannot be used; the message names the file, the row, the column, the value and the rule."""


@dataclass(frozen=True, eq=False)
class Subjects:
    """Whose the samples of a table are.

    The samples of one patient are not independent of each other, so the patient is the unit that a test of chance
    counts. A subject whose samples are at two sites is a subject of each.
    """

    site_S: Counts
    """(subjects,): the row of the table that each subject's samples are in."""
    counts_SC: Counts
    """(subjects, classes): each subject's samples of each class; their sum over a site is the table's row."""


@dataclass(frozen=True, eq=False)
class SiteTable:
    """Who holds how many samples of which class."""

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    counts_KC: Counts
    """(sites, classes); every site has a sample, and every class."""
    without: tuple[str, ...] = ()
    """Classes and sites without a sample, which are left out."""
    subjects: Subjects | None = None
    """Whose the samples are; None where that is not known, and every sample then counts as a subject."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and standard deviation of each feature at each site."""

    features: tuple[str, ...]
    means_KF: Floats
    deviations_KF: Floats
    kurtosis_F: Floats | None = None
    """Fourth central moment over the squared variance, within sites; None where it is not known: then 3, as of a normal
    feature. Standard deviations of heavy-tailed features differ more by chance."""


def site_table(
    where: str,
    sites: Sequence[str],
    classes: Sequence[str],
    counts_KC: Counts,
    subjects: Subjects | None = None,
) -> SiteTable:
    """Return the table without empty rows and columns.

    Args:
        where: What an error calls the table: a file, or the settings.
        sites: The names of the rows.
        classes: The names of the columns.
        counts_KC: Samples of each class at each site.
        subjects: Whose the samples are, where that is known.

    Raises:
        TableError: fewer than two sites, or than two classes, hold samples.
    """
    rows = counts_KC.sum(1) > 0
    columns = counts_KC.sum(0) > 0
    for what, names, mask in (("site", sites, rows), ("class", classes, columns)):
        filled = chosen(names, mask)
        if len(filled) < 2:
            number = "one" if filled else "no"
            listed = ", ".join(filled) or "none"
            rule = f"a {what} with samples alone ({listed}); a skew is between two or more"
            raise TableError(f"{number} {rule}", where=where)
    if subjects is not None:
        # Every subject has a sample, so that none is in an empty row.
        new_row_K = np.cumsum(rows) - 1
        new_site_S = new_row_K[subjects.site_S]
        subjects = Subjects(new_site_S, subjects.counts_SC[:, columns])
    return SiteTable(
        sites=chosen(sites, rows),
        classes=chosen(classes, columns),
        counts_KC=counts_KC[rows][:, columns],
        without=chosen(sites, ~rows) + chosen(classes, ~columns),
        subjects=subjects,
    )


def table_of_samples(where: str, samples: Mapping[str, Any] | None) -> SiteTable | None:
    """Return the table in `samples` of a run's settings.json, where classes have numbers; None where it has none.

    Raises:
        TableError: there is one site or one class alone, or the subjects are of other ones.
    """
    if not samples:
        return None
    counts_KC = np.array(samples["train"], np.int64)
    subjects = None
    if samples.get("subjects"):
        subjects_KC = np.array(samples["subjects"], np.int64)
        if subjects_KC.shape != counts_KC.shape:
            raise TableError("subjects are of other clients or classes than samples", where=where)
        subjects = average_subjects(counts_KC, subjects_KC)
    classes = [str(label) for label in range(counts_KC.shape[1])]
    return site_table(where, samples["clients"], classes, counts_KC, subjects)


def average_subjects(counts_KC: Counts, subjects_KC: Counts) -> Subjects:
    """Return subjects who share the samples of each class at each site evenly.

    A run's settings.json has their numbers, not their samples. A subject with samples of several classes becomes
    several subjects of one class, whose samples are all alike, which is the careful choice.

    Args:
        counts_KC: Samples of each class at each site.
        subjects_KC: The subjects who have them: 1 to as many as the samples where there are samples.
    """
    classes = counts_KC.shape[1]
    sites: list[Counts] = []
    counts: list[Counts] = []
    for (site, label), samples in np.ndenumerate(counts_KC):
        if samples == 0:
            continue
        recorded = max(1, int(subjects_KC[site, label]))
        number = min(int(samples), recorded)
        each, rest = divmod(int(samples), number)
        counts_SC = np.zeros((number, classes), np.int64)
        counts_SC[:, label] = each
        counts_SC[:rest, label] += 1  # the first subjects have one more
        sites.append(np.full(number, site, np.int64))
        counts.append(counts_SC)
    return Subjects(np.concatenate(sites), np.concatenate(counts))


def chosen(names: Sequence[str], mask: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the names that the mask keeps."""
    pairs = zip(names, mask, strict=True)
    return tuple(name for name, is_kept in pairs if is_kept)


def read_counts(path: Path) -> SiteTable:
    """Return a table of counts: a header of the classes' names, then a site's name and its samples of each class a row.

    Raises:
        TableError: the file is no such table.
    """
    header, rows = read(path)
    classes = header[1:]
    sites, counts = [], []
    for site, *cells in rows:
        named_cells = zip(classes, cells, strict=True)
        sites.append(site)
        counts.append([count(path, site, name, cell) for name, cell in named_cells])
    counts_KC = np.array(counts, np.int64)
    return site_table(str(path), sites, classes, counts_KC)


def read_moments(path: Path, sites: Sequence[str], own_names: Sequence[str] = ()) -> Moments:
    """Return the moments of the `sites`, in their order: columns `mean` and `std`, or `mean NAME` and `std NAME`.

    Args:
        path: The CSV file.
        sites: The names of the table's sites.
        own_names: What the sites are called elsewhere, in the same order; the file may call all of them so.

    Raises:
        TableError: the file is no such table, or not of these sites.
    """
    header, rows = read(path)
    features = feature_names(path, header[1:])
    by_site = {row[0]: row for row in rows}
    if own_names and set(by_site) != set(sites):
        sites = own_names
    odd = sorted(set(by_site) ^ set(sites))
    if odd:
        missing = "has a row for what is no site with samples:"
        if odd[0] in sites:
            missing = "has no row for site"
        raise TableError(
            f"{missing} {odd[0]!r}; the sites are those of the counts", where=str(path)
        )

    means, deviations = [], []
    for site in sites:
        numbers = moments_of_row(path, header, by_site[site])
        means.append([numbers[f"mean {feature}".strip()] for feature in features])
        deviations.append([numbers[f"std {feature}".strip()] for feature in features])
    means_KF = np.array(means, float)
    deviations_KF = np.array(deviations, float)
    return Moments(tuple(features), means_KF, deviations_KF)


def moments_of_row(path: Path, header: Sequence[str], row: Sequence[str]) -> dict[str, float]:
    """Return a site's numbers by column. Raises TableError for one that is not finite, or no standard deviation."""
    site = row[0]
    numbers = {}
    for name, cell in zip(header[1:], row[1:], strict=True):
        numbers[name] = finite(path, site, name, cell)
    for name, number in numbers.items():
        if name.startswith("std") and number <= 0:
            column = f"row {site!r}, column {name!r}"
            raise TableError(f"{column}: {number:g}: must be greater than 0", where=str(path))
    return numbers


def feature_names(path: Path, columns: Sequence[str]) -> list[str]:
    """Return the features of columns `mean NAME` and `std NAME`; of `mean` and `std` alone the empty name."""
    features, expected = [], []
    for column in columns:
        statistic, *names = column.split(maxsplit=1)
        if statistic == "mean":
            feature = " ".join(names)
            features.append(feature)
            expected += [f"mean {feature}".strip(), f"std {feature}".strip()]
    if not features or sorted(columns) != sorted(expected):
        rule = "must be `mean` and `std`, or pairs `mean NAME`, `std NAME`"
        raise TableError(f"columns {', '.join(columns)}: {rule}", where=str(path))
    return features


def read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV file, whose cells are stripped. Raises TableError."""
    lines = []
    try:
        writing = writing_of(path, LABELS - {""})
        for _, cells in rows_in(path, writing):
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                lines.append(stripped)
    except UnicodeError as error:
        raise TableError(f"cannot be read: {error}; {CURE}", where=str(path)) from None
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"cannot be read: {reason}", where=str(path)) from None
    if len(lines) < 2:
        rule = "must be a header and a row for each site"
        raise TableError(f"{len(lines)} lines: {rule}", where=str(path))
    header = lines[0]
    rows = lines[1:]
    check_header(path, header)
    if writing.separator != ",":  # then a comma can be a decimal mark
        refuse_two_marks(path, rows)
        rows = [with_points(row) for row in rows]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            width = f"has {len(row)} columns, the header {len(header)}"
            raise TableError(f"row {number} ({row[0]!r}) {width}", where=str(path))
    check_names(path, "column", header[1:])
    check_names(path, "site", [row[0] for row in rows])
    return header, rows


def check_header(path: Path, header: Sequence[str]) -> None:
    """Raise TableError for a single column, and for a row of data where the header should be."""
    if len(header) < 2:
        raise TableError(
            f"the header {header[0]!r} is a single column; columns are separated by commas, "
            "semicolons or tabs",
            where=str(path),
        )
    if looks_like_data(header):
        rule = "looks like data; it must be `site` and the classes' names"
        raise TableError(f"the header {','.join(header)[:80]!r} {rule}", where=str(path))


def with_points(row: Sequence[str]) -> list[str]:
    """Return a row whose numbers, all cells but the first, have decimal points."""
    name, *numbers = row
    return [name, *(number.replace(",", ".", 1) for number in numbers)]


def check_names(path: Path, what: str, names: Sequence[str]) -> None:
    """Raise TableError unless all names are printable and different."""
    for name in names:
        if not name or not name.isprintable():
            rule = "must have a name, of printable characters"
            raise TableError(f"{what} {name!r}: {rule}", where=str(path))
        times = names.count(name)
        if times > 1:
            rule = f"stands there {times} times"
            raise TableError(f"{what} {name!r}: {rule}", where=str(path))


def refuse_two_marks(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Raise TableError where some numbers have decimal commas and others points: one of them may mark thousands."""
    numbers: list[str] = []
    for row in rows:
        numbers += row[1:]
    with_comma = [number for number in numbers if "," in number]
    with_point = [number for number in numbers if "." in number]
    if with_comma and with_point:
        rule = "the decimal mark must be a point in every row, or a comma in every row"
        raise TableError(f"{with_comma[0]!r} and {with_point[0]!r}: {rule}", where=str(path))


def looks_like_data(header: Sequence[str]) -> bool:
    """Return whether all columns are called by numbers that do not count up by one, below no word for a site."""
    corner, *names = header
    if corner.lower() in LABELS:
        return False
    if not all(NUMBER.fullmatch(name) for name in names):
        return False
    if not all(map(is_whole, names)):
        return True
    # 0, 1, 2, ... are classes without other names.
    return any(int(right) != int(left) + 1 for left, right in pairwise(names))


def count(path: Path, site: str, column: str, cell: str) -> int:
    """Return a count. Raises TableError for what is no integer from 0 to MOST."""
    value = finite(path, site, column, cell)
    if value < 0:
        wrong = "negative"
    elif value != int(value):
        wrong = "fractional"
    elif value > MOST:
        wrong = "too large"
    else:
        return int(value)
    where = f"{path}: row {site!r}, column {column!r}"
    raise TableError(f"{cell} is {wrong}: a count is a whole number from 0 to 10^12", where=where)


def finite(path: Path, site: str, column: str, cell: str) -> float:
    """Return a number. Raises TableError for what is none, NaN or infinite."""
    where = f"{path}: row {site!r}, column {column!r}"
    if not NUMBER.fullmatch(cell):
        raise TableError(f"{cell!r} is no number", where=where)
    value = float(cell)
    if not math.isfinite(value):
        raise TableError(f"{cell} is not finite", where=where)
    return value
