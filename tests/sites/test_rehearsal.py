"""The sites of a federation in one process: the numbers of a simulation that has all data, with none at the server."""

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from in_process import faithful

from client_app.local_site import PERMISSIONS, installed
from client_app.runtime import site_runtime
from data import SettingError
from data.agreement import read_agreement
from fedskew.engines import Resources, execute
from fedskew.engines.local import RehearsalGrid
from server_app.app import main, run
from server_app.run_folder import RunFolder
from server_app.settings import parse
from site_agent.config import read_sites
from site_agent.data_view import install
from strategies.core.exchange import TooFewReplies
from tests.site_files import CLASSES, NAMES, data_sets, site_entries, site_folders, write

RUN: dict[str, Any] = {
    "method": "fedshift+fedbn",
    "model": "mlp-bn",
    "rounds": 2,
    "batch-size": 8,
    "device": "cpu",
}


def rehearse(
    folder: Path,
    results: Path,
    report_line: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> tuple[dict[str, Any], RunFolder]:
    settings = parse(
        {**RUN, "dataset": f"sites:{folder}/federation.toml", "results": str(results), **changes}
    )
    summary = execute(settings, Resources("inprocess"), report_line, sites=str(folder))
    return summary, RunFolder(settings.folder)


@pytest.mark.parametrize(
    ("method", "more"), [("fedshift+fedbn", {}), ("fedper", {"finetune-epochs": 2})]
)
def test_sites_with_their_own_files_make_the_simulations_model_and_numbers(
    tmp_path: Path, method: str, more: dict[str, Any]
) -> None:
    """Of heads of their own and fine-tuned models too, which stay at the sites."""
    folder, changes = site_folders(tmp_path / "sites"), {"method": method, **more}
    rehearsed, records = rehearse(folder, tmp_path, **changes)
    known = {"dataset": data_sets(folder), "classes": ",".join(CLASSES), "input-shape": "1x8x8"}
    settings = {**RUN, **known, **changes, "cache": str(tmp_path / "cache")}
    simulation = parse({**settings, "results": str(tmp_path)})
    simulated = execute(simulation, Resources("inprocess"), lambda line: None)
    assert rehearsed["hash"]["shared"] == simulated["hash"]["shared"]
    ours = records.rounds()[-1].models
    theirs = RunFolder(simulation.folder).rounds()[-1].models
    assert [*ours] == [*theirs] == (["average", "fine-tuned"] if more else ["average"])
    for name, numbers in ours.items():
        spreads = dict(theirs[name].spreads)
        del spreads["local-accuracy"]  # of the class counts, which no site tells
        own = dict(numbers.spreads)
        assert math.isnan(own.pop("local-accuracy").mean)
        assert (numbers.means, own) == (theirs[name].means, spreads)
        assert numbers.recall == theirs[name].recall
    assert installed() == {}


def test_the_scores_of_a_run_between_sites_are_for_the_coordinator_s_user_alone(
    tmp_path: Path,
) -> None:
    """Under the usual umask."""
    folder, results = site_folders(tmp_path / "sites"), tmp_path / "results"
    before = os.umask(0o022)
    try:
        records = rehearse(folder, results, rounds=1)[1]
    finally:
        assert os.umask(before) == 0o022  # what closes the files is undone when the run ends
    assert records.summary_file.exists()
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in results.rglob("*")}
    assert modes == {True: 0o700, False: 0o600}


def test_sites_are_asked_whether_they_are_ready_without_a_run(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    write(
        folder / "north/site.toml",
        site_entries(name="north", policy={"allow": ["model", "scores"]}),
    )
    (folder / "east/data.npz").write_bytes(b"damaged")
    file, results = tmp_path / "answers.json", tmp_path / "results"
    config = {**RUN, "dataset": f"sites:{folder}/federation.toml", "results": str(results)}
    agreement = read_agreement(folder / "federation.toml")
    with RehearsalGrid(read_sites(folder), agreement) as grid:
        main(grid, SimpleNamespace(run_config={**config, "readiness": str(file)}))  # type: ignore[arg-type]
        answers = json.loads(file.read_text())
        assert answers["south"] == ""
        assert re.fullmatch(r"policy: class-counts \d+", answers["north"])
        assert re.fullmatch(r"data \d+", answers["east"])
        assert not results.exists() and not list(folder.glob("*/state/runs"))


class Alone(RehearsalGrid):
    """Each site in a process that knows of no other, as far as this process can be one."""

    def answer_here(self, message: Message) -> Message:
        number = message.metadata.dst_node_id - 1
        install({number: self.sites[number]})
        site_runtime.cache_clear()
        return super().answer_here(message)


def test_sites_that_know_of_no_other_make_the_rehearsals_hash(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    rehearsed, _ = rehearse(folder, tmp_path)
    settings = parse(
        {
            **RUN,
            "dataset": f"sites:{folder}/federation.toml",
            "results": str(tmp_path),
            "overwrite": True,
        }
    )
    agreement = settings.agreement
    assert agreement is not None
    with faithful(Alone(read_sites(folder), agreement)) as grid:
        assert run(grid, settings, lambda line: None)["hash"] == rehearsed["hash"]


def test_settings_json_names_the_agreement_and_counts_nobody(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    _, records = rehearse(folder, tmp_path, rounds=1)
    origin = records.origin()
    sha256 = read_agreement(folder / "federation.toml").sha256
    assert origin["agreement"] == {"name": "chest", "sha256": sha256, "sites": list(NAMES)}
    assert origin["partition-hash"] == sha256 and "samples" not in origin
    assert records.rounds()[0].workers == []


@pytest.mark.parametrize(
    ("method", "policy", "kept"),
    [
        ("scaffold", {}, "control-variates"),
        ("fedshift", {"allow": ["model", "scores"]}, "class-counts"),
        ("fedshift", {"allow": ["scores"]}, "class-counts, model"),
        ("fedshift", {"min-class-samples": 9}, "class-counts"),
        ("fedavg", {"min-test-samples": 13}, "scores"),
    ],
)
def test_a_run_that_needs_what_a_site_keeps_is_refused_by_name_before_round_1(
    tmp_path: Path, method: str, policy: dict[str, Any], kept: str
) -> None:
    folder = site_folders(tmp_path / "sites")
    if policy:
        write(folder / "east/site.toml", site_entries(name="east", policy=policy))
    with pytest.raises(SettingError) as error:
        rehearse(folder, tmp_path, method=method)
    site = "east" if policy else "north"
    rule = rf"method = .*: needs what site {site} does not let leave: {kept} \d+"
    assert re.fullmatch(rule, str(error.value))
    assert not list(tmp_path.glob("*/rounds.jsonl"))


@pytest.mark.parametrize(
    ("method", "policy"),
    [
        ("scaffold", {"allow": list(PERMISSIONS)}),
        ("fedshift", {"min-class-samples": 8, "min-test-samples": 12}),
    ],
)
def test_what_a_site_allows_leaves(tmp_path: Path, method: str, policy: dict[str, Any]) -> None:
    folder = site_folders(tmp_path / "sites", policy)
    assert rehearse(folder, tmp_path, method=method, rounds=1)[0]["failures"] == 0


def test_sites_with_unusable_data_are_left_out_until_too_few_are_left(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    (folder / "east/data.npz").write_bytes(b"damaged")
    lines: list[str] = []
    _, records = rehearse(folder, tmp_path, lines.append, method="fedavg", rounds=1)
    assert records.rounds()[0].clients == [0, 2]
    assert any(re.fullmatch(r"site east is not ready: data \d+", line) for line in lines)
    (folder / "south/data.npz").write_bytes(b"damaged")
    site_runtime.cache_clear()
    with pytest.raises(TooFewReplies):
        rehearse(folder, tmp_path, method="fedavg", rounds=1, seed=1)
