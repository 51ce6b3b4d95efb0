"""Small experiments on the digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Outcome, experiment


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Outcome]:
    """Run an experiment into a folder of the test; `results` names another one, `grid` says how to play the clients."""

    def run_once(results: str = "results", **more: Any) -> Outcome:
        return experiment(tmp_path / results, **more)

    return run_once
