"""A module of own models and methods between sites: agreed by its sha256, loaded from the bytes that were compared."""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agreed_module import added_methods_forgotten, source_of

from client_app.local_site import PERMISSIONS, NotAgreed, RunNotAllowed
from client_app.runtime import ClientRuntime, site_runtime
from client_app.user_code import FOLDER
from data import DataError, SettingError
from fedskew.engines import Resources, execute
from server_app.settings import parse
from site_agent.agreed_files import numbered
from site_agent.approval import summary
from site_agent.config import read_site, read_sites
from site_agent.data_view import ConfiguredSite
from tests.site_files import (
    NAMES,
    data_sets,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
)

NUMBERS = itertools.count()
RUN: dict[str, Any] = {"rounds": 2, "batch-size": 8, "device": "cpu"}


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    """Runtimes and lists without what a test's module has added."""
    site_runtime.cache_clear()
    with added_methods_forgotten():
        yield
    site_runtime.cache_clear()


@pytest.fixture
def name() -> str:
    """A module's name that no other test has: a process loads one state of a module."""
    return f"agreed{next(NUMBERS)}"


def sha256_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def folders(folder: Path, name: str, policy: Any = None, source: str = "", **changes: Any) -> Path:
    """Write three sites that agree on a module, each with a copy of it, and the coordinator's copy."""
    source = source or source_of(name)
    policy = {"allow": list(PERMISSIONS), **(policy or {})}
    module = {"name": name, "sha256": sha256_of(source)}
    site_folders(folder, policy=policy, module=module, **{"site": with_mask_keys(), **changes})
    (folder / f"{name}.py").write_text(source)
    for site in NAMES:
        (folder / site / "own.py").write_text(source)
        name_module(folder, site, "own.py", policy)
    return folder


def name_module(folder: Path, site: str, file: str | None, policy: Any = None) -> None:
    """Write site.toml with another file of the module, or none."""
    named = {} if file is None else {"module": file}
    policy = policy or {"allow": list(PERMISSIONS)}
    write(folder / site / "site.toml", site_entries(name=site, policy=policy, **named))


def settings_of(folder: Path, name: str, **changes: Any) -> Any:
    stated = {
        **RUN,
        "dataset": f"sites:{folder}/federation.toml",
        "method": f"{name}:Heavier",
        "model": f"{name}:small",
        "results": str(folder / "results"),
    }
    return parse({**stated, **changes})


def rehearse(folder: Path, settings: Any) -> dict[str, Any]:
    return execute(settings, Resources("inprocess"), lambda line: None, sites=str(folder))


def test_the_sites_own_copies_train_as_a_simulation_does(tmp_path: Path, name: str) -> None:
    folder, method = folders(tmp_path / "sites", name), f"{name}:PAIR"
    trained = rehearse(folder, settings_of(folder, name, method=method))
    inputs = {"classes": "healthy,ill,other", "input-shape": "1x8x8", "mean": "0.5", "std": "0.5"}
    simulated = settings_of(folder, name, method=method, dataset=data_sets(folder), **inputs)
    summary = execute(simulated, Resources("inprocess"), lambda line: None)
    assert trained["hash"]["shared"] == summary["hash"]["shared"]


def test_a_working_folder_s_module_never_takes_the_agreed_one_s_place(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders(tmp_path / "sites", name)
    other = tmp_path / "work"
    other.mkdir()
    marker = tmp_path / "imported"
    (other / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n{source_of(name)}")
    monkeypatch.setenv(FOLDER, str(other))
    settings = settings_of(folder, name)
    assert not marker.exists()
    assert sys.modules[name].__file__ == str(folder / f"{name}.py")
    agreed = f"{name}/{name}.py\n{source_of(name)}"
    assert settings.hashed_settings()["model's files"] == sha256_of(agreed)


def test_the_run_names_the_site_with_another_file(tmp_path: Path, name: str) -> None:
    folder = folders(tmp_path / "sites", name)
    marker = tmp_path / "ran"
    other = f"import os\nos.mkdir({str(marker)!r})\n{source_of(name)}"
    (folder / "east/own.py").write_text(other)
    lines: list[str] = []
    summary = execute(
        settings_of(folder, name), Resources("inprocess"), lines.append, sites=str(folder)
    )
    assert [line for line in lines if "is not ready" in line] == [
        line for line in lines if line.startswith("site east is not ready: data")
    ]
    assert summary["failures"] == 2  # once in each round
    assert not marker.exists()
    with pytest.raises(DataError) as error:
        ConfiguredSite(read_sites(folder)[1]).load_module(f"{name}:small", [])
    for code in (sha256_of(other), sha256_of(source_of(name))):
        assert code in str(error.value)


def test_the_policy_is_asked_before_the_module_is_loaded(tmp_path: Path, name: str) -> None:
    policy = {"methods": [f"{name}:Heavier"], "models": ["mlp-bn", f"{name}:small"]}
    folder = folders(tmp_path / "sites", name, policy)
    site = read_site(folder / "north/site.toml")
    here = ConfiguredSite(site)
    for model, methods in (("", ["Heavier", "Sizes"]), ("large", [])):
        with pytest.raises(RunNotAllowed):
            here.load_module(model and f"{name}:{model}", [f"{name}:{word}" for word in methods])
    assert name not in sys.modules
    here.load_module(f"{name}:small", [f"{name}:Heavier"])
    assert name in sys.modules


def test_a_message_names_nothing_but_the_agreed_module_s_own_classes(
    tmp_path: Path, name: str
) -> None:
    folder = folders(tmp_path / "sites", name)
    site = ConfiguredSite(read_site(folder / "north/site.toml"))
    spec = json.loads(settings_of(folder, name).run_spec().to_json())

    def runtime(**changes: Any) -> ClientRuntime:
        return site_runtime(json.dumps({**spec, **changes}), site)

    assert runtime().run_spec.variants[0].name == f"{name}-heavier"
    for changes in (
        {"model": f"{name}.os:system"},
        {"variants": {"client_app.variants.proximal:Proximal": {}}},
        {"variants": {f"{name}:Heavier": {}, "pickle:loads": {}}},
        {"variants": {f"{name}:Heavier.__init__": {}}},
    ):
        with pytest.raises(NotAgreed):
            runtime(**changes)
    for changes in (
        {"variants": {f"{name}:Proximal": {}}},  # imported there, and defined elsewhere
        {"variants": {f"{name}:Mixed": {}}},  # the server's half
        {"model": f"{name}:dataclass"},
    ):
        with pytest.raises(SettingError):
            runtime(**changes)


def test_a_federation_without_a_module_takes_none(tmp_path: Path, name: str) -> None:
    folder = folders(tmp_path / "sites", name)
    settings = settings_of(folder, name)  # the module is in this process now
    spec = settings.run_spec().to_json()
    bare = site_folders(tmp_path / "bare", policy={"allow": list(PERMISSIONS)})
    site = ConfiguredSite(read_site(bare / "north/site.toml"))
    with pytest.raises(NotAgreed):
        site_runtime(spec, site)
    with pytest.raises(SettingError):
        settings_of(bare, name)


def test_the_coordinator_s_copy_must_be_the_agreed_one(tmp_path: Path, name: str) -> None:
    folder = folders(tmp_path / "sites", name)
    copy = folder / f"{name}.py"
    for content in ("# another", None):
        copy.write_text(content) if content else copy.unlink()
        with pytest.raises(DataError) as error:
            settings_of(folder, name)
        assert sha256_of(source_of(name)) in str(error.value)
    assert settings_of(folder, name, method="fedavg", model="mlp-bn")  # the run names nothing of it
    copy.write_text(source_of(name))
    assert settings_of(folder, name)

    # A process loads one state of a module, under a name that nothing else has.
    later = folders(tmp_path / "later", name, source=source_of(name) + "# changed")
    taken = folders(tmp_path / "taken", "torch", source="x = 1")
    for where, used in ((later, name), (taken, "torch")):
        with pytest.raises(DataError):
            settings_of(where, used)


@pytest.mark.parametrize(("size", "is_read"), [(2**20, True), (2**20 + 1, False)])
def test_a_module_of_more_than_a_mebibyte_is_not_read(
    tmp_path: Path, name: str, size: int, is_read: bool
) -> None:
    folder = folders(tmp_path / "sites", name)
    (folder / f"{name}.py").write_bytes(b"#" * size)
    with pytest.raises(DataError) as error:
        settings_of(folder, name)
    assert ("has sha256" in str(error.value)) == is_read
    assert ("has more than" in str(error.value)) != is_read


def test_a_module_that_fails_is_an_error_with_its_reason(tmp_path: Path, name: str) -> None:
    folder = folders(tmp_path / "sites", name, source="import torch\n1 / 0\n")
    with pytest.raises(DataError) as error:
        settings_of(folder, name)
    assert "ZeroDivisionError" in str(error.value) and name not in sys.modules


def test_approve_shows_the_module_s_source_and_hash(tmp_path: Path, name: str) -> None:
    folder = folders(tmp_path / "sites", name)
    site = read_site(folder / "north/site.toml")
    text = summary(site, "app")
    assert sha256_of(source_of(name)) in text and "   11  def small(shape, classes):" in text
    (folder / "north/own.py").write_text("# another")
    with pytest.raises(DataError):
        summary(site, "app")


def test_the_source_that_is_shown_is_the_source_that_runs(tmp_path: Path, name: str) -> None:
    hidden = "x = 1  # \x1b[8m\u202e\rimport os \u0430\n\ty = 2\r\n"
    assert numbered(hidden) == [
        "    1  x = 1  # \\x1b[8m\\u202e\\rimport os \\u0430",
        "    2          y = 2",
    ]
    # An encoding that the source asks for would make other code of what is shown.
    coded = "# coding: utf-7\nvalue = '+AGE-'\n"
    folder = folders(tmp_path / "sites", name, source=coded)
    site = ConfiguredSite(read_site(folder / "north/site.toml"))
    site.load_module(f"{name}:value", [])
    assert sys.modules[name].value == "+AGE-"  # type: ignore[attr-defined]
