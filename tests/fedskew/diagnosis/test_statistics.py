"""The statistics of a table of counts, in closed form and against permutations that are really drawn."""

import math

import numpy as np
import pytest

from fedskew.diagnosis.rules import Diagnosis, as_json, diagnose, line
from fedskew.diagnosis.statistics import (
    design_effects,
    equal_p,
    independent_samples,
    local_tail_share,
    permutation_p,
    shift_of,
    spread,
    statistics,
    subject_permutation_p,
)
from fedskew.diagnosis.table import Counts, Moments, Subjects, site_table


def table_of(counts_KC: Counts) -> Diagnosis:
    """Return the diagnosis of counts whose sites and classes are numbered."""
    sites, classes = counts_KC.shape
    names = [
        [f"{kind}{index}" for index in range(number)]
        for kind, number in (("s", sites), ("c", classes))
    ]
    return diagnose(site_table("counts", *names, counts_KC))


def test_by_hand() -> None:
    numbers = statistics(np.array([[30, 10], [10, 30]]))
    plain = 2 * 0.375 * math.log(0.375 / 0.25) + 2 * 0.125 * math.log(0.125 / 0.25)
    assert numbers.information == pytest.approx(plain - 1 / 160, rel=1e-12)
    assert numbers.information_share == pytest.approx(numbers.information / math.log(2), rel=1e-12)
    assert (numbers.effective_classes, numbers.imbalance, numbers.size_ratio) == (
        pytest.approx(2),
        1,
        1,
    )
    assert statistics(np.array([[5, 0], [0, 5]])).one_class_sites == (0, 1)
    long_tail = statistics(np.array([[80, 10, 10]] * 2))
    expected = math.exp(-0.8 * math.log(0.8) - 0.2 * math.log(0.1))
    assert (
        long_tail.effective_classes == pytest.approx(expected, rel=1e-12)
        and long_tail.imbalance == 8
    )
    assert long_tail.information == 0 and long_tail.information_p == 1


def test_three_sites_by_hand() -> None:
    counts_KC = np.array([[40, 10, 0], [30, 30, 20], [10, 20, 40]])
    sizes_K, pooled_C = [50, 80, 70], [80, 60, 60]
    numbers = statistics(counts_KC)
    assert (numbers.sites, numbers.classes, numbers.samples, numbers.subjects) == (3, 3, 200, 200)
    assert (numbers.smallest, numbers.median, numbers.largest) == (50, 70.0, 80)
    assert (numbers.size_ratio, numbers.size_range) == (80 / 60, 1.6)
    # chi^2 with two degrees of freedom exceeds x with probability exp(-x / 2)
    assert numbers.size_p == pytest.approx(math.exp(-7 / 2), rel=1e-12)
    assert numbers.tail_p == pytest.approx(math.exp(-4 / 2), rel=1e-12)
    assert numbers.imbalance == pytest.approx(4 / 3)
    assert numbers.missing_share == 1 / 9

    entropy = -sum(size / 200 * math.log(size / 200) for size in pooled_C)
    of_sites = -sum(size / 200 * math.log(size / 200) for size in sizes_K)
    assert numbers.effective_sites == pytest.approx(math.exp(of_sites), rel=1e-12)
    assert numbers.effective_classes == pytest.approx(math.exp(entropy), rel=1e-12)
    plain = sum(
        count / 200 * math.log(count * 200 / (sizes_K[site] * pooled_C[label]))
        for (site, label), count in np.ndenumerate(counts_KC)
        if count
    )
    assert numbers.information == pytest.approx(plain - 2 * 2 / 400, rel=1e-12)
    assert numbers.information_share == pytest.approx(numbers.information / entropy, rel=1e-12)
    assert numbers.resolution == pytest.approx(3.1 * math.sqrt(2 * 2 * 2) / (400 * entropy))
    other = statistics(np.full((3, 5), 40))
    assert other.resolution == pytest.approx(3.1 * math.sqrt(2 * 2 * 4) / (1200 * math.log(5)))


def test_where_five_samples_are_expected_their_absence_is_counted() -> None:
    """n_k n_c / N is 5 for the first class at the first site, and 4.9 where that site has a sample less."""
    at_five = statistics(np.array([[0, 50], [10, 40]]))
    assert at_five.missing_share == 1 / 4
    below = statistics(np.array([[0, 49], [10, 41]]))
    assert below.missing_share == 0


def test_a_single_cell_where_samples_should_be_can_be_the_missing_one() -> None:
    """One site of 20 samples without class 0, which 20 sites of one sample have: it should have 10 and has none."""
    counts_KC = np.zeros((21, 11), np.int64)
    counts_KC[0, 1:] = 2
    counts_KC[1:, 0] = 1
    assert statistics(counts_KC).missing_share == 1.0


def test_a_class_of_95_percent_dominates_its_site() -> None:
    numbers = statistics(np.array([[95, 5], [94, 6], [5, 95], [7, 0]]))
    assert numbers.dominated_sites == (0, 2, 3) and numbers.one_class_sites == (3,)


def test_the_permutations_mean_variance_and_p_are_those_of_drawn_ones() -> None:
    generator = np.random.default_rng(0)
    sizes_K, pooled_C = np.array([3, 9, 28]), np.array([20, 12, 5, 3])
    labels_N, sites_N = np.repeat(np.arange(4), pooled_C), np.repeat(np.arange(3), sizes_K)
    drawn = generator.permuted(np.tile(labels_N, (20_000, 1)), axis=1)
    counts_DKC = np.stack(
        [(drawn[:, sites_N == site, None] == np.arange(4)).sum(1) for site in range(3)], axis=1
    )
    expected_KC = sizes_K[:, None] * pooled_C / 40
    chi_square_D = ((counts_DKC - expected_KC) ** 2 / expected_KC).sum((1, 2))
    (v, w), (x, y) = spread(sizes_K, 40.0), spread(pooled_C, 40.0)
    variance = 80 / 37 * (v - w) * (x - y) + 1600 / 39 * w * y
    assert chi_square_D.mean() == pytest.approx(40 * 2 * 3 / 39, rel=0.01)
    assert chi_square_D.var() == pytest.approx(variance, rel=0.05)
    for share in (0.5, 0.9, 0.99):
        counts_KC = counts_DKC[np.argsort(chi_square_D)[int(share * 20_000)]]
        assert permutation_p(counts_KC) == pytest.approx(1 - share, abs=0.03)


def test_iid_tables_are_called_skewed_in_at_most_five_percent() -> None:
    """docs/guides/diagnose.md has 1,000; of the 200 here, a test at exactly 5 % would call 20 or more in 1 of 500."""
    generator = np.random.default_rng(7)
    tables = [
        np.maximum(generator.multinomial(600, np.full(40, 1 / 40)).reshape(8, 5), 0)
        for _ in range(200)
    ]
    assert sum(bool(table_of(counts_KC).skews) for counts_KC in tables) < 20


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_sites_or_classes_changes_anything(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts_KC = np.maximum(1, generator.negative_binomial(0.3, 0.01, (7, 6)))
    counts_KC[0], counts_KC[1:, 0] = [400, 0, 0, 0, 0, 0], 0
    rows, columns = generator.permutation(7), generator.permutation(6)
    sites, classes = [f"s{row}" for row in range(7)], [f"c{column}" for column in range(6)]
    moments = Moments(("",), generator.normal(size=(7, 1)), generator.uniform(1, 2, (7, 1)))
    first = diagnose(site_table("", sites, classes, counts_KC), moments)
    other = diagnose(
        site_table(
            "",
            [sites[row] for row in rows],
            [classes[column] for column in columns],
            counts_KC[rows][:, columns],
        ),
        Moments(("",), moments.means_KF[rows], moments.deviations_KF[rows]),
    )
    assert as_json(first) == as_json(other) and line(first) == line(other) and len(first.skews) > 1


def test_a_shift_of_moments_by_hand() -> None:
    sizes_K = np.array([100, 100])
    shift = shift_of(
        Moments(("a", "b"), np.array([[0.0, 5], [2, 5]]), np.array([[1.0, 1], [1, 1]])), sizes_K
    )
    assert (shift.feature, shift.mean, shift.deviation) == ("a", 1, 1) and shift.mean_p < 1e-20
    assert shift.deviation_p == 1
    shift = shift_of(Moments(("",), np.array([[0.0], [0]]), np.array([[1.0], [2]])), sizes_K)
    assert shift.deviation == pytest.approx(2) and shift.deviation_p < 1e-6 and shift.mean_p == 1
    alike = shift_of(Moments(("",), np.array([[0.0], [0.1]]), np.array([[1.0], [1.05]])), sizes_K)
    assert alike.mean_p > 0.05 and alike.deviation_p > 0.05

    # Two sites of 30 leave one degree of freedom: P(chi^2 > x) = erfc(sqrt(x / 2)), x = 2 * 29 * 2 * (ln 1.3 / 2)^2.
    wider = shift_of(Moments(("",), np.zeros((2, 1)), np.array([[1.3], [1.0]])), np.array([30, 30]))
    assert wider.deviation_p == pytest.approx(
        math.erfc(math.sqrt(29) * math.log(1.3) / math.sqrt(2))
    )


def test_the_json_of_a_diagnosis_names_sites_classes_and_known_failures() -> None:
    content = as_json(table_of(np.array([[60, 0], [60, 0], [0, 60]])))
    skews, failing, numbers = content["skews"], content["failing"], content["statistics"]
    assert isinstance(skews, list) and isinstance(failing, list) and isinstance(numbers, dict)
    assert [(skew["name"], skew["sure"]) for skew in skews] == [("label", "certain")]
    assert [(rule["method"], rule["experiment"]) for rule in failing] == [
        ("fedlc", "fails-fedlc-one-class")
    ]
    assert failing[0]["why"].startswith("it leaves classes that a site lacks out of its softmax")
    assert numbers["one-class-sites"] == numbers["dominated-sites"] == ["s0", "s1", "s2"]
    assert numbers["single-site-classes"] == ["c1"] and numbers["samples"] == 180
    assert content["moments"] is None and content["without-samples"] == []


def test_what_so_few_samples_cannot_show_is_said() -> None:
    diagnosis = table_of(np.array([[2, 1, 1], [1, 1, 2], [2, 2, 1]]))
    assert not diagnosis.skews and "too few" in diagnosis.remark
    assert line(diagnosis).startswith("Skew: none that so few samples show; scanners: ")
    assert "too few" not in table_of(np.full((3, 3), 500)).remark


def hospitals(
    draws: np.random.Generator, patients_K: list[int], rows: int, shares_KC: list[list[float]]
) -> tuple[Counts, Subjects]:
    """Return drawn hospitals: each patient has one class, drawn by the hospital's shares, and about so many rows."""
    site_S = np.repeat(np.arange(len(patients_K)), patients_K)
    counts_SC = np.zeros((len(site_S), len(shares_KC[0])), np.int64)
    for subject, site in enumerate(site_S):
        label = draws.choice(len(shares_KC[0]), p=shares_KC[site])
        counts_SC[subject, label] = 1 + draws.poisson(rows - 1)
    return table_of_subjects(site_S, counts_SC), Subjects(site_S, counts_SC)


def table_of_subjects(site_S: Counts, counts_SC: Counts) -> Counts:
    """Return (sites, classes): the subjects' samples."""
    counts_KC = np.zeros((int(site_S.max()) + 1, counts_SC.shape[1]), np.int64)
    np.add.at(counts_KC, site_S, counts_SC)
    return counts_KC


def test_subjects_of_one_sample_each_are_samples() -> None:
    counts_KC = np.array([[30, 10, 4], [10, 30, 2], [5, 5, 5]])
    cells = [(site, label) for (site, label), n in np.ndenumerate(counts_KC) for _ in range(n)]
    site_S = np.array([site for site, _ in cells])
    subjects = Subjects(site_S, np.eye(3, dtype=np.int64)[[label for _, label in cells]])
    by_samples, by_subjects = statistics(counts_KC), statistics(counts_KC, subjects)
    assert by_subjects.design_effect == pytest.approx(1)
    for name, value in vars(by_samples).items():
        assert vars(by_subjects)[name] == pytest.approx(value, rel=1e-9), name
    assert independent_samples(counts_KC, subjects) == pytest.approx(counts_KC.sum(1))


def test_p_of_subjects_is_that_of_drawn_permutations() -> None:
    """Patients of one to nine rows, of one class or of several."""
    draws = np.random.default_rng(5)
    site_S = np.repeat([0, 1, 2], [6, 10, 24])
    counts_SC = draws.multinomial(3, [0.5, 0.3, 0.2], 40) * draws.integers(1, 4, (40, 1))
    counts_KC = table_of_subjects(site_S, counts_SC)
    shares_C = counts_SC.sum(0) / counts_SC.sum()
    scaled_SC = (counts_SC - counts_SC.sum(1)[:, None] * shares_C) / np.sqrt(shares_C)
    places_SK = (site_S[:, None] == np.arange(3)) / np.sqrt(counts_KC.sum(1))
    drawn = np.array(
        [((places_SK.T @ scaled_SC[draws.permutation(40)]) ** 2).sum() for _ in range(20_000)]
    )
    observed = ((places_SK.T @ scaled_SC) ** 2).sum()
    p = subject_permutation_p(counts_KC, Subjects(site_S, counts_SC))
    assert p == pytest.approx((drawn >= observed).mean(), abs=0.03)


def test_rows_of_alike_patients_are_called_skewed_as_seldom_as_stated() -> None:
    """200 draws of equal hospitals, 3 x 20 patients x 8 rows: the level is 1 %; 6 or more of 200 have odds of 1 in 60.

    The same rows counted one by one, which the control does, are called skewed in most draws.
    """
    draws = np.random.default_rng(1)
    by_subjects, by_rows, p_below_005 = 0, 0, 0
    for _ in range(200):
        counts_KC, subjects = hospitals(draws, [20, 20, 20], 8, [[0.4, 0.3, 0.3]] * 3)
        names = ["abc", "xyz"]
        diagnosis = diagnose(site_table("drawn", *names, counts_KC, subjects))
        by_subjects += bool(diagnosis.skews)
        p_below_005 += diagnosis.numbers.information_p <= 0.05
        by_rows += bool(diagnose(site_table("drawn", *names, counts_KC)).skews)
    assert by_subjects < 6 and by_rows > 100
    assert 2 <= p_below_005 <= 20, "p is neither too small nor too large: 10 of 200 are expected"


def test_hospitals_of_other_classes_are_told_by_their_patients() -> None:
    """The control: a difference that is there is seen, in nearly every draw."""
    draws = np.random.default_rng(2)
    named = 0
    for _ in range(50):
        counts_KC, subjects = hospitals(
            draws, [30, 30, 30], 8, [[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]]
        )
        named += bool(diagnose(site_table("drawn", "abc", "xy", counts_KC, subjects)).skews)
    assert named > 45


def test_subjects_of_what_is_left_out_are_left_out() -> None:
    counts_KC = np.array([[4, 0, 2], [0, 0, 0], [2, 0, 8]])
    subjects = Subjects(np.array([0, 0, 2]), np.array([[4, 0, 0], [0, 0, 2], [2, 0, 8]]))
    kept = site_table("", "xyz", "abc", counts_KC, subjects).subjects
    assert kept is not None and kept.site_S.tolist() == [0, 0, 1]
    assert kept.counts_SC.tolist() == [[4, 0], [0, 2], [2, 8]]


def test_a_class_at_one_site_is_as_rare_as_its_patients() -> None:
    """Nine samples at one of two sites are no chance, unless they are one patient's."""
    counts_KC = np.array([[50, 9], [50, 0]])
    patients = Subjects(
        np.array([0] * 10 + [1] * 10), np.array([[5, 9]] + [[5, 0]] * 9 + [[5, 0]] * 10)
    )
    assert statistics(counts_KC).single_site_classes == (1,)
    assert statistics(counts_KC, patients).single_site_classes == ()


@pytest.mark.parametrize(("number", "found"), [(8, ()), (9, (1,))])
def test_a_class_at_one_of_two_equal_sites_is_no_chance_from_nine_samples(
    number: int, found: tuple[int, ...]
) -> None:
    """2 sites x 0.5^n, over 2 classes: 0.016 of eight samples, 0.008 of nine."""
    counts_KC = np.array([[50 - number, number], [50, 0]])
    assert statistics(counts_KC).single_site_classes == found


def test_sizes_of_sites_differ_by_patients() -> None:
    """Twenty patients of 10 rows against four: 5 to 1 in rows, which 24 patients do give at random in 1 of 900."""
    counts_KC = np.array([[100, 100], [20, 20]])
    ten_rows = Subjects(np.repeat([0, 1], [20, 4]), np.full((24, 2), 5))
    assert statistics(counts_KC).size_p < 1e-20
    assert 1e-4 < statistics(counts_KC, ten_rows).size_p < 1e-2


def test_heavy_tails_do_not_pass_for_another_scanner() -> None:
    """Standard deviations of log-normal laboratory values differ by 1.5 times and more among equal hospitals."""
    draws = np.random.default_rng(4)
    called = {"normal": 0, "own": 0}
    for _ in range(100):
        values_KN = draws.lognormal(0, 1, (4, 60))
        means, deviations = values_KN.mean(1)[:, None], values_KN.std(1)[:, None]
        centered_KN = values_KN - means
        kurtosis = np.array([(centered_KN**4).mean() / (centered_KN**2).mean() ** 2])
        for what, of_feature in (("normal", None), ("own", kurtosis)):
            moments = Moments(("",), means, deviations, of_feature)
            called[what] += shift_of(moments, np.full(4, 60)).deviation_p <= 0.01
    assert called["own"] <= 5 and called["normal"] > 30


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_the_unit_of_a_feature_changes_no_shift(scale: float) -> None:
    means_KF = np.array([[0.0, 0.4], [1.0, 0.0], [0.2, 0.2]])
    deviations_KF = np.array([[1.0, 0.7], [0.8, 1.2], [0.9, 1.0]])
    sizes_K = np.array([30, 50, 20])
    plain = shift_of(Moments(("a", "b"), means_KF, deviations_KF), sizes_K)
    scaled = shift_of(Moments(("a", "b"), scale * means_KF, scale * deviations_KF), sizes_K)
    assert scaled.feature == plain.feature == "a" and plain.mean > 0.5
    for name in ("mean", "mean_p", "deviation", "deviation_p"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-9), name


def test_a_feature_that_chance_explains_hides_no_other() -> None:
    sizes_K = np.array([6, 400, 400])
    moments = Moments(
        ("rare", "real"),
        np.array([[0.9, 0.0], [0.0, 0.0], [0.0, 0.8]]),
        np.ones((3, 2)),
    )
    assert shift_of(moments, sizes_K).feature == "real"


@pytest.mark.parametrize(("ratio", "furthest"), [(1.5**3, "spread"), (1.5**1.2, "shifted")])
def test_means_and_deviations_are_compared_by_their_thresholds(ratio: float, furthest: str) -> None:
    """A mean two thresholds apart is further than a ratio of 1.5 to the power of 1.2, and nearer than one of 3."""
    moments = Moments(
        ("shifted", "spread"),
        np.array([[1.5, 0.0], [0.0, 0.0], [0.0, 0.0]]),  # 1.0, two thresholds, from their mean
        np.array([[1.0, ratio], [1.0, 1.0], [1.0, 1.0]]),
    )
    shift = shift_of(moments, np.array([400, 400, 400]))
    assert shift.feature == furthest


def test_deviations_that_chance_explains_hide_no_feature_either() -> None:
    """With three samples a standard deviation is three times another's by chance."""
    moments = Moments(
        ("rare", "real"),
        np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.8]]),
        np.array([[3.0, 1.0], [1.0, 1.0], [1.5, 1.0], [1.5, 1.0]]),
    )
    sizes_K = np.array([3, 3, 400, 400])
    rare = Moments(("rare",), moments.means_KF[:, :1], moments.deviations_KF[:, :1])
    assert shift_of(rare, sizes_K).deviation_p > 0.01
    assert shift_of(moments, sizes_K).feature == "real"


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([39, 11], 0.0),  # 39.5 / 20.5 over 11.5 / 20.5 is 3.4
        ([86, 17], 0.0),  # 86.5 / 17.5 is 4.94
        ([88, 17], 1.0),  # 88.5 / 17.5 is 5.06
    ],
)
def test_a_tail_of_its_own_is_a_ratio_of_five(counts: list[int], share: float) -> None:
    assert local_tail_share(np.array([counts]), np.full((1, 2), 20.0)) == share


def test_one_patient_at_every_site_says_nothing() -> None:
    """Any permutation of five patients over five sites gives the same statistic, so that its variance is rounding."""
    counts_SC = np.array([[7, 0, 1], [1, 6, 1], [0, 3, 5], [4, 4, 0], [2, 0, 6]])
    p = subject_permutation_p(counts_SC, Subjects(np.arange(5), counts_SC))
    assert p == 1.0


def test_a_sample_at_every_site_says_nothing() -> None:
    """Any permutation of the classes of five samples over five sites gives the same statistic."""
    assert permutation_p(np.eye(5, dtype=np.int64)) == 1.0
    assert permutation_p(np.array([[3, 0], [0, 3]])) < 0.2


def test_too_few_samples_or_subjects_have_no_p() -> None:
    """Three have no variance over permutations; of four, two and two, one permutation in three gives the same table."""
    for counts in ([[1, 0], [1, 1]], [[1, 0], [0, 1]]):
        counts_KC = np.array(counts)
        samples = [cell for cell, count in np.ndenumerate(counts_KC) for _ in range(count)]
        site_S = np.array([site for site, _ in samples])
        counts_SC = np.eye(2, dtype=np.int64)[[label for _, label in samples]]
        assert permutation_p(counts_KC) == 1.0
        assert subject_permutation_p(counts_KC, Subjects(site_S, counts_SC)) == 1.0
    four = Subjects(np.array([0, 0, 1, 1]), np.eye(2, dtype=np.int64)[[0, 0, 1, 1]])
    apart = permutation_p(np.diag([2, 2]))
    assert 0 < apart < 0.5
    assert subject_permutation_p(np.diag([2, 2]), four) == pytest.approx(apart)


def test_design_effects_by_hand() -> None:
    """Eight rows of one class each count as one; three subjects of 1, 2 and 3 rows as 36 / 14 of a size."""
    alike = Subjects(np.zeros(3, np.int64), np.array([[8, 0, 0], [0, 8, 0], [0, 0, 8]]))
    assert design_effects(alike) == (pytest.approx(8), 8)
    one_each = Subjects(np.zeros(2, np.int64), np.array([[1, 1], [1, 1]]))
    assert design_effects(one_each) == (1.0, 2.0)  # below 1, 1 is the careful choice
    sizes = Subjects(np.array([0, 0, 1]), np.array([[1, 0], [0, 2], [3, 0]]))
    assert design_effects(sizes)[1] == pytest.approx(14 / 6)
    independent = independent_samples(np.array([[1, 2], [3, 0]]), sizes)
    assert independent == pytest.approx([9 / 5, 1])


def test_chi_square_is_divided_by_the_design_effect() -> None:
    """60 and 40 have chi^2 = 4 with one degree of freedom: P(chi^2 > x) = erfc(sqrt(x / 2))."""
    counts = np.array([60, 40])
    assert equal_p(counts) == pytest.approx(math.erfc(math.sqrt(2)), rel=1e-9)
    assert equal_p(counts, 2.0) == pytest.approx(math.erfc(1), rel=1e-9)


@pytest.mark.parametrize(("rest", "missing"), [(8, 1 / 3), (80, 0.0)])
def test_absence_is_counted_from_five_expected_independent_samples(
    rest: int, missing: float
) -> None:
    """Eight rows of a patient count as one: 41.7 expected rows are more than five patients, 30 are less.

    With 8 rows more at the second site three cells expect 40 rows, and one of them is empty.
    """
    counts_KC = np.array([[0, 96], [80, rest]])
    patients = [(0, 1)] * 12 + [(1, 0)] * 10 + [(1, 1)] * (rest // 8)
    site_S = np.array([site for site, _ in patients])
    counts_SC = 8 * np.eye(2, dtype=np.int64)[[label for _, label in patients]]
    numbers = statistics(counts_KC, Subjects(site_S, counts_SC))
    assert numbers.design_effect == pytest.approx(8) and numbers.subjects == len(patients)
    assert numbers.missing_share == missing
    entropy = -sum(p * math.log(p) for p in (80 / (176 + rest), (96 + rest) / (176 + rest)))
    expected = 3.1 * math.sqrt(2) / (2 * (176 + rest) / 8 * entropy)
    assert numbers.resolution == pytest.approx(expected)


def test_a_tail_needs_five_expected_independent_samples_of_two_classes() -> None:
    counts, expected = np.array([[88, 17]]), np.full((1, 2), 20.0)
    assert local_tail_share(counts, expected, 4.0) == 1.0
    assert local_tail_share(counts, expected, 4.01) == 0.0
    two_sites = np.array([[88, 17], [50, 45]])
    assert local_tail_share(two_sites, np.full((2, 2), 20.0)) == 105 / 200


def test_a_shift_of_sites_of_several_sizes_by_hand() -> None:
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
