"""The statistics of a table of counts, in closed form, and against permuted patients."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2_contingency, entropy
from sklearn.metrics import mutual_info_score

from fedskew.diagnosis.statistics import (
    design_effects,
    independent_samples,
    local_tail_share,
    shift_of,
    statistics,
)
from fedskew.diagnosis.table import Moments, Subjects


def test_three_sites_by_hand():
    counts_KC = np.array([[40, 10, 0], [30, 30, 20], [10, 20, 40]])
    pooled_C, sizes_K = [80, 60, 60], [50, 80, 70]
    plain = mutual_info_score(None, None, contingency=counts_KC)
    expected = {
        "sites": 3, "classes": 3, "samples": 200, "subjects": 200, "design_effect": 1,
        "smallest": 50, "median": 70, "largest": 80, "size_ratio": 80 / 60, "size_range": 1.6,
        # chi^2 with two degrees of freedom exceeds x with probability exp(-x / 2)
        "size_p": math.exp(-7 / 2), "tail_p": math.exp(-4 / 2), "imbalance": 4 / 3, "missing_share": 1 / 9,
        "effective_sites": math.exp(entropy(sizes_K)), "effective_classes": math.exp(entropy(pooled_C)),
        "information": plain - 2 * 2 / 400, "information_share": (plain - 2 * 2 / 400) / entropy(pooled_C),
        "resolution": 3.1 * math.sqrt(2 * 2 * 2) / (400 * entropy(pooled_C)),
    }  # fmt: skip
    numbers = vars(statistics(counts_KC))
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    other = statistics(np.full((3, 5), 40))
    assert (other.information, other.information_p) == (0, 1)
    assert other.resolution == pytest.approx(3.1 * math.sqrt(2 * 2 * 4) / (1200 * math.log(5)))


def test_where_five_samples_are_expected_their_absence_is_counted():
    """n_k n_c / N is 5 for the first class at the first site, and 4.9 where that site has a sample less."""
    at_five = statistics(np.array([[0, 50], [10, 40]]))
    assert at_five.missing_share == 1 / 4
    below = statistics(np.array([[0, 49], [10, 41]]))
    assert below.missing_share == 0


def test_p_of_samples_is_pearsons():
    counts_KC = np.array([[40, 10, 5], [30, 30, 20], [10, 20, 40]])
    numbers = statistics(counts_KC)
    assert numbers.information_p == pytest.approx(chi2_contingency(counts_KC).pvalue, rel=1e-9)
    patients = np.argwhere(np.ones_like(counts_KC)).repeat(counts_KC.ravel(), 0)
    one_each = Subjects(patients[:, 0], np.eye(3, dtype=np.int64)[patients[:, 1]])
    for name, value in vars(statistics(counts_KC, one_each)).items():
        assert vars(numbers)[name] == pytest.approx(value, rel=1e-9), name


def test_alike_rows_of_a_patient_count_as_one():
    counts_KC = np.array([[6, 2], [3, 7]])
    site_S = np.repeat([0, 0, 1, 1], counts_KC.ravel())
    rows_SC = 8 * np.eye(2, dtype=np.int64)[np.repeat([0, 1, 0, 1], counts_KC.ravel())]
    p = statistics(8 * counts_KC, Subjects(site_S, rows_SC)).information_p
    assert p == pytest.approx(statistics(counts_KC).information_p)


def test_a_class_at_one_site_is_as_rare_as_its_patients():
    """Nine samples at one of two sites are no chance, unless they are one patient's."""
    counts_KC = np.array([[50, 9], [50, 0]])
    patients = Subjects(
        np.array([0] * 10 + [1] * 10), np.array([[5, 9]] + [[5, 0]] * 9 + [[5, 0]] * 10)
    )
    assert statistics(counts_KC).single_site_classes == (1,)
    assert statistics(counts_KC, patients).single_site_classes == ()


def test_sites_of_one_patient_each_tell_no_shift_from_chance():
    moments = Moments(("age",), np.array([[0.0], [1.0], [2.0]]), np.ones((3, 1)))
    shift = shift_of(moments, np.array([1, 1, 1]))
    assert (shift.mean_p, shift.deviation, shift.deviation_p) == (1.0, 1.0, 1.0)
    assert shift_of(moments, np.array([99, 99, 99])).mean_p < 1e-9


@pytest.mark.parametrize(
    ("sizes", "means", "deviations"),
    [
        ([6, 400, 400, 400], [0.9, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]),
        ([3, 3, 400, 400], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 1.5, 1.5]),
    ],
)
def test_a_feature_that_chance_explains_hides_no_other(sizes, means, deviations):
    """A mean of six samples, or a standard deviation of three, is far from the others by chance."""
    real = [0.0, 0.0, 0.0, 0.8]
    both_KF = np.stack([means, real], 1), np.stack([deviations, np.ones(4)], 1)
    moments = Moments(("rare", "real"), *both_KF)
    rare = Moments(("rare",), moments.means_KF[:, :1], moments.deviations_KF[:, :1])
    alone = shift_of(rare, np.array(sizes))
    assert min(alone.deviation_p, alone.mean_p) > 0.01
    assert shift_of(moments, np.array(sizes)).feature == "real"


@pytest.mark.parametrize(
    ("counts_KC", "share"),
    [
        ([[39, 11]], 0.0),  # 39.5 / 20.5 over 11.5 / 20.5 is 3.4
        ([[86, 17]], 0.0),  # 86.5 / 17.5 is 4.94
        ([[88, 17]], 1.0),  # 88.5 / 17.5 is 5.06
        ([[88, 17], [39, 11]], 105 / 155),
    ],
)
def test_a_tail_of_its_own_is_a_ratio_of_five(counts_KC, share):
    expected_KC = np.full((len(counts_KC), 2), 20.0)
    assert local_tail_share(np.array(counts_KC), expected_KC, 1.0) == share


def test_independent_samples_by_hand():
    """Three subjects of 1, 2 and 3 rows, the first two at one site."""
    subjects = Subjects(np.array([0, 0, 1]), np.array([[1, 0], [0, 2], [3, 0]]))
    assert design_effects(subjects)[1] == pytest.approx(14 / 6)
    independent = independent_samples(np.array([[1, 2], [3, 0]]), subjects)
    assert independent == pytest.approx([9 / 5, 1])
    alike = Subjects(np.zeros(3, np.int64), 8 * np.eye(3, dtype=np.int64))
    assert design_effects(alike) == (pytest.approx(8), 8)
    one_each = Subjects(np.zeros(2, np.int64), np.array([[1, 1], [1, 1]]))
    assert design_effects(one_each) == (1.0, 2.0)  # below 1, 1 is the careful choice


def test_a_shift_of_sites_of_several_sizes_by_hand():
    """Three sites: variances pool by n - 1, means by n, and F has 2 and N - 3 degrees of freedom."""
    sizes_K = np.array([11, 21, 41])
    moments = Moments(("",), np.array([[0.0], [1.0], [1.0]]), np.array([[1.0], [2.0], [1.0]]))
    shift = shift_of(moments, sizes_K)
    overall = (21 + 41) / 73
    pooled = (10 * 1 + 20 * 4 + 40 * 1) / 70
    assert shift.mean == pytest.approx(overall / math.sqrt(pooled))
    between = (11 * overall**2 + 62 * (1 - overall) ** 2) / 2
    # F with 2 and m degrees of freedom exceeds x with probability (1 + 2 x / m)^(-m / 2)
    assert shift.mean_p == pytest.approx((1 + 2 * between / pooled / 70) ** -35)
    center = 20 * math.log(2) / 70
    apart = 2 * (50 * center**2 + 20 * (math.log(2) - center) ** 2)
    assert shift.deviation == pytest.approx(2)
    assert shift.deviation_p == pytest.approx(math.exp(-apart / 2))
    heavy = shift_of(replace(moments, kurtosis_F=np.array([9.0])), sizes_K)
    assert heavy.deviation_p == pytest.approx(math.exp(-apart / 8)), "2 / (kurtosis - 1) of it"
    twice = Moments(
        ("a", "b"), *(part.repeat(2, 1) for part in (moments.means_KF, moments.deviations_KF))
    )
    of_two = shift_of(twice, sizes_K)
    assert of_two.mean_p == pytest.approx(2 * shift.mean_p), "Bonferroni over features"
    assert of_two.deviation_p == pytest.approx(2 * shift.deviation_p)
    alike = shift_of(Moments(("a", "b"), np.zeros((3, 2)), np.ones((3, 2))), sizes_K)
    assert (alike.mean_p, alike.deviation_p) == (1, 1)
