"""The command line's warnings about data: one place that all commands print them from."""

from rich.console import Console

from data import DataSettings, Federation
from data.data_warnings import warnings_of


def print_warnings(
    settings: DataSettings,
    federation: Federation,
    console: Console,
    before: set[str] | None = None,
) -> None:
    """Print what is odd about the data of a run, a line each; what `before` holds is not repeated."""
    printed = set[str]() if before is None else before
    for sentence in warnings_of(settings, federation):
        if sentence not in printed:
            printed.add(sentence)
            console.print(
                f"Warning: {sentence}.",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
