"""Tables are cut nowhere but in a terminal that is too narrow for them."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from fedskew.cli.terminal import UNBOUNDED, console, fits


@pytest.mark.parametrize(("columns", "whole"), [(8, True), (9, False)])
def test_a_table_fits_where_no_cell_is_cut(columns: int, whole: bool) -> None:
    out = Console(width=80, file=io.StringIO(), force_terminal=True)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for _ in range(columns):
        table.add_column("x" * 9, no_wrap=True)
    table.add_row(*["1"] * columns)
    assert fits(table, out) is whole
    out.print(table)
    assert ("…" in out.file.getvalue()) is not whole  # type: ignore[attr-defined]


def test_a_pipe_has_no_edge(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(*[f"column-{number:04}" for number in range(12)])
    console().print(table)
    assert "column-0011" in capsys.readouterr().out
    assert console().width == UNBOUNDED
