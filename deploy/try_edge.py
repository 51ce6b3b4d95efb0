"""Many small sites that come and go: one core and 1 GiB each, a random part of them away in every round.

    python deploy/try_edge.py [--sites 8] [--rounds 20] [--away 0.3] [--seed 0] [--write docs/guides/deployment.md]

Every site is two halves in a control group of its own. After each round sites are drawn; the links of those that are
drawn end in order, as a device that is switched off does, and start again when they are not drawn any more. Right is a
run whose rounds are all there, with no site above 768 MiB. What is resident is looked at four times a second; the peak
that the kernel keeps counts the files that it has read as well, which it gives back when asked. Wants root.
"""

import argparse
import os
import random
import secrets
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_federation import LocalFederation, write_between

from fedskew.engines.processes import free_port

MEMORY, MOST = 2**30, 768
"""Bytes that a site has, and MiB that it may take."""
GROUPS = Path("/sys/fs/cgroup")
MARKS = "<!-- make edge -->", "<!-- end of make edge -->"
BASE = ["model=mlp-bn", "method=fedshift+fedbn", "node-wait=3", "local-epochs=5"]


class Cage:
    """A control group of one core and 1 GiB, of either version of the kernel's interface."""

    def __init__(self, name: str, core: int) -> None:
        self.new = (GROUPS / "cgroup.controllers").exists()
        self.folders = (
            [GROUPS / name] if self.new else [GROUPS / kind / name for kind in ("memory", "cpuset")]
        )
        for folder in self.folders:
            folder.mkdir()
        memory, cores = self.folders[0], self.folders[-1]
        (cores / "cpuset.mems").write_text("0")
        (cores / "cpuset.cpus").write_text(str(core))
        (memory / ("memory.max" if self.new else "memory.limit_in_bytes")).write_text(str(MEMORY))
        self.resident = 0

    @property
    def before(self) -> list[str]:
        """Words before a command that is to run in here."""
        enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self.folders)
        return ["sh", "-c", f'{enter}; exec "$@"', "sh"]

    def measure(self) -> None:
        """Note what is resident now, in bytes: anonymous memory and files that are mapped."""
        rows = dict(
            row.split() for row in (self.folders[0] / "memory.stat").read_text().splitlines()
        )
        names = ("anon", "file_mapped") if self.new else ("total_rss", "total_mapped_file")
        self.resident = max(self.resident, sum(int(rows[name]) for name in names))

    @property
    def peak(self) -> int:
        """The kernel's peak in bytes, with files that were read."""
        return int(
            (
                self.folders[0] / ("memory.peak" if self.new else "memory.max_usage_in_bytes")
            ).read_text()
        )

    def open(self) -> None:
        """Take the group away, once nothing is in it."""
        for folder in self.folders:
            folder.rmdir()


@contextmanager
def watched(cages: list[Cage]) -> Iterator[None]:
    """Within this context each cage is looked at four times a second."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            for cage in cages:
                cage.measure()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def train(
    federation: LocalFederation,
    cages: dict[str, Cage],
    rounds: int,
    share: float,
    seed: int,
) -> list[str]:
    """Train with sites that come and go, and return what it took in lines."""
    draws, names = random.Random(seed), list(federation.places)
    ports, secret = {name: free_port() for name in names}, federation.work / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)

    def start(name: str, half: str) -> None:
        federation.start_half(name, half, ports[name], secret, *cages[name].before)

    for name in names:
        start(name, "train")
        start(name, "link")
    federation.wait_for_sites()
    job, away = federation.begin([*BASE, f"rounds={rounds}"]), set[str]()
    for number in range(1, rounds):
        job.wait_for_round(number)
        drawn = {name for name in names if draws.random() < share}
        if leaving := sorted(drawn - away):  # stop() without a name ends all
            federation.stop(*(f"{name}/link" for name in leaving))
        for name in sorted(away - drawn):
            start(name, "link")
        away = drawn
    job.finish()
    records = job.records()
    seconds = [record["seconds"]["round"] for record in records[1:]]
    present = sum(len(record["clients"]) for record in records) / len(records) / len(names)
    up, down = (
        statistics.median(record[f"bytes-{way}"] for record in records) / 1e6
        for way in ("up", "down")
    )
    return [
        f"{len(records)} of {rounds} rounds, {len(names)} sites of one core and 1 GiB, {present:.0%} of them a round",
        f"a round: {statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most; "
        f"{up:.2f} MB from all sites, {down:.2f} MB to them",
    ]


def main() -> int:
    """Found a federation, cage its sites, train, and say what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--away", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="The text that gets the figures.")
    stated = parser.parse_args()
    if os.geteuid():
        sys.exit("control groups want root")
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        federation = LocalFederation(Path(temporary))
        federation.prepare("digits", stated.sites)
        cores = sorted(os.sched_getaffinity(0))
        cages = {name: Cage(f"fedskew-{os.getpid()}-{name}", cores[number % len(cores)])
                 for number, name in enumerate(federation.places)}  # fmt: skip
        try:
            with federation.at_work(sites=False), watched(list(cages.values())):
                lines = train(federation, cages, stated.rounds, stated.away, stated.seed)
        finally:
            resident, peak = (
                max(getattr(cage, kind) for cage in cages.values()) / 2**20
                for kind in ("resident", "peak")
            )
            for cage in cages.values():
                cage.open()
    lines.append(
        f"a site: at most {resident:.0f} MiB resident (at most {MOST}), {peak:.0f} MiB with the files that it has read"
    )
    print("\n".join(lines))
    if stated.write:
        write_between(stated.write, MARKS, [f"* {line}" for line in lines])
    return 0 if resident <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
