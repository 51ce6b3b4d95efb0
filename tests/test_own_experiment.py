"""An experiment of one's own from beginning to end, in a folder outside the project: run, killed, run, shown, used."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
MINE = ("--experiments", "experiments.yaml")
EXPERIMENT = """
mine:
  title: Three methods on two kinds of digits
  settings: {rounds: 8, clients: 2, train-images: 60, test-images: 40, local-steps: 2, model: mlp-bn, min-samples: 5}
  methods: [fedavg, fedbn, iwds]
  columns: {plain: {dataset: digits}, noisy: {dataset: digits-noisy}}
  seeds: [0]
"""


def contents(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_it_is_run_killed_run_reported_exported_and_used_and_nothing_else_is_written(
    tmp_path: Path,
) -> None:
    temporary = "tmp" + "-with-a-name-too-long-for-sockets" * 2
    for name in ("work", "home", "cache", temporary):
        (tmp_path / name).mkdir()
    work = tmp_path / "work"
    (work / "experiments.yaml").write_text(EXPERIMENT)
    np.savez(work / "images.npz", images=np.zeros((3, 8, 8), np.uint8))
    given = contents(tmp_path)
    places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": temporary}
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("XDG_")},
        **{name: str(tmp_path / place) for name, place in places.items()},
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def command(*words: object) -> list[str]:
        return [sys.executable, "-P", "-W", "ignore", "-m", "fedskew", *map(str, words)]

    def call(*words: object) -> tuple[str, str]:
        done = subprocess.run(
            command(*words), cwd=work, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    with (tmp_path / temporary / "log").open("w") as log:
        killed = subprocess.Popen(
            command("run", "mine", *MINE), cwd=work, env=environment, stdout=log, stderr=log
        )
        deadline = time.monotonic() + 900
        while len(list(work.glob("results/*/summary.json"))) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        children = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
        killed.wait()
        assert not psutil.wait_procs(children, timeout=20)[1]
    finished = len(list(work.glob("results/*/summary.json")))
    assert 1 <= finished < 6, (tmp_path / temporary / "log").read_text()

    output, errors = call("run", "mine", "--json", *MINE)
    assert len(json.loads(output)) == 6
    assert f"{finished} of 6 runs finished earlier" in errors
    (document,) = json.loads(call("report", "mine", "--json", *MINE)[0])
    assert document["experiment"] == "mine"
    call("report", "mine", *MINE, "--html", "results/report.html")
    page = (work / "results" / "report.html").read_text()
    assert all(words in page for words in ("Three methods on two kinds of digits", "iwds", "noisy"))
    run = next(folder for folder in sorted(work.glob("results/digits-fedavg-*")) if folder.is_dir())
    call("export", run.relative_to(work))
    (model,) = (run / "export").iterdir()
    answer = json.loads(call("predict", model, "images.npz", "--json")[0])
    assert len(answer["predictions"]) == 3

    left = contents(tmp_path) - given
    allowed = ("work/results/", "cache/fedskew/", "cache/matplotlib/", f"{temporary}/")
    assert [file for file in sorted(left) if not file.startswith(allowed)] == []
