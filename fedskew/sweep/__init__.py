"""A sweep of runs: finished ones are skipped, the others run in parallel, and every failure is named."""

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

from client_app.process import code_version
from data import DataError, DataSettings, SettingError, federate
from data.data_warnings import refuse_untrainable
from fedskew.data_warnings import print_warnings
from fedskew.experiments.plan import Cell
from fedskew.scheduling import ANY, Job, JobResult, Resources
from server_app.plugins import check_new_methods
from server_app.round_selection import refuse_unvalidated
from server_app.run_folder import PACKAGES, RunFolder, divergence_words
from server_app.run_settings import RunSettings

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

    Runs without their data fail at once. Where that is so for all, and for every other mistake in the arguments,
    SettingError or DataError is raised before anything starts.
    """
    resources.check()
    refuse_missing_gpus(planned, resources.engine)
    outcomes = earlier_outcomes(planned, console)
    names = labels(planned, cells)
    jobs = [Job(run, names[run.run_id]) for run in planned if run.run_id not in outcomes]
    for method in dict.fromkeys(job.settings.general.method for job in jobs):
        check_new_methods(method)
    unusable = unusable_data(jobs, console, set() if warned is None else warned)
    if jobs and len(unusable) == len(planned):
        reasons = dict.fromkeys(result.reason for result in unusable.values())
        raise DataError("; ".join(reasons))
    outcomes |= unusable
    jobs = [job for job in jobs if job.settings.run_id not in unusable]
    if jobs:
        # flwr takes a moment to import; mistakes should be reported before that.
        from fedskew.sweep.pool import conduct
        from fedskew.sweep.progress import Overview

        finished_earlier = sum(result.summary is not None for result in outcomes.values())
        shared = resources.shared([job.settings for job in jobs])
        outcomes |= conduct(jobs, shared, Overview(console, jobs, finished_earlier))
    summaries: Summaries = {}
    failed = {}
    for (
        name,
        label,
    ) in names.items():  # in the order of the plan: the runs end in another one every time
        summary = outcomes[name].summary
        if summary is None:
            failed[f"{label} ({name})"] = outcomes[name].reason
        else:
            summaries[name] = summary
    return summaries, failed


def earlier_outcomes(planned: Sequence[RunSettings], console: Console) -> dict[str, JobResult]:
    """Return the outcomes of runs that are not repeated, which are finished or have diverged, and print their numbers.

    Raises SettingError for a finished run that was made on other data than are there now.
    """
    outcomes = {name: JobResult(summary) for name, summary in finished(planned).items()}
    diverged = {run.run_id: JobResult(reason=divergence_of(run)) for run in planned}
    diverged = {name: result for name, result in diverged.items() if result.reason}
    if diverged:
        note = f"{len(diverged)} of {len(planned)} runs diverged earlier; --overwrite repeats them"
        console.print(note, markup=False)
    if outcomes:
        other_code = 0
        for run in planned:
            if run.run_id in outcomes:
                folder = RunFolder(run.folder)
                folder.replay_to_trackers(run)
                other_code += bool(folder.other_code())
        note = f"{len(outcomes)} of {len(planned)} runs finished earlier"
        if other_code:
            now = code_version(*PACKAGES)
            note += f", {other_code} of them by another version of the code ({now} now)"
        console.print(f"{note}; --overwrite repeats them", markup=False)
    return outcomes | diverged


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


def unusable_data(jobs: Sequence[Job], console: Console, warned: set[str]) -> dict[str, JobResult]:
    """Return the outcomes of the jobs whose data are missing or not usable.

    Warnings about the data are printed to the console, unless they are in `warned` already. Every partition is made
    here, so that an impossible one raises SettingError before anything starts.
    """
    unusable: dict[DataSettings, JobResult] = {}
    # In this order each is made once, as `federate` keeps the last few.
    for job in sorted(jobs, key=lambda job: (repr(job.settings.data), job.settings.general.seed)):
        data = job.settings.data
        if data in unusable:
            continue
        try:
            federation = federate(
                data, job.settings.general.seed
            )  # downloads what may be downloaded
            refuse_untrainable(data, federation)
            refuse_unvalidated(job.settings.general.keep_best, federation)
            print_warnings(data, federation, console, warned)
        except DataError as error:
            unusable[data] = JobResult(reason=str(error))
        except SettingError as error:
            raise error.within(job.label) from error
    return {
        job.settings.run_id: unusable[job.settings.data]
        for job in jobs
        if job.settings.data in unusable
    }


def labels(planned: Sequence[RunSettings], cells: Sequence[Cell]) -> dict[str, str]:
    """Return what to call every run, by its id: the experiment (of several), the rows it trains, column and seed."""
    several = len({cell.experiment for cell in cells}) > 1
    cells_of_run = defaultdict[str, list[Cell]](list)
    for cell in cells:
        cells_of_run[cell.run.run_id].append(cell)
    named = {}
    for settings in planned:
        of_run = cells_of_run[settings.run_id]
        rows = dict.fromkeys(cell.row for cell in of_run)
        words = ["/".join(rows) or settings.general.method]
        if several and of_run:
            words.insert(0, of_run[0].experiment)
        words += [cell.column for cell in of_run if cell.column][:1]
        named[settings.run_id] = ", ".join([*words, f"seed {settings.general.seed}"])
    return named
