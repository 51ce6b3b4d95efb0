"""Runs that the coordinator's key signs: a site takes exactly what was signed."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_app.local_site import RunNotSigned
from data import DataError, SettingError
from deploy.local_federation import fedskew
from fedskew.engines import APP
from fedskew.federation import run as run_module
from fedskew.federation.agree import add_site
from fedskew.federation.folder import FederationFolder, begin
from fedskew.federation.signing import signature, takes_signature
from server_app.settings import NOT_SETTINGS, parse
from site_agent.app_files import app_files
from site_agent.keys import make_key, public_text, read_key
from site_agent.run_approval import check_app_signed, check_signed
from tests.site_files import AGREED, public_key

PYPROJECT = """\
[project]
name = "tiny"
version = "1.0.0"
description = "A tiny app."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "you"

[tool.flwr.app.components]
serverapp = "tinyapp:app"
clientapp = "tinyapp:app"

[tool.flwr.app.config]
rounds = 3
rate = 0.5
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signed") / "study"
    begun = begin(path, AGREED, "127.0.0.1:9999", "127.0.0.1")
    for name in ("north", "east"):
        add_site(begun, {"name": name, "key": public_key(name)})
    return begun.path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> FederationFolder:
    """A federation of two sites, as its commands make it."""
    return FederationFolder(shutil.copytree(made, tmp_path / "study"))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The run configs of the runs that the command submits, each of which ends at once."""
    configs: list[dict[str, Any]] = []

    def complete(folder: Any, config: Any, lines: Any, wait: Any) -> Any:
        configs.append(config)
        return {}

    monkeypatch.setattr(run_module, "complete", complete)
    return configs


def test_a_run_is_signed_by_the_federations_key_and_another_run_is_not_it(
    folder: FederationFolder, followed: list[dict[str, Any]], tmp_path: Path
) -> None:
    key = folder.coordinator_key
    assert key.stat().st_mode & 0o777 == 0o600
    assert folder.agreement.run_key == public_text(read_key(key).public_key())
    words = ["--set", "model=mlp-bn", "--set", "rounds=2", "--results", tmp_path / "results"]
    fedskew("federation", "run", folder.path, *words)
    text, signed = sent_by(followed)
    check_signed(folder.agreement, text, signed)
    with pytest.raises(RunNotSigned):
        check_signed(folder.agreement, text.replace('"rounds": 2', '"rounds": 3'), signed)


def sent_by(configs: list[dict[str, Any]]) -> tuple[str, str]:
    """Return what the ServerApp of the one run sends to sites: its settings as a text, and the signature."""
    (config,) = configs
    stated = {key: value for key, value in config.items() if key not in NOT_SETTINGS}
    return parse(stated).run_spec().to_json(), str(config["run-signature"])


def test_a_key_that_others_may_read_or_of_another_kind_or_federation_signs_nothing(
    folder: FederationFolder, tmp_path: Path
) -> None:
    key, other = folder.coordinator_key, tmp_path / "other.key"
    assert signature(folder.agreement, b"run", key)
    make_key(other)
    with pytest.raises(DataError):
        signature(folder.agreement, b"run", other)
    other.write_text("no key")
    for file in (other, tmp_path / "none.key"):
        with pytest.raises(DataError):
            signature(folder.agreement, b"run", file)
    key.chmod(0o644)
    with pytest.raises(DataError):
        signature(folder.agreement, b"run", key)


def test_what_is_signed_is_what_the_server_app_sends(folder: FederationFolder) -> None:
    """The ServerApp reads the settings once more, from flwr's run config."""
    dataset = f"sites:{folder.agreement_file.resolve()}"
    for stated in (
        {},
        {"method": "fedprox", "proximal.mu": 0.1, "learning-rate": 0.3, "seed": 4, "rounds": 3},
    ):
        planned = parse({"model": "mlp-bn", **stated, "dataset": dataset})
        assert (
            parse(planned.going_on().run_config()).run_spec().to_json()
            == planned.run_spec().to_json()
        )
    assert takes_signature(app_files(APP))


def test_without_run_key_nothing_is_signed(
    folder: FederationFolder, followed: list[dict[str, Any]], tmp_path: Path
) -> None:
    lines = folder.agreement_file.read_text().splitlines(keepends=True)
    folder.agreement_file.write_text("".join(line for line in lines if "run-key" not in line))
    folder.coordinator_key.unlink()
    fedskew("federation", "run", folder.path, "--results", tmp_path / "results")
    text, signed = sent_by(followed)
    assert signed == ""
    check_signed(FederationFolder(folder.path).agreement, text, signed)


@pytest.mark.parametrize("declared", [True, False])
def test_runs_of_another_app_are_signed_where_it_declares_the_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    app, study = tmp_path / "app", tmp_path / "study"
    app.mkdir()
    (app / "pyproject.toml").write_text(PYPROJECT + ('run-signature = ""\n' if declared else ""))
    (app / "tinyapp.py").write_text("app = 1\n")
    new = ["federation", "new", study, "--name", "two", "--address", "127.0.0.1:9999"]
    fedskew(*new, "--app", app)
    folder = FederationFolder(study)
    for name in ("north", "east"):
        add_site(folder, {"name": name, "key": public_key(name)})
    assert bool(folder.agreement.run_key) == folder.coordinator_key.exists() == declared

    configs: list[dict[str, Any]] = []
    ended = SimpleNamespace(finished=True, status="finished:completed", details="")

    def submit(app: Path, config: dict[str, Any]) -> int:
        configs.append(config)
        return 7

    control = SimpleNamespace(submit=submit, status=lambda run: ended)
    monkeypatch.setattr(run_module, "Control", lambda folder: control)
    fedskew("federation", "submit", study, "--config", "rounds=4")
    (config,) = configs
    assert ("run-signature" in config) == declared and config["rounds"] == 4
    check_app_signed(folder.agreement, "north", {"rate": 0.5, **config})
    if declared:
        with pytest.raises(RunNotSigned):
            check_app_signed(folder.agreement, "north", {"rate": 0.6, **config})
        with pytest.raises(SettingError):
            fedskew("federation", "submit", study, "--config", "round=4")


@pytest.mark.parametrize(
    ("own", "sites", "says"),
    [
        (False, [], "use `fedskew federation run`"),
        (True, ["west"], "must be some of north, east"),
        (True, ["north"], "must be at least min-sites = 2 sites"),
    ],
)
def test_a_submission_that_cannot_be_is_refused(
    folder: FederationFolder, own: bool, sites: list[str], says: str
) -> None:
    if own:
        folder.own_app.write_bytes(b"")
    with pytest.raises(DataError) as refused:
        run_module.submit(folder, sites, "", print)
    assert says in str(refused.value)
