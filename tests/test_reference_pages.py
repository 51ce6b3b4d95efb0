"""Generated pages are what the code says, README names every method, and the site lists every page."""

import runpy
from pathlib import Path

import pytest
import yaml

from server_app.methods import METHODS
from server_app.settings import defaults

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = runpy.run_path(str(ROOT / "scripts" / "reference_pages.py"))
METHOD_TABLE = runpy.run_path(str(ROOT / "scripts" / "method_tables.py"))


@pytest.mark.parametrize("file", REFERENCE["PAGES"], ids=lambda file: file.name)
def test_the_page_is_written_from_the_code(file: Path) -> None:
    assert file.read_text() == REFERENCE["PAGES"][file](), "make config writes it"


def test_the_list_of_methods_is_written_from_the_code() -> None:
    page = METHOD_TABLE["PAGE"]
    assert page.read_text() == METHOD_TABLE["written"](page, METHOD_TABLE["methods"]()), (
        "make config"
    )


def test_every_setting_stands_in_the_page_with_a_meaning() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in (DOCS / "reference" / "settings.md").read_text().splitlines()
        if "`" in line
    ]
    meanings = {row[0].strip("`").partition("=")[0]: row[-1] for row in rows}
    assert not [key for key in defaults() if len(meanings.get(key, "")) < 10]


def test_readme_names_every_method_in_order() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## Methods\n")[2].strip().partition("\n\n")[0]
    assert section.replace("\n", " ").split(", ") == list(METHODS)


def pages_in(navigation: object) -> set[str]:
    """Return every page of mkdocs.yml's navigation, however deep it stands."""
    if isinstance(navigation, str):
        return {navigation}
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return set().union(*map(pages_in, below))


def test_the_site_has_every_page() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]) == pages
