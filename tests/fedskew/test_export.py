"""`fedskew export`: the files, the card, which model, what is refused; ONNX gives the model's own outputs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from command_line import FedSkew
from exported_models import exported, trained_on_digits, trained_on_domains
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


@pytest.fixture(scope="module")
def creff(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_on_digits(tmp_path_factory.mktemp("creff"))[1]


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_on_domains(tmp_path_factory.mktemp("fedbn"))[1]


def test_the_model_file_is_the_deployed_state_and_says_what_it_is(
    creff: RunFolder, tmp_path: Path
) -> None:
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


def test_each_site_has_a_file_of_what_it_keeps(fedbn: RunFolder, tmp_path: Path) -> None:
    folder, checkpoint = exported(fedbn, tmp_path / "model"), Checkpoint.load(fedbn.checkpoint_file)
    names = batch_norm_names(build("mlp-bn", (1, 8, 8), 4, 0))
    assert load_file(folder / "model.safetensors").keys().isdisjoint(names)
    for client, name in enumerate(("bright", "dark")):
        state = load_file(folder / f"site-{name}.safetensors")
        kept = load_memory(folder_of(fedbn.path, client), checkpoint.memory_rounds[client])[
            "private"
        ]
        assert state.keys() == kept.keys() == names
        assert all(torch.equal(tensor, kept[tensor_name]) for tensor_name, tensor in state.items())
    assert ModelFolder(folder).samples == {"bright": 40, "dark": 40}


def test_the_card_has_the_run_s_numbers_its_paper_and_what_left_the_sites(
    creff: RunFolder, fedbn: RunFolder, tmp_path: Path
) -> None:
    card = (exported(creff, tmp_path / "creff") / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    score = json.loads(creff.summary_file.read_text())["models"]["creff"]["last"][
        "balanced-accuracy"
    ]
    assert front["pipeline_tag"] == "image-classification" and "creff" in front["tags"]
    assert f"| **creff** | {100 * score:.1f} |" in card and "| fedavg | " in card
    for words in ("Shang et al., IJCAI 2022", "head gradients of each class held"):
        assert words in card
    assert "not finished" not in card and str(creff.path.parent) not in card
    card = (exported(fedbn, tmp_path / "fedbn") / "README.md").read_text()
    assert 'load_file("site-bright.safetensors")' in card and "--site bright" in card
    assert str(fedbn.path.parent.parent) not in card, "where the files lay is nobody's business"


def test_the_numbers_are_those_of_the_checkpoints_round(creff: RunFolder, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: run.summary_file.unlink(),
        lambda run: run.rounds_file.unlink(),
        lambda run: cut(run.rounds_file),
    ],
    ids=["no summary", "no records", "records cut"],
)
def test_an_unfinished_run_is_exported_only_on_demand_and_says_so(
    creff: RunFolder, tmp_path: Path, harm: Callable[[RunFolder], object]
) -> None:
    folder = copied(creff, tmp_path)
    harm(folder)
    with pytest.raises(DataError):
        TrainedRun(folder)
    export(TrainedRun(folder, unfinished=True), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "**The run was not finished**" in card
    folder.checkpoint_file.unlink()
    with pytest.raises(DataError):
        TrainedRun(folder, unfinished=True)


def copied(folder: RunFolder, place: Path) -> RunFolder:
    """Return a copy of a run's folder, to damage."""
    return RunFolder(Path(shutil.copytree(folder.path, place / folder.path.name)))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda run: cut(run.checkpoint_file), "checkpoint.safetensors is damaged"),
        (lambda run: run.checkpoint_file.unlink(), "checkpoint.safetensors"),
        (lambda run: cut(next(run.path.glob("memory/*1/*2.safe*"))), "2.safetensors is damaged"),
        (lambda run: shutil.rmtree(run.path / "memory"), "the memory of round 2 is not at "),
    ],
    ids=["checkpoint cut", "checkpoint lost", "memory cut", "memory lost"],
)
def test_what_a_run_has_lost_is_one_sentence_and_nothing_is_written(
    fedbn: RunFolder,
    tmp_path: Path,
    harm: Callable[[RunFolder], object],
    words: str,
    fedskew: FedSkew,
) -> None:
    run = copied(fedbn, tmp_path)
    harm(run)
    status, out, errors = fedskew("export", run.path, "--output", tmp_path / "model")
    assert (status, out, errors.count("\n")) == (2, "", 1) and words in errors
    assert not (tmp_path / "model").exists()


def settings_told(folder: RunFolder, **samples: object) -> None:
    """Change what settings.json tells of the clients, as by hand."""
    origin = folder.origin()
    folder.settings_file.write_text(
        line_of({**origin, "samples": {**origin["samples"], **samples}})
    )


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a\0b"])
def test_a_client_s_name_does_not_lead_out_of_the_folder(
    fedbn: RunFolder, tmp_path: Path, name: str
) -> None:
    run = copied(fedbn, tmp_path / "results")
    settings_told(run, clients=[f"0 {name}", "1 dark"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError):
        export(TrainedRun(run), tmp_path / "a" / "b" / "model")
    assert sorted(tmp_path.rglob("*")) == before


def test_names_are_text_in_the_card(fedbn: RunFolder, tmp_path: Path) -> None:
    run = copied(fedbn, tmp_path)
    settings_told(run, clients=["0 <script>a(1)<|script>", "1 dark"])
    origin = run.origin()
    classes = "<script>b(1),*c*,|d|,e"
    run.settings_file.write_text(
        line_of({**origin, "settings": {**origin["settings"], "classes": classes}})
    )
    card = (exported(run, tmp_path / "model") / "README.md").read_text()
    prose = "".join(
        part
        for number, part in enumerate(card.split("---\n", 2)[2].split("```"))
        if number % 2 == 0
    )
    assert "<script" not in prose and r"&lt;script>b(1), \*c\*, \|d\|, e |" in prose
    assert "--site '<script>a(1)<|script>'" in card


def cut(file: Path) -> None:
    """Leave the first half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_an_earlier_export_is_replaced_and_nothing_else(
    creff: RunFolder, fedbn: RunFolder, tmp_path: Path
) -> None:
    folder = exported(fedbn, tmp_path / "model")
    (folder / "model.onnx").write_bytes(b"")
    exported(creff, folder)
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "README.md"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("five years")
    for taken in (tmp_path / "thesis", tmp_path / "thesis" / "thesis.tex"):
        with pytest.raises(SettingError) as caught:
            exported(creff, taken)
        assert caught.value.key == "--output"
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "five years"


@pytest.mark.parametrize(("place", "earlier"), [(0, False), (2, True), (3, True)])
def test_an_export_that_was_killed_can_be_repeated(
    fedbn: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, earlier: bool
) -> None:
    """Killed when it is about to put its file number `place` in its place."""
    folder, real, replaced = tmp_path / "model", Path.replace, list[Path]()
    if earlier:
        exported(fedbn, folder)

    def replace(partial: Path, target: Path) -> Path:
        if len(replaced) == place:
            shutil.copy(
                partial, partial.with_name(partial.name + "0")
            )  # the partial file of a process that is gone
            raise KeyboardInterrupt
        replaced.append(target)
        return real(partial, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            exported(fedbn, folder)
    exported(fedbn, folder)
    assert list(ModelFolder(folder).sites) == ["bright", "dark"]


def test_every_file_of_an_export_is_for_its_user_alone(creff: RunFolder, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = exported(creff, tmp_path / "model")
    finally:
        assert os.umask(before) == 0o022
    modes = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (folder, *folder.iterdir())}
    assert modes == {"model": "700", "README.md": "600", "model.safetensors": "600"}


def test_onnx_without_its_packages_is_one_sentence(
    creff: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_run, "ONNX_PACKAGES", ("no_such_package",))
    with pytest.raises(SettingError):
        exported(creff, tmp_path / "model", onnx=True)
    assert not (tmp_path / "model").exists()


def test_onnx_gives_the_model_s_outputs(creff: RunFolder, fedbn: RunFolder, tmp_path: Path) -> None:
    """From pixels that are not normalized."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = ModelFolder(exported(creff, tmp_path / "model", onnx=True))
    about = folder.description
    mean, std = about.scale()
    pixels = torch.rand(5, *about.shape)
    session = runtime.InferenceSession(
        folder.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (outputs,) = session.run(["logits"], {"pixels": pixels.numpy()})
    folder.model.load_state_dict(folder.shared)
    with torch.no_grad():
        logits = folder.model.eval()((pixels - mean) / std)
    assert (torch.from_numpy(outputs) - logits).abs().max() < 1e-5
    with pytest.raises(SettingError):
        exported(fedbn, tmp_path / "of sites", onnx=True)
