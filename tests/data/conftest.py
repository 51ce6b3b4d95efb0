"""A cache of a test's own, for the tests that ask for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    yield tmp_path / "user-cache" / "fedskew"
