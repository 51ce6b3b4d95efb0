"""The private modules of flwr that a coordinator needs: a new flwr release is checked here.

The gateway reads and checks what SuperNodes send to the SuperLink, and the coordinator's commands use the SuperLink's
control interface. See also client_app/flower_internals.py.
"""

import tomllib
from collections.abc import Mapping
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
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
    "PushMessagesResponse",
    "PushObjectRequest",
    "RegisterNodeRequest",
    "StartRunRequest",
    "StopRunRequest",
    "UnregisterNodeRequest",
    "bytes_to_public_key",
    "cli_version_header",
    "error_reply",
    "fab_to_proto",
    "fused_config",
    "run_config_of",
    "user_config_from_proto",
    "user_config_to_proto",
    "verify_signature",
]


def cli_version_header() -> Any:
    """Return what adds the header with flwr's version, as of its command line, to every request."""
    # This import alone takes 20 MB, which the gateway does without.
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return RuntimeVersionHttpInterceptor(component_name="flwr CLI")


def error_reply(message: Any, code: int, reason: str) -> tuple[Any, ObjectTree, bytes]:
    """Return a message's answer with an error, as a SuperNode pushes it: the reply, its object tree, and its object.

    Args:
        message: as protobuf has it, without its content.
        code: of the error.
        reason: of the error.
    """
    # Few runs name their sites, and the gateway does without these until one does.
    from flwr.app import Error, Message
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    from client_app.flower_internals import message_from_proto, message_to_proto

    reply = Message(Error(code, reason), reply_to=message_from_proto(message))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return message_to_proto(reply), get_object_tree(reply), reply.deflate()


def run_config_of(text: str) -> dict[str, Any]:
    """Return the run config of `KEY=VALUE ...`, as `flwr run --run-config` reads it. Raises SettingError otherwise."""
    from flwr.common.config import parse_config_args

    from data import SettingError

    try:
        return dict(parse_config_args([text] if text else None))
    except Exception as error:  # typer's, or toml's
        raise SettingError("--config", text, f"must be 'KEY=VALUE ...': {error}") from None


def fused_config(pyproject: bytes, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config as an app gets it: its defaults, and what a run sets.

    Raises SettingError for a key that the app does not declare.
    """
    from flwr.common.config import flatten_dict, fuse_dicts

    from data import SettingError

    table = tomllib.loads(pyproject.decode())["tool"]["flwr"]["app"]
    try:
        return dict(fuse_dicts(flatten_dict(table.get("config", {})), dict(overrides)))
    except ValueError as error:
        raise SettingError("--config", str(dict(overrides)), str(error)) from None
