"""README's and docs/methods.md's lists of methods are written from the sources."""

import runpy
from pathlib import Path

import pytest

from server_app.methods import METHODS

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "method_tables.py"))


@pytest.mark.parametrize("file", SCRIPT["TABLES"], ids=lambda file: file.name)
def test_the_list_is_written_from_the_sources(file: Path) -> None:
    text = file.read_text()
    assert text == SCRIPT["written"](file, SCRIPT["TABLES"][file]()), "make config writes it"
    assert all(f"| `{name}` |" in text or f"| {name} |" in text for name in METHODS)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_is_described_in_a_sentence(method: object) -> None:
    words = SCRIPT["equations"](method)
    assert 10 < len(words) < 300 and "\n" not in words
