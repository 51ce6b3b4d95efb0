"""Statements of papers: every form of the grammar on made numbers, the one rule, and the intervals' coverage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedskew.experiments.experiments import Claim, Experiment, experiment
from fedskew.experiments.plan import plan
from fedskew.experiments.statements import Statement, statement
from fedskew.report.claims import judge
from fedskew.report.inference import Comparison, Interval, compare, seeds_to_decide
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.run_records import RunRecords
from fedskew.report.statement_forms import Part, slope_weights
from fedskew.report.statements import (
    Judged,
    decide,
    is_at_chance,
    is_tied,
    judge_all,
    judge_statement,
    partition_fact,
)
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import points_of

COLUMNS = {"E = 1": {"local-epochs": 1}, "E = 5": {}, "E = 10": {"local-epochs": 10}}
Curves = Mapping[tuple[str, str], Sequence[Sequence[float] | None]]
"""By row and column: of each seed the accuracy by round, in percent; None where the run is missing."""


def made(curves: Curves, rounds: int = 1, **series: Sequence[float]) -> ExperimentResults:
    """Return results with these accuracies, and series of the rounds' records, the same in every run."""
    rows = list(dict.fromkeys(row for row, _ in curves))
    columns = list(dict.fromkeys(column for _, column in curves))
    seeds = max(len(of_cell) for of_cell in curves.values())
    entry = {
        "title": "made",
        "settings": {"dataset": "digits", "rounds": rounds},
        "methods": rows,
        "columns": {column: COLUMNS.get(column, {}) for column in columns},
        "metric": "accuracy",
        "seeds": list(range(seeds)),
    }
    named: Experiment = experiment("made", entry)
    cells = plan(named)
    runs: dict[str, RunRecords] = {}
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell in cells:
        curve = curves[cell.row, cell.column][cell.seed : cell.seed + 1]
        values = curve[0] if curve else None
        records = [] if values is None else records_of(cell.deployed, values, series)
        summary = None if values is None else {"models": {}}
        runs[cell.run.run_id] = RunRecords(cell.run, {}, records, summary)
        if values is not None:
            result = SeedResult(cell, runs[cell.run.run_id], points_of(records, cell.deployed))
            measured.setdefault((cell.row, cell.column), []).append(result)
    return ExperimentResults(named, cells, runs, measured, (), "")


def records_of(
    model: str, values: Sequence[float], series: Mapping[str, Sequence[float]]
) -> list[RoundRecord]:
    """Return a record for each accuracy in percent."""
    records = []
    for number, value in enumerate(values, 1):
        share = {"accuracy": value / 100, "balanced-accuracy": value / 100}
        metrics = {
            name.replace("_", "-"): of_round[number - 1] for name, of_round in series.items()
        }
        records.append(RoundRecord(number, {model: ModelNumbers(share)}, metrics=metrics))
    return records


def judged(results: ExperimentResults, test: Mapping[str, Any]) -> Judged:
    """Return the verdict on a statement about them."""
    known = {"made": results.experiment}
    entry = {
        "paper": "Made, Table 1",
        "says": "",
        "from": "made",
        "here": "made",
        "test": dict(test),
    }
    of_file: Statement = statement("one", entry, known, "file")
    return judge_statement(of_file, {"made": results}, "laptop")


def last(**rows: Sequence[Sequence[float] | float | None]) -> Curves:
    """Return curves of one round: of each row, by column of COLUMNS, the accuracy of every seed."""
    curves: dict[tuple[str, str], Sequence[Sequence[float] | None]] = {}
    for row, of_columns in rows.items():
        for column, of_seeds in zip(COLUMNS, of_columns, strict=False):
            assert isinstance(of_seeds, Sequence)
            curves[row, column] = [None if value is None else [value] for value in of_seeds]
    return curves


HIGH, LOW = [80.0, 81.0, 80.5], [70.0, 70.5, 70.2]
PAIR = {"better": "fedshift", "than": "fedavg"}


@pytest.mark.parametrize(
    ("fedshift", "fedavg", "status"),
    [
        ([HIGH], [LOW], "holds"),
        ([LOW], [HIGH], "fails"),
        ([[80.0, 70.0, 75.3]], [[75.0, 76.0, 74.0]], "never"),  # .1 of 5.5: thousands of seeds
        ([[75.0, 80.0, 78.0]], [[74.0, 75.0, 74.0]], "unclear"),
        ([LOW], [LOW], "fails"),  # a tie is not above
        ([HIGH, LOW], [LOW, HIGH], "fails"),  # one column lies below
        ([HIGH, [75.0, 80.0, 78.0]], [LOW, [74.0, 75.0, 74.0]], "unclear"),
        ([[80.0, None, None]], [[70.0, None, None]], "unclear"),  # one seed says nothing of others
        ([[80.0, 81.0, None]], [[70.0, 71.01, None]], "holds"),  # a missing seed counts nowhere
        ([[None, 81.0, None]], [[70.0, None, 70.0]], "open"),
    ],
)
def test_a_pair_is_judged_by_its_interval(fedshift: Any, fedavg: Any, status: str) -> None:
    verdict = judged(made(last(fedshift=fedshift, fedavg=fedavg)), PAIR)
    assert verdict.status == status
    assert verdict.is_measured == (status != "open")


def test_the_p_of_several_columns_is_the_largest_of_those_it_needs() -> None:
    """An intersection-union test: the column whose interval reaches lowest may have a smaller p than another one."""
    draws = np.random.default_rng(0)
    others = 0
    for _ in range(40):
        differences = draws.normal(2.0, 3.0, (3, 4)).round(3) + draws.normal(0, 2, (3, 1)).round(3)
        columns = {"fedavg": np.full((3, 4), 60.0), "fedshift": 60.0 + differences}
        results = made(last(**{row: of_row.tolist() for row, of_row in columns.items()}))
        p_values = ttest_1samp(differences, 1.0, axis=1).pvalue
        one_sided = ttest_1samp(differences, 1.0, axis=1, alternative="greater").pvalue
        for among in (0, 1, 2):
            pair: dict[str, Any] = {**PAIR, "by": 1.0}
            if among:
                pair["in_columns"] = among
            needed = np.argsort(one_sided)[: among or 3]
            claims = (Claim("made", **pair),)
            of_claims = replace(results, experiment=replace(results.experiment, claims=claims))
            for verdict in (judged(results, pair), *judge(of_claims)):
                assert verdict.interval is not None
                assert verdict.interval.p == pytest.approx(p_values[needed].max())
        others += p_values.argmax() != one_sided.argmax()
    assert others, (
        "in some draws another column than the one most against the claim has the largest p"
    )


def test_a_tie_that_other_test_examples_would_move_is_no_tie() -> None:
    equal = {0: 2.0, 1: 2.0}
    assert is_tied(Comparison(equal, Interval(2.0, 2.0, 0.0, "seeds")), 2.0)
    assert not is_tied(Comparison(equal, Interval(1.0, 3.0, 0.0, "seeds and test examples")), 2.0)
    assert is_tied(Comparison(equal, Interval(-1.0, 5.0, 0.0, "seeds"), rounding=0.4), 2.0)
    assert not is_tied(Comparison({0: 2.0}, Interval(2.0, 2.0, None, "seeds")), 2.0)
    assert not is_tied(Comparison({0: 2.0, 1: 1.0}, Interval(2.0, 2.0, 0.0, "seeds")), 2.0)


def test_the_numbers_of_a_failing_statement_are_of_the_part_that_refutes_it() -> None:
    # The first column's interval reaches lowest, from -11 to 12; the second one's lies below 0.
    wide, below = [[75.0, 80.0, 71.0], LOW], [[74.0, 75.0, 75.0], [70.9, 71.5, 71.1]]
    verdict = judged(made(last(fedshift=wide, fedavg=below)), PAIR)
    assert verdict.status == "fails"
    assert verdict.interval is not None and verdict.interval.high < 0
    assert verdict.estimate == pytest.approx(-0.933, abs=1e-3)
    undecided = judged(made(last(fedshift=wide, fedavg=[below[0], [70.1, 70.0, 70.5]])), PAIR)
    assert undecided.status != "fails" and undecided.estimate == pytest.approx(2 / 3, abs=1e-3)


def test_a_tie_that_refutes_is_shown_though_another_part_s_interval_ends_lower() -> None:
    results = made(last(fedshift=[HIGH, HIGH], fedavg=[LOW, LOW]))
    verdict = judged(results, PAIR)
    tied = Comparison({0: 2.0, 1: 2.0}, Interval(-1.0, 5.0, 0.0, "seeds"), rounding=0.4)
    undecided = Comparison({0: -9.0, 1: 2.0}, Interval(-9.0, 2.5, 0.5, "seeds"))
    parts = [Part(name, 2.0, lambda seed: "") for name in ("tied", "undecided")]
    for order in (1, -1):
        decided = decide(verdict, parts[::order], [tied, undecided][::order], among=2)
        assert (decided.status, decided.deciding) == ("fails", "tied")
    assert decide(verdict, parts[1:], [undecided], among=1).status != "fails"


def test_the_undecided_names_the_seeds_that_would_decide() -> None:
    verdict = judged(made(last(fedshift=[[75.0, 80.0, 78.0]], fedavg=[[74.0, 75.0, 74.0]])), PAIR)
    # differences 1, 5, 4: t(3) 2.0817 / sqrt(4) = 3.31 < 3.33, and t(2) 2.0817 / sqrt(3) = 5.17
    assert verdict.more_seeds == 4
    assert verdict.words == "not distinguishable: 4 seeds would decide"


def test_a_margin_moves_the_verdict() -> None:
    results = made(last(fedshift=[HIGH], fedavg=[LOW]))
    assert judged(results, {**PAIR, "by": 5}).status == "holds"
    assert judged(results, {**PAIR, "by": 15}).status == "fails"
    reversed_pair = {"better": "fedavg", "than": "fedshift", "by": -15}
    assert judged(results, reversed_pair).status == "holds"


def test_in_columns_needs_only_so_many() -> None:
    results = made(last(fedshift=[HIGH, HIGH, LOW], fedavg=[LOW, LOW, HIGH]))
    assert judged(results, {**PAIR, "in_columns": 2}).status == "holds"
    assert judged(results, {**PAIR, "in_columns": 3}).status == "fails"
    assert (judged(results, PAIR).above, judged(results, PAIR).parts) == (2, 3)


def test_a_level_at_chance_cannot_be_judged() -> None:
    near = [[10.0, 9.0, 9.5]]
    at_chance = made(last(fedshift=[[10.0, 10.0, 9.9]], fedavg=near))
    verdict = judged(at_chance, PAIR)
    assert (verdict.status, verdict.reason) == ("never", "the level in E = 1 is chance")
    assert not verdict.is_measured
    assert judged(made(last(fedshift=[HIGH], fedavg=near)), PAIR).status == "holds"

    # With 360 test images chance is 10 and its error 1.58 points: 12.9 is chance, 13.2 is not.
    measured = at_chance.of("fedavg", "E = 1")[0]
    origin = {"samples": {"test": [36] * 10}}
    for level, expected in ((12.9, True), (13.2, False)):
        points = points_of(records_of("average", [level], {}), "average")
        run = replace(measured.run, origin=origin)
        assert is_at_chance(replace(measured, run=run, points=points)) is expected


def curves(fedshift: Sequence[float], fedavg: Sequence[float], seeds: int = 3) -> ExperimentResults:
    """Return results of one column, the same curves in every seed."""
    both = {("fedshift", "E = 1"): [fedshift] * seeds, ("fedavg", "E = 1"): [fedavg] * seeds}
    return made(both, rounds=len(fedavg))


def test_sooner_and_so_many_times_sooner() -> None:
    slow = [20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0]
    fast = [60.0, 76.0, 77.0, 77.0, 77.0, 77.0, 77.0, 77.0]
    half = [60.0, 60.0, 60.0, 76.0, 77.0, 77.0, 77.0, 77.0]
    sooner = {**PAIR, "sooner": True}
    assert judged(curves(fast, slow), sooner).status == "holds"
    assert judged(curves(half, slow), sooner).status == "holds"
    assert judged(curves(slow, fast), sooner).status == "fails"
    # Round 2 of 8 is a quarter and round 4 is not: 8 - 3 * 2 = 2 rounds to spare, 8 - 3 * 4 = -4.
    assert judged(curves(fast, slow), {**sooner, "times": 3}).estimate == 2
    # 4.30 standard errors of sqrt((3^2 + 1^2) / 12) / sqrt(3) are 2.27: two rounds to spare are within the rounding.
    assert judged(curves(fast, slow), {**sooner, "times": 3}).status == "unclear"
    # 8 - 2 * 2 = 4 rounds to spare, and 1.60 of rounding.
    assert judged(curves(fast, slow), {**sooner, "times": 2}).status == "holds"
    assert judged(curves(half, slow), {**sooner, "times": 3}).status == "fails"
    # Exactly a quarter is no less than a quarter.
    assert judged(curves(fast, slow), {**sooner, "times": 4}).status == "fails"


def test_two_seeds_with_the_same_rounds_do_not_make_them_certain() -> None:
    slow = [20.0, 30.0, 40.0, 50.0, 60.0]
    a_round_sooner = [20.0, 30.0, 40.0, 60.0, 60.0]
    verdict = judged(curves(a_round_sooner, slow, seeds=2), {**PAIR, "sooner": True})
    # 12.71 standard errors of sqrt(2 / 12) / sqrt(2) are 3.67.
    assert verdict.estimate == 1 and verdict.interval is not None
    assert verdict.interval.low == pytest.approx(1 - 3.667, abs=1e-3)
    assert verdict.status == "unclear" and verdict.more_seeds == 4  # 3.18 * 0.408 / sqrt(4) = 0.65


def test_what_no_finished_seed_can_show_is_not_called_unmeasured() -> None:
    chance = [10.0, 10.0]
    sooner = {**PAIR, "sooner": True}
    reason = "fedavg's accuracy is had in the first evaluated round: nothing can be sooner there"
    for seeds, end in (([chance] * 2, ""), ([chance, None], ", in the seeds so far")):
        both = {("fedshift", "E = 1"): seeds, ("fedavg", "E = 1"): seeds}
        verdict = judged(made(both, rounds=2), sooner)
        assert (verdict.status, verdict.reason) == ("never", reason + end)
    none = {("fedshift", "E = 1"): [None, None], ("fedavg", "E = 1"): [None, None]}
    assert judged(made(none, rounds=2), sooner).status == "open"


def test_the_smoother_curve_changes_less_in_its_second_half() -> None:
    smooth = [10.0, 90.0, 20.0, 50.0, 51.0, 52.0, 53.0, 54.0]
    rough = [10.0, 20.0, 30.0, 40.0, 60.0, 50.0, 60.0, 50.0]
    term = {**PAIR, "smoother": True}
    verdict = judged(curves(smooth, rough), term)
    assert (verdict.status, verdict.estimate) == ("holds", pytest.approx(9.0))  # 10 minus 1
    assert judged(curves(rough, smooth), term).status == "fails"
    assert judged(curves(rough, rough), term).status == "fails"
    short = judged(curves(smooth[:3], rough[:3]), term)
    assert short.status == "never" and "fewer than four" in short.reason


RISING = [[60.0, 61.0, 60.0], [65.0, 66.5, 65.0], [70.0, 71.0, 70.5]]


@pytest.mark.parametrize(
    ("numbers", "test", "status"),
    [
        (RISING, {"trend": "rises"}, "holds"),
        (RISING, {"trend": "falls"}, "fails"),
        (RISING[::-1], {"trend": "falls"}, "holds"),
        (RISING[::-1], {"trend": "rises"}, "fails"),
        ([RISING[0], RISING[2], RISING[1]], {"trend": "rises"}, "fails"),  # up, then down
        ([RISING[0], RISING[2], RISING[1]], {"trend": "rises", "slack": 7}, "holds"),
        ([RISING[0]] * 3, {"trend": "rises"}, "fails"),  # all tied
        (RISING, {"trend": "rises", "by": 15}, "fails"),
        (RISING, {"trend": "rises", "by": 8}, "holds"),
        ([RISING[0], RISING[1], [70.0, None, 70.5]], {"trend": "rises"}, "holds"),
        ([RISING[0], RISING[1], [None, None, None]], {"trend": "rises"}, "open"),
    ],
)
def test_a_trend_needs_the_whole_rise_and_every_step(
    numbers: Any, test: Mapping[str, Any], status: str
) -> None:
    results = made(last(fedavg=numbers))
    assert judged(results, {**test, "over": ["fedavg"]}).status == status


def test_the_fitted_line_of_a_straight_line_is_the_line() -> None:
    for columns in (2, 3, 4, 6):
        values = [3.0 + 2.0 * step for step in range(columns)]
        rise = sum(w * v for w, v in zip(slope_weights(columns), values, strict=True))
        assert rise == pytest.approx(values[-1] - values[0])
        assert sum(slope_weights(columns)) == pytest.approx(0)


@pytest.mark.parametrize(
    ("fedshift", "fedavg", "gap", "status"),
    [
        (
            [[71.0, 71.1, 71.0], [75.0, 75.2, 75.0], [80.0, 80.3, 80.0]],
            [[70.0] * 3] * 3,
            "rises",
            "holds",
        ),
        (
            [[71.0, 71.1, 71.0], [75.0, 75.2, 75.0], [80.0, 80.3, 80.0]],
            [[70.0] * 3] * 3,
            "falls",
            "fails",
        ),
        # Both rise alike: the gap does not.
        (
            [[71.0] * 3, [76.0] * 3, [81.0] * 3],
            [[70.0] * 3, [75.0] * 3, [80.0] * 3],
            "rises",
            "fails",
        ),
    ],
)
def test_the_trend_of_a_difference(fedshift: Any, fedavg: Any, gap: str, status: str) -> None:
    results = made(last(fedshift=fedshift, fedavg=fedavg))
    assert judged(results, {"gap": gap, **PAIR}).status == status


def test_a_peak_is_above_every_other_column() -> None:
    low, high = RISING[0], RISING[2]
    peaked = made(last(fedavg=[low, high, low], fedshift=[low, high, low]))
    test = {"peak": "E = 5", "over": ["fedavg", "fedshift"]}
    assert judged(peaked, test).status == "holds"
    assert (
        judged(made(last(fedavg=[low, high, high])), {**test, "over": ["fedavg"]}).status == "fails"
    )
    one_rises = made(last(fedavg=[low, high, low], fedshift=[low, RISING[1], high]))
    assert judged(one_rises, test).status == "fails"
    # Of the difference from another row: largest at E = 5 although both rows peak at E = 10.
    gained = made(
        last(
            fedavg=[[50.0] * 3, [51.0] * 3, [60.0] * 3],
            fedshift=[[51.0] * 3, [58.0] * 3, [62.0] * 3],
        )
    )
    assert (
        judged(gained, {"peak": "E = 5", "over": ["fedshift"], "than": "fedavg"}).status == "holds"
    )
    assert judged(gained, {"peak": "E = 5", "over": ["fedshift"]}).status == "fails"


def test_a_knee_is_a_fall_that_is_larger_than_the_one_before() -> None:
    start, bend, end = [90.0, 90.5, 90.0], [88.0, 88.4, 88.0], [60.0, 60.2, 60.0]
    test = {"knee": "fedavg", "by": 10}
    assert judged(made(last(fedavg=[start, bend, end])), test).status == "holds"
    assert judged(made(last(fedavg=[start, bend, [85.0, 85.1, 85.0]])), test).status == "fails"
    # A straight fall has no knee, however deep.
    assert judged(made(last(fedavg=[[90.0] * 3, [70.0] * 3, [50.0] * 3])), test).status == "fails"


def test_a_series_of_the_records_falls_and_keeps_its_bounds() -> None:
    values = [0.84, 0.5, 0.08, 0.05]
    both = {("creff", "E = 1"): [[50.0] * 4] * 3}
    results = made(both, rounds=4, matching_loss_few=values)
    series = {"series": "matching-loss-few", "row": "creff"}
    assert judged(results, {**series, "below": 0.1, "by_round": 3}).status == "holds"
    assert judged(results, {**series, "below": 0.1, "by_round": 2}).status == "fails"
    assert judged(results, {**series, "falls": True}).status == "holds"
    assert judged(results, {**series, "falls": True, "stays_above": 0.04}).status == "holds"
    assert judged(results, {**series, "falls": True, "stays_above": 0.06}).status == "fails"
    late = judged(results, {**series, "below": 0.1, "by_round": 9})
    assert (late.status, late.reason) == ("never", "creff has no round 9")
    without = judged(made(both, rounds=4), {**series, "falls": True})
    assert without.status == "never" and "no matching loss few by round" in without.reason


@pytest.mark.parametrize(
    ("differences", "within", "status"),
    [
        ([0.3, -0.2, 0.1], 2, "holds"),
        ([0.3, -0.2, 0.1], 0.2, "unclear"),
        ([5.0, 5.2, 5.1], 2, "fails"),
        ([-5.0, -5.2, -5.1], 2, "fails"),
        ([0.0, 0.0, 0.0], 2, "holds"),
        ([4.0, -4.0, 2.0], 2, "never"),
    ],
)
def test_equivalence_is_two_one_sided_tests(
    differences: Sequence[float], within: float, status: str
) -> None:
    fedshift = [70.0 + difference for difference in differences]
    results = made(last(fedshift=[fedshift], fedavg=[[70.0] * 3]))
    verdict = judged(results, {"alike": ["fedshift", "fedavg"], "within": within})
    assert verdict.status in (status, "never" if status == "unclear" else status)


def test_facts_of_a_partition_need_no_training() -> None:
    results = made({("fedavg", "E = 1"): [None, None]})
    held = judged(results, {"partition": {"E = 1": "classes-held >= 2"}})
    assert held.status == "holds" and "classes-held" in held.reason
    failed = judged(results, {"partition": {"E = 1": "largest-class-share >= 0.99"}})
    assert failed.status == "fails" and "not >= 0.99" in failed.reason
    counts = np.array([[9, 1, 0], [5, 5, 0]])
    assert partition_fact("largest-class-share", counts) == pytest.approx(0.7)
    assert partition_fact("classes-held", counts) == 2


def test_a_closed_form_names_its_test() -> None:
    name = "tests/client_app/test_resampling.py::test_beta"
    verdict = judged(made({("fedavg", "E = 1"): [None]}), {"held_by": name})
    assert verdict.status == "holds" and name in verdict.reason


def test_p_values_are_corrected_within_a_paper() -> None:
    results = made(last(fedshift=[HIGH], fedavg=[LOW]))
    known = {"made": results.experiment}
    entry = {"says": "", "from": "made", "here": "made", "test": PAIR}
    statements = [
        statement(str(number), {**entry, "paper": paper}, known, "file")
        for number, paper in enumerate(["A, 1", "A, 2", "B, 1"])
    ]
    verdicts = judge_all(statements, {"made": results}, "laptop")
    first = verdicts[0].interval
    assert first is not None and first.p is not None
    corrected = [verdict.p_holm for verdict in verdicts]
    assert corrected == pytest.approx([2 * first.p, 2 * first.p, first.p])


def test_missing_data_are_named(tmp_path: Path) -> None:
    entry = {
        "title": "",
        "settings": {"dataset": "cifar100", "data-root": str(tmp_path)},
        "methods": ["fedavg", "fedshift"],
    }
    named = experiment("made", entry)
    cells = plan(named)
    runs = {cell.run.run_id: RunRecords(cell.run, {}, [], None) for cell in cells}
    verdict = judged(ExperimentResults(named, cells, runs, {}, (), ""), PAIR)
    assert verdict.words == "cannot be judged: CIFAR-100 is not in data-root"


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_mean_in_95_of_100_cases(seeds: int) -> None:
    draws = np.random.default_rng(0)
    covered = 0
    for case in range(1000):
        differences = dict(enumerate(draws.normal(2.0, 3.0, seeds).tolist()))
        interval = compare(differences, [(None, None)] * seeds, (f"a{case}", "b")).interval
        assert interval is not None
        covered += interval.low <= 2.0 <= interval.high
    assert 930 <= covered <= 970


def test_no_number_of_seeds_decides_a_mean_at_the_margin() -> None:
    at_margin = compare({0: 1.0, 1: -1.0}, [(None, None)] * 2, ("a", "b"))
    assert seeds_to_decide(at_margin, 0.0) is None
    assert seeds_to_decide(Comparison({0: 1.0}, None), 0.0) is None
    one_seed = Interval(low=0.5, high=1.5, p=None, resampled="seeds and test examples")
    assert seeds_to_decide(Comparison({0: 1.0}, one_seed), 0.0) is None
    assert seeds_to_decide(Comparison({0: 1.0, 1: 2.0}, None), 0.0) is None
    wide = compare({0: 5.0, 1: 1.0, 2: 4.0}, [(None, None)] * 3, ("a", "b"))
    assert seeds_to_decide(wide, 0.0) == 4


@pytest.mark.parametrize(
    ("low", "high", "margin", "seeds"),
    [
        # Student's interval is the wider one: 2.1098 x 2 / sqrt(18) = 0.9946, 2.1009 x 2 / sqrt(19) = 0.9640
        (-3.9, 5.9, 0.003, 18),
        (-3.9, 5.9, 0.008, 19),
        (-3.9, 5.9, 1.997, 18),
        # The bootstrap's is, on the side of the margin: 6.01 x sqrt(3 / 109) = 0.9970
        (-5.01, 5.9, 0.0, 109),
        (-5.01, 5.9, 2.0, 18),
        (-3.9, 7.01, 2.0, 109),
        (-3.9, 7.01, 0.0, 18),
        (-3.9, 5.9, 0.999, 1000),  # no more are sought
    ],
)
def test_the_seeds_that_would_decide_by_hand(
    low: float, high: float, margin: float, seeds: int
) -> None:
    """Three seeds with mean 1 and standard deviation 2: Student's half width is 4.3027 x 2 / sqrt(3) = 4.9683."""
    interval = Interval(low, high, p=None, resampled="seeds")
    assert seeds_to_decide(Comparison({0: -1.0, 1: 1.0, 2: 3.0}, interval), margin) == seeds
