"""Tables for a terminal, all of one look."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table


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


def numbered(names: Sequence[str]) -> tuple[list[str], str]:
    """Return numbers as headings in place of names that have no room, and the legend; none of names that are these."""
    numbers = list(map(str, range(len(names))))
    legend = ", ".join(f"{number} {name}" for number, name in zip(numbers, names, strict=True))
    return numbers, legend if list(names) != numbers else ""
