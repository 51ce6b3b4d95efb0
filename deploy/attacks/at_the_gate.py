"""Attacks on the one port that sites reach, by whoever reaches it, and by a site."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient

from attacks.stage import AT_WORK, Attack, Stage, Succeeded
from fedskew.federation.certificates import write_authority, write_server
from site_agent.online import explain, unreachable

ROGUE = 2
"""The site that attacks; it trains honestly beside it."""


def unregistered_key(stage: Stage) -> str:
    key = ec.generate_private_key(ec.SECP384R1())
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30
    )
    with stage.fleet(key) as client:
        return stage.refused_by_gate(
            "/v1/fleet/activate-node", lambda: client.ActivateNode(request), 403
        )


def public_key_of_another(stage: Stage) -> str:
    public = stage.key(0).public_key()
    request = PullMessagesRequest(node=Node(node_id=stage.nodes[0]))
    with stage.fleet(stage.key(ROGUE), public) as client:
        return stage.refused_by_gate(
            "/v1/fleet/pull-messages", lambda: client.PullMessages(request), 403
        )


def stolen_key(stage: Stage) -> str:
    key, log = stage.key(0), stage.log("superlink")
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30
    )
    with stage.fleet(key) as client:
        line = stage.refused_by_gate(
            "/v1/fleet/activate-node", lambda: client.ActivateNode(request), 400, 409, 412, 500
        )
    reasons = [text for text in log.lines() if "could not be activated" in text]
    return "\n".join([line, *reasons[:1]])


def node_of_another(stage: Stage) -> str:
    request = PullMessagesRequest(node=Node(node_id=stage.nodes[0]))
    with stage.fleet(stage.key(ROGUE)) as client:
        return stage.refused_by_gate(
            "/v1/fleet/pull-messages", lambda: client.PullMessages(request), 401
        )


@contextmanager
def impostor(server: tuple[Path, Path] | None) -> Iterator[int]:
    """Listen on loopback as the gate would, with another certificate or without TLS; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if server:
            context.load_cert_chain(*server)

        def answer() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    try:
                        (
                            context.wrap_socket(connection, server_side=True)
                            if server
                            else connection
                        ).recv(1)
                        if not server:
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    except OSError:
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def trusted(stage: Stage, port: int) -> str:
    """Return why a site that knows the federation's ca.crt does not talk to a port."""
    context = ssl.create_default_context(cafile=str(stage.folder.authority[0]))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            context.wrap_socket(connection, server_hostname="127.0.0.1")
    except ssl.SSLCertVerificationError as error:
        return f"{error.verify_message}: {explain(error)}"
    except OSError as error:
        return unreachable(error)
    raise Succeeded("the handshake went through")


def other_authority(stage: Stage) -> str:
    with TemporaryDirectory() as folder:
        authority, server = [
            (Path(folder, f"{name}.crt"), Path(folder, f"{name}.key")) for name in ("ca", "server")
        ]
        write_authority("try", *authority)
        write_server("try", ["127.0.0.1"], authority, *server)
        with impostor(server) as port:
            return trusted(stage, port)


def plain_impostor(stage: Stage) -> str:
    with impostor(None) as port:
        return trusted(stage, port)


def plain_http(stage: Stage) -> str:
    try:
        answer = httpx.post(f"http://{stage.address}/v1/fleet/pull-messages", trust_env=False)
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}"
    raise Succeeded(f"the answer is {answer.status_code}")


def control_interface(stage: Stage) -> str:
    calls = {
        "start-run": ("StartRun", StartRunRequest()),
        "list-runs": ("ListRuns", ListRunsRequest()),
        "unregister-node": ("UnregisterNode", UnregisterNodeRequest(node_id=stage.nodes[0])),
    }
    lines = []
    with stage.client(ControlHttpClient, stage.key(ROGUE)) as client:
        for path, (call, request) in calls.items():
            ask = getattr(client, call)
            lines.append(
                stage.refused_by_gate(
                    f"/v1/control/{path}", lambda ask=ask, request=request: ask(request), 404
                )
            )
    return "\n".join(lines)


def runtime_interface(stage: Stage) -> str:
    with stage.client(RuntimeHttpClient, stage.key(ROGUE)) as client:
        request = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        return stage.refused_by_gate(
            "/v1/runtime/acquire-task", lambda: client.AcquireTask(request), 404
        )


def registration(stage: Stage) -> str:
    key = ec.generate_private_key(ec.SECP384R1())
    with stage.fleet(stage.key(ROGUE)) as client:
        register = RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key()))
        remove = UnregisterNodeFleetRequest(node_id=stage.nodes[0])
        lines = [
            stage.refused_by_gate(
                "/v1/fleet/register-node", lambda: client.RegisterNode(register), 404
            ),
            stage.refused_by_gate(
                "/v1/fleet/unregister-node", lambda: client.UnregisterNode(remove), 404
            ),
        ]
    return "\n".join(lines)


def large_body(stage: Stage) -> str:
    request = PushObjectRequest(
        node=Node(node_id=stage.nodes[ROGUE]), object_content=bytes(64 * 2**20 + 1)
    )
    with stage.fleet(stage.key(ROGUE)) as client:
        return stage.refused_by_gate(
            "/v1/fleet/push-object", lambda: client.PushObject(request), 413
        )


def past_the_gate(stage: Stage) -> str:
    port = stage.folder.coordinator.superlink_port
    try:
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
    except ConnectionRefusedError as error:
        return f"connection to another address of the coordinator, at the SuperLink's port: {error.strerror}"
    raise Succeeded("the SuperLink listens on more than 127.0.0.1")


ANYBODY, SITE = "anybody who reaches the gate and has ca.crt", "a site"
ATTACKS = [
    Attack("an unregistered key signs in", ANYBODY, AT_WORK, unregistered_key),
    Attack(
        "another site's public key, signed with a key that is not its own",
        SITE,
        AT_WORK,
        public_key_of_another,
    ),
    Attack("a site's own key, in the name of another site's node", SITE, AT_WORK, node_of_another),
    Attack(
        "a site's stolen private key signs in while that site is online",
        "a thief",
        AT_WORK,
        stolen_key,
    ),
    Attack(
        "a gate with a certificate of another authority", "the network", AT_WORK, other_authority
    ),
    Attack("a gate without TLS", "the network", AT_WORK, plain_impostor),
    Attack("plain HTTP to the gate", ANYBODY, AT_WORK, plain_http),
    Attack("submit a run, list runs, remove a hospital", SITE, AT_WORK, control_interface),
    Attack("take over the ServerApp by acquire-task", SITE, AT_WORK, runtime_interface),
    Attack("register a node, unregister another", SITE, AT_WORK, registration),
    Attack("a body over the limit", SITE, AT_WORK, large_body),
    Attack("the SuperLink's port past the gate", "the network", AT_WORK, past_the_gate),
]
