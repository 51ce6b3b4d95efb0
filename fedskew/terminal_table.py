"""Tables for a terminal, all of one look."""

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table


def terminal_table(*columns: Column | str, title: str | None = None, header: bool = True) -> Table:
    """Return a table without rows."""
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=header)


def numeric(*headings: str) -> list[Column]:
    """Return columns of numbers, which are never cut."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def named(*headings: str) -> list[Column]:
    """Return columns of names, which are to be copied whole."""
    return [Column(heading, no_wrap=True) for heading in headings]
