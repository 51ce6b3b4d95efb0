"""The gateway: which requests reach the SuperLink, and which get no further."""

import asyncio
import base64
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from click import BadParameter
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from prometheus_client import generate_latest

from data import DataError, SettingError
from data.toml_file import read_toml
from fedskew.cli.federation import application
from fedskew.federation import folder as folders
from fedskew.federation import gateway as gateway_module
from fedskew.federation import handed_out, intake, lost_messages
from fedskew.federation.folder import FederationFolder, add_site, begin
from fedskew.federation.gateway import PASSED, Gateway
from fedskew.federation.handed_out import HandedOut
from fedskew.federation.intake import Intake, NoRoom, TooManyRequests
from fedskew.federation.limits import Limits
from fedskew.federation.membership import rekey, remove
from fedskew.federation.object_cache import KEPT, Objects
from server_app.settings import parse


def node_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def line(key: ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def header(
    key: ec.EllipticCurvePrivateKey,
    seconds: float = 0.0,
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> dict[str, str]:
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stamp = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    signature = (signer or key).sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    words = {
        "flwr-public-key": base64.b64encode(pem).decode(),
        "flwr-signature": base64.b64encode(signature).decode(),
    }
    return {**words, "flwr-timestamp": stamp, "cookie": "secret"}


RUN = "/v1/fleet/get-run"
NORTH, SOUTH, STRANGER = node_key(), node_key(), node_key()


@pytest.fixture(autouse=True)
def no_offline_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_messages, "OFFLINE_TIME", 0.0)


def federation_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    """Return a federation of north and south, whose app is one file."""
    monkeypatch.setattr(folders, "app_files", lambda path: {"pyproject.toml": b"[project]"})
    begun = begin(
        tmp_path / "federation",
        "two",
        ["sick", "well"],
        "1x8x8",
        [0.5],
        [0.5],
        2,
        "gateway.example.org:8443",
        "0.0.0.0",
    )
    add_site(begun, "north", line(NORTH))
    add_site(begun, "south", line(SOUTH))
    return begun


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    return federation_of_two(tmp_path, monkeypatch)


@pytest.fixture
def asked() -> list[httpx.Request]:
    return []


@pytest.fixture
def client(folder: FederationFolder, asked: list[httpx.Request]) -> "Client":
    gateway = Gateway(folder)
    gateway.largest = 100

    def superlink(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        headers = {
            "flwr-version": "1",
            "server": "superlink",
            "content-type": "application/x-protobuf",
        }
        return httpx.Response(
            200,
            content=b"" if request.url.path == gateway_module.PULL else b"answer",
            headers=headers,
        )

    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
    return Client(gateway)


class Client:
    """Asks a gateway as a site does, without a network."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.transport = httpx.ASGITransport(gateway.application())

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self.transport, base_url="https://gateway"
            ) as client:
                return await client.request(method, path, **options)

        return asyncio.run(answer())

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("POST", path, **options)


def test_a_sites_request_is_passed_on_and_answered(
    client: Client, asked: list[httpx.Request]
) -> None:
    answer = client.post("/v1/fleet/get-run", content=b"question", headers=header(NORTH))
    assert (answer.status_code, answer.content, answer.headers["flwr-version"]) == (
        200,
        b"answer",
        "1",
    )
    assert asked[0].content == b"question" and asked[0].headers["flwr-timestamp"]
    assert "cookie" not in asked[0].headers and answer.headers.get("server") != "superlink"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/control/list-runs", "/v1/control/unregister-node", "/v1/runtime/acquire-task",
        "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/pull-messages/", "//v1/fleet/pull-messages",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/", "/docs",
    ],
)  # fmt: skip
def test_other_paths_end_at_the_gate(client: Client, asked: list[httpx.Request], path: str) -> None:
    assert client.post(path, headers=header(NORTH)).status_code == 404 and not asked
    assert (
        client.ask("GET", "/v1/fleet/pull-messages", headers=header(NORTH)).status_code == 404
        and not asked
    )


def test_only_the_agreements_keys_pass(client: Client, asked: list[httpx.Request]) -> None:
    unsigned = {name: value for name, value in header(NORTH).items() if name != "flwr-signature"}
    old, early = header(NORTH, seconds=310), header(NORTH, seconds=-10)
    strange = header(NORTH, signer=STRANGER)  # a key is no secret: who names it has to sign
    for headers in (
        header(STRANGER),
        {},
        {"flwr-public-key": "no base64!"},
        unsigned,
        strange,
        old,
        early,
    ):
        assert client.post("/v1/fleet/activate-node", headers=headers).status_code == 403
    assert not asked and "/v1/fleet/activate-node" in PASSED
    assert client.post("/v1/fleet/activate-node", headers=header(SOUTH)).status_code == 200


def test_a_site_that_was_removed_is_refused_at_once(
    folder: FederationFolder, client: Client, asked: list[httpx.Request]
) -> None:
    east = node_key()
    add_site(folder, "east", line(east))  # while the gateway runs
    assert client.post(RUN, headers=header(east)).status_code == 200
    folder.__dict__.pop("agreement", None)
    remove(folder, "north")
    passed = len(asked)
    assert client.post(RUN, headers=header(NORTH)).status_code == 403
    assert len(asked) == passed
    assert client.post(RUN, headers=header(SOUTH)).status_code == 200
    assert client.post(RUN, headers=header(east)).status_code == 200
    text = generate_latest(client.gateway.traffic.registry).decode()
    online = re.findall(r'fedskew_gate_site_online\{site="(\w+)"\}', text)
    assert sorted(online) == ["east", "south"]


def test_only_a_sites_new_key_passes(folder: FederationFolder, client: Client) -> None:
    new = node_key()
    assert client.post(RUN, headers=header(NORTH)).status_code == 200
    client.gateway.sent["north"] = client.gateway.sent["south"] = 200, b"of a former node", {}
    rekey(folder, "north", line(new))
    assert client.post(RUN, headers=header(NORTH)).status_code == 403
    assert list(client.gateway.sent) == ["south"]
    assert client.post(RUN, headers=header(new)).status_code == 200


@pytest.mark.parametrize("leaves", [True, False])
def test_an_open_question_ends_when_the_site_is_removed(
    folder: FederationFolder, client: Client, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    add_site(folder, "east", line(node_key()))
    monkeypatch.setattr(gateway_module, "HOLD", 0.5)
    monkeypatch.setattr(gateway_module, "PAUSE", 0.01)
    looks: list[str] = []
    ask = client.gateway.ask

    async def superlink(request: Any, pieces: list[bytes], path: str = "") -> Any:
        looks.append(path)
        if len(looks) == 2 and leaves:
            remove(folder, "north")
        return await ask(request, pieces, path)

    monkeypatch.setattr(client.gateway, "ask", superlink)
    question = PullMessagesRequest(node=Node(node_id=1)).SerializeToString()
    status = client.post(gateway_module.PULL, content=question, headers=header(NORTH)).status_code
    assert (status, len(looks) > 2) == ((503, False) if leaves else (200, True))


def test_the_sites_stay_while_the_file_cannot_be_read(
    folder: FederationFolder, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    text = folder.agreement_file.read_text()
    folder.agreement_file.write_text(text + "\n[[site")
    assert client.post(RUN, headers=header(NORTH)).status_code == 200
    assert "the sites stay as they were" in caplog.text
    folder.agreement_file.unlink()
    assert client.post(RUN, headers=header(STRANGER)).status_code == 403
    folder.agreement_file.write_text(text.replace(line(NORTH), line(STRANGER)))
    assert client.post(RUN, headers=header(NORTH)).status_code == 403
    assert client.post(RUN, headers=header(STRANGER)).status_code == 200


def test_a_body_over_the_limit_ends_at_the_gate(client: Client, asked: list[httpx.Request]) -> None:
    assert (
        client.post("/v1/fleet/push-object", content=b"x" * 101, headers=header(NORTH)).status_code
        == 413
    )
    assert not asked
    assert (
        client.post("/v1/fleet/push-object", content=b"x" * 100, headers=header(NORTH)).status_code
        == 200
    )


def test_a_reply_has_so_many_bytes_and_the_next_message_begins_anew(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One site could fill the disk of the coordinator, where the SuperLink keeps objects."""
    monkeypatch.setattr(gateway_module, "HOLD", -1.0)
    gateway = Gateway(folder)
    gateway.largest_reply = 250
    uploads: list[int] = []

    def superlink(request: httpx.Request) -> httpx.Response:
        if request.url.path == gateway_module.PULL:
            return httpx.Response(200, content=message_of("a").SerializeToString())
        uploads.append(len(request.content))
        return httpx.Response(200)

    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
    client = Client(gateway)

    def upload(key: ec.EllipticCurvePrivateKey) -> int:
        answer = client.post(gateway_module.UPLOAD, content=b"x" * 100, headers=header(key))
        return answer.status_code

    assert [upload(NORTH) for _ in range(4)] == [200, 200, 413, 413]
    assert upload(SOUTH) == 200, "each site has a limit of its own"
    client.post(gateway_module.PULL, headers=header(NORTH))
    assert [upload(NORTH) for _ in range(3)] == [200, 200, 413]
    assert uploads == [100] * 5


def test_the_limit_on_a_reply_is_no_less_than_that_on_an_object(folder: FederationFolder) -> None:
    file = folder.path / "coordinator.toml"
    assert folder.coordinator.largest_reply == 4096 * 2**20
    text = file.read_text()
    file.write_text(f"{text}largest-reply-mib = 64\n")
    assert FederationFolder(folder.path).coordinator.largest_reply == 64 * 2**20
    file.write_text(f"{text}largest-reply-mib = 63\n")
    with pytest.raises(DataError, match="must be at least largest-message-mib = 64") as refused:
        _ = FederationFolder(folder.path).coordinator
    assert refused.value.key == "largest-reply-mib"


def wanted(name: str, node: int = 1, run: int = 5) -> bytes:
    return PullObjectRequest(
        node=Node(node_id=node), run_id=run, object_id=name
    ).SerializeToString()


def message_of(*names: str, run: int = 5) -> PullMessagesResponse:
    """Return what the SuperLink answers to a site for which there is a message of these objects, the first its own."""
    children = [ObjectTree(object_id=name) for name in names[1:]]
    return PullMessagesResponse(
        messages_list=[Message(metadata=Metadata(run_id=run, message_id=names[0]))],
        message_object_trees=[ObjectTree(object_id=names[0], children=children)],
    )


def confirmed(name: str, run: int = 5) -> bytes:
    return ConfirmMessageReceivedRequest(
        node=Node(node_id=1), run_id=run, message_object_id=name
    ).SerializeToString()


def test_a_site_gets_only_the_objects_of_its_own_messages(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flwr serves an object to whoever names it by its sha256: a site could test guesses of another's class counts."""
    monkeypatch.setattr(gateway_module, "HOLD", -1.0)
    asked: list[str] = []

    def superlink(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        content = message_of("note", "model").SerializeToString() * (
            request.url.path == gateway_module.PULL
        )
        return httpx.Response(200, content=content)

    def status(gateway: Gateway, path: str, body: bytes, key: ec.EllipticCurvePrivateKey) -> int:
        gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
        return Client(gateway).post(path, content=body, headers=header(key)).status_code

    gateway = Gateway(folder)
    for body in (wanted("model"), wanted("counts-of-south"), b"no question"):
        assert status(gateway, gateway_module.OBJECT, body, NORTH) == 403 and not asked
    assert status(gateway, gateway_module.CONFIRM, confirmed("note"), NORTH) == 403 and not asked
    question = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
    assert status(gateway, gateway_module.PULL, question, NORTH) == 200
    assert status(gateway, gateway_module.OBJECT, wanted("counts-of-south"), NORTH) == 403
    assert "north" in gateway.sent, "a refused question is no sign that the message has come"
    for there in (gateway, Gateway(folder)):  # one that follows a gateway that was killed
        del asked[:]
        for name in ("note", "model"):
            assert status(there, gateway_module.OBJECT, wanted(name), NORTH) == 200
        assert status(there, gateway_module.CONFIRM, confirmed("note"), NORTH) == 200
        assert asked == [gateway_module.OBJECT, gateway_module.OBJECT, gateway_module.CONFIRM]
        assert status(there, gateway_module.OBJECT, wanted("model", run=6), NORTH) == 403, (
            "another run"
        )
        assert status(there, gateway_module.OBJECT, wanted("model"), SOUTH) == 403, "another site"
        assert status(there, gateway_module.CONFIRM, confirmed("note"), SOUTH) == 403
        assert len(asked) == 3


def test_what_was_handed_out_is_forgotten_after_some_messages_and_the_file_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_out, "LONGEST", 2000)
    file = tmp_path / "handed-out.jsonl"
    known = HandedOut(file)
    for number in range(100):
        known.note("north", message_of(f"note-{number}", f"model-{number}"))
    known.note("north", PullMessagesResponse())
    with file.open("ab") as opened:
        opened.write(b'\xff\n\0\0{"site": "south", "objects": [[5, "cut')
    for there in (known, HandedOut(file)):
        kept = [number for number in range(100) if there.allows("north", 5, f"model-{number}")]
        assert kept == list(range(100 - handed_out.KEPT, 100))
        assert not there.allows("south", 5, "model-99")
    assert file.stat().st_size <= 2000


def test_an_object_is_fetched_once_for_all_sites(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of a round is one object; what differs, is not there yet, or is not whole goes to the SuperLink."""
    monkeypatch.setattr("fedskew.federation.object_cache.HELD", 0.0)
    asked: list[str] = []
    there = {"model": b"weights"}

    async def superlink(request: httpx.Request) -> httpx.Response:
        name = PullObjectRequest.FromString(request.content).object_id
        asked.append(name)
        await asyncio.sleep(0.01)
        if name == "ended":
            return httpx.Response(403)
        stored = PullObjectResponse(
            object_found=True, object_available=name in there, object_content=there.get(name)
        )
        return httpx.Response(200, content=stored.SerializeToString())

    async def ask(*bodies: bytes) -> list[bytes]:
        async with httpx.AsyncClient(transport=transport, base_url="https://gateway") as client:
            posts = [
                client.post("/v1/fleet/pull-object", content=body, headers=header(key))
                for body, key in zip(bodies, (NORTH, SOUTH), strict=True)
            ]
            answers = await asyncio.gather(*posts)
        return [PullObjectResponse.FromString(answer.content).object_content for answer in answers]

    async def both() -> None:
        gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
        assert await ask(wanted("model"), wanted("model", node=2)) == [
            b"weights"
        ] * 2 and asked == ["model"]
        assert (
            await ask(wanted("model"), wanted("model", run=6)) == [b"weights"] * 2
            and asked == ["model"] * 2
        )
        del asked[:]
        for name in ("late", "ended"):
            assert await ask(wanted(name), wanted(name, node=2)) == [b"", b""]
            there["late"] = b"task"
        assert await ask(wanted("late"), wanted("ended")) == [b"task", b""]
        assert asked == ["late", "ended", "late", "ended"] and not [
            key for key in gateway.objects.kept if "ended" in key
        ]
        await gateway.objects.get(b"no question", lambda: gateway.ask(request, [wanted("late")]))
        assert asked[-1] == "late"

    gateway = Gateway(folder)
    for site, run in (("north", 5), ("south", 5), ("south", 6)):
        gateway.handed_out.note(site, message_of("model", "late", "ended", run=run))
    transport = httpx.ASGITransport(gateway.application())
    request = gateway_module.Request(
        {"type": "http", "path": "/v1/fleet/pull-object", "headers": [], "server": ("gateway", 443)}
    )
    asyncio.run(both())


def test_an_object_on_its_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hears that it is not there asks again after seconds."""
    monkeypatch.setattr("fedskew.federation.object_cache.POLL", 0.0)
    coming = PullObjectResponse(object_found=True).SerializeToString()
    there = PullObjectResponse(
        object_found=True, object_available=True, object_content=b"x"
    ).SerializeToString()
    answers = [(200, coming), (200, coming), (200, there), (200, b""), (503, b"")]

    async def ask() -> gateway_module.Reply:
        return *answers.pop(0), {}

    async def question() -> None:
        assert (await objects.get(wanted("model"), ask))[1] == there and len(answers) == 2
        assert (await objects.get(wanted("unknown"), ask))[:2] == (200, b""), (
            "nobody has announced it"
        )
        assert (await objects.get(wanted("unanswered"), ask))[:2] == (503, b"")

    objects = Objects()
    asyncio.run(question())


def test_objects_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedskew.federation.object_cache.time.monotonic", lambda: now[0])
    content = PullObjectResponse(object_found=True, object_available=True).SerializeToString()
    asked: list[float] = []

    async def ask() -> gateway_module.Reply:
        asked.append(now[0])
        return 200, content, {}

    async def later() -> None:
        for now[0] in (0.0, KEPT - 1, KEPT + 1):
            await objects.get(wanted("model"), ask)
        await objects.get(wanted("another"), ask)

    objects = Objects()
    asyncio.run(later())
    assert asked == [0.0, KEPT + 1, KEPT + 1] and len(objects.kept) == 2


def pushed(*sources: int | None, node: int | None = 1, trees: int | None = None) -> bytes:
    """Return the body of a push by a node: replies from `sources`, None for one without metadata, and object trees.

    There is one tree for each reply unless `trees` says how many. Who signs it is said elsewhere.
    """
    request = PushMessagesRequest(
        node=None if node is None else Node(node_id=node),
        messages_list=[
            Message() if source is None else Message(metadata=Metadata(src_node_id=source))
            for source in sources
        ],
        message_object_trees=[ObjectTree()] * (len(sources) if trees is None else trees),
    )
    return request.SerializeToString()


REFUSED_PUSHES = {
    "another node's reply": pushed(2),
    "another node's reply behind an own one": pushed(1, 2),
    "no protobuf": b"no message",
    "no byte": b"",
    "no reply": pushed(),
    "no reply, and a tree": pushed(trees=1),
    "no node, and no reply": pushed(node=None),
    "no node, and a reply of node 0": pushed(0, node=None),
    "node 0, and a reply of it": pushed(0, node=0),
    "no node, and a reply without metadata": pushed(None, node=None),
    "a reply without metadata": pushed(None),
    "a reply without metadata behind an own one": pushed(1, None),
    "a reply without its tree": pushed(1, trees=0),
    "two replies, and one tree": pushed(1, 1, trees=1),
    "a tree without a reply": pushed(1, trees=2),
}


@pytest.mark.parametrize("push", REFUSED_PUSHES)
def test_a_push_that_is_not_of_the_nodes_own_replies_ends_at_the_gate(
    client: Client, asked: list[httpx.Request], push: str
) -> None:
    def status(body: bytes) -> int:
        return client.post(gateway_module.PUSH, content=body, headers=header(NORTH)).status_code

    assert status(REFUSED_PUSHES[push]) == 403 and not asked
    assert status(pushed(1)) == 200 and len(asked) == 1


def test_a_question_for_messages_that_is_none_ends_at_the_gate(
    client: Client, asked: list[httpx.Request]
) -> None:
    asking = client.post(gateway_module.PULL, content=b"no question", headers=header(NORTH))
    assert asking.status_code == 403 and not asked


def test_every_request_leaves_a_line_with_the_sites_name(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedskew.gateway")
    client.post("/v1/fleet/get-run", headers=header(SOUTH))
    client.post("/v1/control/start-run", headers=header(STRANGER))
    assert caplog.messages[0].startswith("south 127.0.0.1 POST '/v1/fleet/get-run': 200")
    assert caplog.messages[1].startswith("unknown 127.0.0.1 POST '/v1/control/start-run': 404")


def test_a_supernode_that_was_killed_is_away_before_the_next_one_begins(
    client: Client, asked: list[httpx.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was asked is lost, and flwr answers in its place only while it is away."""
    now = [1000.0]
    monkeypatch.setattr(gateway_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(gateway_module, "HOLD", -1.0)
    question = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
    begin, end = gateway_module.BEGIN, gateway_module.END

    def begun(key: ec.EllipticCurvePrivateKey) -> list[str]:
        del asked[:]
        assert client.post(begin, headers=header(key)).status_code == 200
        return [request.url.path for request in asked]

    def lives(*calls: str) -> None:
        for call in calls:
            client.post(
                call,
                content=question if call == gateway_module.PULL else b"",
                headers=header(NORTH),
            )

    assert begun(NORTH) == [begin], "the first"
    lives(gateway_module.PULL)
    now[0] += 25
    lives(gateway_module.HEARTBEAT)
    now[0] += 25
    assert begun(NORTH) == [begin], "who has the key alone ends nobody"
    now[0] += 10
    assert begun(SOUTH) == [begin]
    assert begun(NORTH) == [end, begin]
    assert DeactivateNodeRequest.FromString(asked[0].content).node_id == 7
    assert asked[0].headers["flwr-signature"] == asked[1].headers["flwr-signature"]
    assert begun(NORTH) == [begin], "what has been ended is not ended twice"
    lives(gateway_module.PULL, end)
    now[0] += 100
    assert begun(NORTH) == [begin], "it had ended in order"


def test_what_a_killed_gate_or_superlink_had_in_hand_is_given_up(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that asks has nothing in hand: flwr answers for it while its node is away, and is asked again."""
    monkeypatch.setattr(gateway_module, "HOLD", -1.0)
    monkeypatch.setattr(lost_messages, "DOUBT", -1.0)
    calls: list[tuple[str, bytes]] = []
    broken: list[Exception] = []

    def superlink(request: httpx.Request) -> httpx.Response:
        calls.append((request.url.path, request.content))
        if request.url.path == gateway_module.PULL and broken:
            raise broken.pop()
        return httpx.Response(200)

    gateway = Gateway(folder)
    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
    client = Client(gateway)
    question = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()

    def asked(path: str, key: ec.EllipticCurvePrivateKey = NORTH) -> list[str]:
        del calls[:]
        client.post(path, content=question, headers=header(key))
        return [path for path, _ in calls]

    again = [gateway_module.PULL, gateway_module.END, gateway_module.BEGIN, gateway_module.PULL]
    assert asked(gateway_module.PULL) == again, "this gateway is new"
    assert DeactivateNodeRequest.FromString(calls[1][1]).node_id == 7
    begun = ActivateNodeRequest.FromString(calls[2][1])
    assert (
        begun.public_key == base64.b64decode(header(NORTH)["flwr-public-key"])
        and begun.heartbeat_interval == 30
    )
    assert asked(gateway_module.PULL) == [gateway_module.PULL]
    broken.append(httpx.ReadError("the SuperLink was killed"))
    assert asked(gateway_module.PULL) == [gateway_module.PULL]
    assert asked(gateway_module.PULL) == again
    assert asked(RUN, SOUTH) == [RUN] and asked(gateway_module.PULL, SOUTH) == [
        gateway_module.PULL
    ], "it is at work"


def test_no_sign_of_life_passes_while_a_node_is_away(
    client: Client, asked: list[httpx.Request]
) -> None:
    gateway = client.gateway

    async def beat() -> int:
        gateway.lost_messages.away.add("north")
        async with httpx.AsyncClient(
            transport=client.transport, base_url="https://gateway"
        ) as site:
            beating = asyncio.ensure_future(
                site.post(gateway_module.HEARTBEAT, headers=header(NORTH))
            )
            await asyncio.sleep(0.05)
            before = len(asked)
            gateway.lost_messages.away.discard("north")
            assert (await beating).status_code == 200
        return before

    assert asyncio.run(beat()) == 0 and len(asked) == 1


def test_a_question_for_messages_waits_for_one_and_it_comes_again_until_it_has_come(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that the SuperLink has given out it never gives out again; the way to a site may be cut just then."""
    monkeypatch.setattr(gateway_module, "PAUSE", 0.0)
    nothing = PullMessagesResponse().SerializeToString()
    first, second = (
        PullMessagesResponse(
            messages_list=[Message(metadata=Metadata(run_id=run))]
        ).SerializeToString()
        for run in (1, 2)
    )
    waiting = [nothing, nothing, first, second]
    gateway = Gateway(folder)

    def superlink(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            200, content=waiting.pop(0) if request.url.path == gateway_module.PULL else b""
        )

    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
    client = Client(gateway)

    def pull() -> bytes:
        return client.post(gateway_module.PULL, headers=header(NORTH)).content

    assert pull() == first and len(waiting) == 1
    client.post(gateway_module.HEARTBEAT, headers=header(NORTH))
    client.post(RUN, headers=header(SOUTH))
    assert pull() == first
    client.post(RUN, headers=header(NORTH))
    assert pull() == second and not waiting


def test_a_question_for_messages_is_held_for_a_while_only(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "HOLD", 0.0)
    assert client.post(gateway_module.PULL, headers=header(NORTH)).status_code == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "no name"}, "name = 'no name': must be 1 to 40 letters"),
        ({"classes": ["\uff12"]}, "classes = ['\uff12']: must be at least two names"),
        ({"shape": "1x\uff18x8"}, "input-shape = '1x\uff18x8': must be CHANNELSxHEIGHTxWIDTH"),
        ({"std": [0.0]}, "std = [0.0]: must be greater than 0"),
        ({"mean": [0.1, 0.2]}, "mean = [0.1, 0.2]: must be one value, or 1"),
        ({}, ""),
    ],
)
def test_no_folder_begins_with_a_file_that_nobody_can_read(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    values: dict[str, object] = {
        "name": "one", "classes": ["a", "b"], "shape": "1x8x8", "mean": [0.5], "std": [0.5], "min_sites": None,
        "address": "gateway.example.org:8443", "listen": "0.0.0.0",
    }  # fmt: skip
    path = tmp_path / "new"
    if not words:
        assert begin(path, **values).agreement_file.is_file()  # type: ignore[arg-type]
        return
    with pytest.raises(DataError) as error:
        begin(path, **values | change)  # type: ignore[arg-type]
    assert f"federation.toml: {words}" in str(error.value)
    assert not path.exists()


def test_a_folder_begins_once_and_takes_each_site_once(folder: FederationFolder) -> None:
    with pytest.raises(SettingError, match="must be empty"):
        begin(
            folder.path,
            "two",
            ["a", "b"],
            "1x8x8",
            [0.5],
            [0.5],
            2,
            "gateway.example.org:8443",
            "0.0.0.0",
        )
    before = folder.agreement_file.read_text()
    for name, key, rule in (
        ("north", line(STRANGER), "is another site's"), ("east", line(NORTH), "is another site's"),
        ("no name", line(STRANGER), "must be 1 to 40 letters"),
        ("east", "ssh-ed25519 AAAA", "must be a node's public key"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=rule):
            add_site(folder, name, key)
    assert folder.agreement_file.read_text() == before
    assert [site.name for site in folder.agreement.sites] == ["north", "south"]
    assert folder.state.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("stated", "sites", "least"), [(None, 2, 2), (None, 5, 3), (2, 5, 2)])
def test_a_round_needs_more_than_half_of_the_sites_unless_something_else_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: int | None, sites: int, least: int
) -> None:
    """Two of five sites, which could agree, would else make a round of their own by default."""
    monkeypatch.setattr(folders, "app_files", lambda path: {"pyproject.toml": b"[project]"})
    words = ["new", str(tmp_path / "many"), "--name", "many", "--classes", "sick,well"]
    words += ["--input-shape", "1x8x8", "--address", "gateway.example.org:8443"]
    words += [] if stated is None else ["--min-sites", str(stated)]
    application(words, standalone_mode=False)
    begun = FederationFolder(tmp_path / "many")
    for number in range(sites):
        add_site(begun, f"site-{number}", line(node_key()))
    assert begun.agreement.min_sites == least


def test_another_app_needs_no_classes_and_fedskews_does(
    tmp_path: Path,
) -> None:
    app = Path(__file__).parents[3] / "examples" / "flower-quickstart"
    words = ["--name", "any", "--address", "gateway.example.org:8443"]
    application(["new", str(tmp_path / "any"), *words, "--app", str(app)], standalone_mode=False)
    begun = FederationFolder(tmp_path / "any")
    for number in range(2):
        add_site(begun, f"site-{number}", line(node_key()))
    assert {*read_toml(begun.agreement_file)[1]} == {"name", "app", "site"}
    assert begun.agreement.classes == begun.agreement.shape == ()
    with pytest.raises(DataError, match="has no classes and no input-shape"):
        parse({"dataset": f"sites:{begun.agreement_file}"})

    for stated, missing in ((["--classes", "a,b"], "--input-shape"), ([], "--classes")):
        with pytest.raises(BadParameter, match="FedSkew's app needs it") as error:
            application(["new", str(tmp_path / "own"), *words, *stated], standalone_mode=False)
        assert error.value.param_hint == missing
    with pytest.raises(DataError, match="input-shape"):
        half = [*words, "--app", str(app), "--classes", "a,b"]
        application(["new", str(tmp_path / "half"), *half], standalone_mode=False)
    assert not (tmp_path / "own").exists() and not (tmp_path / "half").exists()


def test_a_folder_whose_app_is_another_does_not_start(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.check()
    monkeypatch.setattr(folders, "app_files", lambda path: {"pyproject.toml": b"[project] "})
    with pytest.raises(DataError, match="all parties have to agree to one"):
        folder.check()


@pytest.mark.parametrize(
    "address", ["gateway.example.org", "gateway:0", "gateway:99999", ":80", "gateway:8O"]
)
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str) -> None:
    with pytest.raises(DataError, match="must be HOST:PORT"):
        begin(tmp_path / "other", "two", ["a", "b"], "1x8x8", [0.5], [0.5], 2, address, "0.0.0.0")
    assert not (tmp_path / "other").exists()


def test_the_metrics_say_what_has_passed_by_site_and_what_was_refused(
    folder: FederationFolder, client: Client
) -> None:
    client.post("/v1/fleet/push-object", content=b"x" * 70, headers=header(NORTH))
    client.post("/v1/fleet/push-object", content=b"x" * 101, headers=header(NORTH))
    client.post("/v1/control/start-run", headers=header(STRANGER))
    registry = client.gateway.traffic.registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("fedskew_gate_site_online", site="north") == 1
    assert value("fedskew_gate_site_online", site="south") == 0
    assert value("fedskew_gate_last_request_timestamp_seconds", site="south") == 0
    assert value("fedskew_gate_disk_free_bytes") == pytest.approx(
        shutil.disk_usage(folder.state).free, rel=0.1
    )
    assert value("fedskew_gate_requests_total", site="north", status="200") == 1
    assert value("fedskew_gate_requests_total", site="north", status="413") == 1
    assert value("fedskew_gate_requests_total", site="unknown", status="404") == 1
    # the refused request states its length, and no byte of it was read
    assert value("fedskew_gate_received_bytes_total", site="north") == 70
    assert value("fedskew_gate_sent_bytes_total", site="north") == len(b"answer")
    seconds = value("fedskew_gate_seconds_total", site="north", call="push-object")
    assert seconds is not None and seconds > 0


def test_the_metrics_have_types_and_no_other_series(
    folder: FederationFolder, client: Client
) -> None:
    """A path that is not passed on makes no series, and no counter has a second one with its age."""
    for number in range(20):
        client.post(f"/v1/fleet/made-up-{number}", headers=header(NORTH))
    client.post("/v1/fleet/push-object", content=b"x", headers=header(NORTH))
    text = generate_latest(client.gateway.traffic.registry).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert types == {
        "fedskew_gate_requests_total": "counter",
        "fedskew_gate_received_bytes_total": "counter",
        "fedskew_gate_sent_bytes_total": "counter",
        "fedskew_gate_seconds_total": "counter",
        "fedskew_gate_refused_total": "counter",
        "fedskew_gate_connections": "gauge",
        "fedskew_gate_site_online": "gauge",
        "fedskew_gate_last_request_timestamp_seconds": "gauge",
        "fedskew_gate_disk_free_bytes": "gauge",
    }
    assert re.findall(r'call="([^"]+)"', text) == ["push-object"]


def test_the_metrics_have_a_port_of_their_own(folder: FederationFolder) -> None:
    file = folder.path / "coordinator.toml"
    text = file.read_text()
    assert folder.coordinator.metrics_port == 0
    file.write_text(f"{text}metrics-port = 8443\n")
    with pytest.raises(DataError, match=r"metrics-port = 8443: must be a port of its own"):
        _ = FederationFolder(folder.path).coordinator
    file.write_text(f"{text}metrics-port = 9100\n")
    assert FederationFolder(folder.path).coordinator.metrics_port == 9100


UPLOAD = "/v1/fleet/push-object"


class Sender:
    """Sites that send bodies at the same time, piece by piece, to a gateway whose SuperLink answers when it is let."""

    def __init__(self, folder: FederationFolder) -> None:
        self.gateway = Gateway(folder)
        self.gateway.largest = 100
        self.gateway.intake = Intake(100, Limits())
        self.received: list[bytes] = []
        self.read = 0
        """Bytes that the gateway has asked for."""

    async def superlink(self, request: httpx.Request) -> httpx.Response:
        """Answer once `answers` is set."""
        self.received.append(await request.aread())
        await self.answers.wait()
        return httpx.Response(200)

    async def body(self, size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 10):
            self.read += 10
            yield b"x" * 10

    async def send(
        self, key: ec.EllipticCurvePrivateKey, size: int, length: int | None = None
    ) -> int:
        """Return the status of an upload of so many bytes that states a length, if any."""
        stated = {} if length is None else {"content-length": str(length)}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.gateway.application()), base_url="https://gateway"
        ) as client:
            answer = await client.post(
                UPLOAD, content=self.body(size), headers={**header(key), **stated}
            )
        return answer.status_code

    async def begin(self) -> None:
        self.answers = asyncio.Event()
        self.gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(self.superlink))


async def idle() -> None:
    """Return once nothing of this loop can go on by itself."""
    for _ in range(300):
        await asyncio.sleep(0)


def test_a_site_sends_what_there_is_room_for_and_the_rest_waits_at_the_site(
    folder: FederationFolder,
) -> None:
    """Three bodies of 50 of one site, with room for 100: the third is not read before one of the others is gone."""
    sender = Sender(folder)

    async def run() -> None:
        await sender.begin()
        sending = [asyncio.ensure_future(sender.send(NORTH, 50, 50)) for _ in range(3)]
        await idle()
        assert len(sender.received) == 2 and sender.gateway.intake.held["north"] == 100
        other = asyncio.ensure_future(sender.send(SOUTH, 100, 100))
        await idle()
        assert len(sender.received) == 3, "another site has room of its own"
        sender.answers.set()
        assert await asyncio.gather(*sending, other) == [200] * 4
        assert sender.received.count(b"x" * 50) == 3 and not sender.gateway.intake.held.total()

    asyncio.run(run())


def test_there_is_room_for_some_sites_bodies_at_a_time() -> None:
    async def run() -> None:
        taken = Intake(100, Limits())
        async with AsyncExitStack() as stack:
            for number in range(intake.SITES):
                await stack.enter_async_context(taken.room(f"site-{number}", 100))
            assert not taken.fits("another", 1)
        assert taken.fits("another", 100) and not taken.fits("another", 101)

    asyncio.run(run())


def test_a_body_that_finds_no_room_in_time_is_refused_so_that_it_is_sent_again(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flwr's SuperNode repeats a request that gets 503, and gives up a message that gets 429."""
    monkeypatch.setattr(intake, "PATIENCE", 0.0)
    sender = Sender(folder)

    async def run() -> None:
        await sender.begin()
        first = asyncio.ensure_future(sender.send(NORTH, 100, 100))
        await idle()
        sender.read = 0
        assert await sender.send(NORTH, 100, 100) == 503 and len(sender.received) == 1
        with pytest.raises(NoRoom):
            async with sender.gateway.intake.room("north", 1):
                pytest.fail("there is none")
        sender.answers.set()
        assert await first == 200

    asyncio.run(run())


def test_a_site_has_so_many_requests_open_and_no_more() -> None:
    async def run() -> None:
        taken = Intake(100, Limits())
        async with AsyncExitStack() as stack:
            for _ in range(Limits().requests_at_a_time):
                await stack.enter_async_context(taken.room("north", 0))
            with pytest.raises(TooManyRequests):
                await stack.enter_async_context(taken.room("north", 0))
            await stack.enter_async_context(taken.room("south", 0))
        async with taken.room("north", 0):
            assert taken.open["north"] == 1

    asyncio.run(run())


def test_a_body_is_as_large_as_it_states_and_one_that_states_nothing_as_large_as_may_be(
    folder: FederationFolder,
) -> None:
    sender = Sender(folder)

    async def run() -> None:
        await sender.begin()
        sender.answers.set()
        assert await sender.send(NORTH, 100) == 200, "it states nothing"
        assert await sender.send(NORTH, 50, 50) == 200
        del sender.received[:]
        assert await sender.send(NORTH, 110) == 413
        assert await sender.send(NORTH, 60, 50) == 413, "more than it states"
        sender.read = 0
        assert await sender.send(NORTH, 110, 110) == 413
        assert not sender.received and not sender.gateway.intake.held.total()

    asyncio.run(run())


def test_what_is_no_object_may_only_be_small(folder: FederationFolder) -> None:
    sender = Sender(folder)
    sender.gateway.largest = 2**26
    small = "/v1/fleet/get-run"

    async def run() -> list[int]:
        await sender.begin()
        sender.answers.set()
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(sender.gateway.application()), base_url="https://gateway"
        ) as client:
            sender.gateway.intake = Intake(2**26, Limits())
            bodies = (b"x" * 2**20, b"x" * (2**20 + 1))
            return [
                (await client.post(small, content=body, headers=header(NORTH))).status_code
                for body in bodies
            ]

    assert asyncio.run(run()) == [200, 413]
