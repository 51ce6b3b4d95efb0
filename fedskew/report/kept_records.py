"""Kept records: finished runs as small files without weights, so that a suite continues on another machine.

One file per run, RUN.json.gz: settings, versions, samples, the numbers by round that reports need, and the summary's
hashes. A file comes from elsewhere, as data do: all of it is checked before a number of it is used.
"""

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import DataError, require
from data.package_files import ROOT
from data.renamed_settings import renamed, stored
from fedskew.report.results import RunRecords
from server_app.keys import SELECTIONS
from server_app.record import RoundRecord
from server_app.round_selection import points_of, select, summarize
from server_app.run_folder import line_of, rounds_run, verified
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings
from server_app.settings import defaults

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
OPTIONAL: Mapping[str, type] = {"earlier-versions": list, "model-hashes": dict, "ended": dict}
SHARES = (
    "accuracy",
    "balanced-accuracy",
    "macro-f1",
    "calibration-error",
    "auroc",
    "auprc",
    "many-recall",
    "medium-recall",
    "few-recall",
)
"""A model's numbers between 0 and 1."""
AMOUNTS = ("loss", "brier")
"""A model's numbers of 0 or more."""
OVER_CLIENTS = (
    "client-accuracy",
    "client-balanced-accuracy",
    "client-auroc",
    "local-accuracy",
)
"""The numbers over the clients that are kept; statements can name them."""
ROUND_KEYS = (
    "round",
    "evaluated-by",
    "loss",
    "failures",
    "used",
    "failed",
    "bytes-down",
    "bytes-up",
    "seconds",
)
"""What is kept of a round's record beside models, devices and the methods' own numbers."""
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
"""Of a model, and of a method's own number."""
HASH = re.compile(r"[0-9a-f]{8,64}")


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
    """Return in words where kept runs come from, one text per commit and CPU type."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        torch = str(run.origin["versions"].get("torch", "unknown"))
        counts[run.commit[:12], run.cpu, torch] += 1
    lines = []
    for (commit, cpu, torch), count in counts.items():
        runs_word = "run" if count == 1 else "runs"
        lines.append(f"{count} {runs_word} of commit {commit}, CPU type {cpu}, torch {torch}")
    return lines


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
        "settings": stored(settings),
        "versions": run.origin["versions"],
        "partition-hash": run.origin["partition-hash"],
        "samples": run.origin.get("samples") or {},
        "rounds": [shortened(record, run) for record in run.records],
        "rows": summary["rows"],
        "failures": summary["failures"],
        "hash": summary["hash"],
    }
    sources = (("earlier-versions", run.origin), ("model-hashes", summary), ("ended", summary))
    for key, source in sources:
        if key in source:
            content[key] = source[key]
    return content


def shortened(record: RoundRecord, run: RunRecords) -> dict[str, Any]:
    """Return what is kept of a round's record, as JSON."""
    whole = record.to_json()
    kept = {key: whole[key] for key in ROUND_KEYS}
    kept["seconds"] = {"round": record.seconds.round}
    kept["workers"] = [{"device": device} for device in devices_of(record)]
    is_last = record.round == run.rounds
    models = {}
    for name, numbers in whole["models"].items():
        is_selected = record.round in selected_rounds(run.records, name)
        models[name] = shortened_numbers(numbers, is_selected, is_last)
    kept["models"] = models
    for key in record.metrics:
        kept[key] = whole[key]
    return kept


def devices_of(record: RoundRecord) -> list[str]:
    """Return the devices of the processes that ran a round's clients, each once."""
    devices = {str(worker.get("device")) for worker in record.workers}
    return sorted(devices)


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
    if "earlier-versions" in content:
        origin["earlier-versions"] = content["earlier-versions"]
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


def refuse_constant(name: str) -> None:
    """Raise DataError for NaN or Infinity, which JSON does not have."""
    raise DataError(f"has the number {name}, which JSON does not have")


def check(holds: bool, key: str, rule: str) -> None:
    """Raise DataError for a key's value that breaks a rule."""
    if not holds:
        raise DataError(rule, key=key)


def check_keys(what: str, content: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise DataError for a key that is not known."""
    unknown = sorted(content.keys() - set(known))
    check(not unknown, f"{what}: {unknown[0][:60] if unknown else ''}", "is no key of a kept run")


def check_settings(recorded: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError where a file's settings are not the run's: its name then says another run than it is."""
    of_file = renamed(recorded)
    planned = settings.flat()
    for key in sorted(planned.keys() | of_file.keys()):
        if key in WITHOUT_EFFECT_ON_NUMBERS:
            continue
        default = defaults().get(key)
        ours, theirs = planned.get(key, default), of_file.get(key, default)
        rule = (
            f"is {theirs!r} in the file and {ours!r} in the run: the file is not of these settings"
        )
        check(theirs == ours, f"settings: {key[:60]}", rule[:300])


def check_versions(versions: Sequence[Any]) -> None:
    """Raise DataError unless versions are short texts."""
    for recorded in versions:
        has_names = isinstance(recorded, dict) and len(recorded) > 0
        check(has_names, "versions", "must be names with texts")
        for name, version in recorded.items():
            rule = "must be a text of at most 100 characters"
            check(is_short_text(version, 100), f"versions: {name[:60]}", rule)


def check_hashes(content: Mapping[str, Any]) -> None:
    """Raise DataError unless the hashes are hexadecimal, and there is one of the whole run."""
    hashes = {**content["hash"], **content.get("model-hashes", {})}
    hashes["all"] = content["hash"].get("all")
    hashes["partition-hash"] = content["partition-hash"]
    for name, value in hashes.items():
        is_hash = isinstance(value, str) and HASH.fullmatch(value) is not None
        check(is_hash, f"hash: {name[:60]}", "must be 8 to 64 hexadecimal digits")
    check(content["failures"] >= 0, "failures", "must be 0 or more")


def check_samples(samples: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError unless the samples are counts by client and class of these settings, or nothing."""
    if not samples:
        return
    classes = settings.data.num_classes
    clients = samples["clients"]
    is_named = all(isinstance(name, str) and name.isprintable() for name in clients)
    check(is_named, "samples: clients", "must be names")
    number = len(clients)
    for key, value in samples.items():
        by_client = key in ("client-test", "client-independent")
        if key == "clients" or (by_client and value is None):
            continue
        if key in ("train", "subjects"):
            shape: tuple[int, ...] = (number, classes)
        elif by_client:
            shape = (number,)
        else:
            check(key in ("test", "tested", "independent"), f"samples: {key[:60]}", "is no key")
            shape = (classes,)
        rule = f"must be counts of shape {' x '.join(map(str, shape))}"
        check(has_shape(value, shape, is_count), f"samples: {key}", rule)


def has_shape(value: Any, shape: Sequence[int], is_right: Callable[[Any], bool]) -> bool:
    """Return whether a value is lists of this shape whose items are all right."""
    if not shape:
        return is_right(value)
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    return all(has_shape(item, shape[1:], is_right) for item in value)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of 0 or more."""
    return type(value) is int and value >= 0


def is_short_text(value: Any, longest: int) -> bool:
    """Return whether a value is a printable text of at most so many characters."""
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def is_share(value: Any) -> bool:
    """Return whether a value is a number between 0 and 1, or null for NaN."""
    return value is None or (type(value) is float and -1e-9 <= value <= 1 + 1e-9)


def is_amount(value: Any) -> bool:
    """Return whether a value is a number of 0 or more, or null for NaN."""
    return value is None or (type(value) is float and 0 <= value < math.inf)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, or null for NaN."""
    return value is None or (type(value) is float and math.isfinite(value))


def checked_last_round(content: Mapping[str, Any], settings: RunSettings) -> int:
    """Return the run's last round. Raises DataError for an early end that no such run has."""
    rounds = settings.general.rounds
    if "ended" not in content:
        return rounds
    ended = content["ended"]
    check_keys("ended", ended, ("round", "reason"))
    is_early = type(ended["round"]) is int and 1 <= ended["round"] < rounds
    rule = f"must be a round before round {rounds} of a run with patience"
    check(is_early and settings.general.patience > 0, "ended: round", rule)
    reason = ended["reason"]
    is_text = isinstance(reason, str) and reason.isprintable() and len(reason) <= 200
    check(is_text, "ended: reason", "must be a sentence")
    return rounds_run(content, rounds)


def checked_rounds(rounds: Sequence[Any], settings: RunSettings, last: int) -> list[RoundRecord]:
    """Return the records of all rounds. Raises DataError for a missing round or a number that no such run has."""
    numbers = [record["round"] for record in rounds]
    expected = list(range(1, last + 1)) or [0]
    check(numbers == expected, "rounds", f"must be the rounds {expected[0]} to {last}, each once")
    records = []
    for record in rounds:
        where = f"round {record['round']}"
        check_round(where, record, settings)
        records.append(RoundRecord.of(record))
    return records


def check_round(where: str, record: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError for what a round of such a run cannot have."""
    for key in ("used", "failed", "bytes-down", "bytes-up"):
        check(is_count(record[key]), f"{where}: {key}", "must be a count")
    check(is_number(record["loss"]), f"{where}: loss", "must be a number or null")
    evaluators = ("server", "clients", "nobody")
    rule = f"must be one of {', '.join(evaluators)}"
    check(record["evaluated-by"] in evaluators, f"{where}: evaluated-by", rule)

    seconds = record["seconds"]
    check(isinstance(seconds, dict), f"{where}: seconds", "must be numbers by name")
    for name, value in seconds.items():
        check(is_amount(value), f"{where}: seconds: {name[:60]}", "must be a number of 0 or more")
    for client, reason in record["failures"].items():
        is_reason = client.isdigit() and isinstance(reason, str) and reason.isprintable()
        check(is_reason, f"{where}: failures", "must be reasons by client")
    for worker in record["workers"]:
        is_device = worker["device"].isprintable() and len(worker) == 1
        check(is_device, f"{where}: workers", "must be devices")

    if settings.general.is_evaluated(record["round"]):
        check(bool(record["models"]), f"{where}: models", "must have the numbers of a model")
    for name, numbers in record["models"].items():
        rule = "must be a model's name: small letters, digits, dots and dashes"
        check(NAME.fullmatch(name) is not None, f"{where}: models: {name[:60]}", rule)
        check_numbers(f"{where}: {name}", numbers, settings)

    # All other keys are numbers that a method reports.
    of_methods = record.keys() - {*ROUND_KEYS, "workers", "models"}
    for key in of_methods:
        is_name = NAME.fullmatch(key) is not None
        check(is_name, f"{where}: {key[:60]}", "is no name of a method's number")
        values = record[key] if isinstance(record[key], list) else [record[key]]
        check(all(map(is_number, values)), f"{where}: {key}", "must be a number, or numbers")


def check_numbers(where: str, numbers: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError for what the numbers of a model of such a run cannot be."""
    classes = settings.data.num_classes
    for name, value in numbers.items():
        key_of_number = f"{where}: {name[:60]}"
        if name in SHARES:
            check(is_share(value), key_of_number, "must be a number between 0 and 1, or null")
        elif name in AMOUNTS:
            check(is_amount(value), key_of_number, "must be a number of 0 or more, or null")
        elif name == "recall":
            rule = f"must be {classes} numbers between 0 and 1"
            check(has_shape(value, (classes,), is_share), key_of_number, rule)
        elif name == "confusion":
            rule = f"must be {classes} x {classes} counts"
            check(has_shape(value, (classes, classes), is_count), key_of_number, rule)
        elif name == "best":
            check(
                value is True and settings.general.keep_best != "",
                key_of_number,
                "must be true, with keep-best",
            )
        elif name == "positive-class":
            check(value in settings.data.class_names, key_of_number, "must be one of the classes")
        elif name == "validation":
            check_numbers(f"{where}: validation", value, settings)
        else:
            check(name in OVER_CLIENTS, key_of_number, "is no number of a kept run")
            check_keys(key_of_number, value, ("mean", "worst", "worst-decile", "values"))
            values = [value["mean"], value["worst"], value["worst-decile"], *value["values"]]
            check(
                all(map(is_share, values)),
                key_of_number,
                "must be numbers between 0 and 1, or null",
            )


def check_names(rows: Mapping[str, Any], records: Sequence[RoundRecord]) -> None:
    """Raise DataError unless every model of the last round has the name of its row."""
    for model in records[-1].models:
        is_name = is_short_text(rows.get(model), 200)
        check(is_name, f"rows: {model}", "must be the name of the model's row")
