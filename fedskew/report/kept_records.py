"""Kept records: finished runs as small files without weights, so that a suite continues on another machine.

One file per run, RUN.json.gz: a checksum, settings.json with what made the run, the numbers by round that reports need,
and summary.json with the hashes.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from data import DataError, SettingError
from data.packages import ROOT
from fedskew.formatting import plural
from fedskew.report.runs import Run
from server_app.keys import SELECTIONS
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import points_of, select, summarize
from server_app.run_folder import line_of, verified
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings
from strategies.core.update_statistics import Seconds

FOLDER = ROOT / "benchmarks" / "papers"
"""The repository's own; a wheel has none."""
LARGEST = 2**24
"""Bytes of a file's text; without a limit a small file could unpack to fill the memory."""


def records_folder(named: Path | None) -> Path:
    """Return the folder that a command names, or the repository's own. Raises SettingError for no folder."""
    if named is not None and not named.is_dir():
        raise SettingError("--records", str(named), "is no folder")
    return named or FOLDER


def file_of(folder: Path, run: str) -> Path:
    """Return the file of a run."""
    return folder / f"{run}.json.gz"


def kept_runs(folder: Path, planned: Iterable[RunSettings]) -> dict[str, Run]:
    """Return the kept runs among planned ones by their ids. Raises DataError as `kept_run`."""
    kept = [kept_run(folder, settings) for settings in planned]
    return {run.name: run for run in kept if run is not None}


def kept_run(folder: Path | None, settings: RunSettings) -> Run | None:
    """Return the kept run of these settings; None where the folder has none, or there is no folder.

    Raises DataError for a file that is damaged, or of other settings.
    """
    if folder is None or settings.general.overwrite:
        return None
    file = file_of(folder, settings.run_id)
    if not file.is_file():
        return None
    try:
        with gzip.open(file) as stream:
            text = stream.read(LARGEST).decode()
        content = verified(text)
        records = [RoundRecord.of(record) for record in content["rounds"]]
        summary = {**content["summary"], "models": summarize(records)}
        run = Run(settings, content["origin"], records, summary, file=file)
        different = ", ".join(run.other_settings)
    except (OSError, ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
        raise DataError(f"is no kept run, or is damaged: {error}", where=str(file)) from error
    if different:
        rule = f"is of a run with another {different}, not of {settings.run_id}"
        raise DataError(rule, where=str(file))
    return run


def keep(run: Run, folder: Path) -> Path:
    """Write a finished run to a folder and return the file; no path of the machine that trained it is in it."""
    flat = run.settings.flat()
    settings = {key: flat[key] for key in flat if key not in WITHOUT_EFFECT_ON_NUMBERS}
    summary = dict(run.summary or {})
    summary.pop("models", None)  # the rounds have them
    content = {
        "origin": {**run.origin, "settings": settings},
        "rounds": [record.to_json() for record in shortened(run)],
        "summary": summary,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = file_of(folder, run.name)
    partial_file = file.with_name(f".{file.name}")
    partial_file.write_bytes(packed(content))
    partial_file.replace(file)
    return file


def packed(content: dict[str, Any]) -> bytes:
    """Return a file's bytes; the same content gives the same bytes."""
    return gzip.compress(line_of(content).encode(), compresslevel=9, mtime=0)


def shortened(run: Run) -> list[RoundRecord]:
    """Return what is kept of a run's rounds: numbers, bytes, devices and the length of the round.

    Numbers by class and client are kept of the rounds that a selection can mean: an interval needs them.
    """
    selected = set()
    for model in set(chain.from_iterable(record.models for record in run.records)):
        points = points_of(run.records, model)
        for selection in SELECTIONS:
            selected |= {(model, one.round) for one in select(points, selection, fewer=True)}
    rounds = []
    for record in run.records:
        models = dict(record.models)
        for name, numbers in record.models.items():
            if (name, record.round) not in selected:
                models[name] = without_examples(numbers)
        devices: list[dict[str, str]] = []
        for worker in record.workers:
            device = {key: str(worker[key]) for key in ("device", "gpu") if key in worker}
            if device not in devices:
                devices.append(device)
        kept = replace(record, models=models, workers=devices, clients=(), updates=(), line="")
        seconds = Seconds(round=record.seconds.round)
        rounds.append(replace(kept, seconds=seconds, method_numbers=None))
    return rounds


def without_examples(numbers: ModelNumbers) -> ModelNumbers:
    """Return a model's numbers without those by class and client, but for the clients' accuracy."""
    spreads = dict(numbers.spreads)
    for name in spreads.keys() - {"client-accuracy"}:
        spreads[name] = replace(spreads[name], values=())
    validation = numbers.validation and without_examples(numbers.validation)
    return replace(
        numbers, recall=(), by_class={}, confusion=None, spreads=spreads, validation=validation
    )


def origins(runs: Iterable[Run]) -> list[str]:
    """Return in words where kept runs come from, one text per commit, processor and torch."""
    counts: Counter[str] = Counter()
    for run in runs:
        processor = f"CPU type {run.versions['cpu']}"
        device = run.versions["device"]
        if "cuda" in device:
            processor = "a GPU" if device == "cuda" else device
        commit = str(run.origin["versions"].get("commit", "unknown"))[:12]
        counts[f"of commit {commit}, {processor}, torch {run.versions['torch']}"] += 1
    return [f"{plural(count, 'run')} {origin}" for origin, count in counts.items()]
