"""A deadline for checks: a check that takes too long refuses the client's reply instead of stopping the run."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
CHECK_SECONDS = 60.0
"""Seconds that the checks of one client's answer may take. A model of 100 MB takes less than one."""


class TooSlow(RuntimeError):
    """A check that did not end before the deadline."""


class Deadline:
    """Runs functions one after the other in a thread of its own, each for at most `seconds`.

    Python cannot end a thread, so a function that takes longer is left behind: its result is dropped, and its thread is
    a daemon, which the end of the process does not wait for. Use as a context manager.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._tasks: queue.SimpleQueue[Callable[[], Any] | None] | None = None
        self._outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, *error: object) -> None:
        if self._tasks is not None:
            self._tasks.put(None)

    def run(self, function: Callable[[], Result]) -> Result:
        """Return what the function returns, or raise what it raises. Raises TooSlow after `seconds`."""
        if self._tasks is None:
            self._start_thread()
        assert self._tasks is not None
        self._tasks.put(function)
        try:
            result, error = self._outcomes.get(timeout=self.seconds)
        except queue.Empty:
            self._tasks.put(None)  # should the function end after all, its thread ends too
            self._tasks = None
            raise TooSlow(f"it is not checked after {self.seconds:g} s") from None
        if error is not None:
            raise error
        checked: Result = result
        return checked

    def _start_thread(self) -> None:
        """Start a thread with queues of its own, so that nothing of one left behind is taken for another's."""
        self._tasks = queue.SimpleQueue()
        self._outcomes = queue.SimpleQueue()
        thread = threading.Thread(
            target=_work,
            args=(self._tasks, self._outcomes),
            name="fedskew-checks",
            daemon=True,
        )
        thread.start()


def _work(
    tasks: "queue.SimpleQueue[Callable[[], Any] | None]",
    outcomes: "queue.SimpleQueue[tuple[Any, BaseException | None]]",
) -> None:
    """Run the functions that come until None comes."""
    while (function := tasks.get()) is not None:
        try:
            outcomes.put((function(), None))
        except BaseException as error:
            outcomes.put((None, error))
        del function  # holds a client's tensors
