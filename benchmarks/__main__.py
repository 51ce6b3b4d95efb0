"""All speed figures of the project: each a ratio of two things that are measured in turns in one run.

    python -m benchmarks [NAME ...] [--write docs/results/performance.md]

A row is JSON: name, ratio (the median), goal (null where there is none), least, most and how many measurements there
are, five at least; a time in seconds stands beside it as a row of its own. `--write` puts each benchmark's rows into
the text, between <!-- NAME --> and <!-- end of NAME -->. Wants a quiet machine; the exit status says nothing of goals.

To add one: a module here with `rows() -> Iterator[Row]`, whose docstring says what is measured (benchmarks/figures.py
has `alternate`, `figure` and `seconds`, benchmarks/turns.py rounds in turns with something else); its name in SUITE; a
heading and the two marks in docs/results/performance.md.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import json
import logging
from pathlib import Path

from benchmarks.figures import Row

SUITE = {
    "round": "benchmarks.round",
    "start-up": "benchmarks.start_up",
    "server": "benchmarks.server",
    "memory": "benchmarks.memory",
}
"""The module of every benchmark, by name."""


def table(rows: list[Row]) -> list[str]:
    """Return rows as lines of Markdown: the ratios as a table, the times below it."""
    lines = ["| figure | ratio (least to most) | goal |", "|---|---:|---:|"]
    times = []
    for row in rows:
        if "ratio" in row:
            spread = f"{row['least']} to {row['most']}"
            goal = "" if row["goal"] is None else row["goal"]
            lines.append(f"| {row['name']} | {row['ratio']} ({spread}) | {goal} |")
        if "seconds" in row:
            goal = "" if row["goal"] is None else f" (goal {row['goal']})"
            times.append(f"{row['name']} {row['seconds']}{goal}")
    if times:
        lines += ["", f"Seconds: {'; '.join(times)}."]
    return lines


def write(file: Path, name: str, lines: list[str]) -> None:
    """Put lines into a text, in place of what is between a benchmark's marks."""
    before, begin, rest = file.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not begin or not end:
        raise SystemExit(f"{file} has no place for {name}")
    block = "".join(f"{line}\n" for line in lines)
    file.write_text(before + begin + block + end + after)


def main() -> None:
    """Print the rows as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITE))
    parser.add_argument("--write", type=Path, metavar="FILE", help="a text to put the rows into")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SUITE]
    if unknown:
        parser.error(f"{', '.join(unknown)}: the benchmarks are {', '.join(SUITE)}")
    logging.getLogger("fedskew").setLevel(logging.ERROR)
    for name in options.names or SUITE:
        benchmark = importlib.import_module(SUITE[name])
        load, _, _ = os.getloadavg()
        rows: list[Row] = []
        for row in benchmark.rows():
            print(json.dumps(row), flush=True)
            rows.append(row)
        if options.write:
            machine = f"{os.cpu_count()} cores, load {load:.1f} before."
            write(options.write, name, [*table(rows), "", machine])


if __name__ == "__main__":
    main()
