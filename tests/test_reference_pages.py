"""The pages of commands and settings are what the code says, and the index and the site list every page."""

import runpy
from pathlib import Path

import pytest
import yaml

from server_app.settings import defaults

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "reference_pages.py"))


@pytest.mark.parametrize("file", SCRIPT["PAGES"], ids=lambda file: file.name)
def test_the_page_is_written_from_the_code(file: Path) -> None:
    assert file.read_text() == SCRIPT["PAGES"][file](), SCRIPT["REMEDY"]


def test_every_setting_stands_in_the_page_with_a_meaning() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in SCRIPT["settings_page"]().splitlines()
        if "`" in line
    ]
    meanings = {row[0].strip("`"): row[-1] for row in rows}
    assert not [key for key in defaults() if len(meanings.get(key, "")) < 10]


def test_every_parameter_says_what_it_does() -> None:
    """Arguments as well: click 8.5 would drop the help of typer's."""
    silent = [
        f"{command.name} {parameter.spelling}"
        for command in SCRIPT["commands"]()
        for parameter in command.parameters
        if not parameter.help
    ]
    assert not silent


def pages_in(navigation: object) -> set[str]:
    """Return every page of mkdocs.yml's navigation, however deep it stands."""
    if isinstance(navigation, str):
        return {navigation}
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return set().union(*map(pages_in, below))


def test_the_site_has_every_page() -> None:
    docs = ROOT / "docs"
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert pages_in(navigation) == {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
