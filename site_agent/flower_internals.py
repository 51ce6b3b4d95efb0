"""The private modules of flwr that a site needs: a new flwr release is checked here.

A site takes part through flwr's SuperNode, and its executor speaks the SuperNode's protocol. See also
client_app/flower_internals.py.
"""

from pathlib import Path

from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageOnTheWire
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.proto.task_pb2 import Task
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry.retry_invoker import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import (
    pull_task_input,
    push_message,
    push_task_output,
)

__all__ = [
    "AcquireTaskRequest",
    "AcquireTaskResponse",
    "FleetHttpClient",
    "MessageOnTheWire",
    "NodeAuthHttpInterceptor",
    "PullAppMessagesRequest",
    "PullTaskInputRequest",
    "RetryInvoker",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SendNodeHeartbeatRequest",
    "SendTaskHeartbeatRequest",
    "SuperExecAuthHttpInterceptor",
    "Task",
    "build_fab_from_disk",
    "constant",
    "pull_task_input",
    "push_message",
    "push_task_output",
    "run_supernode",
]


def build_fab_from_disk(app: Path) -> bytes:
    """Return the .fab of an app's folder."""
    from flwr.cli.build import build_fab_from_disk as build  # flwr's command line, another second

    return build(app)


def run_supernode() -> None:
    """Run `flower-supernode` with the arguments in sys.argv."""
    from flwr.supernode.cli import flower_supernode  # takes seconds

    flower_supernode()
