"""What an attack needs: a federation at work, its keys and logs, and what counts as a refusal."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from local_federation import LocalFederation

from data.agreement import as_flower_has_it
from fedskew.federation.folder import FederationFolder
from fedskew.federation.superlink import Control
from site_agent.audit import Audit
from site_agent.keys import read_key

PATIENCE = 300.0
"""Seconds until a line must stand in a log."""
AT_WORK, ALONE = "federation", "in process"
"""Where an attack is tried: on the federation while it trains, or on the same code in this process."""


class Succeeded(Exception):
    """An attack that nothing has refused."""


class ControlFailed(Exception):
    """An honest request that did not pass: a refusal of the attack beside it would show nothing."""


class Untried(Exception):
    """An attack that could not be tried, though this machine could."""


class Skipped(Exception):
    """An attack that cannot be tried on this machine."""


@dataclass(frozen=True)
class Refusal:
    """How something was refused, or has to be."""

    kind: str
    """The HTTP status (`HTTP 403`), the exception's type, or the event in a log or record."""
    line: str
    """The sentence that says so; of a refusal that is expected, words that must stand in it."""

    def is_as(self, expected: "Refusal") -> bool:
        """Return whether this refusal is of the expected kind and for the expected reason."""
        return self.kind == expected.kind and expected.line in self.line


@dataclass(frozen=True)
class Attack:
    """One row of the table: an honest request, the attack, and the one way in which the attack has to be refused."""

    what: str
    who: str
    where: str
    honest: Callable[["Stage"], str]
    """Makes the honest request and returns a line that shows that it passed. Raises ControlFailed where it does not."""
    attempt: Callable[["Stage"], list[Refusal]]
    """Makes the attack and returns how it was refused. Raises Succeeded where it was not."""
    expected: tuple[Refusal, ...]
    """The refusals that `attempt` has to return, in this order."""


class Log:
    """The lines that are written to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """Return them."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace").splitlines()

    def wait_for(
        self,
        *words: str,
        seconds: float = PATIENCE,
        missing: type[Exception] = Succeeded,
    ) -> str:
        """Return the first line that holds all words. Raises `missing` when there is none in time."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self.lines():
                if all(word in line for word in words):
                    return line
            if time.monotonic() > deadline:
                raise missing(f"{self.path.name} holds no line with {' and '.join(words)}")
            time.sleep(0.2)


class Stage:
    """A federation at work."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation, self.folder = federation, FederationFolder(federation.folder)
        self.authority = self.folder.authority[0].read_bytes()
        coordinator = self.folder.coordinator
        self.address = f"{coordinator.host}:{coordinator.port}"
        self.control = Control(self.folder)

    @property
    def names(self) -> list[str]:
        """The sites' names."""
        return self.folder.agreement.names

    def place(self, site: int) -> Path:
        """Return a site's folder."""
        return self.federation.places[self.names[site]]

    def key(self, site: int) -> ec.EllipticCurvePrivateKey:
        """Return a site's private key."""
        return read_key(self.place(site) / "node.key")

    @cached_property
    def nodes(self) -> list[int]:
        """The sites' node ids, which no site is told of."""
        nodes = self.control.ask("ListNodes", ListNodesRequest()).nodes_info
        numbers = {node.public_key: node.node_id for node in nodes if node.status != "unregistered"}
        return [numbers[as_flower_has_it(site.key)] for site in self.folder.agreement.sites]

    def log(self, name: str) -> Log:
        """Return a log of the coordinator's, gateway or superlink."""
        return Log(self.folder.state / f"{name}.log")

    def site_log(self, site: int) -> Log:
        """Return a site's log."""
        return Log(self.place(site) / "state" / "site.log")

    def audit(self, site: int) -> list[dict[str, Any]]:
        """Return the entries of a site's audit log."""
        return [json.loads(line) for line in Audit(self.place(site) / "state/audit.jsonl").lines()]

    def fleet(
        self,
        key: ec.EllipticCurvePrivateKey,
        public: ec.EllipticCurvePublicKey | None = None,
        also: tuple[Any, ...] = (),
    ) -> FleetHttpClient:
        """Return a client of the gateway that signs with a key, and says that it is another one's if that is given.

        `also` are interceptors that see its requests signed.
        """
        return self.client(FleetHttpClient, key, public, also)

    def client(
        self,
        kind: Any,
        key: ec.EllipticCurvePrivateKey,
        public: ec.EllipticCurvePublicKey | None = None,
        also: tuple[Any, ...] = (),
    ) -> Any:
        """Return one of flwr's clients, talking to the gateway as a node."""
        signed = NodeAuthHttpInterceptor(key, public or key.public_key())
        return kind.from_server_address(self.address, False, self.authority, [signed, *also])

    def passed_by_gate(self, path: str, call: Callable[[], Any]) -> tuple[Any, str]:
        """Return the answer to an honest call, and the gateway's line on it. Raises ControlFailed without both."""
        log = self.log("gate")
        try:
            answer = call()
        except httpx.HTTPError as error:
            raise ControlFailed(f"{path}: {type(error).__name__}: {error}") from None
        words = f"'{path}': 200"
        log.wait_for(words, missing=ControlFailed)
        # Of several lines the last is this call's: the gateway writes it before it answers.
        return answer, [line for line in log.lines() if words in line][-1]

    def refused_by_gate(self, path: str, call: Callable[[], object]) -> Refusal:
        """Return the status by which a call is refused, and the gateway's line on it."""
        log = self.log("gate")
        status = refusal(call)
        return Refusal(f"HTTP {status}", log.wait_for(f"'{path}': {status}"))


def elsewhere(call: Callable[[], Any], seconds: float, user: int | None = None) -> tuple[str, str]:
    """Return what a call gives in a process of its own: the exception's type or nothing, and a sentence.

    The process is forked, as another `user` may not be able to read this interpreter's files. Raises TimeoutError where
    the call takes longer; its process is killed then.
    """
    context = get_context("fork")
    ours, theirs = context.Pipe()

    def attempt() -> None:
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            theirs.send(("", str(call())))
        except BaseException as error:  # SystemExit of a command among them
            theirs.send((type(error).__name__, str(error)))

    process = context.Process(target=attempt)
    process.start()
    try:
        if not ours.poll(seconds):
            raise TimeoutError(f"no answer after {seconds:g} s")
        kind, sentence = ours.recv()
        process.join(10)
    finally:
        process.kill()
        process.join()
    return str(kind), str(sentence)


def refusal(call: Callable[[], object]) -> int:
    """Return the status by which a call is refused. Raises Succeeded where it is not."""
    try:
        answer = call()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    raise Succeeded(f"the answer is {answer!r}"[:200])


def raised(call: Callable[[], object], before: str = "") -> list[Refusal]:
    """Return the exception that a call raises, its sentence behind `before`. Raises Succeeded where it raises none."""
    try:
        answer = call()
    except Exception as error:
        return [Refusal(type(error).__name__, f"{before}{error}")]
    raise Succeeded(f"the answer is {answer!r}"[:200])


def require(holds: object, sentence: str) -> None:
    """Raise ControlFailed with a sentence unless something holds."""
    if not holds:
        raise ControlFailed(sentence)


def shown(lines: Iterable[str], stage: Stage) -> str:
    """Return lines without colours, keys in full, and what is only this machine's: the folders."""
    text = re.sub(r"\x1b\[[0-9;]*m|b'-----BEGIN.*?-----END[^']*'", "", "\n".join(lines))
    for folder in (stage.federation.work, Path(__file__).resolve().parents[2]):
        text = text.replace(f"{folder}/", "")
    return text
