"""`fedskew select`: compare methods on a federation."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
from fedskew.method_selection.race import BASELINE, RungResult, conclusion, race, take
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
    stated = {**parse_texts(settings or []), "results": results}
    for key in ("method", "seed", "evaluate-every", "evaluate-on"):
        require(
            key not in stated,
            key,
            stated.get(key, ""),
            "is the race's own: methods are stated by --method",
        )
    methods = words("method", method or []) or list(METHODS)
    out = console()
    digest = ""
    if match_counts is not None and match_counts.is_file():
        digest = hashlib.sha256(match_counts.read_bytes()).hexdigest()
    identity = json.dumps(
        [stored({**stated, "results": ""}), methods, minutes, digest], sort_keys=True
    )
    folder = Path(results) / f"race-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    stated = with_matching_partition(match_counts, stated, folder)
    kept = validation(stated)
    warned = set[str]()
    base = parse({**stated, "method": BASELINE}).data
    federation = federate(base, 0)
    refuse_untrainable(base, federation)
    print_warnings(base, federation, out, warned)
    if (file := folder / "plan.json").exists():
        plan = Plan.load(file)
        out.print(f"the race goes on: {file}")
    else:
        runs = possible(methods, stated)
        if (diagnosis := diagnosis_of(runs[BASELINE])) is not None:
            whose = whose_partition(runs[BASELINE].data)
            out.print(f"{whose}: {line(diagnosis)}", markup=False)
            runs = {
                name: runs[name] for name in (BASELINE, *recommended_order(diagnosis, [*runs][1:]))
            }
        sizes = sizes_of(runs[BASELINE].data, 0)
        assert sizes is not None, "the data are there"
        plan = affordable(runs, sizes, minutes, jobs)
        plan.save(file)
    show_plan(plan, out)
    racing = Runs(stated, kept, out, jobs, warned)
    rungs, winner = race(plan.candidates, plan.ladder, racing.on_validation)
    for rung_result in rungs:
        show(rung_result, out)
    baseline = next((c for c in rungs[-1].means if c.method == BASELINE), None)
    gain = None if baseline is None else racing.gain(winner, baseline, plan.last)
    lines = conclusion(winner, baseline, gain)
    outcome = {
        "winner": vars(winner),
        "take": vars(take(winner, baseline, gain)),
        "lines": lines,
        "gain-by-seed": None if gain is None else gain.differences,
        "interval": None if gain is None else (gain.interval.low, gain.interval.high),
        "interval-over": None if gain is None else gain.interval.resampled,
        "standings": [{str(candidate): mean for candidate, mean in s.means.items()} for s in rungs],
    }
    write_text(folder / "result.json", json.dumps(outcome, indent=2) + "\n")
    out.print("\n".join(lines))


def with_matching_partition(
    match_counts: Path | None, stated: Mapping[str, Scalar], folder: Path
) -> dict[str, Scalar]:
    """Return the settings with a partition file made of a table of counts, where one is given."""
    if match_counts is None:
        return dict(stated)
    for key in ("partition", "partition-file", "alpha", "clients"):
        require(
            key not in stated,
            key,
            stated.get(key, ""),
            "does not go with --match-counts, which says who holds what",
        )
    table = read_counts(match_counts)
    if not (file := folder / "partition.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = load(parse({**stated, "method": BASELINE}).data)
        partition_by_counts(table, data, file, str(match_counts))
    return {**stated, "partition-file": str(file.resolve())}


def validation(stated: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings by which clients have validation data: none where the data bring them, or they are stated,
    else a share of every client's samples."""
    run = parse({**stated, "method": BASELINE})
    if federate(run.data, 0).validated:
        return {}
    cut: dict[str, Scalar] = {"validation-fraction": SHARE}
    federate(parse({**stated, **cut, "method": BASELINE}).data, 0)
    return cut


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


def show(rung_result: RungResult, out: Console) -> None:
    """Print how the candidates stood after a rung: balanced accuracy on the clients' validation data."""
    rung = rung_result.rung
    ranked = ", ".join(f"{candidate} {mean:.1f}" for candidate, mean in rung_result.means.items())
    out.print(f"after {rung.rounds} rounds, {len(rung.seeds)} seeds: {ranked}")
