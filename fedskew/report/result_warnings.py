"""Warnings about runs in a report: missing, damaged, made with other settings or versions, or not comparable."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedskew.experiments.plan import Cell
from fedskew.report.run_records import VERSIONS, Run
from server_app.run_folder import divergence_words
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS
from server_app.settings import defaults


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    flat = [cell.run.flat() for cell in cells]
    return ", ".join(dict.fromkeys(str(settings[key]) for settings in flat if key in settings))


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
    warnings = []
    missing = [name for name, run in runs.items() if run.state == "missing"]
    if missing:
        warnings.append(f"{len(missing)} of {len(runs)} runs are missing: {listed(missing)}.")
    for name, run in runs.items():
        warnings += [f"{name}: {sentence}." for sentence in wrong_with(run)]
    return warnings + mismatches(cells, runs)


def mismatches(cells: Sequence[Cell], runs: Mapping[str, Run]) -> list[str]:
    """Return a sentence for what differs between finished runs that are compared or averaged."""
    # By what must be the same, the value of each run.
    values: dict[str, dict[str, str]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if run.finished:
            where = f"{cell.column}, seed {cell.seed}".removeprefix(", ")
            what = f"Not the same samples at the same clients ({where}): partition"
            code = str(run.origin.get("partition-hash", "unknown"))
            values.setdefault(what, {})[run.name] = code[:12]
    for name in (*VERSIONS, "device"):
        finished = {run.name: run.versions[name] for run in runs.values() if run.finished}
        values[f"Runs were made with different {name}:"] = finished
    warnings = []
    for what, value_of in values.items():
        texts = []
        for value in dict.fromkeys(value_of.values()):
            names = [name for name in value_of if value_of[name] == value]
            texts.append(f"{value} in {listed(names)}")
        if len(texts) > 1:
            warnings.append(f"{what} {'; '.join(texts)}.")
    return warnings


def wrong_with(run: Run) -> list[str]:
    """Return what is wrong with one run: damaged, diverged, not finished, without some clients, of other settings."""
    if run.divergence is not None:
        return [divergence_words(run.divergence)]
    if run.state == "missing":
        return []
    if run.state == "damaged":
        rounds = f"rounds.jsonl is damaged, {len(run.records)} of {run.rounds} rounds: left out"
        return [f"{rounds}; its own command mends it"]
    if not run.finished:
        return [f"unfinished and left out, {run.state}"]
    return [*lost_or_failed(run), *made_otherwise(run)]


def lost_or_failed(run: Run) -> list[str]:
    """Return which rounds a finished run has lost, and which clients failed how often."""
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
    return sentences


def made_otherwise(run: Run) -> list[str]:
    """Return whether a finished run is of other settings than planned, or of several versions."""
    if not run.origin:
        return ["settings.json is missing or damaged; its own command writes it anew"]
    sentences = []
    different = differing_settings(run, run.origin["settings"])
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
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
