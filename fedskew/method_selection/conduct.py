"""Execution of a race: each candidate's training is a run in the results folder, so a race can be resumed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from fedskew.experiments.experiments import Experiment, Row
from fedskew.experiments.plan import Cell, plan, runs
from fedskew.method_selection.race import BASELINE, Candidate, Gain, Rung
from fedskew.method_selection.targets import DEFAULT, TARGETS, scores_of
from fedskew.report.inference import Pair, Strata, strata
from fedskew.report.results import RunRecords, SeedResult
from fedskew.sweep import run_all
from server_app.round_selection import points_of, selected
from server_app.run_folder import RunFolder
from server_app.run_settings import Scalar

Numbers = dict[Candidate, dict[int, float]]


@dataclass(frozen=True)
class Trained:
    """A finished run of a race."""

    cell: Cell
    scores: Mapping[str, float]
    """Of every target, in points, in the last round."""


def trained_of(cell: Cell, summary: Mapping[str, Any]) -> Trained:
    """Return the scores of a finished run by its summary."""
    samples = RunFolder(cell.run.folder).origin().get("samples") or {}
    train_KC = samples.get("train")
    train_C = None if train_KC is None else [sum(column) for column in zip(*train_KC, strict=True)]
    own_tests = bool(samples.get("client-test"))
    numbers = selected(summary, cell.deployed)
    return Trained(cell, scores_of(numbers, train_C, own_tests))


def examples(trained: Trained, target: str) -> Strata | None:
    """Return the test examples behind a run's score; None where its records do not have them.

    The lowest accuracy over sites without test samples of their own, AUROC and the Brier score are no sums over the
    recalls.
    """
    run = RunRecords.read(trained.cell.run)
    points = points_of(run.records, trained.cell.deployed)
    measured = SeedResult(trained.cell, run, points)
    own_tests = bool(run.samples and run.samples["client-test"])
    if target == "balanced-accuracy":
        return strata(measured, "last", target)
    if target == "accuracy":
        of_classes = strata(measured, "last", "balanced-accuracy")
        if of_classes is None or of_classes.weights_G is None:
            return None
        train_C = np.array(run.samples["train"]).sum(0)
        shares_C = train_C * (of_classes.weights_G > 0)  # of the classes that were tested
        return replace(of_classes, weights_G=shares_C / shares_C.sum())
    if target == "site-mean":
        metric = "client-accuracy.mean" if own_tests else "local-accuracy.mean"
        return strata(measured, "last", metric)
    if target == "worst-site" and own_tests:
        return strata(measured, "last", "client-accuracy.worst")
    return None


class Runs:
    """Scores candidates by training them.

    Args:
        settings: of all runs.
        validation: the settings that give clients validation data, on which alone the race's runs are measured.
        console: gets the progress.
        jobs: runs at a time; 0 chooses.
        warned: the warnings about data that are printed already.
        target: the name of the number that decides.
    """

    def __init__(
        self,
        settings: Mapping[str, Scalar],
        validation: Mapping[str, Scalar],
        console: Console,
        jobs: int = 0,
        warned: set[str] | None = None,
        target: str = DEFAULT,
    ) -> None:
        self.settings = dict(settings)
        self.target = target
        self.console = console
        self.jobs = jobs
        self.warned = set() if warned is None else warned
        self.validation = {**validation, "evaluate-on": "validation"}

    def on_validation(self, candidates: Sequence[Candidate], rung: Rung) -> Numbers:
        """Return each candidate's score on the clients' validation data, in points, by seed."""
        return self.numbers(candidates, rung, self.validation)

    def all_targets(
        self, candidates: Sequence[Candidate], rung: Rung
    ) -> dict[Candidate, dict[str, float]]:
        """Return the mean of every target over the seeds of a rung that is finished, by candidate, on validation data.

        NaN where it was not measured with every seed.
        """
        means: dict[Candidate, dict[str, float]] = {}
        for candidate, by_seed in self.train(candidates, rung, self.validation).items():
            means[candidate] = {}
            for name in TARGETS:
                scores = [trained.scores[name] for trained in by_seed.values()]
                complete = len(scores) == len(rung.seeds)
                means[candidate][name] = statistics.fmean(scores) if complete else math.nan
        return means

    def gain(self, winner: Candidate, baseline: Candidate, rung: Rung) -> Gain | None:
        """Return what the winner gains over FedAvg on the test set, which is used nowhere else.

        Both are trained on all samples, as what is deployed will be. None where the winner is FedAvg, or a run of
        either has failed for all but one seed.
        """
        if winner.method == BASELINE:
            return None
        trained = self.train([winner, baseline], rung, {})
        winner_runs = trained[winner]
        baseline_runs = trained[baseline]
        common_seeds = sorted(winner_runs.keys() & baseline_runs.keys())
        if len(common_seeds) < 2:
            return None
        of_winner: dict[int, float] = {}
        of_baseline: dict[int, float] = {}
        pairs: list[Pair] = []
        for seed in common_seeds:
            ours = winner_runs[seed]
            theirs = baseline_runs[seed]
            of_winner[seed] = ours.scores[self.target]
            of_baseline[seed] = theirs.scores[self.target]
            pairs.append((examples(ours, self.target), examples(theirs, self.target)))
        return Gain(of_winner, of_baseline, pairs)

    def numbers(
        self,
        candidates: Sequence[Candidate],
        rung: Rung,
        settings: Mapping[str, Scalar],
    ) -> Numbers:
        """Train the candidates and return their numbers; what failed or diverged has none."""
        numbers: Numbers = {}
        for candidate, by_seed in self.train(candidates, rung, settings).items():
            numbers[candidate] = {
                seed: trained.scores[self.target] for seed, trained in by_seed.items()
            }
        return numbers

    def train(
        self,
        candidates: Sequence[Candidate],
        rung: Rung,
        settings: Mapping[str, Scalar],
    ) -> dict[Candidate, dict[int, Trained]]:
        """Train the candidates and return the finished runs by seed; what failed or diverged is left out."""
        cells: list[Cell] = []
        for rate in by_rate(candidates):
            cells += self.cells(candidates, rate, rung, settings)
        summaries, _ = run_all(
            runs(cells),
            cells,
            self.console,
            at_once=self.jobs,
            workers=min(1, self.jobs),
            warned=self.warned,
        )
        trained: dict[Candidate, dict[int, Trained]] = {candidate: {} for candidate in candidates}
        for cell in cells:
            summary = summaries.get(cell.run.run_id)
            if summary is None:  # the run failed
                continue
            of_cell = trained_of(cell, summary)
            if math.isfinite(of_cell.scores[self.target]):  # else it diverged
                candidate = Candidate(cell.row, cell.run.training.learning_rate)
                trained[candidate][cell.seed] = of_cell
        return trained

    def cells(
        self,
        candidates: Sequence[Candidate],
        rate: float,
        rung: Rung,
        settings: Mapping[str, Scalar],
    ) -> list[Cell]:
        """Return the cells of the candidates of one learning rate."""
        methods = [candidate.method for candidate in candidates if candidate.learning_rate == rate]
        rows = tuple(Row(method, method) for method in methods)
        of_all = {
            **self.settings,
            **settings,
            "learning-rate": rate,
            "rounds": rung.rounds,
            "evaluate-every": 0,
        }
        experiment = Experiment(f"learning rate {rate:g}", "", rows, of_all, seeds=rung.seeds)
        return plan(experiment)


def by_rate(candidates: Sequence[Candidate]) -> list[float]:
    """Return the learning rates of the candidates, each once."""
    return list(dict.fromkeys(candidate.learning_rate for candidate in candidates))
