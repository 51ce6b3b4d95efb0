"""The clients whose updates stand out, as the rounds' records tell of them."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedskew.report.results import ExperimentResults, RunRecords
from fedskew.report.table import Table, TableCell, plain
from server_app.record import RoundRecord
from strategies.core.update_statistics import UpdateStatistics, standing_out


class Part(NamedTuple):
    """What a client did in one round."""

    reason: str
    """Why it stands out; empty where it does not."""
    update: UpdateStatistics
    times: float
    """Its norm in medians of the round's."""


HEADINGS = ("run", "client", "rounds", "stands out", "norm / median", "cosine", "samples")
CAPTION = (
    "Clients that stand out: far (a norm of more than five times the median) or against the others."
)


def outlier_tables(results: ExperimentResults) -> list[Table]:
    """Return the clients whose updates stand out in at least half of the rounds that they took part in."""
    rows = []
    for run in results.finished:
        taken: dict[int, list[Part]] = {}
        for part in parts_of(run.records):
            taken.setdefault(part.update.client, []).append(part)
        for client, parts in sorted(taken.items()):
            if 2 * sum(bool(part.reason) for part in parts) >= len(parts):
                rows.append([TableCell(run.label), *map(TableCell, row(run, client, parts))])
    return [Table(CAPTION, list(map(TableCell, HEADINGS)), rows)] if rows else []


def parts_of(records: Sequence[RoundRecord]) -> Iterator[Part]:
    """Yield every update of every round."""
    for record in records:
        reasons, median = (
            standing_out(record.updates, record.median_norm),
            record.median_norm or math.inf,
        )
        yield from (
            Part(reasons.get(update.client, ""), update, update.norm / median)
            for update in record.updates
        )


def row(run: RunRecords, client: int, parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the words about a client."""
    reasons = [part.reason for part in parts if part.reason]
    cosines = [part.update.cosine for part in parts if not math.isnan(part.update.cosine)]
    return (
        str(
            (run.agreement.get("sites") or run.samples.get("clients") or range(client + 1))[client]
        ),
        f"{len(reasons)} of {len(parts)}",
        ", ".join(sorted(set(reasons))),
        plain(statistics.median(part.times for part in parts)),
        plain(statistics.median(cosines), "loss") if cosines else plain(None),
        str(parts[-1].update.examples),
    )
