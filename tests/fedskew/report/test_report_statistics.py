"""The numbers of a report: against closed forms, by hand, and by identities."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frozen import gathered

from fedskew.report.claims import judge, reach, reached
from fedskew.report.gather import Point
from fedskew.report.statistics import (
    Strata,
    Summary,
    among_highest,
    bootstrap,
    holm,
    measure,
    resample,
    select,
    signed_rank,
    strata,
)
from fedskew.report.table import words_and_unit
from server_app.results import summarize


def point(round: int, accuracy: float, **more: Any) -> Point:
    numbers = {"balanced-accuracy": accuracy, "recall": [accuracy], **more}
    return Point(numbers, {"round": round, "models": {"average": numbers}, "matching-loss": 0.5})


def test_mean_and_sample_standard_deviation() -> None:
    found = Summary({0: 70.0, 1: 74.0, 2: 78.0})
    assert (found.n, found.mean, found.sd) == (3, 74.0, 4.0)
    assert Summary({5: 1.0}).sd is None


@pytest.mark.parametrize("selection", ["last", "best-test", "best-validation", "mean-of-last-5", "mean-of-last-10"])
def test_selections_are_those_of_the_summary(selection: str) -> None:
    accuracies = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6, 0.55, 0.3, 0.2, 0.35]
    points = [point(k, a, validation={"balanced-accuracy": 1 - a}) for k, a in enumerate(accuracies, 1)]
    expected = summarize([dict(one.record) for one in points])["average"][selection]["balanced-accuracy"]
    assert np.mean([one.number("balanced-accuracy") for one in select(points, selection)]) == pytest.approx(expected)


def test_the_best_validation_round_is_that_of_the_mean_over_clients_where_they_measured() -> None:
    """As FedBN's authors choose it; the pooled balanced accuracy, here another round's, is for the server's numbers."""
    means = [0.6, 0.9, None, 0.7]
    for by_clients, best in ((True, 2), (False, 4)):
        numbers = [{"balanced-accuracy": k / 10, "client-accuracy": {"mean": mean}} for k, mean in enumerate(means, 1)]
        shown = ["balanced-accuracy", "client-accuracy"][: 1 + by_clients]
        points = [point(k, 0.5, validation={key: one[key] for key in shown}) for k, one in enumerate(numbers, 1)]
        (found,) = select(points, "best-validation")
        summary = summarize([dict(one.record) for one in points])["average"]["best-validation"]
        assert found.round == summary["round"] == best


def test_a_mean_over_more_rounds_than_there_are_is_none() -> None:
    assert len(select([point(1, 0.5)] * 4, "mean-of-last-5")) == 0


def test_numbers_of_a_record_by_their_names() -> None:
    one = point(1, 0.5, **{"client-accuracy": {"mean": 0.4, "values": [0.3, None]}, "loss": math.inf})
    names = ("client-accuracy.mean", "client-accuracy.values.0", "matching-loss")
    assert [one.number(name) for name in names] == [0.4, 0.3, 0.5]
    for absent in ("client-accuracy.values.1", "client-accuracy.values.7", "loss", "recall", "nothing", "round.deep"):
        assert one.number(absent) is None


@pytest.mark.parametrize(
    ("metric", "words", "shown"),
    [
        ("client-accuracy.worst", "client accuracy (worst) in percent", 50.0),
        ("loss", "loss in nats", 0.5),
        ("matching-loss-few", "matching loss few", 0.5),
        ("feature-dissimilarity-many", "feature dissimilarity many", 0.5),
    ],
)
def test_shares_are_in_percent_losses_in_nats_and_distances_without_a_unit(
    metric: str, words: str, shown: float, tmp_path: Path
) -> None:
    one = gathered(tmp_path).of("creff", "LDA 0.5")[0]
    record = {"round": 1, "loss": 0.5, "matching-loss-few": 0.5, "feature-dissimilarity-many": 0.5}
    points = (Point({"client-accuracy": {"worst": 0.5}}, record),)
    assert words_and_unit(metric) == words
    assert measure(replace(one, points=points), "last", metric) == shown


@pytest.mark.parametrize("metric", ["balanced-accuracy", "local-accuracy.mean", "few-recall", "many-recall"])
def test_strata_give_the_recorded_number(metric: str, tmp_path: Path) -> None:
    for group in gathered(tmp_path).measured.values():
        for one in group:
            made_of = strata(one, "last", metric)
            assert made_of is not None and made_of.weights_G is not None
            assert made_of.weights_G.sum() == pytest.approx(1)
            # the frozen records keep three decimals
            assert 100 * made_of.weights_G @ made_of.rates_G == pytest.approx(measure(one, "last", metric), abs=0.1)


def test_clients_with_test_sets_of_their_own_are_the_strata(tmp_path: Path) -> None:
    one = gathered(tmp_path).of("fedavg", "LDA 0.1")[0]
    values = [0.9, 0.4, 0.6]
    numbers = {**one.points[-1].numbers, "client-accuracy": {"values": values, "mean": 0.6333, "worst": 0.4}}
    told = {**one.run.told, "samples": {**one.run.samples, "client-test": [10, 20, 40]}}
    own = replace(one, run=replace(one.run, told=told), points=(Point(numbers, one.points[-1].record),))
    for metric, lowest in (("client-accuracy.mean", 3), ("client-accuracy.worst", 1)):
        made_of = strata(own, "last", metric)
        assert made_of is not None and made_of.lowest == lowest
        assert made_of.sizes_G.tolist() == [10, 20, 40] and made_of.rates_G.tolist() == values
    second = strata(own, "last", "client-accuracy.values.1")
    assert second is not None and second.weights_G is not None and second.weights_G @ second.rates_G == 0.4
    assert strata(own, "last", "loss") is None


def test_resampled_examples_have_the_binomial_variance() -> None:
    sizes, rates, weights = np.array([50, 20, 200]), np.array([0.9, 0.5, 0.7]), np.array([0.2, 0.5, 0.3])
    drawn = resample([Strata(rates, sizes, weights)], np.zeros((20_000, 1), int), np.random.default_rng(0))[:, 0]
    variance = (weights**2 * rates * (1 - rates) / sizes).sum()
    assert drawn.mean() == pytest.approx(100 * weights @ rates, abs=0.2)
    assert drawn.std() == pytest.approx(100 * math.sqrt(variance), rel=0.03)


def test_the_worst_client_is_drawn_as_a_minimum() -> None:
    made_of = Strata(np.array([1.0, 0.0, 1.0]), np.array([5, 5, 5]), None, 1)
    assert (resample([made_of], np.zeros((100, 1), int), np.random.default_rng(0)) == 0).all()


def test_an_interval_over_seeds_alone_is_that_of_their_means() -> None:
    differences = np.array([[1.0, 3.0]])
    nothing = [[(None, None)] * 2]
    found = bootstrap(differences, nothing, by=1.5, among=1, seed=0)
    assert found is not None and (found.low, found.high, found.resampled) == (1.0, 3.0, "seeds")
    assert found.probability == pytest.approx(0.75, abs=0.05)  # of 1 1, 1 3, 3 1, 3 3 three exceed it
    assert bootstrap(differences[:, :1], [[(None, None)]], by=0.0, among=1, seed=0) is None


def test_certain_examples_leave_the_variation_of_the_seeds() -> None:
    sure = [Strata(np.array([share]), np.array([30]), np.array([1.0])) for share in (1.0, 0.0)]
    found = bootstrap(np.array([[100.0, 100.0]]), [[(sure[0], sure[1])] * 2], by=0.0, among=1, seed=0)
    assert found is not None and (found.low, found.high, found.probability) == (100.0, 100.0, 1.0)
    assert found.resampled == "seeds and test examples"


def test_among_the_highest_columns() -> None:
    values = np.array([[3.0, 1.0], [2.0, 5.0], [-1.0, 4.0]])
    assert among_highest(values, 3).tolist() == [-1.0, 1.0] == values.min(0).tolist()
    assert among_highest(values, 2).tolist() == [2.0, 4.0]


def test_signed_rank_of_six_gains_is_one_in_sixty_four() -> None:
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(1 / 64)
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert signed_rank([0.0] * 6) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
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
    (one,) = judge(gathered(tmp_path, claims=[claim]))
    assert one.margins == {0: pytest.approx(3.9), 1: pytest.approx(8.9), 2: pytest.approx(1.9)}
    assert one.status == "holds"


def test_sooner_counts_rounds_and_never_is_one_more_than_were_run(tmp_path: Path) -> None:
    sooner = judge(gathered(tmp_path))[1]
    assert sooner.margins == {0: 0, 1: 0, 2: -1}  # seed 2: creff ends at 72.2 and fedavg at 75.0
    assert (sooner.unit, sooner.status) == ("rounds", "fails")


def test_reaching_an_accuracy_counts_rounds_and_bytes(tmp_path: Path) -> None:
    records = gathered(tmp_path)
    one = records.of("creff", "LDA 0.5")[2]
    found = reach(one, 72.0, "balanced-accuracy")
    assert found is not None and found.round == 2
    assert found.bytes == sum(record["bytes-down"] + record["bytes-up"] for record in one.run.records)
    first = reach(one, 0.0, "balanced-accuracy")
    assert first is not None and first.round == 1 and first.bytes < found.bytes
    assert reach(one, 100.0, "balanced-accuracy") is None
    assert reached(records, "creff", "LDA 0.5")[2] is None
    assert {seed: r.round for seed, r in reached(records, "fedavg", "LDA 0.5").items() if r} == {0: 2, 1: 2, 2: 2}
