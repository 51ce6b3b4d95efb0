"""The lists of methods in docs/ are written from the sources, and README names every method."""

import runpy
from pathlib import Path

import pytest

from server_app.methods import METHODS

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "method_tables.py"))


@pytest.mark.parametrize("file", SCRIPT["TABLES"], ids=lambda file: file.name)
def test_the_list_is_written_from_the_sources(file: Path) -> None:
    text = file.read_text()
    assert text == SCRIPT["written"](file, SCRIPT["TABLES"][file]()), "make config writes it"
    assert all(f"| `{name}` |" in text or f"| {name} |" in text for name in METHODS)


def test_readme_names_every_method_in_order() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    section = readme.partition("## Methods\n")[2].strip().partition("\n\n")[0]
    assert section.replace("\n", " ").split(", ") == list(METHODS)


def test_the_index_names_every_page() -> None:
    docs = Path(__file__).parents[1] / "docs"
    index = (docs / "index.md").read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    records = {page for page in pages if page.startswith("explanation/decisions/")}
    listed = index + (docs / "explanation" / "decisions" / "index.md").read_text()
    missing = {page for page in pages - records if f"]({page})" not in index}
    missing |= {page for page in records if f"]({Path(page).name})" not in listed}
    missing -= {"explanation/decisions/index.md"}
    assert not missing, "docs/index.md names every page, and decisions/index.md every record"


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_is_described_in_a_sentence(method: object) -> None:
    words = SCRIPT["equations"](method)
    assert 10 < len(words) < 300 and "\n" not in words
