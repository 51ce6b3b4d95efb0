"""What the papers say, with verdicts: as Markdown, as JSON, and for a terminal.

A paper's claims are those of its entries in a file of experiments. On a laptop they are measured on smaller editions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
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
from fedskew.experiments.claims import Better, HeldBy
from fedskew.formatting import escaped
from fedskew.report.claims import SAYS, Verdict, claim_json, corrected, judge_claim
from fedskew.report.drawing import Effect, Figure, forest
from fedskew.report.format import NONE, TableCell, plain, table
from fedskew.report.inference import is_significant
from fedskew.report.kept_records import kept_run, origins
from fedskew.report.render import rendered
from fedskew.report.results import ExperimentResults, command, gather
from fedskew.report.runs import Run
from server_app.run_settings import Scalar

HEADINGS = ("statement", "the paper", "here, in points", "95 % interval", "verdict")
COUNTS = ("paper", "statements", "hold", "after Holm's correction", "do not hold", "open")
"""The headings of the papers' own table."""
MOST_SEEDS = 20
"""How many more than these would decide, two to five seeds hardly tell."""
PLAIN_NUMBER = re.compile(r"[-+]?[\d.]+")
SCALE = "at the size for a laptop"
READING = (
    "Each statement by the part that speaks least for it. A verdict is of the interval alone, in bold where it stands "
    "after Holm's correction for the paper's statements; seeds beside it are the number that would decide."
)


@dataclass(frozen=True)
class Statement:
    """A claim of a paper's entry, with its verdict in the entry where it is measured."""

    paper: Experiment
    entry: str
    verdict: Verdict

    @property
    def in_words(self) -> str:
        """The verdict with its reason."""
        verdict = self.verdict
        if verdict.is_decided:
            return ": ".join(filter(None, [SAYS[verdict.status], verdict.why_not, verdict.unfit]))
        seeds = ""
        if verdict.more_seeds is not None:
            is_known = verdict.more_seeds <= MOST_SEEDS
            seeds = f"{verdict.more_seeds} seeds" if is_known else f"over {MOST_SEEDS} seeds"
        elif verdict.status == "unclear":
            seeds = "one seed says nothing of others"
        elif verdict.status == "open":
            seeds = SAYS["open"]
        return f"open: {'; '.join(filter(None, [verdict.why_not, verdict.unfit, seeds]))}"

    @property
    def lost(self) -> str:
        """What the smaller edition gives up; empty for the paper's own entry."""
        here = self.paper.here
        return here.lost if here is not None and self.entry != self.paper.name else ""

    @property
    def stands(self) -> bool:
        """Whether it holds after the correction for its paper's statements; one held by a test needs none."""
        verdict = self.verdict
        return verdict.status == "holds" and (not verdict.n or is_significant(verdict.p_holm))

    @property
    def cells(self) -> list[TableCell]:
        """The row of the paper's table, by HEADINGS."""
        verdict = self.verdict
        here, interval = verdict.in_words
        if verdict.found.margin:
            here += f" (claimed: above {plain(verdict.found.margin, verdict.metric)})"
        least = f"least in {verdict.deciding}" if verdict.n and verdict.parts > 1 else ""
        place = self.paper.paper.partition(", ")[2]
        return [
            TableCell(verdict.claim.says, place),
            TableCell(verdict.claim.number or NONE),
            TableCell(here.replace(" points", "") or NONE, least),
            TableCell(interval or NONE),
            TableCell(self.in_words, strong=self.stands),
        ]


@dataclass(frozen=True)
class PapersReport:
    """The claims of every paper in a file, judged on a laptop."""

    suite: Suite
    by_paper: Mapping[str, Sequence[Statement]]
    """In the order of the file."""
    runs: Mapping[str, Run]
    """The distinct runs of the statements, by their ids."""
    figures: Mapping[str, Figure]
    """What the claims of the suite's own entries say, by the entry."""
    command: str
    """What makes them."""

    @property
    def statements(self) -> list[Statement]:
        return [*chain.from_iterable(self.by_paper.values())]

    @property
    def counts(self) -> dict[str, list[int]]:
        """The numbers under COUNTS, by paper."""
        numbers = {}
        for paper, statements in self.by_paper.items():
            statuses = [one.verdict.status for one in statements]
            holding, failing = statuses.count("holds"), statuses.count("fails")
            stand = sum(one.stands for one in statements)
            left = len(statuses) - holding - failing
            numbers[paper] = [len(statuses), holding, stand, failing, left]
        return numbers

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
        """How many runs are finished, statements measured and decided."""
        verdicts = [one.verdict for one in self.statements]
        decided = sum(one.is_decided for one in verdicts)
        # Without a number a claim is measured where a test holds it.
        measured = sum(one.n > 0 or one.status == "holds" for one in verdicts)
        so_far = "" if self.finished == len(self.runs) else " so far"
        return (
            f"{self.finished} of {len(self.runs)} runs are finished: {measured} of {len(verdicts)} "
            f"statements are measured{so_far}, and {decided} of these decided."
        )


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

    @cache
    def gathered(name: str) -> ExperimentResults:
        entry = entries[name]
        assert isinstance(entry, Experiment)  # the reader refuses an edition that is a suite
        return gather(entry, overrides, kept=partial(kept_run, records))

    runs: dict[str, Run] = {}
    figures: dict[str, Figure] = {}
    by_paper: dict[str, list[Statement]] = {}
    for entry in entries.values():
        if not isinstance(entry, Experiment):
            continue
        if entry.paper:
            name = entry.paper.partition(",")[0]
            of_paper = by_paper.setdefault(name, [])
            of_paper += statements(entry, gathered)
        elif entry.claims and entry.name in suite.experiments:
            figure = claimed(gathered(entry.name))
            figures |= {entry.name: figure} if figure is not None else {}
    for name, of_paper in by_paper.items():
        # p-values are corrected for the number of claims of a paper.
        verdicts = corrected([one.verdict for one in of_paper])
        pairs = zip(of_paper, verdicts, strict=True)
        by_paper[name] = [replace(one, verdict=verdict) for one, verdict in pairs]
        for one in of_paper:
            if one.verdict.metric:  # a test holds it without runs
                runs |= gathered(one.entry).runs
    # The page is for others: no path of this machine belongs into it.
    shown = {key: value for key, value in overrides.items() if key != "results"}
    if "data-root" in shown:
        shown["data-root"] = "FOLDER"
    return PapersReport(suite, by_paper, runs, figures, command([suite.name], shown, file))


def statements(paper: Experiment, gathered: Callable[[str], ExperimentResults]) -> list[Statement]:
    """Return the claims of a paper's entry, judged by the results of the entry where they are measured."""
    judged = []
    for claim in paper.claims:
        if isinstance(claim, HeldBy):
            verdict = judge_claim(ExperimentResults(paper, (), {}, {}), claim)
        else:
            results = gathered(paper.measured_in)
            verdict = judge_claim(results, claim_of_edition(claim, paper, results.experiment))
        judged.append(Statement(paper, paper.measured_in, verdict))
    return judged


def claimed(results: ExperimentResults) -> Figure | None:
    """Return the differences of an entry's pairs beside the paper's numbers; None where nothing is measured."""
    pairs = [claim for claim in results.experiment.claims if isinstance(claim, Better)]
    measured = [one for one in (judge_claim(results, pair) for pair in pairs) if one.n]
    if not measured:
        return None
    effects = []
    for one in measured:
        number = one.claim.number
        of_paper = float(number) if PLAIN_NUMBER.fullmatch(number) else None
        effects.append(Effect(one.claim.says, one.found, one.is_decided, of_paper))
    unit = measured[0].unit
    relation = "sooner than" if unit == "rounds" else "above"
    others = {pair.than for pair in pairs}
    than = others.pop() if len(others) == 1 else "without it"
    figure = forest(effects, f"{unit} {relation} {than}")
    return figure and replace(figure, title=results.experiment.title)


def markdown(report: PapersReport, day: date, figures: Path | None = None) -> str:
    """Return the page as Markdown, which says the day on which it is made.

    Args:
        report: of the papers.
        day: when it is made.
        figures: the folder of the figures' files, as the page is to name it; None for a page without them.
    """
    suite = report.suite
    counts = [[paper, *map(str, numbers)] for paper, numbers in report.counts.items()]
    parts = [
        "# The papers' statements",
        f"{suite.title}. Made by `{report.command}` and `fedskew report {suite.name} --markdown`, "
        f"on {day.isoformat()}, {SCALE}.\n{report.about}",
        rendered("table.md", table=table("", COUNTS, counts)).strip(),
        READING,
    ]
    if figures is not None:
        for name, figure in report.figures.items():
            parts.append(f"![{escaped(figure.title)}]({figures}/{name}.svg)\n`fedskew run {name}`")
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
    if report.kept:
        lines = [f"* {where}" for where in report.kept]
        parts += [
            "## Kept records",
            "Runs by the commit and the device that they were trained with:",
            "\n".join(lines),
        ]
    return "\n\n".join(parts) + "\n"


def as_json(report: PapersReport) -> dict[str, Any]:
    """Return the verdicts for other programs, each with the entries of a claim in a report's JSON."""
    statements = []
    for one in report.statements:
        place = {"entry": one.paper.name, "paper": one.paper.paper, "measured-in": one.entry}
        verdict = {"status": one.verdict.status, "verdict": one.in_words, "lost": one.lost}
        statements.append({**claim_json(one.verdict), **place, **verdict})
    counts = {}
    for paper, numbers in report.counts.items():
        counts[paper] = dict(zip(COUNTS[1:], numbers, strict=True))
    return {
        "suite": report.suite.name,
        "papers": counts,
        "runs": {"finished": report.finished, "kept": report.kept},
        "statements": statements,
    }


def terminal_lines(report: PapersReport) -> list[str]:
    """Return a line per paper, then one per claim."""
    lines = []
    for paper, numbers in report.counts.items():
        counted = [f"{number} {what}" for number, what in zip(numbers, COUNTS[1:], strict=True)]
        lines.append(f"{paper}: {', '.join(counted)}")
    lines.append(report.about)
    if report.kept:
        lines.append(f"From kept records: {'; '.join(report.kept)}.")
    for one in report.statements:
        says, _, here, interval, verdict = one.cells
        line = f"{one.paper.paper}: {says.text}: {verdict.text}"
        if one.verdict.n:
            line += f" ({here.text} {interval.text})"
        lines.append(line)
    return lines
