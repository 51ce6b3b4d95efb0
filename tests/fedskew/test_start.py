"""How commands start: a mistake is named before torch is imported, and a terminal is told what takes a while."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLED = """
import contextlib, io, json, sys
from fedskew.cli.main import main
ended = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["fedskew", *words]
    printed = io.StringIO()
    status = 0
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as error:
            status = error.code
    ended.append([status, printed.getvalue(), "torch" in sys.modules])
print(json.dumps(ended))
"""
MISTAKES = {
    "run --set dataset=csv:no.csv": "no.csv: there is no such file or folder",
    "run --set dataset=domains:folder:no,mnist": "no: there is no such file or folder",
    "run --set dataset=npz:no.npz --set data-root=elsewhere": "elsewhere/no.npz: there is no such",
    "run --set dataset=digit": "did you mean 'digits'?",
    "run --set weights=no.safetensors": "weights = 'no.safetensors': there is no such file",
    "run --set partition-file=no.json": "no.json",
    "run --set rounds=many": "rounds = 'many': must be an integer",
    "run --set alpha=-1": "alpha = -1.0",
    "run --set rouns=3": "did you mean rounds?",
    "run --method fedshfit": "fedshfit",
    "data check no.csv": "no.csv: there is no such file or folder",
    "data check here.csv --set split-seed=x": "split-seed = 'x'",
    "data show --set dataset=npz:no.npz": "no.npz: there is no such file or folder",
    "data show --png table.jpg": "--png = 'table.jpg': must end in .png",
    "data export-sites no.csv out": "no.csv: there is no such file or folder",
    "data save-partition out.json --from no.csv": "--from = 'no.csv': there is no such file",
    "data save-partition out.json --set clients=ten": "clients = 'ten': must be an integer",
    "diagnose no.csv": "no.csv: there is no such file or folder",
    "diagnose no-experiment": "no-experiment",
    "diagnose --set dataset=csv:no.csv": "no.csv: there is no such file or folder",
    "select --minutes 1 --set dataset=csv:no.csv": "no.csv: there is no such file or folder",
    "select --minutes 1 --target best": "--target = 'best'",
    "select --minutes 1 --match-counts no.csv": "no.csv",
    "select --minutes 1 --plan no.json": "--plan = 'no.json': is no file",
    "select": "--minutes",
    "export no-run": "no-run: is no run's folder",
    "predict no-model here.csv": "no-model: there is no such file or folder",
    "predict . no.csv": "no.csv: there is no such file or folder",
    "predict . here.csv --round first": "--round = 'first'",
}
"""Command lines, each with words of the sentence that refuses it."""


def called(lines: list[str], folder: Path) -> list[tuple[int, str, bool]]:
    """Run commands in one new process; return of each its status, stderr, and whether torch is imported by then."""
    words = json.dumps([line.split() for line in lines])
    ended = subprocess.run(
        [sys.executable, "-c", CALLED, words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [tuple(entry) for entry in json.loads(ended.stdout)]


def test_a_mistake_is_named_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "here.csv").write_text("age,label\n1,a\n2,b\n")
    for line, ended in zip(MISTAKES, called(list(MISTAKES), tmp_path), strict=True):
        status, printed, with_torch = ended
        assert (status, with_torch) == (2, False), (line, printed)
        assert MISTAKES[line] in printed, line
    assert [file.name for file in tmp_path.iterdir()] == ["here.csv"]


def test_help_needs_no_torch_and_data_that_are_there_are_read(tmp_path: Path) -> None:
    commands = ("run", "data", "data check", "select", "export", "predict", "diagnose", "report")
    helped = called([f"{command} --help" for command in commands], tmp_path)
    assert [(status, with_torch) for status, _, with_torch in helped] == [(0, False)] * len(helped)

    arrays = "\n".join(f"{number},{number % 2},{number % 3 + 1}" for number in range(60))
    (tmp_path / "there.csv").write_text(f"age,label,weight\n{arrays}\n")
    lines = [
        f"data check there.csv --set cache={tmp_path / 'cache'}",
        # A plan does without the data, and names what is missing.
        "run --dry-run --set dataset=npz:no.npz --set classes=2 --set input-shape=4",
    ]
    read = called(lines, tmp_path)
    assert [(status, with_torch) for status, _, with_torch in read] == [(0, True)] * 2, read


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_terminal_is_told_what_takes_a_while(tmp_path: Path, on_terminal: bool) -> None:
    """The model's module takes until the test lets it go on, so that the command has nothing to print."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "from client_app.models import build\n"
        "time.sleep(1.2)\n"  # longer than a command may be silent, also where torch is there at once
        "while not pathlib.Path('go').exists():\n"
        "    time.sleep(0.02)\n"
        "def net(shape, classes):\n"
        "    return build('linear', shape, classes, 0)\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedskew", "data", "show"]
    command += ["--set", "model=slow:net", "--set", "clients=2", "--set", "alpha=100"]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=theirs if on_terminal else subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    try:
        if on_terminal:
            told = os.read(ours, 1000).decode()
            assert "fedskew: loading PyTorch and reading the data ..." in told
        (tmp_path / "go").touch()
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
        os.close(ours)
    assert running.returncode == 0
    assert "client" in out and "loading PyTorch" not in out
    assert on_terminal or err == ""
