"""What one run has written to its folder: settings, versions, rounds and summary, finished or not."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import DataError
from data.readers.catalog import is_own, is_sites, members
from fedskew.formatting import site_names
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder, rounds_run, why_ended_early
from server_app.run_settings import RunSettings

VERSIONS = ("code", "torch", "flwr", "numpy", "cpu")
"""What a run's numbers depend on beside its settings; a difference is a warning."""


LEAST_CLIENTS_OF_DECILE = 20
"""Of fewer clients the lowest tenth is one client, and is called the worst client."""


def device_of(worker: Mapping[str, Any]) -> str:
    """Return what a process trained its clients on: "cpu", or "cuda" with the GPU's model where a run has it."""
    device = str(worker.get("device"))
    return f"{device} ({worker['gpu']})" if "gpu" in worker else device


def short_name(dataset: str) -> str:
    """Return a data set's name without the folders of the user's own files: domains:npz:/a/b.npz,... is b.npz, ..."""
    names = list(members(dataset))
    shown = []
    for name in names:
        if is_own(name) or is_sites(name):
            _, _, path = name.partition(":")
            shown.append(Path(path).name)
        else:
            shown.append(name)
    return ", ".join(shown) if shown != names else dataset


def slug(name: str) -> str:
    """Return a name as a run's id has it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class RunRecords:
    """What a run has written to its folder so far."""

    settings: RunSettings
    origin: Mapping[str, Any]
    """settings.json: settings, partition-hash, versions, samples; empty before the first round."""
    records: Sequence[RoundRecord]
    summary: Mapping[str, Any] | None
    """None before the run is finished."""
    divergence: Mapping[str, Any] | None = None
    """diverged.json: round, reason, learning-rate, remedy, and the client where there is one; None without it."""

    @staticmethod
    def read(settings: RunSettings) -> "RunRecords":
        """Return what is in the folder of a run, which need not be there. Raises DataError for what is no file."""
        folder = RunFolder(settings.folder)
        try:
            return RunRecords(
                settings, folder.origin(), folder.rounds(), folder.summary(), folder.divergence()
            )
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    @property
    def name(self) -> str:
        return self.settings.run_id

    @property
    def label(self) -> str:
        """The run's name without the user's path: the user's own data set is called by its file or folder."""
        data = self.settings.data.dataset
        short = short_name(data)
        if short == data:
            return self.name
        in_name = slug(data)[:40]  # run ids have so many characters of it
        return self.name.replace(in_name, slug(short), 1)

    @property
    def rounds(self) -> int:
        """The rounds that the run has when it is finished: fewer than in its settings where it ended early."""
        return rounds_run(self.summary, self.settings.general.rounds)

    @property
    def finished(self) -> bool:
        """Whether the run has a summary and the record of its last round; else another round would seem its last."""
        return self.summary is not None and self.rounds not in self.lost

    @property
    def lost(self) -> list[int]:
        """The rounds without a record, of all that a finished run has had."""
        rounds = self.rounds if self.summary is not None else 0
        recorded = {record.round for record in self.records}
        return [round for round in range(1, rounds + 1) if round not in recorded]

    @property
    def state(self) -> str:
        """finished, damaged, diverged, missing, or how far it is."""
        if self.summary is not None:
            return "finished" if self.finished else "damaged"
        if self.divergence is not None:
            return "diverged"
        rounds = self.settings.general.rounds
        if self.records:
            return f"round {self.records[-1].round} of {rounds}"
        return "missing"

    @property
    def ended(self) -> str:
        """Why a finished run has fewer rounds than its settings ask for; empty where it has all of them."""
        reason = why_ended_early(self.summary)
        if not reason:
            return ""
        return f"round {self.rounds} of {self.settings.general.rounds} was the last, {reason}"

    @property
    def samples(self) -> Mapping[str, Any]:
        """Training and test samples by class and client; empty where there are too many, or an old run has none."""
        return self.origin.get("samples") or {}

    @property
    def agreement(self) -> Mapping[str, Any]:
        """Name, sha256 and sites of the federation.toml of a run between sites, whose samples are not recorded here."""
        return self.origin.get("agreement") or {}

    @property
    def data_name(self) -> str:
        """The data's name: between sites the federation's, as its file can change between runs."""
        if agreement := self.agreement:
            return f"sites-{agreement['name']}-{agreement['sha256'][:8]}"
        return short_name(self.settings.data.dataset)

    @property
    def sites(self) -> list[str]:
        """The clients' names; none where there are too many, or an old run has none."""
        of_agreement = list(self.agreement.get("sites", ()))
        return of_agreement or site_names(self.samples.get("clients", ()))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sites) or self.settings.data.clients

    @property
    def versions(self) -> dict[str, str]:
        """What the numbers depend on beside the settings."""
        recorded = self.origin.get("versions", {})
        versions = {name: str(recorded.get(name, "unknown")) for name in VERSIONS}
        devices: set[str] = set()
        for record in self.records:
            devices.update(map(device_of, record.workers))
        versions["device"] = "+".join(sorted(devices))
        return versions
