"""The contents of one experiment's report, in order and without layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedskew.formatting import plural
from fedskew.report.claims import (
    SAYS,
    Verdict,
    claims_table,
    judge,
    never_lines,
)
from fedskew.report.differences import ABOUT as ABOUT_DIFFERENCES
from fedskew.report.differences import comparison, difference_table, differences
from fedskew.report.format import SELECTION_WORDS, Table
from fedskew.report.inference import RESAMPLES
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import reach_table
from fedskew.report.run_summary import runs_table, time_table, what_was_run
from fedskew.report.tables import (
    ABOUT_RANKING,
    client_tables,
    main_table,
    number_table,
    of_columns,
    ranking_tables,
    recall_tables,
    selection_tables,
    tuning_tables,
)
from fedskew.report.unfit_rows import unfit_sentences

PLURAL = {"holds": "hold", "fails": "do not hold"}
"""What several claims do, where it is not what one does."""
CLAIMS = (
    "A claim holds where the whole 95 % interval of its difference lies above the margin that it names, in every "
    "one of its columns or in as many as it names, and p is below 0.05; it does not hold where no part of the interval "
    "does, and otherwise it is not distinguishable. The interval is that of the differences below: the wider of "
    f"Student's over the seeds and a hierarchical bootstrap of {RESAMPLES:,} draws (seeds, and within a seed the test "
    "examples of each class, or the subjects). Examples are drawn apart for the two methods, though both saw the same "
    "ones, which makes the interval wider than it need be. One seed says nothing about others. Of several "
    "columns the smallest of those that count is shown. Rounds are counted until either row first has the number "
    "that the other one has in the end; a row that never has it, or ends below it, counts as one more round than "
    "were run; a number that is not above chance, or had in the first evaluated round, is none to be sooner at. p "
    "is of the paired t-test that the difference is the margin, two-sided, corrected for the claims (Holm)."
)
REACH = (
    "Counted in evaluated rounds. Rows that differ only in what is deployed share one training; its bytes count whole. "
    "The row that is to be reached has its number in the round that is selected; a speed-up is over the round in which "
    "it first had it. A row that ends below that number has no speed-up: it had the number and lost it again."
)
SELECTED = (
    "The best test round is chosen on the test set itself, which nobody could do in earnest; the means are over the "
    "last evaluated rounds. The best round kept is the one that the setting keep-best chose on validation data."
)
CLIENTS = (
    "Local accuracy is what to expect on a client's own mix of classes: its class shares times the recalls. In the "
    "figure a bar marks the mean, a circle the worst decile, which is the mean of the lowest tenth of the clients; "
    "with few clients, the worst one."
)
CURVES = (
    "Lines are means over seeds; bands, of up to three rows, reach from the lowest to the highest. The table has the "
    "number of the {selected}."
)
TIME = (
    "Clients: their own work, divided by the processes that shared it. "
    "Transport and the rest: what is left of the round."
)
TUNING = (
    "Every value was tried on another seed than the table's, which draws other clients and training images; test "
    "images may be the same. The number is the table's. The best is strong; a star marks one at an end of what was "
    "tried."
)
GROUPS = {"many": "many-recall", "medium": "medium-recall", "few": "few-recall"}
SPREAD = {
    "local accuracy": "local-accuracy.mean",
    "worst decile": "local-accuracy.worst-decile",
    "worst client": "local-accuracy.worst",
    "accuracy at clients": "client-accuracy.mean",
    "its worst decile": "client-accuracy.worst-decile",
    "at the worst client": "client-accuracy.worst",
}
CALIBRATION = {
    "calibration error": "calibration-error",
    "test loss": "loss",
    "Brier score": "brier",
}
ABOUT_CALIBRATION = (
    "Expected calibration error in percent (15 bins); loss in nats; Brier score as it is."
)


@dataclass(frozen=True)
class Section:
    """A part of the details. Its figures are in `figures.figures`, by its key."""

    key: str
    title: str
    about: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class Document:
    """One experiment's report."""

    results: ExperimentResults
    verdicts: Sequence[Verdict]
    subtitle: str
    headline: str
    """The verdict in a sentence."""
    what_was_run: Mapping[str, str]
    """What was run, by heading."""
    main: Table
    sections: Sequence[Section]

    @property
    def claims(self) -> list[tuple[Verdict, str]]:
        """Every verdict, and its words with the difference and the interval, as the claims' table has them."""
        rows = claims_table(self.results, self.verdicts).rows
        shown = []
        for verdict, (_, says, effect, _) in zip(self.verdicts, rows, strict=True):
            words = f"{says.text}, {effect.text}" if verdict.n else says.text
            shown.append((verdict, words))
        return shown

    @property
    def assumed(self) -> str:
        """The settings that the paper leaves open, in a sentence; empty if there are none."""
        settings = ", ".join(f"{key} = {value}" for key, value in self.results.assumed.items())
        return f"Not specified by the paper; these runs use: {settings}." if settings else ""

    @property
    def short_table(self) -> Table:
        """The main table with every row's difference from the reference row below its numbers."""
        experiment = self.results.experiment
        if experiment.reaches:  # the table has rounds, the differences have not
            return self.main
        rows = [list(cells) for cells in self.main.rows]
        for place, column in enumerate(self.results.columns, 1):
            of_row = {one.row.row: one for one in differences(column)}
            for row, cells in zip(column.rows, rows, strict=True):
                if row.row in of_row:
                    one = of_row[row.row]
                    words = one.in_words + "*" * one.distinguishable
                    below = "; ".join(filter(None, (cells[place].below, words)))
                    cells[place] = replace(cells[place], below=below)
        last = f"Last, the difference from {self.results.reference} (95 % interval; * distinguishable)."
        return replace(self.main, rows=rows, caption=f"{self.main.caption} {last}")


def document(results: ExperimentResults) -> Document:
    """Return the report on an experiment, of which at least one run has finished or diverged."""
    results = replace(results, warnings=(*results.warnings, *never_lines(results)))
    verdicts = judge(results)
    return Document(
        results=results,
        verdicts=verdicts,
        subtitle=subtitle(results),
        headline=headline(results, verdicts),
        what_was_run=what_was_run(results),
        main=main_table(results),
        sections=sections(results, verdicts),
    )


def sections(results: ExperimentResults, verdicts: Sequence[Verdict]) -> list[Section]:
    """Return the parts of the details."""
    claims = [claims_table(results, verdicts)] if verdicts else []
    reach = [reach_table(results)] if len(results.experiment.rows) > 1 else []
    groups, over_clients, calibration = (
        of_columns(results, partial(number_table, caption=caption, metrics=metrics))
        for caption, metrics in (
            ("recall by shot group in percent.", GROUPS),
            ("over the clients, in percent.", SPREAD),
            ("calibration.", CALIBRATION),
        )
    )
    about_curves = CURVES.format(selected=SELECTION_WORDS[results.experiment.selection])
    of_clients = [*over_clients, *client_tables(results)]
    return [
        Section("claims", "Claims", CLAIMS, claims),
        Section(
            "differences", "Differences", ABOUT_DIFFERENCES, of_columns(results, difference_table)
        ),
        Section("tuning", "Tuning", TUNING, tuning_tables(results)),
        Section("curves", "Round by round", about_curves, []),
        Section("reach", "Rounds and bytes", REACH, reach),
        Section("selections", "Every way to choose the round", SELECTED, selection_tables(results)),
        Section("classes", "Classes", "", [*groups, *recall_tables(results)]),
        Section("ranking", "Ranking of the test samples", ABOUT_RANKING, ranking_tables(results)),
        Section("clients", "Clients", CLIENTS, of_clients),
        Section("calibration", "Calibration", ABOUT_CALIBRATION, calibration),
        Section("time", "Time", TIME, of_columns(results, time_table)),
        Section("runs", "Runs", "", [runs_table(results)]),
    ]


def subtitle(results: ExperimentResults) -> str:
    """Return what was run, in a line."""
    experiment = results.experiment
    parts = [
        experiment.paper,
        plural(len(experiment.rows), "method"),
        plural(len(experiment.columns), "column"),
        plural(len(results.seeds), "seed"),
        f"{len(results.finished)} of {len(results.runs)} runs finished",
    ]
    return ", ".join(filter(None, parts))


def headline(results: ExperimentResults, verdicts: Sequence[Verdict]) -> str:
    """Return the result in a sentence: how many claims hold, or without claims whether the rows differ.

    Rows that diverged or are no better than chance are named with what to do, and are in no comparison.
    """
    sentences = [counted(verdicts)] if verdicts else []
    for column in results.columns:
        if not verdicts:
            sentences.append(comparison(column))
        sentences += unfit_sentences(column)
    return " ".join(filter(None, sentences))


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return in a sentence how many claims hold."""
    statuses = [verdict.status for verdict in verdicts]
    parts = []
    for status, singular in SAYS.items():
        number = statuses.count(status)
        if number:
            says = singular if number == 1 else PLURAL.get(status, singular)
            parts.append(f"{number} {says}")
    return f"Of {plural(len(verdicts), 'claim')}, {', '.join(parts)}."
