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
from files import fuzz_all
from harness import BAD, Tally, table
from replies import SUBJECTS, fuzz_replies


def fuzz_one(kind: str, name: str, examples: int, number: int) -> tuple[dict[str, Tally], float]:
    """Return what became of so many files, or of so many replies to one method, and the processor's seconds."""
    torch.set_num_threads(1)
    logging.getLogger("fedskew").setLevel(
        logging.CRITICAL
    )  # who is left out, and what the cache mends
    began = time.process_time()
    with tempfile.TemporaryDirectory() as root:
        tallies = (
            fuzz_all(examples, number)
            if kind == "files"
            else fuzz_replies(name, examples, number, Path(root))
        )
    return tallies, time.process_time() - began


def grouped(tallies: dict[str, Tally]) -> dict[str, Tally]:
    """Return the tallies of replies by method, that of all exchanges together."""
    result: dict[str, Tally] = {}
    for name, tally in tallies.items():
        whole = result.setdefault(name.rpartition(": ")[0], Tally())
        whole.counts += tally.counts
        whole.bad += tally.bad
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replies", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    stated = parser.parse_args()
    share, seconds = -(-stated.replies // len(SUBJECTS)), 0.0
    tallies: dict[str, dict[str, Tally]] = {"replies": {}, "files": {}}
    tasks = [("files", "", stated.files), *(("replies", name, share) for name in SUBJECTS)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            (kind, name, pool.submit(fuzz_one, kind, name, examples, stated.seed))
            for kind, name, examples in tasks
        ]
        for kind, name, future in waiting:
            outcomes, took = future.result()
            tallies[kind] |= (
                {f"{name}: {key.rpartition(': ')[2]}": tally for key, tally in outcomes.items()}
                if name
                else outcomes
            )
            seconds += took
            for tally in outcomes.values():
                for line in tally.bad:
                    print(line, file=sys.stderr, flush=True)
            print(f"{kind} {name}: {took:.0f} s", file=sys.stderr, flush=True)
    parts = [
        f"`make fuzz` with seed {stated.seed}, {seconds / 60:.0f} minutes of one core in all.",
        "Replies, by method:",
        table(grouped(tallies["replies"])),
        "Files, by reader:",
        table(tallies["files"]),
    ]
    text = "\n\n".join(parts)
    print(text)
    if stated.write:
        before, begin, rest = stated.write.read_text().partition("<!-- make fuzz -->\n")
        _, end, after = rest.partition("<!-- end of make fuzz -->")
        assert begin and end, f"{stated.write} has no place for the tables"
        stated.write.write_text(f"{before}{begin}{text}\n{end}{after}")
    sys.exit(
        any(
            tally.counts[outcome]
            for outcomes in tallies.values()
            for tally in outcomes.values()
            for outcome in BAD
        )
    )


if __name__ == "__main__":
    main()
