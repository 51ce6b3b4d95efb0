"""The private modules of flwr that a coordinator needs: a new flwr release is checked here.

The gateway reads and checks what SuperNodes send to the SuperLink, and the coordinator's commands use the SuperLink's
control interface. See also client_app/flower_internals.py.
"""

from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "HEARTBEAT_DEFAULT_INTERVAL",
    "TIMESTAMP_HEADER",
    "ActivateNodeRequest",
    "ConfirmMessageReceivedRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "Fab",
    "ListNodesRequest",
    "ListRunsRequest",
    "ObjectTree",
    "PullMessagesRequest",
    "PullMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "PushMessagesRequest",
    "RegisterNodeRequest",
    "StartRunRequest",
    "StopRunRequest",
    "bytes_to_public_key",
    "cli_version_header",
    "fab_to_proto",
    "user_config_from_proto",
    "user_config_to_proto",
    "verify_signature",
]


def cli_version_header() -> Any:
    """Return what adds the header with flwr's version, as of its command line, to every request."""
    # This import alone takes 20 MB, which the gateway does without.
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return RuntimeVersionHttpInterceptor(component_name="flwr CLI")
