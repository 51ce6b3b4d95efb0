"""ABIDE: windows of a subject's series, their correlations, and subjects that are on one side only."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from layouts import write_site

from data import DataError, DataSettings, federate, load, resolve
from data.readers.abide import folds, read_site, window_correlations, windows_of
from data.readers.catalog import ALIASES


def test_a_window_is_the_upper_triangle_of_fisher_s_z():
    series = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    actual = window_correlations(series, 32, 3)
    assert actual.shape == ((50 - 32) // 3 + 1, 15) and actual.dtype == np.float32
    for window in range(len(actual)):
        correlation = np.corrcoef(
            series[3 * window : 3 * window + 32].astype(np.float64), rowvar=False
        )
        expected = [np.arctanh(correlation[i, j]) for i in range(6) for j in range(i + 1, 6)]
        assert np.allclose(actual[window], expected, atol=1e-5)


def test_constant_and_equal_regions_stay_finite():
    series = np.random.default_rng(0).normal(size=(40, 3))
    series[:, 1] = series[:, 0]
    series[:, 2] = 7.0
    actual = window_correlations(series, 32, 1)
    assert np.isfinite(actual).all()
    assert np.allclose(actual, np.tile([np.arctanh(1 - 1e-6), 0, 0], (9, 1)), atol=1e-3)


def test_subjects_are_on_one_side_and_every_subject_is_tested_once(tmp_path):
    arrays = write_site(tmp_path / "NYU.npz", subjects=13)
    tested = []
    for fold in range(5):
        raw = windows_of(read_site(tmp_path / "NYU.npz", DataSettings()), 32, 1, fold)
        train, test = set(raw.train.groups.tolist()), set(raw.test.groups.tolist())
        assert not train & test and train | test == set(range(13))
        tested += sorted(test)
        for split in (raw.train, raw.test):
            assert np.array_equal(split.labels, arrays["label"][split.groups])
            subjects, windows = np.unique(split.groups, return_counts=True)
            assert np.array_equal(windows, arrays["length"][subjects] - 31)
        start = arrays["length"][: raw.test.groups[0]].sum()
        first = window_correlations(arrays["ts"][start : start + 32], 32, 1)
        assert np.array_equal(raw.test.images[:1], first)
    assert sorted(tested) == list(range(13))


def test_folds_have_equal_shares_of_each_label():
    labels = np.random.default_rng(1).integers(0, 2, 163)
    parts = folds(labels, "NYU")
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert (
        max(labels[part].sum() for part in parts) - min(labels[part].sum() for part in parts) <= 1
    )


def test_sites_are_domains_and_no_two_share_a_subject(tmp_path):
    sites = ("NYU", "UM_1", "USM", "UCLA_1")
    for number, site in enumerate(sites):
        write_site(tmp_path / "abide" / f"{site}.npz", subjects=10 + number, seed=number)
    settings = DataSettings("abide", str(tmp_path), input_shape="10")
    data = load(settings)
    assert (
        data.domain_names
        == ALIASES["abide"]
        == ("abide-nyu", "abide-um-1", "abide-usm", "abide-ucla-1")
    )
    assert (data.class_names, data.shape, data.mean, data.std) == (
        ("control", "autism"),
        (10,),
        (0.0,),
        (1.0,),
    )
    federation = federate(settings, 0)
    seen = [set(federation.test(client).groups_N.tolist()) for client in range(4)]
    assert [len(part) for part in seen] == [2, 3, 3, 3]  # a fifth, the larger parts first
    assert len(set().union(*seen)) == sum(map(len, seen))
    for client in range(4):
        groups, labels = (
            federation.test(client).groups_N.numpy(),
            federation.test(client).labels_N.numpy(),
        )
        assert len(groups) == len(labels)
        assert all(len(set(labels[groups == subject])) == 1 for subject in seen[client]), (
            "one label a subject"
        )
    other = load(DataSettings("abide", str(tmp_path), input_shape="10", test_fold=1))
    assert other.content != data.content
    whole = federation.test()
    assert set(whole.groups_N.tolist()) == set().union(*seen) and len(whole.groups_N) == len(whole)
    assert whole.only(torch.tensor([5, 0])).groups_N.tolist() == whole.groups_N[[5, 0]].tolist()
    left_out = federate(replace(settings, unseen_domain="abide-usm"), 0).unseen_test()
    assert left_out.groups_N.tolist() == federation.test(2).groups_N.tolist()
    assert (
        federation.train(0).groups_N is None and federate(DataSettings(), 0).test().groups_N is None
    )


def test_the_full_set_s_width():
    resolved = resolve(DataSettings("abide"))
    assert (resolved.input_shape, resolved.clients, resolved.partition) == ("6105", 4, "domains")
    assert resolve(DataSettings("abide-nyu")).input_shape == "6105"


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        (
            {"length": np.full(10, 31), "ts": np.zeros((310, 5))},
            "subject 0 has 31 time points, window-width = 32",
        ),
        ({"ts": np.zeros((100, 5))}, "do not fit: ts must be (sum of length, regions)"),
        ({"label": None}, "label missing; the file holds"),
        (
            {"label": np.full(10, 2)},
            "train_labels: label 2 of 2 classes at index 0: labels must be 0..1",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(tmp_path, changed, rule):
    file = tmp_path / "abide" / "NYU.npz"
    arrays = {**write_site(file), **changed}
    np.savez(file, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(DataError, match=f"^{re.escape(str(file))}: .*{re.escape(rule)}"):
        load(DataSettings("abide-nyu", str(tmp_path), input_shape="10"))
