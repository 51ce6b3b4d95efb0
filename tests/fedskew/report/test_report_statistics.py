"""The numbers of a report: against closed forms, by hand, and by identities."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from frozen import gathered

from data import SettingError
from fedskew.report.claims import judge
from fedskew.report.gather import Measured
from fedskew.report.levels import reach, reached
from fedskew.report.statistics import (
    Strata,
    Summary,
    among_highest,
    bootstrap,
    holm,
    measure,
    resample,
    signed_rank,
    strata,
)
from fedskew.report.table import words_and_unit
from server_app.keys import SELECTIONS
from server_app.record import ModelNumbers, RoundRecord, Spread
from server_app.selection import Point, select, summarize


def point(round: int, accuracy: float, validation: ModelNumbers | None = None) -> Point:
    numbers = ModelNumbers({"balanced-accuracy": accuracy}, [accuracy], validation=validation)
    return Point(RoundRecord(round, {"average": numbers}, metrics={"matching-loss": 0.5}), numbers)


def at(measured: Measured, numbers: ModelNumbers, *sites: str, **metrics: float) -> Measured:
    """Return a run with one evaluated round, of clients with these names and test sets of 10, 20, 40 samples."""
    points = (Point(RoundRecord(1, {"average": numbers}, metrics=metrics), numbers),)
    samples = {**measured.run.samples, "clients": sites, "client-test": [10, 20, 40][: len(sites)]}
    return replace(
        measured,
        points=points,
        run=replace(measured.run, origin={**measured.run.origin, "samples": samples}),
    )


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return gathered(tmp_path).of("creff", "LDA 0.5")[0]


def test_mean_and_sample_standard_deviation() -> None:
    summary = Summary({0: 70.0, 1: 74.0, 2: 78.0})
    assert (summary.n, summary.mean, summary.sd) == (3, 74.0, 4.0)
    assert Summary({5: 1.0}).sd is None


@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections_are_those_of_the_summary(selection: str) -> None:
    accuracies = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6, 0.55, 0.3, 0.2, 0.35]
    points = [
        point(k, a, ModelNumbers({"balanced-accuracy": 1 - a})) for k, a in enumerate(accuracies, 1)
    ]
    expected = summarize([at_round.record for at_round in points])["average"][selection][
        "balanced-accuracy"
    ]
    chosen = [at_round.numbers["balanced-accuracy"] for at_round in select(points, selection)]
    assert np.mean(chosen) == pytest.approx(expected)


def test_the_best_validation_round_is_that_of_the_mean_over_clients_where_they_measured() -> None:
    """As FedBN's authors choose it; the pooled balanced accuracy, here another round's, is for the server's numbers."""
    means = [0.6, 0.9, math.nan, 0.7]
    for by_clients, best in ((True, 2), (False, 4)):
        spreads = [{"client-accuracy": Spread(mean)} if by_clients else {} for mean in means]
        validation = [
            ModelNumbers({"balanced-accuracy": k / 10}, spreads=spread)
            for k, spread in enumerate(spreads, 1)
        ]
        points = [point(k, 0.5, numbers) for k, numbers in enumerate(validation, 1)]
        (chosen,) = select(points, "best-validation")
        summary = summarize([at_round.record for at_round in points])["average"]["best-validation"]
        assert chosen.round == summary["round"] == best


def test_a_mean_over_more_rounds_than_there_are_is_none() -> None:
    assert len(select([point(1, 0.5)] * 4, "mean-of-last-5")) == 0


def test_numbers_of_a_record_by_their_names(measured: Measured) -> None:
    spreads = {"client-accuracy": Spread(0.4, values=[0.3, math.nan])}
    site = at(
        measured,
        ModelNumbers({"loss": math.inf}, [0.5], spreads),
        "0 mnist",
        "1 usps",
        **{"matching-loss": 0.7},
    )
    numbers = {
        "client-accuracy.mean": 0.4,
        "client-accuracy.mnist": 0.3,
        "matching-loss": 0.7,
        "bytes-up": 0,
    }
    assert {name: site.number(site.points[0], name) for name in numbers} == numbers
    for absent in (
        "client-accuracy.usps",
        "client-accuracy",
        "loss",
        "recall",
        "nothing",
        "round.deep",
    ):
        assert site.number(site.points[0], absent) is None
    with pytest.raises(
        SettingError,
        match=r"frozen: metric = 'client-accuracy.svhn': svhn is no client of digits, whose",
    ):
        site.number(site.points[0], "client-accuracy.svhn")


@pytest.mark.parametrize(
    ("metric", "words", "shown"),
    [
        ("client-accuracy.worst", "client accuracy (worst) in percent", 50.0),
        ("loss", "loss in nats", 0.5),
        ("matching-loss-few", "matching loss few", 0.5),
        ("matching-loss-code", "matching loss code", 0.5),
        ("feature-dissimilarity-many", "feature dissimilarity many", 0.5),
    ],
)
def test_shares_are_in_percent_losses_in_nats_and_distances_without_a_unit(
    metric: str, words: str, shown: float, measured: Measured
) -> None:
    numbers = ModelNumbers({"loss": 0.5}, spreads={"client-accuracy": Spread(worst=0.5)})
    assert words_and_unit(metric) == words
    assert measure(at(measured, numbers, **{metric: 0.5}), "last", metric) == shown


@pytest.mark.parametrize(
    "metric", ["balanced-accuracy", "local-accuracy.mean", "few-recall", "many-recall"]
)
def test_strata_give_the_recorded_number(metric: str, tmp_path: Path) -> None:
    for group in gathered(tmp_path).measured.values():
        for run in group:
            made_of = strata(run, "last", metric)
            assert made_of is not None and made_of.weights_G is not None
            assert made_of.weights_G.sum() == pytest.approx(1)
            # the frozen records keep three decimals
            assert 100 * made_of.weights_G @ made_of.rates_G == pytest.approx(
                measure(run, "last", metric), abs=0.1
            )


def test_clients_with_test_sets_of_their_own_are_the_strata(measured: Measured) -> None:
    values = [0.9, 0.4, 0.6]
    numbers = replace(
        measured.points[-1].numbers, spreads={"client-accuracy": Spread(0.6333, 0.4, 0.4, values)}
    )
    run = at(measured, numbers, "0 mnist", "1 usps", "2 svhn")
    for metric, lowest in (("client-accuracy.mean", 3), ("client-accuracy.worst", 1)):
        made_of = strata(run, "last", metric)
        assert made_of is not None and made_of.lowest == lowest
        assert made_of.sizes_G.tolist() == [10, 20, 40] and made_of.rates_G.tolist() == values
    second = strata(run, "last", "client-accuracy.usps")
    assert (
        second is not None
        and second.weights_G is not None
        and second.weights_G @ second.rates_G == 0.4
    )
    assert strata(run, "last", "loss") is None


def test_resampled_examples_have_the_binomial_variance() -> None:
    sizes, rates, weights = (
        np.array([50, 20, 200]),
        np.array([0.9, 0.5, 0.7]),
        np.array([0.2, 0.5, 0.3]),
    )
    drawn = resample(
        [Strata(rates, sizes, weights)], np.zeros((20_000, 1), int), np.random.default_rng(0)
    )[:, 0]
    variance = (weights**2 * rates * (1 - rates) / sizes).sum()
    assert drawn.mean() == pytest.approx(100 * weights @ rates, abs=0.2)
    assert drawn.std() == pytest.approx(100 * math.sqrt(variance), rel=0.03)


def test_the_worst_client_is_drawn_as_a_minimum() -> None:
    made_of = Strata(np.array([1.0, 0.0, 1.0]), np.array([5, 5, 5]), None, 1)
    assert (resample([made_of], np.zeros((100, 1), int), np.random.default_rng(0)) == 0).all()


def test_an_interval_over_seeds_alone_is_that_of_their_means() -> None:
    differences = np.array([[1.0, 3.0]])
    nothing = [[(None, None)] * 2]
    interval = bootstrap(differences, nothing, by=1.5, among=1, seed=0)
    assert interval is not None and (interval.low, interval.high, interval.resampled) == (
        1.0,
        3.0,
        "seeds",
    )
    assert interval.probability == pytest.approx(
        0.75, abs=0.05
    )  # of 1 1, 1 3, 3 1, 3 3 three exceed it
    assert bootstrap(differences[:, :1], [[(None, None)]], by=0.0, among=1, seed=0) is None


def test_certain_examples_leave_the_variation_of_the_seeds() -> None:
    sure = [Strata(np.array([share]), np.array([30]), np.array([1.0])) for share in (1.0, 0.0)]
    interval = bootstrap(
        np.array([[100.0, 100.0]]), [[(sure[0], sure[1])] * 2], by=0.0, among=1, seed=0
    )
    assert interval is not None and (interval.low, interval.high, interval.probability) == (
        100.0,
        100.0,
        1.0,
    )
    assert interval.resampled == "seeds and test examples"


def test_among_the_highest_columns() -> None:
    values = np.array([[3.0, 1.0], [2.0, 5.0], [-1.0, 4.0]])
    assert among_highest(values, 3).tolist() == [-1.0, 1.0] == values.min(0).tolist()
    assert among_highest(values, 2).tolist() == [2.0, 4.0]


def test_signed_rank_of_six_gains_is_one_in_sixty_four() -> None:
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(1 / 64)
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert signed_rank([0.0] * 6) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]
    assert holm([0.7, 0.9]) == [1.0, 1.0]


def test_a_claim_holds_for_a_seed_when_it_does_in_every_column(tmp_path: Path) -> None:
    above, _, rare, far = judge(gathered(tmp_path))
    assert above.margins == {0: pytest.approx(1.9), 1: pytest.approx(4.2), 2: pytest.approx(-2.8)}
    assert (above.status, above.holds, above.n) == ("mixed", 2, 3)
    assert above.estimate == pytest.approx(((80.0 - 78.1) + (80.6 - 71.7) + (72.2 - 75.0)) / 3)
    assert (rare.status, far.status, far.n, far.unmeasured) == ("holds", "fails", 2, 1)
    assert above.interval is not None and above.interval.low < above.estimate < above.interval.high
    assert above.p is None


def test_a_claim_in_some_columns_holds_where_the_best_of_them_do(tmp_path: Path) -> None:
    claim = {"says": "", "better": "creff", "than": "fedavg", "in_columns": 1}
    (verdict,) = judge(gathered(tmp_path, claims=[claim]))
    assert verdict.margins == {0: pytest.approx(3.9), 1: pytest.approx(8.9), 2: pytest.approx(1.9)}
    assert verdict.status == "holds"


def test_sooner_counts_rounds_and_never_is_one_more_than_were_run(tmp_path: Path) -> None:
    sooner = judge(gathered(tmp_path))[1]
    assert sooner.margins == {0: 0, 1: 0, 2: -1}  # seed 2: creff ends at 72.2 and fedavg at 75.0
    assert (sooner.unit, sooner.status) == ("rounds", "fails")


def test_reaching_an_accuracy_counts_rounds_and_bytes(tmp_path: Path) -> None:
    records = gathered(tmp_path)
    run = records.of("creff", "LDA 0.5")[2]
    goal = reach(run, 72.0, "balanced-accuracy")
    assert goal is not None and goal.round == 2
    assert goal.bytes == sum(record.bytes_down + record.bytes_up for record in run.run.records)
    first = reach(run, 0.0, "balanced-accuracy")
    assert first is not None and first.round == 1 and first.bytes < goal.bytes
    assert reach(run, 100.0, "balanced-accuracy") is None
    assert reached(records, "creff", "LDA 0.5")[2] is None
    assert {seed: r.round for seed, r in reached(records, "fedavg", "LDA 0.5").items() if r} == {
        0: 2,
        1: 2,
        2: 2,
    }
