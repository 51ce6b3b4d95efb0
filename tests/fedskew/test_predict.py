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
from safetensors.torch import save_file

from client_app import tensor_files
from client_app.models import batch_norm_names
from client_app.tensor_files import write_atomically
from data import DataSettings, Samples, load
from fedskew.export.from_run import TrainedRun
from fedskew.export.inputs import read_inputs
from fedskew.export.model_folder import ModelFolder
from fedskew.export.predict import state_at
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


def test_each_sites_numbers_come_back(domains: Path, fedskew: FedSkew) -> None:
    recorded = last_round(domains)["average"]["client-balanced-accuracy"]["values"]  # type: ignore[index]
    assert recorded[0] != recorded[1]
    for site, value in zip(("bright", "dark"), recorded, strict=True):
        words = (
            "predict",
            domains / "model",
            domains / f"inputs-{site}.npz",
            "--site",
            site,
            "--json",
        )
        assert json.loads(fedskew(*words)[1])["metrics"]["balanced-accuracy"] == value


def test_a_local_batch_norm_model_without_a_site_says_what_there_is(
    domains: Path, digits: Path, fedskew: FedSkew
) -> None:
    for words in ((), ("--site", "elsewhere")):
        status, _, errors = fedskew(
            "predict", domains / "model", domains / "inputs-dark.npz", *words
        )
        assert (status, errors.count("\n")) == (2, 1)
        for word in (
            "--site",
            "bright, dark",
            "averaged",
            "re-estimate",
            "nearest",
            "nobody trained with",
        ):
            assert word in errors
    status, _, errors = fedskew(
        "predict", digits / "creff", digits / "test.npz", "--site", "bright"
    )
    assert status == 2 and "has no effect" in errors


def test_a_site_nobody_trained_with(domains: Path, fedskew: FedSkew) -> None:
    """The averaged state by hand, the first layer's statistics in closed form, the nearest site of its own data."""
    folder = ModelFolder(domains / "model")
    inputs = read_inputs(write_inputs(domains, "dark", labeled=False), folder.description)
    assert not inputs.labeled
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
    assert batch_norm_names(folder.model) == folder.private
    for site, kept in folder.sites.items():
        near = state_at(
            folder, read_inputs(domains / f"inputs-{site}.npz", folder.description), "nearest"
        )
        assert all(torch.equal(near[name], tensor) for name, tensor in kept.items())
    for way in ("averaged", "re-estimate", "nearest"):
        status, errors, _ = fedskew(
            "predict", domains / "model", inputs.where, "--site", way, "--json"
        )
        assert status == 0 and json.loads(errors).keys() == {"predictions"}
    np.savez(domains / "one.npz", images=np.zeros((1, 8, 8), np.uint8))
    status, _, errors = fedskew(
        "predict", domains / "model", domains / "one.npz", "--site", "re-estimate"
    )
    assert status == 2 and "two inputs or more" in errors


def test_singleset_has_nothing_for_an_unseen_site(tmp_path: Path, fedskew: FedSkew) -> None:
    folder = exported(trained_on_domains(tmp_path, "singleset", rounds=1)[1], tmp_path / "model")
    file = write_inputs(tmp_path, "dark")
    assert fedskew("predict", folder, file, "--site", "dark")[0] == 0
    status, _, errors = fedskew("predict", folder, file, "--site", "averaged")
    assert status == 2 and "bright, dark" in errors and "nobody" not in errors


def test_folders_of_images_are_read_as_in_training(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    """Resized and turned grey as for dataset = folder:PATH; a flat folder has no labels."""
    draw = np.random.default_rng(0)
    for index in range(24):
        for split in ("train", "test"):
            file = tmp_path / "own" / split / ("cat", "dog")[index % 2] / f"[{index}].png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (11, 9, 3), np.uint8)).save(file)
    renamed = rewritten(digits / "creff", tmp_path / "two", two_classes)
    dataset = load(
        DataSettings(f"folder:{tmp_path / 'own'}", classes="cat,dog", input_shape="1x8x8")
    )
    about = ModelFolder(renamed).description
    inputs = read_inputs(tmp_path / "own" / "test", about)
    assert torch.equal(
        inputs.samples.batch(torch.arange(24)), normalized(np.asarray(dataset.test_inputs))
    )
    assert inputs.samples.labels_N.tolist() == dataset.test_labels.tolist() and inputs.labeled
    flat = read_inputs(tmp_path / "own" / "test" / "dog", about)
    assert torch.equal(
        flat.samples.batch(torch.arange(12)), normalized(np.asarray(dataset.test_inputs)[12:])
    )
    assert not flat.labeled and flat.names == sorted(f"[{index}].png" for index in range(1, 24, 2))
    status, output, _ = fedskew("predict", renamed, tmp_path / "own" / "test")
    assert status == 0
    for word in ("cat/[0].png", "and 4 more", "balanced accuracy", "recall of cat"):
        assert word in output
    status, output, _ = fedskew(
        "predict", renamed, tmp_path / "own" / "test", "--output", tmp_path / "told.csv"
    )
    with (tmp_path / "told.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24 and {"input", "prediction", "probability", "label"} < rows[0].keys()
    assert fedskew("predict", renamed, tmp_path / "own" / "test" / "dog")[1].count("recall") == 0


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tif", ".dcm", ""])
def test_one_image_file_is_predicted_as_in_a_folder_of_it(
    digits: Path, tmp_path: Path, fedskew: FedSkew, suffix: str
) -> None:
    """By what the file is: a name without an ending too."""
    file = tmp_path / "scans" / f"one{suffix}"
    file.parent.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (11, 9), np.uint8)
    if suffix == ".dcm":
        pytest.importorskip("pydicom")
        data = pytest.importorskip("pydicom.data")
        shutil.copy(str(data.get_testdata_file("MR_small.dcm", download=False)), file)
    else:
        Image.fromarray(pixels).save(file, format=None if suffix else "PNG")
    answers = [
        json.loads(fedskew("predict", digits / "average", path, "--json")[1])
        for path in (file, file.parent)
    ]
    assert answers[0] == answers[1] and "metrics" not in answers[0]
    assert [row["input"] for row in answers[0]["predictions"]] == [file.name]
    status, output, _ = fedskew("predict", digits / "average", file)
    assert status == 0 and file.name in output


def test_what_a_file_states_counts_in_a_prediction_as_in_training(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    """An orientation, an affine and a DICOM file without a preamble, each beside the image that it stands for."""
    nibabel, pydicom = pytest.importorskip("nibabel"), pytest.importorskip("pydicom")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    plain, turned = Image.fromarray(pixels), Image.fromarray(np.rot90(pixels).copy())
    plain.save(tmp_path / "plain.png")
    exif = Image.Exif()
    exif[274] = 6
    turned.save(tmp_path / "exif.png", exif=exif)
    left = nibabel.Nifti1Image(np.flipud(np.rot90(pixels, -1)), np.diag([-1, 1, 1, 1]))
    nibabel.save(left, tmp_path / "left.nii")
    data = pydicom.Dataset()
    data.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    data.Rows = data.Columns = data.BitsStored = data.BitsAllocated = 8
    data.SamplesPerPixel, data.PixelRepresentation, data.HighBit = 1, 0, 7
    data.PhotometricInterpretation = "MONOCHROME1"
    data.PixelData = (255 - pixels).tobytes()
    data["PixelData"].VR = "OB"
    pydicom.dcmwrite(tmp_path / "bare.dcm", data, implicit_vr=False, little_endian=True)

    def probabilities(name: str) -> list[float]:
        status, output, errors = fedskew("predict", digits / "average", tmp_path / name, "--json")
        assert status == 0, errors
        return [row["probability"] for row in json.loads(output)["predictions"]]

    expected = probabilities("plain.png")
    for name in ("exif.png", "left.nii", "bare.dcm"):
        assert probabilities(name) == pytest.approx(expected, abs=1e-6)
    turned.save(tmp_path / "other.png")
    assert probabilities("other.png") != pytest.approx(expected, abs=1e-6)


def test_one_file_that_is_no_image_or_a_damaged_one_is_one_sentence(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:40])
    (tmp_path / "note.txt").write_text("see page 3")
    for name, words in (
        ("cut.png", "cannot be read as an image: is a PNG image, damaged"),
        ("note.txt", "cannot be read as an npz file of plain arrays: is text"),
        ("gone.png", "there is no such file"),
    ):
        status, _, errors = fedskew("predict", digits / "average", tmp_path / name)
        assert (status, errors.count("\n")) == (2, 1)
        assert str(tmp_path / name) in errors and words in errors


def normalized(images: np.ndarray) -> torch.Tensor:
    """Return what training makes of uint8 images with mean and std .5."""
    half = torch.full((1, 1, 1), 0.5)
    samples = Samples(
        torch.from_numpy(images.copy()), torch.zeros(len(images), dtype=torch.int64), half, half
    )
    return samples.batch(torch.arange(len(images)))


def rewritten(
    source: Path, target: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]
) -> Path:
    """Copy an export with its model file changed."""
    shutil.copytree(source, target)
    state, metadata = tensor_files.read(source / "model.safetensors")
    change(state, metadata)
    write_atomically(target / "model.safetensors", state, metadata)
    return target


def two_classes(state: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    metadata["classes"] = "cat,dog"
    for name in ("head.weight", "head.bias"):
        state[name] = state[name][:2].clone()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state, errors: errors.update({"classes": "a,b,c"}), ["head.weight", "10x64", "3x64"]),
        (lambda state, errors: errors.update({"classes": "a"}), ["classes = 'a'", "at least two"]),
        (lambda state, errors: errors.update({"input-shape": "1xBx8"}), ["input-shape", "1xBx8"]),
        (lambda state, errors: errors.update({"architecture": "no-such"}), ["architecture = 'no-such'"]),
        (lambda state, errors: errors.update({"mean": "0.5,0.5"}), ["mean = '0.5,0.5'", "1x8x8"]),
        (lambda state, errors: errors.update({"std": "0"}), ["std = '0'"]),
        (lambda state, errors: errors.pop("method"), ["lack method"]),
        (lambda state, errors: errors.update({"fedskew-format": "2"}), ["fedskew-format = '2'"]),
        (lambda state, errors: errors.clear(), ["fedskew-format = None"]),
        (lambda state, errors: state.pop("head.bias"), ["head.bias is missing"]),
        (lambda state, errors: state.update({"tail": torch.ones(1)}), ["'tail' is not expected"]),
        (lambda state, errors: state["head.bias"].fill_(float("nan")), ["head.bias is not finite"]),
        (lambda state, errors: state["head.weight"].fill_(3e38), ["outputs are not finite"]),
    ],
)  # fmt: skip
def test_a_model_that_is_not_in_order(
    digits: Path, tmp_path: Path, fedskew: FedSkew, change, words: list[str]
) -> None:
    folder = rewritten(digits / "creff", tmp_path / "model", change)
    status, _, errors = fedskew("predict", folder, digits / "test.npz")
    assert (status, errors.count("\n")) == (2, 1)
    assert all(word in errors for word in words), errors


def test_broken_files_and_files_of_another_run(
    digits: Path, domains: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    whole = (digits / "creff" / "model.safetensors").read_bytes()
    for name, content in {"cut": whole[:-100], "text": b"no tensors", "empty": b""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    (tmp_path / "nothing").mkdir()
    shutil.copytree(domains / "model", tmp_path / "mixed")
    other = exported(trained_on_domains(tmp_path, rounds=1)[1], tmp_path / "other")
    shutil.copy(other / "site-dark.safetensors", tmp_path / "mixed")
    for name, words in {
        "cut": "model.safetensors is damaged: ",
        "text": "model.safetensors is damaged: ",
        "empty": "model.safetensors is damaged: ",
        "nothing": "holds no model.safetensors",
        "nowhere": "nowhere: there is no such file or folder",
        "mixed": "site-dark.safetensors: is of run",
    }.items():
        status, _, errors = fedskew("predict", tmp_path / name, digits / "test.npz")
        assert (status, errors.count("\n")) == (2, 1) and words in errors


def test_flipped_bits_are_noticed_by_the_checksum(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    shutil.copytree(digits / "creff", tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    content, draws = bytearray(file.read_bytes()), np.random.default_rng(0)
    for place in draws.integers(len(content) // 2, len(content), 40).tolist():
        content[place] ^= 64
    file.write_bytes(content)
    status, out, errors = fedskew("predict", tmp_path / "model", digits / "test.npz")
    assert (status, out, errors.count("\n")) == (
        2,
        "",
        1,
    ) and "is damaged: its checksum is another" in errors


def test_a_site_s_file_is_taken_under_its_own_name_alone(
    domains: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    shutil.copytree(domains / "model", tmp_path / "model")
    site, other = (tmp_path / "model" / f"site-{name}.safetensors" for name in ("bright", "dark"))
    shutil.copy(other, site)
    status, _, errors = fedskew(
        "predict", tmp_path / "model", domains / "inputs-dark.npz", "--site", "dark"
    )
    assert (status, errors.count("\n")) == (
        2,
        1,
    ) and f"{site} is not the file that belongs here: its site" in errors
    shutil.copy(domains / "model" / site.name, tmp_path / "model" / "model.safetensors")
    status, _, errors = fedskew(
        "predict", tmp_path / "model", domains / "inputs-dark.npz", "--site", "dark"
    )
    assert (
        status == 2
        and "model.safetensors is not the file that belongs here: its kind is 'site'" in errors
    )


def test_exports_of_earlier_versions_are_read(domains: Path, tmp_path: Path) -> None:
    """They have no kind, and the first ones no checksum."""
    shutil.copytree(domains / "model", tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors"):
        state, metadata = tensor_files.read(file)
        del metadata["kind"]
        save_file(state, file, metadata)
    assert list(ModelFolder(tmp_path / "model").sites) == ["bright", "dark"]


def test_inputs_that_are_not_in_order(digits: Path, tmp_path: Path, fedskew: FedSkew) -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    arrays = {
        "channels": {"images": np.zeros((4, 8, 8, 4), np.uint8)},
        "words": {"images": images.astype("U1")},
        "scalar": {"images": np.uint8(3)},
        "labels": {"images": images, "labels": np.array([0, 1, 2, 10])},
        "lengths": {"images": images, "labels": np.zeros(3, int)},
        "none": {"images": images[:0]},
        "split": {"test_images": images},
    }
    for name, members in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **members)
    (tmp_path / "empty").mkdir()
    for name in (
        "text/words.txt",
        "mixed/image.png",
        "mixed/cat/image.png",
        "classes/cat/image.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("no image")
    for name, words in {
        "channels.npz": "4 channels cannot become 1",
        "words.npz": "images: dtype <U1",
        "scalar.npz": "images: ",
        "labels.npz": "label 10 of 10 classes at index 3",
        "lengths.npz": "images and labels must be equally long",
        "none.npz": "must hold at least one",
        "split.npz": "images missing; the file holds test_images",
        "empty": "holds no image",
        "text": "cannot be read as an image",
        "mixed": "holds folders and files",
        "classes": "class folders cat are none of",
        "nowhere": "there is no such file",
    }.items():
        status, _, errors = fedskew("predict", digits / "creff", tmp_path / name)
        assert (status, errors.count("\n")) == (2, 1) and words in errors, errors
    np.savez(tmp_path / "large.npz", images=np.zeros((2**15, 8, 8), np.uint8))
    status, _, errors = fedskew(
        "predict", digits / "creff", tmp_path / "large.npz", "--max-unpacked-mib", 1
    )
    assert status == 2 and "more than max-unpacked-mib = 1 allows" in errors
    status, _, errors = fedskew(
        "predict", digits / "creff", digits / "test.npz", "--output", tmp_path / "no" / "file.csv"
    )
    assert status == 2 and "--output" in errors and "cannot be written" in errors


def test_export_by_name_and_by_folder(digits: Path, fedskew: FedSkew) -> None:
    path = Path((digits / "run.txt").read_text())
    status, errors, _ = fedskew("export", path.name, "--results", path.parent)
    assert status == 0 and errors.split() == [
        str(path / "export/creff" / name) for name in ("model.safetensors", "README.md")
    ]
    status, errors, _ = fedskew("export", path, "--model", "average", "--output", digits / "mine")
    assert status == 0 and str(digits / "mine" / "model.safetensors") in errors
    status, _, errors = fedskew("export", "no-such-run", "--results", path.parent)
    assert (status, errors.count("\n")) == (2, 1) and "is no run's folder" in errors
    status, _, errors = fedskew("export", path, "--model", "ccvr")
    assert status == 2 and "average, creff" in errors


def test_what_training_takes_is_taken_with_all_probabilities(
    digits: Path, fedskew: FedSkew, tmp_path: Path
) -> None:
    """The test samples of an npz file of train and test, and of a table, are those of the file of images and labels."""
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:40], arrays["labels"][:40]
    np.savez(
        tmp_path / "trained.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    answers = [json.loads(fedskew("predict", digits / "average", tmp_path / f"{name}.npz", "--json")[1])
               for name in ("trained", "plain")]  # fmt: skip
    assert answers[0]["metrics"] == answers[1]["metrics"] and answers[0]["metrics"]["auroc"] > 0.5
    status, output, _ = fedskew(
        "predict", digits / "average", tmp_path / "trained.npz", "--output", tmp_path / "p.csv"
    )
    assert status == 0 and "AUROC" in output and "How often which class is predicted" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 40 and all(
        row[f"p {row['prediction']}"] == row["probability"] for row in rows
    )
    assert all(sum(float(row[f"p {k}"]) for k in range(10)) == pytest.approx(1) for row in rows)


@pytest.mark.parametrize("kind", ["folder", "csv", "wide"])
def test_images_are_taken_as_training_takes_them(
    digits: Path, fedskew: FedSkew, tmp_path: Path, kind: str
) -> None:
    """train/CLASS and test/CLASS, a table of paths, and 16 bits of which pixel-range says which is white."""
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:30], arrays["labels"][:30]
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    options = []
    if kind == "wide":
        path = tmp_path / "wide.npz"
        np.savez(path, images=images.astype(np.int16) * 16, labels=labels)
        refused = fedskew("predict", digits / "average", path)
        assert refused[0] == 2 and f"--set pixel-range=0,{int(images.max()) * 16}" in refused[2]
        options = ["--set", "pixel-range=0,4080"]
    else:
        path = tmp_path / "scans"
        for side in ("train", "test"):
            for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                (path / side / str(label)).mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path / side / str(label) / f"{number:02}.png")
    if kind == "csv":
        rows = [f"{side}/{label}/{number:02}.png,{label},{side}" for side in ("train", "test")
                for number, label in enumerate(labels.tolist())]  # fmt: skip
        path = path / "table.csv"
        path.write_text("path,finding,split\n" + "\n".join(rows))
        options = ["--set", "columns=label=finding"]
    answers = [json.loads(fedskew("predict", digits / "average", *words, "--json")[1])["metrics"]
               for words in ([path, *options], [tmp_path / "plain.npz"])]  # fmt: skip
    assert answers[0]["accuracy"] == answers[1]["accuracy"] > 0.1
    assert answers[0]["auroc"] == pytest.approx(answers[1]["auroc"], abs=1e-9)


def test_a_model_says_how_its_inputs_were_read(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    run = TrainedRun(RunFolder(Path((digits / "run.txt").read_text()), moved=True), "average")
    assert "pixel-range" not in run.description.metadata()
    run.settings = {**run.settings, "pixel-range": "0,4080", "first-label": 1}
    metadata = run.description.metadata()
    assert (metadata["pixel-range"], metadata["first-label"]) == ("0,4080", "1")
    model = rewritten(
        digits / "average", tmp_path / "model", lambda state, known: known.update(metadata)
    )
    with np.load(digits / "test.npz") as arrays:
        np.savez(
            tmp_path / "wide.npz",
            images=arrays["images"][:9].astype(np.int16) * 16,
            labels=arrays["labels"][:9] + 1,
        )
    assert fedskew("predict", model, tmp_path / "wide.npz")[0] == 0
    for key, value, words in (
        ("pixel-range", "9,1", "metadata: pixel-range = '9,1': must be LOW,HIGH"),
        ("first-label", "x", "metadata: first-label = 'x': must be an integer"),
    ):
        broken = rewritten(
            model, tmp_path / key, lambda state, known, at=(key, value): known.update([at])
        )
        status, _, errors = fedskew("predict", broken, tmp_path / "wide.npz")
        assert (status, errors.count("\n")) == (2, 1) and words in errors
    for words in (["alpha=1"], ["frame=1", "frame=2"], ["pixel-range=1"]):
        status, _, errors = fedskew(
            "predict", model, tmp_path / "wide.npz", *(w for k in words for w in ("--set", k))
        )
        assert (status, errors.count("\n")) == (2, 1)


def test_class_folders_may_differ_in_capital_letters(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    two = rewritten(digits / "creff", tmp_path / "two", two_classes)
    answers = []
    for folder, names in (("same", ("cat", "dog")), ("other", ("Cat", "DOG"))):
        for number, name in enumerate(names):
            (tmp_path / folder / name).mkdir(parents=True)
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / name / "0.png")
        status, output, errors = fedskew("predict", two, tmp_path / folder, "--json")
        assert status == 0, errors
        answers.append(json.loads(output))
    assert answers[0]["metrics"] == answers[1]["metrics"]
    assert [row["label"] for row in answers[1]["predictions"]] == ["cat", "dog"]
    shutil.copytree(tmp_path / "same" / "cat", tmp_path / "other" / "cat")
    status, _, errors = fedskew("predict", two, tmp_path / "other")
    assert (status, errors.count("\n")) == (2, 1)
    assert "class folders Cat and cat are both called as class cat" in errors


def test_a_dicom_tree_without_class_folders_is_read_with_its_patients(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    pytest.importorskip("pydicom")
    for number in range(3):
        patient = number // 2
        file = tmp_path / "pacs" / f"PAT{patient}" / "ST0" / "SE0" / f"IM{number}"
        write_image(file, number, PatientID=f"id-{patient}")
    (tmp_path / "pacs" / "README").write_text("exported")
    out = tmp_path / "p.csv"
    status, output, errors = fedskew(
        "predict", digits / "average", tmp_path / "pacs", "--output", out
    )
    assert status == 0 and "accuracy" not in output, errors
    assert "predicted without labels" in errors and "3 rows" in errors
    assert "1 file is no DICOM image and left out, such as README" in errors
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["input"] for row in rows] == [
        "PAT0/ST0/SE0/IM0", "PAT0/ST0/SE0/IM1", "PAT1/ST0/SE0/IM2",
    ]  # fmt: skip
    assert [row["PatientID"] for row in rows] == ["id-0", "id-0", "id-1"]


def test_a_dicom_tree_is_predicted_with_the_labels_of_a_table_or_an_element(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    pytest.importorskip("pydicom")
    for number in range(3):
        file = tmp_path / "pacs" / f"PAT{number}" / "ST0" / f"IM{number}"
        write_image(file, number, PatientID=f"id-{number}", StudyID=str(number + 4))
    table, out = tmp_path / "labels.csv", tmp_path / "p.csv"
    table.write_text("PatientID,label\nid-2,6\nid-0,4\n")
    predict = ("predict", digits / "average", tmp_path / "pacs", "--output", out, "--set")
    for labels, expected in ((table, ["4", "", "6"]), ("StudyID", ["4", "5", "6"])):
        status, output, errors = fedskew(*predict, f"labels={labels}")
        assert status == 0 and "accuracy" in output, errors
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert [row["label"] for row in rows] == expected
        assert ("1 of 3 files have no label" in errors) == ("" in expected)
    table.write_text("PatientID,label\nid-2,healthy\n")
    status, _, errors = fedskew(*predict, f"labels={table}")
    assert (status, errors.count("\n")) == (2, 1) and "'healthy'" in errors and "PAT2" in errors
    status, _, errors = fedskew(
        "predict", digits / "average", digits / "test.npz", "--set", f"labels={table}"
    )
    assert (status, errors.count("\n")) == (2, 1) and "labels = " in errors and "DICOM" in errors


@pytest.mark.parametrize("place", ["tree", "labels", "flat"])
def test_a_prediction_leaves_out_the_files_that_training_leaves_out(
    digits: Path, tmp_path: Path, fedskew: FedSkew, place: str
) -> None:
    """A report has no pixels, and a file that is called as a picture is none of an archive's."""
    pytest.importorskip("pydicom")
    archive = tmp_path / "archive"
    series = archive if place == "flat" else archive / "PAT0" / "ST0"
    for number in range(2):
        write_image(series / f"IM{number}", number, PatientID=" id ", StudyID=str(number))
    predict = ["predict", digits / "average", archive, "--json"]
    if place == "labels":
        predict += ["--set", "labels=StudyID"]
    status, before, errors = fedskew(*predict)
    assert status == 0 and "left out" not in errors, errors
    no_pixels = {"Rows": None, "Columns": None, "PixelData": None}
    write_image(series / "SR0001", 7, StudyID="1", **no_pixels)
    write_image(archive / "DICOMDIR", 8, **no_pixels)
    number = "1 file is"
    if place != "flat":
        write_image(series / "IM9.png", 9, StudyID="1")
        number = "2 files are"
    status, after, errors = fedskew(*predict)
    assert status == 0 and f"{number} no DICOM image and left out, such as" in errors, errors
    assert json.loads(after) == json.loads(before)
    rows = json.loads(after)["predictions"]
    assert [row["columns"]["PatientID"] for row in rows] == ["id", "id"]


def test_all_rows_of_a_table_of_images_are_predicted(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:12], arrays["labels"][:12]
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    lines = ["image,patient,finding"]
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,p{number // 2},{label}")
    table = tmp_path / "scans.csv"
    table.write_text("\n".join(lines))
    status, _, errors = fedskew("predict", digits / "average", table)
    assert status == 2 and "--set 'columns=path=NAME'" in errors
    options = ["--set", "columns=path=image,label=finding", "--json"]
    answers = [
        json.loads(fedskew("predict", digits / "average", *words)[1])
        for words in ([table, *options], [tmp_path / "plain.npz", "--json"])
    ]
    assert answers[0]["metrics"] == answers[1]["metrics"]
    rows = answers[0]["predictions"]
    assert [(row["row"], row["input"]) for row in rows] == [(k + 2, f"{k}.png") for k in range(12)]
    assert [row["columns"]["patient"] for row in rows] == [f"p{k // 2}" for k in range(12)]
    status, output, _ = fedskew(
        "predict", digits / "average", table, "--set", "columns=path=image", "--json"
    )
    assert status == 0 and json.loads(output).keys() == {"predictions"}
    table.write_text("\n".join([*lines, ",p9,1"]))
    status, _, errors = fedskew("predict", digits / "average", table, *options)
    assert (status, errors.count("\n")) == (2, 1) and "row 14, column image: is empty" in errors
    assert "medians" not in errors and "--set missing=drop" in errors
    status, output, errors = fedskew(
        "predict", digits / "average", table, *options, "--set", "missing=drop"
    )
    assert status == 0 and "row 14, column image: is empty" in errors
    assert len(json.loads(output)["predictions"]) == 12


def test_all_rows_of_a_saved_data_set_are_predicted(
    digits: Path, tmp_path: Path, fedskew: FedSkew
) -> None:
    datasets = pytest.importorskip("datasets")
    with np.load(digits / "test.npz") as arrays:
        images, labels = arrays["images"][:9], arrays["labels"][:9]
    np.savez(tmp_path / "plain.npz", images=images, labels=labels)
    columns = {"image": [Image.fromarray(image) for image in images], "patient": list("aabbccdde")}
    types = {"image": datasets.Image(), "patient": datasets.Value("string")}
    for name in ("without", "with"):
        if name == "with":
            columns["label"] = [str(label) for label in labels.tolist()]
            types["label"] = datasets.Value("string")
        saved = datasets.Dataset.from_dict(columns, features=datasets.Features(types))
        saved.save_to_disk(tmp_path / name)
    answers = {}
    for name in ("without", "with", "plain.npz"):
        status, output, errors = fedskew("predict", digits / "average", tmp_path / name, "--json")
        assert status == 0, errors
        answers[name] = json.loads(output)
    assert answers["without"].keys() == {"predictions"}
    assert answers["with"]["metrics"] == answers["plain.npz"]["metrics"]
    rows = answers["without"]["predictions"]
    assert [row["columns"]["patient"] for row in rows] == list("aabbccdde")
    assert rows[8]["input"] == "row 8 (from 0) of split train"
