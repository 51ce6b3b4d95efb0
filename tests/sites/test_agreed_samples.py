"""No site owns the model by stating more samples than are agreed: at the server, in the record, at the site itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, MetricRecord

from client_app.messages import pack, unpack
from client_app.runtime import site_runtime
from client_app.variants.class_prior import UNIT
from data import DataError
from data.agreement import read_agreement
from fedskew.engines.local import RehearsalGrid
from server_app.app import run
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.settings import parse
from site_agent.check import offline
from site_agent.config import read_site, read_sites
from site_agent.data_view import ConfiguredSite
from tests.site_files import NAMES, public_key, site_folders

RUN: dict[str, Any] = {
    "method": "fedavg",
    "model": "mlp-bn",
    "rounds": 1,
    "batch-size": 8,
    "device": "cpu",
}
LIAR = 1
pytestmark = pytest.mark.usefixtures("forget_runtimes")
TRAINED = 24
"""Training samples that each of the sites has."""


def with_samples(*samples: int | None) -> list[dict[str, Any]]:
    """Return the sites of federation.toml, with the samples that are agreed; None is nothing."""
    return [
        {"name": name, "key": public_key(name)} | ({} if most is None else {"samples": most})
        for name, most in zip(NAMES, samples, strict=True)
    ]


class Lying(RehearsalGrid):
    """The second site states so many samples in every update, and its steps as they would be."""

    samples = TRAINED

    def answer_here(self, message: Message) -> Message:
        reply = super().answer_here(message)
        if (name := f"{LIAR}/metrics") in reply.content and "steps" in reply.content[name]:
            numbers = {**reply.content[name], "num-examples": self.samples}
            reply.content[name] = MetricRecord(numbers)  # type: ignore[arg-type]
        if (name := f"{LIAR}/upload/logit-shift") in reply.content:
            counts_C = unpack(reply.content.array_records[name])["counts"]
            share = (self.samples - TRAINED) * UNIT // len(counts_C)
            reply.content[name] = pack({"counts": torch.add(counts_C, share)})
        return reply


def run_with_samples(
    tmp_path: Path, said: int, told: list[str], *samples: int | None, **changes: Any
) -> tuple[RoundRecord, dict[str, Any]]:
    """Return the record of a round in which one site says how many samples it has, and what settings.json holds."""
    entries = {"local-steps": 4, **RUN, **changes, "results": str(tmp_path)}
    folder = site_folders(tmp_path / "sites", site=with_samples(*samples))
    settings = parse({**entries, "dataset": f"sites:{folder}/federation.toml"})
    with Lying(read_sites(folder), read_agreement(folder / "federation.toml")) as grid:
        grid.samples = said
        run(grid, settings, told.append)
    records = RunFolder(settings.folder)
    return records.rounds()[0], json.loads((records.path / "settings.json").read_text())


def test_more_samples_than_agreed_are_refused_and_recorded_and_no_more_are_not(
    tmp_path: Path,
) -> None:
    record, origin = run_with_samples(tmp_path / "1", TRAINED + 1, told := [], 24, 24, 24)
    assert record.clients == [0, 2] and [*record.failures] == [LIAR]
    assert "at most 24 training samples of site east" in record.failures[LIAR]
    assert [line for line in told if line.endswith("  left out: site east")]
    assert origin["agreement"]["samples"] == {"north": 24, "east": 24, "south": 24}
    record, _ = run_with_samples(tmp_path / "2", TRAINED, [], 24, 24, None)
    assert record.clients == [0, 1, 2] and not record.failures


def test_without_agreed_samples_the_run_says_so(tmp_path: Path) -> None:
    record, origin = run_with_samples(tmp_path, 320_000_000, told := [], 24, None, None)
    assert record.clients == [0, 1, 2]
    assert "federation.toml agrees on no samples for east, south: a site counts" in " ".join(told)
    assert origin["agreement"]["samples"] == {"north": 24}


@pytest.mark.parametrize(("said", "refused"), [(TRAINED, False), (TRAINED + 3, True)])
def test_class_counts_are_of_no_more_samples_than_agreed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: int, refused: bool
) -> None:
    """They are summed over the sites before round 1, so too many of one site's own the prior of all."""
    try:
        run_with_samples(tmp_path, said, [], 24, 24, 24, method="fedshift")
    except RuntimeError as error:  # a class prior needs every site
        assert refused and "question class-counts" in str(error)
    else:
        assert not refused
    assert ("site east left out: its answer is of 27" in caplog.text) == refused


def rows_of(folder: Path) -> list[str]:
    path = folder / "north/site.toml"
    return [str(row) for row in offline(read_site(path), path)]


def test_a_site_with_more_samples_than_agreed_learns_it_from_its_own_check(
    tmp_path: Path,
) -> None:
    folder = site_folders(tmp_path / "sites", site=with_samples(23, 24, 24))
    (row,) = [row for row in rows_of(folder) if row.startswith("NO  training set")]
    assert "24 training samples" in row and "at most 23" in row
    settings = parse({**RUN, "dataset": f"sites:{folder}/federation.toml"})
    text = settings.run_spec().to_json()
    with pytest.raises(DataError):
        site_runtime(text, ConfiguredSite(read_sites(folder)[0]))
    assert site_runtime(text, ConfiguredSite(read_sites(folder)[1]))
