"""The numbers of a report: against closed forms, by hand, and by identities."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from frozen import ENTRY, frozen_results

from data import SettingError
from fedskew.report.claims import judge
from fedskew.report.differences import differences
from fedskew.report.format import words_and_unit
from fedskew.report.inference import (
    Interval,
    Strata,
    Summary,
    among_highest,
    bootstrap,
    class_weights,
    compare,
    holm,
    independent_clients,
    measure,
    resample,
    strata,
)
from fedskew.report.inference import (
    verdict as side_of,
)
from fedskew.report.results import SeedResult
from fedskew.report.rounds_to_target import reach, reached, rounding_of
from server_app.keys import SELECTIONS
from server_app.record import ModelNumbers, RoundRecord, Spread
from server_app.round_selection import Point, select, summarize


def point(round: int, accuracy: float, validation: ModelNumbers | None = None) -> Point:
    numbers = ModelNumbers({"balanced-accuracy": accuracy}, [accuracy], validation=validation)
    return Point(RoundRecord(round, {"average": numbers}, metrics={"matching-loss": 0.5}), numbers)


def at(measured: SeedResult, numbers: ModelNumbers, *sites: str, **metrics: float) -> SeedResult:
    """Return a run with one evaluated round, of clients with these names and test sets of 10, 20, 40 samples."""
    points = (Point(RoundRecord(1, {"average": numbers}, metrics=metrics), numbers),)
    samples = {**measured.run.samples, "clients": sites, "client-test": [10, 20, 40][: len(sites)]}
    return replace(
        measured,
        points=points,
        run=replace(measured.run, origin={**measured.run.origin, "samples": samples}),
    )


@pytest.fixture
def measured(tmp_path: Path) -> SeedResult:
    return frozen_results(tmp_path).of("creff", "LDA 0.5")[0]


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
    for kept in (1, 4):  # of these the later one is the best: keep-best
        numbers = replace(points[kept].numbers, best=True)
        record = replace(points[kept].record, models={"average": numbers})
        points[kept] = Point(record, numbers)
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


def test_numbers_of_a_record_by_their_names(measured: SeedResult) -> None:
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
    metric: str, words: str, shown: float, measured: SeedResult
) -> None:
    numbers = ModelNumbers({"loss": 0.5}, spreads={"client-accuracy": Spread(worst=0.5)})
    assert words_and_unit(metric) == words
    assert measure(at(measured, numbers, **{metric: 0.5}), "last", metric) == shown


@pytest.mark.parametrize(
    "metric", ["balanced-accuracy", "local-accuracy.mean", "few-recall", "many-recall"]
)
def test_strata_give_the_recorded_number(metric: str, tmp_path: Path) -> None:
    for group in frozen_results(tmp_path).measured.values():
        for run in group:
            made_of = strata(run, "last", metric)
            assert made_of is not None and made_of.weights_G is not None
            assert made_of.weights_G.sum() == pytest.approx(1)
            # the frozen records keep three decimals
            assert 100 * made_of.weights_G @ made_of.rates_G == pytest.approx(
                measure(run, "last", metric), abs=0.1
            )


def test_local_accuracy_of_own_models_is_no_sum_of_the_recorded_recalls(tmp_path: Path) -> None:
    """Clients 0 and 1 hold one class each and are right there alone: 1 in local accuracy, recalls of a half."""
    run = next(iter(frozen_results(tmp_path).measured.values()))[0]
    numbers = run.points[-1].numbers
    spreads = {"local-accuracy": Spread(1.0, 1.0, 1.0, [1.0, 1.0])}
    assert strata(at(run, replace(numbers, spreads=spreads)), "last", "local-accuracy.mean")
    own = {**spreads, "client-accuracy": Spread(0.5, 0.5, 0.5, [0.5, 0.5])}
    assert strata(at(run, replace(numbers, spreads=own)), "last", "local-accuracy.mean") is None
    assert strata(at(run, replace(numbers, spreads=own)), "last", "balanced-accuracy")


def test_clients_with_test_sets_of_their_own_are_the_strata(measured: SeedResult) -> None:
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
    drawn = bootstrap(np.array([1.0, 3.0]), [(None, None)] * 2, seed=0)
    assert drawn is not None and (drawn.low, drawn.high, drawn.what) == (1.0, 3.0, "seeds")
    assert bootstrap(np.array([1.0]), [(None, None)], seed=0) is None


def test_certain_examples_leave_the_variation_of_the_seeds() -> None:
    sure = [Strata(np.array([share]), np.array([30]), np.array([1.0])) for share in (1.0, 0.0)]
    drawn = bootstrap(np.array([100.0, 100.0]), [(sure[0], sure[1])] * 2, seed=0)
    assert drawn is not None and (drawn.low, drawn.high) == (100.0, 100.0)
    assert drawn.what == "seeds and test examples"


def test_a_comparison_has_the_wider_interval_and_its_mirror() -> None:
    """Three seeds that agree, of a small test set: Student's interval is narrow, the test examples' is not."""
    good, bad = (
        Strata(np.array([share]), np.array([20]), np.array([1.0])) for share in (0.7, 0.65)
    )
    close = {0: 5.0, 1: 5.1, 2: 4.9}
    compared = compare(close, [(good, bad)] * 3, ("a", "b"))
    assert compared.interval is not None and compared.interval.p is not None
    assert compared.interval.low < 0 < 5 < compared.interval.high and compared.interval.p < 0.001
    assert compared.verdict() == "unclear"
    mirrored = compare({k: -v for k, v in close.items()}, [(bad, good)] * 3, ("b", "a")).interval
    assert mirrored is not None
    assert (mirrored.low, mirrored.high) == (-compared.interval.high, -compared.interval.low)
    large = [replace(part, sizes_G=np.array([200_000])) for part in (good, bad)]
    apart = compare(close, [(large[0], large[1])] * 3, ("a", "b"))
    assert apart.verdict() == "above" and apart.verdict(5.0) == "unclear"
    assert apart.verdict(9.0) == "below", "a whole interval below what is claimed"
    one = compare({0: 5.0}, [(large[0], large[1])], ("a", "b"))
    assert one.interval is not None and one.interval.p is None and one.verdict() == "unclear"


def test_an_interval_that_ends_at_the_margin_is_unclear() -> None:
    interval = Interval(low=1.0, high=3.0, p=0.01, resampled="seeds")
    for margin, side in ((0.9, "above"), (1.0, "unclear"), (3.0, "unclear"), (3.1, "below")):
        assert side_of(interval, 2, margin) == side
    assert side_of(interval, 1, 0.0) == "unclear"
    assert side_of(None, 2, 0.0) == "unclear"


def test_the_shares_of_subjects_of_runs_that_wrote_down_rows(measured: SeedResult) -> None:
    """70 rows of 7 subjects; a client with few rows has one subject at least, one without rows none."""
    samples = {**measured.run.samples, "client-test": [66, 4, 0]}
    numbers = ModelNumbers({}, [1.0, 1.0], confusion=[[4, 0], [0, 3]])
    clients = at(measured, numbers)
    clients = replace(clients, run=replace(clients.run, origin={"samples": samples}))
    assert independent_clients(clients) == [7, 1, 0]


def test_local_accuracy_weighs_classes_by_the_clients_that_can_be_tested(
    measured: SeedResult,
) -> None:
    """Client 0 has three quarters of class 0, client 1 a class without test samples alone, client 2 class 2 alone."""
    samples = {"train": [[3, 5, 1], [0, 9, 0], [0, 0, 2]], "test": [4, 0, 4]}
    run = replace(measured, run=replace(measured.run, origin={"samples": samples}))
    weights_C = class_weights("local-accuracy.mean", run, np.array([4, 0, 4]))
    assert weights_C is not None and weights_C.tolist() == [0.375, 0.0, 0.625]
    balanced_C = class_weights("balanced-accuracy", run, np.array([4, 0, 4]))
    assert balanced_C is not None and balanced_C.tolist() == [0.5, 0.0, 0.5]
    pooled_C = class_weights("accuracy", run, np.array([6, 0, 2]))
    assert pooled_C is not None and pooled_C.tolist() == [0.75, 0.0, 0.25]


def test_a_shot_group_s_recall_weighs_its_tested_classes_alone(measured: SeedResult) -> None:
    """Samples of 120, 110 and 10: two classes are many-shot, and the test set lacks the second."""
    samples = {"train": [[120, 110, 10]], "test": [4, 0, 4]}
    data = replace(measured.run.settings.data, imbalance_factor=10.0)
    settings = replace(measured.run.settings, data=data)
    records = replace(measured.run, origin={"samples": samples}, settings=settings)
    run = replace(measured, run=records)
    weights_C = class_weights("many-recall", run, np.array([4, 0, 4]))
    assert weights_C is not None and weights_C.tolist() == [1.0, 0.0, 0.0]


def test_among_the_highest_columns() -> None:
    values = np.array([[3.0, 1.0], [2.0, 5.0], [-1.0, 4.0]])
    assert among_highest(values, 3).tolist() == [-1.0, 1.0] == values.min(0).tolist()
    assert among_highest(values, 2).tolist() == [2.0, 4.0]


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]
    assert holm([0.7, 0.9]) == [1.0, 1.0]


def test_a_claim_holds_for_a_seed_when_it_does_in_every_column(tmp_path: Path) -> None:
    above, _, rare, far = judge(frozen_results(tmp_path))
    assert above.margins == {0: pytest.approx(1.9), 1: pytest.approx(4.2), 2: pytest.approx(-2.8)}
    assert (above.status, above.holds, above.n) == ("unclear", 2, 3)
    assert above.estimate == pytest.approx(((80.0 - 78.1) + (80.6 - 71.7) + (72.2 - 75.0)) / 3)
    # Its interval is above its margin, but among four claims that happens by chance: p is 0.018 and after Holm 0.072.
    assert rare.interval is not None and rare.interval.low > rare.claim.by
    assert (rare.status, far.holds, far.n, far.unmeasured) == ("unclear", 0, 2, 1)
    assert above.interval is not None and above.interval.low < above.estimate < above.interval.high


def test_a_claim_and_the_difference_it_is_about_have_one_interval_and_one_verdict(
    tmp_path: Path,
) -> None:
    """The trial's page said "holds +3.8 [-1.0, +10.1]" and below "[-9.6, +17.2], can be told: no"."""
    for column in ENTRY["columns"]:
        claims = [
            {"says": row, "better": row, "than": "fedavg", "columns": [column]}
            for row in ("creff", "fedshift")
        ]
        known = frozen_results(tmp_path, claims=claims)
        creff, fedshift = judge(known)
        claims.append({"says": "", "better": "fedavg", "than": "creff", "columns": [column]})
        mirrored = judge(frozen_results(tmp_path, claims=claims))[2]
        for verdict, shown in zip((creff, fedshift), differences(known, column), strict=True):
            assert verdict.claim.better == shown.row and verdict.interval is not None
            assert (verdict.interval.low, verdict.interval.high) == shown.ends
            assert verdict.p_holm == shown.p_holm
            assert (verdict.status == "holds") == (shown.distinguishable and shown.estimate > 0)
        assert creff.interval is not None and mirrored.interval is not None
        assert (mirrored.interval.low, mirrored.interval.high) == (
            -creff.interval.high,
            -creff.interval.low,
        )


def test_a_tick_needs_an_interval_that_leaves_out_the_margin(tmp_path: Path) -> None:
    """Above in every seed is no tick: the seeds are few, and so may be the test examples."""
    statuses = set()
    for by in (-60.0, 0.0, 8.9, 60.0):
        claim = {
            "says": "",
            "better": "fedshift",
            "than": "fedavg",
            "columns": ["LDA 0.1"],
            "by": by,
        }
        (verdict,) = judge(frozen_results(tmp_path, claims=[claim]))
        assert verdict.interval is not None
        low, high = verdict.interval.low, verdict.interval.high
        expected = "holds" if low > by else "fails" if high <= by else "unclear"
        assert verdict.status == expected
        statuses.add((verdict.status, verdict.holds == verdict.n))
    assert statuses == {("holds", True), ("unclear", True), ("unclear", False), ("fails", False)}
    claim = {"says": "", "better": "creff", "than": "fedavg", "columns": ["LDA 0.1"], "by": -60.0}
    (verdict,) = judge(frozen_results(tmp_path, claims=[claim], seeds=[0]))
    assert (verdict.status, verdict.n) == ("unclear", 1), "one seed says nothing of others"


def test_a_claim_in_some_columns_holds_where_the_best_of_them_do(tmp_path: Path) -> None:
    claim = {"says": "", "better": "creff", "than": "fedavg", "in_columns": 1}
    (verdict,) = judge(frozen_results(tmp_path, claims=[claim]))
    assert verdict.margins == {0: pytest.approx(3.9), 1: pytest.approx(8.9), 2: pytest.approx(1.9)}
    of_columns = [
        differences(frozen_results(tmp_path), column)[0].ends for column in ENTRY["columns"]
    ]
    assert verdict.interval is not None
    assert verdict.interval.low == max(low for low, _ in of_columns)
    assert verdict.interval.high == max(high for _, high in of_columns)


def test_sooner_counts_rounds_and_never_is_one_more_than_were_run(tmp_path: Path) -> None:
    sooner = judge(frozen_results(tmp_path))[1]
    assert sooner.margins == {0: 0, 1: 0, 2: -1}  # seed 2: creff ends at 72.2 and fedavg at 75.0
    assert (sooner.unit, sooner.status, sooner.holds) == ("rounds", "unclear", 0)


@pytest.mark.parametrize("times", [1.0, 4.0])
def test_rounding_is_that_of_times_drawn_between_two_evaluations(
    times: float, measured: SeedResult
) -> None:
    every_fifth = tuple(point(round, 0.5) for round in (5, 10, 15, 20))
    draws = np.random.default_rng(0)
    ours_N, theirs_N = draws.uniform(0, 20, (2, 100_000))
    rounded_N = np.ceil(theirs_N / 5) * 5 - times * np.ceil(ours_N / 5) * 5
    added_N = rounded_N - (theirs_N - times * ours_N)
    evaluated = replace(measured, points=every_fifth)
    assert rounding_of(evaluated, evaluated, times) == pytest.approx(added_N.std(), rel=0.01)


def test_reaching_an_accuracy_counts_rounds_and_bytes(tmp_path: Path) -> None:
    records = frozen_results(tmp_path)
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


def test_test_examples_are_drawn_by_subject(measured: SeedResult) -> None:
    """What settings.json says of subjects goes before rows; of earlier runs the confusion matrix tells them."""
    rows = strata(measured, "last", "balanced-accuracy")
    samples = measured.run.samples
    few = {**samples, "tested": samples["test"], "independent": [4] * 10}
    of_subjects = replace(measured, run=replace(measured.run, origin={"samples": few}))
    drawn = strata(of_subjects, "last", "balanced-accuracy")
    assert rows is not None and drawn is not None and rows.sizes_G.sum() == 360
    assert drawn.sizes_G.tolist() == [4] * 10
    assert drawn.weights_G is not None and rows.weights_G is not None
    assert drawn.weights_G.tolist() == rows.weights_G.tolist()
    numbers = replace(measured.points[-1].numbers, confusion=(5 * np.eye(10, dtype=int)).tolist())
    earlier = replace(measured, points=(replace(measured.points[-1], numbers=numbers),))
    told = strata(earlier, "last", "balanced-accuracy")
    assert told is not None and told.sizes_G.tolist() == [5] * 10

    spreads = {"client-accuracy": Spread(0.6, 0.4, 0.4, [0.9, 0.4, 0.6])}
    confusion = [[7, 0], [0, 7]]  # 14 subjects of 70 rows at the clients
    clients = at(
        measured, ModelNumbers({}, [1.0, 1.0], spreads, confusion=confusion), "0 a", "1 b", "2 c"
    )
    of_clients = strata(clients, "last", "client-accuracy.mean")
    assert of_clients is not None and of_clients.sizes_G.tolist() == [2, 4, 8]
    origin = {"samples": {**clients.run.samples, "client-independent": [3, 3, 3]}}
    stated = replace(clients, run=replace(clients.run, origin=origin))
    of_clients = strata(stated, "last", "client-accuracy.mean")
    assert of_clients is not None and of_clients.sizes_G.tolist() == [3, 3, 3]


def test_the_worst_decile_is_the_mean_of_the_lowest_clients_of_each_run() -> None:
    runs = [
        Strata(np.array([1.0, 0.0, 1.0]), np.array([5, 5, 5]), None, lowest=2),
        Strata(np.array([0.0, 0.0, 1.0]), np.array([5, 5, 5]), None, lowest=2),
    ]
    chosen_BS = np.array([[0, 1, 0], [1, 1, 1]])
    drawn_BS = resample(runs, chosen_BS, np.random.default_rng(0))
    assert drawn_BS.tolist() == [[50.0, 0.0, 50.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("clients", "lowest"), [(3, 1), (19, 1), (20, 2), (29, 2)])
def test_a_tenth_of_the_clients_is_rounded_down_but_one_at_least(
    clients: int, lowest: int, measured: SeedResult
) -> None:
    values = [0.5 + 0.01 * client for client in range(clients)]
    spreads = {"client-accuracy": Spread(0.6, 0.5, 0.5, values)}
    run = at(measured, replace(measured.points[-1].numbers, spreads=spreads))
    samples = {**run.run.samples, "client-independent": [10] * clients}
    samples["client-test"] = [10] * clients
    run = replace(run, run=replace(run.run, origin={"samples": samples}))
    made_of = strata(run, "last", "client-accuracy.worst-decile")
    assert made_of is not None and made_of.lowest == lowest


def test_rates_that_rounding_leads_outside_are_drawn_as_0_and_1() -> None:
    made_of = Strata(np.array([-1e-12, 1 + 1e-12]), np.array([5, 5]), np.array([0.25, 0.75]))
    drawn_BS = resample([made_of], np.zeros((10, 1), int), np.random.default_rng(0))
    assert (drawn_BS == 75.0).all()


@pytest.mark.parametrize("values", [[0.9, math.nan, 0.6], [0.9, 0.4]])
def test_a_client_without_a_score_has_no_strata(values: list[float], measured: SeedResult) -> None:
    """One client was not tested, or the record has other clients than the run."""
    numbers = replace(
        measured.points[-1].numbers, spreads={"client-accuracy": Spread(0.7, 0.4, 0.4, values)}
    )
    run = at(measured, numbers, "0 mnist", "1 usps", "2 svhn")
    assert strata(run, "last", "client-accuracy.mean") is None


def test_of_one_test_set_for_all_clients_their_mean_accuracy_is_the_accuracy(
    measured: SeedResult,
) -> None:
    samples = {**measured.run.samples, "test": [55, 5, *[5] * 8], "client-test": None}
    run = replace(measured, run=replace(measured.run, origin={"samples": samples}))
    of_clients = strata(run, "last", "client-accuracy.mean")
    assert of_clients is not None and of_clients.weights_G is not None
    assert of_clients.weights_G.tolist() == [0.55, *[0.05] * 9]
