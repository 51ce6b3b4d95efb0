"""`fedskew keep` and `fedskew verify`: records of finished runs, for another machine and for another person."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from data import SettingError, require
from fedskew.cli.options import ExperimentsFile, Jobs, RecordsFolder, Results, Settings
from fedskew.cli.run_selection import Choice, choose
from fedskew.cli.terminal import FAILED, complain, console

if TYPE_CHECKING:
    from fedskew.report.runs import Run

Name = Annotated[
    str,
    typer.Argument(help="A suite of the papers' statements, as papers."),
]


def keep(
    name: Name,
    results: Results = None,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder to write; default: benchmarks/papers of the clone."
        ),
    ] = None,
    experiments: ExperimentsFile = None,
    settings: Settings = None,
) -> None:
    """Keep the records of a suite's finished runs as small files without weights."""
    choice = suite_of(name, experiments, settings, results)
    from fedskew.experiments.plan import runs  # with torch, for which a mistyped name does not wait
    from fedskew.report.kept_records import FOLDER, file_of, keep
    from fedskew.report.runs import Run

    folder = records or FOLDER
    check_folder("--records", folder)
    finished = [run for run in map(Run.read, runs(choice.cells())) if run.finished]
    new = [run for run in finished if not file_of(folder, run.name).is_file()]
    for run in new:
        keep(run, folder)
    there = len(finished) - len(new)
    console().print(f"{len(new)} runs written to {folder}, {there} were there and stay")


def verify(
    name: Name,
    cells: Annotated[int, typer.Option(min=1, help="Kept runs to repeat, drawn at random.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of that draw.")] = 0,
    records: RecordsFolder = None,
    experiments: ExperimentsFile = None,
    settings: Settings = None,
    jobs: Jobs = 0,
) -> None:
    """Repeat kept runs drawn at random, and compare their hashes and numbers."""
    choice = suite_of(name, experiments, settings, None)
    stated = choice.overrides.get("results", "")
    require(not stated, "results", stated, "has no effect: runs are repeated in a temporary folder")
    # In the folder that records are kept from the runs are finished, and would be compared with themselves.
    with TemporaryDirectory(prefix="fedskew-verify-") as results:
        anew = replace(choice, overrides={**choice.overrides, "results": results})
        repeat(anew, cells, seed, records, jobs)


def repeat(choice: Choice, cells: int, seed: int, records: Path | None, jobs: int) -> None:
    """Repeat kept runs in an empty results folder, and print what comes of it.

    Raises typer.Exit with FAILED where one is not repeated.
    """
    from fedskew.engines import Resources
    from fedskew.experiments.plan import runs
    from fedskew.report.kept_records import compared, kept_runs, records_folder
    from fedskew.report.runs import Run
    from fedskew.sweep import run_all

    planned = choice.cells()
    kept = kept_runs(records_folder(records), runs(planned))
    drawn = draw(kept.values(), cells, seed)
    of_drawn = [cell for cell in planned if cell.run.run_id in drawn]
    out = console()
    _, failed = run_all(runs(of_drawn), of_drawn, out, Resources(jobs=jobs))
    repeated = 0
    for run in map(Run.read, runs(of_drawn)):
        if run.finished:
            holds, line = compared(kept[run.name], run)
            repeated += holds
            out.print(f"{run.name}: {line}")
    for run_name, reason in failed.items():
        complain(f"{run_name}: {reason}", FAILED)
    missing = len(drawn) - repeated
    if missing:
        complain(f"{missing} of {len(drawn)} kept runs were not repeated", FAILED)
        raise typer.Exit(FAILED)


def suite_of(
    name: str, experiments: Path | None, settings: list[str] | None, results: str | None
) -> Choice:
    """Return the suite of statements of this name. Raises SettingError where it is none."""
    choice = choose([name], experiments, settings or [], [], [], {"results": results})
    if choice.suite is None:
        raise SettingError("suite", name, "is no suite of statements, as papers is")
    return choice


def check_folder(option: str, folder: Path) -> None:
    """Raise SettingError for what is there and is no folder."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(option, str(folder), "is no folder")


def draw(kept: "Iterable[Run]", cells: int, seed: int) -> set[str]:
    """Return the names of kept runs drawn at random, of those whose data are there.

    Raises SettingError where there are fewer than that.
    """
    from data.dataset import missing

    names = [run.name for run in kept if not missing(run.settings.data)]
    if len(names) < cells:
        rule = f"must be at most {len(names)}: so many kept runs have their data in data-root"
        raise SettingError("--cells", cells, rule)
    return set(random.Random(seed).sample(sorted(names), cells))
