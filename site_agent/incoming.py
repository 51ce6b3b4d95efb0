"""A message that is still on its way from the SuperLink while its task is here already."""

import threading
from collections.abc import Callable
from typing import Any

POLL = 0.05


class Incoming:
    """A runtime client that asks for the objects of a message until they are there: flwr waits 1, 2, 4 ... seconds.

    `waiting` is called while one is awaited, by one thread at a time, and ends the wait by raising.
    """

    def __init__(self, client: Any, waiting: Callable[[], None]) -> None:
        self.client, self.waiting = client, waiting
        self.lock, self.over = threading.Lock(), threading.Event()  # flwr pulls with two threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullObject(self, request: Any) -> Any:
        """Return flwr's response: the object once the SuperNode has it, or that it knows none."""
        while True:
            response = self.client.PullObject(request)
            if response.object_available or not response.object_found:
                return response
            with self.lock:
                self.waiting()
            if self.over.wait(POLL):
                raise TimeoutError("nobody waits for the message any more")

    def close(self) -> None:
        """End what still waits."""
        self.over.set()
