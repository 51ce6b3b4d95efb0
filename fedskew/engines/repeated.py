"""What is done over and over beside the work of a block, in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL = 0.1
"""Seconds between two calls."""


@contextmanager
def repeatedly(action: Callable[[], None]) -> Iterator[None]:
    """Within this context, call `action` in a thread every INTERVAL seconds, and once more after the end."""
    ended = threading.Event()

    def repeat() -> None:
        last = False
        while not last:
            last = ended.wait(INTERVAL)
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
