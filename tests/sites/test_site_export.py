"""`fedskew-site export`: what all share and what a site keeps are the model that the site was measured with."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from client_app.memory import KEPT, folder_of
from client_app.state import digest
from client_app.tensor_files import KIND, read, write_atomically
from data import DataError, DataSettings, SettingError
from fedskew.engines import Resources, execute
from fedskew.export.from_run import TrainedRun, export
from fedskew.export.model_folder import ModelFolder
from fedskew.export.predict import predict, read_inputs
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder
from server_app.settings import parse
from site_agent.cli import main
from site_agent.config import read_site
from site_agent.export import export as join
from tests.site_files import site_folders

Trained = tuple[Path, RunFolder, Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return the sites' folders, the finished run of FedBN, and what the coordinator exports of it."""
    root = tmp_path_factory.mktemp("federation")
    folder = site_folders(root / "sites")
    settings = parse({"dataset": f"sites:{folder}/federation.toml", "results": str(root), "method": "fedshift+fedbn",
                      "model": "mlp-bn", "rounds": 1, "batch-size": 8, "device": "cpu"})  # fmt: skip
    execute(settings, Resources("inprocess"), lambda line: None, sites=str(folder))
    run = RunFolder(settings.folder)
    export(TrainedRun(run), root / "shared")
    return folder, run, root / "shared"


def at(model: Path, data: Path) -> ModelNumbers | None:
    """Return what a model's folder says of a site's test set."""
    folder = ModelFolder(model)
    return predict(folder, read_inputs(data, folder.description, "cpu", DataSettings()))[1]


def test_a_site_joins_the_model_that_it_was_measured_with(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites, run, shared = trained
    accuracies = run.rounds()[-1].models["average"].spreads["client-accuracy"].values
    for number, name in enumerate(("north", "east")):
        monkeypatch.chdir(sites / name)
        monkeypatch.setattr(
            sys, "argv", ["fedskew-site", "export", str(shared), str(tmp_path / name)]
        )
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        numbers = at(tmp_path / name, sites / name / "data.npz")
        assert numbers is not None and numbers["accuracy"] == accuracies[number]
    north, east = (load_file(tmp_path / name / "model.safetensors") for name in ("north", "east"))
    assert digest([north]) != digest([east])


def test_the_joined_model_reads_as_the_site_does(trained: Trained, tmp_path: Path) -> None:
    sites, _, shared = trained
    reading = DataSettings(pixel_range="0,255", frame="middle")
    join(
        read_site(sites / "north/site.toml").model_copy(update={"reading": reading}),
        shared,
        tmp_path,
    )
    read_by = ModelFolder(tmp_path).description.data
    assert (read_by.pixel_range, read_by.frame, read_by.columns) == ("0,255", "middle", "")


def test_what_the_coordinator_has_is_no_model_and_says_what_is_missing(
    trained: Trained, tmp_path: Path
) -> None:
    _, run, shared = trained
    with pytest.raises(DataError) as error:
        ModelFolder(shared)
    assert "fedskew-site export" in str(error.value)
    with pytest.raises(SettingError):
        export(TrainedRun(run), tmp_path / "onnx", onnx=True)


@pytest.mark.parametrize(
    "text",
    [
        {KEPT: None},
        {KEPT: json.dumps({"east": [1, ""]})},
        {KEPT: json.dumps({"north": [1, "0" * 64]})},
        {KEPT: json.dumps({"north": [7, ""]})},
        {KEPT: "["},
        {KEPT: '{"north": [Infinity, "x"]}'},
        {"run": "another"},
        {KIND: "site"},
    ],
)
def test_what_a_site_has_no_part_in_is_refused(
    trained: Trained, tmp_path: Path, text: dict[str, str | None]
) -> None:
    """The coordinator's file says something else of the memory that is to be joined; as it was, it is joined."""
    sites, _, shared = trained
    tensors, said = read(shared / "model.safetensors")
    changed = {key: value for key, value in {**said, **text}.items() if value}
    file = tmp_path / "shared/model.safetensors"
    file.parent.mkdir()
    site = read_site(sites / "north/site.toml")
    write_atomically(file, tensors, said)
    join(site, file.parent, tmp_path / "as-it-was")
    write_atomically(file, tensors, changed)
    with pytest.raises(DataError):
        join(site, file.parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_none_or_its_own_folder_or_a_lost_memory_is_refused(
    trained: Trained, tmp_path: Path
) -> None:
    sites, run, shared = trained
    site = read_site(sites / "north/site.toml")
    for source, output in (
        (tmp_path / "nothing", tmp_path / "out"),
        (sites / "north/data.npz", tmp_path / "out"),
        (shared, shared),
    ):
        with pytest.raises((DataError, OSError)):
            join(site, source, output)
    memory = folder_of(site.run_folder(run.run), 0)
    shutil.move(memory, tmp_path / "elsewhere")
    try:
        with pytest.raises(DataError):
            join(site, shared, tmp_path / "out")
    finally:
        shutil.move(tmp_path / "elsewhere", memory)
