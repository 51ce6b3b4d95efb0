"""Summary of the runs: data, clients, partition and settings in words; seconds of each run; what made the runs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedskew.report.format import NONE, Table, table
from fedskew.report.results import ColumnResults, ExperimentResults, SeedResult
from fedskew.report.run_records import Run
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import defaults

MOST_NAMES = 12
"""Classes whose names are listed."""
ALWAYS = ("partition", "alpha", "model", "rounds", "local-epochs", "batch-size", "learning-rate")
"""Settings that are shown even where they have their default."""
ELSEWHERE = {"dataset", "classes", "input-shape", "mean", "std", "clients", "method", "seed"}
"""Settings that other lines or the table itself show."""
USE_ALPHA = ("lda", "feddf", "llt", "quantity")
"""The partitions that alpha has an effect on."""
PARTS = ("clients", "server", "evaluation", "transport and the rest")
"""Where a round's seconds go."""


def what_was_run(results: ExperimentResults) -> dict[str, str]:
    """Return by heading what was run, of the plan's settings and of what the finished runs have recorded."""
    runs = list(results.runs.values())
    flat = [run.settings.flat() for run in runs]
    positives = [run.positive_class for column in results.columns for run in column.runs]
    texts = {
        "data": distinct(map(data, runs)),
        "clients": clients(runs),
        "settings": settings_in_words(flat),
        "seeds": ", ".join(map(str, results.seeds)),
        "tested": tested(results.finished),
        "positive class": distinct(positive.name for positive in positives if positive),
    }
    return {heading: text for heading, text in texts.items() if text}


def settings_in_words(flat: Sequence[Mapping[str, Scalar]]) -> str:
    """Return the settings in ALWAYS, and those that differ from their defaults, with their values over the runs."""
    usual = defaults()
    elsewhere = ELSEWHERE | WITHOUT_EFFECT_ON_NUMBERS
    if not any(settings["partition"] in USE_ALPHA for settings in flat):
        elsewhere |= {"alpha"}
    shown = dict.fromkeys(ALWAYS)  # as a set, in the settings' order
    for settings in flat:
        shown |= dict.fromkeys(key for key, value in settings.items() if value != usual[key])
    texts = []
    for key in shown:
        values = dict.fromkeys(str(settings[key]) for settings in flat if key in settings)
        if values and key not in elsewhere:
            texts.append(f"{key} {' or '.join(values)}")
    return ", ".join(texts)


def distinct(texts: Iterable[str]) -> str:
    """Return the distinct texts."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def data(run: Run) -> str:
    """Return a run's data set with its inputs and classes."""
    settings = run.settings.data
    names = settings.class_names
    classes = f"{len(names)} classes"
    if len(names) <= MOST_NAMES and not all(map(str.isdecimal, names)):
        classes += f": {', '.join(names)}"
    return f"{run.data_name}, inputs {settings.input_shape}, {classes}"


def clients(runs: Sequence[Run]) -> str:
    """Return how many clients there are, and between which bounds their numbers of samples are."""
    sites = distinct(", ".join(run.sites) for run in runs if run.agreement)
    if sites:
        return f"{sites}; how many samples of which class each holds is known there alone"
    text = " or ".join(dict.fromkeys(str(run.settings.data.clients) for run in runs))
    sizes = [sum(counts_C) for run in runs for counts_C in run.samples.get("train", ())]
    return f"{text}, {span(sizes)} training samples each" if sizes else text


def tested(runs: Sequence[Run]) -> str:
    """Return on what the models were tested, and by whom."""
    if any(run.agreement for run in runs):
        return "by the sites, each on its own test set, whose size is known there alone"
    by_whom = {run.records[-1].evaluated_by: None for run in runs if run.records}
    texts = [f"by the {name}" for name in by_whom if name != "nobody"]
    sizes = [sum(run.samples["test"]) for run in runs if run.samples]
    shown = ["; ".join(texts), f"{span(sizes)} test samples" if sizes else ""]
    return ", ".join(filter(None, shown))


def span(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def mean_split(runs: Sequence[SeedResult]) -> dict[str, float]:
    """Return mean seconds per round by PARTS over runs.

    Clients' own time is divided by the processes that shared it, which is exact when all were equally busy.
    """
    by_run = []
    for measured in runs:
        by_round = []
        for record in measured.run.records:
            seconds = record.seconds
            processes = max(1, len(record.workers))
            work = min(seconds.clients, seconds.client_work / processes)
            rest = seconds.round - work - seconds.server - seconds.evaluation
            by_round.append((work, seconds.server, seconds.evaluation, max(0.0, rest)))
        by_run.append(np.mean(by_round, axis=0))
    means = np.mean(by_run, axis=0)
    return dict(zip(PARTS, means.tolist(), strict=True))


def trainings(column: ColumnResults) -> dict[str, list[SeedResult]]:
    """Return the trainings of a column by the rows that they serve: one run per seed."""
    by_name: dict[str, list[SeedResult]] = {}
    for run in column.runs:
        by_name.setdefault(run.run.name, []).append(run)
    by_rows: dict[str, list[SeedResult]] = {}
    for same in by_name.values():
        rows = ", ".join(run.cell.row for run in same)
        by_rows.setdefault(rows, []).append(same[0])
    return by_rows


def time_table(column: ColumnResults) -> Table:
    """Return seconds per round by what they went into."""
    lines = []
    for label, runs in trainings(column).items():
        seconds = list(mean_split(runs).values())
        lines.append([label, *(f"{value:.3f}" for value in (*seconds, sum(seconds)))])
    caption = "seconds a round, mean over rounds and seeds; one training a row."
    return table(caption, ("training", *PARTS, "round"), lines)


def runs_table(results: ExperimentResults) -> Table:
    """Return every run of the plan, how far it is, and what made it."""
    made_with = {"code": "code", "torch": "torch", "flwr": "flwr", "CPU": "cpu", "device": "device"}
    rows = []
    for run in results.runs.values():
        made = [run.versions[key] if run.origin else NONE for key in made_with.values()]
        state = f"{run.state}: {run.ended}" if run.ended else run.state
        partition = str(run.origin.get("partition-hash", NONE))[:12]
        rows.append((run.name, state, *made, partition, run.hash[:12] or NONE))
    headings = ("run", "state", *made_with, "partition hash", "model hash")
    caption = "The runs, what made them, and the hashes of their data and models."
    return table(caption, headings, rows, wordy=True)
