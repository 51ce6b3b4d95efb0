"""The tables that an experiment is run for: ours beside the paper's, its claims, every selection, rounds and bytes."""

from collections.abc import Mapping, Sequence

from server_app.experiments import SELECTIONS
from server_app.report.claims import Reached, Verdict, mean_or_never, reached, reference
from server_app.report.gather import Gathered
from server_app.report.statistics import LEAST_SEEDS, Summary, in_percent, summarize_seeds
from server_app.report.table import (
    NONE,
    SELECTION_WORDS,
    Cell,
    Table,
    per_column,
    plain,
    seeds_of,
    signed,
    spread_words,
    unit,
    words,
)


def main_table(gathered: Gathered) -> Table:
    """Return ours beside the paper's."""
    experiment, metric = gathered.experiment, gathered.experiment.metric
    columns, seeds = list(experiment.columns), seeds_of(gathered)
    marks = note_marks(gathered)
    found = {
        (row.label, column): summarize_seeds(gathered.of(row.label, column), experiment.selection, metric)
        for row in experiment.rows
        for column in columns
    }
    rows = []
    for row in experiment.rows:
        cells = [Cell(row.label + marks.get(row.label, ""))]
        for index, column in enumerate(columns):
            ours = found[row.label, column]
            paper = experiment.cells.get(row.label, (None,) * len(columns))[index]
            below = []
            if paper is not None:
                versus = f", {signed(ours.mean - paper, metric)}" if ours else ""
                below.append(f"paper {plain(paper, metric)}{versus}")
            if ours is None or ours.n < len(seeds):
                below.append(f"{ours.n if ours else 0} of {len(seeds)} seeds")
            rivals = [other.mean for label in experiment.rows if (other := found[label.label, column])]
            best = ours is not None and len(rivals) > 1 and in_percent(metric) and ours.mean == max(rivals)
            mark = marks.get(f"{row.label}, {column}", "")
            cells.append(Cell(spread_words(ours, metric) + mark, "; ".join(below), best))
        rows.append(cells)
    selected = SELECTION_WORDS[experiment.selection]
    number = f"over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"of seed {seeds[0]}"
    form = "mean ± standard deviation " if len(seeds) > 1 else ""
    beside = "; below, the paper's number and ours minus it" if experiment.cells else ""
    caption = f"{words(metric).capitalize()} {unit(metric)}, {form}{number}{beside}."
    headings = [Cell("method"), *(Cell(column or words(metric), selected) for column in columns)]
    return Table(caption, headings, rows)


def note_marks(gathered: Gathered) -> dict[str, str]:
    """Return the mark of every note on the paper's numbers, by what it is about."""
    return {about: f" [{number}]" for number, about in enumerate(gathered.experiment.notes, 1)}


def claims_table(gathered: Gathered, verdicts: Sequence[Verdict]) -> Table:
    """Return the claims and what came of them."""
    headings = [
        Cell("claim"), Cell("holds"), Cell("difference", "95 % interval"),
        Cell("share of resamples", "in which it holds"), Cell("p", "Wilcoxon, Holm"),
    ]  # fmt: skip
    columns = list(gathered.experiment.columns)
    rows = [claim_row(f"{number}. ", one, columns) for number, one in enumerate(verdicts, 1)]
    return Table("Each claim, in how many seeds it holds, and how sure that is.", headings, rows, wordy=True)


def claim_row(number: str, one: Verdict, columns: Sequence[str]) -> list[Cell]:
    """Return one claim of an experiment with these columns."""
    claim, metric = one.claim, one.metric
    where = ", every column" * (len(columns) > 1)
    if set(one.columns) != set(columns):
        where = f", in {', '.join(one.columns)}"
    by = f" by more than {claim.by:g} {one.unit}".rstrip() if claim.by else ""
    compared = f"{claim.better} {'sooner than' if claim.sooner else 'above'} {claim.than}{by}"
    says = Cell(f"{number}{claim.says}", f"{compared}; {words(metric)}, {SELECTION_WORDS[one.selection]}{where}")
    missing = f"{one.unmeasured} not measured" if one.unmeasured else ""
    if not one.n:
        return [says, Cell(NONE, missing), *[Cell(NONE)] * 3]
    difference = f"{signed(one.estimate, metric)} {one.unit}"
    share, drawn = NONE, ""
    if one.interval:
        difference += f" [{signed(one.interval.low, metric)}, {signed(one.interval.high, metric)}]"
        share, drawn = f"{one.interval.probability:.0%}", f"over {one.interval.resampled}"
    seeds = "seeds: " + ", ".join(signed(margin, metric) for margin in one.margins.values()) if one.n > 1 else ""
    p = Cell(NONE, f"from {LEAST_SEEDS} seeds on") if one.p_holm is None else Cell(f"{one.p_holm:.3f}")
    holds = Cell(f"{one.holds} of {one.n} seeds", missing, strong=one.status == "holds")
    return [says, holds, Cell(difference, seeds), Cell(share, drawn), p]


def selection_tables(gathered: Gathered) -> list[Table]:
    """Return ours by every selection."""
    metric = gathered.experiment.metric
    rows = [row.label for row in gathered.experiment.rows]
    keys = {SELECTION_WORDS[selection]: selection for selection in SELECTIONS}

    def found(row: str, column: str, heading: str) -> Summary | None:
        return summarize_seeds(gathered.of(row, column), keys[heading], metric)

    return per_column(
        gathered,
        f"{words(metric)} {unit(metric)}, by which round is read.",
        lambda column: [heading for heading in keys if any(found(row, column, heading) for row in rows)],
        lambda row, column, heading: Cell(spread_words(found(row, column, heading), metric)),
    )


def reach_table(gathered: Gathered) -> Table:
    """Return rounds and bytes that each row needs for the reference's number."""
    experiment, standard = gathered.experiment, reference(gathered.experiment)
    columns = list(experiment.columns)
    rows = []
    for row in experiment.rows:
        cells = []
        for column in columns:
            cells.append(reach_cell(reached(gathered, row.label, column), reached(gathered, standard, column)))
        rows.append([Cell(row.label), *cells])
    caption = (
        f"Rounds until {standard}'s {words(experiment.metric)} ({SELECTION_WORDS[experiment.selection]}) is reached, "
        "mean over seeds; below, speed-up and bytes sent both ways until then by the whole training."
    )
    return Table(caption, [Cell("method"), *(Cell(column or "rounds") for column in columns)], rows)


def reach_cell(found: Mapping[int, Reached | None], base: Mapping[int, Reached | None]) -> Cell:
    """Return rounds, and below them speed-up and bytes."""
    if not found:
        return Cell(NONE)
    ours = list(found.values())
    never = sum(one is None for one in ours)
    if never == len(ours):
        return Cell("never", f"in {never} seeds" if never > 1 else "")
    if never:
        got = ", ".join("never" if one is None else str(one.round) for one in ours)
        return Cell(got, f"by seed; never in {never} of {len(ours)}")
    rounds, sent = mean_or_never(ours, "round"), mean_or_never(ours, "bytes")
    standard = mean_or_never([base[seed] for seed in found], "round")
    assert rounds is not None and sent is not None and standard is not None
    return Cell(f"{rounds:.1f}".removesuffix(".0"), f"{standard / rounds:.2f}\N{MULTIPLICATION SIGN}, {in_bytes(sent)}")


def in_bytes(number: float) -> str:
    """Return a number of bytes in a unit that suits it."""
    for name in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {name}"
        number /= 1000
    return f"{number:.3g} TB"
