"""`fedskew export`: the files, the card, which model, what is refused; ONNX gives the model's own outputs."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from exported_models import exported
from safetensors import safe_open
from safetensors.torch import load_file

from client_app.memory import folder_of
from client_app.memory import load as load_memory
from client_app.models import batch_norm_names, build
from data import DataError, SettingError
from fedskew.export import from_run
from fedskew.export.from_run import TrainedRun, export
from fedskew.export.model_folder import ModelFolder
from server_app.checkpoint import Checkpoint
from server_app.run_folder import RunFolder, line_of
from strategies.core.server import Diverged


def test_the_model_file_is_the_deployed_state_and_says_what_it_is(creff, tmp_path):
    deployed = Checkpoint.load(creff.checkpoint_file).deployed
    for model, wanted in {"": "creff", "average": "average", "creff": "creff"}.items():
        folder = exported(creff, tmp_path / f"model-{model}", model)
        assert {file.name for file in folder.iterdir()} == {"model.safetensors", "README.md"}
        state = load_file(folder / "model.safetensors")
        assert state.keys() == deployed[wanted].keys()
        assert all(torch.equal(tensor, deployed[wanted][name]) for name, tensor in state.items())
        build("small-cnn", (1, 8, 8), 10, 0).load_state_dict(state)
        with safe_open(folder / "model.safetensors", "pt") as file:
            metadata = file.metadata()
        assert metadata.pop("checksum")
        assert metadata == {
            "format": "pt", "kind": "model", "run": creff.path.name, "method": "creff",
            "model": wanted, "round": "2", "architecture": "small-cnn", "classes": "0,1,2,3,4,5,6,7,8,9",
            "input-shape": "1x8x8", "mean": "0.5", "std": "0.5", "crop": "none",
        }  # fmt: skip


def test_each_site_has_a_file_of_what_it_keeps(fedbn, tmp_path):
    folder, checkpoint = exported(fedbn, tmp_path / "model"), Checkpoint.load(fedbn.checkpoint_file)
    names = batch_norm_names(build("mlp-bn", (1, 8, 8), 4, 0))
    assert load_file(folder / "model.safetensors").keys().isdisjoint(names)
    for client, site in enumerate(("bright", "dark")):
        state = load_file(folder / f"site-{site}.safetensors")
        memory = load_memory(folder_of(fedbn.path, client), checkpoint.memory_rounds[client])
        assert state.keys() == memory["private"].keys() == names
        assert all(torch.equal(tensor, memory["private"][name]) for name, tensor in state.items())
    assert ModelFolder(folder).samples == {"bright": 40, "dark": 40}


def test_the_card_has_the_run_s_numbers_its_paper_and_what_left_the_sites(creff, fedbn, tmp_path):
    card = (exported(creff, tmp_path / "creff") / "README.md").read_text()
    last = json.loads(creff.summary_file.read_text())["models"]["creff"]["last"]
    score = last["balanced-accuracy"]
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["pipeline_tag"] == "image-classification" and "creff" in front["tags"]
    assert f"| **creff** | {100 * score:.1f} |" in card and "| fedavg | " in card
    for words in ("Shang et al., IJCAI 2022", "head gradients of each class held"):
        assert words in card
    assert "not finished" not in card and str(creff.path.parent) not in card
    card = (exported(fedbn, tmp_path / "fedbn") / "README.md").read_text()
    assert "--site bright" in card and "On the test data" in card
    assert str(fedbn.path.parent.parent) not in card, "where the files lay is nobody's business"


@pytest.mark.parametrize("name", ["creff", "fedbn"])
def test_the_card_s_lines_load_the_model(name, request, tmp_path):
    folder = exported(request.getfixturevalue(name), tmp_path / "model")
    card = (folder / "README.md").read_text()
    lines = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(folder))
    names = {}
    exec(lines, names)
    state = names["model"].state_dict()
    of_site = load_file(folder / "site-bright.safetensors") if name == "fedbn" else {}
    for key, tensor in (load_file(folder / "model.safetensors") | of_site).items():
        assert torch.equal(state.pop(key), tensor)
    assert not state


def copied(folder, place):
    """Return a copy of a run's folder, to damage."""
    return RunFolder(Path(shutil.copytree(folder.path, place / folder.path.name)))


def cut(file):
    """Leave the first half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_the_numbers_are_those_of_the_checkpoints_round(creff, tmp_path):
    """A run that is killed may have the record of a round whose checkpoint is not written."""
    folder = copied(creff, tmp_path)
    folder.summary_file.unlink()
    lines = folder.rounds_file.read_text().splitlines()
    later = json.loads(lines[-1])
    later["round"] += 1
    later["models"]["creff"]["balanced-accuracy"] = 0.125
    del later["checksum"]
    with folder.rounds_file.open("a") as file:
        file.write(line_of(later))
    finished, unfinished = TrainedRun(creff), TrainedRun(folder, unfinished=True)
    assert unfinished.models["creff"].means == finished.models["creff"].means


HARMS = {
    "no summary": lambda run: run.summary_file.unlink(),
    "no records": lambda run: run.rounds_file.unlink(),
    "records cut": lambda run: cut(run.rounds_file),
}


@pytest.mark.parametrize("harm", HARMS)
def test_an_unfinished_run_is_exported_only_on_demand_and_says_so(creff, tmp_path, harm):
    folder = copied(creff, tmp_path)
    HARMS[harm](folder)
    with pytest.raises(DataError):
        TrainedRun(folder)
    export(TrainedRun(folder, unfinished=True), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "**The run was not finished**" in card


def test_a_diverged_run_says_so_and_what_is_left(creff, tmp_path, fedskew):
    run = copied(creff, tmp_path)
    run.summary_file.unlink()
    run.write_divergence(Diverged(3, "loss is not finite"), 5.0)
    words = ("export", run.path, "--output", tmp_path / "model")
    status, out, errors = fedskew(*words)
    assert (status, out) == (2, "") and "diverged in round 3: loss is not finite" in errors
    assert "--unfinished" in errors and fedskew(*words, "--unfinished")[0] == 0
    run.checkpoint_file.unlink()
    status, _, errors = fedskew(*words, "--unfinished")
    assert status == 2 and "no round before it can be exported" in errors


LOSSES = {
    "checkpoint.safetensors is damaged": lambda run: cut(run.checkpoint_file),
    "checkpoint.safetensors": lambda run: run.checkpoint_file.unlink(),
    "2.safetensors is damaged": lambda run: cut(next(run.path.glob("memory/*1/*2.safe*"))),
    "the memory of round 2 is not at ": lambda run: shutil.rmtree(run.path / "memory"),
}


@pytest.mark.parametrize("words", LOSSES)
def test_what_a_run_has_lost_is_one_sentence_and_nothing_is_written(
    fedbn, tmp_path, words, fedskew
):
    run = copied(fedbn, tmp_path)
    LOSSES[words](run)
    for more in ([], ["--unfinished"]):
        status, out, errors = fedskew("export", run.path, "--output", tmp_path / "model", *more)
        assert (status, out, errors.count("\n")) == (2, "", 1) and words in errors
    assert not (tmp_path / "model").exists()


def named(fedbn, place, client, **settings):
    """Return a copy of a run whose settings.json has another name of client 0, and other settings, as by hand."""
    run = copied(fedbn, place)
    origin = run.origin()
    samples = {**origin["samples"], "clients": [f"0 {client}", "1 dark"]}
    told = {**origin, "samples": samples, "settings": {**origin["settings"], **settings}}
    run.settings_file.write_text(line_of(told))
    return run


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a\0b"])
def test_a_client_s_name_does_not_lead_out_of_the_folder(fedbn, tmp_path, name):
    run = named(fedbn, tmp_path / "results", name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError):
        export(TrainedRun(run), tmp_path / "a" / "b" / "model")
    assert sorted(tmp_path.rglob("*")) == before


def test_names_are_text_in_the_card(fedbn, tmp_path):
    classes = "<script>b(1),*c*,|d|,e"
    run = named(fedbn, tmp_path, "<script>a(1)<|script>", classes=classes)
    card = (exported(run, tmp_path / "model") / "README.md").read_text()
    prose = "".join(card.split("---\n", 2)[2].split("```")[::2])
    assert "<script" not in prose and r"&lt;script>b(1), \*c\*, \|d\|, e |" in prose
    assert "--site '<script>a(1)<|script>'" in card


def test_an_earlier_export_is_replaced_and_nothing_else(creff, fedbn, tmp_path):
    folder = exported(fedbn, tmp_path / "model")
    (folder / "model.onnx").write_bytes(b"")
    exported(creff, folder)
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "README.md"}
    thesis = tmp_path / "thesis" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("five years")
    for taken in (thesis.parent, thesis):
        with pytest.raises(SettingError) as caught:
            exported(creff, taken)
        assert caught.value.key == "--output"
    assert thesis.read_text() == "five years"


@pytest.mark.parametrize(("place", "earlier"), [(0, False), (2, True), (3, True)])
def test_an_export_that_was_killed_can_be_repeated(fedbn, tmp_path, monkeypatch, place, earlier):
    """Killed when it is about to put its file number `place` in its place."""
    folder, real, replaced = tmp_path / "model", Path.replace, []
    if earlier:
        exported(fedbn, folder)

    def replace(partial, target):
        if len(replaced) == place:
            # The partial file of a process that is gone.
            shutil.copy(partial, partial.with_name(partial.name + "0"))
            raise KeyboardInterrupt
        replaced.append(target)
        return real(partial, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            exported(fedbn, folder)
    exported(fedbn, folder)
    assert list(ModelFolder(folder).sites) == ["bright", "dark"]


def test_every_file_of_an_export_is_for_its_user_alone(creff, tmp_path):
    before = os.umask(0o022)
    try:
        folder = exported(creff, tmp_path / "model")
    finally:
        assert os.umask(before) == 0o022
    modes = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (folder, *folder.iterdir())}
    assert modes == {"model": "700", "README.md": "600", "model.safetensors": "600"}


def test_onnx_without_its_packages_is_one_sentence(creff, tmp_path, monkeypatch):
    monkeypatch.setattr(from_run, "ONNX_PACKAGES", ("no_such_package",))
    with pytest.raises(SettingError):
        exported(creff, tmp_path / "model", onnx=True)
    assert not (tmp_path / "model").exists()


def test_onnx_gives_the_model_s_outputs(creff, fedbn, tmp_path):
    """From pixels that are not normalized."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = ModelFolder(exported(creff, tmp_path / "model", onnx=True))
    about = folder.description
    mean, std = about.scale()
    pixels = torch.rand(5, *about.shape)
    file = folder.path / "model.onnx"
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(["logits"], {"pixels": pixels.numpy()})
    folder.model.load_state_dict(folder.shared)
    with torch.no_grad():
        logits = folder.model.eval()((pixels - mean) / std)
    assert (torch.from_numpy(outputs) - logits).abs().max() < 1e-5
    with pytest.raises(SettingError):
        exported(fedbn, tmp_path / "of sites", onnx=True)
