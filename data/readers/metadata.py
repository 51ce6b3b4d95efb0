"""Metadata of a table's rows: subject, site and test split."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.readers.rows import all_together
from data.readers.splits import SPLITS, Raw, Split, fifth
from data.settings import DataSettings
from data.text import is_whole


@dataclass(frozen=True)
class SampleMetadata:
    """The columns of a table that are no inputs, by role; empty where there is no such column."""

    where: str
    """File that an error names."""
    columns: dict[str, str]
    """The columns' names by role."""
    cells: dict[str, Sequence[str]]
    """A cell a row, by role; none is empty."""
    left_out: str = ""
    """A sentence about the rows that `missing = drop` left out; empty for none."""
    from_headers: frozenset[str] = frozenset()
    """The roles that DICOM elements have, and no column."""

    def of(self, role: str) -> Sequence[str]:
        """The cells of a role."""
        return self.cells.get(role, ())

    def error(self, role: str, value: object, rule: str) -> DataError:
        """The error about a cell."""
        shown = repr(str(value)[:80])
        return DataError(f"{self.named(role)}: {shown}: {rule}", where=self.where)

    def named(self, role: str) -> str:
        """What has a role, in a sentence: a column of a table, or a DICOM element."""
        what = "DICOM element" if role in self.from_headers else "column"
        return f"{what} {self.columns[role]}"

    @property
    def patients(self) -> str:
        """The role that names each row's patient: patient, or subject where there is no such column; empty for none."""
        if self.of("patient"):
            return "patient"
        return "subject" if self.of("subject") else ""

    @property
    def sites_and_labels(self) -> list[tuple[str, str]]:
        """Each row's site and label: groups over which a sample of the rows is spread."""
        labels = self.of("label")
        return list(zip(self.of("site") or labels, labels, strict=True))

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names in order."""
        return tuple(sorted(set(self.of("site"))))

    @property
    def notes(self) -> list[str]:
        """The meaning of the columns for sites, patients and tests, one sentence each."""
        sentences = [self.left_out] if self.left_out else []
        if self.sites:
            what = self.named("site")
            sentences.append(f"the {len(self.sites)} sites of {what} are the clients")
        if self.patients:
            number = len(set(self.of(self.patients)))
            what = self.named(self.patients)
            sentences.append(f"{number} patients by {what}, each on one side alone")
        if not self.of("split") and not self.of("fold"):
            what = "folder" if "label" in self.from_headers else "column"
            who = f"no {what} says who tests: a fifth does, drawn by split-seed and test-fold"
            sentences.append(who)
        return sentences

    def divided(self, everything: Split, settings: DataSettings) -> Raw:
        """The samples on their sides: by the column split, the column fold and `test-fold`, or a fifth for testing.

        Raises:
            DataError: a patient on two sides, a site without samples on one, or a cell that says no side.
        """
        patients_N = _numbers(self.of(self.patients)) if self.patients else None
        sites_N = _numbers(self.of("site")) if self.sites else None
        side_N = self._stated(settings)
        if side_N is None:
            labels_N = everything.labels.astype(np.int64)
            tested_N = fifth(labels_N, settings, self.where, sites_N, patients_N)
            side_N = np.where(tested_N, "test", "train")
        self._check(side_N, patients_N)

        everything = everything.of_sites(sites_N, patients_N)
        splits = {}
        for key in np.unique(side_N).tolist():
            rows = np.flatnonzero(side_N == key)
            splits[key] = everything.take(rows, "")
        return Raw(
            splits["train"],
            splits["test"],
            splits.get("val"),
            notes=(self.left_out,) if self.left_out else (),
            sites=self.sites,
        )

    def _stated(self, settings: DataSettings) -> NDArray[np.str_] | None:
        """(N,): train, test or val by the columns; None where none says it."""
        if self.of("split") and self.of("fold"):
            columns = f"{self.columns['split']} and {self.columns['fold']}"
            without_fold = SetOption("columns", "fold=")
            without_split = SetOption("columns", "split=")
            raise DataError(
                f"columns {columns} both say who tests",
                where=self.where,
                remedy=(without_fold, " or ", without_split, " leaves one out"),
            )
        if split := self.of("split"):
            sides = []
            for cell in split:
                side = SPLITS.get(cell.lower())
                if side is None:
                    raise self.error("split", cell, f"must be one of {', '.join(SPLITS)}")
                sides.append(side)
            missing = sorted({"train", "test"}.difference(sides))
            if missing:
                present = ", ".join(dict.fromkeys(split))
                rule = f"there are samples for {present}, and none for {missing[0]}"
                raise DataError(rule, where=self.where, remedy=all_together(settings))
            return np.array(sides)
        if fold := self.of("fold"):
            tested_N = np.array(fold) == str(settings.test_fold)
            if not tested_N.any():
                folds = ", ".join(sorted(set(fold)))
                error = self.error("fold", folds, f"none is test-fold = {settings.test_fold}")
                if is_whole(fold[0]):
                    error.remedy = (SetOption("test-fold", fold[0]),)
                raise error
            return np.where(tested_N, "test", "train")
        return None

    def _check(self, side_N: NDArray[np.str_], patients_N: NDArray[np.int64] | None) -> None:
        """Refuse a patient on two sides, and a side, or a site's, that is empty."""
        if patients_N is not None:
            _, first_row_P = np.unique(patients_N, return_index=True)
            side_P = side_N[first_row_P]
            expected_N = side_P[patients_N]
            torn = np.flatnonzero(side_N != expected_N)
            if torn.size:
                row = int(torn[0])
                patient = self.of(self.patients)[row]
                sides = f"{expected_N[row]} and {side_N[row]}"
                rule = f"is in {sides}: a patient must be on one side alone"
                raise self.error(self.patients, patient, rule)

        site_N = np.array(self.of("site") or ["all"] * len(side_N))
        for site in np.unique(site_N).tolist():
            sides_there = side_N[site_N == site].tolist()
            missing = sorted({"train", "test"}.difference(sides_there))
            if missing and self.sites:
                rule = f"has {len(sides_there)} samples and none to {missing[0]}"
                error = self.error("site", site, rule)
                if "site" in self.from_headers:
                    error.remedy = (SetOption("columns", "site="), " makes no sites of them")
                raise error
            if missing:
                raise DataError(f"no row is for {missing[0]}", where=self.where)


def left_out(dropped: Sequence[str]) -> str:
    """The sentence about rows that were left out, by what was missing in each; empty for none."""
    if not dropped:
        return ""
    rows = "1 row is" if len(dropped) == 1 else f"{len(dropped)} rows are"
    return f"{rows} left out by missing = drop, first: {dropped[0]}"


def _numbers(cells: Sequence[str]) -> NDArray[np.int64]:
    """(N,): the number of each cell's text in the sorted texts."""
    _, numbers = np.unique(np.array(cells), return_inverse=True)
    return np.asarray(numbers, np.int64)
