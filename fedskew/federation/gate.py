"""The gate: the one port of a federation that its sites reach. `python -m fedskew.federation.gate FOLDER`.

Behind a SuperLink's one port are three interfaces, and two of them ask for no account: whoever reaches it could submit
code, remove a hospital, or take over the running ServerApp with all updates. The gate passes on what a SuperNode asks
of the fleet interface, of the nodes of federation.toml alone, and nothing else. Who has signed a request, and when, is
looked at before its body is read; a reply passes only in the name of the node that pushes it.

A node that asks for messages asks every 3 seconds, and loses one whose way to it is cut. So the gate holds the question
until there is a message, and says it again until the node does something that shows that it has come. What a SuperNode
was asked is lost when it is killed, as is what a gate had in hand that was; flwr answers in its place while a node is
away, and so the gate lets the node be away for a moment.
"""

import asyncio
import contextlib
import logging
import shutil
import ssl
import sys
import threading
import time
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from data import DataError
from data.sources.agreement import as_flower_has_it
from fedskew.federation.folder import FederationFolder
from fedskew.federation.objects import Objects, Reply
from fedskew.federation.traffic import Traffic
from site_agent.metrics import server

log = logging.getLogger("fedskew.gate")
PASSED = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
"""What a registered SuperNode asks; registering and its opposite are the coordinator's."""
PULL, PUSH, OBJECT, HEARTBEAT, BEGIN, END = (
    f"/v1/fleet/{call}"
    for call in (
        "pull-messages", "push-messages", "pull-object", "send-node-heartbeat", "activate-node", "deactivate-node",
    )
)  # fmt: skip
HOLD = 15.0
"""Seconds that a question for messages is held at most; a node waits 30 for an answer."""
SHORTEST, LONGEST, SHARE = 0.5, 1.0, 0.02
"""Seconds between two looks for a message at least and at most, and as a share of the time since the node's last; each
costs the SuperLink 10 ms. Where there is a message for a site, those for the others are looked for at once."""
SILENCE = 30.0
"""Seconds after which a SuperNode that has not been heard of is gone, if another begins; it sends a sign of life every
23 at most, and its key alone is not to end it before."""
ABSENCE = 3.0
"""Seconds for which a node is away when what it was asked is lost. Only while it is does flwr answer in its place, and
only when the ServerApp asks, which a run between sites does every 0.3 s."""
DOUBT = 5.0
"""Seconds for which a site that asks is given nothing until what it was asked counts as lost, where that may be."""
SIGNED = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
AGES = (-5.0, 305.0)
"""Seconds between which flwr takes a signature: beyond, a clock is wrong, or a request is sent again."""
TIMEOUT = 60.0
"""Seconds that the SuperLink has for an answer."""
UNANSWERED = 503
"""The gate's status where the SuperLink gives none."""


class Gate:
    """Answers the sites' requests with those of the SuperLink."""

    def __init__(self, folder: FederationFolder) -> None:
        self.sites = {as_flower_has_it(site.key): site.name for site in folder.agreement.sites}
        self.largest = folder.coordinator.largest_message
        self.behind = f"https://127.0.0.1:{folder.coordinator.superlink_port}"
        authority = ssl.create_default_context(cafile=str(folder.authority[0]))
        self.client = httpx.AsyncClient(verify=authority, timeout=TIMEOUT, trust_env=False)
        self.sent: dict[str, Reply] = {}
        """By site, the message that is on its way to it."""
        self.active = dict.fromkeys(self.sites.values(), 0.0)
        """When a site last did anything but ask for messages."""
        self.nodes: dict[str, int] = {}
        """By site, the node that has asked for messages, and has not said that it ends."""
        self.heard = dict(self.active)
        """When a site last did anything but begin."""
        self.away = set[str]()
        self.uncertain = set(self.sites.values())
        """Sites whose message may be lost that the SuperLink has given out: with the former gate, or on its way."""
        self.arrival = asyncio.Event()
        self.objects = Objects()
        self.traffic = Traffic(self.sites.values())

    def application(self) -> Starlette:
        """Return the gate as an ASGI application."""
        methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=methods)])

    async def answer(self, request: Request) -> Response:
        """Pass a request on, or refuse it: 404 for another path, 403 for another key or node, 413 for a large body."""
        began, site = time.perf_counter(), self.site(request)
        status, content, headers = await self.exchange(request, site)
        seconds, name = time.perf_counter() - began, site or "unknown"
        host = request.client.host if request.client else "?"
        received = getattr(request.state, "received", 0)
        self.traffic.add(site, request.url.path, status, received, len(content), seconds)
        log.info("%s %s %s %r: %d, %.3f s", name, host, request.method, request.url.path, status, seconds)
        return Response(content, status, headers)

    async def exchange(self, request: Request, site: str | None) -> Reply:
        """Return the answer to a request."""
        if request.method != "POST" or request.url.path not in PASSED:
            return 404, b"", {}
        if site is None:
            return 403, b"", {}
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            request.state.received = len(body)
            if len(body) > self.largest:
                return 413, b"", {"connection": "close"}
        if request.url.path == PUSH and not of_its_node(bytes(body)):
            return 403, b"", {}
        if request.url.path == BEGIN:
            await self.end_former(request, site)
        else:
            self.heard[site] = time.monotonic()
        if request.url.path == PULL:
            return await self.message(request, bytes(body), site)
        if request.url.path == END:
            self.nodes.pop(site, None)
        if request.url.path != HEARTBEAT:
            self.sent.pop(site, None)
            self.uncertain.discard(site)
            self.active[site] = time.monotonic()
        while request.url.path == HEARTBEAT and site in self.away:
            await asyncio.sleep(0.1)
        if request.url.path == OBJECT:
            return await self.objects.get(bytes(body), lambda: self.ask(request, bytes(body)))
        return await self.ask(request, bytes(body))

    async def message(self, request: Request, body: bytes, site: str) -> Reply:
        """Return the next message for a site, or after a while that there is none."""
        began = time.monotonic()
        try:
            node = self.nodes[site] = PullMessagesRequest.FromString(body).node.node_id
        except DecodeError:
            return 403, b"", {}
        while site not in self.sent:
            status, content, headers = await self.ask(request, body)
            now = time.monotonic()
            if status == 200 and PullMessagesResponse.FromString(content).messages_list:
                self.sent[site] = status, content, headers
                self.uncertain.discard(site)
                self.arrival.set()
                self.arrival = asyncio.Event()
            elif status == 200 and site in self.uncertain and now > began + DOUBT:
                self.uncertain.discard(site)
                await self.be_away(request, site, node)
                key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
                again = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
                await self.ask(request, again.SerializeToString(), BEGIN)
            elif status != 200 or now > began + HOLD or await request.is_disconnected():
                self.uncertain |= {site} if status == UNANSWERED else set()
                return status, content, headers
            else:
                pause = min(LONGEST, max(SHORTEST, SHARE * (now - self.active[site])))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.arrival.wait(), pause)
        return self.sent[site]

    async def end_former(self, request: Request, site: str) -> None:
        """Let a site's former SuperNode, which has not said that it ends and is silent, be away for a moment.

        flwr takes it for online for up to a minute, and refuses its successor meanwhile; one that comes just then would
        leave a round waiting for what nobody will answer.
        """
        if site in self.nodes and time.monotonic() - self.heard[site] > SILENCE:
            await self.be_away(request, site, self.nodes.pop(site))

    async def be_away(self, request: Request, site: str, node: int) -> None:
        """Let a site's node be away for a moment, in which no sign of life passes."""
        log.info("%s is away for %g s: what it was asked may be lost", site, ABSENCE)
        self.away.add(site)
        try:
            await self.ask(request, DeactivateNodeRequest(node_id=node).SerializeToString(), END)
            await asyncio.sleep(ABSENCE)
        finally:
            self.away.discard(site)

    async def ask(self, request: Request, body: bytes, path: str = "") -> Reply:
        """Return the SuperLink's answer to a request, to its own path or another."""
        path, headers = path or request.url.path, kept(request.headers)
        try:
            answer = await self.client.post(self.behind + path, content=body, headers=headers)
        except httpx.HTTPError as error:
            log.warning("the SuperLink does not answer: %r", error)
            return UNANSWERED, b"", {}
        return answer.status_code, answer.content, kept(answer.headers)

    def site(self, request: Request) -> str | None:
        """Return the name of the site whose key has signed a request, lately by its own clock; or None."""
        try:
            pem, signature = (b64decode(request.headers[name], validate=True) for name in SIGNED)
            name, stamp = self.sites[pem], request.headers[TIMESTAMP_HEADER]
            age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
            signed = verify_signature(bytes_to_public_key(pem), stamp.encode("ascii"), signature)
        except (LookupError, ValueError, TypeError):
            return None
        return name if signed and AGES[0] < age < AGES[1] else None


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
    """Return the headers that are flwr's, and the body's kind."""
    return {
        name: value for name, value in headers.items() if name.lower().startswith("flwr-") or name == "content-type"
    }


def main() -> None:
    """Serve until a signal comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = FederationFolder(Path(sys.argv[1]))
    try:
        gate, coordinator = Gate(folder), folder.coordinator
    except DataError as error:
        sys.exit(f"gate: {error}")
    if coordinator.metrics_port:
        metrics = server(coordinator.metrics_port, lambda: gate.traffic.text(shutil.disk_usage(folder.state).free))
        threading.Thread(target=metrics.serve_forever, daemon=True).start()
    certificate, key = map(str, folder.server)
    uvicorn.run(
        gate.application(),
        host=coordinator.listen,
        port=coordinator.port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )


if __name__ == "__main__":
    main()
