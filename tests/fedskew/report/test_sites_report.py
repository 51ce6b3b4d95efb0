"""A report on runs between sites: what their server does not know is said, and what sites told of themselves shown."""

from pathlib import Path

import pytest

from fedskew.engines import execute
from fedskew.report.document import document
from fedskew.report.page import html
from fedskew.report.single_runs import single_runs
from fedskew.report.text import markdown
from server_app.settings import parse
from tests.site_files import agreed, site_folders, write


@pytest.mark.usefixtures("no_drawings")
def test_of_sites_the_report_says_what_is_known_here(tmp_path: Path) -> None:
    folder, results = site_folders(tmp_path / "sites"), tmp_path / "results"
    (folder / "east/data.npz").write_bytes(b"damaged")
    stated = {
        "dataset": f"sites:{folder}/federation.toml",
        "results": str(results),
        "rounds": 1,
        "device": "cpu",
    }
    for method in ("fedavg", "median"):
        settings = parse({**stated, "method": method, "model": "mlp-bn", "local-epochs": 1})
        execute(settings, "inprocess", lambda line: None, sites=str(folder))
    write(folder / "federation.toml", agreed(name="another"))  # of a later time
    (found,), left_out = single_runs(results, ())
    assert not left_out and [run.finished for run in found.runs.values()] == [True, True]
    report = document(found)
    text = markdown([report])
    assert text.startswith("## Runs between the sites of chest\n")
    assert report.what_was_run["clients"].startswith("north, east, south; how many samples")
    assert (
        report.what_was_run["partition"] == "every site's own data"
        and "known there alone" in report.what_was_run["tested"]
    )
    lines = text.splitlines()
    place = lines.index("| client | fedavg | median |") + 2
    rows = {
        cells[1].strip(): cells[2:4]
        for cells in (line.split("|") for line in lines[place : place + 3])
    }
    assert list(rows) == ["north", "east", "south"] and {cell.strip() for cell in rows["east"]} == {
        "—"
    }
    assert all(0 <= float(cell) <= 100 for cell in (*rows["north"], *rows["south"]))
    assert any(
        "times a client failed" in warning and "east (1)" in warning for warning in found.warnings
    )
    assert "known there alone" in html([report])
