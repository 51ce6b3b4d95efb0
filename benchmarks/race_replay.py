"""What a way to choose a method loses: replayed on the scores of all methods, which are kept in benchmarks/race_scores.

    python -m benchmarks.race_replay table --write docs/results/races.md    # from what is kept

The federations are those of benchmarks/races.yaml, in which every method was trained at three learning rates with three
seeds. The kept scores are of the test set. A choice sees two of the seeds and is scored by the third one. `with noise`,
each score that a choice sees has the error that a validation sample of a fifth of the training samples would add, as
if two methods' errors on it were independent: the careful case, as both are measured on the same samples.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.__main__ import write
from client_app.local_site import PERMISSIONS
from fedskew.report.inference import Floats, student
from fedskew.select import (
    ALWAYS_UPLOADED,
    BASELINE,
    CONSTANT,
    FRESH_SEEDS,
    HEADS,
    TARGETS,
    VALIDATION_SHARE,
    permissions_of,
)
from server_app.settings import parse

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "race_scores"
TRAINED = {
    "label-skew": 1000, "global-tail": 971, "local-tails": 1000, "scanners": 1200, "one-class": 1437, "iid": 1000,
    "photographs": 1357, "art-styles": 1440, "cameras": 2025, "brain-scans": 500, "tumours": 455, "two-classes": 1000,
}  # fmt: skip
"""The federations, with their training samples; no decision of the code was taken on the last six."""
HELD_OUT = tuple(TRAINED)[6:]
SKEWS = {
    "label skew": ("label-skew", "one-class", "two-classes"),
    "global tail": ("global-tail", "photographs"),
    "local tails": ("local-tails",),
    "scanners or sites": ("scanners", "art-styles", "cameras", "brain-scans"),
    "a table, two classes": ("tumours",),
    "none": ("iid",),
}
"""The federations by their skew."""
MAY_LEAVE = {
    "anything": set[str](),
    "no class statistics": {"class-statistics"},
    "the model alone": {*PERMISSIONS} - {*ALWAYS_UPLOADED},
}
"""What may leave a site beside the model, as the permissions that a method may not need."""
RETIRED = "refit-bias"
"""A head that is among the kept scores, and among the best of all, but can be chosen no more."""
SHOWN = ("balanced-accuracy", "worst-site")
"""The targets whose first choices the page shows."""
REPETITIONS = 20
"""Of a replay with drawn numbers."""

Scores = Mapping[tuple[str, str], Sequence[float]]
"""By method and learning rate the score of every seed in points, of which more is better."""
Choice = Callable[[str, str], float]
"""(federation, target) -> the score of what is chosen."""


@cache
def kept(name: str) -> Mapping[str, Any]:
    """Return a federation's kept numbers."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


@cache
def scores(name: str, target: str) -> Scores:
    """Return a federation's scores for a target. A method that diverged in a seed is left out."""
    found = {}
    for method, by_rate in kept(name)["full"]["scores"].items():
        for rate, of_seeds in by_rate.items():
            of_target = [of_targets[target] for of_targets in of_seeds.values()]
            if all(map(math.isfinite, of_target)):
                found[method, rate] = of_target
    return found


def best(name: str, target: str) -> float:
    """Return the best mean score of all methods and rates."""
    return max(map(statistics.fmean, scores(name, target).values()))


# ---- ways to choose ---------------------------------------------------------------------------------


def always(method: str) -> Choice:
    """Return the choice of one method at the rate of the settings."""
    return lambda name, target: statistics.fmean(
        scores(name, target)[method, kept(name)["full"]["own-rate"]]
    )


def best_by_other_seeds(name: str, target: str) -> float:
    """Return what the best of all by two seeds gives in the third: nothing can be expected to choose better."""
    found = []
    for seed in range(3):
        others = {key: sum(of) - of[seed] for key, of in scores(name, target).items()}
        found.append(scores(name, target)[max(others, key=others.__getitem__)][seed])
    return statistics.fmean(found)


def three_experiments(noisy: bool, compared: bool = True) -> Choice:
    """Return the choice of `fedskew select`; without `compared` it is the best of its second step."""

    @cache
    def choice(name: str, target: str) -> float:
        draws = np.random.default_rng(0)
        taken = []
        for _ in range(REPETITIONS):
            for seeds in itertools.permutations(range(3)):
                key = selected(name, target, seeds, noisy, compared, draws)
                taken.append(scores(name, target)[key][seeds[2]])
        return statistics.fmean(taken)

    return choice


def selected(
    name: str,
    target: str,
    seeds: Sequence[int],
    noisy: bool,
    compared: bool,
    draws: np.random.Generator,
) -> tuple[str, str]:
    """Return the method and learning rate that the three experiments choose by the first two of these seeds."""
    candidates = {key: of for key, of in scores(name, target).items() if RETIRED not in key[0]}
    error = {key: noisy * validation_error(name, target, of) for key, of in candidates.items()}

    def seen(key: tuple[str, str], seed: int) -> float:
        return candidates[key][seed] + float(draws.normal()) * error[key]

    own_rate = kept(name)["full"]["own-rate"]
    first = {key: seen(key, seeds[0]) for key in candidates if key[1] == own_rate}
    by_rank = list(dict.fromkeys(training(method) for method, _ in ordered(first)))
    trainings = {BASELINE, *by_rank[: max(2, math.ceil(len(by_rank) / 2))]}
    second = {}
    for key in candidates:
        if training(key[0]) in trainings:
            second[key] = seen(key, seeds[0]) + seen(key, seeds[1])
    order = ordered(second)
    winner = order[0]
    baseline = next(key for key in order if key[0] == BASELINE)
    if winner == baseline or not compared:
        return winner
    gains = np.subtract(candidates[winner], candidates[baseline])
    spread = math.hypot(float(gains.std(ddof=1)), error[winner], error[baseline])
    fresh = draws.normal(gains.mean(), spread, len(FRESH_SEEDS))
    both = (validation_error(name, target, candidates[key]) for key in (winner, baseline))
    return winner if low_end(target, fresh, math.hypot(*both)) > 0 else baseline


def low_end(target: str, gains_S: Floats, of_examples: float) -> float:
    """Return the low end of a gain's interval as `select` has it, the bootstrap by its variance instead of draws.

    Args:
        target: the number that decides.
        gains_S: by fresh seed.
        of_examples: the standard error of a seed's gain, as if both methods were measured on other examples.
    """
    seeds = len(gains_S)
    mean = float(gains_S.mean())
    half = mean - student(list(gains_S))[0]
    if target == "auroc":
        half *= math.sqrt(1 + seeds * VALIDATION_SHARE / (1 - VALIDATION_SHARE))
    else:
        variance = float(gains_S.var()) / seeds + of_examples**2 / seeds
        half = max(half, 1.96 * math.sqrt(variance))
    return mean - half


def ordered(means: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Return the candidates, best first."""
    return sorted(means, key=means.__getitem__, reverse=True)


def training(method: str) -> str:
    """Return the training that gives a method: fedshift of fedshift+ccvr, fedavg of ccvr."""
    return "+".join(name for name in method.split("+") if name not in HEADS) or BASELINE


def validation_error(name: str, target: str, of_seeds: Sequence[float]) -> float:
    """Return the standard error, in points, of a score on validation samples, as if it were a share of them."""
    mean = statistics.fmean(of_seeds) / 100
    share = min(max(mean, 0.02), 0.98)
    return 100 * math.sqrt(share * (1 - share) / (VALIDATION_SHARE * TRAINED[name]))


# ---- tables -----------------------------------------------------------------------------------------

WAYS: Mapping[str, Choice] = {
    "select, with noise": three_experiments(noisy=True),
    "its first, with noise": three_experiments(noisy=True, compared=False),
    "select": three_experiments(noisy=False),
    "always ccvr": always(CONSTANT),
    "always fedavg": always(BASELINE),
    "best by other seeds": best_by_other_seeds,
}


def lost_table(names: Sequence[str]) -> str:
    """Return the points that each way loses to the best of all: mean and standard error over federations."""
    rows = [["", *TARGETS]]
    for way, choice in WAYS.items():
        cells = []
        for target in TARGETS:
            cells.append(mean_text(best(name, target) - choice(name, target) for name in names))
        rows.append([way, *cells])
    return markdown(rows)


def mean_text(numbers: Iterable[float]) -> str:
    """Return a mean with its standard error."""
    values = list(numbers)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.1f} ± {error:.1f}"


def first_choices() -> str:
    """Return the method with the largest mean gain over FedAvg by skew, target and what may leave a site."""
    rows = [["skew", "may leave", *SHOWN]]
    for skew, names in SKEWS.items():
        for words, refused in MAY_LEAVE.items():
            cells = [first_choice(names, target, refused) for target in SHOWN]
            rows.append([skew, words, *cells])
    return markdown(rows)


def first_choice(names: Sequence[str], target: str, refused: set[str]) -> str:
    """Return the method with the largest mean gain, with its interval over seeds; FedAvg where none has any."""
    most, shown = 0.0, BASELINE
    for method in sorted(set.intersection(*({*kept(name)["full"]["scores"]} for name in names))):
        if RETIRED in method or method == BASELINE:
            continue
        if permissions_of(parse({"method": method, "model": "mlp-bn"})) & refused:
            continue
        gains = []
        for name in names:
            rate = kept(name)["full"]["own-rate"]
            ours = scores(name, target).get((method, rate))
            if ours is not None:
                gains.append(np.subtract(ours, scores(name, target)[BASELINE, rate]))
        if len(gains) == len(names) and float(np.mean(gains)) > most:
            most = float(np.mean(gains))
            low, high, _ = student(list(np.mean(gains, axis=0)))
            shown = f"{method} {most:+.1f} [{low:+.1f}, {high:+.1f}]"
    return shown


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def main() -> None:
    """Print the tables, and write them into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["table"])
    parser.add_argument("--write", type=Path, help="a page with the marks of each table")
    options = parser.parse_args()
    tables = {
        "all federations": lost_table(list(TRAINED)),
        "held-out federations": lost_table(HELD_OUT),
        "first choices": first_choices(),
    }
    for title, text in tables.items():
        print(f"{title}\n\n{text}\n")
        if options.write:
            write(options.write, title, text.split("\n"))


if __name__ == "__main__":
    main()
