"""Warnings about runs in a report: missing, damaged, made with other settings or versions, or not comparable."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from data.renamed_settings import renamed
from fedskew.experiments.plan import Cell
from fedskew.experiments.tuning import Tuned
from fedskew.report.run_records import VERSIONS, Run
from server_app.run_folder import divergence_words
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS
from server_app.settings import defaults


def trial_warnings(tuned: Iterable[Tuned]) -> list[str]:
    """Return a sentence for rows of which no trial has finished, and one for other trials that have not."""
    left_out, lacking = [], []
    for one in tuned:
        name = f"{one.column}: {one.row}" if one.column else one.row
        missing = [str(value) for value, number in one.scores.items() if math.isnan(number)]
        if one.value is None:
            left_out.append(name)
        elif missing:
            lacking.append(f"{name} ({', '.join(missing)})")
    causes = {
        "No trial has finished, so the row is left out": left_out,
        "Trials that have not finished do not count": lacking,
    }
    return [f"{cause}: {listed(names, 8)}." for cause, names in causes.items() if names]


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    of_cells = (cell.run.flat() for cell in cells)
    values = [str(settings[key]) for settings in of_cells if key in settings]
    return ", ".join(dict.fromkeys(values))


def changes(experiment: Sequence[Cell], cells: Sequence[Cell], keys: Iterable[str]) -> list[str]:
    """Return a sentence for the settings that are not the experiment's: the paper's numbers are not for such runs."""
    differences = []
    for key in keys:
        ours, planned = values_of(key, cells), values_of(key, experiment)
        if ours != planned and key not in WITHOUT_EFFECT_ON_NUMBERS:
            differences.append(f"{key} = {ours} instead of {planned}")
    return [f"Differs from the experiment: {', '.join(differences)}."] if differences else []


def run_warnings(cells: Sequence[Cell], runs: Mapping[str, Run]) -> list[str]:
    """Return a sentence for all that is wrong with runs, and for what differs between runs that are compared."""
    missing = [name for name, run in runs.items() if run.state == "missing"]
    warnings = []
    if missing:
        warnings.append(f"{len(missing)} of {len(runs)} runs are missing: {listed(missing)}.")
    for name, run in runs.items():
        warnings += [f"{name}: {sentence}." for sentence in wrong_with(run)]
    finished = {name: run for name, run in runs.items() if run.finished}
    partitions: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.run.run_id in finished:
            where = f"{cell.column}, seed {cell.seed}".removeprefix(", ")
            code = str(finished[cell.run.run_id].origin.get("partition-hash", "unknown"))[:12]
            partitions.setdefault(where, {})[cell.run.run_id] = code
    for where, codes in partitions.items():
        what = f"Not the same samples at the same clients ({where}): partition"
        warnings += differing(what, codes)
    for version in (*VERSIONS, "device"):
        values = {name: run.versions[version] for name, run in finished.items()}
        warnings += differing(f"Runs were made with different {version}:", values)
    return warnings


def differing(what: str, values: Mapping[str, str]) -> list[str]:
    """Return a sentence that names every value with its runs, where these have more than one."""
    names_of: dict[str, list[str]] = {}
    for name, value in values.items():
        names_of.setdefault(value, []).append(name)
    parts = [f"{value} in {listed(names)}" for value, names in names_of.items()]
    return [f"{what} {'; '.join(parts)}."] if len(parts) > 1 else []


def wrong_with(run: Run) -> list[str]:
    """Return what is wrong with one run: damaged, diverged, not finished, without some clients, of other settings."""
    if run.divergence is not None:
        return [divergence_words(run.divergence)]
    if not run.finished:
        rounds = f"rounds.jsonl is damaged, {len(run.records)} of {run.rounds} rounds: left out"
        damaged = f"{rounds}; its own command mends it"
        unfinished = f"unfinished and left out, {run.state}"
        state = {"damaged": [damaged], "missing": []}
        return state.get(run.state, [unfinished])
    sentences = []
    if run.lost:
        rounds = listed(map(str, run.lost), 10)
        sentences.append(
            f"the records of rounds {rounds} are lost; curves, bests and means lack them"
        )
    times_of = Counter(client for record in run.records for client in record.failures)
    if times_of:
        sites = run.agreement.get("sites")
        clients = []
        for client, times in times_of.most_common():
            clients.append(f"{sites[client] if sites else f'client {client}'} ({times})")
        failed = f"{times_of.total()} times a client failed in a round and was left out of it"
        sentences.append(f"{failed}: {listed(clients)}")
    if not run.origin:
        sentences.append("settings.json is missing or damaged; its own command writes it anew")
        return sentences
    different = differing_settings(run, renamed(run.origin["settings"]))
    if different:
        sentences.append(f"its settings.json differs from the experiment in {', '.join(different)}")
    made_with = [run.origin["versions"], *run.origin.get("earlier-versions", ())]
    changed = [name for name in VERSIONS if len({str(one.get(name)) for one in made_with}) > 1]
    if changed:
        names = ", ".join(changed)
        sentences.append(f"begun and finished with different {names}, see its settings.json")
    return sentences


def differing_settings(run: Run, recorded: Mapping[str, object]) -> list[str]:
    """Return the settings with an effect on numbers that are others in a record than in a run; unnamed is default."""
    planned = {**defaults(), **run.settings.flat()}
    stated = {**defaults(), **recorded}
    keys = (planned.keys() | stated.keys()) - WITHOUT_EFFECT_ON_NUMBERS
    return [key for key in sorted(keys) if planned.get(key) != stated.get(key)]


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
