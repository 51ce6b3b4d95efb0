"""Tables get their names; what is known to fail there is named with its experiment."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data.partitions import Indices, iid, lda, llt
from data.subsets import long_tail
from fedskew.diagnosis.rules import RULES, diagnose, known_failures, skews
from fedskew.diagnosis.statistics import Shift, Statistics, statistics
from fedskew.diagnosis.table import Counts, Moments, SiteTable, site_table
from fedskew.experiments import find_all
from server_app.methods import METHODS

LABELS_N = np.arange(6000) % 10


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counted(parts: list[Indices], labels_N: Indices = LABELS_N) -> Counts:
    return np.stack([np.bincount(labels_N[part], minlength=10) for part in parts])


TAIL_N = LABELS_N[long_tail(LABELS_N, 10, 100, 0, drawn())]
TABLES = {
    "IID": (counted(iid(LABELS_N, 10, drawn())), set()),
    "LDA 0.05": (counted(lda(LABELS_N, 10, 0.05, drawn())), {"label", "quantity"}),
    "imbalance 100": (counted(iid(TAIL_N, 10, drawn()), TAIL_N), {"global tail"}),
    "LLT 0.9": (counted(llt(LABELS_N, 10, 10, 0.9, drawn())), {"local tails"}),
}


def table_of(counts_KC: Counts) -> SiteTable:
    """Return a table with numbers for names."""
    names = list(map(str, range(max(counts_KC.shape))))
    sites, classes = counts_KC.shape
    return site_table("", names[:sites], names[:classes], counts_KC)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_gets_its_names(name):
    counts_KC, names = TABLES[name]
    assert set(diagnose(table_of(counts_KC)).names) == names


def test_every_rule_has_its_experiment_which_claims_it_over_seeds():
    for rule in RULES:
        (experiment,) = find_all([rule.experiment])
        methods = {row.method for row in experiment.rows}
        assert rule.method in METHODS and rule.method in methods, rule
        below = [("fedavg", rule.method, True), (rule.method, "fedavg", False)]
        claims = [(claim.better, claim.than, claim.expected) for claim in experiment.claims]
        assert len(experiment.seeds) >= 3 and not {*below}.isdisjoint(claims), rule


@pytest.mark.parametrize(
    ("counts_KC", "dark", "confidence"),
    [
        (np.full((2, 4), 200), 30, "certain"),
        (np.diag([400, 400]), 30, "perhaps"),
        (np.full((2, 4), 200), 101, ""),
    ],
)
def test_scanners_beside_other_classes_are_less_sure(counts_KC, dark, confidence):
    moments = Moments(("brightness",), np.array([[100.0], [dark]]), np.array([[60.0], [60]]))
    found = diagnose(table_of(counts_KC), moments).skews
    scanners = [(skew.confidence, skew.because) for skew in found if skew.name == "scanner"]
    assert [word for word, _ in scanners] == [confidence] * bool(confidence)
    assert all("(brightness)" in because for _, because in scanners)


@pytest.mark.parametrize(
    ("counts_KC", "fails"),
    [
        (np.diag([200, 200, 200]), True),
        # One site trains: not measured.
        (np.array([[200, 0, 0], [0, 200, 0], [60, 60, 80]]), False),
        (np.array([[200, 0, 0], [0, 200, 0], [0, 1, 80]]), False),  # one sample makes a loss
    ],
)
def test_fedlc_is_known_to_fail_where_every_site_has_one_class(counts_KC, fails):
    """Its loss is zero there: fails-fedlc-one-class."""
    rules = known_failures(diagnose(table_of(counts_KC)))
    assert ("fedlc" in {rule.method for rule in rules}) == fails


@pytest.mark.parametrize(
    ("counts_KC", "fails"),
    [
        (np.diag([200, 200, 200]), True),
        (np.diag([200, 200, 203]), False),  # 201 a site
        (np.full((4, 4), 40), False),  # no site lacks a class
    ],
)
def test_fedshift_is_known_to_fail_where_sites_lack_classes_and_have_few_samples(counts_KC, fails):
    """Its interval is below 0 there: papers-shift-small."""
    rules = known_failures(diagnose(table_of(counts_KC)))
    assert ("fedshift" in {rule.method for rule in rules}) == fails


def shifted(**fields: float) -> str:
    """Return the reason of the scanner skew for a shift of features; empty where there is none."""
    usual = {"feature": "", "mean": 0.0, "mean_p": 1.0, "deviation": 1.0, "deviation_p": 1.0}
    shift = Shift(**{**usual, **fields})
    found = skews(statistics(np.full((2, 4), 200)), shift)
    return next((skew.because for skew in found if skew.name == "scanner"), "")


def test_a_shift_is_a_skew_where_it_is_large_and_no_chance():
    assert shifted(mean=0.6, mean_p=1e-9) == "a site's mean is 0.6 standard deviations from all"
    assert shifted(deviation=1.6, deviation_p=1e-9) == "standard deviations differ by 1.6"
    assert shifted(mean=0.6, mean_p=0.5) == shifted(mean=0.4, mean_p=1e-9) == ""
    assert shifted(deviation=1.6, deviation_p=0.5) == shifted(deviation=1.4, deviation_p=1e-9) == ""
    assert shifted(mean=0.5, mean_p=0.01) and shifted(deviation=1.5, deviation_p=0.01)
    assert not shifted(mean=0.5, mean_p=0.0101) and not shifted(deviation=1.5, deviation_p=0.0101)


def table_without_skew(**numbers: Any) -> Statistics:
    """Return the statistics of four equal sites and classes, but for these numbers."""
    return replace(statistics(np.full((4, 4), 200)), **numbers)


DIFFERENT = {"information_p": 0.01, "information_share": 0.02}


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({}, {}),
        (DIFFERENT, {"label": "likely"}),
        ({**DIFFERENT, "information_p": 0.0101}, {}),
        ({**DIFFERENT, "information_share": 0.0199}, {}),
        ({**DIFFERENT, "information_p": 0.001}, {"label": "certain"}),
        ({**DIFFERENT, "information_p": 0.0011}, {"label": "likely"}),
        ({**DIFFERENT, "missing_share": 0.24, "local_tail_share": 0.5}, {"local tails": "likely"}),
        ({**DIFFERENT, "missing_share": 0.25, "local_tail_share": 0.5}, {"label": "likely"}),
        ({**DIFFERENT, "missing_share": 0.24, "local_tail_share": 0.49}, {"label": "likely"}),
        ({"single_site_classes": (1,), "local_tail_share": 0.9}, {"label": "likely"}),
        ({"imbalance": 5.0, "tail_p": 0.01}, {"global tail": "likely"}),
        ({"imbalance": 5.0, "tail_p": 0.001}, {"global tail": "certain"}),
        ({"imbalance": 4.99, "tail_p": 0.001}, {}),
        ({"imbalance": 5.0, "tail_p": 0.0101}, {}),
        ({"size_ratio": 4.0, "size_p": 0.01}, {"quantity": "likely"}),
        ({"size_range": 5.0, "size_p": 0.001}, {"quantity": "certain"}),
        ({"size_ratio": 3.99, "size_range": 4.99, "size_p": 0.001}, {}),
        ({"size_ratio": 4.0, "size_range": 5.0, "size_p": 0.0101}, {}),
    ],
)
def test_a_skew_begins_at_its_threshold(numbers, named):
    """The thresholds are those of docs/guides/diagnose.md: at the threshold itself the skew is named."""
    found = skews(table_without_skew(**numbers), None)
    assert {skew.name: skew.confidence for skew in found} == named


def test_the_reasons_of_a_label_skew_are_counted():
    tailed = {**DIFFERENT, "missing_share": 0.125, "local_tail_share": 0.75}
    tailed |= {"one_class_sites": (2,), "single_site_classes": (0, 3)}
    (skew,) = skews(table_without_skew(**tailed), None)
    assert skew.because == (
        "the site tells 2% of a sample's class (p = 0.01), "
        "12% of the classes are missing where they should be, 1 site with one class, "
        "2 classes at one site alone, 75% of the samples are at sites with a tail of their own"
    )


@pytest.mark.parametrize(
    ("information_p", "resolution", "said"),
    [(0.0101, 0.051, True), (0.01, 0.051, False), (0.0101, 0.05, False)],
)
def test_too_few_samples_are_remarked_where_a_skew_could_hide(information_p, resolution, said):
    numbers = table_without_skew(information_p=information_p, resolution=resolution)
    found = replace(diagnose(table_of(np.full((4, 4), 200))), numbers=numbers)
    assert ("too few to see a label skew" in found.remark) == said
