"""Kept records: finished runs as small files without weights, so that a suite continues on another machine.

One file per run, RUN.json.gz: settings, versions, samples, the numbers by round that reports need, and the summary's
hashes. A file comes from elsewhere, as data do: all of it is checked before a number of it is used.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import DataError, require
from data.package_files import ROOT
from fedskew.report.kept_record_checks import (
    AMOUNTS,
    OVER_CLIENTS,
    ROUND_KEYS,
    SHARES,
    check,
    check_hashes,
    check_keys,
    check_names,
    check_samples,
    check_settings,
    check_versions,
    checked_last_round,
    checked_rounds,
    refuse_constant,
)
from fedskew.report.run_records import RunRecords, device_of
from server_app.keys import SELECTIONS
from server_app.record import RoundRecord
from server_app.round_selection import points_of, select, summarize
from server_app.run_folder import line_of, verified
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings

FOLDER = ROOT / "benchmarks" / "papers"
"""The repository's own; a wheel has none."""
FORMAT = 1
END = ".json.gz"
LARGEST_FOLDER = 8 * 2**20
"""Bytes of all files: the repository carries them."""
LARGEST_FILE = 2**18
"""Bytes; a run of 60 rounds and six models has about 20,000."""
LARGEST_TEXT = 2**24
"""Bytes of a file's text; without a limit a small file could unpack to fill the memory."""
KINDS: Mapping[str, type] = {
    "format": int,
    "run": str,
    "settings": dict,
    "versions": dict,
    "partition-hash": str,
    "samples": dict,
    "rounds": list,
    "rows": dict,
    "failures": int,
    "hash": dict,
}
"""The keys that a file must have, and the types of their values."""
OPTIONAL: Mapping[str, type] = {
    "earlier-versions": list,
    "standardization": dict,
    "model-hashes": dict,
    "ended": dict,
}


@dataclass(frozen=True)
class KeptRun(RunRecords):
    """A finished run from a file of kept records."""

    file: Path = field(default=Path(), kw_only=True)

    @property
    def commit(self) -> str:
        """The commit of the code that trained it, or "unknown"."""
        return str(self.origin["versions"].get("commit", "unknown"))

    @property
    def cpu(self) -> str:
        """The CPU type that trained it: what torch calls its vector instructions."""
        return str(self.origin["versions"].get("cpu", "unknown"))


class KeptRecords:
    """A folder of kept records. A file is read when its run is asked for, and once."""

    def __init__(self, folder: Path | None) -> None:
        """Nothing is read yet. None, and a folder that is not there, keep no records."""
        self.folder = folder
        self.known: dict[str, KeptRun | None] = {}

    def of(self, settings: RunSettings) -> KeptRun | None:
        """Return the kept run of these settings, or None. Raises DataError for a file that is damaged or is wrong."""
        name = settings.run_id
        if self.folder is None or settings.general.overwrite:
            return None
        if name not in self.known:
            file = file_of(self.folder, name)
            self.known[name] = read(file, settings) if file.is_file() else None
        return self.known[name]

    def among(self, planned: Iterable[RunSettings]) -> dict[str, KeptRun]:
        """Return the kept runs among planned ones, by their ids."""
        runs = {}
        for settings in planned:
            run = self.of(settings)
            if run is not None:
                runs[run.name] = run
        return runs


def records_folder(named: Path | None) -> Path:
    """Return the folder that a command names, or the repository's own. Raises SettingError for no folder."""
    if named is not None:
        require(named.is_dir(), "--records", str(named), "is no folder")
        return named
    return FOLDER


def file_of(folder: Path, run: str) -> Path:
    """Return the file of a run."""
    return folder / f"{run}{END}"


def origins(runs: Iterable[KeptRun]) -> list[str]:
    """Return in words where kept runs come from, one text per commit, processor and torch."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        torch = str(run.origin["versions"].get("torch", "unknown"))
        counts[run.commit[:12], processor_of(run), torch] += 1
    lines = []
    for (commit, processor, torch), count in counts.items():
        runs_word = "run" if count == 1 else "runs"
        lines.append(f"{count} {runs_word} of commit {commit}, {processor}, torch {torch}")
    return lines


def processor_of(run: KeptRun) -> str:
    """Return in words what a kept run was trained on. Old records do not have the GPU's model."""
    device = run.versions["device"]
    if device == "cuda":
        return "a GPU"
    return device if "cuda" in device else f"CPU type {run.cpu}"


# ---- writing ---------------------------------------------------------------------------------------------------------


def keep(runs: Sequence[RunRecords], folder: Path) -> tuple[list[Path], int]:
    """Write finished runs to a folder, and return the files written and the bytes of all files there.

    A file that has the same content stays as it is. Every file is read back and checked.

    Raises:
        DataError: A run's records cannot be kept, or all files together would exceed LARGEST_FOLDER.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {}
    for run in runs:
        contents[file_of(folder, run.name)] = packed(content_of(run))
    sizes = {file: file.stat().st_size for file in folder.glob(f"*{END}")}
    sizes |= {file: len(content) for file, content in contents.items()}
    total = sum(sizes.values())
    if total > LARGEST_FOLDER:
        rule = f"would have {total} bytes of records, and at most {LARGEST_FOLDER} are kept"
        raise DataError(rule, where=str(folder))

    written = []
    for run in runs:
        file = file_of(folder, run.name)
        if file.is_file() and file.read_bytes() == contents[file]:
            continue
        partial_file = file.with_name(f".{file.name}")
        partial_file.write_bytes(contents[file])
        try:
            read(partial_file, run.settings)
            partial_file.replace(file)
        finally:
            partial_file.unlink(missing_ok=True)
        written.append(file)
    return written, total


def content_of(run: RunRecords) -> dict[str, Any]:
    """Return what is kept of a finished run; no path of the machine that trained it."""
    summary = run.summary
    assert summary is not None  # only finished runs are kept
    settings = {}
    for key, value in run.settings.flat().items():
        if key not in WITHOUT_EFFECT_ON_NUMBERS:
            settings[key] = value
    content: dict[str, Any] = {
        "format": FORMAT,
        "run": run.name,
        "settings": settings,
        "versions": run.origin["versions"],
        "partition-hash": run.origin["partition-hash"],
        "samples": run.origin.get("samples") or {},
        "rounds": [shortened(record, run) for record in run.records],
        "rows": summary["rows"],
        "failures": summary["failures"],
        "hash": summary["hash"],
    }
    sources = (
        ("earlier-versions", run.origin),
        ("standardization", run.origin),
        ("model-hashes", summary),
        ("ended", summary),
    )
    for key, source in sources:
        if key in source:
            content[key] = source[key]
    return content


def shortened(record: RoundRecord, run: RunRecords) -> dict[str, Any]:
    """Return what is kept of a round's record, as JSON."""
    whole = record.to_json()
    kept = {key: whole[key] for key in ROUND_KEYS}
    kept["seconds"] = {"round": record.seconds.round}
    kept["workers"] = devices_of(record)
    is_last = record.round == run.rounds
    models = {}
    for name, numbers in whole["models"].items():
        is_selected = record.round in selected_rounds(run.records, name)
        models[name] = shortened_numbers(numbers, is_selected, is_last)
    kept["models"] = models
    for key in record.metrics:
        kept[key] = whole[key]
    return kept


def devices_of(record: RoundRecord) -> list[dict[str, str]]:
    """Return the devices of the processes that ran a round's clients, each once, with the model of a GPU."""
    devices = {}
    for worker in record.workers:
        devices[device_of(worker)] = {
            key: str(worker[key]) for key in ("device", "gpu") if key in worker
        }
    return [devices[name] for name in sorted(devices)]


def selected_rounds(records: Sequence[RoundRecord], model: str) -> set[int]:
    """Return the rounds that a selection can mean: of these an interval needs the test examples."""
    points = points_of(records, model)
    rounds: set[int] = set()
    for selection in SELECTIONS:
        rounds |= {point.round for point in select(points, selection, fewer=True)}
    return rounds


def shortened_numbers(
    numbers: Mapping[str, Any], is_selected: bool, is_last: bool
) -> dict[str, Any]:
    """Return what is kept of a model's numbers.

    Recalls and the clients' own numbers are kept of rounds that a selection can mean, client-accuracy of all rounds,
    and the confusion matrix of the last one.
    """
    kept: dict[str, Any] = {}
    for name, value in numbers.items():
        if name in (*SHARES, *AMOUNTS, "positive-class", "best"):
            kept[name] = value
        elif name in OVER_CLIENTS:
            has_values = is_selected or name == "client-accuracy"
            kept[name] = value if has_values else {**value, "values": []}
        elif (name == "recall" and is_selected) or (name == "confusion" and is_last):
            kept[name] = value
        elif name == "validation":
            kept[name] = shortened_numbers(value, is_selected, is_last=False)
    return kept


def packed(content: Mapping[str, Any]) -> bytes:
    """Return a file's bytes; the same content gives the same bytes."""
    return gzip.compress(line_of(content).encode(), compresslevel=9, mtime=0)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(file: Path, settings: RunSettings) -> KeptRun:
    """Return the run of a file, which must be of these settings.

    Raises:
        DataError: The file cannot be read, is damaged, is of another run, or has anything that such a run cannot have.
    """
    try:
        content = unpacked(file, settings.run_id)
        check_settings(content["settings"], settings)
        check_versions([content["versions"], *content.get("earlier-versions", ())])
        check_hashes(content)
        check_samples(content["samples"], settings)
        last = checked_last_round(content, settings)
        records = checked_rounds(content["rounds"], settings, last)
        check_names(content["rows"], records)
    except DataError as error:
        raise error.within(str(file)) from error
    except OSError as error:
        reason = error.strerror or "is no gzip file"
        raise DataError(f"cannot be read: {reason}", where=str(file)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError) as error:
        raise DataError("is damaged", where=str(file)) from error
    except zlib.error as error:
        raise DataError("is damaged", where=str(file)) from error
    origin = {key: content[key] for key in ("versions", "partition-hash", "samples", "settings")}
    for key in ("earlier-versions", "standardization"):
        if key in content:
            origin[key] = content[key]
    summary = {
        "run": settings.run_id,
        "method": settings.general.method,
        "rows": content["rows"],
        "rounds": settings.general.rounds,
        "models": summarize(records),
        "failures": content["failures"],
        "hash": content["hash"],
        "partition-hash": content["partition-hash"],
    }
    for key in ("model-hashes", "ended"):
        if key in content:
            summary[key] = content[key]
    return KeptRun(settings, origin, records, summary, file=file)


def unpacked(file: Path, run: str) -> dict[str, Any]:
    """Return a file's content, whose keys, checksum and run are right. Raises DataError, OSError and ValueError."""
    size = file.stat().st_size
    if size > LARGEST_FILE:
        raise DataError(f"has {size} bytes, and a kept run has at most {LARGEST_FILE}")
    with gzip.open(file) as stream:
        text = stream.read(LARGEST_TEXT + 1)
    if len(text) > LARGEST_TEXT:
        raise DataError(f"unpacks to more than {LARGEST_TEXT} bytes")
    json.loads(text, parse_constant=refuse_constant)
    content = verified(text.decode(), KINDS)
    if content["run"] != run:
        raise DataError(f"is of run {content['run']}, not {run}")
    if content["format"] != FORMAT:
        raise DataError(f"has format {content['format']}, not {FORMAT}")
    known = KINDS.keys() | OPTIONAL.keys()
    check_keys("the file", content, known)
    for key, kind in OPTIONAL.items():
        check(isinstance(content.get(key, kind()), kind), key, f"must be a {kind.__name__}")
    return content
