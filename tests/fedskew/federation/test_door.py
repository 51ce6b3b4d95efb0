"""The two doors of the SuperLink, asked over HTTP: which requests reach it, and which end there."""

import asyncio
import base64
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
from starlette.types import Receive, Scope, Send

from fedskew.federation import door as door_module
from fedskew.federation.agree import add_site
from fedskew.federation.door import Door
from fedskew.federation.folder import SECRET_HEADER, FederationFolder, begin
from tests.site_files import AGREED

Key = ec.EllipticCurvePrivateKey
FLEET = "/v1/fleet"
BEGIN, RUN, PULL, PUSH, OBJECT, UPLOAD = (
    f"{FLEET}/{call}"
    for call in (
        "activate-node",
        "get-run",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
    )
)
NEW_MESSAGES, NEW_OBJECT = "/v1/runtime/push-messages", "/v1/runtime/push-object"
MIB = 2**20


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


NORTH, SOUTH, STRANGER = new_key(), new_key(), new_key()


def openssh(key: Key) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def signed(key: Key, age: float = 0.0, signer: Key | None = None, **left: None) -> dict[str, str]:
    """Return the headers that a SuperNode sends, signed so many seconds ago; those in `left` are left out."""
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stamp = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    signature = (signer or key).sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {
        "flwr-public-key": base64.b64encode(pem).decode(),
        "flwr-signature": base64.b64encode(signature).decode(),
        "flwr-timestamp": stamp,
    }
    return {name: value for name, value in headers.items() if name.replace("-", "_") not in left}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two sites, that takes small bodies."""
    path = tmp_path_factory.mktemp("gateway") / "federation"
    folder = begin(path, AGREED, "gateway.example.org:8443", "0.0.0.0")
    add_site(folder, {"name": "north", "key": openssh(NORTH)})
    add_site(folder, {"name": "south", "key": openssh(SOUTH)})
    with (path / "coordinator.toml").open("a") as file:
        file.write("largest-message-mib = 2\nlargest-reply-mib = 5\n")
    return path


class Doors:
    """The doors of a folder, before a SuperLink that this answers for."""

    def __init__(self, path: Path) -> None:
        self.folder = FederationFolder(path)
        self.passed: list[str] = []
        """The paths that have reached the SuperLink."""
        self.messages: list[PullMessagesResponse] = []
        """What the SuperLink gives to who asks, in order; then nothing."""
        self.door = Door(self.superlink, self.folder)

    async def superlink(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self.passed.append(scope["path"])
        content = b""
        if scope["path"] == PULL and self.messages:
            content = self.messages.pop(0).SerializeToString()
        if scope["path"] == NEW_MESSAGES:
            content = PushAppMessagesResponse(objects_to_push=["a"]).SerializeToString()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": content})

    def post(self, path: str, key: Key = NORTH, port: int = 8443, **more: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            base = f"https://superlink:{port}"
            transport = httpx.ASGITransport(self.door)
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.post(path, **more)

        more.setdefault("headers", signed(key))
        return asyncio.run(answer())


@pytest.fixture
def doors(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doors:
    monkeypatch.setattr(door_module, "HOLD", 0.0)  # a question without a message is answered now
    shutil.copytree(made, tmp_path / "federation")
    return Doors(tmp_path / "federation")


def push(*sources: int | None, node: int = 1, trees: int | None = None) -> bytes:
    """Return a push by a node: replies from `sources`, None for one without metadata, and `trees`, one a reply."""
    replies = [
        Message() if source is None else Message(metadata=Metadata(src_node_id=source))
        for source in sources
    ]
    return PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=replies,
        message_object_trees=[ObjectTree()] * (len(sources) if trees is None else trees),
    ).SerializeToString()


def headers(of: Callable[[], dict[str, str]]) -> Callable[[], dict[str, Any]]:
    return lambda: {"headers": of()}


REFUSED: dict[str, tuple[int, str, Callable[[], dict[str, Any]]]] = {
    **{
        f"the path {path}": (404, path, dict)
        for path in (
            "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node",
            "//v1/fleet/pull-messages", "/v1/fleet/%2e%2e/control/start-run",
        )
    },
    "an unknown key": (403, BEGIN, headers(lambda: signed(STRANGER))),
    "no header": (403, BEGIN, headers(dict)),
    "no signature": (403, BEGIN, headers(lambda: signed(NORTH, flwr_signature=None))),
    "a site's key, signed with another": (403, BEGIN, headers(lambda: signed(NORTH, signer=STRANGER))),
    "a signature of 310 seconds ago": (403, BEGIN, headers(lambda: signed(NORTH, age=310))),
    "a signature of the future": (403, BEGIN, headers(lambda: signed(NORTH, age=-10))),
    "a question that is no protobuf": (403, PULL, lambda: {"content": b"no question"}),
    "an object's name that is no protobuf": (403, OBJECT, lambda: {"content": b"no question"}),
    "an object of a byte too many": (413, UPLOAD, lambda: {"content": bytes(2 * MIB + 1)}),
    "a question of a byte too many": (413, RUN, lambda: {"content": bytes(MIB + 1)}),
    **{
        f"a push with {name}": (403, PUSH, lambda body=body: {"content": body})  # type: ignore[misc]
        for name, body in {
            "another node's reply behind an own one": push(1, 2),
            "no protobuf": b"no message",
            "no reply": push(),
            "node 0, and a reply of it": push(0, node=0),
            "a reply without metadata": push(1, None),
            "a reply without its tree": push(1, trees=0),
        }.items()
    },
}  # fmt: skip
"""By what a site sends: how it is refused, the path, and what the request holds."""
PASSED = {UPLOAD: bytes(2 * MIB), RUN: bytes(MIB), PUSH: push(1, 1)}
"""By path, the largest body that passes; of others none."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_site_may_ask_ends_at_the_door_beside_what_it_may(doors: Doors, what: str) -> None:
    status, path, request = REFUSED[what]
    assert doors.post(path, **request()).status_code == status
    assert not doors.passed
    allowed = PULL if status == 404 else path
    assert doors.post(allowed, content=PASSED.get(path, b"")).status_code == 200
    assert len(doors.passed) == 1


def test_a_changed_agreement_counts_from_the_next_request_and_an_unreadable_one_does_not(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    file = doors.folder.agreement_file
    text = file.read_text()

    def statuses() -> list[int]:
        return [doors.post(RUN, key).status_code for key in (NORTH, SOUTH, STRANGER)]

    assert statuses() == [200, 200, 403]
    file.write_text(text + "\n[[site")
    assert statuses() == [200, 200, 403]
    assert "the sites stay as they were" in caplog.text
    file.write_text(text.replace(openssh(NORTH), openssh(STRANGER)))
    assert statuses() == [403, 200, 200]
    file.write_text(text)
    assert statuses() == [200, 200, 403]


def test_a_reply_has_so_many_bytes_and_the_next_message_begins_anew(doors: Doors) -> None:
    """One site could fill the coordinator's disk, where the SuperLink keeps objects."""

    def upload(key: Key) -> int:
        return doors.post(UPLOAD, key, content=bytes(2 * MIB)).status_code

    assert [upload(NORTH) for _ in range(3)] == [200, 200, 413]
    assert upload(SOUTH) == 200, "each site has a limit of its own"
    doors.messages.append(message_of("a"))
    doors.post(PULL)
    assert [upload(NORTH) for _ in range(3)] == [200, 200, 413]


def message_of(name: str) -> PullMessagesResponse:
    metadata = Metadata(run_id=5, message_id=name, message_type="train", ttl=60.0)
    return PullMessagesResponse(
        messages_list=[Message(metadata=metadata, content=RecordDict())],
        message_object_trees=[ObjectTree(object_id=name)],
    )


def test_every_request_leaves_a_line_with_the_sites_name(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedskew.door")
    doors.post(RUN, SOUTH)
    doors.post("/v1/control/start-run", STRANGER)
    assert caplog.messages == [
        "south 127.0.0.1 POST '/v1/fleet/get-run': 200",
        "unknown 127.0.0.1 POST '/v1/control/start-run': 404",
    ]


def test_a_message_is_given_again_until_the_site_shows_that_it_has_it(doors: Doors) -> None:
    doors.messages += [message_of("a"), message_of("b")]
    first = doors.post(PULL).content
    assert first and doors.post(PULL).content == first, "its connection may have broken"
    doors.post(f"{FLEET}/send-node-heartbeat")
    assert doors.post(PULL).content == first, "a sign of life is sent beside the question"
    doors.post(f"{FLEET}/pull-object")
    assert doors.post(PULL).content not in (b"", first)


def test_questions_wait_for_what_the_server_app_sends(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HOLD", 60.0)
    for_message = PullMessagesRequest(node=Node(node_id=4)).SerializeToString()
    for_object = PullObjectRequest(object_id="a").SerializeToString()

    async def exchange() -> None:
        base, transport = "https://superlink:8443", httpx.ASGITransport(doors.door)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:

            async def send(path: str, body: bytes) -> None:
                await client.post(f"https://superlink:9{path}", content=body)

            question = client.post(PULL, content=for_message, headers=signed(NORTH))
            message = asyncio.ensure_future(question)
            while PULL not in doors.passed:
                await asyncio.sleep(0)
            assert not message.done()
            doors.messages.append(message_of("a"))
            sent = Message(metadata=Metadata(dst_node_id=4))
            news = PushAppMessagesRequest(messages_list=[sent])
            await send(NEW_MESSAGES, news.SerializeToString())
            assert (await message).content == message_of("a").SerializeToString()

            question = client.post(OBJECT, content=for_object, headers=signed(NORTH))
            content = asyncio.ensure_future(question)
            await send(NEW_OBJECT, PushObjectRequest(object_id="b").SerializeToString())
            assert not content.done() and OBJECT not in doors.passed
            await send(NEW_OBJECT, PushObjectRequest(object_id="a").SerializeToString())
            assert (await content).status_code == 200

    asyncio.run(exchange())
    assert doors.passed == [PULL, NEW_MESSAGES, PULL, NEW_OBJECT, NEW_OBJECT, OBJECT]


def test_a_message_of_a_run_without_the_site_is_declined_in_its_place(doors: Doors) -> None:
    question = PullMessagesRequest(node=Node(node_id=1)).SerializeToString()
    declined = [PULL, PUSH, UPLOAD]
    doors.folder.set_participants(4, ["north"])
    doors.folder.set_participants(5, ["south"])
    doors.messages.append(message_of("a"))
    assert doors.post(PULL, content=question).content == b""
    assert doors.passed == declined
    doors.messages.append(message_of("a"))
    assert doors.post(PULL, SOUTH).content
    # Of a damaged list nobody knows whose messages they are.
    doors.folder.participants.write_text("{")
    doors.messages.append(message_of("a"))
    assert doors.post(PULL, content=question).content == b""
    assert doors.passed == [*declined, PULL, *declined]


def test_on_loopback_the_control_interface_asks_for_the_coordinators_secret(doors: Doors) -> None:
    path = "/v1/control/list-runs"
    assert doors.post(path, port=9, headers={}).status_code == 403
    assert doors.post(path, port=9, headers={SECRET_HEADER: "other"}).status_code == 403
    assert not doors.passed
    secret = doors.folder.control_secret
    assert doors.post(path, port=9, headers={SECRET_HEADER: secret}).status_code == 200
    assert doors.post("/v1/runtime/acquire-task", port=9, headers={}).status_code == 200
    assert (doors.folder.state / "control.secret").stat().st_mode & 0o777 == 0o600
