"""`fedskew predict`: a run's own numbers come back to the last digit, and bad input is one sentence."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from dicom_files import write_image
from exported_models import CREFF, exported, trained_on_domains, write_inputs, write_test_set
from PIL import Image

from client_app import tensor_files
from client_app.tensor_files import write_atomically
from fedskew.export.from_run import TrainedRun
from fedskew.export.model_folder import ModelFolder
from fedskew.export.predict import read_inputs, state_at


@pytest.fixture(scope="module")
def digits(creff, tmp_path_factory):
    """A folder with the CReFF run's exports `average` and `creff`, and its test set `test.npz`."""
    root = tmp_path_factory.mktemp("digits")
    for model in ("average", "creff"):
        exported(creff, root / model, model)
    write_test_set(CREFF, root / "test.npz")
    return root


@pytest.fixture(scope="module")
def sites(fedbn, tmp_path_factory):
    """A folder with the FedBN run's export `model`, and the test set of its site `dark`."""
    root = tmp_path_factory.mktemp("domains")
    exported(fedbn, root / "model")
    write_inputs(fedbn.path.parents[1], "dark").rename(root / "dark.npz")
    write_inputs(fedbn.path.parents[1], "dark", labeled=False).rename(root / "unlabeled.npz")
    return root


@pytest.fixture
def answer(fedskew):
    """Return a function that returns the JSON of predictions."""

    def predict(*words):
        status, output, errors = fedskew("predict", *words, "--json")
        assert status == 0, errors
        return json.loads(output)

    return predict


@pytest.fixture
def refusal(fedskew):
    """Return a function that returns the sentence of a refusal."""

    def refused(*words):
        status, output, errors = fedskew("predict", *words)
        assert (status, output, errors.count("\n")) == (2, "", 1), errors
        return errors

    return refused


def last_round(run):
    """Return the recorded numbers of the last round, by deployed model."""
    return run.rounds()[-1].to_json()["models"]


@pytest.mark.parametrize("model", ["average", "creff"])
def test_the_runs_numbers_come_back(creff, digits, answer, model):
    found, recorded = answer(digits / model, digits / "test.npz"), last_round(creff)[model]
    assert len(found["predictions"]) == 360
    for key in ("accuracy", "balanced-accuracy", "macro-f1", "recall"):
        assert found["metrics"][key] == recorded[key]
    # A sum, here in another order.
    assert found["metrics"]["loss"] == pytest.approx(recorded["loss"], rel=1e-12)
    right = [row["prediction"] == row["label"] for row in found["predictions"]]
    assert np.mean(right) == pytest.approx(recorded["accuracy"], abs=1e-12)
    assert all(0.1 <= row["probability"] <= 1 for row in found["predictions"])


def test_a_local_batch_norm_model_without_a_site_says_what_there_is(sites, digits, refusal):
    for words in ((), ("--site", "elsewhere")):
        sentence = refusal(sites / "model", sites / "dark.npz", *words)
        assert all(word in sentence for word in ("bright, dark", "averaged", "re-estimate"))
    sentence = refusal(digits / "creff", digits / "test.npz", "--site", "bright")
    assert "has no effect" in sentence


def test_a_site_nobody_trained_with(sites, answer, refusal, tmp_path):
    """The averaged state by hand, the first layer's statistics in closed form."""
    folder = ModelFolder(sites / "model")
    inputs = read_inputs(sites / "unlabeled.npz", folder.description)
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
    assert answer(sites / "model", inputs.where, "--site", "averaged").keys() == {"predictions"}
    np.savez(tmp_path / "one.npz", images=np.zeros((1, 8, 8), np.uint8))
    sentence = refusal(sites / "model", tmp_path / "one.npz", "--site", "re-estimate")
    assert "two inputs or more" in sentence


def rewritten(source, target, change):
    """Copy an export with its model file changed."""
    shutil.copytree(source, target)
    state, metadata = tensor_files.read(source / "model.safetensors")
    change(state, metadata)
    write_atomically(target / "model.safetensors", state, metadata)
    return target


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state, known: known.update({"classes": "a,b,c"}), "head.weight"),
        (lambda state, known: known.update({"input-shape": "1xBx8"}), "1xBx8"),
        (lambda state, known: known.update({"architecture": "no-such"}), "architecture"),
        (lambda state, known: known.update({"std": "0"}), "std = '0'"),
        (lambda state, known: known.update({"pixel-range": "9,1"}), "pixel-range = '9,1'"),
        (lambda state, known: known.pop("method"), "lack method"),
        (lambda state, known: state.pop("head.bias"), "head.bias is missing"),
        (lambda state, known: state.update({"tail": torch.ones(1)}), "'tail' is not expected"),
        (lambda state, known: state["head.bias"].fill_(torch.nan), "head.bias is not finite"),
        (lambda state, known: state["head.weight"].fill_(3e38), "outputs are not finite"),
    ],
)
def test_a_model_that_is_not_in_order(digits, tmp_path, refusal, change, words):
    folder = rewritten(digits / "creff", tmp_path / "model", change)
    assert words in refusal(folder, digits / "test.npz")


def test_damaged_files_and_files_of_another_run_are_one_sentence(digits, sites, tmp_path, refusal):
    whole = (digits / "creff" / "model.safetensors").read_bytes()
    middle = len(whole) * 3 // 4
    flipped = whole[:middle] + bytes([whole[middle] ^ 64]) + whole[middle + 1 :]
    for name, content in {"cut": whole[:-100], "flipped": flipped}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    other = exported(trained_on_domains(tmp_path, rounds=1), tmp_path / "other")
    for name, source, target in (
        ("mixed", other / "site-dark.safetensors", "site-dark.safetensors"),
        ("no model", sites / "model/site-dark.safetensors", "model.safetensors"),
    ):
        shutil.copytree(sites / "model", tmp_path / name)
        shutil.copy(source, tmp_path / name / target)
    for name, words in {
        "cut": "model.safetensors is damaged: ",
        "flipped": "is damaged: its checksum is another",
        "mixed": "site-dark.safetensors: is of another run",
        "no model": "model.safetensors is not the file that belongs here: its kind",
        ".": "holds no model.safetensors",
    }.items():
        assert words in refusal(tmp_path / name, digits / "test.npz"), name


def test_inputs_that_are_not_in_order(digits, tmp_path, refusal):
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
        assert words in refusal(digits / "creff", tmp_path / name), name


def test_a_table_of_predictions_has_every_probability(digits, tmp_path, fedskew, refusal):
    words = (digits / "average", digits / "test.npz", "--output")
    status, output, _ = fedskew("predict", *words, tmp_path / "p.csv")
    assert status == 0 and "AUROC" in output and "balanced accuracy" in output
    assert f"and 340 more in {tmp_path / 'p.csv'}" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 360
    for row in rows:
        assert row[f"p {row['prediction']}"] == row["probability"]
        assert sum(float(row[f"p {k}"]) for k in range(10)) == pytest.approx(1)
    sentence = refusal(*words, tmp_path / "no" / "file.csv")
    assert "--output" in sentence and "cannot be written" in sentence


def test_inputs_are_taken_as_training_takes_them(digits, answer, tmp_path):
    """As train/CLASS and test/CLASS, and as a table of paths."""
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:30], arrays["labels"][:30]
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    scans, table = tmp_path / "scans", tmp_path / "scans" / "table.csv"
    rows = ["path,finding,split"]
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        for side in ("train", "test"):
            file = f"{side}/{label}/{number:02}.png"
            (scans / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(scans / file)
            rows.append(f"{file},{label},{side}")
    plain = answer(digits / "average", tmp_path / "plain.npz")["metrics"]
    of_folder = answer(digits / "average", scans)["metrics"]
    table.write_text("\n".join(rows))
    of_table = answer(digits / "average", table, "--set", "columns=label=finding")["metrics"]
    for found in (of_folder, of_table):
        assert found["accuracy"] == plain["accuracy"] > 0.1
        assert found["auroc"] == pytest.approx(plain["auroc"], abs=1e-9)


def test_a_model_says_how_its_inputs_were_read(creff, digits, tmp_path, answer):
    run = TrainedRun(creff, "average")
    assert "pixel-range" not in run.description.metadata()
    run.settings = {**run.settings, "pixel-range": "0,4080"}
    stated = run.description.metadata()
    model = rewritten(digits / "average", tmp_path / "model", lambda _, known: known.update(stated))
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"].astype(np.int16) * 16, arrays["labels"]
    np.savez(tmp_path / "wide.npz", images=images, labels=labels)
    found = answer(model, tmp_path / "wide.npz")["metrics"]
    assert found["accuracy"] == last_round(creff)["average"]["accuracy"]


def test_a_dicom_tree_is_predicted_with_its_patients(digits, tmp_path, fedskew, answer):
    pytest.importorskip("pydicom")
    tree = tmp_path / "pacs"
    for number in range(3):
        write_image(tree / f"PAT{number}/ST0/IM{number}", number, PatientID=f"id-{number}")
    found = answer(digits / "average", tree)
    assert found.keys() == {"predictions"}
    patients = [row["columns"]["PatientID"] for row in found["predictions"]]
    assert patients == ["id-0", "id-1", "id-2"]

    write_image(tree / "A" / "IM0", 0, PatientID=None)  # the first file names nobody
    output = tmp_path / "p.csv"
    status, _, errors = fedskew("predict", digits / "average", tree, "--output", output)
    assert status == 0, errors
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["PatientID"] for row in rows] == ["", *patients]


def test_a_table_may_ask_for_an_image_twice(digits, tmp_path, answer):
    """Nobody trains on the one row and tests on the other."""
    Image.new("L", (8, 8), 9).save(tmp_path / "a.png")
    (tmp_path / "table.csv").write_text("path,label\na.png,1\na.png,2\n")
    found = answer(digits / "average", tmp_path / "table.csv")
    assert [row["row"] for row in found["predictions"]] == [2, 3]
