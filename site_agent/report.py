"""`fedskew-site report`: what left this site in a month, as one page of Markdown, from the audit log alone."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from data import DataError
from data.text import escaped
from site_agent.audit import Audit
from site_agent.config import Site
from site_agent.run_facts import facts_of

MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
MEANINGS = {
    "model": "an update: the model after training here",
    "metrics": "numbers of samples and steps, losses, scores, numbers that a method records",
    "digests": "hashes of what this site keeps",
    "worker": "seconds and memory of the training process",
    "error": "kind and number of an error; the sentence stays here",
    "upload/readiness": "whether this site is ready for the run",
    "upload/column-sums": "sums and sums of squares of the table's columns, for mean and std of all sites",
    "upload/nonce": "random bytes for a masked sum",
    "upload/words": "numbers under masks that cancel in the sum of all sites",
}
"""By record, what it is in words."""
FAMILIES = {
    "test": "scores on this site's test set",
    "upload": "what the method of that name asks for",
}
"""By the first part of a record's name, what it is, where MEANINGS has no entry."""
SHOWN = 16
"""Characters of a hash that a table shows."""


@dataclass
class RunMonth:
    """What left in one run."""

    name: str = ""
    method: str = ""
    rounds: set[int] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """Bytes."""


@dataclass
class RecordMonth:
    """What left under one name."""

    times: int = 0
    size: int = 0
    """Bytes."""
    norm: float = 0.0
    """The largest one, 0 without any."""


def month_of(entries: Sequence[dict[str, Any]], month: str) -> str:
    """Return the month to report: as given, or that of the last entry. Raises DataError for what is no month."""
    if not month:
        if not entries:
            raise DataError("the audit log has no entry, so there is no month to report")
        return str(entries[-1]["time"])[:7]
    if not MONTH.fullmatch(month):
        raise DataError("must be YYYY-MM, as 2026-11", key="--month", value=month)
    return month


def report(site: Site, audit: Audit, month: str = "") -> str:
    """Return the page.

    Args:
        site: The site.
        audit: Its audit log, which is read and never changed.
        month: YYYY-MM in UTC, as the log's times are; empty for the month of the last entry.

    Raises:
        DataError: the log was changed, lines are missing, or the month is none.
    """
    lines = audit.verify()
    everything = [json.loads(line) for line in audit.lines()]
    month = month_of(everything, month)
    entries = [entry for entry in everything if str(entry["time"]).startswith(month)]
    agreement = site.agreement
    page = [
        f"# What left {plain(site.name)} in {month}",
        "",
        f"Federation {plain(agreement.name)}, federation.toml sha256 {agreement.sha256}.",
        f"From the audit log: all of its {lines} lines follow from each other, {len(entries)} are of this month (UTC).",
        "",
        *totals(entries),
        *runs(entries, everything),
        *records(entries),
        *sums(entries),
        *refusals(entries),
        *decisions(entries),
        "## What this page cannot show",
        "",
        "The log has names, sizes and norms of what left, and no values. Names of runs and methods are those that the",
        "coordinator's messages state; the sha256 stands for the complete settings, which `fedskew-site log` shows.",
    ]
    return "\n".join(page) + "\n"


def left(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of what left with an entry's reply."""
    return list(entry.get("left", []))


def totals(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the numbers of the month."""
    events: Counter[str] = Counter()
    size = 0
    for entry in entries:
        events[entry["event"]] += 1
        size += sum(row["bytes"] for row in left(entry))
    lines = [f"* {size:,} bytes left this site, in {events['answered']} answered messages"]
    lines.append(f"* {events['refused']} messages were refused, {events['failed']} failed")
    lines.append(f"* {events['summed']} masked sums, {events['sum refused']} refused")
    return [*lines, ""]


def runs(entries: Iterable[dict[str, Any]], everything: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of runs. Lines of earlier versions name no method: it is read from their run's settings."""
    stated = {
        entry["settings"]: facts_of(entry["text"])
        for entry in everything
        if entry["event"] == "run" and isinstance(entry.get("text"), str)
    }
    found: dict[str, RunMonth] = {}
    for entry in entries:
        if "kind" not in entry:
            continue  # no message
        code = str(entry.get("settings", ""))
        run = found.setdefault(code, RunMonth())
        facts = {**stated.get(code, {}), **entry}
        run.name = str(facts.get("name", run.name))
        run.method = str(facts.get("method", run.method))
        if "round" in entry:
            run.rounds.add(int(entry["round"]))
        run.events[entry["event"]] += 1
        run.size += sum(row["bytes"] for row in left(entry))
    rows = []
    for code, run in found.items():
        spread = f"{min(run.rounds)} to {max(run.rounds)}" if run.rounds else "not in the log"
        counts = [run.events[event] for event in ("answered", "refused", "failed")]
        rows.append(
            [run.name or "not in the log", run.method or "not in the log", code[:SHOWN] or "none", spread,
             *map(str, counts), f"{run.size:,}"]
        )  # fmt: skip
    head = ["run", "local methods", "settings", "rounds", "answered", "refused", "failed", "bytes"]
    return table("Runs", head, rows)


def records(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of what left, by the name of the record."""
    found: dict[str, RecordMonth] = {}
    for entry in entries:
        for row in left(entry):
            name = str(row["name"]).partition("/")[2] or str(row["name"])  # CLIENT/RECORD
            record = found.setdefault(name, RecordMonth())
            record.times += 1
            record.size += row["bytes"]
            record.norm = max(record.norm, row.get("norm", 0.0))
    rows = [
        [name, meaning_of(name), str(record.times), f"{record.size:,}", f"{record.norm:g}" if record.norm else ""]
        for name, record in sorted(found.items())
    ]  # fmt: skip
    return table("What left", ["record", "what it is", "times", "bytes", "largest norm"], rows)


def meaning_of(name: str) -> str:
    """Return what a record is in words, or an empty text for one of another app."""
    return MEANINGS.get(name) or FAMILIES.get(name.partition("/")[0], "")


def sums(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of masked sums."""
    rows = [
        [entry["time"][:19], entry["event"], str(entry.get("sum", "")), str(entry.get("words", ""))]
        for entry in entries
        if entry["event"] in ("summed", "sum repeated", "sum refused")
    ]
    return table("Masked sums", ["time", "event", "sum", "numbers"], rows)


def refusals(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of reasons why something did not leave."""
    reasons: Counter[str] = Counter()
    for entry in entries:
        if entry["event"] in ("refused", "failed", "sum refused"):
            reasons[str(entry.get("why", "see the site's log"))] += 1
        for row in left(entry):
            if "why" in row:
                reasons[str(row["why"])] += 1
    rows = [[reason, str(times)] for reason, times in sorted(reasons.items())]
    return table("What did not leave", ["reason", "times"], rows)


def decisions(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of what somebody at this site decided."""
    rows = []
    for entry in entries:
        if entry["event"] in ("approved", "run approved", "forgotten"):
            what = str(entry.get("settings") or entry.get("federation") or entry.get("run") or "")
            if "until" in entry:
                former = str(entry.get("former", ""))[:SHOWN]
                what += f", and the former {former} until {str(entry['until'])[:19]}"
            rows.append([entry["time"][:19], entry["event"], what])
    return table("What was decided here", ["time", "event", "of"], rows)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a titled table of Markdown, or a sentence without rows. Text from elsewhere can end no cell."""
    lines = [f"## {title}", ""]
    if not rows:
        return [*lines, "Nothing in this month.", ""]
    lines.append(f"| {' | '.join(head)} |")
    lines.append(f"|{'---|' * len(head)}")
    lines += [f"| {' | '.join(map(plain, row))} |" for row in rows]
    return [*lines, ""]


def plain(text: str) -> str:
    """Return a text that stays in its line and cell, and that no page takes for markup."""
    text = escaped(text)[:300]
    for mark in "|<>[]`*":
        text = text.replace(mark, f"&#{ord(mark)};")
    return text
