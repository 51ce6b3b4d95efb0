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
import torch

import fedskew
from data import DataError, DataSettings, SettingError, load
from server_app.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
SHOWN = (ROOT / "docs" / "guides" / "python.md").read_text()


def blocks(language):
    """Return the code of docs/guides/python.md in a language."""
    return re.findall(rf"```{language}\n(.*?)```", SHOWN, re.DOTALL)


def python(code, folder):
    """Return what a script prints; it stands in a file without a main guard."""
    script = folder / "script.py"
    script.write_text(code)
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        # Of all tests: where the data lie already, nobody imports scikit-learn.
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
    }
    command = [sys.executable, "-W", "ignore", str(script)]
    how = {"capture_output": True, "text": True, "check": True}
    return subprocess.run(command, cwd=folder, env=environment, **how).stdout


def test_the_import_is_cheap(tmp_path):
    code = "import sys, fedskew\nprint(sorted({'torch', 'flwr', 'numpy', 'yaml', 'rich'} & set(sys.modules)))"
    assert python(code, tmp_path) == "[]\n"


def test_the_names_for_a_method_of_ones_own_are_there():
    for name in (*fedskew.methods.__all__, "vectorizable"):  # which docs/guides/plugin.md names
        assert getattr(fedskew.methods, name).__name__


@pytest.mark.slow
def test_worker_processes_without_a_main_guard_are_a_sentence(tmp_path):
    """The worker that imports the script anew says nothing."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python("import fedskew\nfedskew.run({'rounds': 1}, engine='workers', workers=1)", tmp_path)
    *_, last = failed.value.stderr.splitlines()
    assert 'a script calls what uses the engine workers below `if __name__ == "__main__":`' in last
    assert failed.value.stderr.count("Traceback") == 1


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A finished run that deploys two models beside the average."""
    lines = []
    settings = {"method": "creff+tau-norm", "rounds": 2, "local-epochs": 1}
    settings |= {"creff.feature-steps": 2, "creff.head-steps": 2}
    results = str(tmp_path_factory.mktemp("results"))
    result = fedskew.run({**settings, "results": results}, progress=lines.append)
    assert sum(line.startswith("round ") for line in lines) == 2
    return result


def test_a_result_is_the_run_s_folder(result):
    assert result.finished and result == fedskew.load(str(result.folder))
    assert result.settings["creff.head-steps"] == 2
    assert str(result.folder.parent) == result.settings["results"]
    assert [record.round for record in result.rounds] == [1, 2]
    assert len(result.hash) == 64
    with pytest.raises(FrozenInstanceError):
        result.hash = ""
    assert set(result.models) == {"average", "creff", "tau-norm"}
    last = result.models["creff"]["last"]
    assert result.numbers(model="creff") == last != result.models["average"]["last"]
    with pytest.raises(LookupError):
        _ = result.balanced_accuracy  # of which of the two?


def test_a_run_that_is_on_its_way_is_loaded_too(result, tmp_path):
    folder = Path(shutil.copytree(result.folder, tmp_path / result.folder.name))
    (folder / "summary.json").unlink()
    running = fedskew.load(folder)
    assert not running.finished and running.hash is None
    assert running.rounds == result.rounds and running.models == result.models


def test_bad_input_is_refused_as_on_the_command_line(tmp_path):
    with pytest.raises(SettingError) as caught:
        fedskew.run({"roundz": 3})
    assert (caught.value.key, caught.value.value) == ("roundz", 3)
    with pytest.raises(SettingError) as caught:
        fedskew.run({"results": str(tmp_path)}, engine="threads")
    assert caught.value.key == "--engine"
    with pytest.raises(DataError):
        fedskew.load(tmp_path)
    with pytest.raises(SettingError):
        fedskew.compare(["fedavg", "fedshfit"], [0], {"results": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods with two seeds each, on images in memory."""
    folder = tmp_path_factory.mktemp("comparison")
    draws, splits = np.random.default_rng(0), []
    for samples in (90, 30):
        labels = np.arange(samples) % 3
        images = draws.integers(0, 200, (samples, 4, 4), dtype=np.uint8)
        splits.append((images + labels[:, None, None].astype(np.uint8) * 20, labels))
    settings = {**fedskew.from_arrays(*splits, folder=folder), "model": "mlp-bn", "clients": 3}
    settings |= {"rounds": 2, "local-epochs": 1, "results": str(folder / "results")}
    methods = ["fedavg", {"slow": {"method": "fedavg", "learning-rate": 1e-6}}]
    return fedskew.compare(methods, [0, 1], {**settings, "cache": str(folder / "cache")})


def test_the_table_has_the_runs_numbers(compared):
    rows = {row["method"]: row for row in compared.table()}
    assert list(rows) == ["fedavg", "slow"] == list(compared.runs)
    means = {}
    for method, results in compared.runs.items():
        assert [result.settings["seed"] for result in results] == [0, 1]
        means[method] = 100 * np.mean([result.balanced_accuracy for result in results])
        assert rows[method]["mean"] == pytest.approx(means[method])
        assert rows[method]["seeds"] == 2
    assert rows["fedavg"]["difference"] is None
    assert rows["slow"]["compared-with"] == "fedavg"
    assert rows["slow"]["difference"] == pytest.approx(means["slow"] - means["fedavg"])
    assert rows["slow"]["low"] < rows["slow"]["difference"] < rows["slow"]["high"]
    assert compared.runs["slow"][0].settings["learning-rate"] == 1e-6


def test_figures_are_saved_as_their_ending_says(compared, tmp_path):
    names = compared.figures()
    assert {"curves", "differences", "clients"} <= names.keys() and all(names.values())
    curves = compared.figure("curves")
    for ending, begins in ((".svg", b"<?xml"), (".pdf", b"%PDF-"), (".PNG", b"\x89PNG")):
        file = curves.save(tmp_path / f"curves{ending}")
        assert file.read_bytes().startswith(begins)
    for name in ("curves.jpg", "curves", "no/such/folder/curves.svg"):
        with pytest.raises(SettingError):
            curves.save(tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(LookupError):
        compared.figure("curve")


def loaded(settings, folder):
    """Return the data set of settings by `from_arrays`."""
    stated = {key.replace("-", "_"): value for key, value in settings.items()}
    return load(DataSettings(**stated, cache=str(folder / "cache")))


@pytest.mark.parametrize("kind", ["arrays", "tensors", "torch data set"])
def test_data_in_memory_are_what_is_trained_on(kind, tmp_path):
    images = np.random.default_rng(0).random((12, 3, 3, 3), dtype=np.float32)  # (N, H, W, C)
    labels = np.arange(12) % 3
    tensors = (torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(labels))
    given = {
        "arrays": (images, labels),
        "tensors": tensors,
        "torch data set": torch.utils.data.TensorDataset(*tensors),
    }[kind]
    settings = fedskew.from_arrays(given, given, classes=["a", "b", "c"], folder=tmp_path)
    assert settings["classes"] == "a,b,c" and settings["input-shape"] == "3x3x3"
    train = loaded(settings, tmp_path).train
    assert np.array_equal(np.asarray(train.inputs), images.transpose(0, 3, 1, 2))
    assert train.labels.tolist() == labels.tolist()


class Frame:
    """What `from_arrays` needs of a DataFrame: its columns, and itself as an array."""

    def __init__(self, numbers_NF, columns):
        self.numbers_NF = numbers_NF
        self.columns = columns

    def __array__(self, dtype=None, copy=None):
        return self.numbers_NF


def test_frames_keep_the_names_of_their_columns(tmp_path):
    numbers, labels = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12) % 2
    columns = ["age", "bmi", "heart rate", "a, b"]
    train, test = Frame(numbers, columns), Frame(numbers[:, ::-1], columns[::-1])
    data = loaded(fedskew.from_arrays((train, labels), (test, labels), folder=tmp_path), tmp_path)
    assert data.input_columns == tuple(columns) and np.array_equal(data.test.inputs, numbers)


@pytest.mark.parametrize("labels", [["cat", "dog"] * 6, [0, 1] * 6])
def test_labels_of_a_data_frame_are_labels(tmp_path, labels):
    """A column of pandas is an array of objects."""
    images = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4)
    plain, objects = (
        fedskew.from_arrays((images, kept), (images, kept), folder=tmp_path)
        for kept in (np.array(labels), np.array(labels, dtype=object))
    )
    assert objects == plain


PIXELS = np.zeros((4, 3, 3), np.uint8)
NAMES = ["cat", "dog", "cat", "dog"]
NO_DATA = {
    "no sample": [],
    "a label of None": (PIXELS, np.array(["cat", None, "cat", "dog"], dtype=object)),
    "images of several sizes": ([PIXELS[0], PIXELS[0, 1:]] * 2, NAMES),
    "a gradient": (torch.ones(4, 1, 3, 3, requires_grad=True), NAMES),
}


@pytest.mark.parametrize("fault", NO_DATA)
def test_what_is_no_data_is_refused(fault, tmp_path):
    good = (PIXELS, NAMES)
    fedskew.from_arrays(good, good, folder=tmp_path)  # the control
    with pytest.raises(DataError) as raised:
        fedskew.from_arrays(NO_DATA[fault], good, folder=tmp_path)
    assert "train" in str(raised.value)


@pytest.mark.slow
def test_the_notebook_goes_from_arrays_to_a_report(tmp_path):
    pytest.importorskip("nbclient", reason="pip install 'fedskew[dev]' brings it")
    text = (ROOT / "docs" / "start" / "own-data.ipynb").read_text()
    cells = json.loads(text)["cells"]
    kept = [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert not kept, "no outputs are kept"
    (tmp_path / "own_data.ipynb").write_text(text)
    code = "import nbclient, nbformat\nnbclient.execute(nbformat.read('own_data.ipynb', 4))"
    python(code, tmp_path)
    assert "fedshift" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_scripts_in_the_docs_run(tmp_path):
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
