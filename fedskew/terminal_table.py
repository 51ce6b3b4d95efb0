"""Tables for a terminal, all of one look."""

from rich import box
from rich.table import Column, Table


def terminal_table(*headings: Column | str, title: str | None = None, show_header: bool = True) -> Table:
    """Return a table without rows."""
    look = box.SIMPLE_HEAD
    return Table(*headings, title=title, title_justify="left", box=look, padding=(0, 1, 0, 0), show_header=show_header)


def numeric(*headings: str) -> list[Column]:
    """Return columns of numbers, which are never cut."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def named(*headings: str) -> list[Column]:
    """Return columns of names, which are to be copied whole."""
    return [Column(heading, no_wrap=True) for heading in headings]
