"""A sweep of runs: finished ones are skipped, the others run in parallel, and every failure is named."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console

from client_app.process import code_version
from data import DataError, DataSettings, SettingError, federate
from data.data_warnings import refuse_untrainable
from fedskew.data_check import print_warnings
from fedskew.engines import JobResult, Resources
from fedskew.experiments.plan import Cell
from server_app.plugins import check_new_methods
from server_app.run_folder import PACKAGES, RunFolder, divergence_words
from server_app.run_settings import RunSettings


def run_all(
    planned: Sequence[RunSettings],
    cells: Sequence[Cell],
    console: Console,
    resources: Resources,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Execute the runs and return by run id the summaries of those that finished, and by name why others did not.

    The same command on another machine shares the work, where both have the results folder: each takes the runs that
    nobody has finished or is working on.

    A run that has diverged is not repeated, as it would diverge again: it counts as failed.

    Runs without their data fail at once. Where that is so for all, and for every other mistake in the arguments,
    SettingError or DataError is raised before anything starts.
    """
    resources.check()
    refuse_missing_gpus(planned, resources.engine)
    outcomes = earlier_results(planned, console)
    names = labels(planned, cells)
    left = [run for run in planned if run.run_id not in outcomes]
    for method in dict.fromkeys(run.general.method for run in left):
        check_new_methods(method)
    unusable = unusable_data(left, names, console)
    if left and len(unusable) == len(planned):
        reasons = dict.fromkeys(result.reason for result in unusable.values())
        raise DataError("; ".join(reasons))
    outcomes |= unusable
    left = [run for run in left if run.run_id not in unusable]
    if left:
        # flwr takes a moment to import; mistakes should be reported before that.
        from fedskew.sweep.pool import Job, conduct

        jobs = [Job(run, names[run.run_id]) for run in left]
        finished_earlier = sum(result.summary is not None for result in outcomes.values())
        outcomes |= conduct(jobs, resources.shared(left), console, finished_earlier)
    summaries = {}
    failed = {}
    # In the order of the plan: the runs end in another one every time.
    for name, label in names.items():
        summary = outcomes[name].summary
        if summary is None:
            failed[f"{label} ({name})"] = outcomes[name].reason
        else:
            summaries[name] = summary
    return summaries, failed


def earlier_result(settings: RunSettings) -> JobResult | None:
    """Return how a run ended that is not repeated, as it has finished or diverged; None for any other run.

    Raises SettingError for a finished run that was made on other data than are there now.
    """
    if settings.general.overwrite:
        return None
    folder = RunFolder(settings.folder)
    summary = folder.finished(settings.general.rounds)
    if summary is not None:
        with contextlib.suppress(DataError):  # the data may be gone: the results are there
            folder.refuse_other_data(federate(settings.data, settings.general.seed).hash)
        return JobResult(summary)
    divergence = folder.divergence()
    if divergence is None:
        return None
    rule = f"not repeated{folder.other_code()}: --overwrite repeats it"
    return JobResult(reason=f"{divergence_words(divergence)}; {rule}")


def earlier_results(planned: Sequence[RunSettings], console: Console) -> dict[str, JobResult]:
    """Return the results of runs that are not repeated, by run id, and print how many they are."""
    results = {}
    finished = []
    for run in planned:
        result = earlier_result(run)
        if result is None:
            continue
        results[run.run_id] = result
        if result.summary is not None:
            RunFolder(run.folder).replay_to_trackers(run)
            finished.append(RunFolder(run.folder))
    remedy = "--overwrite repeats them"
    of_all = f"of {len(planned)} runs"
    diverged = len(results) - len(finished)
    if diverged:
        console.print(f"{diverged} {of_all} diverged earlier; {remedy}", markup=False)
    if finished:
        note = f"{len(finished)} {of_all} finished earlier"
        other_code = sum(bool(folder.other_code()) for folder in finished)
        if other_code:
            now = code_version(*PACKAGES)
            note += f", {other_code} of them by another version of the code ({now} now)"
        console.print(f"{note}; {remedy}", markup=False)
    return results


def refuse_missing_gpus(planned: Sequence[RunSettings], engine: str) -> None:
    """Raise SettingError for a run that demands a GPU where none is visible, unless it has ended.

    With Ray the clients see what they are given there, which they check themselves.
    """
    if engine == "ray" or torch.cuda.is_available():
        return
    wanting = [run for run in planned if run.general.device == "cuda"]
    if any(earlier_result(run) is None for run in wanting):
        remedy = "use device = cpu, or a machine with one"
        raise SettingError("device", "cuda", "no GPU is visible here", remedy=remedy)


def unusable_data(
    left: Sequence[RunSettings], names: Mapping[str, str], console: Console
) -> dict[str, JobResult]:
    """Return the outcomes of the runs whose data are missing or not usable, and print warnings about the data.

    Every partition is made here, so that an impossible one raises SettingError before anything starts.
    """
    warned: set[str] = set()
    unusable: dict[DataSettings, JobResult] = {}
    # In this order each is made once, as `federate` keeps the last few.
    for run in sorted(left, key=lambda run: (repr(run.data), run.general.seed)):
        data = run.data
        if data in unusable:
            continue
        try:
            # Downloads what may be downloaded.
            federation = federate(data, run.general.seed)
            refuse_untrainable(data, federation)
            print_warnings(data, federation, console, warned)
        except DataError as error:
            unusable[data] = JobResult(reason=str(error))
        except SettingError as error:
            raise error.within(names[run.run_id]) from error
    return {run.run_id: unusable[run.data] for run in left if run.data in unusable}


def labels(planned: Sequence[RunSettings], cells: Sequence[Cell]) -> dict[str, str]:
    """Return what to call every run, by its id: the experiment (of several), the rows it trains, column and seed."""
    several = len({cell.experiment for cell in cells}) > 1
    cells_of_run = defaultdict[str, list[Cell]](list)
    for cell in cells:
        cells_of_run[cell.run.run_id].append(cell)
    named = {}
    for settings in planned:
        words = [settings.general.method]
        of_run = cells_of_run[settings.run_id]
        if of_run:
            first = of_run[0]
            rows = dict.fromkeys(cell.row for cell in of_run)
            tried = f"tries {first.tried}" if first.tried != "" else ""
            experiment = first.experiment if several else ""
            words = [experiment, "/".join(rows), first.column, tried]
        words.append(f"seed {settings.general.seed}")
        named[settings.run_id] = ", ".join(filter(None, words))
    return named
