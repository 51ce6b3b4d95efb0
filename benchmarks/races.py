"""What a race's choice costs: `fedskew select` on twelve federations, beside all methods trained in full.

    python -m benchmarks.races full --data-root FOLDER                 # every method, three rates, three seeds
    python -m benchmarks.races replay --data-root FOLDER --minutes 1 3 # races for every target, which share their runs
    python -m benchmarks.races races --data-root FOLDER --minutes 3    # each race by itself, for its minutes
    python -m benchmarks.races keep                                    # their numbers, for benchmarks/race_scores
    python -m benchmarks.races table --write docs/results/races.md     # from what is kept
    python -m benchmarks.races starts --data-root FOLDER --minutes 3   # started again, beside `races`
    python -m benchmarks.races kills --data-root FOLDER --minutes 3    # killed with -9 and begun again, beside `races`
    python -m benchmarks.races equal --minutes 1                       # two times ten where methods are equal

The federations are those of benchmarks/races.yaml, each in one partition file, so that seeds change weights and batches
and not who holds what. What is done or kept is not repeated.

What a race chooses is measured by `replay` (benchmarks/race_replay.py), and the minutes that it takes by `races`, as a
user would start it.
"""

import argparse
import csv
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import race_scores
from benchmarks.__main__ import write
from benchmarks.race_scores import FEDERATIONS
from fedskew.method_selection.targets import TARGETS
from server_app.run_folder import write_text
from server_app.settings import parse_texts

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks" / "races.yaml"
ENTRIES = yaml.safe_load(FILE.read_text())
KILLS, SEEDS = 3, 10
SMALL = {"model": "mlp-bn", "rounds": 8, "local-epochs": 2}
"""What is trained where methods are equal."""
WALL = "wall-seconds"
"""The file beside a race's results that says how long the command took."""


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start a command of the workbench in a session of its own."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "fedskew", *words], env=environment, start_new_session=True
    )


def finish(*words: str) -> None:
    """Run a command of the workbench, and end here as well where it fails."""
    code = start(*words).wait()
    if code:
        raise SystemExit(f"fedskew {' '.join(words)} ended with {code}")


def sets(settings: Mapping[str, object]) -> list[str]:
    """Return the words that state settings."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def partition_settings(name: str, stated: argparse.Namespace) -> dict[str, object]:
    """Return the settings by which a federation is the same in all runs; its partition file is written once."""
    folder = Path(stated.results).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    of_data: dict[str, object] = {"data-root": stated.data_root}
    if name == "tumours":
        of_data["dataset"] = f"csv:{tumours(folder)}"
    file = folder / f"{name}.json"
    if not file.exists():
        settings = {**ENTRIES[f".{name}"], **of_data}
        finish("data", "save-partition", str(file), *sets(settings))
    return {**of_data, "partition-file": file}


def tumours(folder: Path) -> Path:
    """Return a CSV file of scikit-learn's breast tumours, every column with mean 0 and deviation 1."""
    from sklearn.datasets import load_breast_cancer

    file = folder / "tumours.csv"
    if not file.exists():
        table = load_breast_cancer()
        numbers_NF = (table.data - table.data.mean(0)) / table.data.std(0)
        with file.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow([*(name.replace(" ", "-") for name in table.feature_names), "label"])
            for numbers_F, label in zip(numbers_NF, table.target, strict=True):
                writer.writerow(
                    [*(f"{number:.4f}" for number in numbers_F), table.target_names[label]]
                )
    return file


def full(stated: argparse.Namespace) -> None:
    """Train every method in full."""
    options = ["--results", stated.results, "--engine", "inprocess", "--jobs", stated.jobs]
    for name in stated.federations:
        if not race_scores.kept(name).get("full"):
            settings = sets(partition_settings(name, stated))
            finish("run", "--experiments", str(FILE), name, *options, *settings)


def race_settings(name: str, stated: argparse.Namespace) -> dict[str, object]:
    """Return the settings of a federation's races."""
    entry = ENTRIES[name]
    settings = {**entry["settings"], **entry["columns"]["own"], **partition_settings(name, stated)}
    settings.pop("evaluate-every", None)  # a race evaluates when it needs to know
    return settings


def replay(stated: argparse.Namespace) -> None:
    """Let the methods race for every target, with runs that the races of a federation share."""
    # The engines of these races start in this process.
    from benchmarks.race_replay import Replays

    place = Path(stated.results).resolve() / "replays"
    for name in stated.federations:
        settings = {key: str(value) for key, value in race_settings(name, stated).items()}
        replays = Replays(
            parse_texts(f"{key}={value}" for key, value in settings.items()), place / name
        )
        for minutes in stated.minutes:
            kept = race_scores.kept(name).get("races", {}).get(f"{minutes:g}", {})
            for target in stated.targets:
                file = place / f"{name}-{minutes:g}-{target}.json"
                if target not in kept and not file.exists():
                    write_text(file, json.dumps(replays.race(target, minutes)))
                    print(f"{name}, {target}, {minutes:g} minutes", flush=True)


def race_words(
    name: str, target: str, minutes: float, stated: argparse.Namespace, folder: Path
) -> list[str]:
    """Return the words of a federation's race."""
    options = ["--minutes", f"{minutes:g}", "--jobs", stated.jobs, "--results", str(folder)]
    return ["select", "--target", target, *options, *sets(race_settings(name, stated))]


def folder_of(
    name: str, target: str, minutes: float, stated: argparse.Namespace, kind: str = "races"
) -> Path:
    """Return the results folder of a federation's race."""
    return Path(stated.results).resolve() / f"{kind}-{minutes:g}" / target / name


def result(folder: Path) -> dict[str, Any]:
    """Return how the race of a results folder ended."""
    (file,) = folder.glob("race-*/result.json")
    return dict(json.loads(file.read_text()))


def all_races(stated: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """Yield the federation, target and minutes of every race that is stated."""
    yield from itertools.product(stated.federations, stated.targets, stated.minutes)


def races(stated: argparse.Namespace, kind: str = "races") -> None:
    """Let the methods race, each race by itself."""
    for name, target, minutes in all_races(stated):
        folder = folder_of(name, target, minutes, stated, kind)
        if (folder / WALL).exists():
            continue
        # A race that was interrupted says nothing of its minutes.
        shutil.rmtree(folder, ignore_errors=True)
        words = race_words(name, target, minutes, stated, folder)
        before = time.monotonic()
        finish(*words)
        (folder / WALL).write_text(f"{time.monotonic() - before:.1f}")


def starts(stated: argparse.Namespace) -> None:
    """Start the same races again in another folder, and compare the winners."""
    races(stated)
    races(stated, "again")
    for name, target, minutes in all_races(stated):
        first = result(folder_of(name, target, minutes, stated))
        again = result(folder_of(name, target, minutes, stated, "again"))
        same = "the same winner" if first["winner"] == again["winner"] else "ANOTHER WINNER"
        print(f"{name}, {target}, {minutes:g} min: {same}; {gain_text(first)}; {gain_text(again)}")


def gain_text(end: Mapping[str, Any]) -> str:
    """Return a race's winner and its gain over FedAvg on validation data."""
    winner = f"{end['winner']['method']} ({end['winner']['learning_rate']:g})"
    if end["validation-interval"] is None:
        return winner
    low, high = end["validation-interval"]
    return f"{winner} {end['validation-gain']:+.1f} [{low:+.1f}, {high:+.1f}]"


def keep(stated: argparse.Namespace) -> None:
    """Write the numbers of what is done into benchmarks/race_scores."""
    place = Path(stated.results)
    for name in stated.federations:
        scores = race_scores.kept(name)
        if not scores.get("full") and (place / f"{name}.json").exists():
            overrides = {key: str(value) for key, value in partition_settings(name, stated).items()}
            overrides["results"] = stated.results
            scores["full"] = race_scores.of_full_runs(FILE, name, overrides)
            if scores["full"]:
                scores["full"]["own-rate"] = f"{ENTRIES[name]['columns']['own']['learning-rate']:g}"
        for minutes, target in itertools.product(stated.minutes, TARGETS):
            file = place / "replays" / f"{name}-{minutes:g}-{target}.json"
            if file.exists():
                end = race_scores.of_race(json.loads(file.read_text()))
                scores.setdefault("races", {}).setdefault(f"{minutes:g}", {})[target] = end
        for wall in sorted(place.glob(f"races-*/*/{name}/{WALL}")):
            minutes = wall.parent.parent.parent.name.removeprefix("races-")
            target = wall.parent.parent.name
            seconds = scores.setdefault("seconds", {}).setdefault(minutes, {})
            seconds[target] = float(wall.read_text())
        race_scores.write(name, scores)


def kills(stated: argparse.Namespace) -> None:
    """Run the same plan again, killed at random moments, and compare the end with that of the race left alone."""
    draws = random.Random(0)
    for name, target, minutes in all_races(stated):
        whole = folder_of(name, target, minutes, stated)
        folder = folder_of(name, target, minutes, stated, "killed")
        shutil.rmtree(folder, ignore_errors=True)
        (plan,) = whole.glob("race-*/plan.json")
        (folder / plan.parent.name).mkdir(parents=True)
        shutil.copy(plan, folder / plan.parent.name)
        duration = float((whole / WALL).read_text())
        words = race_words(name, target, minutes, stated, folder)
        moments = []
        for _ in range(KILLS):
            process = start(*words)
            moment = draws.uniform(0.1, 0.4) * duration
            moments.append(f"{moment:.0f}")
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        finish(*words)
        verdict = "the same" if result(folder) == result(whole) else "ANOTHER RESULT"
        print(f"{name}, {target}: killed after {', '.join(moments)} s: {verdict}")


def table(stated: argparse.Namespace) -> None:
    """Print the tables of what is kept, and write them between the marks of a page."""
    for name, text in race_scores.report(stated.federations).items():
        print(f"{name}\n\n{text}\n")
        if stated.write:
            write(stated.write, name, text.split("\n"))


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
                (minutes,) = stated.minutes
                select(
                    minutes=minutes,
                    settings=settings,
                    results=str(place),
                    jobs=int(stated.jobs),
                )
            ends.append("; ".join(result(place)["lines"]))
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
    actions = {
        "full": full,
        "replay": replay,
        "races": races,
        "keep": keep,
        "table": table,
        "starts": starts,
        "kills": kills,
        "equal": equal,
    }
    parser.add_argument("what", choices=actions)
    parser.add_argument("--data-root", default="")
    parser.add_argument("--results", default="results/races")
    parser.add_argument("--federations", nargs="+", choices=FEDERATIONS, default=list(FEDERATIONS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=["iid", "random-labels"],
        help="equal: of federations",
    )
    parser.add_argument("--write", type=Path, help="table: a page with the marks of each table")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 3.0, 10.0])
    parser.add_argument("--jobs", default="1", help="runs at a time, of one thread each")
    stated = parser.parse_args()
    actions[stated.what](stated)


if __name__ == "__main__":
    main()
