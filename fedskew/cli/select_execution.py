"""The work of `fedskew select`: the race, what it prints, and its files."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data import federate, load, require
from data.data_warnings import refuse_untrainable
from fedskew.cli.terminal import console
from fedskew.data_warnings import print_warnings
from fedskew.diagnosis.planned import diagnosis_of, whose_partition
from fedskew.diagnosis.rules import line
from fedskew.diagnosis.table import read_counts
from fedskew.formatting import duration
from fedskew.method_selection.candidates import (
    BASELINE,
    Contenders,
    all_methods,
    contenders_by_training,
    from_best_head,
    possible,
    split_start,
)
from fedskew.method_selection.conclusion import Ended, conclusion
from fedskew.method_selection.conduct import Runs, with_continued
from fedskew.method_selection.counts import partition_by_counts
from fedskew.method_selection.planning import Entry
from fedskew.method_selection.race import Race
from fedskew.method_selection.race_log import FORMAT, SEEDS, RaceLog
from fedskew.method_selection.standing import StepResult
from fedskew.method_selection.targets import TARGETS, Target, target_of
from fedskew.method_selection.uncertainty import Difference
from fedskew.method_selection.uploads import excluded, upload_text
from fedskew.report.format import words
from fedskew.report.unfit_rows import beside_chance
from server_app.record import to_json
from server_app.run_folder import write_text
from server_app.run_settings import Scalar, model_line
from server_app.settings import parse

SHARE = 0.2
"""Of the clients' samples, kept for validation where the data bring none."""


def run_race(
    given: Mapping[str, Scalar],
    methods: Sequence[str],
    without: Sequence[str],
    target: str,
    *,
    minutes: float,
    race_seed: int,
    match_counts: Path | None,
    results: str,
    jobs: int,
    plan: Path | None,
    began: float,
) -> None:
    """Race the candidates, print how it goes and how it ends, and write result.json.

    Args:
        given: the settings of all runs.
        methods: that race; none are all that the federation can run.
        without: permissions that no method may need.
        began: seconds on the clock of `time.monotonic` when the command began.
    """
    refused = sorted(excluded(without))
    out = console()
    methods = list(methods) or from_best_head(all_methods(), given, refused)
    stated = [given_without_folder(given), methods, minutes, target, refused, race_seed]
    folder = Path(results) / race_name(stated, match_counts)
    given = with_matching_partition(match_counts, given, folder)
    trainer = trainer_of(given, methods, refused, target, out, jobs)
    chosen = TARGETS[target]
    file = folder / "plan.json"
    if plan is not None:
        adopt(plan, file)
    if file.exists():
        out.print(f"the race goes on: {file}" if plan is None else f"the race follows {plan}")
    log = RaceLog(file)
    race = Race(
        trainer.contenders,
        trainer.conditions(minutes, race_seed),
        log.guess or trainer.guess(),
        trainer,
        log,
        announce=lambda entry: show_entry(entry, trainer.contenders, out),
        report=lambda standing: show(standing, chosen, out),
        began=began,
    )
    ended = race.run()
    of_targets = trainer.all_targets(ended.shown, ended.rounds)
    level = of_targets[str(ended.winner)][target]
    at_chance = beside_chance(level, target, trainer.tested(ended.winner))
    ended = replace(ended, at_chance=at_chance and f"{at_chance} {words(target)}")
    outcome = {
        **outcome_of(ended),
        "target": target,
        "without": refused,
        "targets": to_json(of_targets),
        "uploads": {
            candidate.method: upload_text(*split_start(candidate.method))
            for candidate in ended.shown
        },
        "rounds": ended.rounds,
        "left-out": log.entry["left_out"],
        "at-margin": log.entry["at_margin"],
        **race.all_rounds(),
    }
    write_text(folder / "result.json", json.dumps(outcome, indent=2) + "\n")
    out.print(targets_table(of_targets, chosen))
    out.print("\n".join(conclusion(ended)))
    out.print(rounds_line(outcome))
    if plan is None:
        out.print(f"the race took {duration(log.used)} of {minutes:g} minutes")
    else:
        took = f"the race took {duration(time.monotonic() - began)}"
        out.print(f"{took}; {duration(log.used)} of {minutes:g} minutes when it was planned")


def adopt(plan: Path, file: Path) -> None:
    """Give a race the plan of an earlier one: it then trains the same, whatever that takes here.

    Args:
        plan: the earlier race's plan.json.
        file: this race's.

    Raises:
        SettingError: there is no such plan, it is damaged or of other options, or this race has begun by another one.
    """
    require(plan.is_file(), "--plan", str(plan), "is no file")
    RaceLog(plan)  # refuses a damaged one
    name = file.parent.name
    rule = f"must be of a race with the same options, whose folder is {name}"
    require(plan.resolve().parent.name == name, "--plan", str(plan), rule)
    text = plan.read_text()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    remedy = "leave --plan out to go on with that race, or name another --results"
    rule = f"differs from {file}, by which this race has begun"
    require(file.read_text() == text, "--plan", str(plan), rule, remedy)


def trainer_of(
    given: Mapping[str, Scalar],
    methods: Sequence[str],
    refused: Sequence[str],
    target: str,
    out: Console,
    jobs: int = 0,
) -> Runs:
    """Return what trains the candidates of a race; print the data's warnings and the diagnosis.

    Args:
        given: the settings of all runs.
        methods: that race.
        refused: permissions that no method may need.
        target: the name of the number that decides.
        out: gets what is printed.
        jobs: runs at a time; 0 chooses.

    Raises:
        SettingError: the data have no such target, or cannot be trained on.
    """
    validation_settings = validation(given)
    base = parse({**given, "method": BASELINE}).data
    federation = federate(base, 0)
    target_of(target, federation.dataset.num_classes)
    refuse_untrainable(base, federation)
    warned = set[str]()
    print_warnings(base, federation, out, warned)
    contenders = with_continued(contenders_of(methods, given, refused, out), given)
    return Runs(contenders, given, validation_settings, target, out, jobs, warned)


def rounds_line(outcome: Mapping[str, object]) -> str:
    """Return how many rounds a race need not train, by `Race.all_rounds`."""
    spared = f"{outcome['rounds-taken-over']} of {outcome['all-rounds']} rounds"
    return f"{spared} were taken over from runs with fewer rounds"


def outcome_of(ended: Ended) -> dict[str, object]:
    """Return how a race ended, for result.json."""
    without_uploads = ended.without_uploads
    standings = []
    for standing in ended.standings:
        standings.append({str(candidate): mean for candidate, mean in standing.means.items()})
    return {
        "winner": ended.winner.as_json(),
        "take": None if ended.nothing_to_take else ended.take.as_json(),
        "lines": conclusion(ended),
        "gain-by-seed": list(ended.gain_by_seed.values()) or None,
        "interval": interval_of(ended.tested),
        "interval-over": None if ended.tested is None else ended.tested.covers,
        "standings": standings,
        "best-without-uploads": None if without_uploads is None else without_uploads.as_json(),
        "validation-gain": None if ended.validated is None else ended.validated.mean,
        "validation-interval": interval_of(ended.validated),
        "equals": [candidate.as_json() for candidate in ended.equals],
        "diverged": {str(candidate): list(seeds) for candidate, seeds in ended.diverged.items()},
    }


def interval_of(gain: Difference | None) -> tuple[float, float] | None:
    """Return the interval of a gain for result.json."""
    return None if gain is None else gain.interval()


def given_without_folder(given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings that name a race: the results folder may be moved."""
    return {**given, "results": ""}


def race_name(options: Sequence[object], match_counts: Path | None) -> str:
    """Return the name of a race's folder. The same command has the same name, so that it resumes its race."""
    counts_hash = ""
    if match_counts is not None and match_counts.is_file():
        counts_hash = hashlib.sha256(match_counts.read_bytes()).hexdigest()
    command = json.dumps([FORMAT, *options, counts_hash], sort_keys=True)
    command_hash = hashlib.sha256(command.encode()).hexdigest()
    return f"race-{command_hash[:10]}"


def contenders_of(
    methods: Sequence[str],
    given: Mapping[str, Scalar],
    without: Sequence[str],
    out: Console,
) -> Contenders:
    """Return the candidates, those that the diagnosis recommends first, and print the diagnosis."""
    runs = possible(methods, given, without)
    baseline = runs[BASELINE]
    diagnosis = diagnosis_of(baseline)
    if diagnosis is not None:
        out.print(f"{whose_partition(baseline.data)}: {line(diagnosis)}", markup=False)
    out.print(f"model {model_line(baseline)}", markup=False)
    return contenders_by_training(runs, diagnosis)


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


def show_entry(entry: Entry, contenders: Contenders, out: Console) -> None:
    """Print what races, and what has no time."""
    entrants = len(entry.taken)
    candidates = sum(len(contenders.methods[name]) for name in entry.taken)
    out.print(f"{candidates} candidates of {entrants} trainings: {', '.join(entry.taken)}")
    if entry.left_out:
        out.print(f"without time: {', '.join(entry.left_out)}")
    if entry.at_margin:
        margin = ", ".join(entry.at_margin)
        out.print(f"at the margin of time, another start may decide otherwise: {margin}")


def show(result: StepResult, target: Target, out: Console) -> None:
    """Print the candidates' scores on the clients' validation data after a step."""
    step = result.step
    after = f"after {step.rounds} rounds, {len(step.seeds)} seeds"
    if step.purpose == SEEDS:
        after = f"after {len(step.seeds)} more seeds"
    scores = [f"{candidate} {target.text(mean)}" for candidate, mean in result.means.items()]
    out.print(f"{after}: {', '.join(scores)}")
    if step.without_time:
        out.print(f"without time: {', '.join(step.without_time)}")


def targets_table(of_targets: Mapping[str, Mapping[str, float]], decides: Target) -> Table:
    """Return every target's mean on validation data, and what each method uploads beside the model."""
    table = Table(title=f"on validation data; {decides.name} decides: {decides.what}")
    table.add_column("method")
    for name in TARGETS:
        table.add_column(name, justify="right")
    table.add_column("uploads beside the model")
    for candidate, means in of_targets.items():
        numbers = [TARGETS[name].text(mean) for name, mean in means.items()]
        name, _, _ = candidate.rpartition(" ")  # the learning rate stands in brackets behind it
        table.add_row(candidate, *numbers, upload_text(*split_start(name)))
    return table
