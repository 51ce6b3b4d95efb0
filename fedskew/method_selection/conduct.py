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
    """What scores candidates by training them, on settings that they have in common.

    `kept` are the settings by which the clients have validation data, on which alone the race's runs are measured.
    """

    def __init__(
        self,
        settings: Mapping[str, Scalar],
        kept: Mapping[str, Scalar],
        console: Console,
        jobs: int = 0,
        warned: set[str] | None = None,
    ) -> None:
        self.settings = dict(settings)
        self.console = console
        self.jobs = jobs
        self.warned = set() if warned is None else warned
        self.kept = {**kept, "evaluate-on": "validation"}

    def on_validation(self, candidates: Sequence[Candidate], rung: Rung) -> Numbers:
        """Return each candidate's balanced accuracy on the clients' validation data, in percent, by seed."""
        return self.numbers(candidates, rung, self.kept)

    def gain(self, winner: Candidate, baseline: Candidate, rung: Rung) -> Gain | None:
        """Return what the winner has over FedAvg on the test set: the one time that it is looked at.

        Both are trained on all samples, as what is deployed will be. None where the winner is FedAvg, or a run of
        either has failed for all but one seed.
        """
        if winner.method == BASELINE:
            return None
        trained = self.train([winner, baseline], rung, {})
        both = sorted(trained[winner].keys() & trained[baseline].keys())
        if len(both) < 2:
            return None
        pairs: list[Pair] = []
        for seed in both:
            ours, theirs = trained[winner][seed], trained[baseline][seed]
            pairs.append((examples(ours), examples(theirs)))
        of_winner = {seed: trained[winner][seed].number for seed in both}
        of_baseline = {seed: trained[baseline][seed].number for seed in both}
        return Gain(of_winner, of_baseline, pairs)

    def numbers(
        self,
        candidates: Sequence[Candidate],
        rung: Rung,
        settings: Mapping[str, Scalar],
    ) -> Numbers:
        """Train the candidates and return their numbers; what failed or diverged has none."""
        trained = self.train(candidates, rung, settings)
        return {
            candidate: {seed: run.number for seed, run in by_seed.items()}
            for candidate, by_seed in trained.items()
        }

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
            if (summary := summaries.get(cell.run.run_id)) is None:
                continue
            value = selected(summary, cell.deployed)[METRIC]
            if math.isfinite(value):
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
        rows = tuple(Row(c.method, c.method) for c in candidates if c.learning_rate == rate)
        stated = {
            **self.settings,
            **settings,
            "learning-rate": rate,
            "rounds": rung.rounds,
            "evaluate-every": 0,
        }
        return plan(Experiment(f"learning rate {rate:g}", "", rows, stated, seeds=rung.seeds))


def by_rate(candidates: Sequence[Candidate]) -> list[float]:
    """Return the learning rates of the candidates, each once."""
    return list(dict.fromkeys(candidate.learning_rate for candidate in candidates))
