"""`fedskew select` in steps: what trains, what decides, what it says where there is no basis, and who is left out."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from data import SettingError
from fedskew import select as selection
from fedskew.experiments import Experiment
from fedskew.experiments.plan import plan, runs
from fedskew.report.inference import Estimate, with_interval
from fedskew.select import ends, permissions_of, select
from server_app.methods import METHODS as METHOD_TABLE
from server_app.record import RoundRecord
from server_app.run_settings import Scalar
from server_app.settings import parse
from strategies.core.update_statistics import Seconds

METHODS = ["fedshift", "fedprox", "fedlc", "fedavgm", "iwds"]
Score = Callable[[str, float, int], float]
"""(method, learning rate, seed) -> the number that decides; NaN where the run has diverged."""


@dataclass
class Trainer:
    """Stands for the sweep and the report: every run has the score that a function says."""

    score: Score
    seconds: float = 0.0
    """That a client's part of a round takes."""
    at_chance: str = ""
    """What every row says of its number beside chance."""
    experiments: list[Experiment] = field(default_factory=list)

    def gather(self, experiment: Experiment, overrides: Mapping[str, Scalar]) -> Any:
        self.experiments.append(experiment)
        cells = plan(experiment)
        record = RoundRecord(1, seconds=Seconds(clients=self.seconds, round=self.seconds))
        records = {run.run_id: SimpleNamespace(records=[record]) for run in runs(cells)}
        results = SimpleNamespace(experiment=experiment, cells=cells, runs=records)
        results.of = lambda label, *_: self.row(experiment, label)
        return results

    def row(self, experiment: Experiment, label: str) -> Any:
        (row,) = (row for row in experiment.rows if row.label == label)
        rate = float(row.settings["learning-rate"])
        scores = {seed: self.score(row.method, rate, seed) for seed in experiment.seeds}
        finite = {seed: score for seed, score in scores.items() if math.isfinite(score)}
        return SimpleNamespace(
            row=label,
            numbers=finite,
            estimate=Estimate(finite) if finite else None,
            diverged={seed: {} for seed, score in scores.items() if math.isnan(score)},
            at_chance=self.at_chance,
        )


def compared(row: Any, than: Any) -> Estimate | None:
    ours, theirs = row.numbers, than.numbers
    gains = {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}
    return with_interval(gains, [(None, None)] * len(gains), (row.row, than.row)) if gains else None


@dataclass
class Ended:
    result: dict[str, Any]
    printed: str
    experiments: list[Experiment]

    @property
    def steps(self) -> list[Experiment]:
        """The experiments without the round that is timed."""
        return self.experiments[1:]


Selecting = Callable[..., Ended]


@pytest.fixture
def selecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Selecting:
    """Return a function that selects by scores."""

    def run(
        score: Score,
        methods: Sequence[str] = METHODS,
        minutes: float = 1.0,
        seconds: float = 0.0,
        **options: Any,
    ) -> Ended:
        trainer = Trainer(score, seconds, options.pop("at_chance", ""))
        for earlier in tmp_path.glob("select-*.json"):
            earlier.unlink()
        monkeypatch.setattr(selection, "run_all", lambda *_, **__: ({}, {}))
        monkeypatch.setattr(selection, "gather", trainer.gather)
        monkeypatch.setattr(selection, "compare_rows", compared)
        settings: dict[str, Scalar] = {"model": "mlp-bn", "rounds": 20, "results": str(tmp_path)}
        settings |= options.pop("settings", {})
        target = options.pop("target", "balanced-accuracy")
        without = options.pop("without", ())
        out = Console(file=StringIO(), width=10_000)
        try:
            select(settings, methods, target, without, minutes, 1, out)
        except SettingError as error:
            error.add_note(str(len(trainer.experiments)))
            raise
        (file,) = tmp_path.glob("select-*.json")
        assert isinstance(out.file, StringIO)
        return Ended(json.loads(file.read_text()), out.file.getvalue(), trainer.experiments)

    return run


def good_at(best: str, by: float, rate: float = 0.05) -> Score:
    """Return scores of 60 for all, `by` more for the best at a learning rate, and a spread over seeds."""

    def score(method: str, learning_rate: float, seed: int) -> float:
        spread = (seed * 7 + len(method)) % 3 / 10
        more = by if method == best else 0.0
        right_rate = 0.5 if learning_rate == rate else 0.0
        return 60 + more + right_rate + spread

    return score


def test_three_experiments_and_the_last_one_decides(selecting: Selecting) -> None:
    ended = selecting(good_at("fedshift", 5.0, rate=0.15))
    first, second, last = ended.steps
    assert [row.method for row in first.rows] == ["fedavg", "ccvr", *METHODS]
    assert first.seeds == (0,) and second.seeds == (0, 1) and last.seeds == (*range(100, 110),)
    # Of six trainings the best three stay, beside FedAvg's, which CCVR is a head of.
    assert {"fedavg", "ccvr", "fedshift"} <= {row.method for row in second.rows}
    assert len(runs(plan(second))) == 3 * 3 * 2
    assert next(iter(last.rows)).label == "fedshift (0.15)"
    assert {row.method for row in last.rows} == {"fedshift", "fedavg", "ccvr"}
    assert ended.result["take"]["method"] == ended.result["winner"]["method"] == "fedshift"
    assert ended.result["take"]["learning-rate"] == 0.15
    assert ended.result["take"]["uploads"] == METHOD_TABLE["fedshift"].reveals
    gain, low, high = ended.result["gains"]["fedavg"]
    assert 0 < low < gain < high and gain == pytest.approx(5.0, abs=0.3)
    assert "fedshift (0.15) over always ccvr (0.15): +" in ended.printed
    assert ended.printed.endswith("take fedshift (0.15)\n")


def test_every_run_is_on_validation_data_and_no_step_has_fewer_rounds(selecting: Selecting) -> None:
    ended = selecting(good_at("fedshift", 5.0))
    assert [experiment.settings["rounds"] for experiment in ended.experiments] == [1, 20, 20, 20]
    assert ended.experiments[0].seeds == (0,)
    for experiment in ended.experiments:
        assert experiment.settings["evaluate-on"] == "validation"
        assert experiment.settings["validation-fraction"] == 0.2
    with_own = selecting(good_at("fedshift", 5.0), settings={"validation-fraction": 0.4})
    assert with_own.steps[0].settings["validation-fraction"] == 0.4


def test_minutes_that_allow_no_basis_name_no_winner(selecting: Selecting, tmp_path: Path) -> None:
    """Six trainings of 20 rounds of 2 s, then four of them, three rates and two seeds: 20 minutes."""
    with pytest.raises(SettingError) as caught:
        selecting(good_at("fedshift", 5.0), minutes=3, seconds=2.0)
    assert "--minutes = 3: trained 1 of 20 rounds: no basis; give 21 minutes" in str(caught.value)
    assert caught.value.__notes__ == ["1"], "one round is all that has trained"
    assert not list(tmp_path.glob("select-*.json"))
    assert selecting(good_at("fedshift", 5.0), minutes=21, seconds=2.0).result["winner"]


def test_a_first_step_that_is_finished_is_not_timed_again(
    selecting: Selecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs have seed 0. The control is the test above, which is refused within these minutes."""
    monkeypatch.setattr(
        "fedskew.select.RunFolder.finished",
        lambda folder, rounds: "-seed0-" in folder.run and rounds == 20,
    )
    ended = selecting(good_at("fedshift", 5.0), minutes=3, seconds=2.0)
    assert [experiment.settings["rounds"] for experiment in ended.experiments] == [20, 20, 20]


def test_no_experiment_begins_after_the_minutes(
    selecting: Selecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 70.0])
    monkeypatch.setattr("fedskew.select.time.monotonic", lambda: next(now))
    with pytest.raises(SettingError) as caught:
        selecting(good_at("fedshift", 5.0), minutes=1)
    assert "passed after step 1 of 3: no basis" in str(caught.value)
    assert caught.value.__notes__ == ["2"]


def test_what_is_not_distinguishable_from_fedavg_is_no_winner(selecting: Selecting) -> None:
    def lucky(method: str, rate: float, seed: int) -> float:
        more = 0.0
        if method == "fedprox":
            more = 4.0 if seed < 2 else 0.5
        return 60 + more + (seed * 7 + len(method)) % 5

    ended = selecting(lucky)
    assert ended.result["winner"] is None and ended.result["first"]["method"] == "fedprox"
    assert ended.result["take"]["method"] == "fedavg"
    gain, low, _ = ended.result["gains"]["fedavg"]
    assert low < 0 < gain
    assert "no winner: no method is distinguishable from FedAvg here" in ended.printed

    small_gain = selecting(good_at("fedprox", 0.5))
    assert small_gain.result["winner"]["method"] == "fedprox"
    assert small_gain.result["winner"]["uploads"] == "nothing"
    assert 0 < small_gain.result["gains"]["fedavg"][1] < 1

    itself = selecting(good_at("fedavg", 5.0))
    assert "no winner: FedAvg itself is the best on validation data" in itself.printed
    assert "fedavg (0.05) over always ccvr (0.05): +" in itself.printed


def test_a_divergence_on_fresh_seeds_counts_against_whoever_it_hits(selecting: Selecting) -> None:
    def diverging(who: str) -> Score:
        sound = good_at("fedlc", 5.0)
        return lambda method, rate, seed: (
            math.nan if method == who and seed == 104 else sound(method, rate, seed)
        )

    assert selecting(diverging("fedlc")).result["take"]["method"] == "fedavg"
    assert selecting(diverging("fedavg")).result["take"]["method"] == "fedlc"
    assert selecting(good_at("fedlc", 5.0)).result["take"]["method"] == "fedlc"
    nobody = selecting(good_at("fedlc", 5.0), at_chance="20.0 where chance is 20.0 percent")
    assert nobody.result["take"] is None and "take none of them" in nobody.printed


def test_whoever_is_left_out_is_named_with_the_reason(selecting: Selecting) -> None:
    ended = selecting(
        lambda method, rate, seed: (
            math.nan if method == "fedlc" else good_at("fedprox", 5.0)(method, rate, seed)
        ),
        ["fedprox", "fedlc", "fedbn", "scaffold", "fedavgm", "iwds", "fed-lda"],
        settings={"norm": "group"},
        without=["control-variates", "class-statistics"],
    )
    left_out = ended.result["left-out"]
    assert left_out["ccvr"] == "uploads class-statistics"
    assert left_out["scaffold"] == "uploads control-variates"
    assert left_out["fedlc (0.05)"] == "diverged in seed 0"
    assert "batch norm" in left_out["fedbn"] and "features" in left_out["fed-lda"]
    assert sum("best half" in reason for reason in left_out.values()) == 1
    for name in left_out:
        assert name in ended.printed


def test_what_a_method_uploads_follows_from_its_variants() -> None:
    needed = {}
    for method in ("fedavg", "fedshift", "ccvr", "creff", "scaffold+ccvr"):
        needed[method] = sorted(permissions_of(parse({"method": method})))
    assert needed == {
        "fedavg": [],
        "fedshift": ["class-counts"],
        "ccvr": ["class-counts", "class-statistics"],
        "creff": ["head-gradients"],
        "scaffold+ccvr": ["class-counts", "class-statistics", "control-variates"],
    }


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"target": "best"}, "--target"),
        ({"without": ["model"]}, "--without"),
        ({"methods": ["fedbn"], "settings": {"norm": "group"}, "without": ["class-counts"]}, "--method"),
        ({"settings": {"rounds": 0}}, "rounds"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(
    options: dict[str, Any], key: str, selecting: Selecting
) -> None:
    with pytest.raises(SettingError) as caught:
        selecting(good_at("fedshift", 5.0), **options)
    assert caught.value.key == key


def test_auroc_decides_only_where_it_is_measured(selecting: Selecting, tmp_path: Path) -> None:
    file = tmp_path / "classes.npz"
    labels = np.arange(404) % 101
    inputs = np.zeros((404, 1, 8, 8), dtype=np.uint8)
    arrays = {"train_images": inputs, "train_labels": labels}
    np.savez(file, **arrays, test_images=inputs, test_labels=labels)
    data = {"dataset": f"npz:{file}", "classes": "101", "input-shape": "1x8x8", "clients": 2}
    data["partition"] = "iid"
    with pytest.raises(SettingError) as caught:
        selecting(good_at("fedshift", 5.0), settings=data, target="auroc")
    assert caught.value.key == "--target"
    assert selecting(good_at("fedshift", 5.0), settings=data, target="accuracy").experiments


@pytest.mark.parametrize(
    ("dataset", "metric"),
    [("digits", "local-accuracy.worst"), ("digits-scanners", "client-accuracy.worst")],
)
def test_sites_with_samples_of_their_own_are_measured_on_these(
    dataset: str, metric: str, selecting: Selecting
) -> None:
    """A site of the digits is a part of one data set: its accuracy follows from the recalls of all."""
    ended = selecting(good_at("fedshift", 5.0), settings={"dataset": dataset}, target="worst-site")
    assert {experiment.metric for experiment in ended.experiments} == {metric}


def test_an_interval_over_seeds_alone_is_wider_where_their_samples_overlap() -> None:
    gain = with_interval({0: 1.0, 1: 2.0, 2: 3.0, 3: 2.0}, [(None, None)] * 4, ("a", "b"))
    assert gain.interval is not None
    assert ends(gain, 0.0) == (gain.interval.low, gain.interval.high)
    low, high = ends(gain, 0.2)
    assert high - 2.0 == pytest.approx((gain.interval.high - 2.0) * math.sqrt(2))
    assert low - 2.0 == pytest.approx((gain.interval.low - 2.0) * math.sqrt(2))
