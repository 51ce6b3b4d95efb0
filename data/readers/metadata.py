"""Metadata of a table's rows: subject, site and test split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.readers.folder import SPLITS
from data.readers.splits import Raw, Split, fifth
from data.settings import DataSettings


@dataclass(frozen=True)
class SampleMetadata:
    """The columns of a table that are no inputs, by role; empty where there is no such column."""

    where: str
    """File that an error names."""
    columns: dict[str, str]
    """The columns' names by role."""
    cells: dict[str, Sequence[str]]
    """A cell a row, by role; none is empty."""

    def of(self, role: str) -> Sequence[str]:
        """The cells of a role."""
        return self.cells.get(role, ())

    def error(self, role: str, value: object, rule: str) -> DataError:
        """The error about a cell."""
        return DataError(
            f"column {self.columns[role]}: {str(value)[:80]!r}: {rule}", where=self.where
        )

    @property
    def patients(self) -> str:
        """The role that says who belongs to whom: patient, or subject where there is no such column; empty for none."""
        return next((role for role in ("patient", "subject") if self.of(role)), "")

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names in order."""
        return tuple(sorted(set(self.of("site"))))

    @property
    def notes(self) -> list[str]:
        """The meaning of the columns for sites, patients and tests, one sentence each."""
        sentences = []
        if self.sites:
            column = self.columns["site"]
            sentences.append(f"the {len(self.sites)} sites of column {column} are the clients")
        if self.patients:
            number = len(set(self.of(self.patients)))
            column = self.columns[self.patients]
            sentences.append(f"{number} patients by column {column}, each on one side alone")
        if not self.of("split") and not self.of("fold"):
            who = "no column says who tests: a fifth does, drawn by split-seed and test-fold"
            sentences.append(who)
        return sentences

    def divided(self, everything: Split, settings: DataSettings) -> Raw:
        """The samples on their sides: by the column split, the column fold and `test-fold`, or a fifth for testing.

        Raises:
            DataError: a patient on two sides, a site without samples on one, or a cell that says no side.
        """
        labels_N: NDArray[np.int64] = everything.labels.astype(np.int64)
        patients_N = _numbers(self.of(self.patients)) if self.patients else None
        sites_N = _numbers(self.of("site")) if self.sites else None
        side_N = self._stated(settings)
        if side_N is None:
            tested_N = fifth(labels_N, settings, self.where, sites_N, patients_N)
            side_N = np.where(tested_N, "test", "train")
        self._check(side_N, patients_N)
        everything = everything.of_sites(sites_N, patients_N)
        splits = {
            key: everything.take(np.flatnonzero(side_N == key), "")
            for key in np.unique(side_N).tolist()
        }
        return Raw(splits["train"], splits["test"], splits.get("val"), sites=self.sites)

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
            unknown = next((cell for cell in split if cell.lower() not in SPLITS), None)
            if unknown is not None:
                raise self.error("split", unknown, f"must be one of {', '.join(SPLITS)}")
            return np.array([SPLITS[cell.lower()] for cell in split])
        if fold := self.of("fold"):
            tested_N = np.array(fold) == str(settings.test_fold)
            if not tested_N.any():
                folds = ", ".join(sorted(set(fold)))
                raise self.error(
                    "fold",
                    folds,
                    f"none is test-fold = {settings.test_fold}: --set test-fold={fold[0]}",
                )
            return np.where(tested_N, "test", "train")
        return None

    def _check(self, side_N: NDArray[np.str_], patients_N: NDArray[np.int64] | None) -> None:
        """Refuse a patient on two sides, and a side, or a site's, that is empty."""
        if patients_N is not None:
            first = np.unique(patients_N, return_index=True)[1]
            if (torn := np.flatnonzero(side_N != side_N[first][patients_N])).size:
                row = int(torn[0])
                role = self.patients
                sides = f"{side_N[first][patients_N][row]} and {side_N[row]}"
                raise self.error(
                    role, self.of(role)[row], f"is in {sides}: a patient must be on one side alone"
                )
        sites = np.array(self.of("site") or ["all"] * len(side_N))
        for site in np.unique(sites).tolist():
            missing = {"train", "test"} - set(side_N[sites == site].tolist())
            if missing and self.sites:
                number = int((sites == site).sum())
                raise self.error(
                    "site", site, f"has {number} samples and none to {sorted(missing)[0]}"
                )
            if missing:
                raise DataError(f"no row is for {sorted(missing)[0]}", where=self.where)


def _numbers(cells: Sequence[str]) -> NDArray[np.int64]:
    places: NDArray[Any] = np.unique(np.array(cells), return_inverse=True)[1]
    return places.astype(np.int64)
