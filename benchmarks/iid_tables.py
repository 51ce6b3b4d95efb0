"""How many of 1,000 tables without any skew are called skewed, for several sizes: `python benchmarks/iid_tables.py`."""

import sys
import time

import numpy as np

from fedskew.diagnosis.rules import diagnose
from fedskew.diagnosis.table import site_table

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


def main() -> None:
    """Print the share that is called skewed, by name, and the seconds."""
    generator = np.random.default_rng(0)
    for sites, classes, samples in SHAPES:
        names = [list(map(str, range(number))) for number in (sites, classes)]
        start, called = time.perf_counter(), dict[str, int]()
        for _ in range(TABLES):
            counts_KC = generator.multinomial(
                samples, np.full(sites * classes, 1 / (sites * classes))
            )
            skewed = diagnose(site_table("drawn", *names, counts_KC.reshape(sites, classes))).names
            for name in ("any",) * bool(skewed) + skewed:
                called[name] = called.get(name, 0) + 1
        sys.stdout.write(
            f"{sites} x {classes}, {samples} samples: {called} in {time.perf_counter() - start:.1f} s\n"
        )


if __name__ == "__main__":
    main()
