"""What the papers say, with verdicts: as Markdown, as one HTML page, as JSON, and for a terminal.

A paper's claims are those of its entries in a file of experiments. On a laptop they are measured on smaller editions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from data.dataset import missing_names
from fedskew.experiments.claims import Claim, Contrast, HeldBy
from fedskew.experiments.experiments import Experiment, Suite, edition_columns, entries_in
from fedskew.experiments.lookup import Entries, entry_named, file_of_suite
from fedskew.experiments.plan import Cell
from fedskew.formatting import duration, escaped, p_value
from fedskew.report.claims import SAYS, Verdict, corrected, held, judge_claim
from fedskew.report.format import NONE, first_upper, plain, signed
from fedskew.report.kept_records import KeptRecords, KeptRun, origins
from fedskew.report.page import TEMPLATES
from fedskew.report.results import ExperimentResults, command, gather
from fedskew.report.run_records import RunRecords
from server_app.run_settings import Scalar

STATUSES = ("holds", "fails", "unclear", "never", "open")
"""The order in which a paper's claims are counted."""
WORDS = {**SAYS, "never": "cannot be judged"}
PLURAL = {"holds": "hold", "fails": "do not hold"}
"""Where several claims have another word than one."""
HEADINGS = ("statement", "the paper", "here", "95 % interval", "verdict")
SCALE = {
    "smoke": "a check that the command works, on scikit-learn's digits: no statement is measured by it",
    "laptop": "at the size for a laptop: every statement says what its smaller edition gives up",
    "full": "at the papers' own scale",
}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "usps": "USPS"}
"""Data sets whose usual name is not their name here in capitals, word by word."""
MOST_SEEDS = 20
"""A claim that takes more seeds than these cannot be judged."""


@dataclass(frozen=True)
class PaperClaim:
    """One claim of a paper's entry, judged in the entry where it is measured."""

    paper: Experiment
    verdict: Verdict
    results: ExperimentResults | None
    """Of the entry where it is measured; None of a claim that a test holds."""
    reason: str = ""
    """Why it cannot be judged, where that is not for its runs to say."""

    @property
    def short_paper(self) -> str:
        """The paper's name."""
        return self.paper.paper.partition(",")[0]

    @property
    def lost(self) -> str:
        """What the entry gives up where it is measured."""
        of_edition = self.results is not None and self.results.experiment.name != self.paper.name
        return self.paper.here.lost if of_edition and self.paper.here is not None else ""

    @property
    def cells(self) -> list[Cell]:
        """The runs behind it."""
        if self.results is None:
            return []
        rows, columns = self.verdict.claim.rows, self.verdict.columns
        return [cell for cell in self.results.cells if cell.row in rows and cell.column in columns]

    @property
    def status(self) -> str:
        """A key of WORDS: what no 20 seeds would decide cannot be judged."""
        return "never" if self.reason else self.verdict.status

    @property
    def words(self) -> str:
        """The verdict with what belongs to it: "not distinguishable: 12 seeds would decide"."""
        verdict, word = self.verdict, WORDS[self.status]
        reasons = [self.reason or verdict.why_not, verdict.unfit]
        if self.status == "unclear" and verdict.more_seeds is None:
            reasons.append("one seed says nothing of others")
        elif self.status == "unclear":
            reasons.append(f"{verdict.more_seeds} seeds would decide")
        return ": ".join([word, *filter(None, ["; ".join(filter(None, reasons))])])

    @property
    def is_measured(self) -> bool:
        """Whether it has a verdict, or at least a number where more than MOST_SEEDS would be needed for one."""
        return self.status in ("holds", "fails", "unclear") or self.verdict.n > 0

    @property
    def seconds(self) -> float:
        """The seconds of the finished runs behind it, each run once."""
        if self.results is None:
            return 0.0
        runs = [self.results.runs[name] for name in {cell.run.run_id: None for cell in self.cells}]
        records = [record for run in runs if run.finished for record in run.records]
        return math.fsum(record.seconds.round for record in records)

    @property
    def command(self) -> str:
        """The command that makes its runs; empty where it has none."""
        cells = self.cells
        if not cells:
            return ""
        words = [f"fedskew run {cells[0].experiment}"]
        words += [f'--row "{row}"' for row in dict.fromkeys(cell.row for cell in cells)]
        columns = dict.fromkeys(cell.column for cell in cells)
        return " ".join(words + [f'--column "{column}"' for column in columns if column])


@dataclass(frozen=True)
class PapersReport:
    """The claims of every paper in a file, judged at one size."""

    suite: Suite
    claims: Sequence[PaperClaim]
    command: str
    runs: Mapping[str, RunRecords] = field(default_factory=dict)
    """The distinct runs of the suite, by their ids."""

    @property
    def by_paper(self) -> dict[str, list[PaperClaim]]:
        """The claims by paper, in the order of the file."""
        papers: dict[str, list[PaperClaim]] = {}
        for claim in self.claims:
            papers.setdefault(claim.short_paper, []).append(claim)
        return papers

    @property
    def finished(self) -> int:
        """How many of the runs are finished."""
        return sum(run.finished for run in self.runs.values())

    @property
    def kept(self) -> list[KeptRun]:
        """The runs that come from kept records."""
        return [run for run in self.runs.values() if isinstance(run, KeptRun)]


def papers_report(
    suite: Suite,
    overrides: Mapping[str, Scalar],
    file: Path | None = None,
    records: Path | None = None,
) -> PapersReport:
    """Return the verdicts on the claims of the papers in the suite's file.

    Args:
        suite: of one size.
        overrides: settings that replace the file's.
        file: the user's file of experiments.
        records: the folder of kept records, which count where the results folder has no finished run.

    Raises:
        SettingError, DataError: as `entries_in` and `gather` raise them.
    """
    kept = KeptRecords(records)
    entries = entries_in(file_of_suite(suite.name, file))
    results: dict[str, ExperimentResults] = {}
    claims: list[PaperClaim] = []
    for paper in entries.values():
        if not isinstance(paper, Experiment) or not paper.paper:
            continue
        of_paper = None
        if paper.is_papers:
            entry = measured_entry(paper, suite.size, entries)
            if entry.name not in results:
                results[entry.name] = gather(entry, overrides, kept=kept.of)
            of_paper = results[entry.name]
        claims += [paper_claim(paper, claim, of_paper) for claim in paper.claims]

    judged: list[PaperClaim] = []
    for name in dict.fromkeys(claim.short_paper for claim in claims):
        # p-values are corrected for the number of claims of a paper.
        of_name = [claim for claim in claims if claim.short_paper == name]
        verdicts = corrected([claim.verdict for claim in of_name])
        pairs = zip(of_name, verdicts, strict=True)
        judged += [replace(claim, verdict=verdict) for claim, verdict in pairs]
    runs: dict[str, RunRecords] = {}
    for of_entry in results.values():
        runs |= of_entry.runs

    # The page is for others: no path of this machine belongs into it.
    shown = {key: value for key, value in overrides.items() if key != "results"}
    if "data-root" in shown:
        shown["data-root"] = "FOLDER"
    return PapersReport(suite, judged, command([suite.name], shown, file), runs)


def measured_entry(paper: Experiment, size: str, entries: Entries) -> Experiment:
    """Return the entry in which a paper's claims are measured at a size: smoke, laptop or full."""
    name = paper.here.entry if paper.here is not None and size != "full" else paper.name
    smoke = entry_named(f"{name}-smoke", entries) if size == "smoke" else None
    entry = smoke or entries[name]
    assert isinstance(entry, Experiment)  # the reader refuses an edition that is a suite
    return entry


def paper_claim(paper: Experiment, claim: Claim, results: ExperimentResults | None) -> PaperClaim:
    """Return the verdict on a claim of a paper's entry from the results of the entry where it is measured."""
    if isinstance(claim, HeldBy):
        return PaperClaim(paper, held(claim), None)
    assert results is not None  # of any other claim
    of_edition = claim
    if results.experiment.name != paper.name and paper.here is not None:
        columns = edition_columns(claim, paper, results.experiment)
        of_edition = replace(claim, columns=columns)
        if isinstance(of_edition, Contrast):
            peak = paper.here.columns.get(of_edition.peak, of_edition.peak)
            of_edition = replace(of_edition, peak=peak)
    verdict = judge_claim(results, of_edition)
    judged = PaperClaim(paper, verdict, results)
    if verdict.more_seeds is not None and verdict.more_seeds > MOST_SEEDS:
        return replace(judged, reason=f"more than {MOST_SEEDS} seeds would be needed")
    if verdict.status == "open":
        return replace(judged, reason=missing_data(judged.cells, results))
    return judged


def missing_data(cells: Sequence[Cell], results: ExperimentResults) -> str:
    """Return in words which data sets of the unfinished runs are not there; empty where all are."""
    lacking: dict[str, None] = {}
    for cell in cells:
        if not results.runs[cell.run.run_id].finished:
            lacking |= dict.fromkeys(missing_names(cell.run.data))
    verb = "is" if len(lacking) == 1 else "are"
    return f"{' and '.join(map(title_of, lacking))} {verb} not in data-root" if lacking else ""


def title_of(dataset: str) -> str:
    """Return what papers call a data set: CIFAR-100, Fashion-MNIST."""
    words = [TITLES.get(word, word.capitalize()) for word in dataset.split("-")]
    return TITLES.get(dataset, "-".join(words))


# ---- words -----------------------------------------------------------------------------------------------------------


def about_runs(report: PapersReport) -> str:
    """Return how many runs are finished, and where those that are not from the results folder come from."""
    statuses = [claim.status for claim in report.claims]
    decided = statuses.count("holds") + statuses.count("fails")
    measured = sum(claim.is_measured for claim in report.claims)
    finished, planned = report.finished, len(report.runs)
    so_far = "" if finished == planned else " so far"
    text = f"{finished} of {planned} runs are finished: {measured} of {len(statuses)} statements "
    text += f"are measured{so_far}, and {decided} of these decided."
    if report.kept:
        text += f" From kept records: {'; '.join(origins(report.kept))}."
    return text


def counted(paper: str, claims: Sequence[PaperClaim]) -> str:
    """Return a paper's line: "FedShift 27: 17 hold (12 after Holm's correction), 3 do not hold"."""
    parts = []
    for status in STATUSES:
        chosen = [claim.verdict for claim in claims if claim.status == status]
        if not chosen:
            continue
        singular = WORDS[status]
        word = singular if len(chosen) == 1 else PLURAL.get(status, singular)
        part = f"{len(chosen)} {word}"
        p_values = [verdict.p_holm for verdict in chosen if verdict.p_holm is not None]
        if status == "holds" and p_values:
            stand = sum(p < 0.05 for p in p_values)
            part += f" ({stand} of {len(p_values)} measured ones after Holm's correction)"
        parts.append(part)
    return f"{paper} {len(claims)}: {', '.join(parts)}"


def row_of(claim: PaperClaim) -> dict[str, str]:
    """Return what tables show of a claim: what it says, the paper's number, ours, its interval and the verdict."""
    verdict, metric = claim.verdict, claim.verdict.metric
    ours = ends = NONE
    if verdict.n:
        ours = f"{signed(verdict.estimate, metric)} {verdict.unit}".rstrip()
        ours += f" (claimed: above {plain(verdict.by, metric)})" if verdict.by else ""
    if verdict.interval is not None:
        ends = f"[{signed(verdict.interval.low, metric)}, {signed(verdict.interval.high, metric)}]"
        ends += "" if verdict.p_holm is None else f", p {p_value(verdict.p_holm)}"
    has_parts = verdict.n and verdict.parts > 1
    least = f"{verdict.above} of {verdict.parts} parts; least in {verdict.deciding}"
    return {
        "paper": claim.paper.paper,
        "says": verdict.claim.says,
        "number": verdict.claim.number or NONE,
        "ours": ours,
        "parts": least if has_parts else "",
        "interval": ends,
        "words": claim.words,
    }


def markdown(report: PapersReport, day: date) -> str:
    """Return the page as Markdown, which says the day on which it is made."""
    lines = [
        "# The papers' statements",
        "",
        f"{report.suite.title}. Made by `{report.command}` and `fedskew report {report.suite.name} --markdown`, "
        f"on {day.isoformat()}, {SCALE[report.suite.size]}.",
        about_runs(report),
        "",
    ]
    lines += [f"* {escaped(counted(paper, claims))}" for paper, claims in report.by_paper.items()]
    for paper, claims in report.by_paper.items():
        lines += ["", f"## {escaped(paper)}", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", "|:--|:--|:--|:--|:--|"]
        for claim in claims:
            row, metric = row_of(claim), claim.verdict.metric
            margins = [signed(margin, metric) for margin in claim.verdict.margins.values()]
            seeds = f"seeds {', '.join(margins)}" if margins else ""
            detail = "; ".join(filter(None, [row["parts"], seeds]))
            cells = [
                f"{row['says']} ({row['paper'].partition(', ')[2]})",
                row["number"],
                f"{row['ours']} ({detail})" if detail else row["ours"],
                row["interval"],
                row["words"],
            ]
            lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    if report.suite.size != "full":
        editions = [claim for claim in report.claims if claim.lost and claim.paper.here]
        lost = [f"* {escaped(one.paper.here.entry)}: {escaped(one.lost)}" for one in editions]
        lines += ["", "## What the smaller editions give up", "", *dict.fromkeys(lost)]
    return "\n".join(lines) + "\n"


def as_json(report: PapersReport) -> dict[str, Any]:
    """Return the verdicts for other programs."""
    statements = []
    for claim in report.claims:
        verdict, interval = claim.verdict, claim.verdict.interval
        statements.append(
            {
                "entry": claim.paper.name,
                "paper": claim.paper.paper,
                "says": verdict.claim.says,
                "number": verdict.claim.number,
                "status": claim.status,
                "verdict": claim.words,
                "estimate": verdict.estimate if verdict.n else None,
                "margin": verdict.by,
                "unit": verdict.unit,
                "interval": None if interval is None else [interval.low, interval.high],
                "p-holm": verdict.p_holm,
                "seeds": {str(seed): margin for seed, margin in verdict.margins.items()},
                "parts": [verdict.above, verdict.parts],
                "seconds": claim.seconds,
                "lost": claim.lost,
                "command": claim.command,
            }
        )
    return {
        "suite": report.suite.name,
        "size": report.suite.size,
        "papers": {paper: counted(paper, claims) for paper, claims in report.by_paper.items()},
        "runs": {"finished": report.finished, "kept": origins(report.kept)},
        "statements": statements,
    }


def terminal_lines(report: PapersReport) -> list[str]:
    """Return a line per paper, then one per claim."""
    lines = [counted(paper, claims) for paper, claims in report.by_paper.items()]
    lines.append(about_runs(report))
    for claim in report.claims:
        row = row_of(claim)
        number = f" ({row['ours']} {row['interval']})" if claim.verdict.n else ""
        lines.append(f"{row['paper']}: {row['says']}: {row['words']}{number}")
    return lines


def html(report: PapersReport) -> str:
    """Return the page as one HTML file that opens offline; its filters need no script."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    papers = list(report.by_paper)
    rows = [
        {
            **row_of(claim),
            "number_of_paper": papers.index(claim.short_paper),
            "status": claim.status,
            "lost": claim.lost,
            "seconds": duration(claim.seconds) if claim.seconds else "",
            "command": claim.command,
        }
        for claim in report.claims
    ]
    return environment.from_string(TEMPLATES["papers"]).render(
        style=Markup(TEMPLATES["style"]),
        title=report.suite.title,
        about=f"{first_upper(SCALE[report.suite.size])}. {about_runs(report)}",
        counts=[counted(paper, claims) for paper, claims in report.by_paper.items()],
        papers=[(f"p{number}", paper) for number, paper in enumerate(papers)],
        statuses=[(f"s-{status}", WORDS[status]) for status in STATUSES],
        rows=rows,
        command=report.command,
    )
