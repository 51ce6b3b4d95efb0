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
SENTENCE = b"fedskew: interrupted; the same command goes on from the last finished round\n"
PATIENCE = 4.0
"""Seconds that a command has to end its work after a signal."""


def exit_now(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    """End the process now, with the sentence: for a moment in which nothing is at work."""
    set_handler(signal.SIG_IGN)
    print_sentence()
    os._exit(INTERRUPTED)


def print_sentence() -> None:
    """Print the sentence to stderr."""
    with contextlib.suppress(OSError):  # a closed terminal
        os.write(2, SENTENCE)


def finish() -> NoReturn:
    """End the process, with what has to be done at its end but without Python's, which frees objects for a second."""
    atexit._run_exitfuncs()
    print_sentence()
    os._exit(INTERRUPTED)


def abandon() -> NoReturn:
    """End the process and all that it has started, from a thread, when what was interrupted goes on for too long."""
    end_children()
    print_sentence()
    os._exit(INTERRUPTED)


def end_children(pid: int | None = None) -> None:
    """Kill every process below this one (or `pid`), but for the one that then deletes the semaphores of the others."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not any("resource_tracker" in word for word in child.cmdline()):
                    child.kill()


def set_handler(handler: Any) -> None:
    """Set the handler of the three signals, where nobody else has set one."""
    for number in replaceable():
        signal.signal(number, handler)


def replaceable() -> dict[int, Any]:
    """Return the handlers that nobody else has set, by signal: under nohup a closed terminal is ignored, and stays so.

    Outside the main thread, where Python allows none to be set, there are none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    of_nobody_else = (signal.SIG_DFL, signal.default_int_handler, exit_now)
    handlers: dict[int, Any] = {}
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler in of_nobody_else:
            handlers[number] = handler
    return handlers


@contextlib.contextmanager
def one_interrupt(last_resort: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Turn the three signals into one KeyboardInterrupt; further ones are ignored within the block.

    The event is set by the first, whatever becomes of the KeyboardInterrupt. `last_resort` is called from a thread
    when the process is still there `PATIENCE` seconds later.
    """
    previous = replaceable()
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


def callable_handlers() -> dict[int, Any]:
    """Return the handlers of the three signals that are functions; a signal that is ignored stays so.

    Outside the main thread, where Python allows none to be set, there are none.
    """
    handlers: dict[int, Any] = {}
    if threading.current_thread() is not threading.main_thread():
        return handlers
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
    return handlers


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Let a signal end the process at once within the block: for imports, which take seconds and change nothing."""
    handlers = callable_handlers()
    for number in handlers:
        signal.signal(number, exit_now)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the three signals within the block; a process that is started there never gets one.

    Worker processes are started so: what a terminal or a batch system sends to all processes of the command is for the
    command, which ends its workers. What arrived meanwhile is handled at the end of the block.
    """
    arrived = list[int]()
    handlers = callable_handlers()
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
