"""What a federation of many sites costs its coordinator: SuperLink and ServerApp, on this machine.

    python benchmarks/scaling.py [--sites 4 8 50 200] [--rounds 6] [--write FILE]

The sites are light ones (deploy/light_sites.py): one process speaks the protocol of as many SuperNodes, TLS and keys
too, and trains one step of four images at each. An exchange is a question to every site and its answer; a round has
two, training and evaluation. The medians leave out the first round. Processor seconds are those of the coordinator's
processes over all later rounds, by exchange. The sites compute on the same cores, so an exchange takes longer here than
beside machines of their own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
from local_federation import SITE, LocalFederation, fedskew, write_between

from fedskew.engines.processes import free_port, marked
from fedskew.federation.agree import add_site
from fedskew.federation.folder import FederationFolder, begin
from fedskew.federation.service import SERVER_APP, SERVICE
from site_agent.keys import make_key

MARKS = "<!-- benchmarks/scaling.py -->", "<!-- end of benchmarks/scaling.py -->"
WORDS = ["model=small-cnn", "method=fedavg", "local-steps=1", "batch-size=4", "node-wait=120"]
POLICY = "\n[policy]\nmin-batch-size = 1\nmin-update-samples = 1\n"
PROGRAMS = {SERVICE: "SuperLink", SERVER_APP: "ServerApp"}
HEAD = [
    "| sites | exchange, median | SuperLink, CPU | ServerApp, CPU | SuperLink | ServerApp | state on disk |",
    "|---:|---:|---:|---:|---:|---:|---:|",
]
MIB = 2**20


class LightFederation(LocalFederation):
    """A federation whose sites are threads of one process, none of which has to approve anything."""

    def found(self, *arguments: object, **named: object) -> None:
        """Make certificates, keys and the agreement."""
        gateway = f"127.0.0.1:{free_port()}"
        classes = [str(number) for number in range(10)]
        agreed = {
            "name": "many",
            "classes": classes,
            "input-shape": "1x8x8",
            "mean": [0.5],
            "std": [0.5],
        }
        folder = begin(self.folder, agreed, gateway, "127.0.0.1")
        for name, place in self.places.items():
            add_site(folder, {"name": name, "key": make_key(place / "node.key")})
        for name, place in self.places.items():
            for file in ("federation.toml", "ca.crt"):
                (place / file).write_bytes((self.folder / file).read_bytes())
            text = SITE.format(name=name, address=gateway, keys="")
            (place / "site.toml").write_text(text + POLICY)

    def start(self, *names: str) -> None:
        """Start all sites."""
        words = [sys.executable, "deploy/light_sites.py", str(self.sites)]
        with (self.work / "sites.log").open("ab") as log:
            self.processes["sites"] = subprocess.Popen(words, stdout=log, stderr=log)


def coordinator(folder: Path) -> dict[str, psutil.Process]:
    """Return the coordinator's processes by what they are."""
    found = {}
    for process in marked(folder):
        with suppress(psutil.Error):
            names = [Path(word).name for word in process.cmdline()[:4]]
            for program, kind in PROGRAMS.items():
                if program in names:
                    found[kind] = process
    return found


def seconds_of(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return the processor seconds that each process has used so far."""
    return {kind: sum(process.cpu_times()[:2]) for kind, process in processes.items()}


def bytes_below(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(sites: int, rounds: int) -> list[str]:
    """Return the row of the table for so many sites."""
    with tempfile.TemporaryDirectory(prefix="fedskew-") as folder:
        federation = LightFederation(Path(folder))
        words = ["--sites", str(sites), "--set", "partition=iid"]
        fedskew("data", "export-sites", "digits", federation.sites, *words)
        federation.found()
        with federation.at_work():
            job = federation.begin([*WORDS, f"rounds={rounds}"])
            job.wait_for_round(1)
            processes = coordinator(federation.folder)
            before = seconds_of(processes)
            # Looked at before the last round, as the ServerApp ends with it.
            job.wait_for_round(rounds - 1)
            after = seconds_of(processes)
            memory = {kind: process.memory_info().rss for kind, process in processes.items()}
            job.finish()
            disk = bytes_below(FederationFolder(federation.folder).state)
            records = job.records()
    exchanges = []
    for record in records[1:]:
        exchanges += [record["seconds"]["clients"], record["seconds"]["evaluation"]]
    fewest = min(record["used"] for record in records)
    if fewest < sites:
        sys.exit(f"only {fewest} of {sites} sites took part in some round")
    cpu = {kind: (after[kind] - before[kind]) / (2 * (rounds - 2)) for kind in before}
    return [
        str(sites),
        f"{statistics.median(exchanges):.2f} s",
        *(f"{cpu[kind]:.2f} s" for kind in PROGRAMS.values()),
        *(f"{memory[kind] / MIB:.0f} MiB" for kind in PROGRAMS.values()),
        f"{disk / MIB:.1f} MiB",
    ]


def main() -> None:
    """Measure, print, and write the table where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 8, 50, 200])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--write", type=Path, help="A text whose table between the marks is replaced."
    )
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds: at least 3")
    load = os.getloadavg()[0]
    rows = []
    for sites in options.sites:
        began = time.monotonic()
        cells = measure(sites, options.rounds)
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
    lines = [*HEAD, *rows, "", f"{os.cpu_count()} cores, load {load:.1f} before."]
    if options.write:
        write_between(options.write, MARKS, lines)


if __name__ == "__main__":
    main()
