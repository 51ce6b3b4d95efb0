"""Claims: every form on made numbers, with a verdict that holds and one that does not."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fedskew.experiments import experiment
from fedskew.experiments.claims import claim_of
from fedskew.experiments.plan import plan
from fedskew.report.claims import Verdict, claim_json, judge_claim
from fedskew.report.results import ExperimentResults, measured_runs
from fedskew.report.runs import Run
from server_app.record import ModelNumbers, RoundRecord

COLUMNS = {"E = 1": {"local-epochs": 1}, "E = 5": {}, "E = 10": {"local-epochs": 10}}
Curves = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""By row and column: of each seed the accuracy by round, in percent."""


def made(curves: Curves, **series: Sequence[float]) -> ExperimentResults:
    """Return results with these accuracies, and series of the rounds' records, the same in every run."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    first = next(iter(curves.values()))
    entry = {
        "title": "made",
        "settings": {"dataset": "digits", "rounds": len(first[0])},
        "methods": rows,
        "columns": {column: COLUMNS[column] for column in columns},
        "metric": "accuracy",
        "seeds": list(range(len(first))),
    }
    named = experiment("made", entry)
    cells = plan(named)
    runs: dict[str, Run] = {}
    for cell in cells:
        records = []
        for number, value in enumerate(curves[cell.row, cell.column][cell.seed]):
            numbers = ModelNumbers({"accuracy": value / 100, "balanced-accuracy": value / 100})
            metrics = {
                name.replace("_", "-"): of_round[number] for name, of_round in series.items()
            }
            records.append(RoundRecord(number + 1, {cell.deployed: numbers}, metrics=metrics))
        runs[cell.run.run_id] = Run(cell.run, {}, records, {"models": {}})
    return ExperimentResults(named, cells, runs, measured_runs(cells, runs), (), "")


def judged(results: ExperimentResults, claim: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a claim about them."""
    return judge_claim(results, claim_of({"says": "", **claim}))


def last(**rows: Sequence[Sequence[float]]) -> Curves:
    """Return curves of one round: of each row, by column of COLUMNS, the accuracy of every seed."""
    return {
        (row, column): [[value] for value in of_seeds]
        for row, of_columns in rows.items()
        for column, of_seeds in zip(COLUMNS, of_columns, strict=False)
    }


HIGH, LOW = [80.0, 81.0, 80.5], [70.0, 70.5, 70.2]
PAIR = {"better": "fedshift", "than": "fedavg"}
BALANCED = {**PAIR, "metric": "balanced-accuracy"}

ROUGH, SMOOTH = (
    [10.0, 20.0, 30.0, 40.0, 60.0, 50.0, 60.0, 50.0],
    [10.0, 90.0, 20.0, 50.0, 51.0, 52.0, 53.0, 54.0],
)
SLOW = [20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0]
FAST = [60.0, 76.0, 77.0, 77.0, 77.0, 77.0, 77.0, 77.0]


def curves(fedshift: Sequence[float], fedavg: Sequence[float], **series: Any) -> ExperimentResults:
    """Return results of one column, the same curves in each of three seeds."""
    both = {("fedshift", "E = 1"): [fedshift] * 3, ("fedavg", "E = 1"): [fedavg] * 3}
    return made(both, **series)


RISING = [[60.0, 61.0, 60.0], [65.0, 66.5, 65.0], [70.0, 71.0, 70.5]]
FLAT = [[70.0] * 3] * 3
PEAK = [RISING[0], RISING[2], RISING[1]]
FALL = [[90.0, 90.5, 90.0], [88.0, 88.4, 88.0], [60.0, 60.2, 60.0]]
SOONER = {**PAIR, "sooner": True}
SERIES = {"series": "matching-loss", "row": "fedavg"}
ALIKE = {**PAIR, "within": 2}
RISES = {"trend": "rises", "over": ["fedavg"]}
GAP = {"over": ["fedshift"], "than": "fedavg", "slack": float("inf")}
KNEE = {"knee": True, "over": ["fedavg"], "by": 10}
SOME_LOSS = [0.84, 0.5, 0.08, 0.05]
FORMS: dict[str, tuple[ExperimentResults, Mapping[str, Any], str]] = {
    "above": (made(last(fedshift=[HIGH], fedavg=[LOW])), PAIR, "holds"),
    "a tie": (made(last(fedshift=[LOW], fedavg=[LOW])), PAIR, "fails"),
    "chance": (made(last(fedshift=[[10.0] * 3], fedavg=[[9.0] * 3])), BALANCED, "unclear"),
    "in three columns": (
        made(last(fedshift=[HIGH, HIGH, LOW], fedavg=[LOW, LOW, HIGH])), {**PAIR, "in_columns": 3}, "fails",
    ),
    "sooner": (curves(FAST, SLOW), SOONER, "holds"),
    "twice as soon": (curves(FAST, SLOW), {**SOONER, "times": 2}, "holds"),
    "exactly four times": (curves(FAST, SLOW), {**SOONER, "times": 4}, "fails"),
    "smoother": (curves(SMOOTH, ROUGH), {**PAIR, "smoother": True}, "holds"),
    "rises": (made(last(fedavg=RISING)), RISES, "holds"),
    "up and down": (made(last(fedavg=PEAK)), RISES, "fails"),
    "the gap rises": (made(last(fedshift=RISING, fedavg=FLAT)), {**GAP, "trend": "rises"}, "holds"),
    "the gap falls": (made(last(fedshift=RISING, fedavg=FLAT)), {**GAP, "trend": "falls"}, "fails"),
    "a peak": (made(last(fedavg=PEAK)), {"peak": "E = 5", "over": ["fedavg"]}, "holds"),
    "a knee": (made(last(fedavg=FALL)), KNEE, "holds"),
    "a straight fall": (
        made(last(fedavg=[[90.0] * 3, [70.0] * 3, [50.0] * 3])), KNEE, "fails",
    ),
    "below by round 3": (
        curves(FAST[:4], SLOW[:4], matching_loss=SOME_LOSS), {**SERIES, "below": 0.1, "by_round": 3}, "holds",
    ),
    "below by round 2": (
        curves(FAST[:4], SLOW[:4], matching_loss=SOME_LOSS), {**SERIES, "below": 0.1, "by_round": 2}, "fails",
    ),
    "a series that falls": (
        curves(FAST[:4], SLOW[:4], matching_loss=SOME_LOSS), {**SERIES, "falls": True, "stays_above": 0.04}, "holds",
    ),
    "a bound that is passed": (
        curves(FAST[:4], SLOW[:4], matching_loss=SOME_LOSS), {**SERIES, "falls": True, "stays_above": 0.06}, "fails",
    ),
    "a share below a bound": (
        curves(FAST, SLOW), {"series": "accuracy", "row": "fedavg", "below": 0.99, "by_round": 1}, "holds",
    ),
    "a share above a bound": (
        curves(FAST, SLOW), {"series": "accuracy", "row": "fedavg", "stays_above": 0.99}, "fails",
    ),
    "alike": (made(last(fedshift=[[70.3, 69.8, 70.1]], fedavg=[[70.0] * 3])), ALIKE, "holds"),
    "not alike": (made(last(fedshift=[[75.0, 75.2, 75.1]], fedavg=[[70.0] * 3])), ALIKE, "fails"),
    "an equation": (
        made(last(fedavg=[LOW])), {"held_by": "tests/data/test_x.py::test_y"}, "holds",
    ),
}  # fmt: skip
"""By name: the results, the claim, and its verdict."""


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_its_verdict(form):
    results, claim, status = FORMS[form]
    assert judged(results, claim).status == status


def test_the_numbers_are_those_of_the_column_that_decides():
    close = [70.0, 71.0, 70.4]
    verdict = judged(made(last(fedshift=[HIGH, close], fedavg=[LOW, LOW])), PAIR)
    assert (verdict.deciding, verdict.above, verdict.parts) == ("E = 5", 2, 2)
    wide, narrow = [60.0, 85.0, 80.0], [71.9, 72.0, 72.1]
    least = judged(made(last(fedshift=[wide, narrow], fedavg=[[70.0] * 3] * 2)), PAIR)
    assert (least.deciding, least.status) == ("E = 1", "unclear"), "its interval reaches lowest"
    assert verdict.status == "unclear" and list(verdict.found.by_seed.values()) == [
        0.0,
        0.5,
        pytest.approx(0.2),
    ]


def test_a_verdict_is_valid_json():
    """A claim that is not measured has no estimate, and an infinite slack no number."""
    claim = claim_of({"says": "", "over": ["fedavg"], "trend": "rises", "slack": float("inf")})
    entry = claim_json(Verdict(claim))
    assert json.loads(json.dumps(entry, allow_nan=False))["estimate"] is None
    assert entry["claim"]["slack"] is None
