"""Mean and std of a table's columns come from a masked sum, with real SuperLink, gateway and sites."""

import gc
import json
import re
from pathlib import Path

import numpy as np
import pytest

from deploy.local_federation import LocalFederation, fedskew, settings

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "rounds=3", "node-wait=20"]


def write_table(file: Path) -> Path:
    """Write three hospitals' rows as a CSV file, with columns of very different scales."""
    draws = np.random.default_rng(0)
    lines = ["age,income,dose,site,label"]
    for row in range(180):
        ill = row % 2
        age, income, dose = draws.normal(size=3) * (5, 2e4, 1e-6) + (50 + 5 * ill, 8e4, 3e-6)
        site = ("north", "east", "south")[row % 3]
        lines.append(f"{age:.3f},{income:.1f},{dose:.4g},{site},{('healthy', 'ill')[ill]}")
    file.write_text("\n".join(lines))
    return file


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sites_without_agreed_numbers_train_as_the_rehearsal_and_the_simulation(
    tmp_path: Path,
) -> None:
    dataset = f"csv:{write_table(tmp_path / 'table.csv')}"
    known = ["classes=healthy,ill", "input-shape=3"]
    federation = LocalFederation(tmp_path)
    fedskew("data", "export-sites", dataset, federation.sites, *settings(known))
    federation.found(agree=lambda text: re.sub(r"(?m)^(mean|std) = .*\n", "", text))
    assert "mean" not in (federation.folder / "federation.toml").read_text()
    try:
        with federation.at_work():
            trained = federation.run(WORDS)
            (run,) = federation.work.glob("*/*/settings.json")
            recorded = json.loads(run.read_text())["standardization"]
        assert trained["hash"] == federation.rehearse(WORDS)["hash"]
    finally:
        gc.collect()  # closes connections while the test's filters of warnings are in force

    (place, *_) = federation.places.values()
    assert '"summed"' in (place / "state/audit.jsonl").read_text()
    results = tmp_path / "simulated"
    words = settings([f"dataset={dataset}", *known, f"results={results}", *WORDS[:-1]])
    fedskew("run", *words)
    (simulated,) = results.glob("*/settings.json")
    ours = json.loads(simulated.read_text())["standardization"]
    for key in ("mean", "std"):
        assert [column[key] for column in ours["columns"]] == [
            column[key] for column in recorded["columns"]
        ]
