"""An anytime race over trainings with equal budgets: what is clearly behind is dropped, time that is left buys seeds.

It follows successive halving (Jamieson and Talwalkar, 2016), with cuts by standard error. Nothing here trains: a
`Trainer` does, so that a race can be run on drawn scores and a clock of its own.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fedskew.method_selection import planning
from fedskew.method_selection.candidates import BASELINE, Candidate, Contenders, Entrant
from fedskew.method_selection.conclusion import Ended
from fedskew.method_selection.planning import AIM, LEAST_LAST, Costs, Entry, full_seeds
from fedskew.method_selection.race_log import FIRST, FULL, LAST, PACE, RATES, SEEDS, RaceLog, Step
from fedskew.method_selection.standing import (
    Measurements,
    StepResult,
    best_third,
    best_without_uploads,
    cut,
    mean_of,
    one_rate_each,
    rank,
    shown,
)
from fedskew.method_selection.uncertainty import Difference, Measurement, difference
from server_app.continuation import rounds_taken_over

RATE_FACTORS = (1 / 3, 3.0)
"""The other learning rates of a race, of the settings' one."""
FIRST_LAST_SEED, SEEDS_OF_A_RACE = 100, 10_000
"""Race seed r trains with the seeds from 10000 r on; those from 10000 r + 100 on compare the winner with FedAvg."""
MOST_SEEDS, MOST_LAST_SEEDS = 90, 9_000
FULL_SHARE, RATES_SHARE = 0.6, 0.5
"""Of the time that is left beside the last comparison, what the first full runs and the other rates may take."""

RaceRun = tuple[Entrant, int, int, bool]
"""A run of a race: entrant, rounds, seed, and whether it is of the last comparison."""


@dataclass(frozen=True)
class Results:
    """What a step's runs gave."""

    validated: Measurements
    """On validation data."""
    tested: Measurements = field(default_factory=dict)
    """On the test set; of the last comparison alone."""
    costs: Costs = field(default_factory=dict)
    """Seconds of a run, by training."""
    diverged: Mapping[Candidate, Sequence[int]] = field(default_factory=dict)
    """The seeds in which candidates diverged."""


class Trainer(Protocol):
    """Trains what a race asks for."""

    def train(
        self, entrants: Sequence[Entrant], rounds: int, seeds: Sequence[int], last: bool
    ) -> Results:
        """Return what all candidates of these trainings give. `last` measures on the test set as well."""


@dataclass(frozen=True)
class Conditions:
    """What a race is asked for."""

    minutes: float
    """That it may take."""
    rounds: int
    """Of the settings."""
    learning_rate: float
    """Of the settings."""
    at_once: int = 1
    """Runs at a time."""
    race_seed: int = 0
    """Another one trains with other seeds."""


class Race:
    """A race.

    Args:
        contenders: the candidates.
        conditions: what it is asked for.
        guess: seconds of a run by training, FedAvg's first; after the first run their ratios alone count.
        trainer: trains.
        log: the steps so far.
        announce: gets what enters.
        report: gets how the candidates stand after a step.
        clock: seconds.
        began: when the command began, by the same clock.
    """

    def __init__(
        self,
        contenders: Contenders,
        conditions: Conditions,
        guess: Costs,
        trainer: Trainer,
        log: RaceLog,
        announce: Callable[[Entry], None] = lambda entry: None,
        report: Callable[[StepResult], None] = lambda standing: None,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self.contenders = contenders
        self.conditions = conditions
        self.learning_rate = conditions.learning_rate
        self.rounds = conditions.rounds
        self.at_once = conditions.at_once
        self.trainer = trainer
        self.log = log
        self.announce = announce
        self.report = report
        self.clock = clock
        self.first_seed = SEEDS_OF_A_RACE * conditions.race_seed
        self.mark = clock() if began is None else began
        self.standings: list[StepResult] = []
        self.diverged: dict[Candidate, set[int]] = {}
        self.steps_done = 0
        if not log.guess:
            log.guess = dict(guess)
        self.costs = dict(log.guess)

    # ---- time --------------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """The seconds that are planned."""
        return AIM * 60 * self.conditions.minutes

    @property
    def left(self) -> float:
        """The seconds that are left of these."""
        return self.seconds - self.log.used

    @property
    def factor(self) -> float:
        """By how much steps have taken longer than their costs say; the first run, which starts processes, aside."""
        ended = [
            step for step in self.log.steps if step.purpose != PACE and step.seconds is not None
        ]
        measured = [step.seconds for step in ended if step.seconds is not None]
        return planning.correction([step.predicted for step in ended], measured)

    def cost(self, entrant: Entrant, rounds: int) -> float:
        """Return the seconds that a run of an entrant adds to the race."""
        return self.costs[entrant.training].of(rounds, self.factor / self.at_once)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def seeds(self, number: int, after: int = 0) -> tuple[int, ...]:
        """Return so many of the race's seeds, after the first ones."""
        start = self.first_seed + after
        return tuple(range(start, start + number))

    def step(
        self,
        purpose: str,
        entrants: Sequence[Entrant],
        rounds: int,
        seeds: Sequence[int],
        without_time: Sequence[str] = (),
    ) -> tuple[Step, Results]:
        """Run a step, or the one that the log has here in its stead."""
        index = self.steps_done
        fresh = index == len(self.log.steps)
        if fresh:
            wanted = Step(purpose, tuple(entrants), rounds, tuple(seeds))
            wanted.predicted = self.by_costs(wanted, self.costs)
            wanted.without_time = tuple(without_time)
            self.log.steps.append(wanted)
            self.log.save()
        step = self.log.steps[index]
        results = self.trainer.train(
            step.entrants, step.rounds, step.seeds, last=step.purpose == LAST
        )
        for candidate, seeds_of_candidate in results.diverged.items():
            self.diverged.setdefault(candidate, set()).update(seeds_of_candidate)
        if step.seconds is None:
            if step.purpose in (PACE, FIRST):
                step.costs = dict(results.costs)
            elapsed = self.clock() - self.mark
            # What a step took before it was killed is not known.
            by_costs = self.factor * self.by_costs(step, {**self.costs, **step.costs})
            step.seconds = elapsed if fresh else max(elapsed, by_costs)
        self.costs.update(step.costs)
        self.mark = self.clock()
        self.steps_done += 1
        self.log.save()
        return step, results

    def by_costs(self, step: Step, costs: Costs) -> float:
        """Return the seconds of a step by costs, uncorrected.

        Runs of earlier steps are not repeated, and their rounds are not where a longer run continues them.
        """
        earlier = set[RaceRun]()
        for other in self.log.steps[: self.steps_done]:
            earlier |= runs_of(other)
        seconds = 0.0
        for run in sorted(runs_of(step) - earlier):
            entrant, rounds, _, _ = run
            seconds += costs[entrant.training].of(rounds - self.rounds_spared(run, earlier))
        return seconds / self.at_once

    def rounds_spared(self, run: RaceRun, earlier: Collection[RaceRun]) -> int:
        """Return how many rounds a run takes over from an earlier one with fewer rounds; 0 where it starts anew."""
        entrant, rounds, seed, is_last = run
        if entrant.training not in self.contenders.continued:
            return 0
        shorter = [
            other_rounds
            for other, other_rounds, other_seed, of_last in earlier
            if (other, other_seed, of_last) == (entrant, seed, is_last) and other_rounds < rounds
        ]
        return rounds_taken_over(max(shorter)) if shorter else 0

    def all_rounds(self) -> dict[str, int]:
        """Return for result.json how many rounds the race's runs have together, and how many were taken over."""
        earlier = set[RaceRun]()
        together = spared = 0
        for step in self.log.steps[: self.steps_done]:
            fresh = runs_of(step) - earlier
            together += step.rounds * len(fresh)
            spared += sum(self.rounds_spared(run, earlier) for run in fresh)
            earlier |= fresh
        return {"all-rounds": together, "rounds-taken-over": spared}

    def stand(
        self, step: Step, measured: Measurements, candidates: Iterable[Candidate]
    ) -> list[Candidate]:
        """Note how candidates stand, and return them, best first; those with a run that failed are left out.

        Raises RuntimeError where none has finished.
        """
        ranked = rank(measured, candidates)
        means = {candidate: mean_of(measured[candidate]) for candidate in ranked}
        standing = StepResult(step, means)
        self.standings.append(standing)
        self.report(standing)
        if not ranked:
            reason = "no run of the race has finished: each one's reason stands in the overview"
            if self.diverged:
                reason = "no run of the race has finished, and these diverged: "
                reason += ", ".join(map(str, sorted(self.diverged)))
            raise RuntimeError(reason)
        return ranked

    # ---- the race ----------------------------------------------------------------------------------------------------

    def run(self) -> Ended:
        """Run the race, or what is left of it."""
        entry = self.enter()
        self.announce(entry)
        own_rate = [Entrant(name, self.learning_rate) for name in entry.taken]
        seeds = self.seeds(entry.seeds)
        first, results = self.step(FIRST, own_rate, planning.first_rounds(entry.rounds), seeds)
        candidates = self.contenders.candidates_of(first.entrants)
        ranked = self.stand(first, results.validated, candidates)

        measured, full = self.full_runs(entry, ranked, results.validated)
        self.other_rates(full, measured)
        finalists = self.more_seeds(full.rounds, measured)
        winner = finalists[0]
        equals = tuple(cut(finalists, measured, 1)[1:])
        baseline = next((one for one in finalists if one.method == BASELINE), None)
        without_uploads = best_without_uploads(finalists, self.contenders.uploads_nothing)
        validated = tested = None
        gains: dict[int, float] = {}
        if baseline is not None and winner != baseline:
            validated, tested, gains = self.last(full.rounds, winner, baseline)
        return Ended(
            standings=self.standings,
            rounds=full.rounds,
            winner=winner,
            baseline=baseline,
            shown=shown(self.standings[-1].means, finalists),
            without_uploads=without_uploads,
            equals=equals,
            validated=validated,
            tested=tested,
            gain_by_seed=gains,
            diverged={one: sorted(seeds) for one, seeds in sorted(self.diverged.items())},
        )

    def enter(self) -> Entry:
        """Return which trainings enter, by the time of a run of FedAvg."""
        baseline = Entrant(BASELINE, self.learning_rate)
        rounds = planning.first_rounds(self.rounds)
        guessed = self.log.guess[BASELINE]
        while rounds > 1 and guessed.of(rounds) > self.seconds / 4:
            rounds = math.ceil(rounds / 2)
        pace, _ = self.step(PACE, [baseline], rounds, self.seeds(1))
        known = self.costs[BASELINE]
        before = guessed.of(pace.rounds)
        ratio = known.of(pace.rounds) / before if before else 1.0
        self.costs = {**planning.scaled(self.log.guess, ratio), BASELINE: known}
        if not self.log.entry:
            costs = planning.scaled(self.costs, 1 / self.at_once)
            minutes = self.conditions.minutes
            entry = planning.entry(costs, self.contenders.always, self.rounds, self.left, minutes)
            self.log.entry = asdict(entry)
            self.log.save()
        saved: dict[str, Any] = self.log.entry
        return Entry(
            saved["rounds"],
            saved["seeds"],
            tuple(saved["taken"]),
            tuple(saved["left_out"]),
            tuple(saved["at_margin"]),
        )

    def reserved(self, entrants: Sequence[Entrant], rounds: int) -> float:
        """Return the seconds to keep for the last comparison."""
        baseline = [entrant for entrant in entrants if entrant.training == BASELINE]
        baseline_first = [*baseline, *entrants]
        costs = [self.cost(entrant, rounds) for entrant in baseline_first]
        return planning.reserve(costs, self.seconds)

    def smallest(self, entrants: Sequence[Entrant], rounds: int) -> float:
        """Return the seconds of one seed of entrants, FedAvg the first, and of the shortest last comparison."""
        costs = [self.cost(entrant, rounds) for entrant in entrants]
        return sum(costs) + LEAST_LAST * planning.pair_cost(costs)

    def full_runs(
        self, entry: Entry, ranked: Sequence[Candidate], measured: Measurements
    ) -> tuple[dict[Candidate, dict[int, Measurement]], Step]:
        """Train what stays for all rounds, and return its measurements."""
        of_baseline, slow = [], []
        for candidate in ranked:
            training = self.contenders.training_of(candidate.method)
            if training == BASELINE:
                of_baseline.append(candidate)
            if training in self.contenders.slow:
                slow.append(candidate)
        always = [*of_baseline, *slow]
        wanted = self.entrants([*always, *best_third(ranked, measured)])
        # Where FedAvg has failed, the best one is certain.
        certain = max(1, len(self.entrants(always)))

        rounds = entry.rounds
        while rounds > 1 and self.smallest(wanted[:certain], rounds) > self.left:
            rounds -= 1  # the first rung took longer than its costs said

        budget = FULL_SHARE * (self.left - self.reserved(wanted, rounds))
        costs = [self.cost(entrant, rounds) for entrant in wanted]
        number = full_seeds(costs, certain, budget)
        costs = [number * cost for cost in costs]
        chosen, without_time = within_budget(wanted, costs, budget, certain)

        full, results = self.step(FULL, chosen, rounds, self.seeds(number), without_time)
        candidates = self.contenders.candidates_of(full.entrants)
        self.stand(full, results.validated, candidates)
        measurements = {one: dict(by_seed) for one, by_seed in results.validated.items()}
        return measurements, full

    def other_rates(self, full: Step, measured: dict[Candidate, dict[int, Measurement]]) -> None:
        """Train the best with other learning rates, where the time is enough for a second seed of what there is."""
        ranked = rank(measured, measured)
        of_baseline = [one for one in ranked if one.method == BASELINE]
        best = self.entrants([*of_baseline, *best_third(ranked, measured)])
        wanted = []
        for entrant in best:
            for factor in RATE_FACTORS:
                three_digits = f"{factor * self.learning_rate:.3g}"
                wanted.append(Entrant(entrant.training, float(three_digits)))

        rounds = full.rounds
        beside_the_last = self.left - self.reserved(full.entrants, rounds)
        budget = RATES_SHARE * beside_the_last
        number = len(full.seeds)
        costs = [number * self.cost(entrant, rounds) for entrant in wanted]
        chosen, without_time = within_budget(wanted, costs, budget, certain=0)
        worthwhile = len(chosen) > 0 and number > 1
        if not self.is_next(RATES, wanted=worthwhile):
            return

        step, results = self.step(RATES, chosen, rounds, full.seeds, without_time)
        for candidate, by_seed in results.validated.items():
            measured[candidate] = dict(by_seed)
        self.stand(step, measured, measured)

    def is_next(self, purpose: str, wanted: bool) -> bool:
        """Return whether a step of this purpose comes: as the log says, and where it has ended, as is wanted."""
        if self.steps_done < len(self.log.steps):
            return self.log.steps[self.steps_done].purpose == purpose
        return wanted

    def more_seeds(
        self, rounds: int, measured: dict[Candidate, dict[int, Measurement]]
    ) -> list[Candidate]:
        """Train those who can still win with more seeds, while time is left, and return them, best first."""
        ranked = one_rate_each(rank(measured, measured))
        while True:
            finalists = self.finalists(ranked, measured)
            entrants = self.entrants(finalists)
            have = len(measured[finalists[0]])
            number = self.seeds_to_add(finalists, entrants, measured, rounds)
            if not self.is_next(SEEDS, wanted=number > 0):
                return finalists
            seeds = self.seeds(number, after=have)
            step, results = self.step(SEEDS, entrants, rounds, seeds)
            for candidate in finalists:
                measured[candidate].update(results.validated.get(candidate, {}))
            ranked = self.stand(step, measured, finalists)

    def seeds_to_add(
        self,
        finalists: Sequence[Candidate],
        entrants: Sequence[Entrant],
        measured: Measurements,
        rounds: int,
    ) -> int:
        """Return how many more seeds the finalists get; 0 ends the race."""
        winner = finalists[0]
        have = len(measured[winner])
        certain = self.certain(finalists)
        rivals = [one for one in finalists[1:] if one not in certain]
        budget = self.left
        if winner.method != BASELINE:
            if not rivals and have > 1:
                return 0  # one can win: the time is worth more in its comparison with FedAvg
            budget -= self.reserved(entrants, rounds)
        per_seed = sum(self.cost(entrant, rounds) for entrant in entrants)
        return planning.seeds_that_fit(per_seed, budget, have, MOST_SEEDS)

    def certain(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Return those who stay whatever their scores: the best of FedAvg, and of those that upload nothing."""
        of_baseline = (one for one in ranked if one.method == BASELINE)
        without_uploads = best_without_uploads(ranked, self.contenders.uploads_nothing)
        return [one for one in (next(of_baseline, None), without_uploads) if one is not None]

    def finalists(self, ranked: Sequence[Candidate], measured: Measurements) -> list[Candidate]:
        """Return those who can still win, best first, and those who stay in any case."""
        kept = cut(ranked, measured, 1)
        staying = [*kept, *self.certain(ranked)]
        return [candidate for candidate in ranked if candidate in staying]

    def last(
        self, rounds: int, winner: Candidate, baseline: Candidate
    ) -> tuple[Difference | None, Difference | None, dict[int, float]]:
        """Compare the winner with FedAvg, by seeds that the race has not seen, as many as there is time for."""
        entrants = self.entrants([baseline, winner])
        validated: dict[Candidate, dict[int, Measurement]] = {winner: {}, baseline: {}}
        tested: dict[Candidate, dict[int, Measurement]] = {winner: {}, baseline: {}}
        have = 0
        while True:
            per_seed = sum(self.cost(entrant, rounds) for entrant in entrants)
            number = planning.seeds_that_fit(
                per_seed, self.left, have or LEAST_LAST, MOST_LAST_SEEDS - have
            )
            number = max(number, LEAST_LAST - have)
            if not self.is_next(LAST, wanted=number > 0):
                break
            seeds = self.seeds(number, after=FIRST_LAST_SEED + have)
            step, results = self.step(LAST, entrants, rounds, seeds)
            have += len(step.seeds)
            for candidate in (winner, baseline):
                validated[candidate].update(results.validated.get(candidate, {}))
                tested[candidate].update(results.tested.get(candidate, {}))
        on_validation = difference(validated[winner], validated[baseline])
        on_test = difference(tested[winner], tested[baseline])
        gains = {}
        for seed in sorted(tested[winner].keys() & tested[baseline].keys()):
            gains[seed] = tested[winner][seed].score - tested[baseline][seed].score
        if len(gains) < 2:
            return None, None, gains
        return on_validation, on_test, gains

    def entrants(self, candidates: Iterable[Candidate]) -> list[Entrant]:
        """Return the trainings of candidates, each once, in their order."""
        return list(
            dict.fromkeys(self.contenders.entrant_of(candidate) for candidate in candidates)
        )


def runs_of(step: Step) -> set[RaceRun]:
    """Return the runs of a step."""
    is_last = step.purpose == LAST
    runs = set[RaceRun]()
    for entrant in step.entrants:
        for seed in step.seeds:
            runs.add((entrant, step.rounds, seed, is_last))
    return runs


def within_budget(
    entrants: Sequence[Entrant], costs: Sequence[float], budget: float, certain: int
) -> tuple[list[Entrant], list[str]]:
    """Return the entrants that the budget is enough for, and the names of those that have no time.

    Args:
        entrants: in the order in which they are taken.
        costs: the seconds of each.
        budget: seconds for all.
        certain: how many of the first ones are taken in any case.
    """
    choice = planning.fitting(costs, range(certain), budget)
    chosen = [entrants[index] for index in choice.taken]
    without_time = [str(entrants[index]) for index in choice.left_out]
    return chosen, without_time
