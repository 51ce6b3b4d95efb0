"""The gateway: the only port of a federation that sites can reach. `python -m fedskew.federation.gateway FOLDER`.

A SuperLink serves three interfaces on one port, and two of them require no account. Anyone who reaches that port can
submit code, remove a hospital, or take over the running ServerApp with all updates. The gateway therefore forwards only
the fleet requests of SuperNodes, and only those of the sites in federation.toml, which it reads again when it changes.
It checks who signed a request, and when, before it reads the body. It forwards a reply only if the node that pushes it
is also its sender.

A SuperNode polls for messages every 3 seconds, and loses a message when its connection breaks. So the gateway answers a
poll only when there is a message or after HOLD seconds (long polling), and repeats the message until the node's next
request shows that it has arrived. lost_messages.py recovers messages that are lost for good.
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
"""The paths that a registered SuperNode uses. Others, which register or remove nodes, are for the coordinator only."""
HOLD = 15.0
"""The longest time in seconds before a poll for messages is answered. A SuperNode's own timeout is 30 seconds."""
PAUSE = 1.0
"""Seconds between two checks whether an open poll is still valid. If the SuperLink's database cannot be read, the
gateway polls the SuperLink at this interval."""
SIGNED = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
"""The headers with a SuperNode's public key and signature, in base64."""
AGES = (-5.0, 305.0)
"""The least and the greatest age in seconds at which flwr accepts a signature. Outside them, a clock is wrong or an old
request is replayed."""
TIMEOUT = 60.0
"""Seconds within which the SuperLink must answer."""
POOL = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=2.0)
"""Connections to the SuperLink. It closes a connection that was idle for 5 seconds, and if it is busy, even when a
request has just arrived on it. So the gateway reuses no connection that was idle for more than 2 seconds."""
UNANSWERED = 503
"""The gateway's status if the SuperLink does not answer, or if there is no room or no turn. A SuperNode retries."""
HANDED_OUT = "handed-out.jsonl"
"""The file, in the folder of flwr's state, with the objects that each site may fetch."""
ROTATION = 60.0
"""Seconds between two checks of the size of the services' logs."""
CLOSE = {"connection": "close"}
"""The header of a refusal that is sent before the whole body was read."""
SMALL_REST = 9999
"""If a refused request has at most this many bytes of body, the connection stays open: reading them costs the gateway
less than a new connection."""
LATER = {"retry-after": "1"}
"""The header of a refusal after which the site may retry."""
REFUSALS, REFUSALS_AT_ONCE = 5.0, 50.0
"""Refusals per second, and refusals in a burst, that one site (for unsigned requests: one address) gets without delay.
Further ones are delayed: a refused client retries at once, and each check of a signature costs CPU time."""
OTHER_FILES = 256
"""Open files that the gateway needs besides its sites' connections: connections to the SuperLink, logs, its state."""
LONGEST_REFUSAL = 30.0
"""The longest delay of a refusal in seconds."""
NO_NODE = 0
"""The id in a request that names no node, and in a reply without metadata."""
REPEATED = 10.0
"""Seconds between two log lines about the same limit and site."""


class Refusal(Exception):
    """A request that the gateway answers itself with an error status and does not forward."""

    def __init__(self, status: int, limit: str = "", claimed: str = "") -> None:
        """Create a refusal.

        Args:
            status: The HTTP status of the answer.
            limit: The key of the limit that the request exceeds; empty if it exceeds none.
            claimed: The site whose key the request has, if the signature was not checked.
        """
        super().__init__(status, limit)
        self.status = status
        self.limit = limit
        self.claimed = claimed
        self.headers = dict(LATER) if status in (429, UNANSWERED) else {}


class Gateway:
    """Answers the sites' requests with the answers of the SuperLink."""

    def __init__(self, folder: FederationFolder) -> None:
        self.agreed_file = folder.text_in_force
        self.read_at = stamp_of(self.agreed_file)
        self.sites = sites_by_key(folder.agreement)
        self.largest = folder.coordinator.largest_message
        self.largest_reply = folder.coordinator.largest_reply
        self.limits = folder.coordinator.limits
        self.uploaded = Counter[str]()
        """By site, the bytes of the objects that it has uploaded since it last got a message."""
        self.superlink = f"https://127.0.0.1:{folder.coordinator.superlink_port}"
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
        """By (site or `unknown`, limit), the time of the last log line."""
        self.connections = Connections(self.limits, self.refuse)
        self.newest: dict[str, Request] = {}
        """By site, its newest poll for messages; older polls end."""
        self.sent: dict[str, Reply] = {}
        """By site, the message that was sent to it and not yet acknowledged by its next request."""
        self.lost_messages = LostMessageRecovery(self.sites.values(), self.ask)
        self.waiting_messages = WaitingMessages(folder.state / DATABASE)
        self.objects = Objects()
        self.handed_out = HandedOut(folder.state / HANDED_OUT)
        self.intake = Intake(self.largest, self.limits)
        self.participants = Participants(folder.state)
        self.traffic = Traffic(self.sites.values(), folder.state)
        self.traffic.connections.set_function(lambda: len(self.connections.open))

    def refresh(self) -> None:
        """Reload the sites of federation.toml if the file has changed.

        A removed key is refused from the next request on. While the file cannot be read, the sites stay as they are,
        and the log says so.
        """
        stamp = stamp_of(self.agreed_file)
        if stamp == self.read_at:
            return
        self.read_at = stamp
        try:
            sites = sites_by_key(read_agreement(self.agreed_file))
        except DataError as error:
            log.error("the sites stay as they were: %s", error)
            return
        before, self.sites = self.sites, sites
        # A site with a new key is in both loops: first it leaves, with its former node's state, then it joins.
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
        """Forward a request, or refuse it.

        The statuses of refusals: 404 for other paths, 403 for an unknown key, another site's node or an object that
        the site may not fetch, 413 for a body or reply that is too large, 408 for a body that is too slow, 429 for too
        many requests or connections at a time, 503 if there is no room for the body or the request gets no turn.
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
        """Raise Refusal if the site whose key the request has too many open requests.

        It does not check the signature, which costs more CPU time than this refusal saves.
        """
        self.refresh()
        claimed = self.claimed_site(request)
        if claimed is not None and self.intake.is_full(claimed):
            raise Refusal(429, "requests-at-a-time", claimed)

    async def refuse_later(self, request: Request, site: str | None, refusal: "Refusal") -> None:
        """Count a refusal, and delay it if a site or an address gets many."""
        who = site or refusal.claimed or address_of(host_of(request))
        if refusal.limit:
            self.refuse(refusal.limit, who)
        if refusal.status != UNANSWERED:  # those have waited for room or a turn already
            await asyncio.sleep(self.refusals.of(who).take())

    def refuse(self, limit: str, who: str) -> None:
        """Count that a site or an address has exceeded a limit; log it at most every REPEATED seconds."""
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
        return await self.exchange_with_site(request, site)

    async def exchange_with_site(self, request: Request, site: str) -> Reply:
        """Return the answer to a signed request of a site. Raises Refusal if the site exceeds a limit."""
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
                return await self.exchange_call(request, b"".join(pieces), site)
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
        """Count the bytes of an uploaded object. Raises TooLarge if a site's reply to one message has too many.

        Without this limit, one site could fill the coordinator's disk: the SuperLink stores objects in its database.
        """
        if self.uploaded[site] + size > self.largest_reply:
            most = self.largest_reply // 2**20
            log.warning("%s: its reply has more than largest-reply-mib = %d", site, most)
            raise TooLarge("largest-reply-mib")
        self.uploaded[site] += size

    async def exchange_call(self, request: Request, body: bytes, site: str) -> Reply:
        """Return the answer to any request except the upload of an object. Raises Refusal."""
        if request.url.path == PUSH and not is_from_pushing_node(body):
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
        """Return the answer to a request for an object that the site may fetch.

        The site waits for its turn first. The gateway then fetches the object in its own name, without a limit, as
        other sites may wait for the same object.
        """
        async with self.turns.turn(site):
            pass
        reply = await self.objects.get(body, lambda: self.ask_in_turn(request, [body], OWN))
        self.turns.charge(site, len(reply[1]))
        return reply

    async def ask_in_turn(self, request: Request, pieces: list[bytes], site: str) -> Reply:
        """Wait for the site's turn and return the SuperLink's answer to its request. Raises NoTurn."""
        async with self.turns.turn(site, sum(map(len, pieces))):
            return await self.ask(request, pieces)

    def at_work(self, site: str) -> None:
        """Record that a site works on its message: so the message has arrived."""
        self.sent.pop(site, None)
        self.lost_messages.uncertain.discard(site)

    async def message(self, request: Request, body: bytes, site: str) -> Reply:
        """Answer a poll for messages: with the next message, or after HOLD seconds without one."""
        began = time.monotonic()
        try:
            node = PullMessagesRequest.FromString(body).node.node_id
        except DecodeError:
            raise Refusal(403) from None
        self.lost_messages.nodes[site] = node
        self.newest[site] = request
        if site in self.sent:  # the site polls again, so it did not get this message
            return self.sent[site]
        reply = await self.fetch_waiting(request, body, site)
        while site not in self.sent:
            status = reply[0]
            seconds = time.monotonic() - began
            if (
                self.current_site(request) != site
            ):  # the site was removed or renamed, or its key changed
                return UNANSWERED, b"", {}
            if status == 200 and self.lost_messages.is_doubtful(site, seconds):
                await self.lost_messages.recover_lost(request, site)
            elif (
                status != 200
                or seconds > HOLD
                or self.newest[site] is not request  # a SuperNode has one poll at a time
                or await request.is_disconnected()
            ):
                if (
                    status == UNANSWERED
                ):  # the SuperLink may have handed out a message before the error
                    self.lost_messages.uncertain.add(site)
                return reply
            if await self.waiting_messages.wait(node, PAUSE):
                reply = await self.fetch_waiting(request, body, site)
        return self.sent[site]

    async def fetch_waiting(self, request: Request, body: bytes, site: str) -> Reply:
        """Ask the SuperLink for a site's messages, and record a message in `sent`. Return the answer for the site.

        Decline messages of a run in which the site takes no part; the site then gets an empty answer.
        """
        async with self.turns.turn(site, is_work=False):
            reply = await self.ask(request, [body])
        status, content, headers = reply
        response = PullMessagesResponse.FromString(content if status == 200 else b"")
        runs = {message.metadata.run_id for message in response.messages_list}
        if self.current_site(request) != site or not response.messages_list:
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
        """Send a body, in pieces, with the headers of a request to the SuperLink, and return its answer.

        `path` replaces the path of the request.
        """
        path = path or request.url.path
        headers = forwarded_headers(request.headers)
        headers["content-length"] = str(sum(map(len, pieces)))
        try:
            answer = await self.client.post(
                self.superlink + path, content=streamed(pieces), headers=headers
            )
        except httpx.HTTPError as error:
            log.warning("the SuperLink does not answer: %r", error)
            return UNANSWERED, b"", {}
        return answer.status_code, answer.content, forwarded_headers(answer.headers)

    def current_site(self, request: Request) -> str | None:
        """Return the site that has a request's key now, without a check of the signature; None if no site has it.

        Use it only for an open poll, whose signature was checked when it arrived. Another check every second and site
        would be most of an idle gateway's CPU time.
        """
        self.refresh()
        return self.claimed_site(request)

    def claimed_site(self, request: Request) -> str | None:
        """Return the site whose key a request has, without a check of the signature; None if no site has it."""
        try:
            return self.sites.get(b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER]))
        except (LookupError, ValueError):
            return None

    def site(self, request: Request) -> str | None:
        """Return the site that has signed a request; None for an unknown key or an invalid signature.

        SuperNodes sign the time of a request. A time outside AGES is invalid, too.
        """
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
    """Return the names of the agreement's sites by public key, in flwr's PEM format."""
    return {as_flower_has_it(site.key): site.name for site in agreement.sites}


def names_of(sites: dict[bytes, str], without: dict[bytes, str]) -> set[str]:
    """Return the names in `sites` whose key is missing in `without` or belongs to another name there."""
    return {name for key, name in sites.items() if without.get(key) != name}


def host_of(request: Request) -> str:
    """Return the IP address that a request comes from, or `?`."""
    return request.client.host if request.client else "?"


def has_small_body(request: Request) -> bool:
    """Return whether a request's body has at most SMALL_REST bytes, so that a refusal may keep the connection open."""
    length = request.headers.get("content-length", "")
    return length.isascii() and length.isdigit() and len(length) <= len(str(SMALL_REST))


def is_from_pushing_node(body: bytes) -> bool:
    """Return whether a push-messages body has replies, each with its object tree, and all of the node that pushes them.

    The SuperLink checks that the key belongs to the pushing node. It does not check the sender in the replies.
    """
    try:
        pushed = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    replies = pushed.messages_list
    # The SuperLink reads the first reply and the first tree, and fails with a traceback if there is none.
    if not replies or len(replies) != len(pushed.message_object_trees):
        return False
    node = pushed.node.node_id
    return node != NO_NODE and all(reply.metadata.src_node_id == node for reply in replies)


def forwarded_headers(headers: Any) -> dict[str, str]:
    """Return the headers that the gateway forwards: flwr's own and content-type."""
    result = {}
    for name, value in headers.items():
        if name.lower().startswith("flwr-") or name == "content-type":
            result[name] = value
    return result


def keep_logs_small(folder: FederationFolder) -> None:
    """Rotate the services' log files once a minute, forever. Under systemd there are none: journald has the logs."""
    while True:
        for name in ("gate", "superlink"):
            try:
                rotate(folder.state / f"{name}.log")
            except OSError as error:
                log.error("%s.log does not rotate: %s", name, error)
        time.sleep(ROTATION)


def allow_files(gateway: Gateway) -> None:
    """Raise the limit on open files to what the connections need. If that fails, log it and allow fewer connections."""
    limits = gateway.limits
    needed = limits.connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # a systemd unit may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        fewer = max(1, soft - OTHER_FILES)
        log.warning("this process may open %d files: at most %d connections", soft, fewer)
        gateway.connections.limits = dataclasses.replace(limits, connections=fewer)


def main() -> None:
    """Serve until a signal arrives."""
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
