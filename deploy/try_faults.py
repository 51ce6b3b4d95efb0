"""Cause each fault of docs/results/reliability.md on this machine and write its table. Needs minutes.

    python deploy/try_faults.py [--row 1 2 ...] [--times 3] [--jobs 2]
        [--write docs/results/reliability.md] [--keep FOLDER]

Every row is done to a run of four sites on digits. Right is what the row says, the hash of everything of the run in one
process in which the same sites miss the same rounds, no process left and no half-written file. Exit status 1 on a miss.
A row waits more than it computes, so two federations stand beside each other.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from faults.rows import ROWS
from faults.stage import Stage
from faults.trial_result import TrialResult
from local_federation import write_between

MARKS = "<!-- make faults -->", "<!-- end of make faults -->"
HEAD = [
    "| # | what is done | what became of it | seconds to recover | right |",
    "|---:|---|---|---:|---:|",
]


STAGE: Stage
"""In a process that does rows, the federation that they are done to."""


def line(row: int, what: str, outcomes: Sequence[TrialResult]) -> str:
    """Return a row of the table."""
    right = sum(not outcome.problems for outcome in outcomes)
    seconds = " / ".join(f"{outcome.seconds:.0f}" for outcome in outcomes)
    return f"| {row} | {what} | {outcomes[-1].seen} | {seconds} | {right} of {len(outcomes)} |"


def write(file: Path, rows: dict[int, str]) -> None:
    """Put the rows into the table between the marks of a text, in place of those of the same number."""
    _, _, after_mark = file.read_text().partition(MARKS[0])
    table, _, _ = after_mark.partition(MARKS[1])
    entries: dict[int, str] = {}
    for entry in table.splitlines():
        if entry.startswith("| ") and entry not in HEAD:
            entries[int(entry.split(" | ")[0].removeprefix("| "))] = entry
    entries |= rows
    lines = [entries[row] for row in ROWS if row in entries]
    write_between(file, MARKS, [*HEAD, *lines])


def begin(work: Path) -> None:
    """In a process that does rows: found a federation of its own, and end it with the process."""
    global STAGE
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=10)
    STAGE = Stage(work / str(os.getpid()))
    STAGE.work.mkdir(parents=True)
    stack.callback(STAGE.federation.down)
    STAGE.found()


def attempt(row: int, trial: int) -> TrialResult:
    """Do a row once."""
    what, do = ROWS[row]
    began = time.monotonic()
    try:
        STAGE.revive()
        outcome = do(STAGE, f"{row}-{trial}")
    except Exception as error:
        traceback.print_exc()
        outcome = TrialResult(float("nan"), "", [f"{type(error).__name__}: {error}"])
    took = time.monotonic() - began
    problems = "".join(f"\n    MISS: {problem}" for problem in outcome.problems)
    print(
        f"row {row}, {what}: {outcome.seconds:.1f} s; {outcome.seen} [{took:.0f} s]{problems}",
        flush=True,
    )
    return outcome


def main() -> int:
    """Do the rows, and say what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--row", type=int, nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="Federations at a time, each with rows of its own.",
    )
    parser.add_argument("--write", type=Path, help="The text whose table gets the rows.")
    parser.add_argument(
        "--keep", type=Path, help="An empty folder to work in and to leave as it is then."
    )
    stated = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        work = (stated.keep or Path(temporary)).resolve()
        with ProcessPoolExecutor(stated.jobs, get_context("spawn"), begin, (work,)) as pool:
            doing = {
                row: [pool.submit(attempt, row, trial) for trial in range(stated.times)]
                for row in stated.row
            }
            for row, futures in doing.items():
                outcomes = [future.result() for future in futures]
                missed += sum(bool(outcome.problems) for outcome in outcomes)
                entry = line(row, ROWS[row][0], outcomes)
                print(entry, flush=True)
                if stated.write:
                    write(stated.write, {row: entry})
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
