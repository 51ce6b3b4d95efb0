"""Measure FedAvg of FedSkew beside the tools that users would pick instead, on the same work.

    python -m benchmarks.peers [--works cnn-32 tiny ...] [--tools Flower ...] [--turns 5]
                               [--environments FOLDER] [--write docs/results/performance.md]

Every other tool gets a virtual environment of its own under --environments, which the first call makes. A tool that
cannot be installed is named with the reason and left out. BlazeFL needs Python 3.12: put `python3.12` on the PATH.

The tools take turns: in each of the turns every tool does the whole work once, as a command of its own. What is
printed and written is the median over the turns, with the least and the most. Wants two quiet cores and about an hour.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.__main__ import write
from benchmarks.figures import peak, rounded
from benchmarks.peers.work import WORKS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MIB = 2**20
LEARNS_ALIKE = 0.1
"""The loss after the last round may differ by this share from the bare loop's; the tools draw other clients."""
SMALL_LOSS = 0.02
"""Nats by which it may differ in any case: where all is learned, a share of the loss is noise."""
MOST_SECONDS = 1_200
"""A work that takes a tool longer than this is ended and named."""


@dataclass(frozen=True)
class Tool:
    """One way to do a work."""

    script: str
    packages: tuple[str, ...] = ()
    """What pip installs into an environment of its own; empty for what runs in FedSkew's."""
    arguments: tuple[str, ...] = ()
    processes: int = 1
    """Processes that train clients."""
    works: tuple[str, ...] = tuple(WORKS)
    python: str = sys.executable
    """The Python that makes the environment."""


REFERENCE = "FedSkew, two workers"
"""The row that the others are compared with."""
BARE = "bare PyTorch loop"
TOOLS = {
    REFERENCE: Tool("of_fedskew.py", arguments=("workers", "1"), processes=2),
    "FedSkew, two workers, 50 clients a pass": Tool(
        "of_fedskew.py", arguments=("workers", "50"), processes=2, works=("tiny",)
    ),
    "FedSkew, one process": Tool("of_fedskew.py", arguments=("inprocess", "1")),
    BARE: Tool("of_loop.py"),
    "Flower": Tool("of_flower.py", processes=2),
    "BlazeFL": Tool(
        # Its wheel does not name numpy and tqdm, which it imports.
        "of_blazefl.py",
        packages=("blazefl", "numpy", "tqdm"),
        processes=2,
        python="python3.12",
    ),
    "pfl-research": Tool("of_pfl.py", packages=("pfl[pytorch]",)),
    "fluke": Tool("of_fluke.py", packages=("fluke-fl",)),
    "FedJAX": Tool(
        # Its last release is of 2023 and fails with JAX of today.
        "of_fedjax.py",
        packages=(
            "fedjax",
            "jax<0.4.26",
            "jaxlib<0.4.26",
            "numpy<2",
            "optax<0.2",
            "scipy<1.13",
            "dm-haiku<0.0.12",
        ),
    ),
}
NOT_INSTALLABLE = ("FL-bench", "PFLlib", "FLUTE")
"""Tools without a package in the index: their authors offer a repository to clone."""


class Absent(Exception):
    """A tool that cannot be installed here; the message is the reason."""


@dataclass
class Measurement:
    """What a tool took for a work, a value for each turn."""

    version: str = ""
    round_seconds: list[float] = field(default_factory=list)
    """The median round after the first."""
    fixed_seconds: list[float] = field(default_factory=list)
    """All of the command but its rounds, each as long as the median: start-up, data, the first round's extra."""
    peak_mib: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def environment(name: str, tool: Tool, folder: Path) -> Path:
    """Return the Python that runs a tool; make its environment if there is none.

    Raises Absent with the reason if the tool cannot be installed.
    """
    if not tool.packages:
        return Path(sys.executable)
    place = folder / tool.script.removeprefix("of_").removesuffix(".py")
    python = place / "bin" / "python"
    if (place / "installed").exists():
        return python
    if shutil.which(tool.python) is None:
        raise Absent(f"{name} needs {tool.python}, which is not on the PATH")
    shutil.rmtree(place, ignore_errors=True)
    commands = (
        [tool.python, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", *tool.packages],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Absent(f"{name} cannot be installed: {last_line}")
    (place / "installed").touch()
    return python


def measure(python: Path, tool: Tool, work: str, measured: Measurement) -> None:
    """Let a tool do a work once and add what it took.

    Raises Absent if its command fails or takes more than MOST_SECONDS.
    """
    # One thread a process, as two processes have two cores. One process alone may use both.
    threads = {"OMP_NUM_THREADS": "1"} if tool.processes > 1 else {}
    inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    words = [str(python), str(HERE / tool.script), work, *tool.arguments]
    began = time.perf_counter()
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env={**inherited, **threads, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with peak(process.pid) as most:
        try:
            output, errors = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.communicate()
            raise Absent(f"it took more than {MOST_SECONDS} s") from None
    total = time.perf_counter() - began
    if process.returncode:
        raise Absent(f"its command failed: {(errors.strip().splitlines() or ['no message'])[-1]}")
    result = json.loads(output.splitlines()[-1])
    seconds = statistics.median(result["rounds"][1:])
    measured.version = result["version"]
    measured.round_seconds.append(seconds)
    measured.fixed_seconds.append(total - seconds * len(result["rounds"]))
    measured.peak_mib.append(most[0] / MIB)
    measured.losses.append(result["loss"])


def spread(values: Sequence[float]) -> str:
    """Return the median of values, with the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{rounded(middle):g} ({rounded(least):g} to {rounded(most):g})"


def table(work: str, results: dict[str, Measurement], failed: dict[str, str]) -> list[str]:
    """Return what was measured of a work as lines of Markdown."""
    task = WORKS[work]
    lines = [
        f"**{work}**: `{task.model}`, {task.sampled} of {task.clients:,} clients a round, {task.samples} images a "
        f"client, batch {task.batch}, epochs {task.epochs}, {task.rounds} rounds.",
        "",
        "| tool | seconds a round | times FedSkew's | fixed seconds | peak MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    reference, bare = results.get(REFERENCE), results.get(BARE)
    for name, measured in results.items():
        times = ""
        if reference is not None:
            pairs = zip(measured.round_seconds, reference.round_seconds, strict=False)
            times = spread([theirs / ours for theirs, ours in pairs])
        loss = statistics.median(measured.losses)
        remark = ""
        if bare is not None:
            usual = statistics.median(bare.losses)
            allowed = max(LEARNS_ALIKE * usual, SMALL_LOSS)
            remark = "" if abs(loss - usual) <= allowed else ", **not alike**"
        lines.append(
            f"| {name} {measured.version}{remark} | {rounded(statistics.median(measured.round_seconds)):g} | {times} | "
            f"{rounded(statistics.median(measured.fixed_seconds)):g} | "
            f"{statistics.median(measured.peak_mib):.0f} |"
        )
    lines.append("")
    lines += [f"{name} is not in this table: {reason}." for name, reason in failed.items()]
    return lines


def compared(
    work: str, tools: dict[str, Path], turns: int
) -> tuple[dict[str, Measurement], dict[str, str]]:
    """Let tools do a work in turns; return what each took, and why some have nothing."""
    results = {name: Measurement() for name in tools if work in TOOLS[name].works}
    failed: dict[str, str] = {}
    for turn in range(turns):
        for name in list(results):
            try:
                measure(tools[name], TOOLS[name], work, results[name])
            except Absent as reason:
                failed[name] = str(reason)
                del results[name]
                continue
            latest = results[name].round_seconds[-1]
            print(f"{work}, turn {turn + 1}, {name}: {latest:.4g} s a round", file=sys.stderr)
    return results, failed


def main() -> None:
    """Read the command line, measure, print the tables and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--works", nargs="*", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache/fedskew-peers")
    parser.add_argument("--write", type=Path, help="a page with marks for each work")
    options = parser.parse_args()
    tools: dict[str, Path] = {}
    absent = [f"{name} has no package to install" for name in NOT_INSTALLABLE]
    for name in options.tools:
        try:
            tools[name] = environment(name, TOOLS[name], options.environments)
        except Absent as reason:
            absent.append(str(reason))
    load = os.getloadavg()[0]
    conditions = f"{os.cpu_count()} cores, load {load:.1f} before, {options.turns} turns."
    for work in options.works:
        results, failed = compared(work, tools, options.turns)
        lines = [*table(work, results, failed), conditions]
        print("\n".join(lines))
        if options.write:
            write(options.write, f"peers {work}", lines)
    print(f"Not measured: {'; '.join(absent)}.")


if __name__ == "__main__":
    main()
