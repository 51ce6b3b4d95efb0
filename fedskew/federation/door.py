"""The two doors of the coordinator's one service, an ASGI application around flwr's SuperLink.

A SuperLink serves three interfaces on one port, and two of them ask for no account: anyone who reaches it can submit
code, remove a hospital, or take over a ServerApp with all updates. Here the loopback port has all three, the control
interface for who can read a secret. The port that sites reach has ten fleet calls alone, for keys of the text in force.

A SuperNode asks for messages every 3 seconds, and loses one when its connection breaks. So the door answers that
question once there is a message or after HOLD seconds, and gives the message again until another request shows that it
has arrived. A flood on an open port is a matter for a proxy before it: deploy/haproxy.cfg.
"""

import asyncio
import hmac
import logging
import sys
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_app.local_site import NOT_A_PARTICIPANT
from data import DataError
from data.agreement import as_flower_has_it, read_agreement
from data.files import FileStamp, stamp_of
from fedskew.federation.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    PullMessagesRequest,
    PullMessagesResponse,
    PullObjectRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
    bytes_to_public_key,
    error_reply,
    verify_signature,
)
from fedskew.federation.folder import SECRET_HEADER, FederationFolder

log = logging.getLogger("fedskew.door")
FLEET = "/v1/fleet/"
PULL, PUSH = FLEET + "pull-messages", FLEET + "push-messages"
OBJECT, UPLOAD = FLEET + "pull-object", FLEET + "push-object"
SIGNS_OF_LIFE = frozenset(
    FLEET + call for call in ("activate-node", "deactivate-node", "send-node-heartbeat")
)
CALLS = SIGNS_OF_LIFE | {
    *(PULL, PUSH, OBJECT, UPLOAD),
    *(FLEET + call for call in ("confirm-message-received", "get-run", "get-fab")),
}
"""The paths that a registered SuperNode uses. Others, which register or remove nodes, are for the coordinator alone."""
CONTROL = "/v1/control/"
RUNTIME = "/v1/runtime/"
NEW_MESSAGES, NEW_OBJECT = RUNTIME + "push-messages", RUNTIME + "push-object"
"""The paths by which a ServerApp sends messages, and then what they contain."""
MIB = 2**20
"""Bytes of the largest body that is no object: lists of messages and of their objects."""
HOLD = 15.0
"""The longest time in seconds before a question for messages or an object is answered. A SuperNode's own timeout is 30
seconds."""
AGES = (-5.0, 305.0)
"""The least and the greatest age in seconds at which flwr accepts a signature. Outside them, a clock is wrong or an old
request is replayed."""
NO_PART = "the site takes no part in this run"

Ask = Callable[[str, bytes], Awaitable[Response]]
"""(path, body) -> the SuperLink's answer to a request with the headers of a site's."""


class SiteKeys:
    """The sites of the text in force by public key, read again when the file changes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sites: dict[bytes, str] = {}
        self.stamp: FileStamp = None
        self.read()  # raises for a text that cannot be read at the start

    def read(self) -> None:
        """Take over the file's sites. Raises DataError for a text that cannot be agreed to."""
        self.stamp = stamp_of(self.file)
        agreed = read_agreement(self.file)
        self.sites = {as_flower_has_it(site.key): site.name for site in agreed.sites}

    def signer(self, headers: Headers) -> str:
        """Return the site that has signed a request lately, or an empty name."""
        if stamp_of(self.file) != self.stamp:
            try:
                self.read()
            except DataError as error:
                log.error("the sites stay as they were: %s", error)
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            stamp = headers[TIMESTAMP_HEADER]
            age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
            name = self.sites[key]
            signed = verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature)
        except (LookupError, ValueError, TypeError):
            return ""
        return name if signed and AGES[0] < age < AGES[1] else ""


class Door:
    """An ASGI application around the SuperLink's own."""

    def __init__(self, superlink: ASGIApp, folder: FederationFolder) -> None:
        self.superlink = superlink
        self.folder = folder
        self.keys = SiteKeys(folder.text_in_force)
        self.secret = folder.control_secret.encode()
        self.news = defaultdict[int, asyncio.Event](asyncio.Event)
        """By node, set when a ServerApp has sent it a message."""
        self.on_their_way: dict[str, asyncio.Event] = {}
        """By object that a ServerApp has announced, set when it has sent it."""
        self.given: dict[str, Response] = {}
        """By site, the message that it was given and has not shown to have."""
        self.uploaded = Counter[str]()
        """By site, bytes of objects since its last message."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.superlink(scope, receive, send)
        elif scope["server"][1] == self.folder.coordinator.port:
            await self.of_site(scope, receive, send)
        elif scope["path"].startswith(CONTROL) and not self.knows_secret(Headers(scope=scope)):
            await Response(status_code=403)(scope, receive, send)
        elif scope["path"] in (NEW_MESSAGES, NEW_OBJECT):
            await self.of_server_app(scope, receive, send)
        else:
            await self.superlink(scope, receive, send)

    def knows_secret(self, headers: Headers) -> bool:
        """Return whether a request on loopback has the secret that only the coordinator's user can read."""
        return hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), self.secret)

    async def of_server_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what a ServerApp sends, and wake the sites that wait for it."""
        body = await body_of(receive)
        answer = await self.asking(scope)(scope["path"], body)
        if scope["path"] == NEW_MESSAGES:
            response = PushAppMessagesResponse.FromString(content_of(answer))
            for name in response.objects_to_push:
                self.on_their_way.setdefault(name, asyncio.Event())
            for message in PushAppMessagesRequest.FromString(body).messages_list:
                self.news[message.metadata.dst_node_id].set()
        else:
            name = PushObjectRequest.FromString(body).object_id
            if name in self.on_their_way:
                self.on_their_way.pop(name).set()
        await answer(scope, receive, send)

    async def of_site(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request on the sites' port, and log it."""
        site = self.keys.signer(Headers(scope=scope))
        try:
            body = await self.allowed_body(scope, receive, site)
            answer = await self.answer(self.asking(scope), scope["path"], body, receive, site)
        except HTTPException as refusal:
            answer = Response(status_code=refusal.status_code)
        address = scope["client"][0] if scope["client"] else "unknown"
        path = scope["path"][:100]
        status = answer.status_code
        log.info("%s %s %s %r: %d", site or "unknown", address, scope["method"], path, status)
        await answer(scope, receive, send)

    async def allowed_body(self, scope: Scope, receive: Receive, site: str) -> bytes:
        """Return the body of a request that a site may make. Raises HTTPException: 404, 403 or 413."""
        path = scope["path"]
        if scope["method"] != "POST" or path not in CALLS:
            raise HTTPException(404)
        if not site:
            raise HTTPException(403)
        coordinator = self.folder.coordinator
        largest = coordinator.largest_message_mib if path == UPLOAD else 1
        body = await body_of(receive, largest * MIB)
        if path == PUSH and not is_own(parsed(PushMessagesRequest, body)):
            raise HTTPException(403)
        if path == UPLOAD:
            # A reply fills the coordinator's disk.
            self.uploaded[site] += len(body)
            if self.uploaded[site] > coordinator.largest_reply_mib * MIB:
                raise HTTPException(413)
        return body

    async def answer(
        self, ask: Ask, path: str, body: bytes, receive: Receive, site: str
    ) -> Response:
        """Return the SuperLink's answer to a site's request."""
        if path == PULL:
            return await self.message(ask, body, receive, site)
        if path not in SIGNS_OF_LIFE:
            self.given.pop(site, None)  # whoever works on a message has it
        if path == OBJECT:
            return await self.object(ask, body)
        return await ask(path, body)

    async def message(self, ask: Ask, body: bytes, receive: Receive, site: str) -> Response:
        """Answer a question for messages once there is one, or after HOLD seconds."""
        node = parsed(PullMessagesRequest, body).node.node_id
        news = self.news[node]
        gone = asyncio.ensure_future(receive())  # only a disconnect is still to come
        deadline = time.monotonic() + HOLD
        try:
            while site not in self.given:
                news.clear()
                answer = await ask(PULL, body)
                if answer.status_code != 200:
                    return answer
                if answer.body and await self.is_for(site, answer, ask, node):
                    self.given[site] = answer
                    self.uploaded[site] = 0
                    break
                woken = asyncio.ensure_future(news.wait())
                left = max(0.0, deadline - time.monotonic())
                await asyncio.wait({woken, gone}, timeout=left, return_when="FIRST_COMPLETED")
                woken.cancel()
                if gone.done() or time.monotonic() >= deadline:
                    return answer if not answer.body else Response()
            return self.given[site]
        finally:
            gone.cancel()

    async def object(self, ask: Ask, body: bytes) -> Response:
        """Answer a question for an object once it is there, or after HOLD seconds.

        A SuperNode that hears "not yet" sleeps for 1, 2, 4 ... seconds. The SuperLink is asked once: questions of 50
        sites that look again and again take the core that the ServerApp's objects need to arrive.
        """
        name = parsed(PullObjectRequest, body).object_id
        if name in self.on_their_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.on_their_way[name].wait(), HOLD)
        return await ask(OBJECT, body)

    async def is_for(self, site: str, answer: Response, ask: Ask, node: int) -> bool:
        """Return whether a site takes part in the runs of its messages; those of others are declined in its place."""
        response = PullMessagesResponse.FromString(bytes(answer.body))
        runs = {message.metadata.run_id for message in response.messages_list}
        try:
            participants = self.folder.read_participants()
            if all(site in participants.get(str(run), [site]) for run in runs):
                return True
        except ValueError as error:
            log.error("%s: no messages are handed out: %s", self.folder.participants, error)
        await decline(response, node, ask)
        return False

    def asking(self, scope: Scope) -> Ask:
        """Return what asks the SuperLink with a request's headers: flwr signs the time alone."""

        async def ask(path: str, body: bytes) -> Response:
            parts: list[Message] = []

            async def send(message: Message) -> None:
                parts.append(message)

            asked = {**scope, "path": path, "raw_path": path.encode()}
            await self.superlink(asked, sending(body), send)
            content = b"".join(part.get("body", b"") for part in parts[1:])
            answer = Response(content, parts[0]["status"])
            answer.raw_headers = list(parts[0]["headers"])
            return answer

        return ask


async def decline(response: PullMessagesResponse, node: int, ask: Ask) -> None:
    """Answer a site's messages with an error, in its place: flwr shows a ServerApp every node that is online.

    That they have come is not confirmed: the SuperLink would then drop objects that the ServerApp still pushes.

    Args:
        response: of the SuperLink to the site's question for messages.
        node: the site's node.
        ask: sends a body to a path of the SuperLink, with the headers of that question.
    """
    for message in response.messages_list:
        reply, tree, content = error_reply(message, NOT_A_PARTICIPANT, NO_PART)
        pushing = PushMessagesRequest(messages_list=[reply], message_object_trees=[tree])
        pushing.node.node_id = node
        pushed = await ask(PUSH, pushing.SerializeToString())
        uploading = PushObjectRequest(
            run_id=message.metadata.run_id,
            object_id=tree.object_id,
            object_content=content,
            session_id=PushMessagesResponse.FromString(content_of(pushed)).session_id,
        )
        uploading.node.node_id = node
        await ask(UPLOAD, uploading.SerializeToString())


def content_of(answer: Response) -> bytes:
    """Return the body of the SuperLink's answer, nothing where it has refused."""
    return bytes(answer.body) if answer.status_code == 200 else b""


def sending(body: bytes) -> Receive:
    """Return what gives an application a whole body."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def body_of(receive: Receive, most: int = sys.maxsize) -> bytes:
    """Return a request's body. Raises HTTPException 413 where it is larger than it may be."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            raise HTTPException(413)
        if not message.get("more_body"):
            return bytes(body)


def parsed(kind: Any, body: bytes) -> Any:
    """Return a site's body as a protobuf message. Raises HTTPException 403 where it is none."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise HTTPException(403) from None


def is_own(pushed: PushMessagesRequest) -> bool:
    """Return whether a push has replies, all of the node that pushes them: the SuperLink checks neither."""
    node = pushed.node.node_id
    replies = pushed.messages_list
    is_whole = node and replies and len(replies) == len(pushed.message_object_trees)
    return bool(is_whole) and all(reply.metadata.src_node_id == node for reply in replies)
