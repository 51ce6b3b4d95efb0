"""Kept records: finished runs as small files without weights, so that a suite continues on another machine.

One file per run, RUN.json.gz: a checksum, settings.json with what made the run, the numbers by round that reports need,
and summary.json with the hashes.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data import DataError, require
from data.package_files import ROOT
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell
from fedskew.report.result_warnings import differing_settings
from fedskew.report.results import RowResults, SeedResult
from fedskew.report.run_records import Run
from fedskew.report.strata import compare_rows
from server_app.keys import SELECTIONS
from server_app.record import ModelNumbers, RoundRecord, Seconds
from server_app.round_selection import points_of, select, summarize
from server_app.run_folder import line_of, verified
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings

FOLDER = ROOT / "benchmarks" / "papers"
"""The repository's own; a wheel has none."""
END = ".json.gz"
LARGEST = 2**24
"""Bytes of a file's text; without a limit a small file could unpack to fill the memory."""
SAME_BITS = ("cpu", "torch", "numpy", "device")
"""Versions with which a run is bit-identical; the code's own version is not among them, as releases keep the bits."""


def records_folder(named: Path | None) -> Path:
    """Return the folder that a command names, or the repository's own. Raises SettingError for no folder."""
    if named is not None:
        require(named.is_dir(), "--records", str(named), "is no folder")
    return named or FOLDER


def file_of(folder: Path, run: str) -> Path:
    """Return the file of a run."""
    return folder / f"{run}{END}"


def kept_runs(folder: Path | None, planned: Iterable[RunSettings]) -> dict[str, Run]:
    """Return the kept runs among planned ones by their ids; None keeps none. Raises DataError as `kept_run`."""
    kept = [kept_run(folder, settings) for settings in planned]
    return {run.name: run for run in kept if run is not None}


def kept_run(folder: Path | None, settings: RunSettings) -> Run | None:
    """Return the kept run of these settings, or None where the folder has none.

    Raises DataError for a file that is damaged, or of other settings.
    """
    if folder is None or settings.general.overwrite:
        return None
    file = file_of(folder, settings.run_id)
    return read(file, settings) if file.is_file() else None


def read(file: Path, settings: RunSettings) -> Run:
    """Return the run of a file. Raises DataError for one that is damaged, or of other settings."""
    try:
        with gzip.open(file) as stream:
            content = verified(stream.read(LARGEST).decode())
        records = [RoundRecord.of(record) for record in content["rounds"]]
    except (OSError, ValueError, KeyError, EOFError, zlib.error) as error:
        raise DataError(f"is no kept run, or is damaged: {error}", where=str(file)) from error
    summary = {**content["summary"], "models": summarize(records)}
    run = Run(settings, content["origin"], records, summary, file=file)
    different = differing_settings(run, run.origin["settings"])
    if different:
        rule = f"is of a run with another {', '.join(different)}, not of {settings.run_id}"
        raise DataError(rule, where=str(file))
    return run


def keep(run: Run, folder: Path) -> Path:
    """Write a finished run to a folder and return the file; no path of the machine that trained it is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = file_of(folder, run.name)
    partial_file = file.with_name(f".{file.name}")
    partial_file.write_bytes(packed(content_of(run)))
    partial_file.replace(file)
    return file


def content_of(run: Run) -> dict[str, Any]:
    """Return what is kept of a finished run, as JSON."""
    flat = run.settings.flat()
    recorded = {key: flat[key] for key in flat if key not in WITHOUT_EFFECT_ON_NUMBERS}
    summary = dict(run.summary or {})
    summary.pop("models", None)  # the rounds have them
    return {
        "origin": {**run.origin, "settings": recorded},
        "rounds": [record.to_json() for record in shortened(run)],
        "summary": summary,
    }


def packed(content: dict[str, Any]) -> bytes:
    """Return a file's bytes; the same content gives the same bytes."""
    return gzip.compress(line_of(content).encode(), compresslevel=9, mtime=0)


def shortened(run: Run) -> list[RoundRecord]:
    """Return what is kept of a run's rounds: numbers, bytes, devices and the length of the round.

    Numbers by class and client are kept of the rounds that a selection can mean: an interval needs them.
    """
    selected = set()
    for model in {name for record in run.records for name in record.models}:
        points = points_of(run.records, model)
        for selection in SELECTIONS:
            selected |= {(model, one.round) for one in select(points, selection, fewer=True)}
    rounds = []
    for record in run.records:
        models = {
            name: numbers if (name, record.round) in selected else without_examples(numbers)
            for name, numbers in record.models.items()
        }
        kept = replace(record, models=models, workers=devices_of(record), clients=(), updates=())
        seconds = Seconds(round=record.seconds.round)
        rounds.append(replace(kept, seconds=seconds, method_numbers=None, line=""))
    return rounds


def devices_of(record: RoundRecord) -> list[dict[str, str]]:
    """Return the devices of the processes that ran a round's clients, each once, with the model of a GPU."""
    devices: list[dict[str, str]] = []
    for worker in record.workers:
        device = {key: str(worker[key]) for key in ("device", "gpu") if key in worker}
        if device not in devices:
            devices.append(device)
    return devices


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
    counts: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        made_with = run.origin["versions"]
        device = run.versions["device"]
        processor = f"CPU type {made_with.get('cpu', 'unknown')}"
        if "cuda" in device:
            processor = "a GPU" if device == "cuda" else device
        commit = str(made_with.get("commit", "unknown"))[:12]
        counts[commit, processor, str(made_with.get("torch", "unknown"))] += 1
    return [
        f"{count} run{'s' * (count > 1)} of commit {commit}, {processor}, torch {torch}"
        for (commit, processor, torch), count in counts.items()
    ]


def compared(
    kept: Run, repeated: Run, cells: Iterable[Cell], entries: Mapping[str, Experiment]
) -> dict[str, Any]:
    """Return a kept run beside its repetition: whether the record stands, why, hashes, origin and the cells' numbers.

    A record stands where hash and numbers are the same, or, where bits may differ, as with another CPU type, where the
    interval of every cell's difference over the test examples has 0 in it.

    Args:
        kept: the record.
        repeated: the finished run of the same settings.
        cells: those of this run.
        entries: their experiments, by name.
    """
    rows = [compared_cell(kept, repeated, cell, entries[cell.experiment]) for cell in cells]
    agrees = all(row["interval"] and row["interval"][0] <= 0 <= row["interval"][1] for row in rows)
    ours, theirs = (
        {**run.origin["versions"], "device": run.versions["device"]} for run in (repeated, kept)
    )
    others = ", ".join(name for name in SAME_BITS if ours.get(name) != theirs.get(name))
    if kept.hash != repeated.hash and not others:
        result = "differs: another hash with the same CPU type and versions"
    elif kept.hash != repeated.hash and agrees:
        result = f"agrees: another {others}, and every number lies within its interval"
    elif kept.hash != repeated.hash:
        result = f"differs: another {others}, and a number lies outside its interval"
    elif numbers_of(kept) != numbers_of(repeated):
        result = "differs: the same hash, and other numbers than the record's"
    else:
        result = "identical: the same hash and numbers"
    return {
        "run": kept.name,
        "holds": not result.startswith("differs"),
        "result": result,
        "hashes": [kept.hash, repeated.hash],
        "origin": origins([kept])[0],
        "cells": rows,
    }


def compared_cell(kept: Run, repeated: Run, cell: Cell, entry: Experiment) -> dict[str, Any]:
    """Return a cell's kept and repeated number, and the interval of their difference over the test examples."""
    metric = entry.metric_of(cell.column)
    rows = []
    for run, name in ((kept, cell.row), (repeated, f"{cell.row} repeated")):
        points = points_of(run.records, cell.deployed)
        of_run = SeedResult(cell, run, points, metric, entry.selection)
        rows.append(RowResults(name, cell.column, metric, entry.selection, [of_run], {}, 1))
    of_kept, of_repeated = rows
    found = compare_rows(of_repeated, of_kept)
    return {
        "cell": f"{cell.experiment}, {cell.row}, {cell.column}",
        "metric": metric,
        "kept": of_kept.numbers.get(cell.seed),
        "repeated": of_repeated.numbers.get(cell.seed),
        "interval": list(found.ends) if found and found.interval else None,
    }


def numbers_of(run: Run) -> list[dict[str, Any]]:
    """Return what is kept of a run's rounds, without what a repetition may change: times and devices."""
    records = [replace(one, seconds=Seconds(), workers=()) for one in shortened(run)]
    return [record.to_json() for record in records]
