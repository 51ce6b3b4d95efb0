"""The private modules of flwr that clients, and the engines that run them, need: a new flwr release is checked here.

`PollingClient` waits for a message's objects, which flwr announces before they have arrived.

flwr documents `flwr.app`, `flwr.clientapp` and `flwr.serverapp`; everything else may change with any release.
site_agent/flower_internals.py has the site's private modules, fedskew/federation/flower_internals.py the coordinator's.
"""

import threading
from collections.abc import Callable
from typing import Any

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
    "PollingClient",
    "PullAppMessagesRequest",
    "PullAppMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "RecordDictProto",
    "TaskIdentity",
    "message_from_proto",
    "message_to_proto",
    "on_its_way",
    "recorddict_from_proto",
    "recorddict_to_proto",
]

POLL = 0.1
"""Seconds between two requests for an object; each costs the answering process 10 ms."""


class PollingClient:
    """A runtime client that polls for a message's objects every POLL seconds, where flwr waits 1, 2, 4 ... seconds.

    While an object is awaited, one thread at a time calls `waiting`. An error that it raises ends the wait.
    """

    def __init__(self, client: Any, waiting: Callable[[], None] = lambda: None) -> None:
        self.client, self.waiting = client, waiting
        self.lock = threading.Lock()
        self.over = threading.Event()  # flwr pulls with two threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullObject(self, request: Any) -> Any:
        """Return flwr's response: the object once it is there, or that it is unknown."""
        response = self.client.PullObject(request)
        if on_its_way(response):
            # One thread polls at a time: the other one's object arrives no earlier than this one.
            with self.lock:
                while on_its_way(response):
                    self.waiting()
                    if self.over.wait(POLL):
                        raise TimeoutError("nobody waits for the message any more")
                    response = self.client.PullObject(request)
        return response

    def close(self) -> None:
        """End the wait of every thread with TimeoutError."""
        self.over.set()


def on_its_way(response: Any) -> bool:
    """Return whether flwr's response says that the object is announced and has not arrived."""
    return bool(response.object_found and not response.object_available)
