"""What tests of the report share."""

import pytest


@pytest.fixture
def no_drawings(monkeypatch):
    """A page without figures, which take seconds: for what stands in its text."""
    monkeypatch.setattr("fedskew.report.figures.figures", lambda document: {})
