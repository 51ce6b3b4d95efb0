"""The numbers of a report: against closed forms, by hand, and by identities."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from frozen import frozen_results
from scipy.stats import t as t_distribution
from scipy.stats import ttest_1samp

from data import SettingError
from fedskew.report.differences import class_weights, strata
from fedskew.report.format import ends_words, words_and_unit
from fedskew.report.inference import (
    Estimate,
    Interval,
    Strata,
    p_of_several,
    resample,
    seeds_to_decide,
    student,
    with_interval,
)
from fedskew.report.results import SeedResult
from server_app.record import ModelNumbers, RoundRecord, Spread
from server_app.round_selection import Point


def of_samples(measured: SeedResult, **samples: Any) -> SeedResult:
    """Return a run whose settings.json says these of its samples, beside what it says already."""
    origin = {**measured.run.origin, "samples": {**measured.run.samples, **samples}}
    return replace(measured, run=replace(measured.run, origin=origin))


def at(measured: SeedResult, numbers: ModelNumbers, *sites: str, **metrics: float) -> SeedResult:
    """Return a run with one evaluated round, of clients with these names and test sets of 10, 20, 40 samples."""
    points = (Point(RoundRecord(1, {"average": numbers}, metrics=metrics), numbers),)
    sizes = [10, 20, 40][: len(sites)]
    return of_samples(replace(measured, points=points), **{"clients": sites, "client-test": sizes})


def of_clients(*values: float) -> ModelNumbers:
    """Return numbers with each client's accuracy."""
    spreads = {"client-accuracy": Spread(0.6, 0.4, 0.4, [*values])}
    return ModelNumbers({}, [1.0, 1.0], spreads, confusion=[[7, 0], [0, 7]])  # 14 subjects


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return frozen_results(tmp_path_factory.mktemp("frozen")).of("creff", "LDA 0.5").runs[0]


def test_numbers_of_a_record_by_their_names(measured):
    spreads = {"client-accuracy": Spread(0.4, values=[0.3, math.nan])}
    numbers = ModelNumbers({"loss": math.inf}, [0.5], spreads)
    site = at(measured, numbers, "0 mnist", "1 usps", **{"matching-loss": 0.7})
    known = {"client-accuracy.mean": 0.4, "client-accuracy.mnist": 0.3, "matching-loss": 0.7}
    assert {name: site.value(site.points[0], name) for name in known} == known
    for absent in ("client-accuracy.usps", "client-accuracy", "loss", "recall", "nothing"):
        assert site.value(site.points[0], absent) is None
    with pytest.raises(SettingError) as raised:
        site.value(site.points[0], "client-accuracy.svhn")
    assert raised.value.value == "client-accuracy.svhn"


def test_shares_are_in_percent_losses_in_nats_and_distances_without_a_unit(measured):
    numbers = ModelNumbers({"loss": 0.5}, spreads={"client-accuracy": Spread(worst=0.5)})
    for metric, words, shown in (
        ("client-accuracy.worst", "client accuracy (worst) in percent", 50.0),
        ("loss", "loss in nats", 0.5),
        ("matching-loss-few", "matching loss few", 0.5),
    ):
        assert words_and_unit(metric) == words
        assert replace(at(measured, numbers, **{metric: 0.5}), metric=metric).number == shown


def test_an_end_has_one_sign_also_where_it_is_minus_nothing():
    assert ends_words(-0.0, 0.0) == " [+0.0, +0.0]"
    assert ends_words(-0.5, 0.5) == " [\N{MINUS SIGN}0.5, +0.5]"


METRICS = ["balanced-accuracy", "local-accuracy.mean", "few-recall", "many-recall"]


@pytest.mark.parametrize("metric", METRICS)
def test_strata_give_the_recorded_number(metric, measured):
    made_of = strata(replace(measured, metric=metric))
    assert made_of.weights_G.sum() == pytest.approx(1)
    # the frozen records keep three decimals
    recorded = pytest.approx(replace(measured, metric=metric).number, abs=0.1)
    assert 100 * made_of.weights_G @ made_of.rates_G == recorded


def test_local_accuracy_of_own_models_is_no_sum_of_the_recorded_recalls(measured):
    """Clients 0 and 1 hold one class each and are right there alone: 1 in local accuracy, recalls of a half."""
    numbers = measured.points[-1].numbers
    shared = {"local-accuracy": Spread(1.0, 1.0, 1.0, [1.0, 1.0])}
    own = {**shared, "client-accuracy": Spread(0.5, 0.5, 0.5, [0.5, 0.5])}
    for spreads, metric, known in (
        (shared, "local-accuracy.mean", True),
        (own, "local-accuracy.mean", False),
        (own, "balanced-accuracy", True),
    ):
        run = at(measured, replace(numbers, spreads=spreads))
        assert (strata(replace(run, metric=metric)) is not None) == known


def test_a_comparison_has_the_wider_interval_and_its_mirror():
    """Three seeds that agree, of a small test set: Student's interval is narrow, the test examples' is not."""
    certain = np.array([1.0])
    close = {0: 5.0, 1: 5.1, 2: 4.9}

    def pairs(size):
        runs = [Strata(np.array([share]), np.array([size]), certain) for share in (0.7, 0.65)]
        return [tuple(runs)] * 3

    small, large = pairs(20), pairs(200_000)
    compared = with_interval(close, small, ("a", "b"))
    assert compared.interval.low < 0 < 5 < compared.interval.high and compared.interval.p < 0.001
    assert compared.side == "unclear"
    opposite = {seed: -value for seed, value in close.items()}
    turned = with_interval(opposite, [pair[::-1] for pair in small], ("b", "a"))
    ends = (turned.interval.low, turned.interval.high)
    assert ends == (-compared.interval.high, -compared.interval.low)
    assert with_interval(close, large, ("a", "b")).side == "above"
    one = with_interval({0: 5.0}, large[:1], ("a", "b"))
    assert one.interval.p is None and one.side == "unclear"
    assert replace(one, margin=50.0).side == "unclear", "one seed, on whichever side it lies"


def test_an_interval_that_ends_at_the_margin_is_unclear():
    interval = Interval(low=1.0, high=3.0, p=0.01, resampled="seeds")
    two = {0: 2.0, 1: 2.0}
    for margin, side in ((0.9, "above"), (1.0, "unclear"), (3.0, "unclear"), (3.1, "below")):
        assert Estimate(two, interval, margin=margin).side == side
    assert Estimate({0: 2.0}, interval).side == "unclear"
    assert Estimate(two).side == "unclear"


def test_a_metric_weighs_the_classes_that_were_tested(measured):
    """Client 0 has three quarters of class 0, client 1 a class without test samples alone, client 2 class 2 alone.

    Of classes with 120, 110 and 10 samples two are many-shot, and the test set lacks the second.
    """
    run = of_samples(measured, train=[[3, 5, 1], [0, 9, 0], [0, 0, 2]])
    tailed = of_samples(measured, train=[[120, 110, 10]])
    data = replace(tailed.run.settings.data, imbalance_factor=10.0)
    settings = replace(tailed.run.settings, data=data)
    tailed = replace(tailed, run=replace(tailed.run, settings=settings))
    for of_run, metric, tested, weights in (
        (run, "local-accuracy.mean", [4, 0, 4], [0.375, 0.0, 0.625]),
        (run, "balanced-accuracy", [4, 0, 4], [0.5, 0.0, 0.5]),
        (run, "accuracy", [6, 0, 2], [0.75, 0.0, 0.25]),
        # Of one test set for all clients their mean accuracy is the accuracy.
        (run, "client-accuracy.mean", [6, 0, 2], [0.75, 0.0, 0.25]),
        (tailed, "many-recall", [4, 0, 4], [1.0, 0.0, 0.0]),
    ):
        weights_C = class_weights(replace(of_run, metric=metric), np.array(tested))
        assert weights_C.tolist() == weights
    assert class_weights(replace(run, metric="loss"), np.array([4, 0, 4])) is None


def test_students_interval_and_p_are_scipys():
    margins = [0.2, -13.7, 16.7, 4.0]
    expected = ttest_1samp(margins, 0)
    stated = (*expected.confidence_interval(0.95), expected.pvalue)
    assert student(margins) == pytest.approx(stated, abs=1e-9)
    assert student([2.0, 2.0]) == (2.0, 2.0, 0.0) and student([0.0, 0.0])[2] == 1.0
    # t(1) = 12.7062 standard errors of 0.5 / sqrt(2); the p-value is about the margin
    pairs = [(None, None)] * 2
    rounded = with_interval({0: 1.0, 1: 1.0}, pairs, ("a", "b"), margin=0.5, rounding=0.5)
    assert rounded.sd == 0.5
    assert rounded.interval.low == pytest.approx(1 - 12.7062 * 0.5 / math.sqrt(2), abs=1e-4)
    assert rounded.interval.p == pytest.approx(2 * t_distribution.sf(math.sqrt(2), 1))


def test_p_of_several_is_the_largest_of_those_that_speak_most_for_the_claim():
    """An intersection-union test; the second difference is below its margin, though far from it by p."""
    parts = [
        Estimate({0: mean}, Interval(mean, mean, p, "seeds"))
        for mean, p in ((2.0, 0.04), (-1.0, 0.01), (1.0, 0.2))
    ]
    assert [p_of_several(parts, among) for among in (1, 2, 3)] == [0.12, 0.4, 0.2]
    assert p_of_several(parts[:2], 2) == 0.04
    beside = [replace(parts[0], margin=2.5), replace(parts[1], margin=-2.0)]
    assert p_of_several(beside, 1) == 0.02, "beside their margins"
    assert p_of_several([*parts, Estimate({0: 1.0})], 1) is None


@pytest.mark.parametrize(
    ("low", "high", "margin", "seeds"),
    [
        # Student's interval is the wider one: 2.1009 x 2 / sqrt(19) = 0.9640 < 0.992 < 2.1098 x 2 / sqrt(18)
        (-3.9, 5.9, 0.008, 19),
        # The bootstrap's is, on the side of the margin: 6.01 x sqrt(3 / 109) = 0.9970
        (-5.01, 5.9, 0.0, 109),
        (-3.9, 7.01, 2.0, 109),
        (-3.9, 7.01, 0.0, 18),
        (-3.9, 5.9, 0.999, 1000),  # no more are sought
        (-3.9, 5.9, 1.0, None),  # no number tells a mean from itself
    ],
)
def test_the_seeds_that_would_decide_by_hand(low, high, margin, seeds):
    """Three seeds with mean 1 and standard deviation 2: Student's half width is 4.3027 x 2 / sqrt(3) = 4.9683."""
    interval = Interval(low, high, p=None, resampled="seeds")
    estimate = Estimate({0: -1.0, 1: 1.0, 2: 3.0}, interval, margin=margin)
    assert seeds_to_decide(estimate) == seeds


def test_the_interval_of_a_mean_is_the_wider_one_of_seeds_and_test_examples():
    """Two seeds that agree: Student's has no width, the binomial one of the examples has; and the other way round."""
    made_of = Strata(np.array([0.9, 0.5, 0.7]), np.array([50, 20, 200]), np.array([0.2, 0.5, 0.3]))
    mean = 100 * made_of.weights_G @ made_of.rates_G
    of_rates_G = made_of.rates_G * (1 - made_of.rates_G) / made_of.sizes_G
    variance = made_of.weights_G**2 @ of_rates_G
    one = with_interval({0: float(mean)}, [[made_of]], ("a",)).interval
    assert one.p is None and one.resampled == "seeds and test examples"
    assert (one.high - one.low) / 2 == pytest.approx(196 * math.sqrt(variance), rel=0.1)
    sure = Strata(np.array([-1e-12, 1 + 1e-12]), np.array([5, 5]), np.array([0.25, 0.75]))
    two = with_interval({0: 74.0, 1: 76.0}, [[sure]] * 2, ("a",)).interval
    assert (two.low, two.high) == pytest.approx((75 - 12.7062, 75 + 12.7062), abs=1e-3)
    assert with_interval({0: 1.0}, [[None]], ("a",)).interval is None


def test_an_auroc_is_drawn_by_its_recorded_standard_error(measured):
    run = at(measured, ModelNumbers({"auroc": 0.8, "auroc-error": 0.03}))
    made_of = strata(replace(run, metric="auroc"))
    interval = with_interval({0: 80.0}, [[made_of]], ("a",)).interval
    assert (interval.low, interval.high) == pytest.approx((80 - 5.88, 80 + 5.88), abs=0.7)
    assert strata(replace(at(measured, ModelNumbers({"auroc": 0.8})), metric="auroc")) is None


@pytest.mark.parametrize(
    ("part", "rates", "drawn"), [("mean", 3, 66.7), ("worst", 1, 0.0), ("usps", 1, 0.0)]
)
def test_clients_with_test_sets_of_their_own_are_the_strata(part, rates, drawn, measured):
    run = at(measured, of_clients(1.0, 0.0, 1.0), "0 mnist", "1 usps", "2 svhn")
    run = of_samples(run, **{"client-independent": [3, 2, 1]})
    made_of = strata(replace(run, metric=f"client-accuracy.{part}"))
    assert made_of.sizes_G.tolist() == [3, 2, 1]
    assert np.count_nonzero(made_of.weights_G) == rates
    drawn_BS = resample([made_of], np.zeros((4, 1), int), np.random.default_rng(0))
    assert drawn_BS == pytest.approx(drawn, abs=0.1)
    untested = at(measured, of_clients(0.9, math.nan, 0.6), "0 mnist", "1 usps", "2 svhn")
    untested = of_samples(untested, **{"client-independent": [3, 2, 1]})
    assert strata(replace(untested, metric="client-accuracy.mean")) is None
