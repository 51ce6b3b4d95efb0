"""`make fuzz`: changed replies to every method and changed files for every reader; tables for the reliability page.

    python tests/fuzz/tables.py [--replies 100000] [--files 10000] [--seed 0] [--write docs/results/reliability.md]

Two processes; the exit status is 1 where anything was accepted though wrong, crashed, hung or outside its folder.
"""

import argparse
import logging
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from files import READERS, fuzz_files
from harness import Tally, table
from replies import fuzz_replies

from server_app.methods import METHODS

FILE_SUBJECTS = 16
"""About as many subjects of files there are."""


def fuzz_one(kind: str, name: str, examples: int, number: int) -> tuple[dict[str, Tally], float]:
    """Return what became of so many files of a kind, or replies to a method, and the processor's seconds."""
    torch.set_num_threads(1)
    # who is left out, and what the cache mends
    logging.getLogger("fedskew").setLevel(logging.CRITICAL)
    began = time.process_time()
    if kind == "files":
        return fuzz_files(name, examples, number), time.process_time() - began
    with tempfile.TemporaryDirectory() as root:
        whole = Tally()
        for tally in fuzz_replies(name, examples, number, Path(root)).values():
            whole.counts += tally.counts
            whole.bad += tally.bad
    return {name: whole}, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replies", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    stated = parser.parse_args()
    of_files = -(-stated.files // FILE_SUBJECTS)
    of_replies = -(-stated.replies // len(METHODS))
    tasks = [("files", name, of_files) for name in READERS]
    tasks += [("replies", name, of_replies) for name in METHODS]
    tallies: dict[str, dict[str, Tally]] = {"replies": {}, "files": {}}
    seconds = 0.0
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [(task, pool.submit(fuzz_one, *task, stated.seed)) for task in tasks]
        for (kind, name, _), future in waiting:
            outcomes, took = future.result()
            tallies[kind] |= outcomes
            seconds += took
            for line in (line for tally in outcomes.values() for line in tally.bad):
                print(line, file=sys.stderr)
            print(f"{kind} {name}: {took:.0f} s", file=sys.stderr, flush=True)
    print(table(tallies["replies"]), table(tallies["files"]), sep="\n\n")
    totals = {}
    for kind, by_name in tallies.items():
        total = totals[f"{kind}, {len(by_name)} kinds"] = Tally()
        for tally in by_name.values():
            total.counts += tally.counts
    took = f"`make fuzz` with seed {stated.seed}, {seconds / 60:.0f} minutes of one core in all."
    text = f"{took}\n\n{table(totals)}"
    if stated.write:
        before, begin, rest = stated.write.read_text().partition("<!-- make fuzz -->\n")
        _, end, after = rest.partition("<!-- end of make fuzz -->")
        assert begin and end, f"{stated.write} has no place for the tables"
        stated.write.write_text(f"{before}{begin}{text}\n{end}{after}")
    sys.exit(any(tally.bad for outcomes in tallies.values() for tally in outcomes.values()))


if __name__ == "__main__":
    main()
