"""The sites of a federation in one process: the numbers of a simulation that has all data, with none at the server."""

from pathlib import Path
from typing import Any

from client_app.site import installed
from fedskew.engines import execute
from server_app.results import RunFolder
from server_app.settings import parse
from tests.site_files import CLASSES, data_sets, site_folders

RUN: dict[str, Any] = {"method": "fedshift+fedbn", "model": "mlp-bn", "rounds": 2, "batch-size": 8, "device": "cpu"}


def rehearse(folder: Path, results: Path, **changes: Any) -> tuple[dict[str, Any], RunFolder]:
    settings = parse({**RUN, "dataset": f"sites:{folder}/federation.toml", "results": str(results), **changes})
    summary = execute(settings, "inprocess", lambda line: None, sites=str(folder))
    return summary, RunFolder(settings.folder)


def test_sites_with_their_own_files_make_the_simulations_model(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    rehearsed, records = rehearse(folder, tmp_path)
    known = {"dataset": data_sets(folder), "classes": ",".join(CLASSES), "input-shape": "1x8x8"}
    simulation = parse({**RUN, **known, "cache": str(tmp_path / "cache"), "results": str(tmp_path)})
    simulated = execute(simulation, "inprocess", lambda line: None)
    assert rehearsed["hash"]["shared"] == simulated["hash"]["shared"]
    ours, theirs = (folder.rounds()[-1].models["average"] for folder in (records, RunFolder(simulation.folder)))
    assert ours.means == theirs.means and ours.recall == theirs.recall and ours.spreads == theirs.spreads
    assert installed() == {}
