"""No test of this folder touches the user's cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from data import federate


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    federate.cache_clear()
    yield tmp_path / "user-cache" / "fedskew"
    federate.cache_clear()
