"""The private modules of flwr that clients, and the engines that run them, need: a new flwr release is checked here.

flwr documents `flwr.app`, `flwr.clientapp` and `flwr.serverapp`; everything else may change with any release.
site_agent/flower_internals.py has the site's private modules, fedskew/federation/flower_internals.py the coordinator's.
"""

from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
)
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "PullAppMessagesRequest",
    "PullAppMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "RecordDictProto",
    "TaskIdentity",
    "message_from_proto",
    "message_to_proto",
    "recorddict_from_proto",
    "recorddict_to_proto",
]
