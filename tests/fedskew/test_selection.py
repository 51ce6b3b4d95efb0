"""The race: on drawn scores, that it halves fairly and promises no more than seeds show; on runs, that it repeats."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import FedSkew

from data import DataError, DataSettings, SettingError, federate, load
from fedskew.costs.sizes import Sizes
from fedskew.diagnosis.planned import diagnosis_of
from fedskew.diagnosis.rules import recommended_order
from fedskew.diagnosis.table import read_counts
from fedskew.method_selection import plan as plans
from fedskew.method_selection.counts import partition_by_counts
from fedskew.method_selection.plan import Plan, affordable, possible
from fedskew.method_selection.race import (
    Candidate,
    Gain,
    Rung,
    Scores,
    best_without_uploads,
    conclusion,
    entering,
    race,
    rungs,
    take,
)
from fedskew.method_selection.targets import TARGETS, scores_of, target_of
from fedskew.method_selection.uploads import excluded, permissions_of, upload_text
from fedskew.report.inference import Strata
from server_app.record import ModelNumbers, Spread
from server_app.run_settings import Scalar
from server_app.settings import parse

CANDIDATES = [
    Candidate(method, rate)
    for method in ("fedavg", "fedshift", "ccvr", "iwds")
    for rate in (0.1, 0.05, 0.2)
]


def drawn(means: dict[str, float], noise: float, seed: int) -> object:
    """Return scores around a method's mean that go to it with the rounds; the learning rate 0.1 is 3 points better."""

    def score(running: Sequence[Candidate], rung: Rung) -> Scores:
        entered.append((len(running), rung.rounds, rung.seeds))
        draws = np.random.default_rng([seed, rung.rounds])
        return {
            candidate: {
                number: means[candidate.method]
                + 3 * (candidate.learning_rate == 0.1)
                + noise * draws.normal()
                for number in rung.seeds
            }
            for candidate in running
        }

    entered: list[tuple[int, int, tuple[int, ...]]] = []
    score.entered = entered  # type: ignore[attr-defined]
    return score


def test_the_best_wins_and_fedavg_stays_to_the_end() -> None:
    score = drawn({"fedavg": 40, "fedshift": 60, "ccvr": 70, "iwds": 50}, noise=1.0, seed=0)
    ladder = rungs(len(CANDIDATES), 18, (0, 1, 2))
    standings, winner = race(CANDIDATES, ladder, score)  # type: ignore[arg-type]
    assert winner == Candidate("ccvr", 0.1)
    assert score.entered == [(12, 6, (0,)), (5, 18, (0,)), (3, 18, (0, 1, 2))]  # type: ignore[attr-defined]
    assert all(any(c.method == "fedavg" for c in standing.means) for standing in standings)
    assert [*standings[-1].means] == [
        Candidate(method, 0.1) for method in ("ccvr", "fedshift", "fedavg")
    ]


SEEDS = (4, 5, 6)
ONE = SEEDS[:1]


@pytest.mark.parametrize(
    ("candidates", "ladder"),
    [
        (9, [Rung(4, ONE, 9), Rung(10, ONE, 3), Rung(10, SEEDS, 2)]),
        (10, [Rung(4, ONE, 10), Rung(10, ONE, 4), Rung(10, SEEDS, 2)]),
        (30, [Rung(4, ONE, 30), Rung(10, ONE, 10), Rung(10, SEEDS, 4)]),
        (3, [Rung(4, ONE, 3), Rung(10, SEEDS, 2)]),  # a rung that drops nobody is left out
        (2, [Rung(10, SEEDS, 2)]),
        (1, [Rung(10, SEEDS, 2)]),
    ],
)
def test_the_rungs_are_thirds_rounded_up_and_the_last_has_two_at_least(
    candidates: int, ladder: list[Rung]
) -> None:
    assert rungs(candidates, 10, SEEDS) == ladder


def test_the_last_rung_has_one_rate_of_a_method_and_fedavg_comes_beside_its_two() -> None:
    names = [("iwds", 0.1), ("iwds", 0.2), ("ccvr", 0.1), ("fedavg", 0.1), ("fedavg", 0.2)]
    ranked = [Candidate(*name) for name in names]
    last = Rung(10, SEEDS, 2)
    assert entering(ranked, last, is_last=True) == [ranked[0], ranked[2], ranked[3]]
    assert entering(ranked, last, is_last=False) == [ranked[0], ranked[1], ranked[3]]
    assert entering(ranked[3:], last, is_last=False) == ranked[3:]
    assert entering(ranked[:3], last, is_last=False) == ranked[:2]


def test_the_best_that_uploads_nothing_stays_to_the_end() -> None:
    means = {"fedavg": 40, "fedshift": 60, "ccvr": 70, "iwds": 50}
    ladder = rungs(len(CANDIDATES), 18, (0, 1, 2))
    score = drawn(means, noise=0.1, seed=0)
    standings, _ = race(CANDIDATES, ladder, score, ["fedavg", "iwds"])  # type: ignore[arg-type]
    for standing in standings:
        assert best_without_uploads(standing.means, ["fedavg", "iwds"]) == Candidate("iwds", 0.1)
    without_it, _ = race(CANDIDATES, ladder, drawn(means, noise=0.1, seed=0))  # type: ignore[arg-type]
    assert "iwds" not in {candidate.method for candidate in without_it[-1].means}
    assert best_without_uploads([Candidate("ccvr", 0.1)], ["fedavg"]) is None


NUMBERS = ModelNumbers(
    means={"balanced-accuracy": 0.5, "accuracy": 0.6, "auroc": 0.9, "brier": 0.25},
    recall=[0.75, 0.25, math.nan],
    spreads={"local-accuracy": Spread(0.7, 0.4), "client-accuracy": Spread(0.8, 0.3)},
)


@pytest.mark.parametrize(
    ("target", "score", "text"),
    [
        ("balanced-accuracy", 50.0, "50.0"),
        # Nine of ten samples are of the first class; nobody tests the third: (9 * 0.75 + 1 * 0.25) / 10.
        ("accuracy", 70.0, "70.0"),
        ("site-mean", 70.0, "70.0"),
        ("worst-site", 40.0, "40.0"),
        ("auroc", 90.0, "90.0"),
        ("brier", -25.0, "0.250"),
    ],
)
def test_a_target_is_a_score_of_which_more_is_better(target: str, score: float, text: str) -> None:
    scores = scores_of(NUMBERS, [90, 10, 50], own_tests=False)
    assert scores.keys() == TARGETS.keys()
    assert scores[target] == pytest.approx(score)
    assert TARGETS[target].text(scores[target]) == text
    assert TARGETS[target].text(math.nan) == "-"


def test_sites_with_test_samples_of_their_own_are_measured_on_these() -> None:
    scores = scores_of(NUMBERS, None, own_tests=True)
    assert (scores["site-mean"], scores["worst-site"]) == pytest.approx((80.0, 30.0))
    assert scores["accuracy"] == pytest.approx(60.0), "without counts the shares of what was tested"
    assert math.isnan(scores_of(ModelNumbers(), [1], own_tests=False)["worst-site"])
    assert target_of("auroc", 100).name == "auroc"
    with pytest.raises(SettingError, match="auroc': is measured for at most 100 classes"):
        target_of("auroc", 101)


def test_a_permission_that_is_not_given_leaves_methods_out() -> None:
    methods = ["fedshift", "ccvr", "creff", "scaffold", "scaffold+ccvr", "fedlc"]
    runs = possible(methods, {})
    assert list(runs) == ["fedavg", *methods]
    needed = {method: sorted(permissions_of(run)) for method, run in runs.items()}
    assert needed == {
        "fedavg": [],
        "fedshift": ["class-counts"],
        "ccvr": ["class-counts", "class-statistics"],
        "creff": ["head-gradients"],
        "scaffold": ["control-variates"],
        "scaffold+ccvr": ["class-counts", "class-statistics", "control-variates"],
        "fedlc": [],
    }
    without = possible(methods, {}, ["class-statistics"])
    assert list(without) == ["fedavg", "fedshift", "creff", "scaffold", "fedlc"]
    without = possible(methods, {}, ["class-counts"])
    assert list(without) == ["fedavg", "creff", "scaffold", "fedlc"], "statistics hold the counts"
    assert upload_text("fedlc") == "nothing"
    assert upload_text("scaffold+ccvr").count(";") == 1
    with pytest.raises(
        SettingError, match=r"^--without = .*leaves none but FedAvg: ccvr upload it"
    ):
        possible(["ccvr"], {}, ["class-statistics"])
    with pytest.raises(SettingError, match=r"^--without = 'model': must be some of class-counts"):
        excluded(["model"])


def test_of_equal_scores_the_first_by_name_wins() -> None:
    _, winner = race(
        CANDIDATES,
        [Rung(1, ONE, 12)],
        lambda running, rung: {candidate: {4: 50.0} for candidate in reversed(running)},
    )
    assert winner == Candidate("ccvr", 0.05)


def test_a_conclusion_gives_the_gain_with_its_interval_in_points() -> None:
    winner, baseline = CANDIDATES[3], CANDIDATES[0]
    gain = Gain({1: 84.0, 0: 82.0}, {0: 80.0, 1: 80.0})
    assert gain.differences == [2.0, 4.0]
    told, nobody, taken = conclusion(winner, baseline, gain)[1:]
    # Student's with one degree of freedom: 3 points and 12.7 standard errors of 1 point to either side
    assert told == (
        "gain over FedAvg on the test set: +3.0 points, 95 % interval -9.7 to +15.7 over seeds "
        "(+2.0, +4.0)"
    )
    assert nobody == "no method is distinguishable from FedAvg here"
    assert taken == "take fedavg (0.1)" and take(winner, baseline, gain) == baseline
    assert "two seeds in common" in conclusion(winner, baseline, None)[1]
    assert conclusion(baseline, baseline, None)[1].endswith("FedAvg itself is the best")


def test_a_candidate_whose_runs_failed_is_out() -> None:
    def score(running: Sequence[Candidate], rung: Rung) -> Scores:
        return {c: dict.fromkeys(rung.seeds, 50.0) for c in running if c.method != "ccvr"}

    standings, winner = race(CANDIDATES, rungs(len(CANDIDATES), 3, (0, 1)), score)
    assert winner.method == "fedavg", "of equal ones the first by name"
    assert not any(c.method == "ccvr" for standing in standings for c in standing.means)
    with pytest.raises(RuntimeError, match="no run of the race has finished"):
        race(CANDIDATES, rungs(4, 3, (0,)), lambda running, rung: {})


def test_of_equal_methods_none_is_called_better_more_often_than_in_20() -> None:
    draws, called = np.random.default_rng(0), 0
    for _ in range(400):
        winner, baseline = ({seed: 50 + 4 * draws.normal() for seed in range(5)} for _ in range(2))
        called += Gain(winner, baseline).distinguishable
    assert 0 < called <= 20


def ended(gain: Gain | None, winner: Candidate = CANDIDATES[3]) -> tuple[str, list[str]]:
    """Return the method to take, and the lines that a race ends with."""
    baseline = CANDIDATES[0]
    return take(winner, baseline, gain).method, conclusion(winner, baseline, gain)


def test_a_gain_that_cannot_be_told_takes_fedavg() -> None:
    """The mean's winner is not enough: what is taken is what the page says."""
    nobody = "no method is distinguishable from FedAvg here"
    for winner, baseline, told in (
        ({0: 60.0, 1: 61.0}, {0: 50.0, 1: 50.5}, True),
        ({0: 60.0, 1: 50.0}, {0: 50.0, 1: 50.5}, False),
        ({0: 40.0, 1: 41.0}, {0: 50.0, 1: 50.5}, False),
    ):
        method, lines = ended(Gain(winner, baseline))
        assert method == ("fedshift" if told else "fedavg")
        assert (nobody in lines) != told and lines[-1].startswith(f"take {method} (")
        assert lines[1].startswith("gain over FedAvg")
    method, lines = ended(None, CANDIDATES[0])
    assert method == "fedavg" and "FedAvg itself" in lines[1]
    method, lines = ended(None)
    assert method == "fedavg" and "fewer than two seeds in common" in lines[1]
    assert take(CANDIDATES[3], None, None) == CANDIDATES[3], "FedAvg has finished no run"
    assert "compared with nothing" in conclusion(CANDIDATES[3], None, None)[1]


def test_the_race_s_interval_covers_the_test_samples_too() -> None:
    """Five seeds that agree to a tenth, on 50 test samples: another test set could say the opposite."""
    winner, baseline = {seed: 62.0 + seed / 10 for seed in range(5)}, dict.fromkeys(range(5), 60.0)
    seeds_alone = Gain(winner, baseline)
    assert seeds_alone.distinguishable and seeds_alone.interval.resampled == "seeds"
    for size, told in ((50, False), (100_000, True)):
        ours, theirs = (
            Strata(np.array([share]), np.array([size]), np.array([1.0])) for share in (0.622, 0.6)
        )
        gain = Gain(winner, baseline, [(ours, theirs)] * 5)
        assert gain.distinguishable == told
        assert gain.interval.resampled == "seeds and test examples"
        assert gain.interval.low <= seeds_alone.interval.low
        assert gain.interval.high >= seeds_alone.interval.high


def test_a_plan_fits_into_the_time_and_comes_back_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "by_round", lambda run, sizes: (1.0, 2.0))
    runs = possible(["fedshift", "ccvr", "fedbn"], {"rounds": 12})
    assert list(runs) == ["fedavg", "fedshift", "ccvr"], "the model has no batch norm"
    sizes = Sizes((10,), (2,), 10, False, 0)
    long, short, least = (affordable(runs, sizes, minutes, cores=2) for minutes in (60, 1, 0.4))
    assert (long.last.rounds, len(long.candidates), len(long.last.seeds)) == (12, 9, 5)
    assert (
        short.seconds <= 60
        and len(short.candidates) < 9
        and short.last.rounds >= 5
        and least.seconds <= 24
    )
    assert not {*long.last.seeds} & {seed for rung in long.ladder for seed in rung.seeds}
    long.save(tmp_path / "race" / "plan.json")
    assert Plan.load(tmp_path / "race" / "plan.json") == long
    with pytest.raises(
        SettingError, match=r"^--minutes = 0.1: is less than one round of two methods.* 0.3 minutes"
    ):
        affordable(runs, sizes, 0.1, cores=2)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(SettingError, match="is damaged"):
        Plan.load(tmp_path / "plan.json")


def test_first_in_a_short_race_is_what_answers_the_skew() -> None:
    methods = [method for method in plans.METHODS if method != "fedavg"]

    def order(settings: dict[str, Scalar]) -> list[str]:
        diagnosis = diagnosis_of(parse({"method": "fedavg", **settings}))
        assert diagnosis is not None
        return recommended_order(diagnosis, methods)

    assert order({"partition": "llt", "alpha": 0.9})[0] == "iwds"
    assert order({"imbalance-factor": 50.0, "alpha": 0.5})[0] == "ccvr"
    assert order({"alpha": 0.1})[0] == "fedshift" and order({"alpha": 0.1})[-1] == "creff"
    assert order({"dataset": "digits-scanners"})[0] == "fedbn"
    assert order({"partition": "iid"}) == [
        *(method for method in methods if method != "creff"),
        "creff",
    ]


def test_like_deals_exactly_the_counts(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("site,a,b,c\nnorth,5,0,2\nsouth,1,7,3\n")
    file = tmp_path / "partition.json"
    partition_by_counts(read_counts(table), load(DataSettings()), file, str(table))
    federation = federate(DataSettings(partition_file=str(file)), 0)
    assert (
        federation.counts_KC[:, :3].tolist() == [[5, 0, 2], [1, 7, 3]]
        and federation.counts_KC.sum() == 18
    )
    assert {*federation.dataset.test_labels[federation.global_test].tolist()} == {0, 1, 2}
    table.write_text("site,a,b\nnorth,5,0\nsouth,1,70000\n")
    with pytest.raises(
        DataError, match=r"counts.csv: class b has 70000 samples, and class 1 of digits \d+: divide"
    ):
        partition_by_counts(read_counts(table), load(DataSettings()), file, str(table))


@pytest.mark.slow
def test_a_race_begun_again_names_the_same_winner_with_the_same_numbers(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    words = ["select", "--minutes", "0.6", "--method", "fedshift", "--results", str(tmp_path), "--set", "model=mlp-bn",
             "--set", "train-images=200", "--set", "local-epochs=1", "--set", "min-samples=5"]  # fmt: skip
    status, first, _ = fedskew(*words)
    assert status == 0
    (outcome,) = tmp_path.glob("race-*/result.json")
    result = json.loads(outcome.read_text())
    stated = [json.loads(file.read_text()) for file in tmp_path.glob("*/settings.json")]
    seeds = {run["settings"]["seed"] for run in stated if run["settings"]["tested-on"] == "test"}
    assert not seeds & {*plans.RACE_SEEDS}, "the race's own runs never look at the test set"
    assert result["lines"][0].startswith("winner: ") and result["lines"][-1] in first
    assert result["lines"][-1].startswith(f"take {result['take']['method']} ")
    assert (result["interval-over"] or "seeds and test examples") == "seeds and test examples"
    told = result["interval"] is not None and result["interval"][0] > 0
    assert result["take"] == result["winner"] or (not told and result["take"]["method"] == "fedavg")
    outcome.unlink()
    for summary in list(tmp_path.glob("*/summary.json"))[::2]:
        summary.unlink()
    again = fedskew(*words)[1]
    assert "the race goes on" in again and json.loads(outcome.read_text()) == result


def test_what_a_race_cannot_do_is_one_sentence(fedskew: FedSkew, tmp_path: Path) -> None:
    small = ["--results", str(tmp_path), "--set", "train-images=100", "--set", "min-samples=2"]
    for words, said in (
        (["--minutes", "0.001"], "--minutes = 0.001: is less than one round of two methods"),
        (["--minutes", "1", "--set", "method=fedavg"], "method = 'fedavg': is the race's own"),
        (["--minutes", "1", "--method", "fedsift"], "did you mean fedshift"),
        (["--minutes", "1", "--target", "f1"], "--target = 'f1': must be one of balanced-accuracy"),
        (["--minutes", "1", "--without", "scores"], "--without = 'scores': must be some of"),
        (["--minutes", "1", "--match-counts", str(tmp_path / "no.csv")], "no.csv"),
        (
            ["--minutes", "1", "--set", "train-images=10", "--set", "partition=iid"],
            "client 0 has 1",
        ),
    ):
        status, _, error = fedskew(
            "select", *words, *[word for word in small if "train-images=10" not in words]
        )
        assert status == 2 and said in error and error.count("\n") == 1, error
