"""`fedskew select`: compare methods on a federation."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from data import federate, load, require
from data.data_warnings import refuse_untrainable
from data.renamed_settings import print_renamed, stored
from fedskew.cli import completion
from fedskew.cli.run_selection import words
from fedskew.cli.terminal import console
from fedskew.costs.sizes import sizes_of
from fedskew.data_warnings import print_warnings
from fedskew.diagnosis.planned import diagnosis_of, whose_partition
from fedskew.diagnosis.rules import line, recommended_order
from fedskew.diagnosis.table import read_counts
from fedskew.formatting import duration
from fedskew.method_selection.conduct import Runs
from fedskew.method_selection.counts import partition_by_counts
from fedskew.method_selection.plan import METHODS, SHARE, Plan, affordable, possible
from fedskew.method_selection.race import (
    BASELINE,
    Candidate,
    RungResult,
    best_without_uploads,
    conclusion,
    race,
    take,
)
from fedskew.method_selection.targets import DEFAULT, TARGETS, Target, target_of
from fedskew.method_selection.uploads import excluded, permissions_of, upload_text
from server_app.record import to_json
from server_app.run_folder import write_text
from server_app.run_settings import Scalar
from server_app.settings import parse, parse_texts


def select(
    minutes: Annotated[float, typer.Option(min=0, help="Minutes that the race may take.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="Compare only these methods with FedAvg.",
            autocompletion=completion.methods,
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help=f"The number that decides: {', '.join(TARGETS)}.")
    ] = DEFAULT,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="What must not be uploaded, as class-counts,class-statistics: such methods are left out.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting."),
    ] = None,
    match_counts: Annotated[
        Path | None,
        typer.Option(
            metavar="COUNTS.csv", help="Partition the data set by exactly these class counts."
        ),
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", hidden=True)] = None,
    results: Annotated[
        str, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = "results",
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs (0 = choose automatically).")] = 0,
) -> None:
    """Find the best method for a federation: a race of methods and learning rates with equal budgets."""
    if like is not None:
        rule = f"its old name --like = {str(like)!r} is given as well"
        require(match_counts is None, "--match-counts", str(match_counts), rule)
        print_renamed("--like", "--match-counts")
        match_counts = like
    given = {**parse_texts(settings or []), "results": results}
    for key in ("method", "seed", "evaluate-every", "evaluate-on"):
        rule = "is the race's own: methods are stated by --method"
        require(key not in given, key, given.get(key, ""), rule)
    for key in ("keep-best", "patience"):
        rule = "has no effect: a race measures its runs in the last round alone"
        require(key not in given, key, given.get(key, ""), rule)
    methods = words("method", method or []) or list(METHODS)
    refused = sorted(excluded(words("without", without or [])))
    out = console()
    folder = Path(results) / race_name(given, methods, minutes, match_counts, target, refused)
    given = with_matching_partition(match_counts, given, folder)
    validation_settings = validation(given)
    warned = set[str]()
    base = parse({**given, "method": BASELINE}).data
    federation = federate(base, 0)
    chosen = target_of(target, federation.dataset.num_classes)
    refuse_untrainable(base, federation)
    print_warnings(base, federation, out, warned)
    file = folder / "plan.json"
    if file.exists():
        plan = Plan.load(file)
        out.print(f"the race goes on: {file}")
    else:
        plan = planned(methods, given, minutes, jobs, out, refused)
        plan.save(file)
    show_plan(plan, out)
    racing = Runs(given, validation_settings, out, jobs, warned, target)
    names = [candidate.method for candidate in plan.candidates]
    runs = possible(names, given)
    quiet = [method for method in runs if not permissions_of(runs[method])]
    rungs, winner = race(plan.candidates, plan.ladder, racing.on_validation, quiet)
    for rung_result in rungs:
        show(rung_result, chosen, out)
    finalists = rungs[-1].means
    baseline = next((finalist for finalist in finalists if finalist.method == BASELINE), None)
    gain = None if baseline is None else racing.gain(winner, baseline, plan.last)
    lines = conclusion(winner, baseline, gain)
    best_quiet = best_without_uploads(finalists, quiet)
    lines.insert(-1, quiet_line(best_quiet, winner))
    of_targets = racing.all_targets(list(finalists), plan.ladder[-1])
    standings = []
    for rung_result in rungs:
        standings.append({str(candidate): mean for candidate, mean in rung_result.means.items()})
    outcome = {
        "winner": vars(winner),
        "take": vars(take(winner, baseline, gain)),
        "lines": lines,
        "gain-by-seed": None if gain is None else gain.differences,
        "interval": None if gain is None else (gain.interval.low, gain.interval.high),
        "interval-over": None if gain is None else gain.interval.resampled,
        "standings": standings,
        "target": target,
        "without": refused,
        "targets": {str(candidate): to_json(means) for candidate, means in of_targets.items()},
        "uploads": {candidate.method: upload_text(candidate.method) for candidate in of_targets},
        "best-without-uploads": None if best_quiet is None else vars(best_quiet),
    }
    write_text(folder / "result.json", json.dumps(outcome, indent=2) + "\n")
    out.print(targets_table(of_targets, chosen))
    out.print("\n".join(lines))


def race_name(
    given: Mapping[str, Scalar],
    methods: list[str],
    minutes: float,
    match_counts: Path | None,
    target: str,
    without: list[str],
) -> str:
    """Return the name of a race's folder. The same command has the same name, so that it resumes its race."""
    counts_hash = ""
    if match_counts is not None and match_counts.is_file():
        counts_hash = hashlib.sha256(match_counts.read_bytes()).hexdigest()
    settings = stored({**given, "results": ""})  # results may be moved
    stated: list[object] = [settings, methods, minutes, counts_hash]
    if target != DEFAULT or without:
        stated += [target, without]
    identity = json.dumps(stated, sort_keys=True)
    return f"race-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"


def planned(
    methods: list[str],
    given: Mapping[str, Scalar],
    minutes: float,
    jobs: int,
    out: Console,
    without: list[str],
) -> Plan:
    """Return the plan of a race. Methods that the diagnosis recommends come first: time may not be enough for all."""
    runs = possible(methods, given, without)
    baseline = runs[BASELINE]
    diagnosis = diagnosis_of(baseline)
    if diagnosis is not None:
        out.print(f"{whose_partition(baseline.data)}: {line(diagnosis)}", markup=False)
        others = [name for name in runs if name != BASELINE]
        order = [BASELINE, *recommended_order(diagnosis, others)]
        runs = {name: runs[name] for name in order}
    sizes = sizes_of(baseline.data, 0)
    assert sizes is not None, "the data are there"
    return affordable(runs, sizes, minutes, jobs)


def with_matching_partition(
    match_counts: Path | None,
    given: Mapping[str, Scalar],
    folder: Path,
) -> dict[str, Scalar]:
    """Return the settings with a partition file made from a table of counts, if there is one."""
    if match_counts is None:
        return dict(given)
    rule = "does not go with --match-counts, which says who holds what"
    for key in ("partition", "partition-file", "alpha", "clients"):
        require(key not in given, key, given.get(key, ""), rule)
    table = read_counts(match_counts)
    file = folder / "partition.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = load(parse({**given, "method": BASELINE}).data)
        partition_by_counts(table, data, file, str(match_counts))
    return {**given, "partition-file": str(file.resolve())}


def validation(given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings that give every client validation data; empty where data or settings give them already."""
    run = parse({**given, "method": BASELINE})
    if federate(run.data, 0).validated:
        return {}
    fraction: dict[str, Scalar] = {"validation-fraction": SHARE}
    federate(parse({**given, **fraction, "method": BASELINE}).data, 0)  # refuses what is too small
    return fraction


def show_plan(plan: Plan, out: Console) -> None:
    """Print what the race runs."""
    names = ", ".join(map(str, plan.candidates))
    out.print(f"{len(plan.candidates)} candidates: {names}")
    steps = []
    for rung in plan.ladder:
        steps.append(f"{rung.enter} candidates, {rung.rounds} rounds, {len(rung.seeds)} seeds")
    last = f"{plan.last.rounds} rounds, {len(plan.last.seeds)} other seeds"
    out.print(f"{'; '.join(steps)}; then the winner beside FedAvg, {last}")
    out.print(f"expected to take {duration(plan.seconds)}")


def show(rung_result: RungResult, target: Target, out: Console) -> None:
    """Print the candidates' scores on the clients' validation data after a rung."""
    rung = rung_result.rung
    texts = [f"{candidate} {target.text(mean)}" for candidate, mean in rung_result.means.items()]
    out.print(f"after {rung.rounds} rounds, {len(rung.seeds)} seeds: {', '.join(texts)}")


def targets_table(of_targets: Mapping[Candidate, Mapping[str, float]], decides: Target) -> Table:
    """Return every target's mean on validation data, and what each method uploads beside the model."""
    table = Table(title=f"on validation data; {decides.name} decides: {decides.what}")
    table.add_column("method")
    for name in TARGETS:
        table.add_column(name, justify="right")
    table.add_column("uploads beside the model")
    for candidate, means in of_targets.items():
        numbers = [TARGETS[name].text(mean) for name, mean in means.items()]
        table.add_row(str(candidate), *numbers, upload_text(candidate.method))
    return table


def quiet_line(quiet: Candidate | None, winner: Candidate) -> str:
    """Return which method is the best of those that upload nothing beside the model."""
    if quiet is None:
        return "no method that uploads nothing beside the model has finished"
    if quiet == winner:
        return "the winner uploads nothing beside the model"
    return f"best of those that upload nothing beside the model: {quiet}"
