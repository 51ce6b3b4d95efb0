"""`fedskew keep` and `fedskew verify`: records of finished runs, for another machine and for another person."""

import json
import random
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from data import SettingError
from fedskew.cli import options
from fedskew.cli.options import ExperimentsFile, RecordsFolder
from fedskew.cli.run_selection import Choice, choose
from fedskew.cli.terminal import FAILED, complain, console

if TYPE_CHECKING:
    from fedskew.report.runs import Run

Name = Annotated[
    str,
    typer.Argument(
        help="A suite of the papers' statements, as papers.", autocompletion=options.experiments
    ),
]
Settings = Annotated[list[str] | None, options.set_option("A setting, as for `fedskew run`.")]
Results = Annotated[
    str | None, typer.Option(help="The setting results: the folder of the runs' folders.")
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
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the repetitions in FOLDER/verify: the same command then goes on after an interruption.",
        ),
    ] = None,
    experiments: ExperimentsFile = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs (0 = choose automatically).")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Repeat kept runs drawn at random, and compare hashes or, on another CPU type, intervals."""
    choice = suite_of(name, experiments, settings, None)
    from fedskew.experiments.plan import runs
    from fedskew.report.kept_records import compared, kept_runs, records_folder
    from fedskew.report.runs import Run
    from fedskew.scheduling import Resources
    from fedskew.sweep import run_all

    if results is not None:
        check_folder("--results", results)
    kept = kept_runs(records_folder(records), runs(choice.cells()))
    drawn = draw(kept.values(), cells, seed)
    entries = {experiment.name: experiment for experiment in choice.experiments}
    out = console(stderr=as_json)
    lines = []
    # In the folder that records are kept from the runs are finished, and would be compared with themselves.
    repetitions = nullcontext(results) if results else TemporaryDirectory(prefix="fedskew-verify-")
    with repetitions as folder:
        anew = replace(choice, overrides={**choice.overrides, "results": f"{folder}/verify"})
        of_drawn = [cell for cell in anew.cells() if cell.run.run_id in drawn]
        _, failed = run_all(runs(of_drawn), of_drawn, out, Resources(jobs=jobs))
        for run in map(Run.read, runs(of_drawn)):
            if run.finished:
                of_run = [cell for cell in of_drawn if cell.run.run_id == run.name]
                lines.append(compared(kept[run.name], run, of_run, entries))
    if as_json:
        print(json.dumps(lines, indent=2))
    else:
        for line in lines:
            out.print(f"{line['run']}: {line['result']} ({line['origin']})")
    for run_name, reason in failed.items():
        complain(f"{run_name}: {reason}", FAILED)
    missing = len(drawn) - sum(line["holds"] for line in lines)
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
