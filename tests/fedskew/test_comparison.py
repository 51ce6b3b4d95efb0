"""`fedskew.compare` and `fedskew.from_arrays`: the numbers are the runs', and data in memory arrive unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import FedSkew

import fedskew
from data import DataError, DataSettings, SettingError, load
from fedskew.comparison import Comparison


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


METHODS = ["fedavg", "fedshift", {"slow": {"method": "fedavg", "learning-rate": 1e-6}}]


@pytest.fixture(scope="module")
def compared(settings: dict[str, Any]) -> Comparison:
    return fedskew.compare(METHODS, [0, 1], settings)


def test_the_table_has_the_runs_numbers(compared: Comparison) -> None:
    rows = {row["method"]: row for row in compared.table()}
    assert list(rows) == ["fedavg", "fedshift", "slow"] == list(compared.runs)
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


def test_figures_tables_and_the_page(compared: Comparison, tmp_path: Path) -> None:
    names = compared.figures()
    assert {"curves", "differences", "clients"} <= names.keys() and all(names.values())
    assert compared.figure("curves")._repr_svg_().count("<svg") == 1
    with pytest.raises(LookupError, match=r"figure curve: must be one of .*curves"):
        compared.figure("curve")
    shown = compared._repr_html_()
    assert "<table>" in shown and "slow" in shown and "<svg" in shown
    assert "slow" in compared.report(tmp_path / "page.html").read_text()
    assert "| slow |" in compared.markdown()


def test_figures_have_the_same_names_on_the_command_line(
    compared: Comparison, settings: dict[str, Any], fedskew: FedSkew, tmp_path: Path
) -> None:
    entry = {"title": "The same", "methods": METHODS, "seeds": [0, 1], "settings": settings}
    experiments = tmp_path / "experiments.yaml"
    experiments.write_text(yaml.safe_dump({"same": entry}))
    words = ("report", "same", "--experiments", experiments, "--figures", tmp_path / "figures")
    status, _, err = fedskew(*words)
    assert status == 0, err
    files = list((tmp_path / "figures" / "same").iterdir())
    assert {file.stem for file in files} == compared.figures().keys()


@pytest.mark.parametrize(
    ("ending", "begins"), [(".svg", b"<?xml"), (".pdf", b"%PDF-"), (".PNG", b"\x89PNG")]
)
def test_a_figure_is_saved_as_its_ending_says(
    compared: Comparison, tmp_path: Path, ending: str, begins: bytes
) -> None:
    file = compared.figure("curves").save(tmp_path / f"curves{ending}")
    assert file.read_bytes().startswith(begins)
    again = compared.figure("curves").save(tmp_path / f"again{ending}")
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["curves.jpg", "curves", "no/such/folder/curves.svg"])
def test_a_figure_that_cannot_be_saved_is_refused_in_a_sentence(
    compared: Comparison, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SettingError) as raised:
        compared.figure("curves").save(tmp_path / name)
    cause = "cannot be written" if name.endswith(".svg") else "must end in .svg, .pdf or .png"
    assert name in str(raised.value) and cause in str(raised.value)
    assert not (tmp_path / name).exists()


def test_a_wrong_method_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="fedshfit"):
        fedskew.compare(["fedavg", "fedshfit"], [0], {"results": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["arrays", "tensors", "torch data set"])
def test_data_in_memory_are_what_is_trained_on(kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.random((12, 5, 4, 3), dtype=np.float32)  # (N, H, W, C)
    labels = np.arange(12) % 3
    given: object = (images, labels)
    if kind != "arrays":
        tensors = (torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(labels))
        given = tensors
        if kind == "torch data set":
            given = torch.utils.data.TensorDataset(*tensors)
    settings = fedskew.from_arrays(given, given, classes=["a", "b", "c"], folder=tmp_path)
    assert settings["classes"] == "a,b,c" and settings["input-shape"] == "3x5x4"
    stated = {key.replace("-", "_"): value for key, value in settings.items()}
    loaded = load(DataSettings(**stated, cache=str(tmp_path / "cache")))
    assert np.array_equal(np.asarray(loaded.train_inputs), images.transpose(0, 3, 1, 2))
    assert loaded.train_labels.tolist() == labels.tolist()


def test_the_same_data_are_the_same_file(tmp_path: Path) -> None:
    first = fedskew.from_arrays(arrays(12), arrays(6, 1), folder=tmp_path)
    again = fedskew.from_arrays(arrays(12), arrays(6, 1), folder=tmp_path)
    other = fedskew.from_arrays(arrays(12), arrays(6, 2), folder=tmp_path)
    assert first == again and first["dataset"] != other["dataset"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (5, r"train: int: must be a pair \(images, labels\), or a torch Dataset"),
        ([], "train: has no sample"),
        ((np.zeros((4, 3, 3), np.uint8), np.zeros(3, int)), "train"),
    ],
)
def test_what_is_no_data_is_refused(train: object, reason: str, tmp_path: Path) -> None:
    fedskew.from_arrays(arrays(6), arrays(6), folder=tmp_path)
    with pytest.raises(DataError, match=reason):
        fedskew.from_arrays(train, arrays(6), folder=tmp_path)


PIXELS = np.zeros((4, 3, 3), np.uint8)
NAMES = ["cat", "dog", "cat", "dog"]
NO_PAIRS = {
    "triples": (
        [(PIXELS[0], 0, k) for k in range(4)],
        "train: item 0: has 3 parts: must be a pair",
    ),
    "one triple": ([*[(PIXELS[0], 0)] * 3, (PIXELS[0], 0, 1)], "train: item 3: has 3 parts"),
    "dictionaries": (
        [{"image": PIXELS[0], "label": 0}] * 4,
        "item 0: is a dictionary with the keys image, label",
    ),
    "another key": (
        [{"image": PIXELS[0], "label": 0, "id": 1}] * 4,
        "with the keys image, label, id: must be a pair",
    ),
    "images alone": ([PIXELS[0]] * 4, "item 0: is of type ndarray: must be a pair"),
    "numbers": ([1, 2, 3], "item 0: is of type int"),
    "three arrays": (
        (PIXELS, NAMES, NAMES),
        r"train: has 3 parts: must be a pair \(images, labels\)",
    ),
    "a dictionary of arrays": (
        {"images": PIXELS, "labels": NAMES},
        "train: dict with the keys images, labels: must be",
    ),
    "None": (None, "train: NoneType: must be a pair"),
    "an array": (PIXELS, "train: ndarray: must be a pair"),
    "a label of None": (
        (PIXELS, ["cat", None, "cat", "dog"]),
        "label None at index 1: must be all names, or all",
    ),
    "a number of None": (
        (PIXELS, [0, 1, None, 0]),
        "label None at index 2: must be all names, or all numbers",
    ),
    "NaN beside names": (
        (PIXELS, ["cat", float("nan"), "cat", "dog"]),
        "labels of type float and names: must be all",
    ),
    "labels of several lengths": (
        (PIXELS, [[0], [0, 1], [1], [0]]),
        "train: labels: must be one number or name",
    ),
    "a missing name": (
        (PIXELS, ["cat", "nan", "cat", "dog"]),
        "train_labels: 'nan' at index 1: is a missing value",
    ),
    "continuous labels": ((PIXELS, [0.5, 1.2, 3.1, 0.1]), "labels must be whole numbers"),
    "paths": ((["a.png"] * 4, NAMES), "train: images of type list: must be numbers"),
    "images of several sizes": (
        ([PIXELS[0], PIXELS[0, 1:]] * 2, NAMES),
        "must be arrays of one shape",
    ),
    "a gradient": (
        (torch.ones(4, 1, 3, 3, requires_grad=True), NAMES),
        "or tensors on the CPU without gradients",
    ),
}


@pytest.mark.parametrize("case", NO_PAIRS)
def test_items_that_are_no_pairs_are_one_sentence(case: str, tmp_path: Path) -> None:
    given, reason = NO_PAIRS[case]
    with pytest.raises(DataError, match=reason):
        fedskew.from_arrays(given, (PIXELS, NAMES), folder=tmp_path)


@pytest.mark.parametrize(
    "labels", [NAMES, np.array(NAMES, object), [0, 1, 0, 1], np.array([0, 1, 0, 1], object)]
)
def test_labels_that_are_names_or_objects(labels: Any, tmp_path: Path) -> None:
    settings = fedskew.from_arrays(
        (PIXELS, labels), list(zip(PIXELS, labels, strict=True)), folder=tmp_path
    )
    assert settings["classes"] == ("cat,dog" if "cat" in labels else "2")


def test_names_of_classes_with_commas(tmp_path: Path) -> None:
    names = ["adenoma, benign", "carcinoma"]
    labels = ["carcinoma", *names, "carcinoma"]
    for stated in ([], names):
        settings = fedskew.from_arrays(
            (PIXELS, labels), (PIXELS, labels), classes=stated, folder=tmp_path
        )
        assert DataSettings(classes=settings["classes"]).class_names == tuple(names)
    with pytest.raises(DataError, match="classes: 'a,b': must be a list of names"):
        fedskew.from_arrays(
            (PIXELS, [0, 1, 0, 1]), (PIXELS, [0, 1, 0, 1]), classes="a,b", folder=tmp_path
        )


def test_images_of_several_shapes_are_refused(tmp_path: Path) -> None:
    items = [(torch.zeros(1, 4, 4), 0), (torch.zeros(1, 4, 5), 1), (torch.zeros(1, 4, 4), 1)]
    rule = "must have one shape"
    with pytest.raises(DataError, match=rule):
        fedskew.from_arrays(items, arrays(6), folder=tmp_path)
