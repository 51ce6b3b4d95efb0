"""`fedskew export`: the files, the card, which model, what is refused; ONNX gives the model's own outputs."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
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
from client_app.models.classifier import in_batches
from data import DataError, Samples, SettingError, federate
from fedskew.export import from_run, onnx_file
from fedskew.export.from_run import TrainedRun, chosen, export
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
            "format": "pt", "fedskew-format": "1", "kind": "model", "run": creff.path.name, "method": "creff",
            "model": wanted, "round": "2", "architecture": "small-cnn", "classes": "0,1,2,3,4,5,6,7,8,9",
            "input-shape": "1x8x8", "mean": "0.5", "std": "0.5", "crop": "none",
        }  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "resnet-8", "width": 8, "method": "fedavg"},
        {"model": "random-conv", "lift": 50, "method": "fed-lda", "rounds": 0},
    ],
    ids=["width", "lift"],
)
def test_the_model_file_says_how_wide_the_model_is(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    config, folder = trained_on_digits(tmp_path, **{"rounds": 1, **settings})  # type: ignore[arg-type]
    model = ModelFolder(exported(folder, tmp_path / "model"))
    ((name, last),) = json.loads(folder.summary_file.read_text())["models"].items()
    federation = federate(config.data, 0)
    test = federation.at("test", federation.global_test, "cpu")
    model.model.load_state_dict(model.shared)
    model.model.eval()
    predicted = in_batches(model.model, test).argmax(1)
    accuracy = (predicted == test.labels_N).double().mean().item()
    assert accuracy == pytest.approx(last["last"]["accuracy"], abs=1e-9), name


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


def test_sites_go_by_their_domain_only_where_it_is_theirs_alone(tmp_path: Path) -> None:
    parts = trained_on_domains(tmp_path, rounds=1, **{"parts-per-domain": 2})[1]
    assert [site.name for site in TrainedRun(parts).sites()] == [
        "bright-0",
        "dark-1",
        "bright-2",
        "dark-3",
    ]
    labels = trained_on_digits(tmp_path / "labels", "fedbn", model="mlp-bn", rounds=1)[1]
    assert [site.name for site in TrainedRun(labels).sites()] == ["0", "1", "2"]


@pytest.mark.parametrize("method", ["silobn", "singleset"])
def test_whatever_sites_keep_completes_the_model(tmp_path: Path, method: str) -> None:
    folder = ModelFolder(
        exported(trained_on_domains(tmp_path, method, rounds=1)[1], tmp_path / "model")
    )
    whole = folder.model.state_dict().keys()
    assert list(folder.sites) == ["bright", "dark"]
    assert all(
        {*folder.shared, *state} == {*whole} and folder.shared.keys().isdisjoint(state)
        for state in folder.sites.values()
    )
    assert (len(folder.shared) == 0) == (method == "singleset")


def test_the_card_is_one(creff: RunFolder, fedbn: RunFolder, tmp_path: Path) -> None:
    card = (exported(creff, tmp_path / "creff") / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    last = json.loads(creff.summary_file.read_text())["models"]["creff"]["last"]
    (result,) = front["model-index"][0]["results"]
    assert result["metrics"][0] == {
        "type": "balanced_accuracy", "value": round(last["balanced-accuracy"], 4), "name": "balanced accuracy"
    }  # fmt: skip
    assert front["pipeline_tag"] == "image-classification" and front["datasets"] == ["digits"]
    assert (
        f"| **creff** | {100 * last['balanced-accuracy']:.1f} |" in card and "| fedavg | " in card
    )
    for words in ("Shang et al., IJCAI 2022", "head gradients of each class held", "lda over 3 clients",
                  "`creff.distance`", "200, by class 20, 20", "torch 2", "## Intended use"):  # fmt: skip
        assert words in card
    assert "not finished" not in card and "site-" not in card and str(creff.path.parent) not in card
    assert "fedskew predict FOLDER images.npz" in card
    card = (exported(fedbn, tmp_path / "fedbn") / "README.md").read_text()
    assert (
        "bright, dark" in card
        and 'load_file("site-bright.safetensors")' in card
        and "--site bright" in card
    )
    assert str(fedbn.path.parent.parent) not in card, "where the files lay is nobody's business"


def test_which_model_is_a_question_only_where_there_are_several() -> None:
    assert chosen(["average"], "") == "average"
    assert chosen(["average", "ccvr"], "") == "ccvr"
    for deployed, model in ((["average", "ccvr", "creff"], ""), (["average", "creff"], "ccvr")):
        with pytest.raises(
            SettingError, match=f"--model = '{model}': must be one of .*: {', '.join(deployed)}"
        ):
            chosen(deployed, model)


def test_damaged_records_are_no_finished_run_s(creff: RunFolder, tmp_path: Path) -> None:
    folder = copied(creff, tmp_path)
    first, second = folder.rounds_file.read_text().splitlines()
    folder.rounds_file.write_text(f"{first}\n{second[:-9]}\n")
    with pytest.raises(
        DataError, match=r"rounds.jsonl is damaged after round 1 \(round 2 of 2\): .* mends it.*"
    ):
        TrainedRun(folder)
    export(TrainedRun(folder, unfinished=True), tmp_path / "model")
    assert "The run was not finished" in (tmp_path / "model" / "README.md").read_text()


def test_without_records_the_card_says_that_there_are_no_numbers(
    creff: RunFolder, tmp_path: Path
) -> None:
    folder = copied(creff, tmp_path)
    folder.rounds_file.unlink()
    with pytest.raises(
        DataError, match=r"rounds.jsonl is missing \(round 2 of 2\): .* mends it.*--unfinished"
    ):
        TrainedRun(folder)
    export(TrainedRun(folder, unfinished=True), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "The run was not finished" in card and "**There are no numbers**" in card
    assert (
        "On the test data" not in card
        and yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"] == []
    )


def copied(folder: RunFolder, place: Path) -> RunFolder:
    """Return a copy of a run's folder, to damage."""
    return RunFolder(Path(shutil.copytree(folder.path, place / folder.path.name)))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda run: cut(run.checkpoint_file),
            r"checkpoint.safetensors is damaged: .*: delete it, and the run's own command makes",
        ),
        (
            lambda run: run.checkpoint_file.unlink(),
            r": checkpoint.safetensors is missing: the run's own command mends it",
        ),
        (
            lambda run: cut(next(run.path.glob("memory/*1/*2.safe*"))),
            r"000002.safetensors is damaged: .*: overwrite = true",
        ),
        (
            lambda run: shutil.rmtree(run.path / "memory"),
            r"^the memory of round 2 is not at .*: overwrite = true repeats",
        ),
        (
            lambda run: (run.rounds_file.unlink(), run.rounds_file.mkdir()),
            r"rounds.jsonl: cannot be read: Is a dir",
        ),
    ],
    ids=["checkpoint cut", "checkpoint lost", "memory cut", "memory lost", "records are a folder"],
)
def test_what_a_run_has_lost_is_one_sentence_and_nothing_is_written(
    fedbn: RunFolder,
    tmp_path: Path,
    harm: Callable[[RunFolder], object],
    sentence: str,
    fedskew: FedSkew,
) -> None:
    run = copied(fedbn, tmp_path)
    harm(run)
    status, out, errors = fedskew("export", run.path, "--output", tmp_path / "model")
    assert status == 2 and out == "" and errors.count("\n") == 1
    assert re.search(sentence, errors.removeprefix("fedskew: ").rstrip())
    assert not (tmp_path / "model").exists()


def settings_told(folder: RunFolder, **samples: object) -> None:
    """Change what settings.json tells of the clients, as by hand."""
    origin = folder.origin()
    folder.settings_file.write_text(
        line_of({**origin, "samples": {**origin["samples"], **samples}})
    )


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a/b", "a\nb", "a\0b"])
def test_a_client_s_name_does_not_lead_out_of_the_folder(
    fedbn: RunFolder, tmp_path: Path, name: str
) -> None:
    run = copied(fedbn, tmp_path / "results")
    settings_told(run, clients=[f"0 {name}", "1 dark"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        DataError, match=r"settings.json: samples: clients: .* is no name of a site"
    ):
        export(TrainedRun(run), tmp_path / "a" / "b" / "model")
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_that_are_no_run_s_are_one_sentence(fedbn: RunFolder, tmp_path: Path) -> None:
    run = copied(fedbn, tmp_path)
    settings_told(run, clients=["0 bright"])
    with pytest.raises(
        DataError, match=r"settings.json: samples: must list every client and its samples"
    ):
        export(TrainedRun(run), tmp_path / "model")
    origin = run.origin()
    run.settings_file.write_text(
        line_of({**origin, "settings": {**origin["settings"], "rounds": "2", "model": None}})
    )
    with pytest.raises(DataError, match=r"settings: model, rounds: is missing or of another type"):
        TrainedRun(run)


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


def test_an_earlier_export_stays_where_the_new_one_is_refused(
    creff: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is not finite, a card or an ONNX graph that cannot be made: nothing is written then."""
    folder, run = exported(creff, tmp_path / "model"), TrainedRun(creff)
    (folder / "model.onnx").write_bytes(b"earlier")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fail(*given: object) -> None:
        raise RuntimeError("in vain")

    for name in ("model_card", "onnx_files"):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="in vain"):
            patch.setattr(from_run, "require_onnx", lambda: None)
            patch.setattr(from_run, name, fail)
            export(run, folder, onnx=True)
    next(iter(run.shared.values())).fill_(torch.nan)
    with pytest.raises(DataError, match=f"{creff.path.name}: cannot be exported.*is not finite"):
        export(run, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_an_unfinished_run_is_exported_only_on_demand_and_says_so(
    creff: RunFolder, tmp_path: Path
) -> None:
    folder = copied(creff, tmp_path)
    folder.summary_file.unlink()
    with pytest.raises(DataError, match=r"is not finished \(round 2 of 2\).*--unfinished"):
        TrainedRun(folder)
    export(TrainedRun(folder, unfinished=True), tmp_path / "model")
    assert "**The run was not finished**" in (tmp_path / "model" / "README.md").read_text()
    folder.checkpoint_file.unlink()
    with pytest.raises(DataError, match="no round of the run is finished"):
        TrainedRun(folder, unfinished=True)
    for nothing in (tmp_path, folder.rounds_file):
        with pytest.raises(DataError, match="is no run's folder"):
            TrainedRun(RunFolder(nothing))


def test_an_earlier_export_is_replaced_and_nothing_else(
    creff: RunFolder, fedbn: RunFolder, tmp_path: Path
) -> None:
    folder = exported(fedbn, tmp_path / "model")
    (folder / "site-old.onnx").write_bytes(b"")
    exported(creff, folder)
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "README.md"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("five years")
    for taken in (tmp_path / "thesis", tmp_path / "thesis" / "thesis.tex"):
        with pytest.raises(SettingError, match="--output"):
            exported(creff, taken)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "five years"


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("earlier", [False, True])
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


def test_every_file_of_an_export_is_for_its_user_alone(
    creff: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card has scores, and ONNX holds the weights that safetensors hold."""
    monkeypatch.setattr(from_run, "require_onnx", lambda: None)
    monkeypatch.setattr(
        from_run, "onnx_files", lambda folder: {folder.path / "model.onnx": b"graph"}
    )
    before = os.umask(0o022)
    try:
        folder = exported(creff, tmp_path / "model", onnx=True)
        (folder / "model.onnx").chmod(0o644)  # as earlier versions left it
        exported(creff, folder, onnx=True)
    finally:
        assert os.umask(before) == 0o022
    modes = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (folder, *folder.iterdir())}
    closed = dict.fromkeys(("README.md", "model.onnx", "model.safetensors"), "600")
    assert modes == {"model": "700", **closed}


def test_onnx_without_its_packages_is_one_sentence(
    creff: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "PACKAGES", ("no_such_package",))
    with pytest.raises(SettingError, match=r"needs no_such_package: pip install 'fedskew\[onnx\]'"):
        exported(creff, tmp_path / "model", onnx=True)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("method", ["creff", "fedbn"])
def test_onnx_gives_the_models_outputs(
    request: pytest.FixtureRequest, tmp_path: Path, method: str, logits: Callable[..., torch.Tensor]
) -> None:
    """For one image and for many, from pixels that are not normalized."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = ModelFolder(exported(request.getfixturevalue(method), tmp_path / "model", onnx=True))
    files = (
        {"": "model.onnx"}
        if method == "creff"
        else {site: f"site-{site}.onnx" for site in ("bright", "dark")}
    )
    assert {file.name for file in folder.path.glob("*.onnx")} == {*files.values()}
    for site, file in files.items():
        session = runtime.InferenceSession(folder.path / file, providers=["CPUExecutionProvider"])
        for count in (1, 5):
            pixels = (
                np.random.default_rng(count).integers(0, 256, (count, 1, 8, 8)).astype(np.uint8)
            )
            (outputs,) = session.run(["logits"], {"pixels": pixels.astype(np.float32) / 255})
            assert np.abs(outputs - logits(folder, site, pixels).numpy()).max() < 1e-5


@pytest.fixture
def logits() -> Callable[..., torch.Tensor]:
    """Return the torch model's logits at a site of uint8 images, normalized as in training."""

    def of(folder: ModelFolder, site: str, pixels: np.ndarray) -> torch.Tensor:
        about, count = folder.description, len(pixels)
        folder.model.load_state_dict({**folder.shared, **folder.sites.get(site, {})})
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (about.means, about.stds))
        samples = Samples(
            torch.from_numpy(pixels), torch.zeros(count, dtype=torch.int64), mean, std
        )
        with torch.no_grad():
            return folder.model.eval()(samples.batch(torch.arange(count)))

    return of
