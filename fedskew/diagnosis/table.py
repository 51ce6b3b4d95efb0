"""Tables of sites, as CSV: the samples of each class, or the moments of each feature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import DataError
from data.readers.rows import decimal_mark, number_in, read_table

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
CORNER = {"site", "client", "hospital"}
"""What stands above the sites' names: then classes may be called by numbers."""
MOST = 10**12
"""Samples in a cell; sums of them stay far within 64 bits."""


class TableError(DataError):
    """A table without two sites or without two classes, which has no skew."""


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
    rows_K = counts_KC.sum(1) > 0
    columns_C = counts_KC.sum(0) > 0
    for what, names, mask in (("site", sites, rows_K), ("class", classes, columns_C)):
        filled = chosen(names, mask)
        if len(filled) < 2:
            number = "one" if filled else "no"
            listed = ", ".join(filled) or "none"
            rule = f"a {what} with samples alone ({listed}); a skew is between two or more"
            raise TableError(f"{number} {rule}", where=where)
    if subjects is not None:
        # Every subject has a sample, so that none is in an empty row.
        new_row_K = np.cumsum(rows_K) - 1
        new_site_S = new_row_K[subjects.site_S]
        subjects = Subjects(new_site_S, subjects.counts_SC[:, columns_C])
    return SiteTable(
        sites=chosen(sites, rows_K),
        classes=chosen(classes, columns_C),
        counts_KC=counts_KC[rows_K][:, columns_C],
        without=chosen(sites, ~rows_K) + chosen(classes, ~columns_C),
        subjects=subjects,
    )


def chosen(names: Sequence[str], mask: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the names that the mask keeps."""
    return tuple(name for name, is_kept in zip(names, mask, strict=True) if is_kept)


def read_counts(path: Path) -> SiteTable:
    """Return a table of counts: a header of the classes' names, then a site's name and its samples of each class a row.

    Raises:
        DataError: the file is no such table.
    """
    classes, numbers = read_numbers(path)
    for site, values in numbers.items():
        for name, value in zip(classes, values, strict=True):
            if not (0 <= value <= MOST and value.is_integer()):
                rule = f"{value:g}: a count is a whole number from 0 to 10^12"
                raise DataError(f"row {site!r}, column {name!r}: {rule}", where=str(path))
    counts_KC = np.array(list(numbers.values()), np.int64)
    return site_table(str(path), list(numbers), classes, counts_KC)


def read_moments(path: Path, sites: Sequence[str]) -> Moments:
    """Return the moments of the `sites`, in their order: columns `mean` and `std`, or `mean NAME` and `std NAME`.

    Args:
        path: The CSV file.
        sites: The names of the table's sites.

    Raises:
        DataError: the file is no such table, or not of these sites.
    """
    columns, numbers = read_numbers(path)
    words = [name.partition(" ") for name in columns]
    features = tuple(dict.fromkeys(feature.strip() for _, _, feature in words))
    means = [f"mean {feature}".strip() for feature in features]
    deviations = [f"std {feature}".strip() for feature in features]
    if {*columns} != {*means, *deviations}:
        rule = "must be `mean` and `std`, or pairs `mean NAME`, `std NAME`"
        raise DataError(f"columns {', '.join(columns)}: {rule}", where=str(path))
    for site in sorted(numbers.keys() ^ set(sites)):
        found = "has no row for" if site in sites else "has a row for what is none of the sites:"
        raise DataError(f"{found} site {site!r}; they are those of the counts", where=str(path))

    numbers_KF = np.array([numbers[site] for site in sites])
    means_KF, deviations_KF = (
        numbers_KF[:, [columns.index(name) for name in names]] for names in (means, deviations)
    )
    if (deviations_KF <= 0).any():
        raise DataError("a standard deviation must be greater than 0", where=str(path))
    return Moments(features, means_KF, deviations_KF)


def read_numbers(path: Path) -> tuple[list[str], dict[str, list[float]]]:
    """Return the names of a table's columns, but of the first one, and each site's numbers. Raises DataError."""
    numbers: dict[str, list[float]] = {}
    table = read_table(path)
    corner, *columns = table.header
    has_words = any(letter.isalpha() for letter in "".join(columns))
    if not columns or not (has_words or corner.lower() in CORNER):
        rule = "must be `site` and the columns' names, separated by commas, semicolons or tabs"
        raise DataError(f"the header {','.join(table.header)[:80]!r} {rule}", where=str(path))
    mark = decimal_mark(table, columns)
    for line, row in zip(table.lines, zip(*table.columns.values(), strict=True), strict=True):
        site, *cells = row
        if not any(row):
            continue
        if not site or not site.isprintable() or site in numbers:
            rule = "every site must have a printable name of its own"
            raise DataError(f"row {line}: site {site!r}: {rule}", where=str(path))
        numbers[site] = []
        for name, cell in zip(columns, cells, strict=True):
            number = number_in(cell, mark)
            if number is None or math.isnan(number):
                rule = f"column {name!r}: {cell!r} is no finite number"
                raise DataError(f"row {site!r}, {rule}", where=str(path))
            numbers[site].append(number)
    if not numbers:
        raise DataError("has no row of a site below its header", where=str(path))
    return columns, numbers
