"""Let a run stand a random fault every 20 seconds, and compare its hash with the undisturbed one. Needs root.

    python deploy/try_chaos.py [--seeds 0 1 2] [--rounds 30] [--every 20] [--write docs/results/reliability.md]

Three sites on digits, one of them in two halves behind a line of its own: a network namespace with packets of at most
1,280 bytes, of which one in a hundred gets lost. That needs iptables; `--loss 0` does without. All clocks are this
machine's: libfaketime, which could set a site's apart, stops Python's threads. A fault is drawn with
the seed among FAULTS; what it ended is started again at once, as by systemd. Right is a run that ends without help,
with the hash of everything of the run in one process in which the same sites miss the same rounds, no process left, and
no half-written file. Exit status 1 on a miss.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.stage import LINK, TRAIN, Line, Stage
from faults.trial_result import SLOW, TrialResult, same
from local_federation import Job, write_between

from fedskew.federation.services import GATEWAY, SERVER_APP, SUPEREXEC, SUPERLINK

MARKS = "<!-- make chaos -->", "<!-- end of make chaos -->"
HEAD = ["| seed | faults | what became of it | seconds | right |", "|---:|---|---|---:|---:|"]
WORDS = ("node-wait=90", SLOW)
"""Of the run: flwr calls a node lost after 60 seconds, and a site is then waited for once."""
CUT = 10.0
"""Seconds for which the line is cut."""
SITES = 3
MTU = 1280
"""Bytes of the largest packet on the line: the least that IPv6 allows."""


def kill_service(program: str) -> Callable[[Stage], None]:
    """Return the fault in which a process of the coordinator's is killed."""
    return lambda stage: stage.service(program).kill()


def kill_half(half: str) -> Callable[[Stage], None]:
    """Return the fault in which a half of the site is killed, link or training."""

    def fault(stage: Stage) -> None:
        process = stage.federation.processes[half]
        process.kill()
        process.wait()

    return fault


def kill_supernode(stage: Stage) -> None:
    """Kill the site's SuperNode, which its link starts again."""
    stage.of_victim("flower-supernode", LINK).kill()


def cut_line(stage: Stage) -> None:
    """Cut the site's line for a while."""
    with stage.line.cut():
        time.sleep(CUT)


FAULTS: dict[str, Callable[[Stage], None]] = {
    "SuperNode": kill_supernode,
    "agent": kill_half(LINK),
    "executor": kill_half(TRAIN),
    "ServerApp": kill_service(SERVER_APP),
    "SuperLink": kill_service(SUPERLINK),
    "SuperExec": kill_service(SUPEREXEC),
    "gateway": kill_service(GATEWAY),
    "line": cut_line,
}
"""By the name of what is killed with -9 or cut."""


def disturb(stage: Stage, job: Job, draws: random.Random, every: float) -> Counter[str]:
    """Cause a fault every so many seconds while the run goes on, and return how often which was caused."""
    caused: Counter[str] = Counter()
    while job.process.poll() is None:
        time.sleep(every)
        if job.process.poll() is not None:
            break
        name = draws.choice(list(FAULTS))
        try:
            FAULTS[name](stage)
        except RuntimeError as problem:  # the process was not there: an earlier fault is not over
            print(f"{name}: {problem}", flush=True)
            continue
        caused[name] += 1
        stage.supervise()
    return caused


def trial(stage: Stage, seed: int, rounds: int, every: float) -> tuple[str, TrialResult]:
    """Run once under faults; return them in words, and what became of it."""
    name = f"{seed}-1"  # which the stage makes the run's own seed of
    words = (f"rounds={rounds}", *WORDS)
    stage.revive()
    began = time.monotonic()
    job = stage.begin(name, *words)
    job.wait_for_round(1)
    caused = disturb(stage, job, random.Random(seed), every)
    result = TrialResult(time.monotonic() - began, f"{rounds} rounds")
    result = same(stage, result, job, name, *words, everybody=False)
    return ", ".join(f"{name} {count}" for name, count in sorted(caused.items())), result


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--every", type=float, default=20.0, help="Seconds between two faults.")
    parser.add_argument("--loss", type=float, default=1.0, help="Percent of the line's packets.")
    parser.add_argument("--write", type=Path, help="The text whose table gets the rows.")
    return parser.parse_args(words)


def main() -> int:
    """Do the trials, and say what became of them."""
    options = parsed(sys.argv[1:])
    if os.geteuid():
        sys.exit("a network namespace wants root")
    rows: list[str] = []
    missed = 0
    line = Line(MTU, options.loss / 100)
    with tempfile.TemporaryDirectory(prefix="fedskew-") as work, line:
        stage = Stage(Path(work), line)
        stage.found(SITES)
        try:
            for seed in options.seeds:
                faults, result = trial(stage, seed, options.rounds, options.every)
                right = "no" if result.problems else "yes"
                missed += bool(result.problems)
                rows.append(
                    f"| {seed} | {faults} | {result.seen} | {result.seconds:.0f} | {right} |"
                )
                print(rows[-1], *result.problems, sep="\n    ", flush=True)
        finally:
            stage.federation.down()
    if options.write:
        write_between(options.write, MARKS, [*HEAD, *rows])
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
