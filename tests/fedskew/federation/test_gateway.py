"""The gateway, asked over HTTP: which requests reach the SuperLink, and which end there."""

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
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from prometheus_client import generate_latest

from fedskew.federation import gateway as gateway_module
from fedskew.federation.folder import FederationFolder, add_site, begin
from fedskew.federation.gateway import Gateway

Key = ec.EllipticCurvePrivateKey
FLEET = "/v1/fleet"
BEGIN, RUN, PULL, PUSH, UPLOAD = (
    f"{FLEET}/{call}"
    for call in (
        "activate-node",
        "get-run",
        "pull-messages",
        "push-messages",
        "push-object",
    )
)
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
    folder = begin(
        path, "two", ["a", "b"], "1x8x8", [0.5], [0.5], 2, "gateway.example.org:8443", "0.0.0.0"
    )
    add_site(folder, "north", openssh(NORTH))
    add_site(folder, "south", openssh(SOUTH))
    with (path / "coordinator.toml").open("a") as file:
        file.write("largest-message-mib = 2\nlargest-reply-mib = 5\n")
    return path


class Door:
    """The gateway of a folder, before a SuperLink that `superlink` answers for."""

    def __init__(self, path: Path) -> None:
        self.folder = FederationFolder(path)
        self.passed: list[httpx.Request] = []
        """What has reached the SuperLink."""
        self.messages: list[PullMessagesResponse] = []
        """What the SuperLink gives to who polls, in order; then nothing."""
        gateway = Gateway(self.folder)
        gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(self.superlink))
        self.registry = gateway.traffic.registry
        self.transport = httpx.ASGITransport(gateway.application())

    def superlink(self, request: httpx.Request) -> httpx.Response:
        self.passed.append(request)
        content = b""
        if request.url.path == PULL and self.messages:
            content = self.messages.pop(0).SerializeToString()
        return httpx.Response(200, content=content)

    def post(self, path: str, key: Key = NORTH, **more: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            base = "https://gateway"
            async with httpx.AsyncClient(transport=self.transport, base_url=base) as client:
                return await client.post(path, **more)

        more.setdefault("headers", signed(key))
        return asyncio.run(answer())


@pytest.fixture
def door(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setattr(gateway_module, "HOLD", -1.0)  # a poll without a message is answered now
    shutil.copytree(made, tmp_path / "federation")
    return Door(tmp_path / "federation")


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
    "an object of a byte too many": (413, UPLOAD, lambda: {"content": bytes(2 * MIB + 1)}),
    "a question of a byte too many": (413, RUN, lambda: {"content": bytes(MIB + 1)}),
    "a poll that is no protobuf": (403, PULL, lambda: {"content": b"no question"}),
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
def test_what_no_site_may_ask_ends_at_the_gateway_beside_what_it_may(door: Door, what: str) -> None:
    status, path, request = REFUSED[what]
    assert door.post(path, **request()).status_code == status
    assert not door.passed
    allowed = PULL if status == 404 else path
    assert door.post(allowed, content=PASSED.get(path, b"")).status_code == 200
    assert len(door.passed) == 1


def test_a_changed_agreement_counts_from_the_next_request_and_an_unreadable_one_does_not(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    file = door.folder.agreement_file
    text = file.read_text()

    def statuses() -> list[int]:
        return [door.post(RUN, key).status_code for key in (NORTH, SOUTH, STRANGER)]

    assert statuses() == [200, 200, 403]
    file.write_text(text + "\n[[site")
    assert statuses() == [200, 200, 403]
    assert "the sites stay as they were" in caplog.text
    file.write_text(text.replace(openssh(NORTH), openssh(STRANGER)))
    assert statuses() == [403, 200, 200]
    file.write_text(text)
    assert statuses() == [200, 200, 403]


def test_a_reply_has_so_many_bytes_and_the_next_message_begins_anew(door: Door) -> None:
    """One site could fill the coordinator's disk, where the SuperLink keeps objects."""

    def upload(key: Key) -> int:
        return door.post(UPLOAD, key, content=bytes(2 * MIB)).status_code

    assert [upload(NORTH) for _ in range(3)] == [200, 200, 413]
    assert upload(SOUTH) == 200, "each site has a limit of its own"
    door.messages.append(message_of("a"))
    door.post(PULL)
    assert [upload(NORTH) for _ in range(3)] == [200, 200, 413]


def message_of(name: str) -> PullMessagesResponse:
    return PullMessagesResponse(
        messages_list=[Message(metadata=Metadata(run_id=5, message_id=name))],
        message_object_trees=[ObjectTree(object_id=name)],
    )


def test_every_request_leaves_a_line_with_the_sites_name_and_counts(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedskew.gateway")
    door.post(RUN, SOUTH)
    door.post("/v1/control/start-run", STRANGER)
    door.post(UPLOAD, content=b"x" * 70)
    lines = [line for line in caplog.messages if "127.0.0.1" in line]
    assert lines[0].startswith("south 127.0.0.1 POST '/v1/fleet/get-run': 200")
    assert lines[1].startswith("unknown 127.0.0.1 POST '/v1/control/start-run': 404")
    text = generate_latest(door.registry).decode()
    assert 'requests_total{site="unknown",status="404"} 1.0' in text
    assert 'received_bytes_total{site="north"} 70.0' in text
    assert "start-run" not in text, "a path that is not passed on makes no series"
