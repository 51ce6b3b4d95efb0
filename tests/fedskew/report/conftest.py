"""What tests of the report share."""

from collections import defaultdict

import pytest


@pytest.fixture
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without figures, which take seconds: for what stands in its text."""
    # Pytest loads this file before tests/conftest.py imports flwr when it is given a test of this folder by name, and
    # flwr's import warns of a deprecation, which is an error here.
    from fedskew.report import page

    monkeypatch.setattr(page, "drawings", lambda document, prefix: defaultdict(list))
