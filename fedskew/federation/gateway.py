"""The gateway: the one port of a federation that its sites reach. `python -m fedskew.federation.gateway FOLDER`.

A SuperLink serves three interfaces on one port, and two of them require no account. Anyone who reaches that port can
submit code, remove a hospital, or take over the running ServerApp with all updates. The gateway therefore forwards only
the fleet requests of SuperNodes, and only those of the sites in federation.toml, which it reads again when it changes.
It checks who signed a request, and when, before it reads the body. It forwards a reply only if the node that pushes it
is also its sender.

A node that asks for messages asks every 3 seconds, and loses a message when its connection is cut. So the gateway holds
the question until there is a message, and repeats the message until the node's next action shows that it has arrived.
lost_messages.py recovers messages that are lost for good.
"""

import asyncio
import contextlib
import dataclasses
import logging
import resource
import ssl
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from google.protobuf.message import DecodeError
from prometheus_client import start_http_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from data import DataError
from data.agreement import Agreement, as_flower_has_it, read_agreement
from data.file_stamps import stamp_of
from data.log_files import rotate
from fedskew.federation.connections import Connections, InPieces, Server
from fedskew.federation.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    bytes_to_public_key,
    verify_signature,
)
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.gateway_metrics import Traffic
from fedskew.federation.handed_out import HandedOut
from fedskew.federation.intake import (
    SMALL,
    Intake,
    NoRoom,
    TooLarge,
    TooManyRequests,
    TooSlow,
    pieces_of,
    size_of,
    streamed,
)
from fedskew.federation.limits import Allowances, address_of
from fedskew.federation.lost_messages import BEGIN, END, LostMessageRecovery
from fedskew.federation.object_cache import Objects, Reply
from fedskew.federation.participants import Participants, decline
from fedskew.federation.turns import OWN, NoTurn, Turns
from fedskew.federation.waiting_messages import WaitingMessages

log = logging.getLogger("fedskew.gateway")
PULL = "/v1/fleet/pull-messages"
PUSH = "/v1/fleet/push-messages"
OBJECT = "/v1/fleet/pull-object"
UPLOAD = "/v1/fleet/push-object"
CONFIRM = "/v1/fleet/confirm-message-received"
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
PASSED = frozenset(
    {
        BEGIN,
        END,
        HEARTBEAT,
        PULL,
        PUSH,
        OBJECT,
        UPLOAD,
        CONFIRM,
        "/v1/fleet/get-run",
        "/v1/fleet/get-fab",
    }
)
"""The paths that a registered SuperNode uses; only the coordinator registers nodes and removes them."""
HOLD = 15.0
"""Seconds that a question for messages is held at most; a node waits 30 for an answer."""
PAUSE = 1.0
"""Seconds between two looks whether a question for messages is still to be held. Where the SuperLink's database cannot
be read, the SuperLink is asked as often."""
SIGNED = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
AGES = (-5.0, 305.0)
"""Seconds between which flwr takes a signature: beyond, a clock is wrong, or a request is sent again."""
TIMEOUT = 60.0
"""Seconds that the SuperLink has for an answer."""
POOL = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=2.0)
"""Connections to the SuperLink. It closes one that is idle for 5 seconds, and a busy SuperLink does so although a
request has come. So the gateway uses none that has been idle for longer than 2 seconds."""
UNANSWERED = 503
"""The gateway's status where the SuperLink gives none, and where there is no room; a SuperNode then asks again."""
HANDED_OUT = "handed-out.jsonl"
"""File in the folder of flwr's state that says which objects each site was told of."""
ROTATION = 60.0
"""Seconds between two looks at the size of the services' logs."""
CLOSE = {"connection": "close"}
"""Header of an answer before the whole body was read."""
LITTLE = 9999
"""Bytes of a body that may be left when a request is refused. A new connection costs the gateway more."""
LATER = {"retry-after": "1"}
"""Header of an answer to a request that may be sent again."""
REFUSALS, REFUSALS_AT_ONCE = 5.0, 50.0
"""Refusals of a site, or of an address where none has signed, that are sent within a second, and at once. More wait:
who is refused asks again at once, and looking at a signature or a body's head is work."""
OTHER_FILES = 256
"""Files that the gateway opens beside its connections: those to the SuperLink, logs, its own state."""
LONGEST_REFUSAL = 30.0
"""Seconds that a refusal waits at most."""
REPEATED = 10.0
"""Seconds between two lines about the same limit and site."""


class Refusal(Exception):
    """An answer of the gateway's own to a request that it does not pass on."""

    def __init__(self, status: int, limit: str = "", claimed: str = "") -> None:
        """Say why.

        Args:
            status: of the answer.
            limit: the key of the limit that the request has met, if any.
            claimed: the site whose key the request names, where nobody has looked at the signature.
        """
        super().__init__(status, limit)
        self.status = status
        self.limit = limit
        self.claimed = claimed
        self.headers = dict(LATER) if status in (429, UNANSWERED) else {}


class Gateway:
    """Answers the sites' requests with those of the SuperLink."""

    def __init__(self, folder: FederationFolder) -> None:
        self.agreement_file = folder.agreement_file
        self.read_at = stamp_of(self.agreement_file)
        self.sites = sites_by_key(folder.agreement)
        self.largest = folder.coordinator.largest_message
        self.largest_reply = folder.coordinator.largest_reply
        self.limits = folder.coordinator.limits
        self.uploaded = Counter[str]()
        """By site, the bytes of the objects that it has uploaded since its last message was handed out to it."""
        self.behind = f"https://127.0.0.1:{folder.coordinator.superlink_port}"
        authority = ssl.create_default_context(cafile=str(folder.authority[0]))
        self.client = httpx.AsyncClient(
            verify=authority,
            timeout=TIMEOUT,
            limits=POOL,
            trust_env=False,
        )
        self.turns = Turns(self.limits)
        self.refusals = Allowances(REFUSALS, REFUSALS_AT_ONCE, debt=REFUSALS * LONGEST_REFUSAL)
        self.warned: dict[tuple[str, str], float] = {}
        """By site or unknown and limit, when the log had its last line about it."""
        self.connections = Connections(self.limits, self.refuse)
        self.newest: dict[str, Request] = {}
        """By site, its newest question for messages; an older one ends."""
        self.sent: dict[str, Reply] = {}
        """By site, the message that is on its way to it."""
        self.lost_messages = LostMessageRecovery(self.sites.values(), self.ask)
        self.waiting_messages = WaitingMessages(folder.state / DATABASE)
        self.objects = Objects()
        self.handed_out = HandedOut(folder.state / HANDED_OUT)
        self.intake = Intake(self.largest, self.limits)
        self.participants = Participants(folder.state)
        self.traffic = Traffic(self.sites.values(), folder.state)
        self.traffic.connections.set_function(lambda: len(self.connections.open))

    def refresh(self) -> None:
        """Take over the sites of federation.toml if the file has changed.

        A removed key is refused from the next request on. The sites stay as they are while the file cannot be read,
        and the log says so.
        """
        stamp = stamp_of(self.agreement_file)
        if stamp == self.read_at:
            return
        self.read_at = stamp
        try:
            sites = sites_by_key(read_agreement(self.agreement_file))
        except DataError as error:
            log.error("the sites stay as they were: %s", error)
            return
        before, self.sites = self.sites, sites
        # A name whose key is another one stands in both: what its former node had is dropped as if it had left.
        for site in sorted(names_of(before, without=sites)):
            log.info("%s is no site with its former key any more", site)
            for by_site in (self.sent, self.lost_messages.nodes):
                by_site.pop(site, None)
            self.traffic.leave(site)
        for site in sorted(names_of(sites, without=before)):
            log.info("%s is a site with a new key", site)
            self.lost_messages.join(site)
            self.traffic.join(site)

    def application(self) -> Starlette:
        """Return the gateway as an ASGI application."""
        methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=methods)])

    async def answer(self, request: Request) -> Response:
        """Pass a request on, or refuse it.

        404 is for another path, 403 for another key, node or object, 413 for a large body or reply, 408 for a slow
        one, 429 for too many requests or connections at a time, 503 where there is no room for a body or no turn.
        """
        began = time.perf_counter()
        site = None
        try:
            self.check_claim(request)
            site = self.site(request)
            status, content, headers = await self.exchange(request, site)
        except Refusal as refusal:
            await self.refuse_later(request, site, refusal)
            status, content, headers = refusal.status, b"", refusal.headers
            if not has_small_body(request):
                headers |= CLOSE
        seconds = time.perf_counter() - began
        name = site or "unknown"
        received = getattr(request.state, "received", 0)
        self.traffic.add(site, request.url.path, status, received, len(content), seconds)
        log.info(
            "%s %s %s %r: %d, %.3f s",
            name,
            host_of(request),
            request.method,
            request.url.path,
            status,
            seconds,
        )
        return InPieces(content, status, headers)

    def check_claim(self, request: Request) -> None:
        """Raise Refusal for a site with too many requests, by the key alone: a look at the signature is work."""
        self.refresh()
        claimed = self.claimed_site(request)
        if claimed is not None and self.intake.is_full(claimed):
            raise Refusal(429, "requests-at-a-time", claimed)

    async def refuse_later(self, request: Request, site: str | None, refusal: "Refusal") -> None:
        """Count a refusal, and wait where there are many of a site or an address."""
        who = site or refusal.claimed or address_of(host_of(request))
        if refusal.limit:
            self.refuse(refusal.limit, who)
        if refusal.status != UNANSWERED:  # it has waited already
            await asyncio.sleep(self.refusals.of(who).take())

    def refuse(self, limit: str, who: str) -> None:
        """Count that a site or an address has met a limit; the log says so once in a while."""
        name = who if who in self.sites.values() else "unknown"
        self.traffic.refuse(name, limit)
        now = time.monotonic()
        if now - self.warned.get((name, limit), -REPEATED) >= REPEATED:
            self.warned[name, limit] = now
            log.warning("%s has met the limit %s", who, limit)

    async def exchange(self, request: Request, site: str | None) -> Reply:
        """Return the answer to a request. Raises Refusal."""
        if request.method != "POST" or request.url.path not in PASSED:
            raise Refusal(404)
        if site is None:
            raise Refusal(403)
        if not self.connections.signed(request.client, site):
            raise Refusal(429)
        return await self.of_site(request, site)

    async def of_site(self, request: Request, site: str) -> Reply:
        """Return the answer to a site's request. Raises Refusal where the site meets a limit."""
        most = self.largest if request.url.path == UPLOAD else min(self.largest, SMALL)
        try:
            size = size_of(request, most)
            async with self.intake.room(site, size):
                if request.url.path == UPLOAD:
                    self.count_upload(site, size)
                pieces = await pieces_of(request, size, self.limits)
                if request.url.path == UPLOAD:
                    self.lost_messages.last_seen[site] = time.monotonic()
                    self.at_work(site)
                    return await self.ask_in_turn(request, pieces, site)
                return await self.small(request, b"".join(pieces), site)
        except TooLarge as error:
            raise Refusal(413, error.limit) from None
        except TooSlow as error:
            raise Refusal(408, error.limit) from None
        except TooManyRequests:
            raise Refusal(429, "requests-at-a-time") from None
        except NoRoom:
            raise Refusal(UNANSWERED, "room for bodies") from None
        except NoTurn:
            raise Refusal(UNANSWERED, "requests-per-second") from None

    def count_upload(self, site: str, size: int) -> None:
        """Count the bytes of an object. Raises TooLarge where a site's reply to one message has too many of them.

        Without a limit one site could fill the coordinator's disk, in which the SuperLink keeps objects.
        """
        if self.uploaded[site] + size > self.largest_reply:
            most = self.largest_reply // 2**20
            log.warning("%s: its reply has more than largest-reply-mib = %d", site, most)
            raise TooLarge("largest-reply-mib")
        self.uploaded[site] += size

    async def small(self, request: Request, body: bytes, site: str) -> Reply:
        """Return the answer to any request but one that brings an object. Raises Refusal."""
        if request.url.path == PUSH and not of_its_node(body):
            raise Refusal(403)
        if request.url.path == OBJECT and not self.handed_out.allows_fetching(site, body):
            raise Refusal(403)
        if request.url.path == CONFIRM and not self.handed_out.allows_confirming(site, body):
            raise Refusal(403)
        if request.url.path == BEGIN:
            await self.lost_messages.end_former(request, site)
        else:
            self.lost_messages.last_seen[site] = time.monotonic()
        if request.url.path == PULL:
            return await self.message(request, body, site)
        if request.url.path == END:
            self.lost_messages.nodes.pop(site, None)
        if request.url.path == HEARTBEAT:
            await self.lost_messages.ended(site)
        else:
            self.at_work(site)
        if request.url.path == OBJECT:
            return await self.object(request, body, site)
        return await self.ask_in_turn(request, [body], site)

    async def object(self, request: Request, body: bytes, site: str) -> Reply:
        """Return an object that a site may fetch.

        The site waits for its turn first. The fetch itself is the gateway's own: other sites may wait for it too.
        """
        async with self.turns.turn(site):
            pass
        reply = await self.objects.get(body, lambda: self.ask_in_turn(request, [body], OWN))
        self.turns.charge(site, len(reply[1]))
        return reply

    async def ask_in_turn(self, request: Request, pieces: list[bytes], site: str) -> Reply:
        """Return the SuperLink's answer to a site's request, when it is the site's turn. Raises NoTurn."""
        async with self.turns.turn(site, sum(map(len, pieces))):
            return await self.ask(request, pieces)

    def at_work(self, site: str) -> None:
        """Record that a site acts on its message, which has therefore arrived."""
        self.sent.pop(site, None)
        self.lost_messages.uncertain.discard(site)

    async def message(self, request: Request, body: bytes, site: str) -> Reply:
        """Return the next message for a site, or after a while that there is none."""
        began = time.monotonic()
        try:
            node = PullMessagesRequest.FromString(body).node.node_id
        except DecodeError:
            raise Refusal(403) from None
        self.lost_messages.nodes[site] = node
        self.newest[site] = request
        if site in self.sent:  # the way to the site was cut: it has not come
            return self.sent[site]
        reply = await self.fetch_waiting(request, body, site)
        while site not in self.sent:
            status = reply[0]
            seconds = time.monotonic() - began
            if self.holder(request) != site:  # it was removed or renamed, or has another key
                return UNANSWERED, b"", {}
            if status == 200 and self.lost_messages.is_doubtful(site, seconds):
                await self.lost_messages.recover_lost(request, site)
            elif (
                status != 200
                or seconds > HOLD
                or self.newest[site] is not request  # a SuperNode has one question at a time
                or await request.is_disconnected()
            ):
                if status == UNANSWERED:  # the SuperLink may have given a message out all the same
                    self.lost_messages.uncertain.add(site)
                return reply
            if await self.waiting_messages.wait(node, PAUSE):
                reply = await self.fetch_waiting(request, body, site)
        return self.sent[site]

    async def fetch_waiting(self, request: Request, body: bytes, site: str) -> Reply:
        """Return what the SuperLink has for a site, and note a message that the site is to get."""
        async with self.turns.turn(site, is_work=False):
            reply = await self.ask(request, [body])
        status, content, headers = reply
        response = PullMessagesResponse.FromString(content if status == 200 else b"")
        runs = {message.metadata.run_id for message in response.messages_list}
        if self.holder(request) != site or not response.messages_list:
            return reply
        if all(self.participants.allows(site, run) for run in runs):
            self.handed_out.note(site, response)
            self.uploaded.pop(site, None)
            self.sent[site] = reply
            self.lost_messages.uncertain.discard(site)
        else:
            log.info("%s takes no part in run %s", site, ", ".join(map(str, runs)))
            await decline(response, self.lost_messages.nodes[site], request, self.ask)
            return status, b"", headers
        return reply

    async def ask(self, request: Request, pieces: list[bytes], path: str = "") -> Reply:
        """Return the SuperLink's answer to a request with a body in pieces, to its own path or another."""
        path = path or request.url.path
        headers = kept(request.headers)
        headers["content-length"] = str(sum(map(len, pieces)))
        try:
            answer = await self.client.post(
                self.behind + path, content=streamed(pieces), headers=headers
            )
        except httpx.HTTPError as error:
            log.warning("the SuperLink does not answer: %r", error)
            return UNANSWERED, b"", {}
        return answer.status_code, answer.content, kept(answer.headers)

    def holder(self, request: Request) -> str | None:
        """Return the name of the site that has a request's key by now, whoever has signed it; or None.

        For a question that is held open, whose signature was checked when it came: an elliptic-curve check
        at every look, once a second and site, would be most of an idle gateway's work.
        """
        self.refresh()
        return self.claimed_site(request)

    def claimed_site(self, request: Request) -> str | None:
        """Return the name of the site whose key a request names, whoever has signed it; or None."""
        try:
            return self.sites.get(b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER]))
        except (LookupError, ValueError):
            return None

    def site(self, request: Request) -> str | None:
        """Return the name of the site whose key has signed a request, lately by its own clock; or None."""
        try:
            pem, signature = (b64decode(request.headers[name], validate=True) for name in SIGNED)
            name = self.sites[pem]
            stamp = request.headers[TIMESTAMP_HEADER]
            age = datetime.now(UTC) - datetime.fromisoformat(stamp)
            signed = verify_signature(bytes_to_public_key(pem), stamp.encode("ascii"), signature)
        except (LookupError, ValueError, TypeError):
            return None
        least, most = AGES
        recent = least < age.total_seconds() < most
        return name if signed and recent else None


def sites_by_key(agreement: Agreement) -> dict[bytes, str]:
    """Return the names of the agreement's sites by their keys, as flwr has them."""
    return {as_flower_has_it(site.key): site.name for site in agreement.sites}


def names_of(sites: dict[bytes, str], without: dict[bytes, str]) -> set[str]:
    """Return the names that `sites` have under keys that do not stand for the same name in `without`."""
    return {name for key, name in sites.items() if without.get(key) != name}


def host_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client else "?"


def has_small_body(request: Request) -> bool:
    """Return whether what may be left of a request's body is so little that the connection may stay."""
    stated = request.headers.get("content-length", "")
    return stated.isascii() and stated.isdigit() and len(stated) <= len(str(LITTLE))


def of_its_node(body: bytes) -> bool:
    """Return whether replies say that they are from the node in whose name they are pushed.

    The SuperLink compares the key with that name, and with nothing that stands in a reply.
    """
    try:
        pushed = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    return all(reply.metadata.src_node_id == pushed.node.node_id for reply in pushed.messages_list)


def kept(headers: Any) -> dict[str, str]:
    """Return flwr's headers, and the body's type."""
    result = {}
    for name, value in headers.items():
        if name.lower().startswith("flwr-") or name == "content-type":
            result[name] = value
    return result


def keep_logs_small(folder: FederationFolder) -> None:
    """Rotate the services' logs, once a minute, for ever; under systemd there are none, as journald has them."""
    while True:
        for name in ("gate", "superlink"):
            try:
                rotate(folder.state / f"{name}.log")
            except OSError as error:
                log.error("%s.log does not rotate: %s", name, error)
        time.sleep(ROTATION)


def allow_files(gateway: Gateway) -> None:
    """Let this process open as many files as its connections need; where it may not, say so and have fewer."""
    limits = gateway.limits
    needed = limits.connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # a service's unit may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        fewer = max(1, soft - OTHER_FILES)
        log.warning("this process may open %d files: at most %d connections", soft, fewer)
        gateway.connections.limits = dataclasses.replace(limits, connections=fewer)


def main() -> None:
    """Serve until a signal comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = FederationFolder(Path(sys.argv[1]))
    try:
        gateway = Gateway(folder)
        coordinator = folder.coordinator
    except DataError as error:
        sys.exit(f"gateway: {error}")
    if coordinator.metrics_port:
        start_http_server(
            coordinator.metrics_port, addr="127.0.0.1", registry=gateway.traffic.registry
        )
    threading.Thread(target=keep_logs_small, args=(folder,), daemon=True).start()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*folder.server)
    allow_files(gateway)
    config = uvicorn.Config(
        gateway.application(),
        host=coordinator.listen,
        port=coordinator.port,
        ws="none",
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    Server(config, gateway.connections, context).run()


if __name__ == "__main__":
    main()
