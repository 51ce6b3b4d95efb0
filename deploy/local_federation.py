"""A federation on this machine, made by the commands of docs/guides/deployment.md, for the scripts beside this file.

What founds and looks is called in this process, as each start of the command line takes seconds; what stays, the
SuperLink and each site's `fedskew-site start`, are processes of their own.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fedskew.cli.application import application
from fedskew.engines.processes import free_port
from fedskew.federation.control import Control, Unreachable
from fedskew.federation.folder import FederationFolder
from server_app.run_folder import verified
from site_agent.cli import application as site_application

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SPLITS = {"digits": ["alpha=0.5"], "abide": [f"data-root={os.environ.get('DATA_ROOT', '')}"]}
"""By data set, how it is partitioned; abide's hospitals are its domains."""
MODELS = {"digits": "mlp-bn", "abide": "auto"}
SITE = """\
{keys}federation = "federation.toml"
name = "{name}"
data = "npz:data.npz"
state = "state"

[link]
address = "{address}"
key = "node.key"
ca = "ca.crt"
"""
ONLINE = 900.0
"""Seconds until all sites have to be there."""
PARTING = 20.0
"""Seconds that a site's processes have to end."""


def fedskew(*words: str | Path, quiet: bool = False) -> str:
    """Call `fedskew WORDS` in this process and return what it prints. Raises what the command raises."""
    shown = [str(word) for word in words]
    if not quiet:
        print(f"$ fedskew {' '.join(shown)}"[:200], flush=True)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = application(shown, standalone_mode=False)
    if isinstance(status, int) and status:
        raise SystemExit(f"fedskew {' '.join(shown)} ended with {status}: {output.getvalue()}")
    return output.getvalue()


def fedskew_site(*words: str | Path) -> str:
    """Call `fedskew-site WORDS` in this process and return what it prints. Raises what the command raises."""
    shown = [str(word) for word in words]
    print(f"$ fedskew-site {' '.join(shown)}"[:200], flush=True)
    mask = os.umask(0o077)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = site_application(shown, standalone_mode=False)
    finally:
        os.umask(mask)
    if isinstance(status, int) and status:
        raise SystemExit(f"fedskew-site {' '.join(shown)} ended with {status}: {output.getvalue()}")
    return output.getvalue()


def settings(words: Sequence[str]) -> list[str]:
    """Return settings as the command line takes them."""
    return [part for word in words for part in ("--set", word)]


class Job:
    """A `fedskew federation run` in a process of its own, followed by its records."""

    def __init__(self, words: Sequence[str], results: Path) -> None:
        self.results = results
        results.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        self.log = results.with_name(f"{results.name}.log")
        self.summary = results.with_name(f"{results.name}.summary")
        with self.log.open("wb") as log, self.summary.open("wb") as summary:
            self.process = subprocess.Popen([BIN / "fedskew", *words], stdout=summary, stderr=log)

    @cached_property
    def folder(self) -> Path:
        """The run's folder, once there is one."""
        while not (places := list(self.results.glob("*/settings.json"))):
            self.check()
            time.sleep(0.1)
        return places[0].parent

    @property
    def words(self) -> str:
        """What the command has said."""
        return self.log.read_text()

    def check(self) -> None:
        """Raise RuntimeError with its words when the command has failed."""
        if self.process.poll():
            raise RuntimeError(f"the run ended with {self.process.returncode}: {self.words[-600:]}")

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the rounds so far."""
        file = self.folder / "rounds.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [verified(line.strip()) for line in lines if line.endswith("\n")]

    def rounds(self) -> int:
        """Return how many rounds are recorded, without reading what stands in them."""
        file = self.folder / "rounds.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def wait_for_round(self, number: int, seconds: float = 600.0) -> float:
        """Return the seconds since the beginning once a round is recorded.

        Raises RuntimeError when the run fails or so many seconds go by without a round.
        """
        done, until = self.rounds(), time.monotonic() + seconds
        while done < number:
            self.check()
            time.sleep(0.05)
            if (rounds := self.rounds()) > done:
                done, until = rounds, time.monotonic() + seconds
            elif time.monotonic() > until:
                self.process.kill()
                raise RuntimeError(
                    f"round {done + 1} is not over after {seconds:g} s: {self.words[-600:]}"
                )
        return time.monotonic() - self.began

    def finish(self, seconds: float = 600.0) -> dict[str, Any]:
        """Return the summary. Raises RuntimeError when the run fails or takes longer."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError(
                f"the run is not over after {seconds:g} s: {self.words[-600:]}"
            ) from None
        self.check()
        return dict(json.loads(self.summary.read_text()))


class LocalFederation:
    """A coordinator's folder and the sites' folders below `work`, and the processes that work on them."""

    def __init__(
        self,
        work: Path,
        site_lines: str = "",
        site_keys: str = "",
    ) -> None:
        """Make nothing yet.

        Args:
            work: where everything is made.
            site_lines: more lines at the end of each site.toml, a table such as [policy].
            site_keys: more lines at its beginning, keys such as weights.
        """
        self.work = work.resolve()
        self.site_lines = site_lines
        self.site_keys = site_keys
        self.folder = self.work / "coordinator"
        self.sites = self.work / "sites"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """By site, its `fedskew-site start`; by SITE/link and SITE/train, its halves."""
        self.jobs: list[Job] = []
        self.inputs: list[str] = []
        """Options of `federation new` that say what the inputs are."""

    @property
    def places(self) -> dict[str, Path]:
        """The sites' folders by name, in the agreement's order."""
        return {path.parent.name: path.parent for path in sorted(self.sites.glob("*/data.npz"))}

    def split(self, dataset: str, sites: int, *words: str) -> None:
        """Deal a data set out into a folder a site."""
        many = [] if dataset == "abide" else ["--sites", str(sites)]
        chosen = settings([*SPLITS[dataset], *words])
        printed = fedskew("data", "export-sites", dataset, self.sites, *many, *chosen)
        command = shlex.split(printed.splitlines()[-1])
        self.inputs = command[command.index("--classes") :]

    def found(
        self,
        min_sites: int = 2,
        agree: Callable[[str], str] = lambda text: text,
    ) -> None:
        """Make certificates, keys and the agreement, and let every site approve it.

        `agree` changes federation.toml's text before the sites get it.
        """
        address = f"127.0.0.1:{free_port()}"
        words = [
            "--name",
            "try",
            "--address",
            address,
            "--listen",
            "127.0.0.1",
            "--min-sites",
            str(min_sites),
        ]
        fedskew("federation", "new", self.folder, *words, *self.inputs)
        for name, place in self.places.items():
            lines = fedskew_site("key", place / "node.key", "--name", name)
            key_file = place / "key.txt"
            key_file.write_text(lines)
            fedskew("federation", "add", self.folder, name, key_file)
        agreement_file = self.folder / "federation.toml"
        agreement_file.write_text(agree(agreement_file.read_text()))
        for name, place in self.places.items():
            for file in ("federation.toml", "ca.crt"):
                shutil.copy(self.folder / file, place)
            lines = SITE.format(name=name, address=address, keys=self.site_keys)
            (place / "site.toml").write_text(lines + self.site_lines)
            fedskew_site(
                "approve",
                place / "federation.toml",
                ROOT,
                "--site",
                place / "site.toml",
                "--yes",
            )

    def prepare(self, dataset: str, sites: int, *words: str) -> None:
        """Deal a data set out, and make a federation of its sites."""
        self.split(dataset, sites, *words)
        self.found()

    def up(self) -> None:
        """Start the SuperLink where it is not up."""
        fedskew("federation", "up", self.folder)

    def start(self, *names: str) -> None:
        """Start sites, all of them by default; what they print goes to SITE/start.log."""
        for name in names or self.places:
            place = self.places[name]
            with (place / "start.log").open("ab") as log:
                words = [BIN / "fedskew-site", "start", "--site", place / "site.toml"]
                self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, cwd=place)

    def start_half(self, name: str, half: str, port: int, secret: Path) -> None:
        """Start a site's link or train as a process of its own, as `deploy/*.service` do."""
        place = self.places[name]
        words = [
            str(BIN / "fedskew-site"),
            "start",
            "--only",
            half,
            "--site",
            str(place / "site.toml"),
        ]
        with (place / f"{half}.log").open("ab") as log:
            self.processes[f"{name}/{half}"] = subprocess.Popen(
                [*words, "--port", str(port), "--secret", str(secret)],
                stdout=log,
                stderr=log,
                cwd=place,
            )

    def stop(self, *names: str) -> None:
        """End sites, all of them by default."""
        going = {name: self.processes.pop(name) for name in names or list(self.processes)}
        for process in going.values():
            process.terminate()
        for process in going.values():
            process.wait(timeout=PARTING)

    def status(self) -> Mapping[str, str]:
        """Return each site's status, online or since when it is away; nothing while the SuperLink does not answer."""
        folder = FederationFolder(self.folder)
        try:
            away = Control(folder).away(folder.agreement)
        except Unreachable:
            return {}
        return {name: away.get(name, "online") for name in folder.agreement.names}

    def wait_for_sites(self) -> None:
        """Return once all sites are online. Raises SystemExit when they are not in time."""
        deadline = time.monotonic() + ONLINE
        while {(states := self.status()).get(name) for name in self.places} != {"online"}:
            if time.monotonic() > deadline:
                sys.exit(f"after {ONLINE:g} s: {states}")
            time.sleep(0.3)

    def run(self, words: Sequence[str], results: str = "results") -> dict[str, Any]:
        """Run settings on the sites and return the summary."""
        trained = fedskew(*self.run_words(words, results))
        return dict(json.loads(trained))

    def begin(self, words: Sequence[str], results: str = "results") -> Job:
        """Start a run in a process of its own."""
        self.jobs.append(Job(self.run_words(words, results), self.work / results))
        return self.jobs[-1]

    def run_words(self, words: Sequence[str], results: str = "results") -> list[str]:
        """Return the words of `fedskew` that run settings on the sites and print the summary."""
        return ["federation", "run", str(self.folder), "--results", str(self.work / results), "--json",
                *settings(words)]  # fmt: skip

    def copied_sites(self, name: str, change: Callable[[str], str] = lambda text: text) -> Path:
        """Return a folder of the same sites without their state; `change` is made to federation.toml's text."""
        copies = self.work / name
        shutil.copytree(self.sites, copies, ignore=shutil.ignore_patterns("state"))
        text = change((self.folder / "federation.toml").read_text())
        for file in (copies / "federation.toml", *copies.glob("*/federation.toml")):
            file.write_text(text)
        return copies

    def rehearse(
        self, words: Sequence[str], results: str = "rehearsal", sites: Path | None = None
    ) -> dict[str, Any]:
        """Play the same site folders, or copies of them, in this process and return the summary."""
        agreed = (sites or self.folder) / "federation.toml"
        stated = settings([f"dataset=sites:{agreed}", *words])
        return dict(
            json.loads(
                fedskew(
                    "run",
                    "--sites",
                    sites or self.sites,
                    "--results",
                    self.work / results,
                    "--json",
                    *stated,
                )
            )
        )

    def down(self) -> None:
        """End the runs, the sites and the SuperLink."""
        for job in self.jobs:
            job.process.kill()
            job.process.wait()
        try:
            self.stop()
        finally:  # a site that does not end must not leave the SuperLink up
            fedskew("federation", "down", self.folder)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within this context the coordinator is up, and all sites are online."""
        try:
            self.up()
            self.start()
            self.wait_for_sites()
            yield
        finally:
            self.down()


def write_between(file: Path, marks: tuple[str, str], lines: Sequence[str]) -> None:
    """Put lines between two marks of a text, in place of what is there."""
    text = file.read_text()
    begin, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
    file.write_text(text[:begin] + "\n" + "\n".join(lines) + "\n" + text[end:])
