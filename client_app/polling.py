"""Polling for messages that are announced before all of their objects have arrived."""

import threading
from collections.abc import Callable
from typing import Any

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
