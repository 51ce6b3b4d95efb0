"""Execution of a race: each training is a run in the results folder, so a race can be resumed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from client_app.state import cores
from data import require
from fedskew.experiments.experiments import Experiment, Row
from fedskew.experiments.plan import Cell, plan, runs
from fedskew.method_selection.candidates import (
    BASELINE,
    Candidate,
    Contenders,
    Entrant,
    settings_of,
)
from fedskew.method_selection.planning import Cost
from fedskew.method_selection.race import Conditions, Results
from fedskew.method_selection.targets import TARGETS, scores_of
from fedskew.method_selection.uncertainty import (
    Floats,
    Measurement,
    by_subject,
    name_of_samples,
    parts_of_auroc,
    parts_of_brier,
    parts_of_recalls,
)
from fedskew.report.unfit_rows import tested_classes
from fedskew.scheduling import Resources
from fedskew.sweep import run_all
from server_app.continuation import can_continue, continue_from, without_rounds
from server_app.lock import FolderBusy
from server_app.predictions import VALIDATION, read_predictions
from server_app.record import ModelNumbers
from server_app.round_selection import selected
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse

OF_RECALLS = ("balanced-accuracy", "accuracy", "site-mean", "worst-site")
"""Targets that are weighted sums of the classes' recalls, where sites have no test samples of their own."""
SHORTEST = 0.05
"""Seconds that a run takes at least beside its rounds."""


@dataclass(frozen=True)
class Trained:
    """One model of a finished run."""

    cell: Cell
    numbers: ModelNumbers
    """On what was evaluated."""
    samples: Mapping[str, Any]
    """Of settings.json; empty where there are too many clients or classes."""

    @property
    def train_C(self) -> list[int] | None:
        """Training samples of each class at all sites together; None where they are not recorded."""
        train_KC = self.samples.get("train")
        if train_KC is None:
            return None
        return [sum(column) for column in zip(*train_KC, strict=True)]

    @property
    def own_tests(self) -> bool:
        """Whether sites have test samples of their own."""
        return bool(self.samples.get("client-test"))

    def scores(self, numbers: ModelNumbers) -> dict[str, float]:
        """Return every target's score."""
        return scores_of(numbers, self.train_C, self.own_tests)

    def evaluated(self, target: str) -> Measurement:
        """Return the measurement of what the run was evaluated on."""
        on_validation = self.cell.run.data.evaluate_on == "validation"
        drawn_anew = self.is_cut and on_validation
        return self.measurement(target, self.numbers, self.cell.deployed, drawn_anew)

    def validated(self, target: str) -> Measurement:
        """Return the measurement on the validation data of a run that was evaluated on the test set."""
        numbers = self.numbers.validation or ModelNumbers()
        predicted = f"{VALIDATION}{self.cell.deployed}"
        return self.measurement(target, numbers, predicted, drawn_anew=self.is_cut)

    def measurement(
        self, target: str, numbers: ModelNumbers, predicted: str, drawn_anew: bool
    ) -> Measurement:
        """Return a measurement, with its samples where the run has kept these.

        Args:
            target: what is measured.
            numbers: of the samples that are measured on.
            predicted: the model's name in the run's predictions.
            drawn_anew: whether every seed has other samples.
        """
        score = self.scores(numbers)[target]
        weights_C = self.weights(target, numbers)
        predictions = read_predictions(RunFolder(self.cell.run.folder), predicted)
        of_recalls = target in OF_RECALLS
        if predictions is None or (of_recalls and weights_C is None):
            variance = self.variance(target, numbers, weights_C)
            if not drawn_anew:
                return Measurement(score, None, "all", variance)
            share = self.cell.run.data.validation_fraction
            return Measurement(score, None, "", variance, overlap=share)
        outputs_NC = predictions.log_probabilities_NC
        labels_N = predictions.labels_N
        if weights_C is not None and of_recalls:
            parts_N = parts_of_recalls(outputs_NC, labels_N, weights_C)
        elif target == "brier":
            parts_N = parts_of_brier(outputs_NC, labels_N)
        else:
            parts_N = parts_of_auroc(outputs_NC, labels_N)
        parts_U = by_subject(parts_N, predictions.subjects_N)
        units_U = predictions.units_U
        if units_U is None:
            return Measurement(score, parts_U, name_of_samples(labels_N))
        return Measurement(score, parts_U, "by number", units_U=units_U)

    @property
    def is_cut(self) -> bool:
        """Whether validation samples are cut off the clients' own, others with every seed."""
        data = self.cell.run.data
        return data.validation_fraction > 0

    def weights(self, target: str, numbers: ModelNumbers) -> Floats | None:
        """Return the weight of each class's recall in a target; None where it is no weighted sum of recalls."""
        is_tested_C = ~np.isnan(np.array(numbers.recall, np.float64))
        train_KC = self.samples.get("train")
        if target == "balanced-accuracy" and is_tested_C.any():
            return np.asarray(is_tested_C / is_tested_C.sum())
        if train_KC is None or (self.own_tests and target != "accuracy"):
            return None
        tested_KC = np.array(train_KC, np.float64) * is_tested_C
        if target == "accuracy":
            return np.asarray(tested_KC.sum(0) / tested_KC.sum())
        tested_KC = tested_KC[tested_KC.sum(1) > 0]
        shares_KC = tested_KC / tested_KC.sum(1, keepdims=True)
        if target == "site-mean":
            return np.asarray(shares_KC.mean(0))
        if target == "worst-site":
            accuracies_K = shares_KC @ np.nan_to_num(np.array(numbers.recall, np.float64))
            return np.asarray(shares_KC[accuracies_K.argmin()])
        return None

    def variance(self, target: str, numbers: ModelNumbers, weights_C: Floats | None) -> float:
        """Return the variance of a score over other samples, in squared points; 0 where nothing is known of it."""
        sizes_C = tested_sizes(numbers)
        if sizes_C is None:
            return 0.0
        samples = float(sizes_C.sum())
        if target == "auroc":
            return (100 * numbers["auroc-error"]) ** 2
        if target == "brier":
            # A mean m of numbers of 0 to b has variance m (b - m) at most.
            most = 1 if len(sizes_C) == 2 else 2
            mean = numbers["brier"]
            return 1e4 * mean * (most - mean) / samples
        if weights_C is not None:
            recall_C = np.nan_to_num(np.array(numbers.recall, np.float64))
            of_recall_C = recall_C * (1 - recall_C) / np.maximum(sizes_C, 1)
            return float(1e4 * np.square(weights_C) @ of_recall_C)
        return self.variance_over_sites(target, numbers)

    def variance_over_sites(self, target: str, numbers: ModelNumbers) -> float:
        """Return the variance of the mean, or the lowest, of the accuracies on the sites' own test samples."""
        sizes_K = np.array(self.samples.get("client-test") or (), np.float64)
        accuracies = numbers.spreads.get("client-accuracy")
        if accuracies is None or len(accuracies.values) != len(sizes_K):
            return 0.0
        accuracy_K = np.nan_to_num(np.array(accuracies.values, np.float64))
        variance_K = accuracy_K * (1 - accuracy_K) / np.maximum(sizes_K, 1)
        if target == "worst-site":
            worst = accuracy_K.argmin()
            return float(1e4 * variance_K[worst])
        sites = len(sizes_K)
        return float(1e4 * variance_K.sum() / sites**2)


def tested_sizes(numbers: ModelNumbers) -> Floats | None:
    """Return how many samples of each class were tested; None where their confusion is not recorded."""
    if numbers.confusion is None:
        return None
    return np.array([sum(row) for row in numbers.confusion], np.float64)


class Runs:
    """Trains the entrants of a race, as runs in the results folder.

    Args:
        contenders: the candidates.
        settings: of all runs.
        validation: the settings that give clients validation data, on which alone the race's runs are measured.
        target: the name of the number that decides.
        console: gets the progress.
        jobs: runs at a time; 0 chooses.
        warned: the warnings about data that are printed already.
    """

    def __init__(
        self,
        contenders: Contenders,
        settings: Mapping[str, Scalar],
        validation: Mapping[str, Scalar],
        target: str,
        console: Console,
        jobs: int = 0,
        warned: set[str] | None = None,
    ) -> None:
        self.contenders = contenders
        self.settings = dict(settings)
        self.validation = dict(validation)
        self.target = target
        self.console = console
        self.jobs = jobs
        self.warned = set() if warned is None else warned
        self.trained: dict[tuple[Candidate, int, int], Trained] = {}
        """The runs on validation data, by candidate, rounds and seed."""
        self.shorter: dict[str, RunSettings] = {}
        """The longest run so far of those that differ in their rounds alone."""

    def conditions(self, minutes: float, race_seed: int = 0) -> Conditions:
        """Return what a race of so many minutes is asked for.

        Raises SettingError where the settings have no rounds.
        """
        baseline = self.contenders.runs[BASELINE]
        rounds = baseline.general.rounds
        require(rounds > 0, "rounds", rounds, "must be at least 1: methods race over rounds")
        rate = baseline.training.learning_rate
        return Conditions(minutes, rounds, rate, self.jobs or cores(), race_seed)

    def guess(self) -> dict[str, Cost]:
        """Return a second a round for every training: the first step measures what they take."""
        return {training: Cost(1.0, SHORTEST) for training in self.contenders.methods}

    def train(
        self, entrants: Sequence[Entrant], rounds: int, seeds: Sequence[int], last: bool
    ) -> Results:
        """Return what all candidates of these trainings give; what failed or diverged is left out."""
        cells_of = {entrant: self.cells(entrant, rounds, seeds, last) for entrant in entrants}
        cells = list(chain.from_iterable(cells_of.values()))
        planned = runs(cells)
        for run in planned:
            self.take_over(run)
        summaries, _ = run_all(
            planned,
            cells,
            self.console,
            Resources(jobs=self.jobs, workers=min(1, self.jobs)),
            warned=self.warned,
        )
        validated: dict[Candidate, dict[int, Measurement]] = {}
        tested: dict[Candidate, dict[int, Measurement]] = {}
        for cell in cells:
            summary = summaries.get(cell.run.run_id)
            if summary is None:  # the run failed
                continue
            candidate = Candidate(cell.row, cell.run.training.learning_rate)
            trained = trained_of(cell, summary)
            measurement = trained.evaluated(self.target)
            if not math.isfinite(measurement.score):  # it diverged
                continue
            if last:
                tested.setdefault(candidate, {})[cell.seed] = measurement
                validated.setdefault(candidate, {})[cell.seed] = trained.validated(self.target)
            else:
                self.trained[candidate, rounds, cell.seed] = trained
                validated.setdefault(candidate, {})[cell.seed] = measurement
        diverged: dict[Candidate, list[int]] = {}
        for cell in cells:
            if RunFolder(cell.run.folder).divergence() is not None:
                candidate = Candidate(cell.row, cell.run.training.learning_rate)
                diverged.setdefault(candidate, []).append(cell.seed)
        costs: dict[str, Cost] = {}
        for entrant, of_entrant in cells_of.items():
            cost = cost_of_runs(runs(of_entrant))
            if cost is not None:
                costs[entrant.training] = cost
        return Results(validated, tested, costs, diverged)

    def take_over(self, run: RunSettings) -> None:
        """Let a run continue the longest one before it that has fewer rounds, where its numbers stay the same."""
        settings = without_rounds(run)
        shorter = self.shorter.get(settings)
        if shorter is not None and can_continue(run, shorter):
            # Another process at work there, as of a second race, trains these rounds itself.
            with suppress(FolderBusy):
                continue_from(run, shorter)
        if shorter is None or shorter.general.rounds < run.general.rounds:
            self.shorter[settings] = run

    def cells(self, entrant: Entrant, rounds: int, seeds: Sequence[int], last: bool) -> list[Cell]:
        """Return the cells of a training, one for each of its candidates and seeds."""
        rows = tuple(row_of(name) for name in self.contenders.methods[entrant.training])
        of_all: dict[str, Scalar] = {
            **self.settings,
            **self.validation,
            "learning-rate": entrant.learning_rate,
            "rounds": rounds,
            "evaluate-every": 0,
        }
        if not last:
            of_all["evaluate-on"] = "validation"
        name = f"learning rate {entrant.learning_rate:g}"
        return plan(Experiment(name, "", rows, of_all, seeds=tuple(seeds)))

    def all_targets(
        self, candidates: Sequence[Candidate], rounds: int
    ) -> dict[str, dict[str, float]]:
        """Return the mean of every target on validation data over a candidate's seeds, by candidate."""
        means: dict[str, dict[str, float]] = {}
        for candidate in candidates:
            of_candidate = []
            for (other, of_rounds, _), trained in self.trained.items():
                if other == candidate and of_rounds == rounds:
                    of_candidate.append(trained.scores(trained.numbers))
            means[str(candidate)] = {}
            for name in TARGETS:
                scores = [of_run[name] for of_run in of_candidate]
                means[str(candidate)][name] = math.fsum(scores) / len(scores)
        return means

    def tested(self, candidate: Candidate) -> int:
        """Return how many classes the validation data have."""
        recalls = []
        for (other, _, _), trained in self.trained.items():
            if other == candidate:
                recalls.append(trained.numbers.recall)
        return tested_classes(recalls)


def row_of(name: str) -> Row:
    """Return a candidate's row by its name."""
    settings = settings_of(name)
    return Row(name, str(settings.pop("method")), settings)


def trained_of(cell: Cell, summary: Mapping[str, Any]) -> Trained:
    """Return one model of a finished run by its summary."""
    samples = samples_of(str(cell.run.folder))
    return Trained(cell, selected(summary, cell.deployed), samples)


@cache
def samples_of(folder: str) -> Mapping[str, Any]:
    """Return what a run's settings.json has of its samples."""
    return RunFolder(Path(folder)).origin().get("samples") or {}


def cost_of_runs(finished: Sequence[RunSettings]) -> Cost | None:
    """Return the seconds of a run, a mean over runs, by their records; None where there are none.

    The rounds' time is their median. What the run took beside, as the evaluation and the heads after the last round,
    counts once.
    """
    every_round: list[float] = []
    once: list[float] = []
    for run in finished:
        seconds = [record.seconds.round for record in RunFolder(run.folder).rounds()]
        if seconds:
            usual = statistics.median(seconds[:-1] or seconds)
            every_round.append(usual)
            once.append(max(SHORTEST, math.fsum(seconds) - len(seconds) * usual))
    if not every_round:
        return None
    return Cost(statistics.fmean(every_round), statistics.fmean(once))


def with_continued(contenders: Contenders, settings: Mapping[str, Scalar]) -> Contenders:
    """Return the contenders with the trainings whose longer runs continue the shorter ones.

    `settings` are those of all runs. A cosine over the run's rounds is another schedule in each rung.
    """
    continued = set()
    for training, methods in contenders.methods.items():
        run = contenders.runs[methods[0]]
        first = parse({**settings, **settings_of(methods[0]), "rounds": 1})
        longer = replace(run, general=replace(run.general, rounds=run.general.rounds + 1))
        if can_continue(longer, first):
            continued.add(training)
    return replace(contenders, continued=frozenset(continued))
