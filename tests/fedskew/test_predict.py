"""`fedskew predict`: a run's own numbers come back to the last digit, and bad input is one sentence."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import FedSkew
from dicom_files import write_image
from exported_models import (
    exported,
    trained_on_digits,
    trained_on_domains,
    write_inputs,
    write_test_set,
)
from PIL import Image

from client_app import tensor_files
from client_app.tensor_files import write_atomically
from fedskew.export.from_run import TrainedRun
from fedskew.export.model_folder import ModelFolder
from fedskew.export.predict import read_inputs, state_at
from server_app.run_folder import RunFolder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CReFF run's exports `average` and `creff`, its test set `test.npz` and its folder's path."""
    root = tmp_path_factory.mktemp("digits")
    config, folder = trained_on_digits(root / "results")
    for model in ("average", "creff"):
        exported(folder, root / model, model)
    write_test_set(config, root / "test.npz")
    (root / "run.txt").write_text(str(folder.path))
    return root


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a FedBN run's export `model`, its sites' test sets and its folder's path."""
    root = tmp_path_factory.mktemp("domains")
    folder = trained_on_domains(root)[1]
    exported(folder, root / "model")
    for domain in ("bright", "dark"):
        write_inputs(root, domain)
    (root / "run.txt").write_text(str(folder.path))
    return root


def last_round(root: Path) -> dict[str, dict[str, object]]:
    """Return the recorded numbers of the last round, by deployed model."""
    return RunFolder(Path((root / "run.txt").read_text())).rounds()[-1].to_json()["models"]


@pytest.mark.parametrize("model", ["average", "creff"])
def test_the_runs_numbers_come_back(digits: Path, fedskew: FedSkew, model: str) -> None:
    status, output, _ = fedskew("predict", digits / model, digits / "test.npz", "--json")
    answer, recorded = json.loads(output), last_round(digits)[model]
    assert status == 0 and len(answer["predictions"]) == 360
    for key in ("accuracy", "balanced-accuracy", "macro-f1", "recall"):
        assert answer["metrics"][key] == recorded[key]
    assert answer["metrics"]["loss"] == pytest.approx(
        recorded["loss"], rel=1e-12
    )  # a sum, here in another order
    right = sum(
        prediction["prediction"] == prediction["label"] for prediction in answer["predictions"]
    )
    assert right / 360 == pytest.approx(recorded["accuracy"], abs=1e-12)
    assert all(0.1 <= prediction["probability"] <= 1 for prediction in answer["predictions"])


def test_a_local_batch_norm_model_without_a_site_says_what_there_is(
    domains: Path, digits: Path, fedskew: FedSkew
) -> None:
    of_dark = ("predict", domains / "model", domains / "inputs-dark.npz")
    for words in ((), ("--site", "elsewhere")):
        status, _, errors = fedskew(*of_dark, *words)
        assert (status, errors.count("\n")) == (2, 1)
        assert all(word in errors for word in ("bright, dark", "averaged", "re-estimate"))
    status, _, errors = fedskew(
        "predict", digits / "creff", digits / "test.npz", "--site", "bright"
    )
    assert status == 2 and "has no effect" in errors


def test_a_site_nobody_trained_with(domains: Path, fedskew: FedSkew) -> None:
    """The averaged state by hand, the first layer's statistics in closed form."""
    folder = ModelFolder(domains / "model")
    inputs = read_inputs(write_inputs(domains, "dark", labeled=False), folder.description)
    assert not inputs.known_N.any()
    bright, dark = folder.sites["bright"], folder.sites["dark"]
    mean = state_at(folder, inputs, "averaged")
    name = "features.2.running_mean"  # 40 samples at each site
    assert torch.allclose(mean[name], (bright[name] + dark[name]) / 2)
    reestimated = state_at(folder, inputs, "re-estimate")
    everything = inputs.samples.batch(torch.arange(40)).flatten(1)
    hidden = everything @ folder.shared["features.1.weight"].T + folder.shared["features.1.bias"]
    assert torch.allclose(reestimated[name], hidden.mean(0), atol=1e-5)
    assert torch.allclose(reestimated["features.2.running_var"], hidden.var(0), rtol=1e-4)
    assert torch.equal(reestimated["features.2.weight"], mean["features.2.weight"])
    assert all(torch.equal(reestimated[name], tensor) for name, tensor in folder.shared.items())
    status, output, _ = fedskew(
        "predict", domains / "model", inputs.where, "--site", "averaged", "--json"
    )
    assert status == 0 and json.loads(output).keys() == {"predictions"}
    np.savez(domains / "one.npz", images=np.zeros((1, 8, 8), np.uint8))
    status, _, errors = fedskew(
        "predict", domains / "model", domains / "one.npz", "--site", "re-estimate"
    )
    assert status == 2 and "two inputs or more" in errors


Change = Callable[[dict[str, torch.Tensor], dict[str, str]], object]


def rewritten(source: Path, target: Path, change: Change) -> Path:
    """Copy an export with its model file changed."""
    shutil.copytree(source, target)
    state, metadata = tensor_files.read(source / "model.safetensors")
    change(state, metadata)
    write_atomically(target / "model.safetensors", state, metadata)
    return target


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state, known: known.update({"classes": "a,b,c"}), ["head.weight", "10x64", "3x64"]),
        (lambda state, known: known.update({"input-shape": "1xBx8"}), ["input-shape", "1xBx8"]),
        (lambda state, known: known.update({"architecture": "no-such"}), ["architecture"]),
        (lambda state, known: known.update({"std": "0"}), ["std = '0'"]),
        (lambda state, known: known.update({"pixel-range": "9,1"}), ["pixel-range = '9,1'"]),
        (lambda state, known: known.pop("method"), ["lack method"]),
        (lambda state, known: state.pop("head.bias"), ["head.bias is missing"]),
        (lambda state, known: state.update({"tail": torch.ones(1)}), ["'tail' is not expected"]),
        (lambda state, known: state["head.bias"].fill_(float("nan")), ["head.bias is not finite"]),
        (lambda state, known: state["head.weight"].fill_(3e38), ["outputs are not finite"]),
    ],
)  # fmt: skip
def test_a_model_that_is_not_in_order(
    digits: Path, tmp_path: Path, fedskew: FedSkew, change: Change, words: list[str]
) -> None:
    folder = rewritten(digits / "creff", tmp_path / "model", change)
    status, _, errors = fedskew("predict", folder, digits / "test.npz")
    assert (status, errors.count("\n")) == (2, 1)
    assert all(word in errors for word in words), errors


def test_damaged_files_and_files_of_another_run_are_one_sentence(
    digits: Path, domains: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    whole = (digits / "creff" / "model.safetensors").read_bytes()
    middle = len(whole) * 3 // 4
    flipped = whole[:middle] + bytes([whole[middle] ^ 64]) + whole[middle + 1 :]
    for name, content in {"cut": whole[:-100], "flipped": flipped}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    other = exported(trained_on_domains(tmp_path, rounds=1)[1], tmp_path / "other")
    for name, source, target in (
        ("mixed", other / "site-dark.safetensors", "site-dark.safetensors"),
        ("no model", domains / "model/site-dark.safetensors", "model.safetensors"),
    ):
        shutil.copytree(domains / "model", tmp_path / name)
        shutil.copy(source, tmp_path / name / target)
    for name, words in {
        "cut": "model.safetensors is damaged: ",
        "flipped": "is damaged: its checksum is another",
        "mixed": "site-dark.safetensors: is of another run",
        "no model": "model.safetensors is not the file that belongs here: its kind",
        ".": "holds no model.safetensors",
    }.items():
        status, out, errors = fedskew("predict", tmp_path / name, digits / "test.npz")
        assert (status, out, errors.count("\n")) == (2, "", 1) and words in errors, name


def test_inputs_that_are_not_in_order(digits: Path, tmp_path: Path, fedskew: FedSkew) -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    arrays = {
        "channels": {"images": np.zeros((4, 8, 8, 4), np.uint8)},
        "words": {"images": images.astype("U1")},
        "labels": {"images": images, "labels": np.array([0, 1, 2, 10])},
        "split": {"test_images": images},
    }
    for name, members in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **members)
    (tmp_path / "empty").mkdir()
    (tmp_path / "classes" / "cat").mkdir(parents=True)
    (tmp_path / "classes" / "cat" / "image.png").write_text("no image")
    (tmp_path / "note.txt").write_text("see page 3")
    for name, words in {
        "channels.npz": "4 channels cannot become 1",
        "words.npz": "images: dtype <U1",
        "labels.npz": "label 10 of 10 classes at index 3",
        "split.npz": "images missing; the file holds test_images",
        "empty": "holds no image",
        "classes": "class folder cat: must be one of",
        "note.txt": "is damaged or no image",
        "nowhere": "there is no such file",
    }.items():
        status, _, errors = fedskew("predict", digits / "creff", tmp_path / name)
        assert (status, errors.count("\n")) == (2, 1) and words in errors, errors


def test_a_table_of_predictions_has_every_probability(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    predict = ("predict", digits / "average", digits / "test.npz", "--output")
    status, output, _ = fedskew(*predict, tmp_path / "p.csv")
    assert status == 0 and "AUROC" in output and "balanced accuracy" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 360
    for row in rows:
        assert row[f"p {row['prediction']}"] == row["probability"]
        assert sum(float(row[f"p {k}"]) for k in range(10)) == pytest.approx(1)
    status, _, errors = fedskew(*predict, tmp_path / "no" / "file.csv")
    assert status == 2 and "--output" in errors and "cannot be written" in errors


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_inputs_are_taken_as_training_takes_them(
    digits: Path, fedskew: FedSkew, tmp_path: Path, kind: str
) -> None:
    """As train/CLASS and test/CLASS, and as a table of paths."""
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:30], arrays["labels"][:30]
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    path = tmp_path / "scans"
    options: list[str] = []
    rows = ["path,finding,split"]
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        for side in ("train", "test"):
            file = f"{side}/{label}/{number:02}.png"
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / file)
            rows.append(f"{file},{label},{side}")
    if kind == "csv":
        path = path / "table.csv"
        path.write_text("\n".join(rows))
        options = ["--set", "columns=label=finding"]
    answers = []
    for words in ([path, *options], [tmp_path / "plain.npz"]):
        output = fedskew("predict", digits / "average", *words, "--json")[1]
        answers.append(json.loads(output)["metrics"])
    assert answers[0]["accuracy"] == answers[1]["accuracy"] > 0.1
    assert answers[0]["auroc"] == pytest.approx(answers[1]["auroc"], abs=1e-9)


def test_a_model_says_how_its_inputs_were_read(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    run = TrainedRun(RunFolder(Path((digits / "run.txt").read_text()), moved=True), "average")
    assert "pixel-range" not in run.description.metadata()
    run.settings = {**run.settings, "pixel-range": "0,4080"}
    metadata = run.description.metadata()
    model = rewritten(
        digits / "average", tmp_path / "model", lambda _, known: known.update(metadata)
    )
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"].astype(np.int16) * 16, arrays["labels"]
    np.savez(tmp_path / "wide.npz", images=images, labels=labels)
    status, output, errors = fedskew("predict", model, tmp_path / "wide.npz", "--json")
    assert status == 0, errors
    assert json.loads(output)["metrics"]["accuracy"] == last_round(digits)["average"]["accuracy"]


def test_a_dicom_tree_is_predicted_with_its_patients(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    pytest.importorskip("pydicom")
    for number in range(3):
        file = tmp_path / "pacs" / f"PAT{number}" / "ST0" / f"IM{number}"
        write_image(file, number, PatientID=f"id-{number}")
    answer = json.loads(fedskew("predict", digits / "average", tmp_path / "pacs", "--json")[1])
    assert answer.keys() == {"predictions"}
    patients = [row["columns"]["PatientID"] for row in answer["predictions"]]
    assert patients == ["id-0", "id-1", "id-2"]

    write_image(tmp_path / "pacs" / "A" / "IM0", 0, PatientID=None)  # the first file names nobody
    output = tmp_path / "p.csv"
    status, _, errors = fedskew(
        "predict", digits / "average", tmp_path / "pacs", "--output", output
    )
    assert status == 0, errors
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["PatientID"] for row in rows] == ["", *patients]


def test_a_table_may_ask_for_an_image_twice(digits: Path, tmp_path: Path, fedskew: FedSkew) -> None:
    """Nobody trains on the one row and tests on the other."""
    Image.new("L", (8, 8), 9).save(tmp_path / "a.png")
    (tmp_path / "table.csv").write_text("path,label\na.png,1\na.png,2\n")
    words = ("predict", digits / "average", tmp_path / "table.csv", "--json")
    status, output, errors = fedskew(*words)
    assert status == 0, errors
    assert [row["row"] for row in json.loads(output)["predictions"]] == [2, 3]
