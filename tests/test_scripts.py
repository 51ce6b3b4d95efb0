"""The scripts that pages quote run, and print what the pages say."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
TRIALS = sorted((ROOT / "deploy").glob("try_*.py"))


@pytest.mark.parametrize(("seed", "status"), [(0, 0), (1, 1)])
def test_runs_of_two_folders_are_compared_by_their_hashes(
    train: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    status: int,
) -> None:
    train(results="here", rounds=1, local_steps=2)
    train(results="there", rounds=1, local_steps=2, seed=seed)
    folders = [str(tmp_path / name) for name in ("here", "there")]
    monkeypatch.setattr(sys, "argv", ["same_hash.py", *folders])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / "same_hash.py"), run_name="__main__")
    assert ended.value.code == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("NOT the same." if status else "The same, to the bit.")


def test_the_table_of_deployment_code_has_the_files_that_the_script_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = runpy.run_path(str(SCRIPTS / "deployment_lines.py"))
    script["main"]()
    counted = dict(line.split()[::-1] for line in capsys.readouterr().out.splitlines())
    assert list(counted) == [*script["FOLDERS"], *script["FILES"]]
    assert all(int(lines.replace(",", "")) > 0 for lines in counted.values())
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    rows = [
        line.split("`")[1] for line in page.splitlines() if re.match(r"\| `.+\.py` \| \d+ \|", line)
    ]
    assert rows == list(script["FILES"])


def test_lines_of_code_are_those_without_comments_and_docstrings() -> None:
    lines_of_code = runpy.run_path(str(SCRIPTS / "deployment_lines.py"))["lines_of_code"]
    docstring = '"""One.\n\nTwo."""\n'
    statement = "x = [\n    1,  # a number\n]\n"
    function = 'def f():\n    """Do."""\n    return 1\n'
    text = f"{docstring}\n# A comment.\n{statement}\n\n{function}"
    assert lines_of_code(text) == 5


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
