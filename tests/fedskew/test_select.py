"""`fedskew select` in steps: what trains, what decides, what it says where there is no basis, and who is left out."""

import json
import math
from dataclasses import dataclass, field
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from data import SettingError
from fedskew import select as selection
from fedskew.experiments.plan import plan, runs
from fedskew.report.inference import Estimate, with_interval
from fedskew.select import ends, select
from server_app.methods import METHODS as TABLE
from server_app.record import RoundRecord
from strategies.core.update_statistics import Seconds

METHODS = ["fedshift", "fedprox", "fedlc", "fedavgm", "iwds"]


@dataclass
class Trainer:
    """Stands for the sweep and the report: every run has the score that a function says."""

    score: object
    """(method, learning rate, seed) -> the number that decides; NaN where the run has diverged."""
    seconds: float
    """That a client's part of a round takes."""
    at_chance: str
    """What every row says of its number beside chance."""
    experiments: list = field(default_factory=list)

    def gather(self, experiment, overrides):
        self.experiments.append(experiment)
        cells = plan(experiment)
        record = RoundRecord(1, seconds=Seconds(clients=self.seconds, round=self.seconds))
        records = {run.run_id: SimpleNamespace(records=[record]) for run in runs(cells)}
        results = SimpleNamespace(experiment=experiment, cells=cells, runs=records)
        results.of = lambda label, *_: self.row(experiment, label)
        return results

    def row(self, experiment, label):
        (row,) = (row for row in experiment.rows if row.label == label)
        rate = float(row.settings["learning-rate"])
        scores = {seed: self.score(row.method, rate, seed) for seed in experiment.seeds}
        finite = {seed: score for seed, score in scores.items() if math.isfinite(score)}
        return SimpleNamespace(
            row=label,
            numbers=finite,
            estimate=Estimate(finite) if finite else None,
            diverged={seed: {} for seed in scores.keys() - finite.keys()},
            at_chance=self.at_chance,
        )


def compared(row, than):
    ours, theirs = row.numbers, than.numbers
    gains = {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}
    return with_interval(gains, [(None, None)] * len(gains), (row.row, than.row)) if gains else None


@pytest.fixture
def selecting(tmp_path, monkeypatch):
    """Return a function that selects by scores, and returns the result, what is printed, and the experiments."""

    def run(score, methods=METHODS, minutes=1.0, seconds=0.0, at_chance="", **options):
        trainer = Trainer(score, seconds, at_chance)
        monkeypatch.setattr(selection, "run_all", lambda *_, **__: ({}, {}))
        monkeypatch.setattr(selection, "gather", trainer.gather)
        monkeypatch.setattr(selection, "compare_rows", compared)
        settings = {"model": "mlp-bn", "rounds": 20, "results": str(tmp_path)}
        settings |= options.get("settings", {})
        target, without = options.get("target", "balanced-accuracy"), options.get("without", ())
        out = Console(file=StringIO(), width=10_000)
        file = tmp_path / f"select-{target}.json"
        file.unlink(missing_ok=True)
        try:
            select(settings, methods, target, without, minutes, 1, out)
        except SettingError as error:
            error.add_note(str(len(trainer.experiments)))
            raise
        result = json.loads(file.read_text())
        return result, out.file.getvalue(), trainer.experiments

    return run


def good_at(best, by, rate=0.05):
    """Return scores of 60 for all, `by` more for the best at a learning rate, and a spread over seeds."""

    def score(method, learning_rate, seed):
        spread = (seed * 7 + len(method)) % 3 / 10
        more = by if method == best else 0.0
        right_rate = 0.5 if learning_rate == rate else 0.0
        return 60 + more + right_rate + spread

    return score


FEDSHIFT = good_at("fedshift", 5.0)


def diverging(score, who, in_seeds):
    """Return these scores, where a method diverges in some seeds."""
    return lambda method, rate, seed: (
        math.nan if method == who and seed in in_seeds else score(method, rate, seed)
    )


def test_three_experiments_and_the_last_one_decides(selecting):
    result, printed, (timed, *steps) = selecting(good_at("fedshift", 5.0, rate=0.15))
    first, second, last = steps
    assert [row.method for row in first.rows] == ["fedavg", "ccvr", *METHODS]
    assert first.seeds == (0,) and second.seeds == (0, 1) and last.seeds == (*range(100, 110),)
    # Of six trainings the best three stay, beside FedAvg's, which CCVR is a head of.
    assert {"fedavg", "ccvr", "fedshift"} <= {row.method for row in second.rows}
    assert len(runs(plan(second))) == 3 * 3 * 2
    assert next(iter(last.rows)).label == "fedshift (0.15)"
    assert {row.method for row in last.rows} == {"fedshift", "fedavg", "ccvr"}
    assert result["take"]["method"] == result["winner"]["method"] == "fedshift"
    assert result["take"]["learning-rate"] == 0.15
    assert result["take"]["uploads"] == TABLE["fedshift"].reveals
    gain, low, high = result["gains"]["fedavg"]
    assert 0 < low < gain < high and gain == pytest.approx(5.0, abs=0.3)
    assert "fedshift (0.15) over always ccvr (0.15): +" in printed
    assert printed.endswith("take fedshift (0.15)\n")
    # Ten clients share 1,437 digits, too few for FedShift to be trusted.
    assert "(lda, 10 clients)" in printed and "Known to fail there: fedshift." in printed
    # No step has fewer rounds, and every run is on validation data.
    assert [experiment.settings["rounds"] for experiment in (timed, *steps)] == [1, 20, 20, 20]
    assert timed.seeds == (0,)
    for experiment in (timed, *steps):
        assert experiment.settings["evaluate-on"] == "validation"
        assert experiment.settings["validation-fraction"] == 0.2
    _, _, with_own = selecting(FEDSHIFT, settings={"validation-fraction": 0.4})
    assert with_own[1].settings["validation-fraction"] == 0.4


def test_minutes_that_allow_no_basis_name_no_winner(selecting, tmp_path):
    """Six trainings of 20 rounds of 2 s, then four of them, three rates and two seeds: 20 minutes."""
    with pytest.raises(SettingError) as caught:
        selecting(FEDSHIFT, minutes=3, seconds=2.0)
    assert "--minutes = 3: trained 1 of 20 rounds: no basis; give 21 minutes" in str(caught.value)
    assert caught.value.__notes__ == ["1"], "one round is all that has trained"
    assert not list(tmp_path.glob("select-*.json"))
    assert selecting(FEDSHIFT, minutes=21, seconds=2.0)[0]["winner"]


def test_a_first_step_that_is_finished_is_not_timed_again(selecting, monkeypatch):
    """Its runs have seed 0. The control is the test above, which is refused within these minutes."""
    monkeypatch.setattr(
        "fedskew.select.RunFolder.finished",
        lambda folder, rounds: "-seed0-" in folder.run and rounds == 20,
    )
    assert selecting(FEDSHIFT, minutes=3, seconds=2.0)[0]["winner"]


def test_no_experiment_begins_after_the_minutes(selecting, monkeypatch):
    now = iter([0.0, 1.0, 70.0])
    monkeypatch.setattr("fedskew.select.time.monotonic", lambda: next(now))
    with pytest.raises(SettingError) as caught:
        selecting(FEDSHIFT, minutes=1)
    assert "passed after step 1 of 3: no basis" in str(caught.value)
    assert caught.value.__notes__ == ["2"]


def test_what_is_not_distinguishable_from_fedavg_is_no_winner(selecting):
    def lucky(method, rate, seed):
        more = 0.0
        if method == "fedprox":
            more = 4.0 if seed < 2 else 0.5
        return 60 + more + (seed * 7 + len(method)) % 5

    result, printed, _ = selecting(lucky)
    assert result["winner"] is None and result["first"]["method"] == "fedprox"
    assert result["take"]["method"] == "fedavg"
    gain, low, _ = result["gains"]["fedavg"]
    assert low < 0 < gain
    assert "no winner: no method is distinguishable from FedAvg here" in printed

    result, _, _ = selecting(good_at("fedprox", 0.5))
    assert result["winner"]["method"] == "fedprox" and result["winner"]["uploads"] == "nothing"
    assert 0 < result["gains"]["fedavg"][1] < 1

    _, printed, steps = selecting(good_at("fedavg", 5.0), ["fedprox"])
    assert "fedprox" in {row.method for row in steps[2].rows}, "two trainings at least go on"
    assert "no winner: FedAvg itself is the best on validation data" in printed
    assert "fedavg (0.05) over always ccvr (0.05): +" in printed


def test_a_divergence_on_fresh_seeds_counts_against_whoever_it_hits(selecting):
    fedlc = good_at("fedlc", 5.0)
    for who, taken in (("fedlc", "fedavg"), ("fedavg", "fedlc"), ("nobody", "fedlc")):
        result, _, _ = selecting(diverging(fedlc, who, [104]))
        assert result["take"]["method"] == taken
    result, printed, _ = selecting(fedlc, at_chance="20.0 where chance is 20.0 percent")
    assert result["take"] is None and "take none of them" in printed


def test_whoever_is_left_out_is_named_with_the_reason(selecting):
    result, printed, _ = selecting(
        diverging(good_at("fedprox", 5.0), "fedlc", range(200)),
        ["fedprox", "fedlc", "fedbn", "scaffold", "fedavgm", "iwds", "fed-lda"],
        settings={"norm": "group"},
        without=["control-variates", "class-statistics"],
    )
    left_out = result["left-out"]
    assert left_out["ccvr"] == "uploads class-statistics"
    assert left_out["scaffold"] == "uploads control-variates"
    assert left_out["fedlc (0.05)"] == "diverged in seed 0"
    assert "batch norm" in left_out["fedbn"] and "features" in left_out["fed-lda"]
    assert sum("best half" in reason for reason in left_out.values()) == 1
    for name in left_out:
        assert name in printed


NONE_IS_LEFT = {"methods": ["fedbn"], "settings": {"norm": "group"}, "without": ["class-counts"]}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"target": "best"}, "--target"),
        ({"without": ["model"]}, "--without"),
        ({"without": ["column-sums"]}, "--without"),  # no method asks for them
        (NONE_IS_LEFT, "--method"),  # CCVR's statistics have the counts of classes
        ({"settings": {"rounds": 0}}, "rounds"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, key, selecting):
    with pytest.raises(SettingError) as caught:
        selecting(FEDSHIFT, **options)
    assert caught.value.key == key


def test_auroc_decides_only_where_it_is_measured(selecting, tmp_path):
    file = tmp_path / "classes.npz"
    labels = np.arange(404) % 101
    inputs = np.zeros((404, 1, 8, 8), dtype=np.uint8)
    arrays = {"train_images": inputs, "train_labels": labels}
    np.savez(file, **arrays, test_images=inputs, test_labels=labels)
    data = {"dataset": f"npz:{file}", "classes": "101", "input-shape": "1x8x8", "clients": 2}
    data["partition"] = "iid"
    with pytest.raises(SettingError) as caught:
        selecting(FEDSHIFT, settings=data, target="auroc")
    assert caught.value.key == "--target"
    assert selecting(FEDSHIFT, settings=data, target="accuracy")


@pytest.mark.parametrize(
    ("dataset", "metric"),
    [("digits", "local-accuracy.worst"), ("digits-scanners", "client-accuracy.worst")],
)
def test_sites_with_samples_of_their_own_are_measured_on_these(dataset, metric, selecting):
    """A client of the digits is a part of one data set: its accuracy follows from the recalls of all."""
    _, _, experiments = selecting(FEDSHIFT, settings={"dataset": dataset}, target="worst-site")
    assert {experiment.metric for experiment in experiments} == {metric}


def test_an_interval_over_seeds_alone_is_wider_where_their_samples_overlap():
    gain = with_interval({0: 1.0, 1: 2.0, 2: 3.0, 3: 2.0}, [(None, None)] * 4, ("a", "b"))
    assert ends(gain, 0.0) == (gain.interval.low, gain.interval.high)
    low, high = ends(gain, 0.2)
    assert high - 2.0 == pytest.approx((gain.interval.high - 2.0) * math.sqrt(2))
    assert low - 2.0 == pytest.approx((gain.interval.low - 2.0) * math.sqrt(2))
