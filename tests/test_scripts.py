"""The scripts that pages quote run, and the trials of a deployment find what they import."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TRIALS = sorted((ROOT / "deploy").glob("try_*.py"))


def test_runs_of_two_folders_are_compared_by_their_hashes(
    train: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seed in (("here", 0), ("same", 0), ("other", 1)):
        train(results=name, rounds=1, local_steps=2, seed=seed)
    for name, status in (("same", 0), ("other", 1)):
        words = ["same_hash.py", str(tmp_path / "here"), str(tmp_path / name)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "scripts" / "same_hash.py"), run_name="__main__")
        assert ended.value.code == status


@pytest.mark.parametrize("script", TRIALS, ids=lambda script: script.stem)
def test_a_trial_of_a_deployment_finds_all_that_it_imports(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No type checker reads these scripts, and the tests that run them take minutes."""
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])  # as Python does for a script
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
