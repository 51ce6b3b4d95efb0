"""Summary of the runs: data, clients, partition and settings in words; seconds of each run; clients that stand out."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedskew.report.format import NONE, Table, TableCell, named, plain
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.run_records import RunRecords
from server_app.record import RoundRecord
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import defaults
from strategies.core.update_statistics import UpdateStatistics, standing_out

MOST_NAMES = 12
"""Classes whose names are listed."""
SPLIT = (
    "partition", "alpha", "classes-per-client", "domain-percent", "parts-per-domain",
    "partition-file", "imbalance-factor", "largest-class", "train-images", "holdout-per-class",
)  # fmt: skip
TRAINING = ("model", "rounds", "participation", "local-epochs", "batch-size", "learning-rate")
ELSEWHERE = {"dataset", "classes", "input-shape", "mean", "std", "clients", "method", "seed"}
"""Settings that other lines or the table itself show."""
USE_ALPHA = ("lda", "feddf", "llt", "quantity")
"""The partitions that alpha has an effect on."""


def what_was_run(results: ExperimentResults) -> dict[str, str]:
    """Return by heading what was run, of the plan's settings and of what the finished runs have recorded."""
    runs = list(results.runs.values())
    flat = [run.settings.flat() for run in runs]
    keys: dict[str, None] = {}  # as a set, in the settings' order
    for settings in flat:
        keys |= dict.fromkeys(settings)
    mentioned = {*SPLIT, *TRAINING, *ELSEWHERE, *WITHOUT_EFFECT_ON_NUMBERS}
    others = [key for key in keys if key not in mentioned and differs_from_default(flat, key)]
    texts = {
        "data": data(runs),
        "clients": clients(runs),
        "partition": partition(runs, flat),
        "training": listed(values_of(flat, TRAINING)),
        "other settings": listed(values_of(flat, others)),
        "seeds": ", ".join(map(str, results.seeds)),
        "tested": tested(results.finished),
        "positive class": positive_classes(results),
    }
    return {heading: text for heading, text in texts.items() if text}


def partition(runs: Sequence[RunRecords], flat: Sequence[Mapping[str, Scalar]]) -> str:
    """Return how the samples were split, with the settings of the split that were changed."""
    if any(run.agreement for run in runs):
        return "every site's own data"
    changed = []
    if any(settings["partition"] in USE_ALPHA for settings in flat):
        changed.append("alpha")  # even its default value: the skew depends on it
    for key in SPLIT:
        if key not in ("partition", "alpha") and differs_from_default(flat, key):
            changed.append(key)
    names = values_of(flat, ["partition"])
    parts = [*names.values(), listed(values_of(flat, changed))]
    return ", ".join(filter(None, parts))


def differs_from_default(flat: Sequence[Mapping[str, Scalar]], key: str) -> bool:
    """Return whether any run has another value than the default."""
    usual = defaults()[key]
    return any(settings.get(key, usual) != usual for settings in flat)


def values_of(flat: Sequence[Mapping[str, Scalar]], keys: Iterable[str]) -> dict[str, str]:
    """Return the values of settings over the runs."""
    texts = {}
    for key in keys:
        values = dict.fromkeys(str(settings[key]) for settings in flat if key in settings)
        if values:
            texts[key] = " or ".join(values)
    return texts


def listed(values: Mapping[str, str]) -> str:
    """Return settings with their values."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def distinct(texts: Iterable[str]) -> str:
    """Return the distinct texts."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def data(runs: Sequence[RunRecords]) -> str:
    """Return the data sets with their inputs, classes and samples."""
    lines = []
    for run in runs:
        settings = run.settings.data
        names = settings.class_names
        classes = f"{len(names)} classes"
        if len(names) <= MOST_NAMES and not all(map(str.isdecimal, names)):
            classes += f": {', '.join(names)}"
        lines.append(f"{run.data_name}, inputs {settings.input_shape}, {classes}")
    return distinct(lines)


def clients(runs: Sequence[RunRecords]) -> str:
    """Return how many clients there are, and between which bounds their numbers of samples are."""
    sites = distinct(", ".join(run.sites) for run in runs if run.agreement)
    if sites:
        return f"{sites}; how many samples of which class each holds is known there alone"
    numbers = dict.fromkeys(str(run.settings.data.clients) for run in runs)
    text = " or ".join(numbers)
    sizes = []
    for run in runs:
        train_KC = run.samples.get("train", ())
        sizes += [sum(counts_C) for counts_C in train_KC]
    if sizes:
        text += f", {span(sizes)} training samples each"
    return text


def tested(runs: Sequence[RunRecords]) -> str:
    """Return on what the models were tested, and by whom."""
    if any(run.agreement for run in runs):
        return "by the sites, each on its own test set, whose size is known there alone"
    last_records = [run.records[-1] for run in runs if run.records]
    evaluated_by = distinct(record.evaluated_by for record in last_records if record.models)
    parts = []
    if evaluated_by == "server":
        parts.append("by the server on one test set")
    elif evaluated_by == "clients":
        parts.append("by the clients, each with its own model or test set")
    sizes = [sum(run.samples["test"]) for run in runs if run.samples]
    if sizes:
        parts.append(f"{span(sizes)} test samples")
    return ", ".join(parts)


def positive_classes(results: ExperimentResults) -> str:
    """Return the positive class of two that AUPRC, sensitivity and specificity are about; empty for more classes."""
    texts = []
    for group in results.measured.values():
        for measured in group:
            positive = measured.positive_class(measured.points[-1])
            if positive is not None:
                chosen = measured.run.settings.general.positive_class
                why = "stated" if chosen else positive.why
                texts.append(f"{positive.name} ({why})")
    return distinct(texts)


def span(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


PARTS = ("clients", "server", "evaluation", "transport and the rest")
"""Where a round's seconds go."""


def seconds_split(measured: SeedResult) -> dict[str, float]:
    """Return a run's mean seconds per round by PARTS.

    Clients' own time is divided by the processes that shared it, which is exact when all were equally busy.
    """
    split = dict.fromkeys(PARTS, 0.0)
    records = measured.run.records
    for record in records:
        seconds = record.seconds
        processes = max(1, len(record.workers))
        work = min(seconds.clients, seconds.client_work / processes)
        rest = max(0.0, seconds.round - work - seconds.server - seconds.evaluation)
        values = (work, seconds.server, seconds.evaluation, rest)
        for part, value in zip(PARTS, values, strict=True):
            split[part] += value / len(records)
    return split


def mean_split(runs: Sequence[SeedResult]) -> dict[str, float]:
    """Return mean seconds per round by PARTS over runs."""
    splits = [seconds_split(measured) for measured in runs]
    return {part: float(np.mean([split[part] for split in splits])) for part in PARTS}


def trainings(results: ExperimentResults, column: str) -> dict[str, list[SeedResult]]:
    """Return the trainings of a column by the rows that they serve: one run per seed."""
    rows_of_run: dict[str, list[str]] = {}
    run_of_name: dict[str, SeedResult] = {}
    for row in results.experiment.rows:
        for measured in results.of(row.label, column):
            name = measured.run.name
            run_of_name.setdefault(name, measured)
            rows_of_run.setdefault(name, []).append(row.label)

    by_rows: dict[str, list[SeedResult]] = {}
    for name, measured in run_of_name.items():
        rows = ", ".join(rows_of_run[name])
        by_rows.setdefault(rows, []).append(measured)
    return by_rows


def time_tables(results: ExperimentResults) -> list[Table]:
    """Return seconds per round by what they went into."""
    tables = []
    for column in results.experiment.columns:
        rows = []
        for label, runs in trainings(results, column).items():
            seconds = list(mean_split(runs).values())
            seconds.append(sum(seconds))
            rows.append([TableCell(label), *(TableCell(f"{value:.3f}") for value in seconds)])
        if rows:
            caption = (
                f"{named(column)}seconds a round, mean over rounds and seeds; one training a row."
            )
            headings = ("training", *PARTS, "round")
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def runs_table(results: ExperimentResults) -> Table:
    """Return every run of the plan, how far it is, and what made it."""
    made_with = {"code": "code", "torch": "torch", "flwr": "flwr", "CPU": "cpu", "device": "device"}
    rows = []
    for run in results.runs.values():
        recorded = run.versions if run.origin else {}
        versions = [recorded.get(key, NONE) for key in made_with.values()]
        partition_hash = str(run.origin.get("partition-hash", NONE))[:12]
        hashes = (run.summary or {}).get("hash", {})
        model_hash = str(hashes.get("all") or NONE)[:12]
        state = f"{run.state}: {run.ended}" if run.ended else run.state
        texts = (run.label, state, *versions, partition_hash, model_hash)
        rows.append(list(map(TableCell, texts)))
    headings = ("run", "state", *made_with, "partition hash", "model hash")
    caption = "The runs, what made them, and the hashes of their data and models."
    return Table(caption, list(map(TableCell, headings)), rows, wordy=True)


class ClientRound(NamedTuple):
    """A client's update in one round."""

    reason: str
    """Why it stands out; empty where it does not."""
    update: UpdateStatistics
    times: float
    """Its norm in medians of the round's."""


OUTLIER_HEADINGS = ("run", "client", "rounds", "stands out", "norm / median", "cosine", "samples")
OUTLIER_CAPTION = (
    "Clients that stand out: far (a norm of more than five times the median) or against the others."
)


def outlier_tables(results: ExperimentResults) -> list[Table]:
    """Return the clients whose updates stand out in at least half of the rounds that they took part in."""
    rows = []
    for run in results.finished:
        by_client: dict[int, list[ClientRound]] = {}
        for client_round in client_rounds(run.records):
            client = client_round.update.client
            by_client.setdefault(client, []).append(client_round)
        for client, rounds in sorted(by_client.items()):
            outlying = sum(bool(client_round.reason) for client_round in rounds)
            if 2 * outlying >= len(rounds):
                texts = (run.label, *outlier_row(run, client, rounds))
                rows.append(list(map(TableCell, texts)))
    if not rows:
        return []
    headings = list(map(TableCell, OUTLIER_HEADINGS))
    return [Table(OUTLIER_CAPTION, headings, rows)]


def client_rounds(records: Sequence[RoundRecord]) -> Iterator[ClientRound]:
    """Yield every update of every round."""
    for record in records:
        reasons = standing_out(record.updates, record.median_norm)
        median = record.median_norm or math.inf
        for update in record.updates:
            reason = reasons.get(update.client, "")
            yield ClientRound(reason, update, update.norm / median)


def outlier_row(run: RunRecords, client: int, rounds: Sequence[ClientRound]) -> tuple[str, ...]:
    """Return a client's cells, but for the run's name."""
    names = run.agreement.get("sites") or run.samples.get("clients") or range(client + 1)
    reasons = [client_round.reason for client_round in rounds if client_round.reason]
    norms = [client_round.times for client_round in rounds]
    cosines = [client_round.update.cosine for client_round in rounds]
    finite_cosines = [cosine for cosine in cosines if not math.isnan(cosine)]
    cosine = statistics.median(finite_cosines) if finite_cosines else None
    return (
        str(names[client]),
        f"{len(reasons)} of {len(rounds)}",
        ", ".join(sorted(set(reasons))),
        plain(statistics.median(norms)),
        plain(cosine, "loss"),  # a cosine has the digits of a loss: it is no share
        str(rounds[-1].update.examples),
    )
