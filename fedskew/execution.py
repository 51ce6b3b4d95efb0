"""The work of `fedskew run`: the runs and then their report; or with --dry-run what they would cost.

The rounds of a run cost what those of any other run with the same settings cost, but for seed, number of rounds,
learning rates and the like: the records of the results folder say it.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from data import DataError, federate
from data.data_warnings import refuse_untrainable
from data.dataset import missing
from fedskew.cli.options import Choice
from fedskew.data_check import print_warnings
from fedskew.engines import Resources
from fedskew.experiments.plan import Cell, TunedValues, runs, selected, trials, values_of_rows
from fedskew.formatting import (
    FAILED,
    complain,
    console,
    duration,
    in_bytes,
    named,
    numeric,
    plural,
    terminal_table,
)
from fedskew.report.kept_records import kept_runs, origins, records_folder
from fedskew.report.runs import Run
from fedskew.sweep import earlier_result, labels, refuse_missing_gpus, run_all
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar, model_line
from server_app.settings import parse

if TYPE_CHECKING:
    from fedskew.report.results import ExperimentResults

WITHOUT_EFFECT_ON_COSTS = (WITHOUT_EFFECT_ON_NUMBERS - {"device"}) | {
    "seed", "rounds", "evaluate-every", "alpha",
    "learning-rate", "learning-rate-decay", "learning-rate-decay-every",
    "schedule", "schedule-rounds",
    "momentum", "weight-decay", "server-learning-rate", "server-momentum", "server-momentum-form",
    "server-optimizer", "server-adaptivity",
}  # fmt: skip
"""Settings that change neither the seconds nor the bytes of a round."""
CostSettings = frozenset[tuple[str, Scalar]]
"""The settings that decide what a round costs, with their values."""


@dataclass(frozen=True)
class Options:
    """How the runs are executed and what is printed."""

    resources: Resources
    records: Path | None
    dry_run: bool
    as_json: bool


def run_single(overrides: Mapping[str, Scalar], options: Options, sites: str) -> None:
    """Execute one run with a line a round, and print its report and its folder; or print its cost.

    Raises RuntimeError for one that has diverged: it would do so again.
    """
    out = console(stderr=options.as_json)
    settings = parse(overrides)
    if options.dry_run:
        show_plan([settings], [], out, options)
        return
    engine = options.resources.engine or ("inprocess" if sites else "workers")
    refuse_missing_gpus([settings], engine)
    if not is_finished(settings):
        earlier = earlier_result(settings)
        if earlier is not None:
            raise RuntimeError(earlier.reason)
        federation = federate(settings.data, settings.general.seed)
        refuse_untrainable(settings.data, federation)
        print_warnings(settings.data, federation, out)
    # flwr takes a moment to import: wrong settings are refused before.
    from fedskew.engines import execute

    general = settings.general
    title = f"{general.method} on {settings.data.dataset}, seed {general.seed}, engine {engine}"
    out.print(f"{title}; model {model_line(settings)}", style="bold")
    with out.status("training"):
        summary = execute(settings, replace(options.resources, engine=engine), out.print, sites)
    if options.as_json:
        print(json.dumps(summary, indent=2))
        return
    from fedskew.report.single_runs import table

    print_reports([table([Run.read(settings)])], out)
    out.print(str(settings.folder), style="dim")


def print_reports(found: "Sequence[ExperimentResults]", out: Console) -> None:
    """Print what `fedskew report` prints of these results."""
    from fedskew.report.document import document
    from fedskew.report.render import terminal_text

    documents = [document(results) for results in found if results.has_ended]
    out.print(terminal_text(documents, out.width, verbose=False), end="")


def run_experiments(
    choice: Choice, rows: Sequence[str], columns: Sequence[str], options: Options
) -> None:
    """Execute the experiments' runs and print their report; or print their cost.

    Raises typer.Exit with FAILED where a run failed.
    """
    out = console(stderr=options.as_json)
    cells = selected(choice.cells(), rows, columns)
    wanted = {cell.place for cell in cells}
    tried = [cell for cell in choice.trials() if cell.place in wanted]
    failed: dict[str, str] = {}
    kept: dict[str, Run] = {}
    if tried and not options.dry_run:
        run_trials(tried, out, options)
        tuned, failed = tuned_cells(choice, wanted, out)
        cells = [cell for cell in tuned if cell.place in wanted]
    if choice.suite is not None:
        # Every entry has its first seed before any has a second one.
        cells = sorted(cells, key=lambda cell: cell.seed)
        unfinished = [run for run in runs(cells) if not is_finished(run)]
        kept = kept_runs(records_folder(options.records), unfinished)
        if kept:
            sources = "; ".join(origins(kept.values()))
            line = f"{len(kept)} of {len(runs(cells))} runs are kept records, not trained here"
            out.print(f"{line}: {sources}", markup=False)
        cells = [cell for cell in cells if cell.run.run_id not in kept]
        cells = with_data(cells, [run for run in unfinished if run.run_id not in kept], out)
    planned = runs(cells)
    if options.dry_run:
        show_plan([*runs(tried), *planned], [*tried, *cells], out, options)
        return

    for line in dict.fromkeys(map(model_line, planned)):
        out.print(f"model {line}", markup=False)
    number = len(planned) + len(failed)
    summaries, failed_runs = run_all(planned, cells, out, options.resources)
    failed = failed_runs | failed
    if options.as_json:
        finished = [*(run.summary for run in kept.values()), *summaries.values()]
        failures = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*finished, *failures], indent=2))
    elif summaries or kept:
        show_report(choice, out, options)
    exit_if_failed(failed, number)


def show_report(choice: Choice, out: Console, options: Options) -> None:
    """Print what `fedskew report` prints of the experiments."""
    if choice.suite is not None:
        from fedskew.report import papers

        folder = records_folder(options.records)
        judged = papers.papers_report(choice.suite, choice.overrides, choice.file, folder)
        for line in papers.terminal_lines(judged):
            out.print(line, markup=False)
        return
    from fedskew.report.results import gather

    found = [gather(entry, choice.overrides, choice.file) for entry in choice.experiments]
    print_reports(found, out)


def exit_if_failed(failed: Mapping[str, str], runs: int) -> None:
    """Print why runs failed, by name, and exit with FAILED; return where none of so many did."""
    if not failed:
        return
    complain(f"{len(failed)} of {runs} runs failed", FAILED)
    for name, reason in failed.items():
        complain(f"{name}: {reason}", FAILED)
    raise typer.Exit(FAILED)


def run_trials(tried: Sequence[Cell], out: Console, options: Options) -> None:
    """Execute the trials; one that fails, as a rate may be too large, only does not count."""
    planned = runs(tried)
    out.print(f"{len(planned)} trials come first", markup=False)
    _, failed = run_all(planned, tried, out, options.resources)
    for name, reason in failed.items():
        out.print(f"{name}: does not count, as the trial failed: {reason}", markup=False)


def tuned_cells(
    choice: Choice, wanted: Collection[tuple[str, str, str]], out: Console
) -> tuple[list[Cell], dict[str, str]]:
    """Return the cells with the values that finished trials chose, and why wanted ones cannot be run."""
    from fedskew.report.results import tuned_by  # reads records, which most commands need not

    values: dict[str, TunedValues] = {}
    untuned = {}
    for experiment in choice.experiments:
        tuned = tuned_by(trials(experiment, choice.overrides), experiment)
        values[experiment.name] = values_of_rows(tuned)
        for one in tuned:
            place = (experiment.name, one.row, one.column)
            name = ", ".join(filter(None, place))
            if place in wanted and one.value is None:
                untuned[name] = "none of its trials has finished"
            elif place in wanted and experiment.tune is not None:
                out.print(f"{name}: {experiment.tune.key} = {one.value}", markup=False)
    return choice.cells(values), untuned


def with_data(cells: Sequence[Cell], planned: Sequence[RunSettings], out: Console) -> list[Cell]:
    """Return the cells without those of planned runs whose data sets are not there, and say which these are.

    Raises DataError where none is left.
    """
    lacking = {run.run_id: missing(run.data) for run in planned}
    counts = Counter(chain.from_iterable(lacking.values()))
    for name, count in counts.items():
        out.print(f"{name} is not in data-root: {count} runs are left out", markup=False)
    left = [cell for cell in cells if not lacking.get(cell.run.run_id)]
    if cells and not left:
        raise DataError(f"no data set of these runs is in data-root: {', '.join(counts)}")
    return left


def is_finished(settings: RunSettings) -> bool:
    """Return whether a run is done, so that its data need no check; also True where its folder cannot be read."""
    try:
        summary = RunFolder(settings.folder).finished(settings.general.rounds)
    except OSError:  # the run itself reports why
        return True
    return summary is not None and not settings.general.overwrite


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What the rounds that a run has left take."""

    seconds: float
    up: float
    """Bytes from the clients to the server."""
    down: float
    """Bytes from the server to the clients."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan."""

    run: str
    """The run id."""
    label: str
    model: str
    """The model's name and size, and what a client uploads of it."""
    rounds: int
    left: int
    """Rounds to go."""
    missing: str
    """Why its data are missing; empty where they are there."""
    cost: Cost | None
    """None where no round was observed."""


def show_plan(
    planned: Sequence[RunSettings], cells: Sequence[Cell], out: Console, options: Options
) -> None:
    """Print what a command would do and what it would cost; nothing is trained or downloaded."""
    if not planned:
        out.print("every run is finished or kept: nothing is left to train", markup=False)
        return
    label_of = labels(planned, cells)
    observed = observed_runs(planned[0].general.results)
    entries = []
    for settings in planned:
        left = rounds_left(settings)
        entry = PlannedRun(
            run=settings.run_id,
            label=label_of[settings.run_id],
            model=model_line(settings),
            rounds=settings.general.rounds,
            left=left,
            missing="; ".join(missing(settings.data).values()),
            cost=cost_of(settings, left, observed),
        )
        entries.append(entry)
    if options.as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    out.print(cost_table(entries, options.resources.shared(planned).jobs))
    for line in remarks(entries):
        out.print(line, markup=False)


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go; 0 for one that diverged, as it is not repeated.

    A run without rounds computes its heads in one step, which counts as a round.
    """
    rounds = max(settings.general.rounds, 1)
    if settings.general.overwrite:
        return rounds
    folder = RunFolder(settings.folder)
    return 0 if folder.divergence() is not None else rounds - len(folder.rounds())


def what_costs(settings: Mapping[str, Scalar]) -> CostSettings:
    """Return the settings that decide what a round costs, of a run's settings by key."""
    costly = settings.keys() - WITHOUT_EFFECT_ON_COSTS
    return frozenset((key, settings[key]) for key in costly)


def observed_runs(results: str) -> dict[CostSettings, list[RunFolder]]:
    """Return the runs of a results folder by the settings that decide what a round costs."""
    by_settings: dict[CostSettings, list[RunFolder]] = {}
    for file in Path(results).glob("*/settings.json"):
        folder = RunFolder(file.parent)
        settings = folder.origin().get("settings", {})
        by_settings.setdefault(what_costs(settings), []).append(folder)
    return by_settings


def cost_of(
    settings: RunSettings, left: int, observed: Mapping[CostSettings, Sequence[RunFolder]]
) -> Cost | None:
    """Return what a run's last `left` rounds take, by the runs observed; None where no such round was."""
    if not left:
        return Cost(0.0, 0.0, 0.0)
    same = observed.get(what_costs(settings.flat()), ())
    records = [*chain.from_iterable(folder.rounds() for folder in same)]
    if not records:
        return None
    rounds = settings.general.rounds
    evaluated = sum(map(settings.general.is_evaluated, range(rounds - left + 1, rounds + 1)))
    training = [record.seconds.round - record.seconds.evaluation for record in records]
    evaluation = [record.seconds.evaluation for record in records if record.models] or [0.0]
    return Cost(
        seconds=left * fmean(training) + evaluated * fmean(evaluation),
        up=left * fmean(record.bytes_up for record in records),
        down=left * fmean(record.bytes_down for record in records),
    )


def cost_table(entries: Sequence[PlannedRun], at_once: int) -> Table:
    """Return a table with one row per run, and below it what all take together, `at_once` in parallel.

    Of no run with a known cost the sum is unknown, too: 0 seconds would read as an estimate.
    """
    shown = terminal_table(*named("run"), *numeric("rounds", "left", "time", "up", "down"))
    for entry in entries:
        shown.add_row(entry.label, str(entry.rounds), str(entry.left), *cost_words(entry.cost))
    known = [entry.cost for entry in entries if entry.cost is not None]
    together = None
    if known:
        seconds = sum(cost.seconds for cost in known) / at_once
        together = Cost(seconds, sum(cost.up for cost in known), sum(cost.down for cost in known))
    shown.add_section()
    label = f"{plural(len(entries), 'run')}, {at_once} at a time"
    shown.add_row(label, "", "", *cost_words(together))
    return shown


def cost_words(cost: Cost | None) -> tuple[str, str, str]:
    """Return time and bytes, up and down, in the units that suit them."""
    if cost is None:
        return "?", "?", "?"
    return duration(cost.seconds), in_bytes(cost.up), in_bytes(cost.down)


def remarks(entries: Sequence[PlannedRun]) -> list[str]:
    """Return the lines below the table: models, missing data, and runs whose cost is not known."""
    found = [f"model {model}" for model in dict.fromkeys(entry.model for entry in entries)]
    found += dict.fromkeys(entry.missing for entry in entries if entry.missing)
    unknown = sum(entry.cost is None for entry in entries)
    if unknown:
        without = f"{plural(unknown, 'run')} without observed rounds, which count as nothing"
        found.append(f"{without}: the command with --set rounds=1 --seed 0 makes some")
    return found
