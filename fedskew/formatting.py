"""Formatting of numbers, clients' names, Markdown, and tables for a terminal."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Column, Table


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
