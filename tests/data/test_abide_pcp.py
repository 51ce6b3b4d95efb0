"""ABIDE as nilearn leaves it: the .1D files, the diagnoses, and the download that never happens in a test."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import write_pcp, write_site

from data import DataError, DataSettings, load
from data.readers.abide import PHENOTYPES, incomplete, read_pcp, read_site, windows_of


def settings(root: Path, **more) -> DataSettings:
    return DataSettings("abide-nyu", str(root), input_shape="10", **more)


def test_series_and_diagnoses(tmp_path):
    series = write_pcp(tmp_path)
    write_pcp(tmp_path, "UM_1", 4, 50272)
    site = read_pcp(tmp_path, "NYU")
    assert (
        site.name == "NYU" and site.labels.tolist() == [1, 0] * 5
    )  # DX_GROUP 1 is autism, 2 control
    assert len(site.series) == 10 and all(
        np.allclose(read, written, atol=1e-6)
        for read, written in zip(site.series, series, strict=True)
    )
    assert len(read_pcp(tmp_path, "UM_1").series) == 4


def test_equal_to_the_npz_file_of_the_same_subjects(tmp_path):
    arrays = write_site(tmp_path / "abide" / "NYU.npz")
    from_npz = load(settings(tmp_path))
    other = tmp_path / "other"
    series = write_pcp(other / "ABIDE_pcp")
    np.savez(tmp_path / "abide" / "NYU.npz", ts=np.concatenate(series), length=[len(scan) for scan in series],
             label=[1, 0] * 5)  # fmt: skip
    raw = windows_of(read_site(tmp_path / "abide" / "NYU.npz", DataSettings()), 32, 1, 0)
    data = load(settings(other))
    assert np.allclose(data.train_inputs, raw.train.images, atol=1e-4)
    assert np.array_equal(data.test_labels, raw.test.labels) and np.array_equal(
        data.test_groups, raw.test.groups
    )
    assert data.content != from_npz.content and len(arrays["label"]) == 10


def test_a_subject_with_a_region_outside_of_the_scan_is_left_out(tmp_path):
    write_pcp(tmp_path)
    file = tmp_path / "cpac/filt_noglobal/NYU_0050955_rois_ho.1D"
    series = np.loadtxt(file)
    series[:, 3] = 0
    np.savetxt(file, series, header="10\t11\t12\t4801\t4802", comments="#", delimiter="\t")
    site = read_pcp(tmp_path, "NYU")
    assert site.labels.tolist() == [1, 0, 1, 1, 0, 1, 0, 1, 0]


def changed(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "ABIDE_pcp"
    write_pcp(folder)
    csv, file = folder / PHENOTYPES, folder / "cpac/filt_noglobal/NYU_0050953_rois_ho.1D"
    if change == "two pipelines":
        write_pcp(folder, subjects=2, kind="ccs/nofilt_global")
    elif change == "not in the csv":
        csv.write_text(
            "\n".join(line for line in csv.read_text().splitlines() if "0050953" not in line)
        )
    elif change == "diagnosis":
        csv.write_text(csv.read_text().replace("NYU_0050953,2", "NYU_0050953,-9999"))
    elif change == "damaged":
        file.write_text(file.read_text() + "1.0\t2.0\n")
    elif change == "emptied":
        file.write_text("")
    elif change == "other regions":
        file.write_text(
            "\n".join(line.rsplit("\t", 1)[0] for line in file.read_text().splitlines())
        )
    elif change == "nobody":
        for scan in folder.glob("cpac/*/*.1D"):
            np.savetxt(scan, np.ones((40, 5)))
    elif change == "columns":
        csv.write_text("SUB_ID,DX_GROUP\n1,1\n")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            "two pipelines",
            "NYU is there as ccs/nofilt_global ho and as cpac/filt_noglobal ho: keep one of them",
        ),
        ("not in the csv", "DX_GROUP of NYU_0050953 is nothing: must be 1 or 2"),
        ("diagnosis", "DX_GROUP of NYU_0050953 is -9999: must be 1 or 2"),
        ("damaged", "NYU_0050953_rois_ho.1D: "),
        ("emptied", "NYU_0050953_rois_ho.1D: "),
        ("other regions", "subjects have 4 and 5 regions, not all the same"),
        ("nobody", "every subject of NYU has a region that never changes"),
        ("columns", "abide-nyu cannot be read: KeyError: 'SITE_ID'"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(tmp_path, change, rule):
    changed(tmp_path, change)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}.*{re.escape(rule)}"):
        load(settings(tmp_path))


def test_what_is_missing_can_be_downloaded(tmp_path):
    with pytest.raises(
        DataError, match=r"abide/NYU.npz or ABIDE_pcp/.*; set download = true to get it"
    ):
        load(settings(tmp_path))


def test_without_nilearn_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nilearn.datasets", None)
    message = "download = true: nilearn downloads ABIDE and is not installed: pip install 'fedskew[abide]'"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        load(settings(tmp_path, download=True))


def stand_in(monkeypatch, fetch) -> list[dict]:
    """Let `fetch` stand for nilearn's fetcher, and return the list of its calls."""
    calls: list[dict] = []

    def called(**options) -> None:
        calls.append(options)
        fetch(Path(options["data_dir"]) / "ABIDE_pcp")

    monkeypatch.setitem(sys.modules, "nilearn.datasets", SimpleNamespace(fetch_abide_pcp=called))
    return calls


def test_a_download_asks_nilearn_once_for_the_federated_study_s_files(tmp_path, monkeypatch):
    calls = stand_in(monkeypatch, write_pcp)
    data = load(settings(tmp_path, download=True))
    assert len(set(data.test_groups.tolist())) == 2
    wanted = {"pipeline": "cpac", "band_pass_filtering": True, "global_signal_regression": False,
              "derivatives": ["rois_ho"], "quality_checked": False, "SITE_ID": ["NYU"]}  # fmt: skip
    assert len(calls) == 1 and wanted.items() <= calls[0].items()
    assert (
        load(settings(tmp_path, download=True)).content
        == load(settings(tmp_path)).content
        == data.content
    )
    assert len(calls) == 1


def test_an_interrupted_download_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "ABIDE_pcp"
    assert incomplete(folder, "NYU")
    write_pcp(folder)
    assert not incomplete(folder, "NYU")
    (folder / "cpac/filt_noglobal/NYU_0050957_rois_ho.1D").unlink()
    assert incomplete(folder, "NYU")
    calls = stand_in(monkeypatch, write_pcp)
    data = load(settings(tmp_path, download=True))
    assert len(calls) == 1 and len(data.train_labels) + len(data.test_labels) == sum(
        len(series) - 31 for series in read_pcp(folder, "NYU").series
    )


def test_a_failing_download_is_one_sentence(tmp_path, monkeypatch):
    def offline(folder: Path) -> None:
        raise OSError("no network")

    stand_in(monkeypatch, offline)
    with pytest.raises(DataError, match="nilearn cannot download ABIDE: OSError: no network"):
        load(settings(tmp_path, download=True))
