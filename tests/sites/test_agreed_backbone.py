"""A backbone between sites: federation.toml names it and its weights' sha256, and each site has the file itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import site_agent.data_view
from client_app.local_site import PERMISSIONS, NotAgreed
from client_app.models.backbone import sha256_of
from client_app.runtime import ClientRuntime
from data import DataError, SettingError
from server_app.settings import parse
from site_agent.approval import summary
from site_agent.check import offline
from site_agent.config import read_site, read_sites
from site_agent.data_view import ConfiguredSite
from tests.site_files import (
    NAMES,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
)

NAME = "torchvision:shufflenet_v2_x0_5"
POLICY = {"allow": list(PERMISSIONS)}
RUN: dict[str, Any] = {
    "method": "fedncm",
    "rounds": 0,
    "model": NAME,
    "freeze": "all",
    "image-side": 16,
    "batch-size": 8,
    "device": "cpu",
}


pytestmark = pytest.mark.usefixtures("forget_runtimes")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files of the network's weights, of different seeds."""
    from torchvision import models

    folder = tmp_path_factory.mktemp("weights")
    made = []
    for seed in (99, 100):
        torch.manual_seed(seed)
        made.append(folder / f"{seed}.safetensors")
        save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), made[-1])
    return made[0], made[1]


def folders(folder: Path, file: Path, **changes: Any) -> Path:
    """Write three sites that agree on a file of weights, and name it in their site.toml."""
    site_folders(
        folder,
        policy=POLICY,
        backbone=NAME,
        weights=sha256_of(str(file)),
        site=with_mask_keys(),
        **changes,
    )
    for name in NAMES:
        name_weights(folder, name, file)
    return folder


def name_weights(folder: Path, name: str, file: Path | None) -> None:
    """Write site.toml with another file of weights, or none."""
    named = {} if file is None else {"weights": str(file)}
    write(folder / name / "site.toml", site_entries(name=name, policy=POLICY, **named))


def settings_of(folder: Path, results: Path, file: Path, **changes: Any) -> Any:
    dataset = f"sites:{folder}/federation.toml"
    stated = {**RUN, "dataset": dataset, "weights": str(file), "results": str(results)}
    return parse({**stated, **changes})


def row(folder: Path) -> str:
    path = folder / "north/site.toml"
    (found,) = [str(row) for row in offline(read_site(path), path) if row.subject == "weights"]
    return found


def test_a_wrong_or_missing_file_is_refused_with_both_hashes(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    folder = folders(tmp_path / "sites", files[0])
    first, second = (sha256_of(str(file)) for file in files)
    assert row(folder).startswith("ok  weights")
    name_weights(folder, "north", files[1])
    assert row(folder).startswith("NO  weights") and first in row(folder) and second in row(folder)
    name_weights(folder, "north", None)
    assert row(folder).startswith("NO  weights") and first in row(folder)


def test_a_site_with_another_file_opens_no_data(tmp_path: Path, files: tuple[Path, Path]) -> None:
    folder = folders(tmp_path / "sites", files[0])
    name_weights(folder, "east", files[1])
    spec = settings_of(folder, tmp_path, files[0]).run_spec()
    assert files[0].name not in spec.to_json()  # a message names no file
    north, east, _ = read_sites(folder).values()
    ConfiguredSite(north).open_data(spec)
    with pytest.raises(DataError) as error:
        ConfiguredSite(east).open_data(spec)
    assert all(sha256_of(str(file)) in str(error.value) for file in files)


def test_a_site_s_file_replaced_after_the_comparison_is_not_loaded(
    tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders(tmp_path / "sites", files[0])
    file = tmp_path / "own.safetensors"
    file.write_bytes(files[0].read_bytes())
    name_weights(folder, "north", file)
    spec = settings_of(folder, tmp_path, files[0]).run_spec()
    site = ConfiguredSite(read_sites(folder)[0])
    compared = site_agent.data_view.own_weights

    def replace_then(site: Any) -> str:
        """What somebody with the site's disk does between the comparison and the loading."""
        sha256 = compared(site)
        file.write_bytes(files[1].read_bytes())
        return sha256

    with monkeypatch.context() as patch:
        patch.setattr(site_agent.data_view, "own_weights", replace_then)
        with pytest.raises(SettingError):
            ClientRuntime(spec, site)
    file.write_bytes(files[0].read_bytes())
    assert ClientRuntime(spec, site).model is not None


def test_the_coordinator_s_file_must_be_the_agreed_one(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    folder = folders(tmp_path / "sites", files[0])
    assert settings_of(folder, tmp_path, files[0]).model.weights == str(files[0])
    for file, changes in ((files[1], {}), (files[0], {"model": "torchvision:resnet18"})):
        with pytest.raises(SettingError):
            settings_of(folder, tmp_path, file, **changes)


def test_a_site_takes_no_other_backbone_and_no_file_that_a_message_names(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    folder = folders(tmp_path / "sites", files[0])
    site = ConfiguredSite(read_sites(folder)[0])
    spec = settings_of(folder, tmp_path, files[0]).run_spec()
    site.open_data(spec)
    for other in (
        replace(spec, model="torchvision:resnet18"),
        replace(spec, model_settings=replace(spec.model_settings, weights=str(files[0]))),
        replace(spec, model_settings=replace(spec.model_settings, weights="sha256:" + 64 * "0")),
    ):
        with pytest.raises(NotAgreed):
            site.open_data(other)


def test_approve_shows_the_backbone(tmp_path: Path, files: tuple[Path, Path]) -> None:
    folder = folders(tmp_path / "sites", files[0])
    text = summary(read_site(folder / "north/site.toml"), "app")
    assert f"backbone    {NAME}, weights of sha256 {sha256_of(str(files[0]))}" in text
