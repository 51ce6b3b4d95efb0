"""What tests of the report share."""

from collections import defaultdict

import pytest

from fedskew.report import page


@pytest.fixture
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without figures, which take seconds: for what stands in its text."""
    monkeypatch.setattr(page, "drawings", lambda document, prefix: defaultdict(list))
