"""A run: what it has written to its folder, finished or not, and what makes its numbers doubtful."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from data import DataError
from data.readers.catalog import is_own, is_sites, members
from fedskew.experiments.plan import Cell
from fedskew.formatting import site_names
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder, divergence_words
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings
from server_app.settings import defaults

VERSIONS = ("code", "torch", "flwr", "numpy", "cpu")
"""What a run's numbers depend on beside its settings; a difference is a warning."""


def slug(name: str) -> str:
    """Return a name as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Run:
    """What a run has written to its folder so far, or what is kept of a finished run in a file."""

    settings: RunSettings
    origin: Mapping[str, Any]
    """settings.json: settings, partition-hash, versions, samples; empty before the first round."""
    records: Sequence[RoundRecord]
    summary: Mapping[str, Any] | None
    """None before the run is finished."""
    divergence: Mapping[str, Any] | None = None
    """diverged.json: round, reason, learning-rate, remedy, and the client where there is one; None without it."""
    file: Path | None = None
    """The file of a kept run; None for a folder."""

    @staticmethod
    def read(settings: RunSettings) -> "Run":
        """Return what is in the folder of a run, which need not be there. Raises DataError for what is no file."""
        folder = RunFolder(settings.folder)
        try:
            return Run(
                settings, folder.origin(), folder.rounds(), folder.summary(), folder.divergence()
            )
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    @property
    def name(self) -> str:
        return self.settings.run_id

    @property
    def rounds(self) -> int:
        """The rounds that the run has when it is finished."""
        return self.settings.general.rounds

    @property
    def lost(self) -> list[int]:
        """The rounds without a record, of all that a finished run has had."""
        if self.summary is None:
            return []
        recorded = {record.round for record in self.records}
        return [round for round in range(1, self.rounds + 1) if round not in recorded]

    @property
    def finished(self) -> bool:
        """Whether the run has a summary and the record of its last round; else another round would seem its last."""
        is_recorded = any(record.round == self.rounds for record in self.records)
        return self.summary is not None and is_recorded

    @property
    def has_ended(self) -> bool:
        """Whether the run has finished or diverged."""
        return self.finished or self.divergence is not None

    @property
    def state(self) -> str:
        """finished, damaged, diverged, missing, or how far it is."""
        if self.summary is not None:
            return "finished" if self.finished else "damaged"
        if self.divergence is not None:
            return "diverged"
        if self.records:
            return f"round {self.records[-1].round} of {self.settings.general.rounds}"
        return "missing"

    @property
    def samples(self) -> Mapping[str, Any]:
        """Training and test samples by class and client; empty where there are too many."""
        return self.origin.get("samples") or {}

    @property
    def agreement(self) -> Mapping[str, Any]:
        """Name, sha256 and sites of the federation.toml of a run between sites, whose samples are not recorded here."""
        return self.origin.get("agreement") or {}

    @property
    def data_name(self) -> str:
        """The data's name: of files their names without folders, between sites the federation's name and hash."""
        if agreement := self.agreement:
            return f"sites-{agreement['name']}-{agreement['sha256'][:8]}"
        names = []
        for name in members(self.settings.data.dataset):
            is_path = is_own(name) or is_sites(name)
            names.append(Path(name).name if is_path else name)
        return ", ".join(names)

    @property
    def sites(self) -> list[str]:
        """The clients' names; none where there are too many."""
        of_agreement = list(self.agreement.get("sites", ()))
        return of_agreement or site_names(self.samples.get("clients", ()))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sites) or self.settings.data.clients

    @property
    def own_test_sets(self) -> bool:
        """Whether every client has a test set of its own."""
        return bool(self.agreement or self.samples.get("client-test"))

    @property
    def hash(self) -> str:
        """The hash of a finished run's weights; empty before."""
        return str((self.summary or {}).get("hash", {}).get("all") or "")

    @property
    def versions(self) -> dict[str, str]:
        """What the numbers depend on beside the settings; a GPU has its model's name."""
        recorded = self.origin.get("versions", {})
        versions = {}
        for name in VERSIONS:
            versions[name] = str(recorded.get(name, "unknown"))
        devices = set()
        for record in self.records:
            for worker in record.workers:
                gpu = f" ({worker['gpu']})" if "gpu" in worker else ""
                devices.add(f"{worker.get('device')}{gpu}")
        versions["device"] = "+".join(sorted(devices))
        return versions

    def warnings(self) -> Iterator[str]:
        """Yield what is wrong with the run: damaged, diverged, unfinished, without some rounds or clients."""
        if self.divergence is not None:
            yield divergence_words(self.divergence)
        elif self.state == "damaged":
            rounds = f"{len(self.records)} of {self.rounds} rounds"
            yield f"rounds.jsonl is damaged, {rounds}: left out; its own command mends it"
        elif self.records and not self.finished:
            yield f"unfinished and left out, {self.state}"
        if not self.finished:
            return
        if self.lost:
            rounds = listed(map(str, self.lost), 10)
            yield f"the records of rounds {rounds} are lost; curves, bests and means lack them"
        times_of = Counter(chain.from_iterable(record.failures for record in self.records))
        if times_of:
            sites = self.agreement.get("sites")
            clients = []
            for client, times in times_of.most_common():
                clients.append(f"{sites[client] if sites else f'client {client}'} ({times})")
            failed = f"{times_of.total()} times a client failed in a round and was left out of it"
            yield f"{failed}: {listed(clients)}"
        yield from self.warnings_of_origin()

    def warnings_of_origin(self) -> Iterator[str]:
        """Yield whether settings.json is of other settings than planned, or of several versions."""
        if not self.origin:
            yield "settings.json is missing or damaged; its own command writes it anew"
            return
        if self.other_settings:
            keys = ", ".join(self.other_settings)
            yield f"its settings.json differs from the experiment in {keys}"
        made_with = [self.origin["versions"], *self.origin.get("earlier-versions", ())]
        changed = [name for name in VERSIONS if len({str(one.get(name)) for one in made_with}) > 1]
        if changed:
            names = ", ".join(changed)
            yield f"begun and finished with different {names}, see its settings.json"

    @property
    def other_settings(self) -> list[str]:
        """The settings with an effect on numbers that settings.json has otherwise than planned; unnamed is default.

        One that this version lacks was at its default: the run's id would be another.
        """
        planned = defaults() | self.settings.flat()
        recorded = defaults() | self.origin["settings"]
        different = []
        for key in sorted(planned.keys() - WITHOUT_EFFECT_ON_NUMBERS):
            if planned[key] != recorded.get(key):
                different.append(key)
        return different


def warnings_of(cells: Iterable[Cell], runs: Mapping[str, Run]) -> list[str]:
    """Return a sentence for all that is wrong with runs, and for what differs between runs that are compared.

    Args:
        cells: of the table.
        runs: theirs, by id.
    """
    warnings = []
    missing = [name for name, run in runs.items() if run.state == "missing"]
    if missing:
        warnings.append(f"{len(missing)} of {len(runs)} runs are missing: {listed(missing)}.")
    for name, run in runs.items():
        warnings += [f"{name}: {sentence}." for sentence in run.warnings()]

    # By what must be the same in runs that are compared or averaged, the value of each finished run.
    values: dict[str, dict[str, str]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if not run.finished:
            continue
        where = f"{cell.column}, seed {cell.seed}".removeprefix(", ")
        what = f"Not the same samples at the same clients ({where}): partition"
        partition = str(run.origin.get("partition-hash", "unknown"))
        values.setdefault(what, {})[run.name] = partition[:12]
        for name, version in run.versions.items():
            of_version = values.setdefault(f"Runs were made with different {name}:", {})
            of_version[run.name] = version
    for what, value_of in values.items():
        by_value: dict[str, list[str]] = {}
        for name, value in value_of.items():
            by_value.setdefault(value, []).append(name)
        if len(by_value) > 1:
            texts = [f"{value} in {listed(names)}" for value, names in by_value.items()]
            warnings.append(f"{what} {'; '.join(texts)}.")
    return warnings


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    flat = [cell.run.flat() for cell in cells]
    return ", ".join(dict.fromkeys(str(settings[key]) for settings in flat if key in settings))


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names, and how many more there are."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
