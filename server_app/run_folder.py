"""A run's folder: settings.json, rounds.jsonl, summary.json or diverged.json, the checkpoint, and a lock."""

import json
import os
import platform
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from client_app.process import code_version
from client_app.state import State, size, split_prefix, with_prefix
from client_app.tensor_files import KIND, Damaged, check_length, read, write_atomically, writing
from data import Federation, SettingError
from data.files import owner_only
from data.packages import INSTALLED_AS_ONE, ROOT
from data.text import LineAboutRun, LineSink
from server_app.record import RoundRecord, to_json
from server_app.run_settings import RunSettings
from server_app.trackers import trackers_of
from strategies.core.server import Diverged

LOCK_WAIT = 2.0
"""Seconds to wait for a lock: a process that has just been killed holds it until its last thread is gone."""
PACKAGES = ("client_app", "data", "fedskew", "server_app", "strategies")
"""The packages whose code is hashed as the version of a run."""


LARGEST_PREDICTIONS = 2**24
"""Bytes of test-predictions.safetensors; what is larger is not written."""


class Predictions(NamedTuple):
    """One model's predictions for the samples, or subjects, of the server's test set: clients send sums alone.

    With them a report resamples test examples, and compares two methods on the same ones. The file has the samples'
    numbers and subjects too: docs/reference/run-files.md.
    """

    log_probabilities_NC: NDArray[np.float64]
    labels_N: NDArray[np.int64]


class RunFolder:
    """Everything that one run leaves behind."""

    def __init__(self, path: Path, moved: bool = False) -> None:
        """Nothing is read, but for a folder that may have been `moved` to another name: which run it is of."""
        self.path = path
        self.run = path.resolve().name
        self.settings_file = path / "settings.json"
        self.rounds_file = path / "rounds.jsonl"
        self.summary_file = path / "summary.json"
        self.divergence_file = path / "diverged.json"
        self.checkpoint_file = path / "checkpoint.safetensors"
        self.previous_file = path / "previous.safetensors"
        self.predictions_file = path / "test-predictions.safetensors"
        self.agreement_file = path / "federation.toml"
        self.waiting_file = path / "waiting.txt"
        """For which sites the run waits at present, for the command that follows it; not there while it does not."""
        if moved:
            self.run = (verified_file(self.settings_file) or {}).get("run", self.run)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock; it falls with the process, however that ends.

        Raises FolderBusy when another process holds it, and SettingError when the folder cannot be written.
        """
        with locked(self.path):
            # What a killed process was writing.
            for partial in self.path.glob(".*.[0-9]*"):
                partial.unlink(missing_ok=True)
            yield

    def note_waiting(self, line: str) -> None:
        """Note for whom the run waits, or with "" that it does not. A disk that takes no note does not end the run."""
        with suppress(OSError):
            if line:
                write_text(self.waiting_file, line)
            else:
                self.waiting_file.unlink(missing_ok=True)

    @contextmanager
    def begin(
        self,
        settings: RunSettings,
        federation: Federation,
        report_line: LineSink,
    ) -> Iterator[dict[str, Any] | None]:
        """Hold the run's lock, and yield the summary of a run that is finished, else None.

        A fresh run deletes what an earlier start has left. Damage is reported, and a finished run is replayed to its
        trackers. A run between sites leaves nothing that another user of this machine can read.
        Raises SettingError for a run that was begun on other data, and as `locked`.
        """
        report_line(LineAboutRun(f"run folder: {self.path}"))
        with ExitStack() as stack:
            if settings.agreement is not None:
                stack.enter_context(owner_only())
            stack.enter_context(self.locked())
            if settings.general.overwrite:
                self.clear()
            self.refuse_other_data(federation.hash)
            damage = self.drop_damaged_summary(settings.general.rounds)
            if damage:
                report_line(damage)
            summary = self.summary()
            if summary is not None:
                line = f"finished earlier{self.other_code()}; overwrite = true repeats it"
                report_line(LineAboutRun(line))
                self.replay_to_trackers(settings)
                self.warn_missing_rounds(settings.general.rounds, report_line)
            # A run that begins or goes on has not diverged yet.
            self.divergence_file.unlink(missing_ok=True)
            yield summary

    def reset(self, settings: RunSettings) -> RunSettings:
        """Delete what there is of a fresh run, once for all attempts at it; return the settings that continue it."""
        if not settings.general.overwrite:
            return settings
        with self.locked():
            self.clear()
        return settings.going_on()

    def replay_to_trackers(self, settings: RunSettings) -> None:
        """Send a finished run's records to the trackers that the settings name."""
        for tracker in trackers_of(settings, self.path, self.rounds()):
            tracker.end(self.summary())

    def clear(self) -> None:
        """Delete what an earlier start has left, but for the clients' memory files, which no one will name."""
        states = (self.checkpoint_file, self.previous_file, self.predictions_file)
        ends = (self.summary_file, self.divergence_file)
        for file in (*ends, self.rounds_file, *states, self.settings_file):
            file.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, or None; one that is cut short, changed or another run's is none."""
        return verified_file(self.summary_file, self.run)

    def divergence(self) -> dict[str, Any] | None:
        """Return how the run diverged, as `write_divergence` was given it; None for one that did not."""
        if self.summary_file.exists():
            return None
        return verified_file(self.divergence_file, self.run)

    def finished(self, rounds: int) -> dict[str, Any] | None:
        """Return the summary of a run of so many rounds whose files are all whole, or None."""
        return None if self.damage(rounds) else self.summary()

    def damage(self, rounds: int) -> str:
        """Return what is wrong with the files of a finished run, or with the settings of one that is to go on, or "".

        Of the checkpoint, which a finished run needs no more, the length alone is checked: who reads it checks it.
        """
        summary = self.summary()
        if self.summary_file.exists():
            if summary is None:
                return f"{self.summary_file} is damaged, or another run's"
            lost = self.lost(rounds)
            if rounds in lost:
                recorded = rounds - len(lost)
                return f"{self.rounds_file} is damaged: of {rounds} rounds it holds {recorded}"
            try:
                check_length(self.checkpoint_file)
            except FileNotFoundError:
                return f"{self.checkpoint_file} is missing"
            except Damaged as error:
                return str(error)
        if not self.rounds_file.exists() or self.origin():
            return ""
        damage = f"{self.settings_file} is missing or damaged and is written anew"
        if summary is None or "partition-hash" not in summary:
            damage += "; whether the data are those that it was begun on cannot be checked"
        return damage

    def drop_damaged_summary(self, rounds: int) -> str:
        """Delete the summary of a damaged run, so that the run resumes from the remaining files; return `damage`."""
        damage = self.damage(rounds)
        if damage:
            self.summary_file.unlink(missing_ok=True)
        return damage

    def origin(self) -> dict[str, Any]:
        """Return what settings.json says the run was made of; nothing where it is missing or damaged."""
        return verified_file(self.settings_file, self.run) or {}

    def refuse_other_data(self, partition_hash: str) -> None:
        """Raise SettingError when the run was begun on other data or another partition: a file has been changed."""
        origin = self.origin() or self.summary() or {}
        if origin.get("partition-hash", partition_hash) != partition_hash:
            rule = "was begun on other data or another partition"
            remedy = "state overwrite = true to start again"
            raise SettingError("results", str(self.path), rule, remedy=remedy)

    def other_code(self) -> str:
        """Return a remark when other code than the present one began the run; empty when it was the same."""
        origin = self.origin()
        same = not origin or origin["versions"].get("code") == code_version(*PACKAGES)
        return "" if same else ", begun by another version of the code"

    def rounds(self) -> list[RoundRecord]:
        """Return the records of the rounds so far, in order; a line that was cut short or changed is none."""
        whole: dict[int, RoundRecord] = {}
        text = self.rounds_file.read_text(errors="replace") if self.rounds_file.exists() else ""
        for line in text.splitlines():
            try:
                content = verified(line, self.run)
                content.pop("run", None)
                whole[content["round"]] = RoundRecord.of(content)
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
                continue
        return [whole[round] for round in sorted(whole)]

    def lost(self, rounds: int) -> list[int]:
        """Return the rounds of the first `rounds` that have no record."""
        recorded = {record.round for record in self.rounds()}
        return [round for round in range(1, rounds + 1) if round not in recorded]

    def warn_missing_rounds(self, rounds: int, report_line: LineSink) -> None:
        """Report which records of the first `rounds` are missing, if any."""
        lost = self.lost(rounds)
        if not lost:
            return
        named = ", ".join(map(str, lost[:10]))
        if len(lost) > 10:
            named += ", ..."
        found = f"{self.rounds_file} has lost the records of rounds {named}"
        report_line(f"{found}: weights stay, reports leave them out")

    def add_round(self, record: RoundRecord) -> None:
        """Append a round's record, which is on the disk when this returns: a checkpoint is going to follow it.

        Raises WriteFailed.
        """
        with writing(self.rounds_file), self.rounds_file.open("a") as file:
            file.write(self.line(record))
            file.flush()
            os.fsync(file.fileno())

    def line(self, record: RoundRecord) -> str:
        """Return a record as a line of rounds.jsonl."""
        return line_of({**record.to_json(), "run": self.run})

    def cut_after(self, round: int) -> None:
        """Drop the records of rounds after `round`: the ones whose checkpoint was never written."""
        kept = [self.line(record) for record in self.rounds() if record.round <= round]
        write_text(self.rounds_file, "".join(kept))

    def write_predictions(self, kept: Mapping[str, State]) -> None:
        """Write what every model said of the test set, unless that is too large; `kept` is of `evaluate_models`.

        Raises WriteFailed.
        """
        tensors: dict[str, Tensor] = {}
        for name, state in kept.items():
            tensors |= with_prefix(name, state)
        self.predictions_file.unlink(missing_ok=True)
        if tensors and size(tensors) <= LARGEST_PREDICTIONS:
            identity = {KIND: "test-predictions", "run": self.run}
            write_atomically(self.predictions_file, tensors, identity)

    def predictions(self, model: str) -> Predictions | None:
        """Return what a model said; None where the run kept nothing of it, or the file is damaged."""
        try:
            identity = {KIND: "test-predictions", "run": self.run}
            tensors, _ = read(self.predictions_file, identity)
            said = split_prefix(tensors)[model]
            return Predictions(said["log-probabilities"].numpy(), said["labels"].numpy())
        except (OSError, Damaged, KeyError, ValueError):
            return None

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write what was run, and with what; other versions that made rounds of it stay, as `earlier-versions`."""
        before = self.origin()
        now = versions()
        earlier: list[Any] = []
        for version in (*before.get("earlier-versions", ()), before.get("versions", now)):
            if version != now and version not in earlier:
                earlier.append(version)
        content = {"run": self.run, **settings, "versions": now}
        if earlier:
            content["earlier-versions"] = earlier
        write_text(self.settings_file, line_of(to_json(content), indent=2))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which says that the run is finished: the last thing a run does."""
        write_text(self.summary_file, line_of(to_json(summary), indent=2))

    def write_divergence(self, error: Diverged, learning_rate: float) -> None:
        """Write that the run has diverged: round, reason, learning-rate, remedy, and the client where there is one."""
        record: dict[str, Any] = {"run": self.run, "round": error.round, "reason": error.reason}
        if error.client:
            record["client"] = error.client
        record |= {"learning-rate": learning_rate, "remedy": error.remedy}
        write_text(self.divergence_file, line_of(to_json(record), indent=2))


def divergence_words(divergence: Mapping[str, Any]) -> str:
    """Return a divergence as its run's last line has it."""
    where = f"diverged in round {divergence['round']}"
    return f"{where}: {divergence['reason']} ({divergence['remedy']})"


def line_of(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a record as JSON with its checksum: a line of rounds.jsonl where `indent` is None, else a file."""
    text = json.dumps({**record, "checksum": checksum(record)}, indent=indent)
    return f"{text}\n"


def verified(text: str, run: str = "") -> dict[str, Any]:
    """Return what `line_of` was given. Raises ValueError for text that was cut short, changed or is another run's."""
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError(f"{type(record).__name__}, not an object")
    written = record.pop("checksum", None)
    computed = checksum(record)
    if written != computed:
        raise ValueError(f"checksum {computed}, not {written}")
    if run and record.get("run", run) != run:
        raise ValueError(f"of run {record['run']}, not {run}")
    return record


def verified_file(path: Path, run: str = "") -> dict[str, Any] | None:
    """Return what `line_of` was given for a file, or None where that is missing, damaged or another run's."""
    try:
        return verified(path.read_text(), run)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def checksum(record: Mapping[str, Any]) -> str:
    """Return the CRC-32 of a record; JSON gives every number back as it was, so reading and writing agree."""
    text = json.dumps(record)
    return f"{zlib.crc32(text.encode()):08x}"


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader finds the old one or the new one. Raises WriteFailed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            partial.write_text(text)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class FolderBusy(RuntimeError):
    """Another process is working in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made first.

    Raises FolderBusy when another process holds it, and SettingError when the folder cannot be written.
    """
    file = folder / "lock"
    lock = FileLock(file, timeout=LOCK_WAIT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        process, _, machine = file.read_text().partition(" ")
        is_remote = machine not in ("", gethostname())
        elsewhere = f" of machine {machine}" if is_remote else ""
        raise FolderBusy(f"process {process}{elsewhere} is working on {folder}") from error
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("results", str(folder), rule) from error
    try:
        # A full disk is reported where it does harm: this text is only for the error of a process that waits.
        with suppress(OSError):
            file.write_text(f"{os.getpid()} {gethostname()}")
        yield
    finally:
        lock.release()


def tidy(folder: Path) -> None:
    """Delete what a killed process was writing into a run's folder, unless another one is at work there by now."""
    if folder.is_dir():
        with suppress(FolderBusy, SettingError), RunFolder(folder).locked():
            pass


def versions() -> dict[str, str]:
    """Return what a number may depend on beside the settings."""
    return {
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "code": code_version(*PACKAGES),
        **{package: installed(package) for package in ("fedskew", "flwr", "torch", "numpy", "ray")},
        "commit": commit(),
    }


@cache
def installed(package: str) -> str:
    """Return a package's version, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def commit() -> str:
    """Return the commit of the code, or "unknown" outside a checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        # git would describe the user's own repository around an installed package.
        if not INSTALLED_AS_ONE:
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return "unknown"
