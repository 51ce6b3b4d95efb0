"""The tables behind the main ones: classes, clients, clients that stand out, time, runs."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from fedskew.diagnosis.rules import diagnose, line, plan_of
from fedskew.diagnosis.table import TableError, table_of_samples
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    fitted,
    in_percent,
    named,
    plain,
)
from fedskew.report.inference import Floats, Summary, summarize_seeds
from fedskew.report.results import ExperimentResults, RunRecords, SeedResult
from fedskew.report.tables import per_column, spread_words
from server_app.record import RoundRecord, Spread
from server_app.round_selection import select
from strategies.core.update_statistics import UpdateStatistics, standing_out

MOST_CLASSES = 20
"""More classes than these have no table of recalls; the figure shows them."""
BY_CLIENT = {"accuracy": "client-accuracy", "AUROC": "client-auroc"}
"""The numbers that have a table of clients."""


def class_names(results: ExperimentResults) -> list[str]:
    """Return the names of the classes; none when columns have different ones."""
    names = {run.settings.data.class_names for run in results.runs.values()}
    return list(names.pop()) if len(names) == 1 else []


def recalls(group: Iterable[SeedResult], selection: str) -> Floats | None:
    """Return (C,): the recall of every class in percent, a mean over seeds; NaN for a class without test samples."""
    rates = [
        point.numbers.recall for measured in group for point in select(measured.points, selection)
    ]
    return 100 * np.array(rates, float).mean(0) if rates else None


def recall_tables(results: ExperimentResults) -> list[Table]:
    """Return the recall of every class, for few classes."""
    names, selection = class_names(results), results.experiment.selection
    if not 0 < len(names) <= MOST_CLASSES:
        return []
    headings = {name: index for index, name in enumerate(names)}

    def cell(row: str, column: str, heading: str) -> TableCell:
        recall_C = recalls(results.of(row, column), selection)
        value = None if recall_C is None else float(recall_C[headings[heading]])
        return (
            TableCell(NONE)
            if value is None or np.isnan(value)
            else TableCell(f"{value:.0f}", heat=value / 100)
        )

    def shown(column: str) -> Sequence[str]:
        return (
            names if any(results.of(row.label, column) for row in results.experiment.rows) else []
        )

    caption = f"recall by class in percent, {SELECTION_WORDS[selection]}, mean over seeds."
    return [fitted(table, "class") for table in per_column(results, lambda _: caption, shown, cell)]


def client_tables(results: ExperimentResults) -> list[Table]:
    """Return accuracy and AUROC at every client where clients measure: a row a client, mean and spread over seeds."""
    selection, tables = results.experiment.selection, []
    for column in results.experiment.columns:
        for what, key in BY_CLIENT.items():
            by_row = {
                row.label: at_clients(results.of(row.label, column), selection, key)
                for row in results.experiment.rows
            }
            shown = {
                label: values_SK for label, values_SK in by_row.items() if values_SK is not None
            }
            runs = [run.run for label in shown for run in results.of(label, column)]
            clients = {values_SK.shape[1] for values_SK in shown.values()}
            if not shown or len(clients) != 1 or any(len(run.sites) not in clients for run in runs):
                continue
            tests = runs[0].samples.get("client-test")
            rows = [
                [TableCell(site), *([TableCell(str(tests[number]))] if tests else []),
                 *(over_seeds(values_SK[:, number], key) for values_SK in shown.values())]
                for number, site in enumerate(runs[0].sites)
            ]  # fmt: skip
            headings = ["client", *(["test samples"] if tests else []), *shown]
            caption = f"{named(column)}{what} in percent at each client, {SELECTION_WORDS[selection]}, over seeds."
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def at_clients(group: Sequence[SeedResult], selection: str, key: str) -> Floats | None:
    """Return (seeds, clients): a number that clients measured, a mean over the rounds selected; NaN where it is
    none. None where it is not recorded, or not of the same clients."""
    by_seed = [
        np.mean([point.numbers.spreads.get(key, Spread()).values for point in points], axis=0)
        for measured in group
        if (points := select(measured.points, selection))
    ]
    return (
        np.array(by_seed) if by_seed and len({len(values_K) for values_K in by_seed}) == 1 else None
    )


def over_seeds(value_S: Floats, key: str) -> TableCell:
    """Return mean and standard deviation of a share over the seeds that have one, shaded by it."""
    known = {
        seed: 100 * value for seed, value in enumerate(value_S.tolist()) if not np.isnan(value)
    }
    if not known:
        return TableCell(NONE)
    summary = Summary(known)
    return TableCell(spread_words(summary, key), heat=summary.mean / 100)


def skew_lines(results: ExperimentResults) -> list[str]:
    """Return which skew the clients' counts show, a line a column, of its first run that has them."""
    lines = []
    for column in results.experiment.columns:
        runs = [
            measured.run
            for row in results.experiment.rows
            for measured in results.of(row.label, column)
        ]
        for run in runs:
            with suppress(TableError):  # one client holds everything: there is no skew
                if table := table_of_samples(run.name, run.samples):
                    lines.append(
                        f"{named(column)}{line(diagnose(table, plan=plan_of(run.settings)))}"
                    )
                    break
    return lines


def bar_lines(results: ExperimentResults) -> list[str]:
    """Return by how much rows are below each site alone, and below training on everything in one place, where these
    rows exist: mean differences over the seeds in common."""
    lines, experiment = [], results.experiment
    for column in experiment.columns:
        metric = experiment.metric_of(column)
        summaries = {
            row.label: (runs, summary.by_seed)
            for row in experiment.rows
            if (runs := results.of(row.label, column))
            and (summary := summarize_seeds(runs, experiment.selection, metric))
        }
        for bar, (runs, of_bar) in summaries.items():
            settings = runs[0].run.settings
            alone, pooled = (
                "singleset" in settings.general.method.split("+"),
                settings.data.partition == "pooled",
            )
            below = []
            for row, (_, of_row) in summaries.items():
                margins = [
                    of_bar[seed] - value
                    for seed, value in of_row.items()
                    if seed in of_bar and row != bar
                ]
                if margins and (gap := float(np.mean(margins))) > 0:
                    below.append(f"{row} by {plain(gap, metric)}")
            if (alone or pooled) and below and in_percent(metric):
                what = "each site alone" if alone else "centralized training"
                lines.append(f"{named(column)}below {bar}, {what}, in points: {', '.join(below)}.")
    return lines


PARTS = ("clients", "server", "evaluation", "transport and the rest")


def seconds_split(measured: SeedResult) -> dict[str, float]:
    """Return a run's mean seconds a round: clients at work, server, evaluation, and what is left.

    Clients' own time is divided by the processes that played them, which is exact when all were equally busy.
    """
    split = dict.fromkeys(PARTS, 0.0)
    for record in measured.run.records:
        seconds = record.seconds
        work = min(seconds.clients, seconds.client_work / max(1, len(record.workers)))
        rest = max(0.0, seconds.round - work - seconds.server - seconds.evaluation)
        for part, value in zip(
            PARTS, (work, seconds.server, seconds.evaluation, rest), strict=True
        ):
            split[part] += value / len(measured.run.records)
    return split


def trainings(results: ExperimentResults, column: str) -> dict[str, list[SeedResult]]:
    """Return the trainings of a column by the rows that they serve: one run a seed each."""
    served: dict[str, tuple[list[str], SeedResult]] = {}
    for row in results.experiment.rows:
        for measured in results.of(row.label, column):
            served.setdefault(measured.run.name, ([], measured))[0].append(row.label)
    result: dict[str, list[SeedResult]] = {}
    for rows, measured in served.values():
        result.setdefault(", ".join(rows), []).append(measured)
    return result


def time_tables(results: ExperimentResults) -> list[Table]:
    """Return seconds a round by what they went into."""
    tables = []
    for column in results.experiment.columns:
        rows = []
        for label, runs in trainings(results, column).items():
            split = {
                part: float(np.mean([seconds_split(measured)[part] for measured in runs]))
                for part in PARTS
            }
            shown = [TableCell(f"{value:.3f}") for value in (*split.values(), sum(split.values()))]
            rows.append([TableCell(label), *shown])
        if rows:
            caption = (
                f"{named(column)}seconds a round, mean over rounds and seeds; one training a row."
            )
            tables.append(
                Table(
                    caption,
                    [TableCell("training"), *map(TableCell, PARTS), TableCell("round")],
                    rows,
                )
            )
    return tables


def runs_table(results: ExperimentResults) -> Table:
    """Return every run of the plan, how far it is, and what made it."""
    rows = []
    for run in results.runs.values():
        versions = run.versions if run.origin else {}
        partition = str(run.origin.get("partition-hash", NONE))[:12]
        model = str((run.summary or {}).get("hash", {}).get("all") or NONE)[:12]
        shown = [versions.get(name, NONE) for name in ("code", "torch", "flwr", "cpu", "device")]
        rows.append(
            [
                TableCell(run.label),
                TableCell(run.state),
                *map(TableCell, (*shown, partition, model)),
            ]
        )
    headings = (
        "run",
        "state",
        "code",
        "torch",
        "flwr",
        "CPU",
        "device",
        "partition hash",
        "model hash",
    )
    caption = "The runs, what made them, and the hashes of their data and models."
    return Table(caption, list(map(TableCell, headings)), rows, wordy=True)


class ClientRound(NamedTuple):
    """What a client did in one round."""

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
    """Return the clients whose updates stand out in at least half of the rounds that they took client_round in."""
    rows = []
    for run in results.finished:
        taken: dict[int, list[ClientRound]] = {}
        for client_round in client_rounds(run.records):
            taken.setdefault(client_round.update.client, []).append(client_round)
        for client, rounds in sorted(taken.items()):
            if 2 * sum(bool(client_round.reason) for client_round in rounds) >= len(rounds):
                rows.append(
                    [TableCell(run.label), *map(TableCell, outlier_row(run, client, rounds))]
                )
    return [Table(OUTLIER_CAPTION, list(map(TableCell, OUTLIER_HEADINGS)), rows)] if rows else []


def client_rounds(records: Sequence[RoundRecord]) -> Iterator[ClientRound]:
    """Yield every update of every round."""
    for record in records:
        reasons = standing_out(record.updates, record.median_norm)
        median = record.median_norm or math.inf
        for update in record.updates:
            yield ClientRound(reasons.get(update.client, ""), update, update.norm / median)


def outlier_row(run: RunRecords, client: int, rounds: Sequence[ClientRound]) -> tuple[str, ...]:
    """Return a client's cells, but for the run's name."""
    names = run.agreement.get("sites") or run.samples.get("clients") or range(client + 1)
    reasons = [client_round.reason for client_round in rounds if client_round.reason]
    cosines = [
        client_round.update.cosine
        for client_round in rounds
        if not math.isnan(client_round.update.cosine)
    ]
    return (
        str(names[client]),
        f"{len(reasons)} of {len(rounds)}",
        ", ".join(sorted(set(reasons))),
        plain(statistics.median(client_round.times for client_round in rounds)),
        plain(statistics.median(cosines), "loss") if cosines else plain(None),
        str(rounds[-1].update.examples),
    )
