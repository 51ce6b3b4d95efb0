"""Attacks on the running federation by whoever reaches its port: each is refused, beside a request that passes."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from running_federation import RUNNING_FEDERATION

from data.agreement import as_flower_has_it
from deploy.local_federation import LocalFederation
from fedskew.federation.control import Control
from fedskew.federation.folder import FederationFolder
from site_agent.keys import read_key

pytestmark = RUNNING_FEDERATION
VICTIM, ROGUE = "site-0", "site-2"


class Wire:
    """What whoever reaches the federation's port has: its address, and the authority's certificate."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.folder = FederationFolder(federation.folder)
        self.authority = self.folder.authority[0].read_bytes()
        coordinator = self.folder.coordinator
        self.address = f"{coordinator.host}:{coordinator.port}"
        self.loopback = f"127.0.0.1:{coordinator.superlink_port}"
        nodes = Control(self.folder).nodes()
        self.nodes = {
            site.name: nodes[as_flower_has_it(site.key)].node_id
            for site in self.folder.agreement.sites
        }
        """By site, the id of its node, which no site is told of."""

    def key(self, site: str) -> ec.EllipticCurvePrivateKey:
        return read_key(self.federation.places[site] / "node.key")

    @contextmanager
    def client(
        self,
        kind: Any = FleetHttpClient,
        key: ec.EllipticCurvePrivateKey | None = None,
        public: ec.EllipticCurvePublicKey | None = None,
    ) -> Iterator[Any]:
        """Yield one of flwr's clients that signs with a key, the rogue's own by default."""
        key = key or self.key(ROGUE)
        signed = NodeAuthHttpInterceptor(key, public or key.public_key())
        with kind.from_server_address(self.address, False, self.authority, [signed]) as client:
            yield client

    def honest(self) -> None:
        """The control of every attack: the rogue's key speaks for the rogue's own node."""
        with self.client() as client:
            assert client.SendNodeHeartbeat(sign_of_life(self.nodes[ROGUE])).success


@pytest.fixture
def wire(federation: LocalFederation) -> Wire:
    wire = Wire(federation)
    wire.honest()
    return wire


def sign_of_life(node: int) -> SendNodeHeartbeatRequest:
    return SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30)


def status_of(call: Callable[[Any], Any], request: Any) -> int:
    """Return the HTTP status of a call: 200 where it is answered."""
    try:
        call(request)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def test_an_unknown_key_and_one_that_is_not_the_signer_s_are_refused(wire: Wire) -> None:
    stranger = ec.generate_private_key(ec.SECP384R1())
    begin = ActivateNodeRequest(
        public_key=public_key_to_bytes(stranger.public_key()), heartbeat_interval=30
    )
    with wire.client(key=stranger) as client:
        assert status_of(client.ActivateNode, begin) == 403
    with wire.client(public=wire.key(VICTIM).public_key()) as client:
        assert status_of(client.SendNodeHeartbeat, sign_of_life(wire.nodes[VICTIM])) == 403


def test_a_site_speaks_for_its_own_node_alone(wire: Wire) -> None:
    question = PullMessagesRequest(node=Node(node_id=wire.nodes[VICTIM]))
    with wire.client() as client:
        assert status_of(client.PullMessages, question) == 401
        assert status_of(client.SendNodeHeartbeat, sign_of_life(wire.nodes[VICTIM])) == 401


@pytest.mark.parametrize(
    ("node", "source", "status"), [(ROGUE, VICTIM, 403), (VICTIM, VICTIM, 401)]
)
def test_a_reply_in_another_site_s_name_is_refused(
    wire: Wire, node: str, source: str, status: int
) -> None:
    def push(node: str, source: str) -> PushMessagesRequest:
        reply = Message(metadata=Metadata(src_node_id=wire.nodes[source]))
        return PushMessagesRequest(
            node=Node(node_id=wire.nodes[node]),
            messages_list=[reply],
            message_object_trees=[ObjectTree()],
        )

    with wire.client() as client:
        assert status_of(client.PushMessages, push(node, source)) == status
        assert status_of(client.PushMessages, PushMessagesRequest()) == 403, "an empty push"


def test_calls_of_the_coordinator_and_the_server_app_are_none_of_a_site_s(wire: Wire) -> None:
    with wire.client(ControlHttpClient) as client:
        assert status_of(client.StartRun, StartRunRequest()) == 404
        assert status_of(client.ListRuns, ListRunsRequest()) == 404
        remove = UnregisterNodeRequest(node_id=wire.nodes[VICTIM])
        assert status_of(client.UnregisterNode, remove) == 404
    with wire.client(RuntimeHttpClient) as client:
        task = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        assert status_of(client.AcquireTask, task) == 404
    with wire.client() as client:
        assert status_of(client.RegisterNode, RegisterNodeFleetRequest()) == 404


def test_past_the_door_is_loopback_alone_and_its_control_interface_asks_for_a_secret(
    wire: Wire,
) -> None:
    port = wire.folder.coordinator.superlink_port
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    Control(wire.folder).ask("ListRuns", ListRunsRequest())  # the control
    other = ControlHttpClient.from_server_address(wire.loopback, False, wire.authority, [])
    with other as client:
        assert status_of(client.ListRuns, ListRunsRequest()) == 403


def test_without_tls_there_is_no_answer(wire: Wire) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{wire.address}/v1/fleet/pull-messages", trust_env=False)


def test_a_body_of_a_byte_too_many_is_refused(wire: Wire) -> None:
    most = wire.folder.coordinator.largest_message_mib * 2**20

    def upload(size: int) -> PushObjectRequest:
        node = Node(node_id=wire.nodes[ROGUE])
        request = PushObjectRequest(node=node, run_id=1, object_id="0" * 64, session_id="none")
        request.object_content = bytes(size - request.ByteSize() - 5)  # the field's own head
        assert request.ByteSize() == size
        return request

    with wire.client() as client:
        assert status_of(client.PushObject, upload(most)) != 413
        assert status_of(client.PushObject, upload(most + 1)) == 413


def test_a_key_that_leaves_the_text_is_refused_at_once_and_others_are_not(wire: Wire) -> None:
    file = wire.folder.agreed_file
    agreed = file.read_text()
    head, *sites = agreed.split("[[site]]")
    left = [site for site in sites if f'"{ROGUE}"' not in site]
    assert len(left) == len(sites) - 1
    try:
        file.write_text("[[site]]".join([head, *left]))
        with wire.client() as client:
            assert status_of(client.SendNodeHeartbeat, sign_of_life(wire.nodes[ROGUE])) == 403
        with wire.client(key=wire.key(VICTIM)) as client:
            assert status_of(client.SendNodeHeartbeat, sign_of_life(wire.nodes[VICTIM])) == 200
    finally:
        file.write_text(agreed)
    wire.honest()
