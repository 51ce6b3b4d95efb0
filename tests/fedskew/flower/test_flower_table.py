"""docs/guides/flower.md: its tables are what comes of a method under a wrapper, a mod or a strategy of flwr's."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_app.variants import VARIANTS
from fedskew.flower.variants import WITHOUT_STRATEGY
from server_app.methods import METHODS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "flower_table.py"))
PAGE = (ROOT / "docs" / "guides" / "flower.md").read_text()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


def rows_of(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (method or strategy, cells) of a table of the page, in which names with equal cells share a row."""
    _, _, after = PAGE.partition(f"<!-- {name}, by scripts/flower_table.py -->\n")
    table, _, _ = after.partition("\n<!-- end of")
    for line in table.splitlines()[2:]:
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for one in names.split(", "):
            yield one.strip("`"), cells


def sampled() -> Iterator[tuple[str, str, str]]:
    """Yield (row, column, cell) of a diagonal of both tables: every row, and every column several times.

    scripts/flower_table.py tries all pairs, and writes the page.
    """
    for table, step in (("PRIVACY", 1), ("FLWR_STRATEGIES", 3)):
        columns = list(SCRIPT[table])
        name = {"PRIVACY": "privacy", "FLWR_STRATEGIES": "strategies"}[table]
        for number, (row, cells) in enumerate(rows_of(name)):
            place = step * number % len(columns)
            yield row, columns[place], cells[place]


@pytest.mark.slow  # about 50 runs
@pytest.mark.parametrize(("row", "column", "cell"), list(sampled()))
def test_the_page_says_what_comes_of_a_pair(row: str, column: str, cell: str) -> None:
    if column in SCRIPT["FLWR_STRATEGIES"]:
        found = SCRIPT["strategy_cell"](column, row)
    elif row in SCRIPT["VARIANTS"]:
        found = SCRIPT["cell"](row, column, SCRIPT["net_of"](row))
    else:
        found = SCRIPT["server_cell"](row, column)
    assert SCRIPT["short"](found) == cell, "scripts/flower_table.py writes the page"


def test_the_tables_have_every_variant() -> None:
    tried = {variant for name in SCRIPT["VARIANTS"] for variant in METHODS[name].variants}
    assert tried | set(WITHOUT_STRATEGY) == set(VARIANTS), "add a method to scripts/flower_table.py"
