"""The race on drawn scores, with invented costs and a clock of its own: nothing trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedskew.method_selection.candidates import Candidate, Contenders, Entrant
from fedskew.method_selection.conclusion import NOBODY, Ended, conclusion
from fedskew.method_selection.planning import Cost
from fedskew.method_selection.race import Conditions, Race, Results
from fedskew.method_selection.race_log import LAST, RaceLog
from fedskew.method_selection.standing import best_third, cut, one_rate_each, rank, shown
from fedskew.method_selection.uncertainty import Difference, Measurement

METHODS = {
    "fedavg": ("fedavg", "ccvr"),
    "scaffold": ("scaffold", "scaffold+ccvr"),
    "fedshift": ("fedshift",),
    "fedlc": ("fedlc",),
    "fedbn": ("fedbn",),
    "creff": ("creff",),
}
QUIET = ("fedavg", "fedlc", "fedbn")
COSTS = {name: Cost(0.25, 0.125) for name in METHODS} | {"creff": Cost(8.0, 1.0)}
MEANS = {"fedavg": 50.0, "ccvr": 60.0, "scaffold": 52.0, "scaffold+ccvr": 64.0, "fedshift": 55.0,
         "fedlc": 51.0, "fedbn": 48.0, "creff": 58.0}  # fmt: skip
RATE = 0.0625


class KilledError(Exception):
    """The process is gone."""


class DrawnContenders(Contenders):
    """The methods above, without settings of runs."""

    @property
    def uploads_nothing(self) -> frozenset[str]:
        return frozenset(QUIET)


def contenders(slow: Sequence[str] = ()) -> Contenders:
    return DrawnContenders(
        METHODS,
        {},
        always=("fedavg", *slow),
        slow=tuple(slow),
    )


@dataclass
class Machine:
    """Draws scores, and charges a clock for every run that it has not finished yet."""

    noise: float = 2.0
    costs: Mapping[str, Cost] = field(default_factory=lambda: COSTS)
    at_once: int = 1
    """Runs at a time."""
    jitter: float = 0.0
    """Up to this share more or less, run by run."""
    startup: float = 0.0
    """Seconds before the first run."""
    rounds: int = 12
    lives: int = 10**9
    """Runs until it is killed."""
    now: float = 0.0
    finished: set[tuple[Entrant, int, int, bool]] = field(default_factory=set)
    failing: tuple[str, ...] = ()
    failing_last: tuple[str, ...] = ()
    """Trainings of which the first run of the last comparison alone succeeds."""

    def clock(self) -> float:
        return self.now

    def train(
        self, entrants: Sequence[Entrant], rounds: int, seeds: Sequence[int], last: bool
    ) -> Results:
        validated: dict[Candidate, dict[int, Measurement]] = {}
        tested: dict[Candidate, dict[int, Measurement]] = {}
        if not self.finished:
            self.now += self.startup
        for entrant in entrants:
            for seed in seeds:
                self.charge(entrant, rounds, seed, last)
                if entrant.training in self.failing:
                    continue
                if last and entrant.training in self.failing_last and seed != 100:
                    continue
                for method in METHODS[entrant.training]:
                    candidate = Candidate(method, entrant.learning_rate)
                    on = self.drawn(candidate, rounds, seed, "validation")
                    validated.setdefault(candidate, {})[seed] = on
                    if last:
                        on_test = self.drawn(candidate, rounds, seed, "test")
                        tested.setdefault(candidate, {})[seed] = on_test
        costs = {entrant.training: self.costs[entrant.training] for entrant in entrants}
        return Results(validated, tested, costs)

    def charge(self, entrant: Entrant, rounds: int, seed: int, last: bool) -> None:
        run = (entrant, rounds, seed, last)
        if run in self.finished:
            return
        if not self.lives:
            raise KilledError
        self.lives -= 1
        draws = np.random.default_rng([seed, rounds, len(self.finished)])
        factor = (1 + self.jitter * draws.uniform(-1, 1)) / self.at_once
        self.now += self.costs[entrant.training].of(rounds, factor)
        self.finished.add(run)

    def drawn(self, candidate: Candidate, rounds: int, seed: int, where: str) -> Measurement:
        key = [seed, rounds, *f"{candidate}{where}".encode()]
        draws = np.random.default_rng(key)
        mean = MEANS[candidate.method] - 3 * abs(candidate.learning_rate != RATE)
        return Measurement(mean + self.noise * draws.normal())


def race(
    machine: Machine,
    folder: Path,
    minutes: float = 1.0,
    slow: Sequence[str] = (),
    guess: Mapping[str, Cost] | None = None,
) -> tuple[Ended, RaceLog]:
    """Run a race, or what is left of it."""
    log = RaceLog(folder / "plan.json")
    conditions = Conditions(minutes, machine.rounds, RATE, machine.at_once, 0)
    running = Race(contenders(slow), conditions, guess or COSTS, machine, log, clock=machine.clock)
    return running.run(), log


@pytest.mark.parametrize(
    ("minutes", "size", "first_rounds"), [(1, 0.1, 4), (1, 4.0, 1), (3, 1.0, 4), (10, 0.5, 4)]
)
def test_a_race_uses_its_minutes_and_no_more(
    minutes: float, size: float, first_rounds: int, tmp_path: Path
) -> None:
    """Costs that vary by a fifth from run to run, and a guess that is seven times too long."""
    costs = {name: Cost(size * cost.every_round, size * cost.once) for name, cost in COSTS.items()}
    guess = {name: Cost(7 * cost.every_round, 7 * cost.once) for name, cost in costs.items()}
    machine = Machine(costs=costs, jitter=0.2, startup=4.0)
    _, log = race(machine, tmp_path, minutes, guess=guess)
    assert log.steps[0].rounds == first_rounds, "fewer where a third might take too long"
    assert 0.8 <= machine.now / (60 * minutes) <= 1.1


SCHEDULES = {
    "one run at a time": (
        (1, 1, ()),
        "pace 1x4x1, first 5x4x2, full 2x12x2, rates 1x12x2, last 2x12x3, last 2x12x1",
    ),
    # A third method has time for a full run, all get four seeds there, and eight compare at the end.
    "two runs at a time": (
        (1, 2, ()),
        "pace 1x4x1, first 5x4x2, full 3x12x4, rates 1x12x4, last 2x12x3, last 2x12x3, last 2x12x2",
    ),
    # No time for a second training in full: FedAvg's own, which deploys CCVR as well, decides.
    "half a minute": (
        (0.5, 1, ()),
        "pace 1x4x1, first 5x4x1, full 1x12x1, last 1x12x3, last 1x12x3",
    ),
    # CReFF must enter, of which all rounds take 97 s: there is time for one.
    "a slow method": (
        (0.9, 1, ("creff",)),
        "pace 1x4x1, first 6x1x1, full 2x1x1, seeds 1x1x1, last 1x1x3, last 1x1x3, last 1x1x6, "
        "last 1x1x12, last 1x1x24, last 1x1x48, last 1x1x7",
    ),
}
"""Minutes, runs at a time and slow methods of a race, and its steps: trainings x rounds x seeds of each."""


@pytest.mark.parametrize(("asked", "steps"), SCHEDULES.values(), ids=list(SCHEDULES))
def test_the_steps_of_a_race_whose_costs_are_known(
    asked: tuple[float, int, Sequence[str]], steps: str, tmp_path: Path
) -> None:
    """Without noise and with exact costs, every step takes what was predicted."""
    minutes, at_once, slow = asked
    machine = Machine(noise=0.0, at_once=at_once)
    _, log = race(machine, tmp_path, minutes, slow)
    taken = []
    for step in log.steps:
        taken.append(f"{step.purpose} {len(step.entrants)}x{step.rounds}x{len(step.seeds)}")
        assert step.seconds == pytest.approx(step.predicted)
    assert ", ".join(taken) == steps
    assert log.used == pytest.approx(machine.now)


def test_a_killed_race_that_is_begun_again_ends_the_same(tmp_path: Path) -> None:
    """Killed before some run of every step."""
    minutes, whole_machine = 0.5, Machine()
    whole, log = race(whole_machine, tmp_path / "whole", minutes)
    runs = len(whole_machine.finished)
    assert runs > 10
    for lives in range(0, runs, 4):
        folder = tmp_path / f"killed-{lives}"
        machine = Machine(lives=lives)
        with pytest.raises(KilledError):
            race(machine, folder, minutes)
        machine.lives = 10**9
        machine.now = 1e6  # much later
        again, _ = race(machine, folder, minutes)
        assert conclusion(again) == conclusion(whole)
        assert [one.means for one in again.standings] == [one.means for one in whole.standings]
        assert (folder / "plan.json").read_text() == log.path.read_text(), lives


def test_a_candidate_whose_runs_failed_is_out(tmp_path: Path) -> None:
    ended, _ = race(Machine(failing=("scaffold",)), tmp_path / "one")
    assert ended.winner.method == "ccvr"
    for standing in ended.standings:
        assert not any(one.method.startswith("scaffold") for one in standing.means)
    others = tuple(name for name in METHODS if name != "fedlc")
    alone, _ = race(Machine(failing=others), tmp_path / "all but one")
    assert alone.winner.method == "fedlc" and alone.baseline is None
    assert "compared with nothing" in " ".join(conclusion(alone))
    with pytest.raises(RuntimeError):
        race(Machine(failing=tuple(METHODS)), tmp_path / "none")


def test_one_seed_in_common_with_fedavg_tells_nothing(tmp_path: Path) -> None:
    ended, log = race(Machine(failing_last=("scaffold",)), tmp_path)
    assert log.steps[-1].purpose == LAST
    assert ended.winner.method == "scaffold+ccvr" and list(ended.gain_by_seed) == [100]
    assert (ended.validated, ended.tested) == (None, None)
    assert ended.take.method == "fedavg"
    assert any("fewer than two seeds in common" in line for line in conclusion(ended))


# ---- cuts ------------------------------------------------------------------------------------------------------------


def measured(scores: Mapping[str, Sequence[float]]) -> dict[Candidate, dict[int, Measurement]]:
    """Return measurements by method and seed."""
    return {
        Candidate(method, RATE): {seed: Measurement(score) for seed, score in enumerate(by_seed)}
        for method, by_seed in scores.items()
    }


def kept(scores: Mapping[str, Sequence[float]], least: int) -> list[str]:
    """Return the methods that a cut keeps."""
    found = measured(scores)
    return [candidate.method for candidate in cut(rank(found, found), found, least)]


def test_a_cut_keeps_what_two_standard_errors_do_not_tell_from_the_last_one_kept() -> None:
    """Differences to b: of c 2 points with an error of 2, of d 20 with the same."""
    scores = {"a": (70, 70), "b": (60, 60), "c": (60, 56), "d": (38, 42)}
    assert kept(scores, 2) == ["a", "b", "c"]
    certain = {"a": (70, 70), "b": (60, 60), "c": (58, 58), "d": (40, 40)}
    assert kept(certain, 2) == ["a", "b"], "without any spread 2 points are told"
    assert kept(certain, 4) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("candidates", "best"), [(2, 2), (3, 2), (6, 2), (7, 3)])
def test_the_best_third_is_two_candidates_at_least(candidates: int, best: int) -> None:
    found = measured({f"m{number}": (90 - 10 * number,) * 2 for number in range(candidates)})
    assert len(best_third(rank(found, found), found)) == best


def test_a_single_seed_s_error_is_that_of_the_validation_samples() -> None:
    draws = np.random.default_rng(0)
    found = {}
    for method, score in (("a", 60.0), ("b", 57.0), ("c", 40.0)):
        parts_U = draws.normal(0, 2 / np.sqrt(160), 160)  # an error of two points
        found[Candidate(method, RATE)] = {0: Measurement(score, parts_U, "validation")}
    ranked = rank(found, found)
    assert [one.method for one in cut(ranked, found, 1)] == ["a", "b"]


def test_ranks_are_of_complete_candidates_and_of_equal_ones_by_name() -> None:
    found = measured({"b": (50, 50), "a": (50, 50), "half": (90,), "none": ()})
    assert [one.method for one in rank(found, found)] == ["a", "b"]
    assert rank({}, []) == []
    two_rates = [Candidate("a", 0.1), Candidate("b", 0.1), Candidate("a", 0.2)]
    assert one_rate_each(two_rates) == two_rates[:2]
    many = {Candidate(f"m{number:02}", 0.1): 50.0 - number for number in range(20)}
    last = Candidate("m19", 0.1)
    assert shown(many, [last]) == [*list(many)[:10], last]


# ---- ends ------------------------------------------------------------------------------------------------------------


def ended(validated: Difference | None, tested: Difference | None, **changes: object) -> Ended:
    """Return how a race ended that CCVR has won."""
    fields: dict[str, object] = {
        "winner": Candidate("ccvr", RATE),
        "baseline": Candidate("fedavg", RATE),
        "without_uploads": Candidate("fedavg", RATE),
        "gain_by_seed": {100: 2.0, 101: 4.0},
        **changes,
    }
    return Ended([], 12, shown=[], validated=validated, tested=tested, **fields)  # type: ignore[arg-type]


GOOD, UNCLEAR = Difference(3.0, 0.25, 30), Difference(3.0, 25.0, 30)


def test_the_validation_data_decide_what_to_take() -> None:
    good = ended(GOOD, UNCLEAR)
    assert good.take.method == "ccvr"
    lines = conclusion(good)
    assert lines[0] == "winner: ccvr (0.0625)" and lines[-1] == "take ccvr (0.0625)"
    assert any(line.startswith("gain over FedAvg on the test set: +3.0 points") for line in lines)
    bad = ended(UNCLEAR, GOOD)
    assert bad.take.method == "fedavg" and NOBODY in conclusion(bad)
    itself = ended(None, None, winner=Candidate("fedavg", RATE))
    assert NOBODY in " ".join(conclusion(itself))


FEDAVG, CCVR = Candidate("fedavg", RATE), Candidate("ccvr", RATE)


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        ({"diverged": {Candidate("fedavg", 4.0): [0, 1]}}, "winner: ccvr", "take ccvr"),
        ({"diverged": {FEDAVG: [101]}}, "winner: ccvr", "take ccvr"),
        ({"diverged": {CCVR: [101]}}, "first on validation data: ", "take fedavg"),
        (
            {"diverged": {CCVR: [101], FEDAVG: [102]}},
            "first on validation data: ",
            "take none of them: ",
        ),
        (
            {"winner": FEDAVG, "diverged": {FEDAVG: [101]}},
            "first on validation data: ",
            "take none of them: ",
        ),
        ({"at_chance": "9.8 of 10.0"}, "first on validation data: ", "take none of them: "),
    ],
)
def test_what_diverged_or_is_at_the_level_of_chance_is_not_recommended(
    changes: dict[str, object], first: str, last: str
) -> None:
    lines = conclusion(ended(GOOD, GOOD, **changes))
    assert lines[0].startswith(first) and lines[-1].startswith(last)
    for candidate, _ in changes.get("diverged", {}).items():  # type: ignore[attr-defined]
        assert any(line.startswith(f"{candidate} diverged in seed") for line in lines)
