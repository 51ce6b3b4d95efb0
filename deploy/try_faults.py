"""Cause each fault of docs/results/reliability.md on this machine and write its table. Needs root and minutes.

    python deploy/try_faults.py [--row 1 2 ...] [--only WORDS] [--times 3] [--jobs 2]
        [--write docs/results/reliability.md] [--keep FOLDER]

Every row is done to a run of four sites on digits, one of them behind a line of its own (a network namespace). Right is
what the row says, the hash of everything of the run in one process in which the same sites miss the same rounds, no
process left and no half-written file. Exit status 1 on a miss. A row waits more than it computes, so two federations
stand beside each other.
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
from faults.stage import Line, Stage
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


def write(file: Path, rows: dict[str, str]) -> None:
    """Put the rows into the table between the marks of a text, in place of those of the same number and name."""
    _, _, after_mark = file.read_text().partition(MARKS[0])
    table, _, _ = after_mark.partition(MARKS[1])
    entries: dict[str, str] = {}
    for entry in table.splitlines():
        if entry.startswith("| ") and entry not in HEAD:
            number_and_name = entry.split(" | ")[:2]
            entries[" | ".join(number_and_name)] = entry
    entries |= rows

    lines = []
    for row, parts in ROWS.items():
        for what, _ in parts:
            entry = entries.get(f"| {row} | {what}")
            if entry:
                lines.append(entry)
    write_between(file, MARKS, [*HEAD, *lines])


def begin(work: Path) -> None:
    """In a process that does rows: found a federation of its own, and end it with the process."""
    global STAGE
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=10)
    STAGE = Stage(work / str(os.getpid()), stack.enter_context(Line()))
    STAGE.work.mkdir(parents=True)
    stack.callback(STAGE.federation.down)
    STAGE.found()


def attempt(row: int, place: int, trial: int) -> TrialResult:
    """Do a case of a row once."""
    what, do = ROWS[row][place]
    began = time.monotonic()
    try:
        STAGE.revive()
        outcome = do(STAGE, f"{row}-{100 * place + trial}")
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


def chosen(rows: Sequence[int], words: str) -> list[tuple[int, int]]:
    """Return row and place of every case of these rows in whose name the words stand, in whatever case."""
    return [
        (row, place)
        for row in rows
        for place, (what, _) in enumerate(ROWS[row])
        if words.lower() in what.lower()
    ]


def main() -> int:
    """Do the rows, and say what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--row", type=int, nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="Only what is done in these words, in part.",
    )
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
    if os.geteuid():
        sys.exit("a network namespace, and a disk of a few MB, want root")
    missed, cases = 0, chosen(stated.row, stated.only)
    if not cases:
        sys.exit(
            f"--only {stated.only!r}: is in the name of no row; docs/results/reliability.md has them"
        )
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        work = (stated.keep or Path(temporary)).resolve()
        with ProcessPoolExecutor(stated.jobs, get_context("spawn"), begin, (work,)) as pool:
            doing = {
                case: [pool.submit(attempt, *case, trial) for trial in range(stated.times)]
                for case in cases
            }
            for (row, place), futures in doing.items():
                outcomes = [future.result() for future in futures]
                missed += sum(bool(outcome.problems) for outcome in outcomes)
                entry = line(row, ROWS[row][place][0], outcomes)
                print(entry, flush=True)
                if stated.write:
                    write(stated.write, {" | ".join(entry.split(" | ")[:2]): entry})
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
