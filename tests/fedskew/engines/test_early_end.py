"""A run that keeps its best round and ends early: the same files in one process, in workers and on Ray."""

from pathlib import Path
from typing import Any

import pytest
from in_process import KEEP_BEST, contents_of, small

from fedskew.engines import execute
from server_app.checkpoint import best_checkpoint, check_memory
from server_app.run_folder import RunFolder

pytestmark = pytest.mark.slow

RUNS: dict[str, dict[str, Any]] = {
    "fedbn": {"method": "fedbn", "learning_rate": 0.3, "patience": 1},
    "ccvr": {"method": "ccvr", "learning_rate": 1.0, "patience": 2},
    "creff+fedbn": {"method": "creff+fedbn", "learning_rate": 1.0, "patience": 1},
}


def trained(results: Path, engine: str, changes: dict[str, Any]) -> tuple[RunFolder, list[str]]:
    """Run it on an engine and return its folder, and the lines it reports."""
    settings = small(results / "results", **{**KEEP_BEST, **changes})
    lines: list[str] = []
    execute(settings, engine, lines.append, workers=2)
    return RunFolder(settings.folder), lines


@pytest.mark.parametrize("engine", ["workers", "ray"])
@pytest.mark.parametrize("name", RUNS)
def test_every_engine_ends_in_the_same_round_with_the_same_files(
    tmp_path: Path, engine: str, name: str
) -> None:
    alone, _ = trained(tmp_path / "inprocess", "inprocess", RUNS[name])
    folder, lines = trained(tmp_path / engine, engine, RUNS[name])
    expected = contents_of(alone)
    assert contents_of(folder) == expected
    ended = expected["summary.json"]["ended"]
    assert ended["round"] < 7 and any(ended["reason"] in line for line in lines)
    for file in folder.path.glob("best-*"):
        best = best_checkpoint(folder, int(file.stem.removeprefix("best-")))
        check_memory(folder, best)
        assert bool(best.memory_rounds) == ("fedbn" in name)
