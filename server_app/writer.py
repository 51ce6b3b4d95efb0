"""A run's files, written by one thread while the next round trains."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from client_app.process import make_deterministic


class Writer:
    """Writes in the background, one thing after the other; a context manager that ends once everything is written.

    What the work reads must not change before it has ended.
    """

    def __init__(self) -> None:
        # A new thread of Python's has as many threads of OpenMP's and MKL's as there are cores, whatever others have.
        self.thread = ThreadPoolExecutor(1, "writer", make_deterministic)
        self.last: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin the work once what was begun before has ended. Raises as `wait`."""
        self.wait()
        self.last = self.thread.submit(work)

    def wait(self) -> None:
        """Return when everything is written. Raises what the work has raised, again whenever it is asked."""
        if self.last is not None:
            self.last.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        with self.thread:
            self.wait()
