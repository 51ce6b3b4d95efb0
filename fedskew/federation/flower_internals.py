"""The private modules of flwr that a coordinator needs: a new flwr release is checked here.

The door reads and checks what SuperNodes send to the SuperLink, and the coordinator's commands use the SuperLink's
control interface. See also client_app/flower_internals.py.
"""

import logging
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
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
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

log = logging.getLogger("fedskew.door")
SUPEREXEC_LOOK = 2.0
"""Seconds between two looks whether the SuperExec has ended."""

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "TIMESTAMP_HEADER",
    "ControlHttpClient",
    "Fab",
    "HeaderInterceptor",
    "ListNodesRequest",
    "ListRunsRequest",
    "ObjectTree",
    "PullMessagesRequest",
    "PullMessagesResponse",
    "PullObjectRequest",
    "PushAppMessagesRequest",
    "PushAppMessagesResponse",
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
    "superlink_of",
    "user_config_from_proto",
    "user_config_to_proto",
    "verify_signature",
]


def cli_version_header() -> Any:
    """Return what adds the header with flwr's version, as of its command line, to every request."""
    # This import alone takes 20 MB.
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return RuntimeVersionHttpInterceptor(component_name="flwr CLI")


class HeaderInterceptor:
    """Adds a header to every request of flwr's HTTP clients."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers[self.name] = self.value
        return call_next(context)


def superlink_of(command: Sequence[str]) -> Any:
    """Return the ASGI application of flwr's SuperLink for a command line of `flower-superlink`.

    flwr starts its SuperExec, which begins runs, once. Here it is started again whenever it ends.
    """
    import sys

    from flwr.superlink.cli.flower_superlink import (
        SuperLinkLifespan,
        _parse_superlink_lifespan_config,
    )
    from flwr.superlink.main import create_app

    class WatchedLifespan(SuperLinkLifespan):
        def startup(self) -> None:
            super().startup()
            threading.Thread(target=self.watch, daemon=True).start()

        def watch(self) -> None:
            while self._started:
                time.sleep(SUPEREXEC_LOOK)
                process = self.superexec_process
                if self._started and process is not None and process.poll() is not None:
                    log.warning("flower-superexec has ended and is started again")
                    self._start_superexec_if_needed()

    sys.argv = [*command]
    return create_app(_parse_superlink_lifespan_config(), WatchedLifespan)


def error_reply(message: Any, code: int, reason: str) -> tuple[Any, ObjectTree, bytes]:
    """Return a message's answer with an error, as a SuperNode pushes it: the reply, its object tree, and its object.

    Args:
        message: as protobuf has it, without its content.
        code: of the error.
        reason: of the error.
    """
    # Few runs name their sites, and the door does without these until one does.
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
