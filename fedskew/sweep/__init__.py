"""A sweep of runs: finished ones are skipped, the others run in parallel, and every failure is named."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console

from client_app.process import code_version
from data import DataError, DataSettings, SettingError, federate
from data.data_warnings import refuse_untrainable
from fedskew.data_warnings import print_warnings
from fedskew.experiments.plan import Cell
from fedskew.scheduling import ANY, Job, JobResult, Resources
from server_app.best_round import refuse_unvalidated
from server_app.plugins import check_new_methods
from server_app.run_folder import RunFolder, divergence_words
from server_app.run_settings import RunSettings
from server_app.versions import PACKAGES

Summaries = dict[str, dict[str, Any]]
"""By run id."""


def run_all(
    planned: Sequence[RunSettings],
    cells: Sequence[Cell],
    console: Console,
    resources: Resources = ANY,
    warned: set[str] | None = None,
) -> tuple[Summaries, dict[str, str]]:
    """Execute the runs and return the summaries of those that finished, and why the others did not, by name.

    The same command on another machine shares the work, where both have the results folder: each takes the runs that
    nobody has finished or is working on. Warnings about the data that are in `warned` are not repeated.

    A run that has diverged is not repeated, as it would diverge again: it counts as failed.

    Runs without their data fail at once. Where that is so for all and none is finished, and for every other mistake in
    the arguments, SettingError or DataError is raised before anything starts.
    """
    resources.check()
    refuse_missing_gpus(planned, resources.engine)
    summaries = finished(planned)
    ended = diverged_earlier(planned)
    left = [run for run in planned if run.run_id not in summaries and run.run_id not in ended]
    if ended:
        note = f"{len(ended)} of {len(planned)} runs diverged earlier; --overwrite repeats them"
        console.print(note, markup=False)
    if summaries:
        console.print(finished_note(planned, summaries), markup=False)
    for settings in planned:
        if settings.run_id in summaries:
            RunFolder(settings.folder).replay_to_trackers(settings)
    names = labels(planned, cells)
    if not left:
        return in_plan_order(names, summaries, ended)
    for method in dict.fromkeys(settings.general.method for settings in left):
        check_new_methods(method)
    all_jobs = [Job(settings, names[settings.run_id]) for settings in left]
    jobs, outcomes = checked(all_jobs, console, warned)
    if not jobs and not (summaries or ended):
        reasons = dict.fromkeys(result.reason for result in outcomes.values())
        raise DataError("; ".join(reasons))
    if jobs:
        # flwr takes a moment to import; mistakes should be reported before that.
        from fedskew.sweep.pool import conduct
        from fedskew.sweep.progress import Overview

        shared = resources.shared([job.settings for job in jobs])
        outcomes |= conduct(jobs, shared, Overview(console, jobs, len(summaries)))
    return in_plan_order(names, summaries, {**ended, **outcomes})


def in_plan_order(
    names: Mapping[str, str],
    summaries: Summaries,
    outcomes: Mapping[str, JobResult],
) -> tuple[Summaries, dict[str, str]]:
    """Return all summaries, and why runs failed, in the order of the plan: the runs end in another order every time.

    Args:
        names: the runs' labels by their ids, in the order of the plan.
        summaries: of the runs that were finished before.
        outcomes: of those that were executed now.
    """
    in_order: Summaries = {}
    failed = {}
    for name, label in names.items():
        if name in summaries:
            in_order[name] = summaries[name]
        elif name in outcomes:
            summary = outcomes[name].summary
            if summary is None:
                failed[f"{label} ({name})"] = outcomes[name].reason
            else:
                in_order[name] = summary
    return in_order, failed


def refuse_missing_gpus(planned: Sequence[RunSettings], engine: str) -> None:
    """Raise SettingError for a run that demands a GPU where none is visible, unless it is finished.

    With Ray the clients see what they are given there, which they check themselves.
    """
    if engine == "ray":
        return
    wanting = [run for run in planned if run.general.device == "cuda"]
    if not wanting or torch.cuda.is_available():
        return
    if len(finished(wanting)) < len(wanting):
        remedy = "use device = cpu, or a machine with one"
        raise SettingError("device", "cuda", "no GPU is visible here", remedy=remedy)


def finished(planned: Sequence[RunSettings]) -> Summaries:
    """Return the summaries of the runs that are done.

    Raises SettingError for one that was made on other data than are there now.
    """
    summaries = {}
    for settings in planned:
        if settings.general.overwrite:
            continue
        folder = RunFolder(settings.folder)
        summary = folder.finished(settings.general.rounds)
        if summary is None:
            continue
        with contextlib.suppress(DataError):  # the data may be gone: the results are there
            federation = federate(settings.data, settings.general.seed)
            folder.refuse_other_data(federation.hash)
        summaries[settings.run_id] = summary
    return summaries


def divergence_of(settings: RunSettings) -> str:
    """Return how a run diverged when it was last started, in a sentence; empty for one that did not, or starts anew."""
    folder = RunFolder(settings.folder)
    divergence = None if settings.general.overwrite else folder.divergence()
    if divergence is None:
        return ""
    return (
        f"{divergence_words(divergence)}; not repeated{folder.other_code()}: --overwrite repeats it"
    )


def diverged_earlier(planned: Sequence[RunSettings]) -> dict[str, JobResult]:
    """Return the outcomes of the runs that have diverged: they would do so again."""
    ended = {}
    for settings in planned:
        reason = divergence_of(settings)
        if reason:
            ended[settings.run_id] = JobResult(reason=reason)
    return ended


def finished_note(planned: Sequence[RunSettings], summaries: Mapping[str, object]) -> str:
    """Return a line about the runs that are not repeated."""
    finished = other_code = 0
    for settings in planned:
        if settings.run_id in summaries:
            finished += 1
            other_code += bool(RunFolder(settings.folder).other_code())
    note = f"{finished} of {len(planned)} runs finished earlier"
    if other_code:
        now = code_version(*PACKAGES)
        note += f", {other_code} of them by another version of the code ({now} now)"
    return f"{note}; --overwrite repeats them"


def checked(
    jobs: Sequence[Job],
    console: Console,
    warned: set[str] | None = None,
) -> tuple[list[Job], dict[str, JobResult]]:
    """Return the jobs that can begin, and the outcomes of those whose data are not usable.

    Warnings about the data are printed to the console, unless they are in `warned` already. Every partition is made
    here, so that an impossible one raises SettingError before anything starts.
    """
    warned = set() if warned is None else warned
    by_data: dict[DataSettings, list[Job]] = {}
    for job in jobs:
        by_data.setdefault(job.settings.data, []).append(job)
    reasons = {}
    for data, of_data in by_data.items():
        try:
            for job in sorted(of_data, key=lambda job: job.settings.general.seed):
                check_data(job, console, warned)
        except DataError as error:
            reasons[data] = str(error)
    ready = []
    failed = {}
    for job in jobs:
        reason = reasons.get(job.settings.data)
        if reason is None:
            ready.append(job)
        else:
            failed[job.settings.run_id] = JobResult(reason=reason)
    return ready, failed


def check_data(job: Job, console: Console, warned: set[str]) -> None:
    """Make a run's partition, which `federate` keeps for the next runs of its data and seed, and print its warnings.

    Raises DataError for data that are missing or unusable, and SettingError for an impossible partition.
    """
    data = job.settings.data
    try:
        federation = federate(data, job.settings.general.seed)  # downloads what may be downloaded
        refuse_untrainable(data, federation)
        refuse_unvalidated(job.settings.general.keep_best, federation)
    except SettingError as error:
        raise error.within(job.label) from error
    print_warnings(data, federation, console, warned)


def labels(planned: Sequence[RunSettings], cells: Sequence[Cell]) -> dict[str, str]:
    """Return what to call every run, by its id: the experiment (of several), the rows it trains, column and seed."""
    cells_of_run: dict[str, list[Cell]] = {}
    for cell in cells:
        of_run = cells_of_run.setdefault(cell.run.run_id, [])
        of_run.append(cell)
    several = len({cell.experiment for cell in cells}) > 1
    named: dict[str, str] = {}
    for settings in planned:
        of_run = cells_of_run.get(settings.run_id, [])
        rows = dict.fromkeys(cell.row for cell in of_run)
        columns = [cell.column for cell in of_run if cell.column]
        words = ["/".join(rows) or settings.general.method]
        if several and of_run:
            words.insert(0, of_run[0].experiment)
        if columns:
            words.append(columns[0])
        words.append(f"seed {settings.general.seed}")
        named[settings.run_id] = ", ".join(words)
    return named
