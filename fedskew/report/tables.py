"""The tables that an experiment is run for: ours beside the paper's, its claims, every selection, rounds and bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedskew.formatting import in_bytes, p_value
from fedskew.report.claims import SAYS, Verdict, why_never
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    in_percent,
    named,
    plain,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import Summary, summarize_seeds
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import (
    Reached,
    first_had,
    in_last_alone,
    mean_or_never,
    reached,
    reference,
    seeds_below,
    takes_training,
)
from server_app.keys import SELECTIONS


def spread_words(summary: Summary | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if summary is None:
        return NONE
    return plain(summary.mean, metric) + (
        f" ± {plain(summary.sd, metric)}" if summary.sd is not None else ""
    )


def per_column(
    results: ExperimentResults,
    caption: Callable[[str], str],
    headings: Callable[[str], Sequence[str]],
    cell: Callable[[str, str, str], TableCell],
) -> list[Table]:
    """Return a table a column, for the headings that the column has; `cell` gets row, column and heading."""
    tables = []
    for column in results.experiment.columns:
        if shown := headings(column):
            rows = [
                [TableCell(row.label), *(cell(row.label, column, heading) for heading in shown)]
                for row in results.experiment.rows
                if results.of(row.label, column)
            ]
            tables.append(
                Table(
                    named(column) + caption(column),
                    [TableCell("method"), *map(TableCell, shown)],
                    rows,
                )
            )
    return tables


def number_tables(
    results: ExperimentResults, caption: str, metrics: Mapping[str, str]
) -> list[Table]:
    """Return a table a column with the given metrics, by heading, where they are recorded."""
    rows, selection = [row.label for row in results.experiment.rows], results.experiment.selection

    def summary(row: str, column: str, heading: str) -> Summary | None:
        return summarize_seeds(results.of(row, column), selection, metrics[heading])

    return per_column(
        results,
        lambda _: caption,
        lambda column: [
            heading for heading in metrics if any(summary(row, column, heading) for row in rows)
        ],
        lambda row, column, heading: TableCell(
            spread_words(summary(row, column, heading), metrics[heading])
        ),
    )


def main_table(results: ExperimentResults) -> Table:
    """Return ours beside the paper's: the experiment's number, or the rounds until a row's number is reached."""
    experiment, seeds = results.experiment, results.seeds
    marks = {about: f" [{number}]" for number, about in enumerate(experiment.notes, 1)}
    columns = list(experiment.columns)
    rows = []
    for row in experiment.rows:
        paper = experiment.cells.get(row.label, (None,) * len(columns))
        cells = []
        for column, number in zip(columns, paper, strict=True):
            cell = rounds_cell(results, row.label, column, number) if experiment.reaches else None
            cell = cell or number_cell(results, row.label, column, number)
            cells.append(replace(cell, text=cell.text + marks.get(f"{row.label}, {column}", "")))
        rows.append([TableCell(row.label + marks.get(row.label, "")), *cells])
    selected, metrics = (
        SELECTION_WORDS[experiment.selection],
        set(map(experiment.metric_of, columns)),
    )
    what = words_and_unit(experiment.metric) if len(metrics) == 1 else "each column's number"
    if experiment.reaches:
        what = f"rounds until {experiment.reaches}'s {words(experiment.metric)} is reached"
    over = f"over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"of seed {seeds[0]}"
    form = "mean ± standard deviation " if len(seeds) > 1 and not experiment.reaches else ""
    beside = "; below, the paper's number and ours minus it" if experiment.cells else ""
    headings = [TableCell("method")]
    for column in columns:
        shown = words(experiment.metric_of(column))
        headings.append(
            TableCell(
                column or shown, f"{shown}, {selected}" if column and len(metrics) > 1 else selected
            )
        )
    return Table(f"{what}, {form}{over}{beside}.", headings, rows)


def number_cell(
    results: ExperimentResults, row: str, column: str, paper: float | None
) -> TableCell:
    """Return mean and standard deviation, below them the paper's number; strong where it is the highest of the
    column's rows that have all seeds."""
    experiment, seeds = results.experiment, results.seeds
    metric = experiment.metric_of(column)
    summaries = {
        other.label: summarize_seeds(results.of(other.label, column), experiment.selection, metric)
        for other in experiment.rows
    }
    ours = summaries[row]
    below = [] if paper is None else [beside_paper(paper, ours.mean if ours else None, metric)]
    if ours is None or ours.n < len(seeds):
        never = [
            why_never(results, row, column, seed, experiment.selection, metric) for seed in seeds
        ]
        absent = (
            "not run"
            if all(reason.endswith("is not run there") for reason in never)
            else "cannot be measured"
        )
        below.append(
            absent
            if ours is None and all(never)
            else f"{ours.n if ours else 0} of {len(seeds)} seeds"
        )
    complete = {
        row: other.mean for row, other in summaries.items() if other and other.n == len(seeds)
    }
    best = len(complete) > 1 and in_percent(metric) and complete.get(row) == max(complete.values())
    return TableCell(spread_words(ours, metric), "; ".join(below), best)


def rounds_cell(
    results: ExperimentResults, row: str, column: str, paper: float | None
) -> TableCell | None:
    """Return the rounds until the reference's number is reached, below them the paper's; None without any run."""
    rounds = reached(results, row, column)
    if not rounds:
        return None
    fair = takes_training(results, column)
    below = seeds_below(results, row, column)
    shown = reach_cell(rounds, first_had(results, column), fair, below=below)
    if paper is None:
        return replace(shown, below="" if fair else shown.below)
    ours = mean_or_never(list(rounds.values()), "round") if fair else None
    return TableCell(shown.text, beside_paper(paper, ours) + ("" if fair else f"; {shown.below}"))


def beside_paper(paper: float, ours: float | None, metric: str = "") -> str:
    """Return the paper's number and ours minus it."""
    return f"paper {plain(paper, metric)}" + (
        "" if ours is None else f", {signed(ours - paper, metric)}"
    )


def claims_table(results: ExperimentResults, verdicts: Sequence[Verdict]) -> Table:
    """Return the claims and what came of them."""
    headings = [
        TableCell("claim"), TableCell("verdict"), TableCell("difference", "95 % interval"),
        TableCell("p", "paired t-test" + (" [Holm]" if len(verdicts) > 1 else "")),
    ]  # fmt: skip
    columns = list(results.experiment.columns)
    rows = [
        claim_row(f"{number}. ", verdict, columns, len(verdicts))
        for number, verdict in enumerate(verdicts, 1)
    ]
    return Table(
        "Each claim, its verdict, and the difference that it is about.", headings, rows, wordy=True
    )


def claim_row(
    number: str, verdict: Verdict, columns: Sequence[str], claims: int
) -> list[TableCell]:
    """Return one claim of an experiment with these columns and so many claims."""
    claim, metric = verdict.claim, verdict.metric
    where = ", every column" if len(columns) > 1 else ""
    if claim.in_columns:
        where = f", in {claim.in_columns} of {len(verdict.columns)} columns"
    elif set(verdict.columns) != set(columns):
        where = f", in {', '.join(verdict.columns)}"
    by = f" by more than {claim.by:g} {verdict.unit}".rstrip() if claim.by else ""
    compared = f"{claim.better} {'sooner than' if claim.sooner else 'above'} {claim.than}{by}"
    says = TableCell(
        f"{number}{claim.says}",
        f"{compared}; {words(metric)}, {SELECTION_WORDS[verdict.selection]}{where}",
    )
    missing = unmeasured_words(verdict)
    if not verdict.n:
        return [says, TableCell(SAYS[verdict.status], missing), *[TableCell(NONE)] * 2]
    difference = f"{signed(verdict.estimate, metric)} {verdict.unit}"
    seeds = (
        "seeds: " + ", ".join(signed(margin, metric) for margin in verdict.margins.values())
        if verdict.n > 1
        else ""
    )
    p = TableCell(NONE, "one seed" if verdict.n == 1 else "")
    if interval := verdict.interval:
        difference += f" [{signed(interval.low, metric)}, {signed(interval.high, metric)}]"
        if interval.p is not None and verdict.p_holm is not None:
            corrected = f" [{p_value(verdict.p_holm)}]" if claims > 1 else ""
            p = TableCell(p_value(interval.p) + corrected, f"over {interval.resampled}")
    in_seeds = f"in {verdict.holds} of {verdict.n} seed{'s' * (verdict.n > 1)}"
    said = TableCell(
        SAYS[verdict.status],
        ", ".join(filter(None, (in_seeds, missing))),
        strong=verdict.status == "holds",
    )
    return [says, said, TableCell(difference, seeds), p]


def unmeasured_words(verdict: Verdict) -> str:
    """Return how many seeds a claim is not measured in, and that they never can be where that is so."""
    if not verdict.unmeasured:
        return ""
    return (
        f"{verdict.unmeasured} cannot be"
        if verdict.why_not
        else f"{verdict.unmeasured} not measured yet"
    )


def selection_tables(results: ExperimentResults) -> list[Table]:
    """Return ours by every selection."""
    rows = [row.label for row in results.experiment.rows]
    metric_of = results.experiment.metric_of
    keys = {SELECTION_WORDS[selection]: selection for selection in SELECTIONS}

    def summary(row: str, column: str, heading: str) -> Summary | None:
        return summarize_seeds(results.of(row, column), keys[heading], metric_of(column))

    return per_column(
        results,
        lambda column: f"{words_and_unit(metric_of(column))}, by which round is read.",
        lambda column: [
            heading for heading in keys if any(summary(row, column, heading) for row in rows)
        ],
        lambda row, column, heading: TableCell(
            spread_words(summary(row, column, heading), metric_of(column))
        ),
    )


def reach_table(results: ExperimentResults) -> Table:
    """Return rounds and bytes that each row needs for the reference's number."""
    experiment, standard = results.experiment, reference(results.experiment)
    columns = list(experiment.columns)
    base = {column: first_had(results, column) for column in columns}
    fair = {column: takes_training(results, column) for column in columns}
    rows = []
    for row in experiment.rows:
        cells = []
        for column in columns:
            than = {measured.cell.seed: measured for measured in results.of(standard, column)}
            ours = results.of(row.label, column)
            if any(
                in_last_alone(run, than[run.cell.seed]) for run in ours if run.cell.seed in than
            ):
                cells.append(TableCell(NONE, "a model in the last round alone"))
            else:
                goals = reached(results, row.label, column)
                below = seeds_below(results, row.label, column)
                same = row.label == standard
                cells.append(reach_cell(goals, base[column], fair[column], same, below))
        rows.append([TableCell(row.label), *cells])
    caption = (
        f"Rounds until {standard}'s {words(experiment.metric)} ({SELECTION_WORDS[experiment.selection]}) is reached, "
        "mean over seeds; below, speed-up and bytes sent both ways until then by the whole training."
    )
    return Table(
        caption, [TableCell("method"), *(TableCell(column or "rounds") for column in columns)], rows
    )


def reach_cell(
    by_seed: Mapping[int, Reached | None],
    base: Mapping[int, Reached | None],
    fair: bool = True,
    standard: bool = False,
    below: Sequence[int] = (),
) -> TableCell:
    """Return rounds, and below them bytes and the speed-up over the round in which the `standard` row first had the
    number; of that row itself this round.

    Neither where the level is none that takes training. No speed-up for a row that ends below the level in any of the
    seeds `below`: it had the number and lost it again.
    """
    if not by_seed:
        return TableCell(NONE)
    ours = list(by_seed.values())
    never = sum(reach is None for reach in ours)
    if never == len(ours):
        return TableCell("never", f"in {never} seeds" if never > 1 else "")
    if never:
        got = ", ".join("never" if reach is None else str(reach.round) for reach in ours)
        return TableCell(got, f"by seed; never in {never} of {len(ours)}")
    if not fair:
        return TableCell(NONE, "a level that is had at once, or by chance")
    rounds, sent = mean_or_never(ours, "round"), mean_or_never(ours, "bytes")
    first = mean_or_never([base[seed] for seed in by_seed], "round")
    assert rounds is not None and sent is not None and first is not None
    beside = f"{first / rounds:.2f}\N{MULTIPLICATION SIGN}"
    if standard:
        beside = f"first in {in_rounds(first)}"
    elif below:
        beside = (
            f"ends below it in {len(below)} of {len(ours)} seeds"
            if len(ours) > 1
            else "ends below it"
        )
    return TableCell(in_rounds(rounds), f"{beside}, {in_bytes(sent)}")


def in_rounds(rounds: float) -> str:
    """Return a mean of rounds."""
    return f"{rounds:.1f}".removesuffix(".0")
