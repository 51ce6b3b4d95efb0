"""Warnings about runs in a report: missing, damaged, made with other settings or versions, or not comparable."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedskew.experiments.plan import Cell
from fedskew.experiments.tuning import Tuned
from fedskew.report.run_records import VERSIONS, RunRecords
from server_app.run_folder import divergence_words
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS
from server_app.settings import defaults


def trial_warnings(tuned: Iterable[Tuned]) -> list[str]:
    """Return a sentence for trials that have not finished, and one for rows of which no trial has."""
    lacking = []
    diverged: list[str] = []
    without_value = []
    for one in tuned:
        name = f"{one.column}: {one.row}" if one.column else one.row
        unfinished = []
        for value, number in one.scores.items():
            if value in one.diverged:
                diverged.append(f"{name} ({value})")
            elif math.isnan(number):
                unfinished.append(str(value))
        if one.value is None:
            without_value.append(name)
        elif unfinished:
            lacking.append(f"{name} ({', '.join(unfinished)})")
    warnings = []
    if without_value:
        warnings.append(f"No trial has finished, so the row is left out: {listed(without_value)}.")
    if lacking:
        warnings.append(f"Trials that have not finished do not count: {listed(lacking, 8)}.")
    if diverged:
        warnings.append(f"Trials that diverged do not count: {listed(diverged, 8)}.")
    return warnings


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    values = []
    for cell in cells:
        settings = cell.run.flat()
        if key in settings:
            values.append(str(settings[key]))
    return ", ".join(dict.fromkeys(values))


def changes(experiment: Sequence[Cell], cells: Sequence[Cell], keys: Iterable[str]) -> list[str]:
    """Return a sentence for the settings that are not the experiment's: the paper's numbers are not for such runs."""
    differences = []
    for key in keys:
        ours = values_of(key, cells)
        planned = values_of(key, experiment)
        if ours != planned:
            differences.append(f"{key} = {ours} instead of {planned}")
    if differences:
        return [f"Differs from the experiment: {', '.join(differences)}."]
    return []


def state_warnings(runs: Iterable[RunRecords]) -> list[str]:
    """Return a sentence for runs that are missing, diverged, not finished or damaged, and for left-out clients."""
    runs = list(runs)
    warnings = []
    missing = [run.label for run in runs if run.state == "missing"]
    if missing:
        warnings.append(f"{len(missing)} of {len(runs)} runs are missing: {listed(missing)}.")
    for run in runs:
        if run.state == "damaged":
            rounds = f"{len(run.records)} of {run.rounds} rounds"
            warnings.append(
                f"{run.label}: rounds.jsonl is damaged, {rounds}: left out; its own command mends it."
            )
        elif run.finished and run.lost:
            rounds = ", ".join(map(str, run.lost[:10]))
            if len(run.lost) > 10:
                rounds += ", ..."
            warnings.append(
                f"{run.label}: the records of rounds {rounds} are lost; curves, bests and means lack them."
            )
        elif run.divergence is not None:
            warnings.append(f"{run.label}: {divergence_words(run.divergence)}.")
        elif run.state not in ("missing", "finished"):
            warnings.append(f"Unfinished and left out: {run.label}, {run.state}.")
    warnings += filter(None, map(failure_warning, runs))
    return warnings


def failure_warning(run: RunRecords) -> str:
    """Return a sentence for the clients that failed and were left out of rounds; empty where none did."""
    failures = int(run.summary.get("failures", 0)) if run.summary else 0
    if not failures:
        return ""
    times_of = Counter[int]()
    for record in run.records:
        times_of.update(record.failures.keys())
    sites = run.agreement.get("sites")
    clients = []
    for client, times in times_of.most_common():
        name = sites[client] if sites else f"client {client}"
        clients.append(f"{name} ({times})")
    times_failed = f"{failures} times a client failed in a round and was left out of it"
    return f"{run.label}: {times_failed}: {listed(clients)}."


def mismatches(cells: Sequence[Cell], runs: Mapping[str, RunRecords]) -> list[str]:
    """Return a sentence for every difference between runs that are compared or averaged."""
    finished = [run for run in runs.values() if run.finished]
    warnings = []
    for run in finished:
        warnings += origin_warnings(run)

    paired: dict[tuple[str, int], dict[str, RunRecords]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if run.finished:
            paired.setdefault((cell.column, cell.seed), {})[run.name] = run
    for (column, seed), group in paired.items():
        hashes = grouped(group.values(), partition_hash)
        if len(hashes) > 1:
            where = f"{column}, seed {seed}".removeprefix(", ")
            warnings.append(
                f"Not the same samples at the same clients ({where}): partition {versus(hashes)}."
            )

    for name in (*VERSIONS, "device"):
        values = grouped(finished, version_of(name))
        if len(values) > 1:
            warnings.append(f"Runs were made with different {name}: {versus(values)}.")
    return warnings


def origin_warnings(run: RunRecords) -> list[str]:
    """Return a sentence for what is wrong with a run's settings.json."""
    if not run.origin:
        return [
            f"{run.label}: settings.json is missing or damaged; its own command writes it anew."
        ]
    warnings = []
    planned = run.settings.flat()
    recorded = run.origin["settings"]
    keys = (planned.keys() | recorded.keys()) - WITHOUT_EFFECT_ON_NUMBERS
    different = []
    for key in sorted(keys):
        # A run of older code does not know newer settings: it ran with what is their default.
        default = defaults().get(key)
        if planned.get(key, default) != recorded.get(key, default):
            different.append(key)
    if different:
        warnings.append(
            f"{run.label}: its settings.json differs from the experiment in {', '.join(different)}."
        )
    made_with = [run.origin["versions"], *run.origin.get("earlier-versions", ())]
    changed = []
    for name in VERSIONS:
        values = {str(versions.get(name)) for versions in made_with}
        if len(values) > 1:
            changed.append(name)
    if changed:
        warnings.append(
            f"{run.label}: begun and finished with different {', '.join(changed)}, see its settings.json."
        )
    return warnings


def version_of(name: str) -> Callable[[RunRecords], str]:
    """Return what gives the version `name` of a run."""
    return lambda run: run.versions[name]


def partition_hash(run: RunRecords) -> str:
    """Return the first digits of the hash of who has which samples."""
    return str(run.origin.get("partition-hash", "unknown"))[:12]


def grouped(runs: Iterable[RunRecords], key: Callable[[RunRecords], str]) -> dict[str, list[str]]:
    """Return the runs' names by their key."""
    result: dict[str, list[str]] = {}
    for run in runs:
        labels = result.setdefault(key(run), [])
        labels.append(run.label)
    return result


def versus(groups: Mapping[str, Sequence[str]]) -> str:
    """Return every value with the runs that have it."""
    return "; ".join(f"{value} in {listed(names)}" for value, names in groups.items())


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
