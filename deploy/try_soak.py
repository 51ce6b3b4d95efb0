"""Many rounds between two sites: what every process holds at round 50 and at the end, and how large the state is.

    python deploy/try_soak.py [--rounds 300] [--early 50] [--write docs/results/reliability.md]

Right is a federation none of whose own processes (gateway, the sites' agents) holds more memory or open files at the
end than at the early round, by more than 5 %; of flwr's processes it is said. The server's process is flwr's, with
this app in it; it is the app's in this table. About an hour.
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil
from local_federation import Job, LocalFederation, write_between

from fedskew.engines.processes import marked

MARKS = "<!-- make soak -->", "<!-- end of make soak -->"
HEAD = ["| process | whose | MiB at round {early} | at round {rounds} | open files | at round {rounds} |",
        "|---|---|---:|---:|---:|---:|"]  # fmt: skip
BASE = ["model=mlp-bn", "method=fedshift+fedbn", "evaluate-every=5"]
MORE, LOOKS, SPARE = 1.05, 10, 20
"""Times what was held early; looks, half a second apart; rounds that are still to come at the last look."""
KINDS = {"fedskew.federation.gateway": ("gateway", True), "flwr-serverapp": ("ServerApp", True),
         "fedskew-site": ("site's agent", True), "flower-superlink": ("SuperLink", False),
         "flower-superexec": ("SuperExec", False), "flower-supernode": ("SuperNode", False)}  # fmt: skip
"""By program: its name in the table, and whether what it runs is this project's."""


def held(federation: LocalFederation) -> dict[str, tuple[float, int]]:
    """Return MiB (what is a process' own, and its share of what it has in common) and open files, by kind, summed."""
    roots = [psutil.Process(process.pid) for process in federation.processes.values()]
    every = {
        *marked(federation.folder),
        *roots,
        *(child for root in roots for child in root.children(recursive=True)),
    }
    sums: defaultdict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for process in every:
        try:
            words, memory, files = (
                process.cmdline(),
                process.memory_full_info().pss / 2**20,
                process.num_fds(),
            )
        except psutil.Error:
            continue
        for program, (kind, _) in KINDS.items():
            if any(Path(word).name == program for word in words[:4]):
                sums[kind] = sums[kind][0] + memory, sums[kind][1] + files
                break
    return dict(sums)


def least(federation: LocalFederation) -> dict[str, tuple[float, int]]:
    """Return the least of what is held within some seconds: a file that is being written is no leak."""
    looks = []
    for _ in range(LOOKS):
        looks.append(held(federation))
        time.sleep(0.5)
    return {
        kind: (min(look[kind][0] for look in looks), min(look[kind][1] for look in looks))
        for kind in looks[0]
    }


def main() -> int:
    """Found a federation, train for long, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--early", type=int, default=50)
    parser.add_argument("--write", type=Path, help="The text that gets the table.")
    stated = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        federation = LocalFederation(Path(temporary))
        federation.prepare("digits", 2)
        with federation.at_work():
            job: Job = federation.begin([*BASE, f"rounds={stated.rounds + SPARE}"])
            job.wait_for_round(stated.early)
            early, state = least(federation), size(federation)
            job.wait_for_round(stated.rounds)
            late, grown = least(federation), size(federation)
            job.finish(3600.0)
    rows, missed = [line.format(early=stated.early, rounds=stated.rounds) for line in HEAD], 0
    for kind, own in KINDS.values():
        (memory, files), (later, more) = early[kind], late[kind]
        missed += own and (later > MORE * memory or more > MORE * files)
        rows.append(
            f"| {kind} | {'own' if own else 'flwr'} | {memory:.0f} | {later:.0f} | {files} | {more} |"
        )
    rows += [
        "",
        f"The SuperLink's state.db: {state / 2**20:.1f} MiB, then {grown / 2**20:.1f} MiB.",
    ]
    print("\n".join(rows))
    if stated.write:
        write_between(stated.write, MARKS, rows)
    return 1 if missed else 0


def size(federation: LocalFederation) -> int:
    """Return the bytes of the SuperLink's state, with what SQLite has not written into it yet."""
    return sum(file.stat().st_size for file in (federation.folder / "superlink").glob("state.db*"))


if __name__ == "__main__":
    sys.exit(main())
