"""A run's folder: settings.json, rounds.jsonl, summary.json, the checkpoint, and a lock."""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from client_app.process import code_version
from client_app.tensor_files import Damaged, check_length, writing
from data import SettingError
from server_app.lock import locked
from server_app.versions import PACKAGES, versions

Kinds = Mapping[str, type]
"""The keys that a file's JSON must have, and the types of their values; anything else counts as damaged."""
SETTINGS: Kinds = {"settings": dict, "versions": dict}
ROUND: Kinds = {"round": int, "models": dict, "failures": dict, "seconds": dict}
SUMMARY: Kinds = {"models": dict, "failures": int, "hash": dict}


class RunFolder:
    """Everything that one run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "settings.json"
        self.rounds_file = path / "rounds.jsonl"
        self.summary_file = path / "summary.json"
        self.checkpoint_file = path / "checkpoint.safetensors"
        self.previous_file = path / "previous.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock; it falls with the process, however that ends.

        Raises FolderBusy when another process holds it, and SettingError when the folder cannot be written.
        """
        with locked(self.path):
            for partial in self.path.glob(".*.[0-9]*"):  # of a process that was killed while writing
                partial.unlink(missing_ok=True)
            yield

    def clear(self) -> None:
        """Delete what an earlier start has left, but for the clients' memory files, which no one will name."""
        files = (self.summary_file, self.rounds_file, self.checkpoint_file, self.previous_file, self.settings_file)
        for file in files:
            file.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, or None; one that is cut short or changed is none."""
        return verified_file(self.summary_file, SUMMARY)

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
                return f"{self.summary_file} is damaged"
            if (found := len(self.rounds())) != rounds:
                return f"{self.rounds_file} is damaged: of {rounds} rounds it holds {found}"
            try:
                check_length(self.checkpoint_file)
            except FileNotFoundError:
                return f"{self.checkpoint_file} is missing"
            except Damaged as error:
                return str(error)
        if self.rounds_file.exists() and not self.told():
            checked = "partition-hash" in (summary or {})
            unchecked = "" if checked else "; whether the data are those that it was begun on cannot be checked"
            return f"{self.settings_file} is missing or damaged and is written anew{unchecked}"
        return ""

    def drop_damaged_summary(self, rounds: int) -> str:
        """Delete a summary whose run is not whole, so that the run goes on from what is; return `damage`."""
        if damage := self.damage(rounds):
            self.summary_file.unlink(missing_ok=True)
        return damage

    def told(self) -> dict[str, Any]:
        """Return what settings.json tells of the run; nothing where it is missing or damaged."""
        return verified_file(self.settings_file, SETTINGS) or {}

    def refuse_other_data(self, partition_hash: str) -> None:
        """Raise SettingError when the run was begun on other data or another partition: a file has been changed."""
        told = self.told() or self.summary() or {}
        if told.get("partition-hash", partition_hash) != partition_hash:
            rule = "was begun on other data or another partition: state fresh = true to start again"
            raise SettingError("results", str(self.path), rule)

    def finished_note(self) -> str:
        """Return the line that says a finished run is reused, and whether other code made it."""
        return f"finished earlier{self.other_code()}; fresh = true repeats it"

    def other_code(self) -> str:
        """Return a remark when other code than the present one began the run; empty when it was the same."""
        told = self.told()
        same = not told or told["versions"].get("code") == code_version(*PACKAGES)
        return "" if same else ", begun by another version of the code"

    def rounds(self) -> list[dict[str, Any]]:
        """Return the records of the rounds so far, up to the first one that a kill cut short, or that was changed."""
        if not self.rounds_file.exists():
            return []
        records: list[dict[str, Any]] = []
        for line in self.rounds_file.read_text(errors="replace").splitlines():
            try:
                record = verified(line, ROUND)
            except ValueError:
                break
            if record["round"] != len(records) + 1:  # a line is missing, or there twice
                break
            records.append(record)
        return records

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Append a round's record. Raises WriteFailed."""
        with writing(self.rounds_file), self.rounds_file.open("a") as file:
            file.write(line_of(finite(record)))

    def cut_after(self, round: int) -> None:
        """Drop the records of rounds after `round`: the ones whose checkpoint was never written."""
        kept = [record for record in self.rounds() if record["round"] <= round]
        write_text(self.rounds_file, "".join(map(line_of, kept)))

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write what was run, and with what; other versions that made rounds of it stay, as `earlier-versions`."""
        told, now = self.told(), versions()
        before = [*told.get("earlier-versions", []), told.get("versions", now)]
        other = [one for place, one in enumerate(before) if one != now and one not in before[:place]]
        earlier = {"earlier-versions": other} if other else {}
        write_text(self.settings_file, line_of(finite({**settings, "versions": now, **earlier}), indent=2))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which says that the run is finished: the last thing a run does."""
        write_text(self.summary_file, line_of(finite(summary), indent=2))


def line_of(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a record as JSON with its checksum: a line of rounds.jsonl where `indent` is None, else a file."""
    return json.dumps({**record, "checksum": checksum(record)}, indent=indent) + "\n"


def verified(text: str, kinds: Kinds) -> dict[str, Any]:
    """Return what `line_of` was given. Raises ValueError for text that was cut short or changed, or is another's."""
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError(f"{type(record).__name__}, not an object")
    if wrong := [key for key, kind in kinds.items() if not isinstance(record.get(key), kind)]:
        raise ValueError(f"without {', '.join(wrong)}")
    stated = record.pop("checksum", None)  # those of earlier versions have none
    if stated is not None and stated != checksum(record):
        raise ValueError(f"checksum {checksum(record)}, not {stated}")
    return record


def verified_file(path: Path, kinds: Kinds) -> dict[str, Any] | None:
    """Return what `line_of` was given for a file, or None where that is missing, cut short or changed."""
    try:
        return verified(path.read_text(), kinds)
    except (FileNotFoundError, ValueError):
        return None


def checksum(record: Mapping[str, Any]) -> str:
    """Return the CRC-32 of a record; JSON gives every number back as it was, so reading and writing agree."""
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader finds the old one or the new one. Raises WriteFailed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            partial.write_text(text)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what a record holds; None, which stands for NaN or infinity there, has no mean."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def finite(value: Any) -> Any:
    """Return the value with every NaN and infinity as None: JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for every deployed model, the numbers of the last round, of the best ones, and means of the last rounds.

    best-test is the highest balanced accuracy on the test set, an oracle's choice; best-validation, where the data have
    a validation set, the test numbers of the round that was best on that, by `on_validation`.
    """
    evaluated = [record for record in records if record.get("models")]
    result: dict[str, dict[str, Any]] = {}
    for name in evaluated[-1]["models"] if evaluated else ():
        rounds = [(record["round"], record["models"][name]) for record in evaluated if name in record["models"]]
        best = max(rounds, key=lambda item: item[1]["balanced-accuracy"])
        validated = [item for item in rounds if "validation" in item[1]]
        scalars = [key for key, value in rounds[-1][1].items() if isinstance(value, float)]
        result[name] = {
            "last": rounds[-1][1],
            "best-test": {"round": best[0], **best[1]},
            **({"best-validation": chosen(validated)} if validated else {}),
            **{
                f"mean-of-last-{count}": {
                    key: mean([numbers[key] for _, numbers in rounds[-count:]]) for key in scalars
                }
                for count in (5, 10)
            },
        }
    return result


def chosen(rounds: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return the numbers of the round that was best on the validation set."""
    number, numbers = max(rounds, key=lambda item: on_validation(item[1]))
    return {"round": number, **numbers}


def on_validation(numbers: Mapping[str, Any]) -> float:
    """Return what the best round on the validation set is chosen by; 0 where it is NaN.

    The mean accuracy over the clients where these measured, as in the code of FedBN's authors, else balanced accuracy.
    """
    found = numbers["validation"]
    measured = found["client-accuracy"]["mean"] if "client-accuracy" in found else found["balanced-accuracy"]
    return float(measured or 0.0)
