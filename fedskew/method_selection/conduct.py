"""Execution of a race: each candidate's training is a run in the results folder, so a race can be resumed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from fedskew.experiments.experiments import Experiment, Row
from fedskew.experiments.plan import Cell, plan, runs
from fedskew.method_selection.race import BASELINE, Candidate, Gain, Rung
from fedskew.report.inference import Pair, Strata, strata
from fedskew.report.results import RunRecords, SeedResult
from fedskew.sweep import run_all
from server_app.round_selection import points_of, selected
from server_app.run_settings import Scalar

Numbers = dict[Candidate, dict[int, float]]
METRIC = "balanced-accuracy"


@dataclass(frozen=True)
class Trained:
    """A finished run of a race."""

    cell: Cell
    number: float
    """METRIC in percent, in the last round."""


def examples(trained: Trained) -> Strata | None:
    """Return the test examples behind a run's number; None where its records do not have them."""
    run = RunRecords.read(trained.cell.run)
    points = points_of(run.records, trained.cell.deployed)
    return strata(SeedResult(trained.cell, run, points), "last", METRIC)


class Runs:
    """Scores candidates by training them.

    Args:
        settings: of all runs.
        validation: the settings that give clients validation data, on which alone the race's runs are measured.
        console: gets the progress.
        jobs: runs at a time; 0 chooses.
        warned: the warnings about data that are printed already.
    """

    def __init__(
        self,
        settings: Mapping[str, Scalar],
        validation: Mapping[str, Scalar],
        console: Console,
        jobs: int = 0,
        warned: set[str] | None = None,
    ) -> None:
        self.settings = dict(settings)
        self.console = console
        self.jobs = jobs
        self.warned = set() if warned is None else warned
        self.validation = {**validation, "evaluate-on": "validation"}

    def on_validation(self, candidates: Sequence[Candidate], rung: Rung) -> Numbers:
        """Return each candidate's balanced accuracy on the clients' validation data, in percent, by seed."""
        return self.numbers(candidates, rung, self.validation)

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
            of_winner[seed] = ours.number
            of_baseline[seed] = theirs.number
            pairs.append((examples(ours), examples(theirs)))
        return Gain(of_winner, of_baseline, pairs)

    def numbers(
        self,
        candidates: Sequence[Candidate],
        rung: Rung,
        settings: Mapping[str, Scalar],
    ) -> Numbers:
        """Train the candidates and return their numbers; what failed or diverged has none."""
        trained = self.train(candidates, rung, settings)
        numbers: Numbers = {}
        for candidate, by_seed in trained.items():
            numbers[candidate] = {seed: run.number for seed, run in by_seed.items()}
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
            value = selected(summary, cell.deployed)[METRIC]
            if math.isfinite(value):  # else it diverged
                candidate = Candidate(cell.row, cell.run.training.learning_rate)
                trained[candidate][cell.seed] = Trained(cell, 100 * value)
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
