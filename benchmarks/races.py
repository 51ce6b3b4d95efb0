"""What a race's choice costs: `fedskew select` on six federations, beside all methods trained in full.

    python benchmarks/races.py full --data-root FOLDER               # every method, three rates, three seeds
    python benchmarks/races.py races --data-root FOLDER --minutes 10
    python benchmarks/races.py kills --data-root FOLDER --minutes 10 # killed with -9 and begun again, beside the above
    python benchmarks/races.py table --data-root FOLDER --minutes 10
    python benchmarks/races.py equal --minutes 1                     # two times ten where methods are equal

The federations are those of benchmarks/races.yaml, each in one partition file, so that seeds change weights and batches
and not who holds what. What is done is not repeated.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks" / "races.yaml"
ENTRIES = yaml.safe_load(FILE.read_text())
ADVICE = {"label-skew": "fedshift", "global-tail": "creff", "local-tails": "iwds", "scanners": "fedbn",
          "one-class": "fedshift", "iid": "fedavg"}  # fmt: skip
"""The federations, and the method whose paper is about such a one."""
KILLS, SEEDS = 3, 10
SMALL = {"model": "mlp-bn", "rounds": 8, "local-epochs": 2}
"""What is trained where methods are equal."""
Numbers = dict[tuple[str, float], float]
"""Balanced accuracy on the test set in percent, mean over seeds, by method and learning rate."""


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start a command of the workbench in a session of its own."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "fedskew", *words], env=environment, start_new_session=True
    )


def sets(settings: Mapping[str, object]) -> list[str]:
    """Return the words that state settings."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def partition_settings(name: str, stated: argparse.Namespace) -> dict[str, object]:
    """Return the settings by which a federation is the same in all runs; its partition file is written once."""
    file = Path(stated.results).resolve() / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        settings = {**ENTRIES[f".{name}"], "data-root": stated.data_root}
        start("data", "save-partition", str(file), *sets(settings)).wait()
    return {"partition-file": file, "data-root": stated.data_root}


def full(stated: argparse.Namespace) -> None:
    """Train every method in full."""
    options = ["--results", stated.results, "--engine", "inprocess", "--jobs", stated.jobs]
    for column in stated.columns:
        options += ["--column", column]
    for row in stated.rows:
        options += ["--row", row]
    for name in stated.federations:
        settings = sets(partition_settings(name, stated))
        start("run", "--experiments", str(FILE), name, *options, *settings).wait()


def race_words(name: str, stated: argparse.Namespace, folder: Path) -> list[str]:
    """Return the words of a federation's race."""
    settings = {**ENTRIES[name]["settings"], **partition_settings(name, stated)}
    settings.pop("evaluate-every", None)  # a race evaluates when it needs to know
    options = ["--minutes", str(stated.minutes), "--jobs", stated.jobs, "--results", str(folder)]
    return ["select", *options, *sets(settings)]


def folder_of(name: str, stated: argparse.Namespace, kind: str = "races") -> Path:
    """Return the results folder of a federation's race."""
    return Path(stated.results).resolve() / f"{kind}-{stated.minutes:g}" / name


def result(folder: Path) -> dict[str, object]:
    """Return how the race of a results folder ended."""
    (file,) = folder.glob("race-*/result.json")
    return dict(json.loads(file.read_text()))


def races(stated: argparse.Namespace) -> None:
    """Let the methods race."""
    for name in stated.federations:
        start(*race_words(name, stated, folder_of(name, stated))).wait()


def kills(stated: argparse.Namespace) -> None:
    """Run the same plan again, killed at random moments, and compare the end with that of the race left alone."""
    draws = random.Random(0)
    for name in stated.federations:
        whole, folder = folder_of(name, stated), folder_of(name, stated, "killed")
        shutil.rmtree(folder, ignore_errors=True)
        (plan,) = whole.glob("race-*/plan.json")
        (folder / plan.parent.name).mkdir(parents=True)
        shutil.copy(plan, folder / plan.parent.name)
        end = plan.with_name("result.json").stat().st_mtime
        duration = end - plan.stat().st_mtime
        moments = []
        for _ in range(KILLS):
            process = start(*race_words(name, stated, folder))
            moment = draws.uniform(0.1, 0.4) * duration
            moments.append(f"{moment:.0f}")
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        start(*race_words(name, stated, folder)).wait()
        verdict = "the same" if result(folder) == result(whole) else "ANOTHER RESULT"
        print(f"{name}: killed after {', '.join(moments)} s: {verdict}")


def numbers_of(name: str, stated: argparse.Namespace) -> Numbers:
    """Return what every method gives when trained in full."""
    from fedskew.experiments.experiments import load_experiments
    from fedskew.experiments.plan import plan
    from server_app.round_selection import selected
    from server_app.run_folder import RunFolder

    overrides = {key: str(value) for key, value in partition_settings(name, stated).items()}
    overrides["results"] = stated.results
    values: dict[tuple[str, float], list[float]] = defaultdict(list)
    for cell in plan(load_experiments(FILE)[name], overrides):
        summary = RunFolder(cell.run.folder).finished(cell.run.general.rounds)
        value = math.nan
        if summary is not None:
            value = selected(summary, cell.deployed)["balanced-accuracy"]
        values[cell.row, cell.run.training.learning_rate].append(100 * value)
    # The mean over seeds, of what is trained with every seed.
    means: Numbers = {}
    for key, of_seeds in values.items():
        if all(map(math.isfinite, of_seeds)):
            means[key] = statistics.fmean(of_seeds)
    return means


def table(stated: argparse.Namespace) -> None:
    """Print what each way to choose a method loses to the best of all, in points, and what every method gives.

    FedAvg, the overall best and the papers' advice have the settings' own rate; the best is of all that were trained.
    """
    every = {name: numbers_of(name, stated) for name in stated.federations}
    at_own_rate: dict[str, dict[str, float]] = {}
    for name, numbers in every.items():
        own_rate = ENTRIES[name]["columns"]["own"]["learning-rate"]
        methods = [method for method, rate in numbers if rate == own_rate]
        at_own_rate[name] = {method: numbers[method, own_rate] for method in methods}
    in_all = sorted(set.intersection(*map(set, at_own_rate.values())))
    overall = max(in_all, key=lambda method: sum(of[method] for of in at_own_rate.values()))

    headings = ["federation", "best of all", "the race took", "regret", "of FedAvg"]
    headings += [f"of {overall}", "of advice", "gain"]
    print(f"| {' | '.join(headings)} |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[list[float]] = []
    for name, numbers in every.items():
        best_key = max(numbers, key=lambda key: numbers[key])
        best = numbers[best_key]
        take = result(folder_of(name, stated))["take"]
        assert isinstance(take, dict), f"{name}: the race has no end"
        taken_key = (take["method"], take["learning_rate"])
        taken = numbers[taken_key]
        fedavg = at_own_rate[name]["fedavg"]
        always = at_own_rate[name][overall]
        advised = at_own_rate[name][ADVICE[name]]
        row = [best - taken, best - fedavg, best - always, best - advised, taken - fedavg]
        rows.append(row)
        print(f"| {name} | {named(best_key, best)} | {named(taken_key, taken)} | {cells(row)} |")
    means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    print(f"| mean | | | {cells(means)} |\n")

    for name, numbers in every.items():
        ordered = sorted(numbers.items(), key=lambda entry: -entry[1])
        print(f"{name}: {', '.join(named(key, value) for key, value in ordered)}")


def named(key: tuple[str, float], value: float) -> str:
    """Return a method with its learning rate and what it gives."""
    method, rate = key
    return f"{method} ({rate:g}) {value:.1f}"


def cells(numbers: Sequence[float]) -> str:
    """Return numbers as cells of a Markdown row."""
    return " | ".join(f"{number:.1f}" for number in numbers)


def equal(stated: argparse.Namespace) -> None:
    """Race on digits where methods are equal: clients alike, and labels that say nothing of the image."""
    # In this process, as twenty starts would take longer than the races.
    from fedskew.cli.select import select

    folder = Path(stated.results).resolve() / "equal"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in stated.kinds:
        ends: list[str] = []
        for seed in range(SEEDS):
            place = folder / f"{kind}-{seed}"
            if not list(place.glob("race-*/result.json")):
                settings = [
                    f"{key}={value}"
                    for key, value in {**SMALL, **alike(kind, seed, folder)}.items()
                ]
                select(stated.minutes, None, settings, None, str(place), int(stated.jobs))
            ends.append("; ".join(map(str, result(place)["lines"])))  # type: ignore[call-overload]
            print(f"  {seed}: {ends[-1]}", flush=True)
        print(
            f"{kind}: not distinguishable in {sum('no method is distinguishable' in end for end in ends)} of {SEEDS}"
        )


def alike(kind: str, seed: int, folder: Path) -> dict[str, object]:
    """Return the settings of ten clients with samples alike: of digits, or of a data set with random labels."""
    if kind == "random-labels":
        file = random_labels(folder, seed)
        return {"dataset": f"npz:{file}", "classes": 10, "input-shape": "1x8x8", "partition": "iid"}
    file = folder / f"iid-{seed}.json"
    if not file.exists():
        start("data", "save-partition", str(file), *sets({"partition": "iid", "seed": seed})).wait()
    return {"partition-file": file}


def random_labels(folder: Path, seed: int) -> Path:
    """Return an npz file of digits with labels drawn at random, so that nothing can be learnt."""
    from sklearn.datasets import load_digits

    file, draws = folder / f"random-labels-{seed}.npz", np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    labels, order = draws.permutation(labels), draws.permutation(len(labels))
    train, test = order[360:], order[:360]
    if not file.exists():
        np.savez(
            file,
            train_images=images[train],
            train_labels=labels[train],
            test_images=images[test],
            test_labels=labels[test],
        )
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    actions = {"full": full, "races": races, "kills": kills, "table": table, "equal": equal}
    parser.add_argument("what", choices=actions)
    parser.add_argument("--data-root", default="")
    parser.add_argument("--results", default="results/races")
    parser.add_argument("--federations", nargs="+", choices=ADVICE, default=list(ADVICE))
    parser.add_argument(
        "--columns",
        nargs="+",
        default=["own"],
        help="full: learning rates of races.yaml",
    )
    parser.add_argument("--rows", nargs="+", default=[], help="full: methods")
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=["iid", "random-labels"],
        help="equal: of federations",
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", default="1", help="runs at a time, of one thread each")
    stated = parser.parse_args()
    actions[stated.what](stated)


if __name__ == "__main__":
    main()
