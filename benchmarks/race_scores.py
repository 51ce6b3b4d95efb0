"""The numbers of benchmarks/races.py, kept in benchmarks/race_scores, and the tables made from them.

A federation's file has the score of every method in full, by learning rate, seed and target, and how each race ended.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from client_app.local_site import PERMISSIONS
from fedskew.method_selection.targets import TARGETS
from fedskew.method_selection.uploads import ALWAYS, permissions_of
from server_app.settings import parse

FOLDER = Path(__file__).resolve().parent / "race_scores"
ADVICE = {
    "label-skew": "fedshift",
    "global-tail": "ccvr",
    "local-tails": "iwds",
    "scanners": "fedbn",
    "one-class": "fedshift",
    "iid": "fedavg",
    "photographs": "ccvr",
    "art-styles": "fedbn",
    "cameras": "fedbn",
    "brain-scans": "fedbn",
    "tumours": "ccvr",
    "two-classes": "fedshift",
}
"""What docs/start/choosing-a-method.md says to begin with, as its table stood before these numbers."""
FEDERATIONS = tuple(ADVICE)
HELD_OUT = ("photographs", "art-styles", "cameras", "brain-scans", "tumours", "two-classes")
"""The federations that no decision of the code was taken on."""
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
    "anything": frozenset[str](),
    "no class statistics": frozenset({"class-statistics"}),
    "the model alone": frozenset(PERMISSIONS) - frozenset(ALWAYS),
}
"""What a method may upload, as the permissions that it may not need."""
GOAL = 0.3
"""Points that a race may lose on average to the best of all."""

Scores = dict[str, dict[str, dict[str, dict[str, float]]]]
"""In points by method, learning rate, seed and target, on the test set."""


def kept(name: str) -> dict[str, Any]:
    """Return a federation's numbers, as far as there are any."""
    file = FOLDER / f"{name}.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write(name: str, scores: Mapping[str, Any]) -> None:
    """Write a federation's numbers."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(scores, sort_keys=True) + "\n")


def of_full_runs(file: Path, name: str, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of all methods, and the commits that they are of; empty unless every run is finished."""
    from fedskew.experiments.experiments import load_experiments
    from fedskew.experiments.plan import plan
    from fedskew.method_selection.conduct import trained_of
    from server_app.run_folder import RunFolder

    scores: Scores = {}
    commits = set[str]()
    for cell in plan(load_experiments(file)[name], dict(overrides)):
        folder = RunFolder(cell.run.folder)
        summary = folder.finished(cell.run.general.rounds)
        if summary is None:
            return {}
        trained = trained_of(cell, summary)
        of_targets = trained.scores(trained.numbers)
        rounded = {target: round(score, 2) for target, score in of_targets.items()}
        rate = f"{cell.run.training.learning_rate:g}"
        scores.setdefault(cell.row, {}).setdefault(rate, {})[str(cell.seed)] = rounded
        commits.add(str(folder.origin()["versions"]["commit"])[:8])
    return {"commits": sorted(commits), "scores": scores}


def of_race(end: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of how a race ended."""
    return {
        "commit": end["commit"],
        "take": end["take"],
        "winner": end["winner"],
        "gain-by-seed": [round(gain, 2) for gain in end["gain-by-seed"] or []],
    }


@dataclass(frozen=True)
class Full:
    """One target's scores of every method in full, at a federation."""

    by_seed: Mapping[tuple[str, str], Sequence[float]]
    """The scores of every seed, in points of which more is better, by method and learning rate."""
    own_rate: str
    """The learning rate of the settings."""

    @cached_property
    def scores(self) -> dict[tuple[str, str], float]:
        """Mean over seeds, by method and learning rate."""
        return {key: statistics.fmean(scores) for key, scores in self.by_seed.items()}

    @property
    def best_of_other_seeds(self) -> float:
        """What the best of all by the other seeds gives in a seed, a mean over seeds.

        The best of so many methods by three seeds owes some of its lead to these seeds; nothing can be expected to
        choose better than this.
        """
        found = []
        for seed in range(len(next(iter(self.by_seed.values())))):
            others = {}
            for key, scores in self.by_seed.items():
                others[key] = statistics.fmean([*scores[:seed], *scores[seed + 1 :]])
            found.append(self.by_seed[max(others, key=others.__getitem__)][seed])
        return statistics.fmean(found)

    @property
    def best(self) -> float:
        """The best of all methods and rates."""
        return max(self.scores.values())

    def at_own_rate(self, method: str) -> float:
        """Return a method's score; NaN where the federation has no such method."""
        return self.scores.get((method, self.own_rate), math.nan)

    def tuned(self, method: str) -> float:
        """Return a method's score at its best learning rate."""
        return max(score for (name, _), score in self.scores.items() if name == method)

    def any_method(self) -> float:
        """Return the mean score of all methods: what one that is drawn at random gives."""
        at_own = [score for (_, rate), score in self.scores.items() if rate == self.own_rate]
        return statistics.fmean(at_own)

    def taken(self, end: Mapping[str, Any], key: str) -> float:
        """Return the score of what a race took, or of its winner."""
        chosen = end[key]
        return self.scores[chosen["method"], f"{chosen['learning_rate']:g}"]


def full_scores(name: str, target: str) -> Full:
    """Return a federation's scores for a target. Those that were not measured in every seed are left out."""
    by_seed: dict[tuple[str, str], list[float]] = {}
    of_methods: Scores = kept(name)["full"]["scores"]
    for method, by_rate in of_methods.items():
        for rate, of_seeds in by_rate.items():
            scores = [of_targets[target] for of_targets in of_seeds.values()]
            if all(map(math.isfinite, scores)):
                by_seed[method, rate] = scores
    return Full(by_seed, kept(name)["full"]["own-rate"])


Choice = Callable[[str, str, Full], float]
"""The score of a way to choose, by federation, target and the scores of all methods."""


def of_race_minutes(minutes: str, key: str = "take") -> Choice:
    """Return the choice of a race of so many minutes; NaN where that race was not run."""

    def choice(name: str, target: str, full: Full) -> float:
        end = kept(name).get("races", {}).get(minutes, {}).get(target)
        return math.nan if end is None else full.taken(end, key)

    return choice


def choices() -> dict[str, Choice]:
    """Return the ways to choose a method, by their names in the tables."""
    ways: dict[str, Choice] = {}
    minutes = {text for name in FEDERATIONS for text in kept(name).get("races", {})}
    for text in sorted(minutes, key=float):
        ways[f"race of {text} min"] = of_race_minutes(text)
        ways[f"its winner, {text} min"] = of_race_minutes(text, "winner")
    ways["the page's table"] = lambda name, _, full: full.at_own_rate(ADVICE[name])
    for method in ("ccvr", "scaffold+ccvr", "fedavg"):
        ways[f"always {method}"] = always(method)
    ways["fedavg, best rate"] = lambda _name, _target, full: full.tuned("fedavg")
    ways["best by other seeds"] = lambda _name, _target, full: full.best_of_other_seeds
    ways["a random method"] = lambda _name, _target, full: full.any_method()
    return ways


def always(method: str) -> Choice:
    """Return the choice of one method at the rate of the settings."""
    return lambda _name, _target, full: full.at_own_rate(method)


def report(federations: Sequence[str]) -> dict[str, str]:
    """Return the tables of docs/results/races.md as Markdown, by the name of their marks."""
    measured = [name for name in federations if kept(name).get("full")]
    held_out = [name for name in measured if name in HELD_OUT]
    ways = choices()
    lost: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for target in TARGETS:
        for name in measured:
            full = full_scores(name, target)
            for way, choice in ways.items():
                regret = full.best - choice(name, target, full)
                if math.isfinite(regret):
                    lost[target, way][name] = regret
    by_federation = [federation_table(ways, lost, measured, target) for target in TARGETS]
    return {
        "all federations": mean_table(ways, lost, measured),
        "held-out federations": mean_table(ways, lost, held_out),
        "goals": differences(ways, lost, measured),
        "minutes": minutes_used(measured),
        "first choices": advice(measured),
        "by federation": "\n\n".join(by_federation),
        "commits": commits(measured),
    }


def commits(names: Sequence[str]) -> str:
    """Return the commits that the numbers are of."""
    of_full: set[str] = set()
    of_races: set[str] = set()
    for name in names:
        numbers = kept(name)
        of_full.update(numbers["full"]["commits"])
        for by_target in numbers.get("races", {}).values():
            of_races.update(end["commit"] for end in by_target.values())
    return f"Full runs of {', '.join(sorted(of_full))}; races of {', '.join(sorted(of_races)) or 'none'}."


def mean_table(
    ways: Mapping[str, Choice],
    lost: Mapping[tuple[str, str], Mapping[str, float]],
    names: Sequence[str],
) -> str:
    """Return the mean regret of each way over federations, for each target."""
    rows = [["", *TARGETS]]
    for way in ways:
        cells = []
        for target in TARGETS:
            regrets = [lost[target, way][name] for name in names if name in lost[target, way]]
            cells.append(mean_text(regrets, of=len(names)))
        rows.append([way, *cells])
    return markdown(rows)


def mean_text(numbers: Sequence[float], of: int) -> str:
    """Return a mean with its standard error, and how many of all there are where some are missing."""
    if not numbers:
        return "-"
    some = f" ({len(numbers)})" if len(numbers) < of else ""
    return f"{statistics.fmean(numbers):.1f} ± {error_of(numbers):.1f}{some}"


def error_of(numbers: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 of a single number."""
    return statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0


def federation_table(
    ways: Mapping[str, Choice],
    lost: Mapping[tuple[str, str], Mapping[str, float]],
    names: Sequence[str],
    target: str,
) -> str:
    """Return what each way loses at each federation, and the best of all there."""
    rows = [[target, "best of all", *ways]]
    for name in names:
        full = full_scores(name, target)
        (method, rate), best = max(full.scores.items(), key=lambda entry: entry[1])
        regrets = [lost[target, way].get(name, math.nan) for way in ways]
        cells = ["-" if math.isnan(regret) else f"{regret:.1f}" for regret in regrets]
        rows.append([name, f"{method} ({rate}) {TARGETS[target].text(best)}", *cells])
    return markdown(rows)


def differences(
    ways: Mapping[str, Choice],
    lost: Mapping[tuple[str, str], Mapping[str, float]],
    names: Sequence[str],
) -> str:
    """Return by how much each race loses less than the best constant choice, and whether the goals are met."""
    rows = [["race", "target", "loses", f"goal {GOAL:g}", "best constant", "loses less by", "goal"]]
    for race in (way for way in ways if way.startswith("race of")):
        for target in TARGETS:
            of_race = lost[target, race]
            raced = [name for name in names if name in of_race]
            if not raced:
                continue
            loses = statistics.fmean(of_race[name] for name in raced)
            constants = {}
            for way in (way for way in ways if way.startswith("always")):
                if all(name in lost[target, way] for name in raced):
                    constants[way] = statistics.fmean(lost[target, way][name] for name in raced)
            constant = min(constants, key=constants.__getitem__)
            less = [lost[target, constant][name] - of_race[name] for name in raced]
            by, error = statistics.fmean(less), error_of(less)
            rows.append([
                race, target, f"{loses:.1f}", met(loses <= GOAL), constant, f"{by:+.1f} ± {error:.1f}", met(by > error),
            ])  # fmt: skip
    return markdown(rows)


def met(holds: bool) -> str:
    """Return whether a goal is met, in a word."""
    return "met" if holds else "missed"


def minutes_used(names: Sequence[str]) -> str:
    """Return which share of their minutes the races took."""
    rows = [["minutes", "races", "least used", "median", "most used"]]
    shares = defaultdict(list)
    for name in names:
        for minutes, by_target in kept(name).get("seconds", {}).items():
            shares[minutes] += [seconds / 60 / float(minutes) for seconds in by_target.values()]
    for minutes in sorted(shares, key=float):
        used = shares[minutes]
        three = (min(used), statistics.median(used), max(used))
        rows.append([minutes, str(len(used)), *(f"{100 * share:.0f} %" for share in three)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


@dataclass(frozen=True)
class Gain:
    """What a method has over FedAvg, both at the rate of the settings: a mean over federations."""

    method: str
    mean: float
    half: float
    """Half the 95 % interval over seeds."""

    def __str__(self) -> str:
        if self.method == "fedavg":
            return "fedavg"
        low, high = self.mean - self.half, self.mean + self.half
        return f"{self.method} {self.mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def advice(federations: Sequence[str]) -> str:
    """Return, as Markdown, the method with the largest mean gain by skew, target and what may leave a site."""
    rows = [["skew", "may leave", *TARGETS]]
    for skew, names in SKEWS.items():
        measured = [name for name in names if name in federations and kept(name).get("full")]
        for words, without in MAY_LEAVE.items():
            if measured:
                firsts = [str(first_choice(measured, target, without)) for target in TARGETS]
                rows.append([skew, words, *firsts])
    return markdown(rows)


def first_choice(names: Sequence[str], target: str, without: Collection[str]) -> Gain:
    """Return the method with the largest mean gain that all these federations have, or FedAvg where none has any."""
    best = Gain("fedavg", 0.0, 0.0)
    every = [set(kept(name)["full"]["scores"]) for name in names]
    for method in sorted(set.intersection(*every) - {"fedavg"}):
        if not permissions_of(parse({"method": method, "model": "mlp-bn"})) & frozenset(without):
            found = gain_of(method, names, target)
            if found.mean > best.mean:
                best = found
    return best


def gain_of(method: str, names: Sequence[str], target: str) -> Gain:
    """Return a method's gain; NaN where one of its runs has no score.

    The federations are given, not drawn: the interval is over seeds, with as many degrees of freedom as all have.
    """
    means, variances, freedom = [], [], 0
    for name in names:
        full = kept(name)["full"]
        rate, scores = full["own-rate"], full["scores"]
        of_method, of_fedavg = scores[method][rate], scores["fedavg"][rate]
        gains = [of_method[seed][target] - of_fedavg[seed][target] for seed in of_fedavg]
        means.append(statistics.fmean(gains))
        variances.append(statistics.variance(gains) / len(gains))
        freedom += len(gains) - 1
    error = math.sqrt(math.fsum(variances)) / len(names)
    return Gain(method, statistics.fmean(means), float(student.ppf(0.975, freedom)) * error)
