"""What the papers say, with verdicts: as Markdown, as one HTML page, as JSON, and for a terminal.

A paper's claims are those of its entries in a file of experiments. On a laptop they are measured on smaller editions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from fedskew.experiments.claims import Claim, Contrast, HeldBy
from fedskew.experiments.experiments import (
    Experiment,
    Suite,
    edition_columns,
    entries_in,
    file_of_suite,
)
from fedskew.formatting import escaped, p_value
from fedskew.report.claims import SAYS, Verdict, corrected, judge_claim
from fedskew.report.format import NONE, first_upper, plain
from fedskew.report.kept_records import kept_run, origins
from fedskew.report.render import rendered
from fedskew.report.results import ExperimentResults, command, gather
from fedskew.report.run_records import Run
from server_app.run_settings import Scalar

WORDS = {
    "holds": SAYS["holds"],
    "fails": SAYS["fails"],
    "unclear": SAYS["unclear"],
    "never": "cannot be judged",
    "open": SAYS["open"],
}
"""A claim's status in words, in the order in which a paper's are counted."""
PLURAL = {"holds": "hold", "fails": "do not hold"}
"""Where several claims have another word than one."""
HEADINGS = ("statement", "the paper", "here", "95 % interval", "verdict")
SCALE = {
    "laptop": "at the size for a laptop: every statement says what its smaller edition gives up",
    "full": "at the papers' own scale",
}
MOST_SEEDS = 20
"""A claim that takes more seeds than these cannot be judged."""
Row = dict[str, Any]
"""A claim with its verdict, as JSON has it."""


@dataclass(frozen=True)
class PapersReport:
    """The claims of every paper in a file, judged at one size."""

    suite: Suite
    rows: Sequence[Row]
    runs: Mapping[str, Run]
    """The distinct runs of the suite, by their ids."""
    command: str
    """What makes them."""

    @property
    def by_paper(self) -> dict[str, list[Row]]:
        """The claims by paper, in the order of the file."""
        papers: dict[str, list[Row]] = {}
        for row in self.rows:
            papers.setdefault(short(row["paper"]), []).append(row)
        return papers

    @property
    def counts(self) -> dict[str, str]:
        """By paper: "FedShift 27: 17 hold (12 of 17 measured ones after Holm's correction), 3 do not hold"."""
        return {paper: f"{paper} {counted(rows)}" for paper, rows in self.by_paper.items()}

    @property
    def kept(self) -> list[str]:
        """Where the runs that come from kept records were made."""
        return origins(run for run in self.runs.values() if run.file is not None)

    @property
    def about(self) -> str:
        """How many runs are finished, and where those that are not from the results folder come from."""
        finished = sum(run.finished for run in self.runs.values())
        statuses = [row["status"] for row in self.rows]
        decided = statuses.count("holds") + statuses.count("fails")
        # Without a number a claim is measured where a test holds it.
        measured = sum(row["estimate"] is not None or row["status"] == "holds" for row in self.rows)
        so_far = "" if finished == len(self.runs) else " so far"
        text = (
            f"{finished} of {len(self.runs)} runs are finished: {measured} of {len(statuses)} statements "
            f"are measured{so_far}, and {decided} of these decided."
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
        suite: of one size.
        overrides: settings that replace the file's.
        file: the user's file of experiments.
        records: the folder of kept records, which count where the results folder has no finished run.

    Raises:
        SettingError, DataError: as `entries_in` and `gather` raise them.
    """
    entries = entries_in(file_of_suite(suite.name, file))
    results: dict[str, ExperimentResults] = {}
    verdicts: dict[str, list[tuple[Experiment, str, Verdict]]] = {}
    for paper in entries.values():
        if not isinstance(paper, Experiment) or not paper.paper:
            continue
        entry = entries[paper.entry_at(suite.size)]
        assert isinstance(entry, Experiment)  # the reader refuses an edition that is a suite
        for claim in paper.claims:
            if isinstance(claim, HeldBy):
                verdict = judge_claim(ExperimentResults(entry, (), {}, {}, (), ""), claim)
            else:
                if entry.name not in results:
                    results[entry.name] = gather(entry, overrides, kept=partial(kept_run, records))
                verdict = judge_claim(results[entry.name], claim_of_edition(claim, paper, entry))
            of_paper = verdicts.setdefault(short(paper.paper), [])
            of_paper.append((paper, entry.name, verdict))

    rows = []
    for of_paper in verdicts.values():
        # p-values are corrected for the number of claims of a paper.
        judged = corrected([verdict for _, _, verdict in of_paper])
        for (paper, entry_name, _), verdict in zip(of_paper, judged, strict=True):
            rows.append(row_of(paper, entry_name, verdict))
    runs: dict[str, Run] = {}
    for of_entry in results.values():
        runs |= of_entry.runs
    # The page is for others: no path of this machine belongs into it.
    shown = {key: value for key, value in overrides.items() if key != "results"}
    if "data-root" in shown:
        shown["data-root"] = "FOLDER"
    return PapersReport(suite, rows, runs, command([suite.name], shown, file))


def short(paper: str) -> str:
    """Return a paper's name from where something stands in it."""
    return paper.partition(",")[0]


def claim_of_edition(claim: Claim, paper: Experiment, entry: Experiment) -> Claim:
    """Return a paper's claim about the columns of the entry in which it is measured."""
    if entry.name == paper.name or paper.here is None:
        return claim
    measured = replace(claim, columns=edition_columns(claim, paper, entry))
    if isinstance(measured, Contrast):
        peak = paper.here.columns.get(measured.peak, measured.peak)
        return replace(measured, peak=peak)
    return measured


def row_of(paper: Experiment, entry: str, verdict: Verdict) -> Row:
    """Return a claim of a paper's entry with its verdict in the entry where it is measured."""
    claim, interval = verdict.claim, verdict.interval
    status, reasons = verdict.status, [verdict.why_not, verdict.unfit]
    if (verdict.more_seeds or 0) > MOST_SEEDS:
        status = "never"
        reasons.append(f"more than {MOST_SEEDS} seeds would be needed")
    elif verdict.more_seeds is not None:
        reasons.append(f"{verdict.more_seeds} seeds would decide")
    elif status == "unclear":
        reasons.append("one seed says nothing of others")
    reason = "; ".join(filter(None, reasons))

    here, ends, seeds = verdict.in_words
    here += f" (claimed: above {plain(verdict.by, verdict.metric)})" if verdict.by else ""
    ends += "" if verdict.p_holm is None else f", p {p_value(verdict.p_holm)}"
    details = f"seeds {seeds}" if seeds else ""
    if seeds and verdict.parts > 1:
        in_parts = f"{verdict.above} of {verdict.parts} parts; least in {verdict.deciding}"
        details = f"{in_parts}; {details}"
    words = [f"fedskew run {entry}"]
    words += [f'--row "{row}"' for row in claim.rows]
    words += [f'--column "{column}"' for column in verdict.columns if column]
    return {
        "entry": paper.name,
        "paper": paper.paper,
        "says": claim.says,
        "number": claim.number,
        "status": status,
        "verdict": f"{WORDS[status]}: {reason}" if reason else WORDS[status],
        "estimate": verdict.estimate if verdict.n else None,
        "margin": verdict.by,
        "unit": verdict.unit,
        "interval": None if interval is None else [interval.low, interval.high],
        "p-holm": verdict.p_holm,
        "seeds": {str(seed): margin for seed, margin in verdict.margins.items()},
        "parts": [verdict.above, verdict.parts],
        "measured-in": entry,
        "lost": paper.here.lost if paper.here is not None and entry != paper.name else "",
        "command": " ".join(words) if verdict.columns else "",
        "in-words": {"here": here or NONE, "details": details, "interval": ends or NONE},
    }


def counted(rows: Sequence[Row]) -> str:
    """Return how many claims of a paper there are and have which verdict."""
    parts = []
    for status, singular in WORDS.items():
        chosen = [row for row in rows if row["status"] == status]
        if not chosen:
            continue
        part = f"{len(chosen)} {singular if len(chosen) == 1 else PLURAL.get(status, singular)}"
        p_values = [row["p-holm"] for row in chosen if row["p-holm"] is not None]
        if status == "holds" and p_values:
            stand = sum(p < 0.05 for p in p_values)
            part += f" ({stand} of {len(p_values)} measured ones after Holm's correction)"
        parts.append(part)
    return f"{len(rows)}: {', '.join(parts)}"


def markdown(report: PapersReport, day: date) -> str:
    """Return the page as Markdown, which says the day on which it is made."""
    suite = report.suite
    lines = [
        "# The papers' statements",
        "",
        f"{suite.title}. Made by `{report.command}` and `fedskew report {suite.name} --markdown`, "
        f"on {day.isoformat()}, {SCALE[suite.size]}.",
        report.about,
        "",
    ]
    lines += [f"* {escaped(count)}" for count in report.counts.values()]
    for paper, rows in report.by_paper.items():
        lines += ["", f"## {escaped(paper)}", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", "|:--|:--|:--|:--|:--|"]
        for row in rows:
            here, details, ends = row["in-words"].values()
            says = f"{row['says']} ({row['paper'].partition(', ')[2]})"
            here += f" ({details})" if details else ""
            cells = [says, row["number"] or NONE, here, ends, row["verdict"]]
            lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    if suite.size != "full":
        lost = [f"{row['measured-in']}: {row['lost']}" for row in report.rows if row["lost"]]
        lines += ["", "## What the smaller editions give up", ""]
        lines += [f"* {escaped(line)}" for line in dict.fromkeys(lost)]
    return "\n".join(lines) + "\n"


def as_json(report: PapersReport) -> dict[str, Any]:
    """Return the verdicts for other programs."""
    return {
        "suite": report.suite.name,
        "size": report.suite.size,
        "papers": report.counts,
        "runs": {
            "finished": sum(run.finished for run in report.runs.values()),
            "kept": report.kept,
        },
        "statements": report.rows,
    }


def terminal_lines(report: PapersReport) -> list[str]:
    """Return a line per paper, then one per claim."""
    lines = [*report.counts.values(), report.about]
    for row in report.rows:
        words = row["in-words"]
        number = f" ({words['here']} {words['interval']})" if row["seeds"] else ""
        lines.append(f"{row['paper']}: {row['says']}: {row['verdict']}{number}")
    return lines


def html(report: PapersReport) -> str:
    """Return the page as one HTML file that opens offline; its filters need no script."""
    papers = list(report.by_paper)
    return rendered(
        "papers.html",
        title=report.suite.title,
        about=f"{first_upper(SCALE[report.suite.size])}. {report.about}",
        counts=report.counts.values(),
        papers=[(f"p{number}", paper) for number, paper in enumerate(papers)],
        statuses=[(f"s-{status}", word) for status, word in WORDS.items()],
        rows=[{**row, "of_paper": papers.index(short(row["paper"]))} for row in report.rows],
        command=report.command,
    )
