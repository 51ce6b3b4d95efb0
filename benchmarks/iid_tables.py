"""How many of 1,000 tables without any skew are called skewed, for several sizes: `python benchmarks/iid_tables.py`."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedskew.diagnosis.rules import diagnose
from fedskew.diagnosis.table import Counts, Subjects, site_table

TABLES = 1000
SHAPES = (
    (10, 10, 1437),
    (10, 10, 100),
    (3, 2, 60),
    (5, 10, 60_000),
    (20, 100, 20_000),
    (100, 10, 5000),
)
"""Sites, classes, samples."""
HOSPITALS = (
    (3, 20, 8, 2),
    (3, 20, 8, 5),
    (10, 30, 5, 4),
    (2, 8, 20, 2),
)
"""Sites, patients of each, about how many samples of each patient, classes."""


def main() -> None:
    """Print the share that is called skewed, by name, and the seconds."""
    generator = np.random.default_rng(0)
    for sites, classes, samples in SHAPES:
        cells = sites * classes
        even = np.full(cells, 1 / cells)
        tables = []
        for _ in range(TABLES):
            counts = generator.multinomial(samples, even)
            tables.append((counts.reshape(sites, classes), None))
        report(f"{sites} x {classes}, {samples} samples", tables)
    for sites, patients, rows, classes in HOSPITALS:
        drawn = [hospitals(generator, sites, patients, rows, classes) for _ in range(TABLES)]
        name = f"{sites} x {patients} patients x {rows} samples, {classes} classes"
        report(f"{name}, by patients", drawn)
        report(f"{name}, by samples", [(counts_KC, None) for counts_KC, _ in drawn])


def hospitals(
    generator: np.random.Generator,
    sites: int,
    patients: int,
    rows: int,
    classes: int,
) -> tuple[Counts, Subjects]:
    """Return equal sites whose patients have one class each, and one sample or more: 1 + Poisson(rows - 1)."""
    site_S = np.repeat(np.arange(sites), patients)
    subjects = len(site_S)
    label_S = generator.integers(classes, size=subjects)
    rows_S = 1 + generator.poisson(rows - 1, subjects)
    counts_SC = np.zeros((subjects, classes), np.int64)
    counts_SC[np.arange(subjects), label_S] = rows_S
    counts_KC = np.zeros((sites, classes), np.int64)
    np.add.at(counts_KC, site_S, counts_SC)
    return counts_KC, Subjects(site_S, counts_SC)


def report(name: str, tables: Sequence[tuple[Counts, Subjects | None]]) -> None:
    """Print how many of the tables are called skewed."""
    began = time.perf_counter()
    called = Counter[str]()
    for counts_KC, subjects in tables:
        sites, classes = (list(map(str, range(number))) for number in counts_KC.shape)
        table = site_table("drawn", sites, classes, counts_KC, subjects)
        skews = diagnose(table).names
        if skews:
            called["any"] += 1
        called.update(skews)
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{name}: {dict(called)} in {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
