"""A site answers for itself alone, from its own files; nothing in a message names a place, and no sentence leaves."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_site import answer, shared_of

from client_app.runtime import site_runtime
from data import DataError
from server_app.settings import parse
from site_agent import data_view
from site_agent.config import read_site
from site_agent.data_view import install
from strategies.core.exchange import EVALUATE, QUERY, TRAIN
from tests.site_files import arrays, site_entries, site_folders, write

RUN: dict[str, Any] = {"model": "mlp-bn", "rounds": 2, "batch-size": 8}
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Sites, of which north is installed."""
    folder = site_folders(tmp_path / "sites")
    install({0: read_site(folder / "north/site.toml")})
    yield folder
    install({})
    site_runtime.cache_clear()


def ask(
    folder: Path,
    kind: str = TRAIN,
    change: Change | None = None,
    method: str = "fedbn",
    **more: Any,
) -> dict[str, str]:
    """Return by record of the reply to a message its error, or nothing where it has none.

    `change` is made to what the message says of the run, `more` is what else it holds.
    """
    dataset = f"sites:{folder}/federation.toml"
    chosen = parse({**RUN, "dataset": dataset, "method": method, "seed": more.pop("seed", 0)})
    run_spec = json.loads(chosen.run_spec().to_json())
    if change is not None:
        change(run_spec)
    content = answer(chosen, shared_of(chosen), kind, run_spec=run_spec, **more)
    return {
        name: str(record.get("reason", "")) if name.endswith("/error") else ""
        for name, record in content.items()
    }


@pytest.mark.parametrize("fields", [{"clients": "0"}, {"memory": [0, 0]}])
def test_a_message_without_a_list_for_each_field_is_refused(
    folder: Path, fields: dict[str, Any]
) -> None:
    with pytest.raises(DataError):
        ask(folder, fields=fields)
    assert not ask(folder, fields={"memory": [0]})["0/model"]


def error_of(records: dict[str, str], client: int = 0) -> str:
    return records[f"{client}/error"].rpartition(" ")[0]


def test_a_site_answers_for_itself_and_tells_nothing_of_its_machine(folder: Path) -> None:
    records = ask(folder, clients=(0, 1))
    assert error_of(records, 1) == "agreement"
    assert {*records} == {"0/model", "0/metrics", "0/digests", "1/error"}
    assert {*ask(folder, EVALUATE)} == {"0/test/average"}
    assert {*ask(folder, QUERY, question="readiness")} == {"0/upload/readiness", "0/digests"}


def test_memory_and_cache_lie_below_the_sites_state_which_is_nobody_elses(folder: Path) -> None:
    ask(folder)
    state = folder / "north/state"
    assert list(state.glob("runs/sites-chest-fedbn-*/memory/client-00000/round-000001.safetensors"))
    assert list(state.glob("cache/*/dataset.json")) and state.stat().st_mode & 0o777 == 0o700


def changed(part: str, key: str, value: Any) -> Change:
    def change(run_spec: dict[str, Any]) -> None:
        (run_spec[part] if part else run_spec)[key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("data", "dataset", "sites:" + "0" * 64),
        changed("data", "data_root", "/etc"),
        changed("", "folder", "/tmp/run"),
        changed("", "folder", ".."),
        changed("", "model", "os:system"),
    ],
)
def test_a_message_that_names_a_place_a_module_or_another_agreement_is_refused(
    folder: Path, change: Change
) -> None:
    records = ask(folder, change=change)
    assert {*records} == {"0/error"} and error_of(records) == "agreement"
    assert not list((folder / "north").glob("state/runs/*"))


def test_policy_holds_whatever_was_asked_before(folder: Path) -> None:
    """A server that leaves the question of readiness out gets no further."""
    path = write(folder / "north/site.toml", site_entries(policy={"allow": ["model", "scores"]}))
    install({0: read_site(path)})
    for method, kept in (("ccvr", "class-statistics"), ("fedshift", "class-counts")):
        answer = ask(folder, QUERY, question=kept, method=method)
        assert answer.keys() == {"0/error"} and error_of(answer) == f"policy: {kept}"


def test_policy_keeps_scores_and_models_as_well(folder: Path) -> None:
    for kind, kept in ((TRAIN, "model"), (EVALUATE, "scores")):
        allow = {"model", "scores"} - {kept}
        path = write(folder / "north/site.toml", site_entries(policy={"allow": sorted(allow)}))
        install({0: read_site(path)})
        assert error_of(ask(folder, kind)) == f"policy: {kept}"


def test_a_node_that_is_no_site_plays_no_sites(folder: Path) -> None:
    install({})
    assert "no site" in ask(folder)["0/error"]


def test_the_sentence_stays_in_the_sites_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(folder / "north/data.npz", **{**arrays(0), "train_labels": np.full(24, 7)})
    with caplog.at_level(logging.ERROR, "fedskew.site"):
        reason = ask(folder)["0/error"]
    kind, _, number = reason.rpartition(" ")
    assert kind == "data" and number.isdecimal()
    assert f"north: {reason}: DataError: {folder}/north/data.npz: train_labels:" in caplog.text


@pytest.mark.parametrize(
    ("spoiled", "sentence"),
    [
        ({"train_images": np.full((24, 8, 8), np.nan, np.float32)}, "must be finite"),
        ({"test_images": np.zeros((0, 8, 8), np.uint8), "test_labels": np.zeros(0, int)}, "one"),
        ({"class_names": np.array(["ill", "healthy", "other"])}, "class_names"),
    ],
)
def test_data_that_are_not_as_agreed_stay_out(
    folder: Path, caplog: pytest.LogCaptureFixture, spoiled: dict[str, Any], sentence: str
) -> None:
    parts: dict[str, Any] = {**arrays(0), **spoiled}
    np.savez(folder / "north/data.npz", **parts)
    assert error_of(ask(folder, QUERY, question="readiness")) == "data"
    assert sentence in caplog.text


def test_data_that_change_while_a_run_goes_on_stay_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "0/model" in ask(folder)
    np.savez(folder / "north/data.npz", **arrays(5))
    site_runtime.cache_clear()  # as when the site is started again
    assert error_of(ask(folder)) == "data" and "have changed since the run began" in caplog.text
    assert "0/model" in ask(folder, seed=1)


def test_an_empty_file_of_the_data_s_hash_is_none_and_a_new_one_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power could leave an empty one."""
    assert "0/model" in ask(folder)
    (file,) = (folder / "north").rglob(data_view.DATA_HASH)
    content = file.read_text()
    file.write_text("")
    site_runtime.cache_clear()

    def power_is_lost(path: Path) -> None:
        raise OSError("no power")

    with monkeypatch.context() as patched:
        patched.setattr(data_view, "flush_to_disk", power_is_lost)
        assert error_of(ask(folder))
    assert file.read_text() == ""
    site_runtime.cache_clear()
    assert "0/model" in ask(folder)
    assert file.read_text() == content
    np.savez(folder / "north/data.npz", **arrays(5))
    site_runtime.cache_clear()
    assert error_of(ask(folder)) == "data"
