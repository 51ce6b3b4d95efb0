"""`fedskew keep` and `fedskew verify`: records of finished runs, for another machine and for another person."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from data import SettingError, require
from fedskew.cli import completion
from fedskew.cli.run_selection import Choice, choose
from fedskew.cli.terminal import FAILED, ExperimentsFile, RecordsFolder, complain, console

if TYPE_CHECKING:
    from fedskew.report.kept_records import KeptRun
    from fedskew.report.verification import Verification

Name = Annotated[
    str,
    typer.Argument(
        help="A suite of the papers' statements, as papers.", autocompletion=completion.experiments
    ),
]
Settings = Annotated[
    list[str] | None, completion.set_option("A setting, as given to `fedskew run`.")
]
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
    choice = suite_of(name, experiments, settings or [], results)
    from fedskew.experiments.plan import runs  # with torch, for which a mistyped name does not wait
    from fedskew.report.kept_records import FOLDER, LARGEST_FOLDER, file_of, keep
    from fedskew.report.run_records import RunRecords

    folder = records or FOLDER
    require(folder.is_dir() or not folder.exists(), "--records", str(folder), "is no folder")
    planned = runs(choice.cells())
    finished = [run for run in map(RunRecords.read, planned) if run.finished]
    new = [run for run in finished if not file_of(folder, run.name).is_file()]
    written, total = keep(new, folder)
    out = console()
    out.print(
        f"{len(written)} runs written to {folder}, {len(finished) - len(new)} were there and stay: "
        f"{total} of at most {LARGEST_FOLDER} bytes",
        markup=False,
    )


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
    choice = suite_of(name, experiments, settings or [], None)
    from fedskew.experiments.plan import runs
    from fedskew.report.kept_records import KeptRecords, records_folder
    from fedskew.report.run_records import RunRecords
    from fedskew.report.verification import verified_run
    from fedskew.scheduling import Resources
    from fedskew.sweep import run_all

    out = console(stderr=as_json)
    kept = KeptRecords(records_folder(records)).among(runs(choice.cells()))
    drawn = draw(list(kept.values()), cells, seed)
    with repetitions_folder(results) as folder:
        anew = replace(choice, overrides={**choice.overrides, "results": str(folder)})
        planned_cells = [cell for cell in anew.cells() if cell.run.run_id in drawn]
        planned = runs(planned_cells)
        _, failed = run_all(planned, planned_cells, out, Resources(jobs=jobs))
        entries = {experiment.name: experiment for experiment in choice.experiments}
        compared = []
        for run in map(RunRecords.read, planned):
            if run.finished:
                compared.append(verified_run(kept[run.name], run, planned_cells, entries))
    show(compared, as_json)
    for run_name, reason in failed.items():
        complain(f"{run_name}: {reason}", FAILED)
    standing = sum(verification.holds for verification in compared)
    if standing < len(drawn):
        complain(f"{len(drawn) - standing} of {len(drawn)} kept runs were not repeated", FAILED)
        raise typer.Exit(FAILED)


@contextmanager
def repetitions_folder(results: Path | None) -> Iterator[Path]:
    """Yield the folder of repeated runs: verify/ in `results`, which stays, or a temporary one.

    It is no folder that records are kept from: there the runs are finished, and would be compared with themselves.
    """
    if results is not None:
        require(results.is_dir() or not results.exists(), "--results", str(results), "is no folder")
        yield results / "verify"
        return
    with TemporaryDirectory(prefix="fedskew-verify-") as temporary:
        yield Path(temporary)


def suite_of(
    name: str, experiments: Path | None, settings: Sequence[str], results: str | None
) -> Choice:
    """Return the suite of statements of this name. Raises SettingError where it is none."""
    choice = choose([name], experiments, settings, [], [], {"results": results})
    require(choice.suite is not None, "suite", name, "is no suite of statements, as papers is")
    return choice


def draw(kept: Sequence["KeptRun"], cells: int, seed: int) -> set[str]:
    """Return the names of kept runs drawn at random, of those whose data are there.

    Raises SettingError where there are fewer than that.
    """
    from data.dataset import missing_names

    names = [run.name for run in kept if not missing_names(run.settings.data)]
    if len(names) < cells:
        rule = f"must be at most {len(names)}: so many kept runs have their data in data-root"
        raise SettingError("--cells", cells, rule)
    return set(random.Random(seed).sample(sorted(names), cells))


def show(compared: Sequence["Verification"], as_json: bool) -> None:
    """Print every kept run beside its repetition."""
    from fedskew.report.kept_records import origins
    from fedskew.report.verification import hash_of

    lines = []
    for verification in compared:
        kept = verification.kept
        lines.append(
            {
                "run": kept.name,
                "holds": verification.holds,
                "result": verification.words,
                "hashes": [hash_of(kept), hash_of(verification.repeated)],
                "origin": origins([kept])[0],
                "cells": [
                    {
                        "cell": f"{check.cell.experiment}, {check.cell.row}, {check.cell.column}",
                        "metric": check.metric,
                        "kept": check.kept,
                        "repeated": check.repeated,
                        "interval": check.interval and [check.interval.low, check.interval.high],
                    }
                    for check in verification.cells
                ],
            }
        )
    if as_json:
        print(json.dumps(lines, indent=2))
        return
    out = console()
    for line in lines:
        out.print(f"{line['run']}: {line['result']} ({line['origin']})", markup=False)
