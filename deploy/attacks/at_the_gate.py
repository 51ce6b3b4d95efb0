"""Attacks on the one port that sites reach, by whoever reaches it, and by a site."""

import socket
import ssl
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient

from attacks.stage import AT_WORK, Attack, ControlFailed, Refusal, Stage, Succeeded, require

ROGUE = 2
"""The site that attacks; it trains honestly beside it."""
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
"""The honest request of most rows: a sign of life disturbs no training."""


def sign_of_life(node: int) -> SendNodeHeartbeatRequest:
    """Return the request by which a node says that it is there."""
    return SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30)


def honest_site(stage: Stage) -> str:
    """Let the rogue's key speak for the rogue's own node, which the gateway passes and the SuperLink takes."""
    with stage.fleet(stage.key(ROGUE)) as client:
        answer, line = stage.passed_by_gate(
            HEARTBEAT, lambda: client.SendNodeHeartbeat(sign_of_life(stage.nodes[ROGUE]))
        )
    require(answer.success, "the SuperLink does not take the sign of life of the rogue's own node")
    return line


def unregistered_key(stage: Stage) -> list[Refusal]:
    key = ec.generate_private_key(ec.SECP384R1())
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30
    )
    with stage.fleet(key) as client:
        return [
            stage.refused_by_gate("/v1/fleet/activate-node", lambda: client.ActivateNode(request)),
            stage.refused_by_gate(
                HEARTBEAT, lambda: client.SendNodeHeartbeat(sign_of_life(stage.nodes[ROGUE]))
            ),
        ]


def public_key_of_another(stage: Stage) -> list[Refusal]:
    request = PullMessagesRequest(node=Node(node_id=stage.nodes[0]))
    with stage.fleet(stage.key(ROGUE), stage.key(0).public_key()) as client:
        return [
            stage.refused_by_gate("/v1/fleet/pull-messages", lambda: client.PullMessages(request)),
            stage.refused_by_gate(
                HEARTBEAT, lambda: client.SendNodeHeartbeat(sign_of_life(stage.nodes[0]))
            ),
        ]


def node_of_another(stage: Stage) -> list[Refusal]:
    request = PullMessagesRequest(node=Node(node_id=stage.nodes[0]))
    with stage.fleet(stage.key(ROGUE)) as client:
        return [
            stage.refused_by_gate("/v1/fleet/pull-messages", lambda: client.PullMessages(request)),
            stage.refused_by_gate(
                HEARTBEAT, lambda: client.SendNodeHeartbeat(sign_of_life(stage.nodes[0]))
            ),
        ]


class Recording:
    """Keeps the headers that flwr signs a request with."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Look at a request on its way, behind the interceptor that signs it."""
        self.headers, self.body = dict(context.request.headers), context.request.content
        answer: httpx.Response = call_next(context)
        return answer


def signed_request(stage: Stage) -> tuple[dict[str, str], bytes]:
    """Return headers and body of the rogue's sign of life, as flwr's client sends it."""
    recording = Recording()
    with stage.fleet(stage.key(ROGUE), also=(recording,)) as client:
        client.SendNodeHeartbeat(sign_of_life(stage.nodes[ROGUE]))
    return recording.headers, recording.body


def over_tls(stage: Stage) -> str:
    headers, body = signed_request(stage)
    context = ssl.create_default_context(cafile=str(stage.folder.authority[0]))
    url = f"https://{stage.address}{HEARTBEAT}"
    answer = httpx.post(url, headers=headers, content=body, verify=context, trust_env=False)
    require(answer.status_code == 200, f"the same over TLS: {answer.status_code}")
    return f"the same request over TLS: {answer.status_code}"


def plain_http(stage: Stage) -> list[Refusal]:
    headers, body = signed_request(stage)
    url = f"http://{stage.address}{HEARTBEAT}"
    try:
        answer = httpx.post(url, headers=headers, content=body, trust_env=False)
    except httpx.RemoteProtocolError as error:
        return [Refusal(type(error).__name__, str(error))]
    raise Succeeded(f"the answer is {answer.status_code}")


def coordinators_own(stage: Stage) -> str:
    """Let the coordinator ask the SuperLink itself what a site asks in vain, and the site what it may ask."""
    runs = stage.control.ask("ListRuns", ListRunsRequest()).run_dict
    require(len(runs), "the SuperLink lists no run to the coordinator either")
    return (
        f"{honest_site(stage)}\nto the coordinator, at the SuperLink's own port: {len(runs)} runs"
    )


def control_interface(stage: Stage) -> list[Refusal]:
    calls = {
        "start-run": ("StartRun", StartRunRequest()),
        "list-runs": ("ListRuns", ListRunsRequest()),
        "unregister-node": ("UnregisterNode", UnregisterNodeRequest(node_id=stage.nodes[0])),
    }
    refusals = []
    with stage.client(ControlHttpClient, stage.key(ROGUE)) as client:
        for path, (call, request) in calls.items():
            ask = getattr(client, call)
            refusals.append(
                stage.refused_by_gate(
                    f"/v1/control/{path}", lambda ask=ask, request=request: ask(request)
                )
            )
    return refusals


def at_the_superlink(stage: Stage) -> str:
    """Ask for a task at the SuperLink's own port, of a kind that nobody has submitted, so that none is taken."""
    client = RuntimeHttpClient.from_server_address(
        f"127.0.0.1:{stage.folder.coordinator.superlink_port}",
        False,
        stage.authority,
        [],
    )
    with client:
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-agentapp"]))
    require(not answer.HasField("task"), "there was a task of this kind")
    return f"{honest_site(stage)}\nat the SuperLink's own port: 200, no task of this kind"


def runtime_interface(stage: Stage) -> list[Refusal]:
    with stage.client(RuntimeHttpClient, stage.key(ROGUE)) as client:
        request = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        return [
            stage.refused_by_gate("/v1/runtime/acquire-task", lambda: client.AcquireTask(request))
        ]


def registration(stage: Stage) -> list[Refusal]:
    key = ec.generate_private_key(ec.SECP384R1())
    with stage.fleet(stage.key(ROGUE)) as client:
        register = RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key()))
        remove = UnregisterNodeFleetRequest(node_id=stage.nodes[0])
        return [
            stage.refused_by_gate("/v1/fleet/register-node", lambda: client.RegisterNode(register)),
            stage.refused_by_gate(
                "/v1/fleet/unregister-node", lambda: client.UnregisterNode(remove)
            ),
        ]


def body_of(stage: Stage, size: int) -> PushObjectRequest:
    """Return a request of the rogue's whose body has so many bytes."""
    run = int(stage.audit(ROGUE)[-1]["run"])
    request = PushObjectRequest(
        node=Node(node_id=stage.nodes[ROGUE]),
        run_id=run,
        object_id="0" * 64,
        session_id="none",
    )
    request.object_content = bytes(size - request.ByteSize())
    too_much = request.ByteSize() - size  # the field's own head
    request.object_content = bytes(len(request.object_content) - too_much)
    assert request.ByteSize() == size
    return request


def largest_body(stage: Stage) -> str:
    size = stage.folder.coordinator.largest_message
    with stage.fleet(stage.key(ROGUE)) as client:
        return stage.passed_by_gate(
            "/v1/fleet/push-object", lambda: client.PushObject(body_of(stage, size))
        )[1]


def large_body(stage: Stage) -> list[Refusal]:
    request = body_of(stage, stage.folder.coordinator.largest_message + 1)
    with stage.fleet(stage.key(ROGUE)) as client:
        return [stage.refused_by_gate("/v1/fleet/push-object", lambda: client.PushObject(request))]


def connection(stage: Stage, host: str) -> None:
    """Connect to the SuperLink's port at an address. Raises OSError."""
    socket.create_connection((host, stage.folder.coordinator.superlink_port), timeout=5).close()


def on_loopback(stage: Stage) -> str:
    try:
        connection(stage, "127.0.0.1")
    except OSError as error:
        raise ControlFailed(f"nothing listens at the SuperLink's port: {error}") from None
    return "connection to 127.0.0.1, at the SuperLink's port"


def past_the_gate(stage: Stage) -> list[Refusal]:
    try:
        connection(stage, "127.0.0.2")
    except ConnectionRefusedError as error:
        where = "connection to another address of the coordinator, at the SuperLink's port"
        return [Refusal(type(error).__name__, f"{where}: {error.strerror}")]
    raise Succeeded("the SuperLink listens on more than 127.0.0.1")


def by_gate(status: int, *names: str) -> tuple[Refusal, ...]:
    """Return the gateway's refusals of calls by a status: the kind, and the call in its log."""
    return tuple(Refusal(f"HTTP {status}", f"{name}': {status}") for name in names)


ANYBODY, SITE = "anybody who reaches the gateway and has ca.crt", "a site"
ATTACKS = [
    Attack("an unregistered key signs in", ANYBODY, AT_WORK, honest_site, unregistered_key,
           by_gate(403, "activate-node", "send-node-heartbeat")),
    Attack("another site's public key, signed with a key that is not its own", SITE, AT_WORK, honest_site,
           public_key_of_another, by_gate(403, "pull-messages", "send-node-heartbeat")),
    Attack("a site's own key, in the name of another site's node", SITE, AT_WORK, honest_site, node_of_another,
           by_gate(401, "pull-messages", "send-node-heartbeat")),
    Attack("plain HTTP to the gateway", ANYBODY, AT_WORK, over_tls, plain_http,
           (Refusal("RemoteProtocolError", "Server disconnected without sending a response"),)),
    Attack("submit a run, list runs, remove a hospital", SITE, AT_WORK, coordinators_own, control_interface,
           by_gate(404, "start-run", "list-runs", "unregister-node")),
    Attack("take over the ServerApp by acquire-task", SITE, AT_WORK, at_the_superlink, runtime_interface,
           by_gate(404, "acquire-task")),
    Attack("register a node, unregister another", SITE, AT_WORK, honest_site, registration,
           by_gate(404, "register-node", "unregister-node")),
    Attack("a body of one byte over the limit", SITE, AT_WORK, largest_body, large_body, by_gate(413, "push-object")),
    Attack("the SuperLink's port past the gateway", "the network", AT_WORK, on_loopback, past_the_gate,
           (Refusal("ConnectionRefusedError", "Connection refused"),)),
]  # fmt: skip
