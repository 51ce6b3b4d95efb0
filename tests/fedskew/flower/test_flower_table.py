"""docs/guides/flower.md: its tables are what comes of a method under a wrapper, a mod or a strategy of flwr's."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.serverapp import strategy as flwr_strategies

from client_app.variants import VARIANTS
from fedskew.flower.variants import WITHOUT_STRATEGY
from server_app.methods import METHODS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "flower_table.py"))
PAGE = (ROOT / "docs" / "guides" / "flower.md").read_text()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


def rows_of(name: str) -> list[list[str]]:
    """Return the cells of a table of the page, without its head."""
    _, _, after = PAGE.partition(f"<!-- {name}, by scripts/flower_table.py -->\n")
    table, _, _ = after.partition("\n<!-- end of")
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def sampled() -> Iterator[tuple[str, str, str]]:
    """Yield (row, column, cell) of a diagonal of both tables: every row, and every column several times.

    scripts/flower_table.py tries all pairs, and writes the page.
    """
    columns = list(SCRIPT["PRIVACY"])
    for number, (variants, strategy, *cells) in enumerate(rows_of("privacy")):
        place = number % len(columns)
        yield strategy if variants == "any" else variants, columns[place], cells[place]
    simple = [name for name in SCRIPT["VARIANTS"] if name not in SCRIPT["OWN"]]
    for number, (strategy, *cells) in enumerate(rows_of("strategies")):
        place = 3 * number % len(simple)
        yield strategy, simple[place], cells[place]


@pytest.mark.slow  # about 50 runs
@pytest.mark.parametrize(("row", "column", "cell"), list(sampled()))
def test_the_page_says_what_comes_of_a_pair(row: str, column: str, cell: str) -> None:
    if row in SCRIPT["VARIANTS"]:
        found = SCRIPT["cell"](row, column, SCRIPT["net_of"](row))
    elif row in SCRIPT["SERVER_METHODS"]:
        found = SCRIPT["server_cell"](row, column)
    else:
        net = SCRIPT["net_of"](column)
        kind, settings = getattr(flwr_strategies, row), SCRIPT["FLWR_STRATEGIES"][row]
        strategy = SCRIPT["strategy_of"](kind, settings, net)
        found = SCRIPT["outcome"](strategy, [column], [], net, False)
    assert SCRIPT["short"](found) == cell, "scripts/flower_table.py writes the page"


def test_the_tables_have_every_variant() -> None:
    tried = {variant for name in SCRIPT["VARIANTS"] for variant in METHODS[name].variants}
    assert tried | set(WITHOUT_STRATEGY) == set(VARIANTS), "add a method to scripts/flower_table.py"
