"""Where the command line prints."""

from rich.console import Console
from rich.table import Table

UNBOUNDED = 200
"""Columns of a file or a pipe, which has no edge to cut tables at."""


def console(stderr: bool = False) -> Console:
    """Return a console that neither breaks lines nor colors numbers, so that paths and names can be copied whole."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = UNBOUNDED
    return made


def fits(table: Table, console: Console) -> bool:
    """Return whether no cell of the table has to be cut."""
    unlimited = console.options.update(width=10**6)
    return console.measure(table, options=unlimited).maximum <= console.width
