"""Handling of Ctrl-C, SIGTERM and a closed terminal: the command ends within seconds, with one sentence.

Only the standard library is imported here: the command sets its handlers before torch and flwr are loaded.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
"""Exit status of a command that a signal has ended."""
SENTENCE = (
    b"fedskew: interrupted; run the same command again to resume from the last finished round\n"
)
PATIENCE = 4.0
"""Seconds that a command has to end its work after a signal."""


def exit_now(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    """Print the sentence and end the process at once; also a signal handler.

    That is for phases in which nothing needs cleaning up, such as imports.
    """
    set_handlers(signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a closed terminal
        os.write(2, SENTENCE)
    os._exit(INTERRUPTED)


DEFAULT_OR_OURS = (signal.SIG_DFL, signal.default_int_handler, exit_now)
"""Handlers that may be replaced: Python's defaults and our own."""


def finish() -> NoReturn:
    """Run the atexit hooks, print the sentence and end the process.

    This skips the interpreter's own shutdown, which takes about a second to free objects.
    """
    atexit._run_exitfuncs()
    exit_now()


def abandon() -> NoReturn:
    """Kill all descendants, print the sentence and end the process.

    A timer thread calls it if the process is still there PATIENCE seconds after a signal.
    """
    end_children()
    exit_now()


def end_children(pid: int | None = None) -> None:
    """Kill all descendants of this process, or of `pid`.

    multiprocessing's resource tracker is spared: it then deletes the semaphores that the others
    leave behind.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not any("resource_tracker" in word for word in child.cmdline()):
                    child.kill()


def set_handlers(handler: Any) -> None:
    """Set the handler of the three signals, except where one is ignored or set by other code."""
    for number in default_or_our_handlers():
        signal.signal(number, handler)


def current_handlers() -> dict[int, Any]:
    """Return the handlers of the three signals, by signal.

    Empty outside the main thread, where Python cannot set any.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in SIGNALS}


def default_or_our_handlers() -> dict[int, Any]:
    """Return the current handlers that are Python's defaults or ours, by signal.

    An ignored signal is left out and stays ignored, as SIGHUP is under nohup.
    """
    return {
        number: handler
        for number, handler in current_handlers().items()
        if handler in DEFAULT_OR_OURS
    }


@contextlib.contextmanager
def one_interrupt(last_resort: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Turn the three signals into one KeyboardInterrupt; further ones are ignored within the block.

    The first signal sets the event, whatever becomes of the KeyboardInterrupt. `last_resort` is
    called from a timer thread if the process is still there `PATIENCE` seconds later.
    """
    previous = default_or_our_handlers()
    arrived = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        arrived.set()
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        if last_resort is not None:
            timer = threading.Timer(PATIENCE, last_resort)
            timer.daemon = True
            timer.start()
        raise KeyboardInterrupt

    try:
        for number in previous:
            signal.signal(number, interrupt)
        yield arrived
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the three signals within the block; a process that is started there never gets one.

    Worker processes are started so: what a terminal or a batch system sends to all processes of the command is for the
    command, which ends its workers. What arrived meanwhile is handled at the end of the block.
    """
    arrived = list[int]()
    handlers = {}
    for number, handler in current_handlers().items():
        if callable(handler):  # an ignored signal stays ignored
            handlers[number] = handler
    for number in handlers:  # the mask is this thread's alone, and another may get the signal
        signal.signal(number, lambda number, frame: arrived.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for late in arrived:
            signal.raise_signal(late)
