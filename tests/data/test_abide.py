"""ABIDE: windows of a subject's series and their correlations, from npz files and as nilearn leaves it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import write_pcp, write_site

from data import DataError, DataSettings, load
from data.readers.abide import (
    PHENOTYPES,
    folds,
    incomplete,
    read_pcp,
    read_site,
    window_correlations,
    windows_of,
)


def settings(root, **more):
    return DataSettings("abide-nyu", str(root), input_shape="10", **more)


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
        raw = windows_of(read_site(tmp_path / "NYU.npz", DataSettings()), 1, fold)
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
    ],
    ids=["too short", "another length", "another label"],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, changed):
    file = tmp_path / "abide" / "NYU.npz"
    arrays = write_site(file)
    load(settings(tmp_path))
    np.savez(file, **{**arrays, **changed})
    with pytest.raises(DataError) as caught:
        load(settings(tmp_path))
    assert caught.value.where == str(file)


# ---- as nilearn leaves it --------------------------------------------------------------------------------------------


def test_series_and_diagnoses(tmp_path):
    series = write_pcp(tmp_path)
    site = read_pcp(tmp_path, "NYU")
    assert site.labels.tolist() == [1, 0] * 5  # DX_GROUP 1 is autism, 2 control
    for read, written in zip(site.series, series, strict=True):
        assert np.allclose(read, written, atol=1e-6)
    # A subject with a region outside of the scan is left out.
    file = tmp_path / "cpac/filt_noglobal/NYU_0050955_rois_ho.1D"
    dark = np.loadtxt(file)
    dark[:, 3] = 0
    np.savetxt(file, dark, header="10\t11\t12\t4801\t4802", comments="#", delimiter="\t")
    assert read_pcp(tmp_path, "NYU").labels.tolist() == [1, 0, 1, 1, 0, 1, 0, 1, 0]


SCAN = "cpac/filt_noglobal/NYU_0050953_rois_ho.1D"


def rewrite(file, change):
    return lambda folder: (folder / file).write_text(change((folder / file).read_text()))


CHANGES = {
    "two pipelines": lambda folder: write_pcp(folder, subjects=2, kind="ccs/nofilt_global"),
    "diagnosis": rewrite(PHENOTYPES, lambda text: text.replace("NYU_0050953,2", "NYU_0050953,-9")),
    "no table": lambda folder: (folder / PHENOTYPES).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_do_not_fit_are_refused(tmp_path, change):
    write_pcp(tmp_path / "ABIDE_pcp")
    load(settings(tmp_path))
    CHANGES[change](tmp_path / "ABIDE_pcp")
    with pytest.raises(DataError) as caught:
        load(settings(tmp_path))
    assert str(caught.value).startswith(str(tmp_path))


def stand_in(monkeypatch, fetch):
    """Let `fetch` stand for nilearn's fetcher, and return the list of its calls."""
    calls = []

    def called(**options):
        calls.append(options)
        fetch(Path(options["data_dir"]) / "ABIDE_pcp")

    monkeypatch.setitem(sys.modules, "nilearn.datasets", SimpleNamespace(fetch_abide_pcp=called))
    return calls


def test_a_download_asks_nilearn_once_for_the_federated_study_s_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nilearn.datasets", None)
    with pytest.raises(DataError) as caught:
        load(settings(tmp_path, download=True))
    assert "fedskew[abide]" in caught.value.rule
    calls = stand_in(monkeypatch, write_pcp)
    data = load(settings(tmp_path, download=True))
    wanted = {"pipeline": "cpac", "band_pass_filtering": True, "global_signal_regression": False,
              "derivatives": ["rois_ho"], "quality_checked": False, "SITE_ID": ["NYU"]}  # fmt: skip
    assert len(calls) == 1 and wanted.items() <= calls[0].items()
    assert load(settings(tmp_path, download=True)).content == data.content and len(calls) == 1


def test_an_interrupted_download_is_resumed_and_a_failing_one_refused(tmp_path, monkeypatch):
    folder = tmp_path / "ABIDE_pcp"
    write_pcp(folder)
    assert not incomplete(folder, "NYU")
    (folder / SCAN).unlink()
    assert incomplete(folder, "NYU")

    def offline(folder):
        raise OSError("no network")

    stand_in(monkeypatch, offline)
    with pytest.raises(DataError):
        load(settings(tmp_path, download=True))
    calls = stand_in(monkeypatch, write_pcp)
    load(settings(tmp_path, download=True))
    assert len(calls) == 1 and not incomplete(folder, "NYU")
