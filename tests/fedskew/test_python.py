"""`import fedskew`: cheap, and what docs/guides/python.md says works as it stands there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

import fedskew
from data import DataError, SettingError
from server_app.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
SHOWN = (ROOT / "docs" / "guides" / "python.md").read_text()
QUICK = {
    "method": "creff",
    "rounds": 2,
    "local-epochs": 1,
    "creff.feature-steps": 2,
    "creff.head-steps": 2,
}


def blocks(language: str) -> list[str]:
    """Return the code of docs/guides/python.md in a language."""
    return re.findall(rf"```{language}\n(.*?)```", SHOWN, re.DOTALL)


def python(code: str, folder: Path) -> str:
    """Return what a script prints; it stands in a file without a main guard."""
    script = folder / "script.py"
    script.write_text(code)
    command = [sys.executable, "-W", "ignore", str(script)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    cache = os.environ[
        "XDG_CACHE_HOME"
    ]  # of all tests: where the data lie already, nobody imports scikit-learn
    environment = {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "XDG_CACHE_HOME": cache,
    }
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=True, env=environment
    ).stdout


def test_the_import_is_cheap(tmp_path: Path) -> None:
    code = "import sys, fedskew\nprint(sorted({'torch', 'flwr', 'numpy', 'yaml', 'rich'} & set(sys.modules)))"
    assert python(code, tmp_path) == "[]\n"


@pytest.mark.slow
def test_worker_processes_without_a_main_guard_are_a_sentence(tmp_path: Path) -> None:
    """The worker that imports the script anew says nothing."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python("import fedskew\nfedskew.run({'rounds': 1}, engine='workers', workers=1)", tmp_path)
    lines = failed.value.stderr.splitlines()
    assert (
        'a script calls what uses the engine workers below `if __name__ == "__main__":`'
        in lines[-1]
    )
    assert failed.value.stderr.count("Traceback") == 1


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def result(results: Path) -> fedskew.Result:
    """A finished run that deploys two models beside the average."""
    lines: list[str] = []
    method = "creff+tau-norm"
    settings = {**QUICK, "method": method, "results": str(results)}
    result = fedskew.run(settings, progress=lines.append)
    assert sum(line.startswith("round ") for line in lines) == 2
    return result


def test_a_result_is_the_run_s_folder(result: fedskew.Result, results: Path) -> None:
    assert result.finished and result == fedskew.load(str(result.folder))
    assert result.settings["creff.head-steps"] == 2 and result.folder.parent == results
    assert [record.round for record in result.rounds] == [1, 2]
    assert result.hash is not None and len(result.hash) == 64
    with pytest.raises(FrozenInstanceError):
        result.hash = ""  # type: ignore[misc]
    assert set(result.models) == {"average", "creff", "tau-norm"}
    last = result.models["creff"]["last"]
    assert result.numbers(model="creff") == last != result.models["average"]["last"]
    with pytest.raises(LookupError):
        _ = result.balanced_accuracy  # of which of the two?


def test_a_run_that_is_on_its_way_is_loaded_too(result: fedskew.Result, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(result.folder, tmp_path / result.folder.name))
    (folder / "summary.json").unlink()
    running = fedskew.load(folder)
    assert not running.finished and running.hash is None
    assert running.rounds == result.rounds and running.models == result.models


def test_bad_input_is_refused_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        fedskew.run({"roundz": 3})
    assert (caught.value.key, caught.value.value) == ("roundz", 3)
    with pytest.raises(SettingError) as caught:
        fedskew.run({"results": str(tmp_path)}, engine="threads")
    assert caught.value.key == "--engine"
    with pytest.raises(DataError):
        fedskew.load(tmp_path)


@pytest.mark.parametrize("labels", [["cat", "dog"] * 6, [0, 1] * 6])
def test_labels_of_a_data_frame_are_labels(tmp_path: Path, labels: list[object]) -> None:
    """A column of pandas is an array of objects."""
    images = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4)
    plain, objects = (
        fedskew.from_arrays((images, kept), (images, kept), folder=tmp_path)
        for kept in (np.array(labels), np.array(labels, dtype=object))
    )
    assert objects == plain
    mixed = np.array([*labels[:-1], None], dtype=object)
    with pytest.raises(DataError):
        fedskew.from_arrays((images, mixed), (images, mixed), folder=tmp_path)


@pytest.mark.slow
def test_the_notebook_goes_from_arrays_to_a_report(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="pip install 'fedskew[dev]' brings it")
    text = (ROOT / "docs" / "start" / "own-data.ipynb").read_text()
    cells = json.loads(text)["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), (
        "no outputs are kept"
    )
    (tmp_path / "own_data.ipynb").write_text(text)
    python(
        "import nbclient, nbformat\nnbclient.execute(nbformat.read('own_data.ipynb', 4))", tmp_path
    )
    assert "fedshift" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_scripts_in_the_docs_run(tmp_path: Path) -> None:
    """The command and the first script in one file without a main guard, the comparison, and the parts alone."""
    words = shlex.split(blocks("bash")[0])
    assert words[:2] == ["python", "-c"] and len(words) == 3
    script, comparison, *parts = blocks("python")
    printed = python(f"{words[2]}\n{script}", tmp_path).splitlines()
    assert 0.1 < float(printed[0]) < 1
    assert printed[-2] == "True 0.1" and printed[-1] == METHODS["creff"].reveals
    assert len(list((tmp_path / "results").glob("*/summary.json"))) == 2
    printed = python(comparison, tmp_path).splitlines()
    assert [line.split()[0] for line in printed[1:3]] == ["fedavg", "fedshift"]
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "fedshift" in (tmp_path / "comparison.html").read_text()
    assert "tensor" in python(parts[0], tmp_path)
    assert "[10, 64]) torch.Size([10, 30, 64])" in python(parts[1], tmp_path)
