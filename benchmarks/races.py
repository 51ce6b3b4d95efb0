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
from collections.abc import Mapping
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
        start(
            "data",
            "save-partition",
            str(file),
            *sets({**ENTRIES[f".{name}"], "data-root": stated.data_root}),
        ).wait()
    return {"partition-file": file, "data-root": stated.data_root}


def full(stated: argparse.Namespace) -> None:
    """Train every method in full."""
    for name in stated.federations:
        words = [
            "--experiments",
            str(FILE),
            name,
            "--results",
            stated.results,
            "--engine",
            "inprocess",
        ]
        words += [word for column in stated.columns for word in ("--column", column)]
        words += [word for row in stated.rows for word in ("--row", row)]
        start("run", *words, "--jobs", stated.jobs, *sets(partition_settings(name, stated))).wait()


def race_words(name: str, stated: argparse.Namespace, folder: Path) -> list[str]:
    """Return the words of a federation's race."""
    settings = {
        key: value for key, value in ENTRIES[name]["settings"].items() if key != "evaluate-every"
    }
    words = [
        "select",
        "--minutes",
        str(stated.minutes),
        "--jobs",
        stated.jobs,
        "--results",
        str(folder),
    ]
    return [*words, *sets({**settings, **partition_settings(name, stated)})]


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
        took, moments = (
            plan.with_name("result.json").stat().st_mtime - plan.stat().st_mtime,
            list[float](),
        )
        for _ in range(KILLS):
            process = start(*race_words(name, stated, folder))
            moments.append(draws.uniform(0.1, 0.4) * took)
            try:
                process.wait(moments[-1])
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        start(*race_words(name, stated, folder)).wait()
        at = ", ".join(f"{seconds:.0f}" for seconds in moments)
        print(
            f"{name}: killed after {at} s: {'the same' if result(folder) == result(whole) else 'ANOTHER RESULT'}"
        )


def numbers_of(name: str, stated: argparse.Namespace) -> Numbers:
    """Return what every method gives when trained in full."""
    from fedskew.experiments.experiments import load_experiments
    from fedskew.experiments.plan import plan
    from server_app.round_selection import selected
    from server_app.run_folder import RunFolder

    values: dict[tuple[str, float], list[float]] = {}
    overrides = {key: str(value) for key, value in partition_settings(name, stated).items()}
    for cell in plan(load_experiments(FILE)[name], {**overrides, "results": stated.results}):
        summary = RunFolder(cell.run.folder).finished(cell.run.general.rounds)
        value = (
            math.nan if summary is None else selected(summary, cell.deployed)["balanced-accuracy"]
        )
        values.setdefault((cell.row, cell.run.training.learning_rate), []).append(100 * value)
    complete = {
        key: of_seeds for key, of_seeds in values.items() if all(map(math.isfinite, of_seeds))
    }
    return {key: statistics.fmean(of_seeds) for key, of_seeds in complete.items()}


def table(stated: argparse.Namespace) -> None:
    """Print what each way to choose a method loses to the best of all, in points, and what every method gives.

    FedAvg, the overall best and the papers' advice have the settings' own rate; the best is of all that were trained.
    """
    every = {name: numbers_of(name, stated) for name in stated.federations}
    rates = {name: ENTRIES[name]["columns"]["own"]["learning-rate"] for name in every}
    plain = {
        name: {m: v for (m, rate), v in of.items() if rate == rates[name]}
        for name, of in every.items()
    }
    common = sorted(set.intersection(*(set(numbers) for numbers in plain.values())))
    overall = max(common, key=lambda method: sum(numbers[method] for numbers in plain.values()))
    print(
        f"| federation | best of all | the race took | regret | of FedAvg | of {overall} | of advice | gain |"
    )
    print("|---|---|---|---|---|---|---|---|")
    columns: list[list[float]] = []
    for name, numbers in every.items():
        (method, rate), best = max(numbers.items(), key=lambda entry: entry[1])
        take = result(folder_of(name, stated))["take"]
        assert isinstance(take, dict), f"{name}: the race has no end"
        value = numbers[take["method"], take["learning_rate"]]
        others = [plain[name][chosen] for chosen in ("fedavg", overall, ADVICE[name])]
        columns.append([*(best - number for number in (value, *others)), value - others[0]])
        chosen = f"{method} ({rate:g}) {best:.1f} | {take['method']} ({take['learning_rate']:g}) {value:.1f}"
        print(f"| {name} | {chosen} | {' | '.join(f'{number:.1f}' for number in columns[-1])} |")
    means = [statistics.fmean(column) for column in zip(*columns, strict=True)]
    print(f"| mean | | | {' | '.join(f'{number:.1f}' for number in means)} |\n")
    for name, numbers in every.items():
        ordered = sorted(numbers.items(), key=lambda entry: -entry[1])
        print(
            f"{name}: "
            + ", ".join(f"{method} ({rate:g}) {value:.1f}" for (method, rate), value in ordered)
        )


def equal(stated: argparse.Namespace) -> None:
    """Race on digits where methods are equal: clients alike, and labels that say nothing of the image."""
    from fedskew.cli.select import (
        select,
    )  # in this process, as twenty starts would take longer than the races

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
