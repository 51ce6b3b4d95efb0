"""Summary of the runs: data, clients, partition and settings in words; seconds of each run; what made the runs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedskew.report.format import NONE, Table, TableCell, named
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.run_records import Run
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import defaults

MOST_NAMES = 12
"""Classes whose names are listed."""
SPLIT = (
    "alpha", "classes-per-client", "domain-percent", "parts-per-domain",
    "partition-file", "imbalance-factor", "largest-class", "train-images", "holdout-per-class",
    "unseen-domain",
)  # fmt: skip
TRAINING = ("model", "rounds", "participation", "local-epochs", "batch-size", "learning-rate")
ELSEWHERE = {
    "partition",
    "dataset",
    "classes",
    "input-shape",
    "mean",
    "std",
    "clients",
    "method",
    "seed",
}
"""Settings that other lines or the table itself show."""
USE_ALPHA = ("lda", "feddf", "llt", "quantity")
"""The partitions that alpha has an effect on."""
PARTS = ("clients", "server", "evaluation", "transport and the rest")
"""Where a round's seconds go."""


def what_was_run(results: ExperimentResults) -> dict[str, str]:
    """Return by heading what was run, of the plan's settings and of what the finished runs have recorded."""
    runs = list(results.runs.values())
    flat = [run.settings.flat() for run in runs]
    usual = defaults()
    changed: dict[str, None] = {}  # as a set, in the settings' order
    for settings in flat:
        changed |= dict.fromkeys(key for key, value in settings.items() if value != usual[key])
    if any(settings["partition"] in USE_ALPHA for settings in flat):
        changed["alpha"] = None  # even its default value: the skew depends on it
    split = {key: None for key in SPLIT if key in changed}
    others = changed.keys() - {*SPLIT, *TRAINING, *ELSEWHERE, *WITHOUT_EFFECT_ON_NUMBERS}
    partition = in_words(flat, ["partition", *split]).removeprefix("partition ")
    positives = (one.positive_class for group in results.measured.values() for one in group)
    texts = {
        "data": distinct(map(data, runs)),
        "clients": clients(runs),
        "partition": "every site's own data" if runs[0].agreement else partition,
        "training": in_words(flat, TRAINING),
        "other settings": in_words(flat, [key for key in changed if key in others]),
        "seeds": ", ".join(map(str, results.seeds)),
        "tested": tested(results.finished),
        "positive class": distinct(positive.name for positive in positives if positive),
    }
    return {heading: text for heading, text in texts.items() if text}


def in_words(flat: Sequence[Mapping[str, Scalar]], keys: Iterable[str]) -> str:
    """Return settings with their values over the runs that have them."""
    texts = []
    for key in keys:
        values = dict.fromkeys(str(settings[key]) for settings in flat if key in settings)
        texts += [f"{key} {' or '.join(values)}"] if values else []
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
    numbers = " or ".join(dict.fromkeys(str(run.settings.data.clients) for run in runs))
    sizes = [sum(counts_C) for run in runs for counts_C in run.samples.get("train", ())]
    return f"{numbers}, {span(sizes)} training samples each" if sizes else numbers


def tested(runs: Sequence[Run]) -> str:
    """Return on what the models were tested, and by whom."""
    if any(run.agreement for run in runs):
        return "by the sites, each on its own test set, whose size is known there alone"
    last_records = [run.records[-1] for run in runs if run.records]
    by_whom = distinct(
        f"by the {record.evaluated_by}"
        for record in last_records
        if record.evaluated_by != "nobody"
    )
    sizes = [sum(run.samples["test"]) for run in runs if run.samples]
    texts = [by_whom, f"{span(sizes)} test samples" if sizes else ""]
    return ", ".join(filter(None, texts))


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
            work = min(seconds.clients, seconds.client_work / max(1, len(record.workers)))
            rest = max(0.0, seconds.round - work - seconds.server - seconds.evaluation)
            by_round.append((work, seconds.server, seconds.evaluation, rest))
        by_run.append(np.mean(by_round, axis=0))
    return dict(zip(PARTS, np.mean(by_run, axis=0).tolist(), strict=True))


def trainings(results: ExperimentResults, column: str) -> dict[str, list[SeedResult]]:
    """Return the trainings of a column by the rows that they serve: one run per seed."""
    rows_of: dict[str, list[str]] = {}
    first_of: dict[str, SeedResult] = {}
    for measured in results.in_column(column):
        first_of.setdefault(measured.run.name, measured)
        rows_of.setdefault(measured.run.name, []).append(measured.cell.row)
    by_rows: dict[str, list[SeedResult]] = {}
    for name, measured in first_of.items():
        by_rows.setdefault(", ".join(rows_of[name]), []).append(measured)
    return by_rows


def time_tables(results: ExperimentResults) -> list[Table]:
    """Return seconds per round by what they went into."""
    headings = list(map(TableCell, ("training", *PARTS, "round")))
    tables = []
    for column in results.experiment.columns:
        rows = []
        for label, runs in trainings(results, column).items():
            seconds = list(mean_split(runs).values())
            cells = [TableCell(f"{value:.3f}") for value in (*seconds, sum(seconds))]
            rows.append([TableCell(label), *cells])
        caption = "seconds a round, mean over rounds and seeds; one training a row."
        if rows:
            tables.append(Table(named(column) + caption, headings, rows))
    return tables


def runs_table(results: ExperimentResults) -> Table:
    """Return every run of the plan, how far it is, and what made it."""
    made_with = {"code": "code", "torch": "torch", "flwr": "flwr", "CPU": "cpu", "device": "device"}
    rows = []
    for run in results.runs.values():
        recorded = run.versions if run.origin else {}
        versions = [recorded.get(key, NONE) for key in made_with.values()]
        hashes = (str(run.origin.get("partition-hash", NONE))[:12], run.hash[:12] or NONE)
        state = f"{run.state}: {run.ended}" if run.ended else run.state
        rows.append(list(map(TableCell, (run.name, state, *versions, *hashes))))
    headings = ("run", "state", *made_with, "partition hash", "model hash")
    caption = "The runs, what made them, and the hashes of their data and models."
    return Table(caption, list(map(TableCell, headings)), rows, wordy=True)
