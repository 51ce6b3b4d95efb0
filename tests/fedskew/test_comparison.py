"""`fedskew.compare` and `fedskew.from_arrays`: the numbers are the runs', and data in memory arrive unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew
from data import DataError, DataSettings, SettingError, load
from fedskew.api import Comparison


def arrays(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels = np.arange(samples) % 3
    images = draw.integers(0, 200, (samples, 4, 4), dtype=np.uint8)
    return images + labels[:, None, None].astype(np.uint8) * 20, labels


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("comparison")
    data = fedskew.from_arrays(arrays(90), arrays(30, 1), folder=folder)
    return {
        **data,
        "model": "mlp-bn",
        "clients": 3,
        "rounds": 2,
        "local-epochs": 1,
        "results": str(folder / "results"),
        "cache": str(folder / "cache"),
    }


METHODS = ["fedavg", {"slow": {"method": "fedavg", "learning-rate": 1e-6}}]


@pytest.fixture(scope="module")
def compared(settings: dict[str, Any]) -> Comparison:
    return fedskew.compare(METHODS, [0, 1], settings)


def test_the_table_has_the_runs_numbers(compared: Comparison) -> None:
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


def test_figures_are_saved_as_their_ending_says(compared: Comparison, tmp_path: Path) -> None:
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


def test_a_wrong_method_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        fedskew.compare(["fedavg", "fedshfit"], [0], {"results": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["arrays", "tensors", "torch data set"])
def test_data_in_memory_are_what_is_trained_on(kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.random((12, 3, 3, 3), dtype=np.float32)  # (N, H, W, C)
    labels = np.arange(12) % 3
    given: object = (images, labels)
    if kind != "arrays":
        tensors = (torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(labels))
        given = tensors
        if kind == "torch data set":
            given = torch.utils.data.TensorDataset(*tensors)
    settings = fedskew.from_arrays(given, given, classes=["a", "b", "c"], folder=tmp_path)
    assert settings["classes"] == "a,b,c" and settings["input-shape"] == "3x3x3"
    stated = {key.replace("-", "_"): value for key, value in settings.items()}
    loaded = load(DataSettings(**stated, cache=str(tmp_path / "cache")))
    assert np.array_equal(np.asarray(loaded.train.inputs), images.transpose(0, 3, 1, 2))
    assert loaded.train.labels.tolist() == labels.tolist()


PIXELS = np.zeros((4, 3, 3), np.uint8)
NAMES = ["cat", "dog", "cat", "dog"]
NO_DATA: dict[str, object] = {
    "no sample": [],
    "a label of None": (PIXELS, ["cat", None, "cat", "dog"]),
    "images of several sizes": ([PIXELS[0], PIXELS[0, 1:]] * 2, NAMES),
    "a gradient": (torch.ones(4, 1, 3, 3, requires_grad=True), NAMES),
}


@pytest.mark.parametrize("fault", NO_DATA)
def test_what_is_no_data_is_refused(fault: str, tmp_path: Path) -> None:
    good = (PIXELS, NAMES)
    fedskew.from_arrays(good, good, folder=tmp_path)  # the control
    with pytest.raises(DataError) as raised:
        fedskew.from_arrays(NO_DATA[fault], good, folder=tmp_path)
    assert "train" in str(raised.value)
