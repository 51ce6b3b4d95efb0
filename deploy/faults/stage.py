"""The federation that faults are done to: four sites, of which the victim runs as two halves.

The victim's halves, the link and the training, are two processes, as deploy/*.service start them. As systemd would,
`revive` starts again what was killed.
"""

import contextlib
import json
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from flwr.app import Error, Message
from local_federation import Job, LocalFederation

from client_app.messages import kind_of
from client_app.state import difference, norm
from fedskew.engines.local import RehearsalGrid
from fedskew.engines.processes import alive, free_port, marked, running
from fedskew.federation.service import SERVER_APP
from fedskew.signals import one_interrupt
from server_app.app import run as run_app
from server_app.checkpoint import Checkpoint
from server_app.run_folder import verified
from server_app.settings import parse, parse_texts
from site_agent.audit import Audit
from site_agent.config import read_sites

Result = TypeVar("Result")
VICTIM, NUMBER = "site-1", 1
LINK, TRAIN = f"{VICTIM}/link", f"{VICTIM}/train"
POLICY = '\n[policy]\nallow = ["model", "scores", "class-counts", "control-variates"]\n'
BASE = ["model=mlp-bn", "method=fedshift+fedbn", "node-wait=3", "evaluate-every=0"]
HALF = (".*.[0-9]*", ".round-*", "*.tmp", "*.part")
"""Names of files that are being written."""
COURTESY = 20.0
"""Seconds that a run's processes may take to be gone."""


class OfflineRounds(RehearsalGrid):
    """A rehearsal in which clients do not answer in some rounds of training."""

    missing: frozenset[tuple[int, int]] = frozenset()
    """Round and client."""

    def answer_here(self, message: Message) -> Message:
        """Return the reply, or the error that flwr gives in place of one."""
        task = message.content.config_records["task"]
        trains = kind_of(message) == "train"
        if trains and (task["round"], message.metadata.dst_node_id - 1) in self.missing:
            return Message(Error(8, "absent"), reply_to=message)
        return super().answer_here(message)


class Stage:
    """The federation, its processes and its runs."""

    def __init__(self, work: Path) -> None:
        self.work, self.federation = work, LocalFederation(work)
        self.port, self.secret = free_port(), work / "secret"
        self.names: list[str] = []

    def found(self, sites: int = 4) -> None:
        """Found the federation of so many sites, two of which make a round."""
        federation = self.federation
        federation.split("digits", sites)
        federation.found(min_sites=2)
        for place in federation.places.values():
            with (place / "site.toml").open("a") as file:
                file.write(POLICY)
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self.names = list(federation.places)

    @property
    def place(self) -> Path:
        """The victim's folder."""
        return self.federation.places[VICTIM]

    def half(self, name: str) -> None:
        """Start a half of the victim, link or train."""
        self.federation.start_half(VICTIM, name, self.port, self.secret)

    def revive(self) -> None:
        """Start whatever is not at work, and return when all sites are online."""
        self.supervise()
        self.federation.wait_for_sites()

    def supervise(self) -> None:
        """Start whatever is not at work, as a system's supervisor would."""
        self.federation.up()
        processes = self.federation.processes
        for half in (LINK, TRAIN):
            if half not in processes or processes[half].poll() is not None:
                self.half(half.rpartition("/")[2])
        for name in self.names:
            if name != VICTIM and (name not in processes or processes[name].poll() is not None):
                self.federation.start(name)

    def halt(self, *names: str) -> None:
        """End processes of sites in order, and return when the SuperLink knows that the sites are away."""
        self.federation.stop(*names)
        sites = {name.partition("/")[0] for name in names if name != TRAIN}

        def away() -> bool | None:
            states = self.federation.status()
            return all(states.get(site) != "online" for site in sites) or None

        until(away, f"{sorted(sites)} still online")

    def begin(self, name: str, *words: str) -> Job:
        """Start a run, whose name is its results' folder; every name has a seed of its own."""
        return self.federation.begin(stated(name, *words), name)

    def twin(self, job: Job, name: str, *words: str) -> dict[str, Any]:
        """Return the summary of the run in this process in which the same sites miss the same rounds."""
        missing = {(record["round"], client) for record in job.records() for client in range(len(self.names))
                   if client not in record["clients"]}  # fmt: skip
        return self.rehearse(missing, f"{name}-twin", *stated(name, *words))

    def rehearse(self, missing: set[tuple[int, int]], results: str, *words: str) -> dict[str, Any]:
        """Play all sites in this process but for the missing, by round and client; return the summary."""
        sites = read_sites(self.federation.sites)
        agreement = next(iter(sites.values())).agreement
        place = self.federation.work / results
        whole = {
            **parse_texts(words),
            "dataset": f"sites:{self.federation.folder / 'federation.toml'}",
            "results": str(place),
        }
        with one_interrupt(), OfflineRounds(sites, agreement) as grid:
            grid.missing = frozenset(missing)
            return run_app(grid, parse(whole), lambda line: None)

    def records(self, results: str) -> list[dict[str, Any]]:
        """Return the records of the rounds of a results' folder."""
        file = next((self.federation.work / results).glob("*/rounds.jsonl"))
        return [verified(line) for line in file.read_text().splitlines()]

    def distance(self, first: str, second: str) -> float:
        """Return the distance between the shared models of two results' folders."""
        states = [
            Checkpoint.load(
                next((self.federation.work / name).glob("*/checkpoint.safetensors"))
            ).shared
            for name in (first, second)
        ]
        return norm(difference(*states))

    def service(self, program: str) -> psutil.Process:
        """Return a process of the coordinator's."""
        return until(
            lambda: next(iter(running(self.federation.folder, program)), None), f"no {program}"
        )

    def of_victim(self, word: str, half: str) -> psutil.Process:
        """Return the process of one of the victim's halves whose command holds a word."""

        def find() -> psutil.Process | None:
            for process in psutil.Process(self.federation.processes[half].pid).children(
                recursive=True
            ):
                with contextlib.suppress(psutil.Error):
                    if any(word in part for part in process.cmdline()) and alive(process):
                        return process
            return None

        return until(find, f"no {word} at {VICTIM}")

    def supernode_says(self, words: str) -> int:
        """Return how often the victim's SuperNode has said something."""
        log = self.place / "state" / "link" / "supernode.log"
        return log.read_text(errors="replace").count(words) if log.exists() else 0

    def trainings(self) -> int:
        """Return how often the victim has answered with an update."""
        log = self.place / "state" / "audit.jsonl"
        entries = [json.loads(line) for line in Audit(log).lines()]
        return sum(entry["event"] == "answered" and entry["kind"] == "train" for entry in entries)

    def wait_for_training(self, job: Job, number: int) -> None:
        """Return while the victim trains in a round."""
        job.wait_for_round(number - 1)
        asked = self.supernode_says("Receiving: train")
        until(
            lambda: self.supernode_says("Receiving: train") > asked or None,
            "the victim is not asked to train",
        )
        # A training takes seconds, and what comes before it a moment.
        time.sleep(random.uniform(0.0, 1.5))

    def leftovers(self, job: Job) -> list[str]:
        """Return what should not be there after a run: a process of it, or a file that was being written."""
        problems = []
        deadline = time.monotonic() + COURTESY
        while (left := running(self.federation.folder, SERVER_APP)) and time.monotonic() < deadline:
            time.sleep(0.2)
        problems += [f"process {process.pid} is left" for process in left]
        places = [
            job.results,
            *(place / "state" / "runs" for place in self.federation.places.values()),
        ]
        problems += [
            f"{path.name} is left"
            for place in places
            for half in HALF
            for path in place.rglob(half)
        ]
        return problems

    def kill_all(self) -> None:
        """Kill -9 every process of coordinator and sites."""
        ours = [
            process for root in self.federation.processes.values() for process in tree(root.pid)
        ]
        for process in [*ours, *marked(self.federation.folder)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for root in self.federation.processes.values():
            root.wait(10)


def tree(number: int) -> list[psutil.Process]:
    """Return a process and its descendants."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(number)
        return [root, *root.children(recursive=True)]
    return []


def until(look: Callable[[], Result | None], problem: str, seconds: float = 900.0) -> Result:
    """Return what `look` returns once it is something. Raises RuntimeError after a while."""
    deadline = time.monotonic() + seconds
    while (seen := look()) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{problem} after {seconds:g} s")
        time.sleep(0.05)
    return seen


def stated(name: str, *words: str) -> list[str]:
    """Return the settings of a run: those of all rows, unless `words` have others, and a seed of its own."""
    by_key = {word.partition("=")[0]: word for word in (*BASE, f"seed={seed_of(name)}", *words)}
    return list(by_key.values())


def seed_of(name: str) -> int:
    """Return the seed of a run, which makes it another run than all others: of ROW-TIME."""
    row, _, trial = name.partition("-")
    return 1000 * int(row) + int(trial)
