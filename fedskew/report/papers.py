"""What the papers say, with verdicts: as Markdown, as JSON, and for a terminal.

A paper's claims are those of its entries in a file of experiments. On a laptop they are measured on smaller editions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fedskew.experiments import (
    Experiment,
    Suite,
    claim_of_edition,
    entries_in,
    file_of_suite,
)
from fedskew.experiments.claims import HeldBy
from fedskew.formatting import escaped, p_value
from fedskew.report.claims import (
    SAYS,
    Verdict,
    claim_json,
    corrected,
    counted,
    judge_claim,
)
from fedskew.report.format import NONE, TableCell, plain, table
from fedskew.report.inference import is_significant
from fedskew.report.kept_records import kept_run, origins
from fedskew.report.render import rendered
from fedskew.report.results import ExperimentResults, command, gather
from fedskew.report.runs import Run
from server_app.run_settings import Scalar

WORDS = {
    "holds": SAYS["holds"],
    "fails": SAYS["fails"],
    "unclear": SAYS["unclear"],
    "never": "cannot be judged",
    "open": SAYS["open"],
}
"""A claim's status in words, in the order in which a paper's are counted."""
HEADINGS = ("statement", "the paper", "here", "95 % interval", "verdict")
SCALE = "at the size for a laptop: every statement says what its smaller edition gives up"
SEEDS_AND_P = "Seeds beside a verdict are the number that would decide; p is Holm's, and stands where it is below 1."
MOST_SEEDS = 20
"""A claim that takes more seeds than these cannot be judged."""


@dataclass(frozen=True)
class Statement:
    """A claim of a paper's entry, with its verdict in the entry where it is measured."""

    paper: Experiment
    entry: str
    verdict: Verdict

    @property
    def needs_too_many_seeds(self) -> bool:
        return (self.verdict.more_seeds or 0) > MOST_SEEDS

    @property
    def status(self) -> str:
        """A key of WORDS."""
        return "never" if self.needs_too_many_seeds else self.verdict.status

    @property
    def in_words(self) -> str:
        """The verdict with its reason."""
        verdict = self.verdict
        seeds = ""
        if self.needs_too_many_seeds:
            seeds = f"over {MOST_SEEDS} seeds"
        elif verdict.more_seeds is not None:
            seeds = f"{verdict.more_seeds} seeds"
        elif verdict.status == "unclear":
            seeds = "one seed says nothing of others"
        reasons = "; ".join(filter(None, [verdict.why_not, verdict.unfit, seeds]))
        return ": ".join(filter(None, [WORDS[self.status], reasons]))

    @property
    def lost(self) -> str:
        """What the smaller edition gives up; empty for the paper's own entry."""
        here = self.paper.here
        return here.lost if here is not None and self.entry != self.paper.name else ""

    @property
    def cells(self) -> list[TableCell]:
        """The row of the paper's table, by HEADINGS."""
        verdict = self.verdict
        here, interval = verdict.in_words
        if verdict.found.margin:
            here += f" (claimed: above {plain(verdict.found.margin, verdict.metric)})"
        if verdict.p_holm is not None and verdict.p_holm < 1:
            interval += f", p {p_value(verdict.p_holm)}"
        details = ""
        if verdict.n and verdict.parts > 1:
            details = f"{verdict.above} of {verdict.parts} parts; least in {verdict.deciding}"
        place = self.paper.paper.partition(", ")[2]
        return [
            TableCell(verdict.claim.says, place),
            TableCell(verdict.claim.number or NONE),
            TableCell(here or NONE, details),
            TableCell(interval or NONE),
            TableCell(self.in_words),
        ]


@dataclass(frozen=True)
class PapersReport:
    """The claims of every paper in a file, judged on a laptop."""

    suite: Suite
    by_paper: Mapping[str, Sequence[Statement]]
    """In the order of the file."""
    runs: Mapping[str, Run]
    """The distinct runs of the suite, by their ids."""
    command: str
    """What makes them."""

    @property
    def statements(self) -> list[Statement]:
        return [*chain.from_iterable(self.by_paper.values())]

    @property
    def counts(self) -> dict[str, str]:
        """By paper: "FedShift 27: 17 hold (12 of 17 measured ones after Holm's correction), 3 do not hold"."""
        texts = {}
        for paper, statements in self.by_paper.items():
            parts = counted([one.status for one in statements], WORDS)
            holding = [one.verdict.p_holm for one in statements if one.status == "holds"]
            measured = [p for p in holding if p is not None]
            if measured:
                stand = sum(map(is_significant, measured))
                parts[0] += f" ({stand} of {len(measured)} measured ones after Holm's correction)"
            texts[paper] = f"{paper} {len(statements)}: {', '.join(parts)}"
        return texts

    @property
    def kept(self) -> list[str]:
        """Where the runs that come from kept records were made."""
        return origins(run for run in self.runs.values() if run.file is not None)

    @property
    def finished(self) -> int:
        """The number of finished runs."""
        return sum(run.finished for run in self.runs.values())

    @property
    def about(self) -> str:
        """How many runs are finished, and where those that are not from the results folder come from."""
        statuses = [one.status for one in self.statements]
        decided = statuses.count("holds") + statuses.count("fails")
        # Without a number a claim is measured where a test holds it.
        measured = sum(one.verdict.n > 0 or one.status == "holds" for one in self.statements)
        so_far = "" if self.finished == len(self.runs) else " so far"
        text = (
            f"{self.finished} of {len(self.runs)} runs are finished: {measured} of {len(statuses)} "
            f"statements are measured{so_far}, and {decided} of these decided."
        )
        return f"{text} From kept records: {'; '.join(self.kept)}." if self.kept else text


def papers_report(
    suite: Suite,
    overrides: Mapping[str, Scalar],
    file: Path | None = None,
    records: Path | None = None,
) -> PapersReport:
    """Return the verdicts on the claims of the papers in the suite's file.

    Args:
        suite: of papers.
        overrides: settings that replace the file's.
        file: the user's file of experiments.
        records: the folder of kept records, which count where the results folder has no finished run.

    Raises:
        SettingError, DataError: as `entries_in` and `gather` raise them.
    """
    entries = entries_in(file_of_suite(suite.name, file))
    results: dict[str, ExperimentResults] = {}
    by_paper: dict[str, list[Statement]] = {}
    for paper in entries.values():
        if not isinstance(paper, Experiment) or not paper.paper:
            continue
        entry = entries[paper.measured_in]
        assert isinstance(entry, Experiment)  # the reader refuses an edition that is a suite
        for claim in paper.claims:
            if isinstance(claim, HeldBy):
                verdict = judge_claim(ExperimentResults(entry, (), {}, {}), claim)
            else:
                if entry.name not in results:
                    results[entry.name] = gather(entry, overrides, kept=partial(kept_run, records))
                verdict = judge_claim(results[entry.name], claim_of_edition(claim, paper, entry))
            name = paper.paper.partition(",")[0]
            by_paper.setdefault(name, []).append(Statement(paper, entry.name, verdict))

    for name, statements in by_paper.items():
        # p-values are corrected for the number of claims of a paper.
        verdicts = corrected([one.verdict for one in statements])
        pairs = zip(statements, verdicts, strict=True)
        by_paper[name] = [replace(one, verdict=verdict) for one, verdict in pairs]
    runs: dict[str, Run] = {}
    for of_entry in results.values():
        runs |= of_entry.runs
    # The page is for others: no path of this machine belongs into it.
    shown = {key: value for key, value in overrides.items() if key != "results"}
    if "data-root" in shown:
        shown["data-root"] = "FOLDER"
    return PapersReport(suite, by_paper, runs, command([suite.name], shown, file))


def markdown(report: PapersReport, day: date) -> str:
    """Return the page as Markdown, which says the day on which it is made."""
    suite = report.suite
    parts = [
        "# The papers' statements",
        f"{suite.title}. Made by `{report.command}` and `fedskew report {suite.name} --markdown`, "
        f"on {day.isoformat()}, {SCALE}.\n{report.about}",
        SEEDS_AND_P,
        "\n".join(f"* {escaped(count)}" for count in report.counts.values()),
    ]
    for paper, statements in report.by_paper.items():
        of_paper = table(paper, HEADINGS, [one.cells for one in statements], wordy=True)
        parts.append(f"## {rendered('table.md', table=of_paper)}".rstrip())
    entries: dict[str, dict[str, None]] = {}  # by what they give up, which several can share
    for one in report.statements:
        if one.lost:
            entries.setdefault(one.lost, {})[one.entry] = None
    if entries:
        texts = [f"{', '.join(names)}: {lost}" for lost, names in entries.items()]
        lines = [f"* {escaped(text)}" for text in texts]
        parts += ["## What the smaller editions give up", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def as_json(report: PapersReport) -> dict[str, Any]:
    """Return the verdicts for other programs, each with the entries of a claim in a report's JSON."""
    statements = []
    for one in report.statements:
        place = {"entry": one.paper.name, "paper": one.paper.paper, "measured-in": one.entry}
        verdict = {"status": one.status, "verdict": one.in_words, "lost": one.lost}
        statements.append({**claim_json(one.verdict), **place, **verdict})
    return {
        "suite": report.suite.name,
        "papers": report.counts,
        "runs": {"finished": report.finished, "kept": report.kept},
        "statements": statements,
    }


def terminal_lines(report: PapersReport) -> list[str]:
    """Return a line per paper, then one per claim."""
    lines = [*report.counts.values(), report.about]
    for one in report.statements:
        says, _, here, interval, verdict = one.cells
        line = f"{one.paper.paper}: {says.text}: {verdict.text}"
        if one.verdict.n:
            line += f" ({here.text} {interval.text})"
        lines.append(line)
    return lines
