"""What one site that floods the gateway costs the other sites: seconds per exchange beside it and undisturbed.

    python -m benchmarks.flood [--only WAY ...] [--sites 4] [--pairs 5] [--preferred]
                               [--write docs/results/reliability.md]

A SuperLink, a gateway and light sites (deploy/light_sites.py) that exchange a small model, all on this machine. One
more registered site (deploy/flooding_site.py) floods the gateway in one way after another, from an address of its own.
Rounds of the same run take turns: some undisturbed, as many beside the flood. The first round after each change is not
counted. A ratio is that of the medians of two such blocks that follow each other; a row has the median of its pairs.

The flooding site shares the machine, so it is nice (19, its session too) and bound to the last core. All other
processes have both cores. The table says how much it got through.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
from local_federation import SITE, Job, fedskew, write_between

from benchmarks.figures import Row, rounded, row
from benchmarks.scaling import WORDS, LightFederation
from data.agreement import as_flower_has_it
from fedskew.engines.processes import marked
from fedskew.federation.folder import FederationFolder, add_site
from fedskew.federation.services import register
from fedskew.federation.superlink import Control
from site_agent.keys import make_key

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- benchmarks/flood.py -->", "<!-- end of benchmarks/flood.py -->"
NAME = "flood"
"""The site that floods."""
ELSEWHERE, HERE = "127.0.0.2", "127.0.0.1"
"""Its address, and that of the other sites."""
GOAL = 1.5
WAYS = {
    "requests": "as many signed requests as it can, 64 at a time",
    "wrong-signatures": "as many requests with a wrong signature as it can, 64 at a time",
    "largest-bodies": "bodies of the largest size that is taken, 64 MiB, 8 at a time",
    "too-large-bodies": "bodies one byte larger than that, 8 at a time",
    "held-connections": "3,000 connections that say nothing",
    "new-connections": "new connections, 64 at a time, each closed after its handshake",
    "slow-bodies": "100 bodies of a byte a second",
    "slow-heads": "100 heads of a byte a second",
}
PREFERRED, AHEAD_OF_OTHERS = -15, -8
"""Niceness of sessions on a busy machine: the federation's, and the flooding site's."""
COUNTED = 2
"""Rounds of a block that count."""
MOST = 240.0
"""Seconds that a way may take."""
MIB = 2**20


@dataclass
class Block:
    """Rounds under one condition."""

    seconds: list[float]
    """Of each exchange."""
    sent: dict[str, float] = field(default_factory=dict)
    """What the flooding site has sent and got, if it did."""


class FloodingSite:
    """The process of the flooding site."""

    def __init__(self, way: str, place: Path, source: str, nice: int) -> None:
        program = ROOT / "deploy" / "flooding_site.py"
        words = [sys.executable, str(program), way, str(place), source, str(nice)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its niceness is that of a session of its own
        )
        self.answer()

    def answer(self) -> str:
        """Return a line of the process. Raises RuntimeError when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the flooding site has ended with {self.process.wait()}")
        return line

    def say(self, word: str) -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@contextmanager
def flooding(way: str, place: Path, source: str, nice: int) -> Iterator[FloodingSite]:
    """Yield a flooding site that does not flood yet, and end it."""
    site = FloodingSite(way, place, source, nice)
    try:
        yield site
    finally:
        site.end()


def enroll(federation: LightFederation) -> Path:
    """Add the flooding site to a federation while a run goes on, and return its folder.

    The run keeps the sites that it began with, so it never waits for this one.
    """
    place = federation.work / NAME
    place.mkdir()
    folder = FederationFolder(federation.folder)
    add_site(folder, NAME, make_key(place / "node.key"))
    register(folder)
    key = as_flower_has_it(folder.agreement.sites[-1].key)
    control = Control(folder.coordinator.superlink_port, folder.authority[0])
    (place / "node").write_text(str(control.nodes()[key].node_id))
    for file in ("federation.toml", "ca.crt"):
        (place / file).write_bytes((federation.folder / file).read_bytes())
    coordinator = folder.coordinator
    address = f"{coordinator.host}:{coordinator.port}"
    (place / "site.toml").write_text(SITE.format(name=NAME, address=address, keys=""))
    return place


def block(job: Job, rounds: int) -> list[float]:
    """Return the seconds of the exchanges of the next rounds, after one that does not count."""
    begun = job.rounds() + 1
    job.wait_for_round(begun + rounds, MOST)
    exchanges = []
    for record in job.records()[begun : begun + rounds]:
        exchanges += [record["seconds"]["clients"], record["seconds"]["evaluation"]]
    return exchanges


def measure(job: Job, site: FloodingSite, pairs: int) -> list[tuple[Block, Block]]:
    """Return pairs of blocks: undisturbed, then beside the flood."""
    measured = []
    began = time.monotonic()
    for _ in range(pairs):
        quiet = Block(block(job, COUNTED))
        site.say("on")
        beside = block(job, COUNTED)
        site.say("off")
        measured.append((quiet, Block(beside, json.loads(site.answer()))))
        if time.monotonic() - began > MOST:
            break
    return measured


def result(way: str, measured: Sequence[tuple[Block, Block]]) -> Row:
    """Return a way's row, as those of the suite, with the seconds and what the flooding site got through."""
    quiet = [statistics.median(block.seconds) for block, _ in measured]
    beside = [statistics.median(block.seconds) for _, block in measured]
    ratios = [right / left for left, right in zip(quiet, beside, strict=True)]
    sent: dict[str, float] = {}
    for _, flooded in measured:
        for name, value in flooded.sent.items():
            sent[name] = sent.get(name, 0) + value
    return {
        **row(way, ratios, GOAL),
        "undisturbed": rounded(statistics.median(quiet)),
        "beside": rounded(statistics.median(beside)),
        "sent": sent,
    }


def got_through(sent: dict[str, float]) -> str:
    """Return in words what the flooding site got through, by second."""
    seconds = sent["seconds"]
    words = []
    for status in sorted(name for name in sent if name.isdigit()):
        words.append(f"{sent[status] / seconds:.1f} answers of {status}")
    for name in ("connections", "cut"):
        if sent.get(name):
            words.append(f"{sent[name] / seconds:.1f} {name}")
    if sent.get("body bytes", 0) > MIB:
        words.append(f"{sent['body bytes'] / MIB / seconds:.0f} MiB")
    return ", ".join(words)


def table(rows: Sequence[Row], words: dict[str, str]) -> list[str]:
    """Return the table's lines."""
    lines = [
        "| one site sends | undisturbed | beside it | ratio | least to most | goal | it gets through, by second |",
        "|---|---:|---:|---:|---|---:|---|",
    ]
    for figures in rows:
        spread = f"{figures['least']:.2f} to {figures['most']:.2f} of {figures['measurements']}"
        lines.append(
            f"| {words[figures['name']]} | {figures['undisturbed']:.2f} s | {figures['beside']:.2f} s "
            f"| {figures['ratio']:.2f} | {spread} | {figures['goal']} | {got_through(figures['sent'])} |"
        )
    return lines


def commit_here() -> str:
    """Return the commit of this clone, shortened; nothing where it is none."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def versions(command: str, commit: str, sites: int, load: float, preferred: bool) -> str:
    """Return what was measured with what, as one line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "uvicorn", "starlette"))
    nice = "The flooding site runs at nice 19 on the last core."
    if preferred:
        nice += (
            f" Other work went on: the federation's sessions have nice {PREFERRED}, "
            f"the flooding site's {AHEAD_OF_OTHERS}, which is a fifth of their weight."
        )
    return (
        f"`{command}` on {commit}, {datetime.now(UTC).date()}: {sites} sites, {COUNTED} rounds a block. "
        f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores, load {load:.1f} before. "
        f"{nice}"
    )


def prefer(federation: LightFederation, job: Job) -> None:
    """Prefer a federation's sessions to all others of the machine, where other work goes on beside it; needs root."""
    processes = [process.pid for process in marked(federation.folder)]
    processes += [process.pid for process in federation.processes.values()]
    for pid in [*processes, job.process.pid]:
        Path(f"/proc/{pid}/autogroup").write_text(str(PREFERRED))


def measured_rows(ways: Sequence[str], sites: int, pairs: int, preferred: bool) -> Iterator[Row]:
    """Yield a row for each way; WAY@here floods from the other sites' address."""
    nice = AHEAD_OF_OTHERS if preferred else 19
    with tempfile.TemporaryDirectory(prefix="fedskew-") as folder:
        federation = LightFederation(Path(folder))
        words = ["--sites", str(sites), "--set", "partition=iid"]
        fedskew("data", "export-sites", "digits", federation.sites, *words)
        federation.found()
        with federation.at_work():
            job = federation.begin([*WORDS, "rounds=1000"])
            job.wait_for_round(2)
            place = enroll(federation)
            if preferred:
                prefer(federation, job)
            for name in ways:
                way, _, where = name.partition("@")
                with flooding(way, place, HERE if where else ELSEWHERE, nice) as site:
                    yield result(name, measure(job, site, pairs))


def main() -> None:
    """Measure, print, and write the table where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], choices=[*WAYS, *SAME_ADDRESS])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--preferred",
        action="store_true",
        help="Before other work of a busy machine; needs root.",
    )
    parser.add_argument(
        "--write", type=Path, help="A text whose table between the marks is replaced."
    )
    options = parser.parse_args()
    words = {**WAYS, **SAME_ADDRESS}
    load = os.getloadavg()[0]
    commit = commit_here()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # ends all processes
    rows = []
    for figures in measured_rows(
        options.only or list(words), options.sites, options.pairs, options.preferred
    ):
        print(json.dumps(figures), flush=True)
        rows.append(figures)
    command = " ".join(["python -m benchmarks.flood", *sys.argv[1:]])
    lines = [
        *table(rows, words),
        "",
        versions(command, commit, options.sites, load, options.preferred),
    ]
    print("\n".join(lines))
    if options.write:
        write_between(options.write, MARKS, lines)


SAME_ADDRESS = {
    f"{way}@here": f"{WAYS[way]}, from the other sites' address"
    for way in ("held-connections", "new-connections", "wrong-signatures")
}
"""Ways that a site has more of behind the same address."""


if __name__ == "__main__":
    main()
