"""The papers' statements with their verdicts: as Markdown, as one HTML page, as JSON, and for a terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedskew.experiments.experiments import Experiment, Suite, entries_in
from fedskew.experiments.lookup import entry_named, statements_file
from fedskew.experiments.statements import HeldBy, Statement, load_statements
from fedskew.formatting import duration, escaped, p_value
from fedskew.report.format import NONE, first_upper, plain, signed
from fedskew.report.kept_records import KeptRecords, KeptRun, origins
from fedskew.report.render import rendered
from fedskew.report.results import ExperimentResults, command, gather
from fedskew.report.run_records import RunRecords
from fedskew.report.statements import STATUS_WORDS, Judged, judge_all
from server_app.run_settings import Scalar

PLURAL = {"holds": "hold", "fails": "do not hold"}
"""Where several statements have another word than one."""
HEADINGS = ("statement", "the paper", "here", "95 % interval", "verdict")
SCALE = {
    "smoke": "a check that the command works, on scikit-learn's digits: no statement is measured by it",
    "laptop": "at the size for a laptop: every statement says what its smaller edition gives up",
    "full": "at the papers' own scale",
}


@dataclass(frozen=True)
class PapersReport:
    """Every statement of a file, judged at one size."""

    suite: Suite
    verdicts: Sequence[Judged]
    results: Mapping[str, ExperimentResults]
    command: str
    kept: Mapping[str, KeptRun] = field(default_factory=dict)
    """The runs that come from kept records, by their ids."""

    @property
    def by_paper(self) -> dict[str, list[Judged]]:
        """Return the verdicts by paper, in the order of the file."""
        papers: dict[str, list[Judged]] = {}
        for verdict in self.verdicts:
            papers.setdefault(verdict.statement.short_paper, []).append(verdict)
        return papers

    @property
    def runs(self) -> dict[str, RunRecords]:
        """The distinct runs that the suite trains, by their ids. Facts of a partition alone need none."""
        runs: dict[str, RunRecords] = {}
        for name in self.suite.experiments:
            if name in self.results:
                runs |= self.results[name].runs
        return runs

    @property
    def finished(self) -> int:
        """How many of these are finished."""
        return sum(run.finished for run in self.runs.values())


def papers_report(
    suite: Suite,
    overrides: Mapping[str, Scalar],
    file: Path | None = None,
    records: Path | None = None,
) -> PapersReport:
    """Return the verdicts on the statements of the suite's file.

    Args:
        suite: of one size.
        overrides: settings that replace the file's.
        file: the user's file of experiments.
        records: the folder of kept records, which count where the results folder has no finished run.

    Raises:
        SettingError, DataError: as `load_statements` and `gather` raise them.
    """
    records_there = KeptRecords(records)
    source = statements_file(suite.name, file)
    statements = list(load_statements(source).values())
    entries = entries_in(source)
    results: dict[str, ExperimentResults] = {}
    for statement in statements:
        location = statement.location(suite.size)
        if location is None or isinstance(statement.test, HeldBy) or location.entry in results:
            continue
        entry = entry_of_size(location.entry, suite.size, entries)
        results[location.entry] = gather(entry, overrides, kept=records_there.of)
    verdicts = judge_all(statements, results, suite.size)
    # The page is for others: no path of this machine belongs into it.
    shown = {key: value for key, value in overrides.items() if key != "results"}
    if "data-root" in shown:
        shown["data-root"] = "FOLDER"
    made_by = command([suite.name], shown, file)
    return PapersReport(suite, verdicts, results, made_by, kept_runs(results))


def kept_runs(results: Mapping[str, ExperimentResults]) -> dict[str, KeptRun]:
    """Return the runs of results that come from kept records, each once."""
    runs = {}
    for of_entry in results.values():
        for name, run in of_entry.runs.items():
            if isinstance(run, KeptRun):
                runs[name] = run
    return runs


def entry_of_size(name: str, size: str, entries: Mapping[str, Experiment | Suite]) -> Experiment:
    """Return an entry at a size: at the smallest its smoke edition, where it has one."""
    entry = entry_named(f"{name}-smoke", entries) if size == "smoke" else None
    chosen = entry or entries[name]
    assert isinstance(chosen, Experiment)  # the reader refuses a statement about a suite
    return chosen


def about_runs(report: PapersReport) -> str:
    """Return how many runs are finished, and where those that are not from the results folder come from."""
    statuses = [verdict.status for verdict in report.verdicts]
    decided = statuses.count("holds") + statuses.count("fails")
    measured = sum(verdict.is_measured for verdict in report.verdicts)
    finished, planned = report.finished, len(report.runs)
    so_far = "" if finished == planned else " so far"
    text = f"{finished} of {planned} runs are finished: {measured} of {len(statuses)} statements "
    text += f"are measured{so_far}, and {decided} of these decided."
    if report.kept:
        text += f" From kept records: {'; '.join(origins(report.kept.values()))}."
    return text


def counted(paper: str, verdicts: Sequence[Judged]) -> str:
    """Return a paper's line: "FedShift 27: 17 hold (12 after Holm's correction), 3 do not hold"."""
    parts = []
    for status, singular in STATUS_WORDS.items():
        chosen = [verdict for verdict in verdicts if verdict.status == status]
        if not chosen:
            continue
        word = singular if len(chosen) == 1 else PLURAL.get(status, singular)
        part = f"{len(chosen)} {word}"
        measured = [verdict for verdict in chosen if verdict.p_holm is not None]
        if status == "holds" and measured:
            kept = sum(verdict.p_holm is not None and verdict.p_holm < 0.05 for verdict in measured)
            part += f" ({kept} of {len(measured)} measured ones after Holm's correction)"
        parts.append(part)
    return f"{paper} {len(verdicts)}: {', '.join(parts)}"


def ours(verdict: Judged) -> str:
    """Return the mean difference that decides, with its unit."""
    if math.isnan(verdict.estimate):
        return NONE
    number = signed(verdict.estimate, verdict.metric)
    beyond = f" (claimed: above {plain(verdict.by, verdict.metric)})" if verdict.by else ""
    return f"{number} {verdict.unit}".rstrip() + beyond


def interval(verdict: Judged) -> str:
    """Return the interval of the deciding difference, its p-value corrected, and the seeds."""
    if verdict.interval is None:
        return NONE
    low = signed(verdict.interval.low, verdict.metric)
    high = signed(verdict.interval.high, verdict.metric)
    text = f"[{low}, {high}]"
    if verdict.p_holm is not None:
        text += f", p {p_value(verdict.p_holm)}"
    return text


def seeds(verdict: Judged) -> str:
    """Return the deciding difference of every seed."""
    return ", ".join(signed(value, verdict.metric) for value in verdict.by_seed.values())


def in_parts(verdict: Judged) -> str:
    """Return in how many of its parts (columns, steps) the mean is on the right side; empty for one part."""
    if verdict.parts < 2 or math.isnan(verdict.estimate):
        return ""
    return f"{verdict.above} of {verdict.parts} parts; least in {verdict.deciding}"


def repeat_command(verdict: Judged) -> str:
    """Return the command that makes a statement's runs; empty where it has none."""
    if not verdict.cells:
        return ""
    entry = verdict.cells[0].experiment
    rows = list(dict.fromkeys(cell.row for cell in verdict.cells))
    columns = [column for column in dict.fromkeys(cell.column for cell in verdict.cells) if column]
    words = [f"fedskew run {entry}"]
    words += [f'--row "{row}"' for row in rows]
    words += [f'--column "{column}"' for column in columns]
    return " ".join(words)


def hashes(report: PapersReport, verdict: Judged) -> str:
    """Return the first digits of the hash of a statement's first finished run."""
    for cell in verdict.cells:
        for of_entry in report.results.values():
            run = of_entry.runs.get(cell.run.run_id)
            if run is not None and run.summary is not None:
                return str(run.summary.get("hash", {}).get("all", ""))[:12]
    return ""


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
    lines += [
        f"* {escaped(counted(paper, verdicts))}" for paper, verdicts in report.by_paper.items()
    ]
    for paper, verdicts in report.by_paper.items():
        lines += [
            "",
            f"## {escaped(paper)}",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|:--|:--|:--|:--|:--|",
        ]
        lines += [markdown_row(verdict) for verdict in verdicts]
    lost = dict.fromkeys(
        f"* {escaped(verdict.statement.here.entry)}: {escaped(verdict.statement.lost)}"
        for verdict in report.verdicts
        if verdict.statement.lost and verdict.statement.here is not None
    )
    if report.suite.size != "full":
        lines += ["", "## What the smaller editions give up", "", *lost]
    return "\n".join(lines) + "\n"


def markdown_row(verdict: Judged) -> str:
    """Return one statement's row."""
    statement = verdict.statement
    detail = "; ".join(
        filter(None, [in_parts(verdict), f"seeds {seeds(verdict)}" if verdict.by_seed else ""])
    )
    here = f"{ours(verdict)} ({detail})" if detail else ours(verdict)
    cells = [
        f"{statement.says} ({statement.paper.partition(', ')[2]})",
        statement.number or NONE,
        here,
        interval(verdict),
        verdict.words,
    ]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"


def as_json(report: PapersReport) -> dict[str, Any]:
    """Return the verdicts for other programs."""
    statements = []
    for verdict in report.verdicts:
        statement = verdict.statement
        measured = verdict.interval
        statements.append(
            {
                "name": statement.name,
                "paper": statement.paper,
                "says": statement.says,
                "number": statement.number,
                "status": verdict.status,
                "verdict": verdict.words,
                "estimate": None if math.isnan(verdict.estimate) else verdict.estimate,
                "margin": verdict.by,
                "unit": verdict.unit,
                "interval": None if measured is None else [measured.low, measured.high],
                "p-holm": verdict.p_holm,
                "seeds": {str(seed): value for seed, value in verdict.by_seed.items()},
                "parts": [verdict.above, verdict.parts],
                "seconds": verdict.seconds,
                "lost": statement.lost,
                "command": repeat_command(verdict),
            }
        )
    papers = {paper: counted(paper, verdicts) for paper, verdicts in report.by_paper.items()}
    return {
        "suite": report.suite.name,
        "size": report.suite.size,
        "papers": papers,
        "runs": {"finished": report.finished, "kept": origins(report.kept.values())},
        "statements": statements,
    }


def terminal_lines(report: PapersReport) -> list[str]:
    """Return a line per paper, then one per statement."""
    lines = [counted(paper, verdicts) for paper, verdicts in report.by_paper.items()]
    lines.append(about_runs(report))
    for verdict in report.verdicts:
        number = "" if math.isnan(verdict.estimate) else f" ({ours(verdict)} {interval(verdict)})"
        lines.append(
            f"{verdict.statement.paper}: {verdict.statement.says}: {verdict.words}{number}"
        )
    return lines


def html(report: PapersReport) -> str:
    """Return the page as one HTML file that opens offline; its filters need no script."""
    rows = [row_of(report, verdict) for verdict in report.verdicts]
    papers = list(report.by_paper)
    return rendered(
        "papers.html",
        title=report.suite.title,
        about=f"{first_upper(SCALE[report.suite.size])}. {about_runs(report)}",
        counts=[counted(paper, verdicts) for paper, verdicts in report.by_paper.items()],
        papers=[(f"p{number}", paper) for number, paper in enumerate(papers)],
        statuses=[(f"s-{status}", word) for status, word in STATUS_WORDS.items()],
        rows=rows,
        command=report.command,
    )


def row_of(report: PapersReport, verdict: Judged) -> dict[str, Any]:
    """Return what the page shows of one statement."""
    statement: Statement = verdict.statement
    return {
        "paper": list(report.by_paper).index(statement.short_paper),
        "status": verdict.status,
        "where": statement.paper,
        "says": statement.says,
        "number": statement.number or NONE,
        "ours": ours(verdict),
        "parts": in_parts(verdict),
        "interval": interval(verdict),
        "dots": dots(verdict),
        "words": verdict.words,
        "lost": statement.lost,
        "seconds": duration(verdict.seconds) if verdict.seconds else "",
        "hash": hashes(report, verdict),
        "command": repeat_command(verdict),
    }


def dots(verdict: Judged) -> Markup:
    """Return a strip with a dot for every seed, a line for the interval and a mark at the margin."""
    measured = verdict.interval
    if measured is None or not verdict.by_seed:
        return Markup("")
    values = [*verdict.by_seed.values(), measured.low, measured.high, verdict.by]
    low, high = min(values), max(values)
    width = high - low or 1.0

    def at(value: float) -> str:
        return f"{5 + 110 * (value - low) / width:.1f}"

    circles = "".join(
        f'<circle cx="{at(value)}" cy="8" r="2.5"/>' for value in verdict.by_seed.values()
    )
    line = f'<line x1="{at(measured.low)}" x2="{at(measured.high)}" y1="8" y2="8"/>'
    margin = f'<line class="margin" x1="{at(verdict.by)}" x2="{at(verdict.by)}" y1="1" y2="15"/>'
    return Markup(
        f'<svg class="dots" width="120" height="16" role="img">{margin}{line}{circles}</svg>'
    )
