"""Consoles of the command line, and numbers, names and tables as text."""

import json
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.filesize import decimal
from rich.segment import Segment
from rich.table import Column, Table

BAD_INPUT, FAILED = 2, 1
"""Exit statuses."""
TYPER_SUGGESTS = not hasattr(click.exceptions, "NoSuchCommand")
"""Whether typer is to name the nearest command of a mistyped one: from version 8.4 on click does so itself."""
SILENT_SECONDS = 1.0
"""What a user of a terminal waits without asking whether the command hangs (Nielsen 1993)."""
UNBOUNDED = 200
"""Columns of a file or a pipe, which has no edge to cut tables at."""


def percent(value: float | None) -> str:
    """Return a share in percent, or a dash where there is none: a class without samples, or an AUROC without pairs."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.1f}"


def in_bytes(count: float) -> str:
    """Return a number of bytes in the unit that suits it, in powers of ten."""
    return decimal(round(count), precision=2)


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 100 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def p_value(p: float) -> str:
    """Return a p-value with three decimals; one that would read 0.000 as "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, as "1 seed" or "3 seeds"; `nouns` is an irregular plural."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {nouns or noun + 's'}"


def escaped(text: object) -> str:
    """Return text that Markdown does not read as its own, nor a browser as HTML."""
    return " ".join(
        str(text).replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;").splitlines()
    )


def site_names(clients: Sequence[str]) -> list[str]:
    """Return the sites' names, of the clients as settings.json has them.

    The domain where it is one client's alone, else DOMAIN-NUMBER; the number where there are no domains.
    """
    parts = [client.partition(" ") for client in clients]
    domains = [domain for _, _, domain in parts]
    return [
        domain if domain and domains.count(domain) == 1 else f"{domain}-{number}".lstrip("-")
        for number, _, domain in parts
    ]


def terminal_table(*columns: Column | str, title: str | None = None, header: bool = True) -> Table:
    """Return a table without rows."""
    return Table(
        *columns,
        title=title,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_header=header,
    )


def numeric(*headings: str) -> list[Column]:
    """Return columns of numbers, which are never cut."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def named(*headings: str) -> list[Column]:
    """Return columns of names, which are to be copied whole."""
    return [Column(heading, no_wrap=True) for heading in headings]


# ---- consoles --------------------------------------------------------------------------------------------------------


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
