"""Today's code reads what the code of commit 84d7ecd wrote. fixtures/84d7ecd/README.md says how that was made."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import FedSkew
from safetensors.torch import load_file

import data.dataset
import fedskew as fedskew_package
from client_app.models import build
from data import DataError, DataSettings, load
from data.readers import cache
from fedskew.federation.certificates import read_certificate
from fedskew.federation.folder import FederationFolder
from server_app.checkpoint import Checkpoint
from server_app.run_folder import RunFolder
from server_app.versions import versions
from site_agent.approval import approved_app
from site_agent.audit import Audit
from site_agent.config import read_site
from site_agent.data_view import SiteView

FIXTURES = Path(__file__).parent / "fixtures" / "84d7ecd"
FEDBN = "digits-fedbn+fedavgm-seed0-21dcf9b054"
FEDAVG = "digits-fedavg-seed0-a34a35c9ec"

Copy = Callable[[str], Path]


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """Return a function that copies one of the fixtures' folders, so that no test can change it."""

    def copy(name: str) -> Path:
        return shutil.copytree(FIXTURES / name, tmp_path / name)

    return copy


def settings_of(run: Path) -> dict[str, Any]:
    """Return what a run's settings.json says."""
    return json.loads((run / "settings.json").read_text())


def summary_of(run: str) -> dict[str, Any]:
    """Return what the old code wrote at the end of a run."""
    return json.loads((FIXTURES / "runs" / run / "summary.json").read_text())


def test_results_are_reported(copied: Copy, fedskew: FedSkew) -> None:
    """The experiment plans the old run ids, so both runs are found with their recorded numbers."""
    status, output, warnings = fedskew(
        "report", "old", "--experiments", FIXTURES / "experiments.yaml",
        "--results", copied("runs"), "--csv",
    )  # fmt: skip
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(output)))
    reported = {
        row["row"]: float(row["mean"]) / 100
        for row in rows
        if row["metric"] == "balanced-accuracy" and row["selection"] == "last"
    }
    recorded = {
        row: summary_of(run)["models"]["average"]["last"]["balanced-accuracy"]
        for row, run in (("fedavg", FEDAVG), ("fedbn+fedavgm", FEDBN))
    }
    assert reported == pytest.approx(recorded, abs=1e-6)
    assert "differs from the experiment" not in warnings


def test_a_finished_run_is_not_trained_again(copied: Copy, fedskew: FedSkew) -> None:
    runs = copied("runs")
    status, _, errors = fedskew(
        "run", "old", "--experiments", FIXTURES / "experiments.yaml", "--results", runs,
        "--engine", "inprocess", "--json",
    )  # fmt: skip
    assert status == 0, errors
    assert sorted(path.name for path in runs.iterdir()) == [FEDAVG, FEDBN]
    for name in (FEDAVG, FEDBN):
        assert fedskew_package.load(runs / name).hash == summary_of(name)["hash"]["all"]
        before, after = FIXTURES / "runs" / name, runs / name
        assert (before / "rounds.jsonl").read_bytes() == (after / "rounds.jsonl").read_bytes()


def resume(results: Path, fedskew: FedSkew) -> RunFolder:
    """Run the experiment's second run with today's code and return its folder."""
    folder = RunFolder(results / FEDBN)
    assert folder.summary() is None
    assert Checkpoint.load(folder.checkpoint_file).round == 1
    status, _, errors = fedskew(
        "run", "old", "--experiments", FIXTURES / "experiments.yaml", "--results", results,
        "--engine", "inprocess", "--row", "fedbn+fedavgm",
    )  # fmt: skip
    assert status == 0, errors
    return folder


def test_an_interrupted_run_resumes_from_its_checkpoint(copied: Copy, fedskew: FedSkew) -> None:
    first_round = (FIXTURES / "interrupted" / FEDBN / "rounds.jsonl").read_text().splitlines()[0]
    folder = resume(copied("interrupted"), fedskew)
    records = folder.rounds_file.read_text().splitlines()
    assert records[0] == first_round, "round 1 was trained again"
    assert [record.round for record in folder.rounds()] == [1, 2]
    assert folder.finished(2) is not None


@pytest.mark.skipif(
    any(
        versions()[package] != settings_of(FIXTURES / "runs" / FEDBN)["versions"][package]
        for package in ("torch", "numpy", "cpu")
    ),
    reason="weights repeat to the bit only with the torch, numpy and CPU of the fixtures",
)
def test_a_resumed_run_ends_in_the_old_hash(copied: Copy, fedskew: FedSkew) -> None:
    summary = resume(copied("interrupted"), fedskew).summary()
    assert summary is not None
    assert summary["hash"] == summary_of(FEDBN)["hash"]
    assert summary["models"] == summary_of(FEDBN)["models"]


def test_an_export_predicts(copied: Copy, fedskew: FedSkew, tmp_path: Path) -> None:
    """The predictions are those of the run's checkpoint, whose model the old code tested on the same images."""
    dataset = load(DataSettings(dataset="digits"))
    images = np.array(dataset.test_inputs[:40])
    np.savez(tmp_path / "images.npz", images=images.reshape(-1, 8, 8))
    status, output, errors = fedskew(
        "predict", copied("export"), tmp_path / "images.npz", "--site", "1", "--json"
    )
    assert status == 0, errors
    predictions = [row["prediction"] for row in json.loads(output)["predictions"]]
    assert predictions == expected_predictions(images)


def expected_predictions(images: np.ndarray[Any, Any]) -> list[str]:
    """Return the classes that site 1's model gives images, computed from the exported tensors alone."""
    tensors = load_file(FIXTURES / "export" / "model.safetensors")
    tensors |= load_file(FIXTURES / "export" / "site-1.safetensors")
    model = build("mlp-bn", (1, 8, 8), 10, seed=0)
    model.load_state_dict(tensors)
    inputs = torch.from_numpy(images.reshape(-1, 1, 8, 8)).float() / 255
    with torch.no_grad():
        classes = model.eval()((inputs - 0.5) / 0.5).argmax(1)
    return [str(number) for number in classes.tolist()]


def test_a_cached_copy_is_found_and_read(
    copied: Copy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = load(DataSettings(dataset="digits", cache=str(tmp_path / "made by this code")))

    def refuse(*arguments: object) -> None:
        raise AssertionError("the old copy was not found, and the data set is read anew")

    monkeypatch.setattr(data.dataset, "_read", refuse)
    read = load(DataSettings(dataset="digits", cache=str(copied("cache"))))
    assert read.content == made.content
    assert np.array_equal(read.train_inputs, made.train_inputs)
    assert np.array_equal(read.test_labels, made.test_labels)


def test_a_damaged_cached_copy_is_still_noticed(copied: Copy) -> None:
    (folder,) = copied("cache").iterdir()
    assert cache.read(folder) is not None
    labels = np.load(folder / "test_labels.npy")
    np.save(folder / "test_labels.npy", labels[::-1])
    cache._verified.clear()
    assert cache.read(folder) is None


def test_a_coordinators_folder_is_read(copied: Copy) -> None:
    folder = FederationFolder(copied("federation"))
    assert folder.agreement.names == ["north", "east"]
    assert folder.agreement_name == "study"
    assert (folder.coordinator.host, folder.coordinator.port) == ("localhost", 18443)
    authority, server = (read_certificate(file) for file in (folder.authority[0], folder.server[0]))
    server.verify_directly_issued_by(authority)


def test_a_site_is_read(copied: Copy) -> None:
    sites = copied("sites")
    (sites / "north" / "node.key").write_text("left out of the fixtures")
    site = read_site(sites / "north" / "site.toml")
    assert (site.name, site.number, site.min_class_samples) == ("north", 0, 2)
    assert site.allow == {"model", "scores"}
    view = SiteView(
        DataSettings(), site.agreement, site.number, site.data, site.cache, site.reading
    )
    assert view.counts_C.tolist() == [4, 4]
    assert view.tested == 4


def test_a_sites_log_is_verified(copied: Copy) -> None:
    state = copied("sites") / "north" / "state"
    log = Audit(state / "audit.jsonl")
    assert log.verify() == 1
    log.write("checked")
    assert log.verify() == 2
    log.path.write_bytes(log.path.read_bytes().replace(b"approved", b"declined"))
    with pytest.raises(DataError, match="line 1 was changed"):
        log.verify()


def test_an_approval_of_the_old_app_has_to_be_given_again(copied: Copy) -> None:
    """Another app than the agreed one is installed now, and the fixture has no copy of the old one."""
    site = read_site(copied("sites") / "north" / "site.toml")
    record = json.loads((site.state / "approved" / "approval.json").read_text())
    assert record["federation"] == site.agreement.sha256
    assert record["app"] == site.agreement.app
    with pytest.raises(DataError, match="nothing is approved"):
        approved_app(site)
