"""Small experiments on the digits, with a cache of their own."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer, which flwr imports, uses what click has deprecated
    import flwr.app  # noqa: F401

from in_process import Outcome, experiment


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Outcome]:
    """Run an experiment into a folder of the test; `results` names another one, `grid` says how to play the clients."""

    def run_once(results: str = "results", **more: Any) -> Outcome:
        return experiment(tmp_path / results, **more)

    return run_once
