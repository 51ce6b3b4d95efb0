"""The consoles that the command line prints to."""

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedskew.formatting import named, terminal_table

BAD_INPUT, FAILED = 2, 1
"""Exit statuses."""

TYPER_SUGGESTS = not hasattr(click.exceptions, "NoSuchCommand")
"""Whether typer is to name the nearest command of a mistyped one: from version 8.4 on click does so itself."""

SILENT_SECONDS = 1.0
"""What a user of a terminal waits without asking whether the command hangs (Nielsen 1993)."""
UNBOUNDED = 200
"""Columns of a file or a pipe, which has no edge to cut tables at."""


class StatusLine:
    """A line on a terminal that says what a command does, where it has printed nothing for a second."""

    def __init__(self) -> None:
        self.timer: threading.Timer | None = None

    def begin(self, words: str) -> None:
        """Print the words on stderr in a second, unless `end` comes first. A file or a pipe gets no such line."""
        if not sys.stderr.isatty():
            return
        self.timer = threading.Timer(
            SILENT_SECONDS, print, [f"fedskew: {words}"], {"file": sys.stderr}
        )
        self.timer.daemon = True
        self.timer.start()

    def end(self) -> None:
        """Print no line any more: the command has printed something, or has ended."""
        if self.timer is not None:
            self.timer.cancel()


status_line = StatusLine()
"""That of this process's command."""


class HarmlessConsole(Console):
    """Writes control characters as text: names of classes, sites and files come from elsewhere."""

    def render(
        self,
        renderable: RenderableType,
        options: ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        status_line.end()
        for segment in super().render(renderable, options):
            if segment.control or segment.text.replace("\n", "").isprintable():
                yield segment
            else:
                from data.text import escaped  # loads numpy, which most output does without

                yield segment._replace(text=escaped(segment.text, keep="\n"))


def console(stderr: bool = False) -> Console:
    """Return a console that neither breaks lines nor colors numbers, so that paths and names can be copied whole.

    Nor does it read `[red]` or `:smile:` as anything but text: classes, sites and folders may be called so.
    """
    terminal = HarmlessConsole(
        stderr=stderr,
        highlight=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
    if not terminal.is_terminal:
        terminal.width = UNBOUNDED
    return terminal


@contextmanager
def to_stdout() -> Iterator[None]:
    """Return a context in which a command prints its result, which is flushed at the end.

    Raises:
        DataError: stdout takes no more, as on a full disk. The rest is dropped: Python would write it when it exits,
            and fail again.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        from data import DataError  # takes a second to import

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise DataError(f"stdout cannot be written: {error.strerror}") from error


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows of the same keys as JSON, or as a table whose first column is never cut."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    first, *others = rows[0]
    table = terminal_table(*named(first), *others)
    for row in rows:
        # As --set takes a value: true and not True.
        cells = [of if isinstance(of, str) else json.dumps(of) for of in row.values()]
        table.add_row(*cells)
    console().print(table)


def complain(sentence: str, status: int) -> int:
    """Print one sentence to stderr and return the exit status."""
    console(stderr=True).print(f"fedskew: {sentence}", markup=False, soft_wrap=True)
    return status
