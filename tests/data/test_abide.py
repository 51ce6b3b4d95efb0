"""ABIDE: windows of a subject's series and their correlations, and who tests."""

import numpy as np
import pytest
from layouts import write_site

from data import DataError, DataSettings, load
from data.readers.named import folds, read_site, window_correlations


def test_a_window_is_the_upper_triangle_of_fisher_s_z():
    series = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    actual = window_correlations(series, 32, 3)
    assert actual.shape == ((50 - 32) // 3 + 1, 15) and actual.dtype == np.float32
    for window in range(len(actual)):
        part = series[3 * window : 3 * window + 32].astype(np.float64)
        correlation = np.corrcoef(part, rowvar=False)
        expected = [np.arctanh(correlation[i, j]) for i in range(6) for j in range(i + 1, 6)]
        assert np.allclose(actual[window], expected, atol=1e-5)


def test_subjects_are_on_one_side_and_every_subject_is_tested_once(tmp_path):
    arrays = write_site(tmp_path / "NYU.npz", subjects=13)
    tested = []
    for fold in range(5):
        raw = read_site(tmp_path / "NYU.npz", DataSettings(test_fold=fold))
        train, test = set(raw.train.subjects.tolist()), set(raw.test.subjects.tolist())
        assert not train & test and train | test == set(range(13))
        tested += sorted(test)
        for split in (raw.train, raw.test):
            assert np.array_equal(split.labels, arrays["label"][split.subjects])
            subjects, windows = np.unique(split.subjects, return_counts=True)
            assert np.array_equal(windows, arrays["length"][subjects] - 31)
    assert sorted(tested) == list(range(13))


def test_folds_have_equal_shares_of_each_label():
    labels = np.random.default_rng(1).integers(0, 2, 163)
    parts = folds(labels, "NYU")
    assert np.ptp([len(part) for part in parts]) <= 1
    assert np.ptp([labels[part].sum() for part in parts]) <= 1


@pytest.mark.parametrize(
    "changed",
    [
        {"length": np.full(10, 31), "ts": np.zeros((310, 5))},
        {"ts": np.zeros((100, 5))},
        {"label": np.full(10, 2)},
        {"label": np.full(10, 0.5)},
        {"label": np.zeros(0), "length": np.zeros(0, int), "ts": np.zeros((0, 5))},
        {"label": np.array(1), "length": np.array(40), "ts": np.zeros((40, 5))},
        {"label": np.ones(1), "length": np.array([40]), "ts": np.zeros((40, 5))},
        {"label": np.ones(1), "length": np.array([40]), "ts": np.full((40, 5), np.nan)},
    ],
    ids=[
        "too short",
        "another length",
        "another label",
        "no whole label",
        "nobody",
        "no list",
        "one subject",
        "NaN",
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, changed):
    file = tmp_path / "abide" / "NYU.npz"
    arrays = write_site(file)
    settings = DataSettings("abide-nyu", str(tmp_path), input_shape="10")
    load(settings)
    np.savez(file, **{**arrays, **changed})
    with pytest.raises(DataError) as caught:
        load(settings)
    assert caught.value.where == str(file)
