"""Whose the training samples are: what the data say of it reaches the data set and the federation."""

from dataclasses import replace

import numpy as np
import pytest
from layouts import write_site

from data import DataError, DataSettings, federate, load
from data.export import write_sites

PATIENTS, ROWS = 10, 4


def write_table(path, extra=(), columns="subject"):
    """A table of numbers with ROWS rows of each of PATIENTS patients; the feature is the patient's number."""
    header = ",".join(["size", "label", columns, *extra])
    rows = []
    for patient in range(PATIENTS):
        more = [f"h{patient % 2}"] * len(extra)
        row = ",".join([str(patient), "ab"[patient // 2 % 2], f"p{patient}", *more])
        rows += [row] * ROWS
    path.write_text("\n".join([header, *rows]) + "\n")
    return DataSettings(f"csv:{path}", classes="a,b", input_shape="1")


def write_npz(path, **more):
    """Vectors of PATIENTS subjects on the training side and two others on the test side."""
    subjects = np.repeat(np.arange(PATIENTS), ROWS)
    arrays = {
        "train_images": subjects[:, None].astype(np.float32),
        "train_labels": subjects % 2,
        "test_images": np.repeat([100, 101], ROWS)[:, None].astype(np.float32),
        "test_labels": np.repeat([0, 1], ROWS),
    }
    np.savez(path, **arrays, **more)
    return DataSettings(f"npz:{path}", classes="a,b", input_shape="1")


def same_partition(groups, features):
    """Whether the groups name the samples' subjects, up to their numbers."""
    return len({*zip(groups.tolist(), features.ravel().tolist(), strict=True)}) == len(
        np.unique(groups)
    ) == len(np.unique(features))  # fmt: skip


def test_a_table_s_subjects_of_training_samples(tmp_path):
    data = load(write_table(tmp_path / "t.csv"))
    assert same_partition(data.train_groups, data.train_inputs)
    assert same_partition(data.test_subjects, data.test_inputs)
    assert np.array_equal(data.test_subjects, data.test_groups)


def test_patients_that_are_tested_row_by_row_are_known_all_the_same(tmp_path):
    settings = replace(
        write_table(tmp_path / "t.csv", ("site",), "patient"),
        columns="site=site,patient=patient",
    )
    data = load(settings)
    assert data.test_groups is None
    assert same_partition(data.train_groups, data.train_inputs)
    assert same_partition(data.test_subjects, data.test_inputs)
    federation = federate(settings, 0)
    for client in range(2):
        features = data.train_inputs[federation.train_indices[client]]
        assert same_partition(federation.subjects(client), features)


def test_an_npz_file_s_subjects(tmp_path):
    stated = {
        "train_subjects": np.repeat(np.arange(PATIENTS) + 50, ROWS),
        "test_subjects": np.repeat([7, 9], ROWS),
    }
    data = load(write_npz(tmp_path / "both.npz", **stated))
    assert same_partition(data.train_groups, data.train_inputs)
    assert data.test_groups.tolist() == np.repeat([0, 1], ROWS).tolist()
    test_side = {"test_subjects": stated["test_subjects"]}
    unsaid = load(write_npz(tmp_path / "test-alone.npz", **test_side))
    assert unsaid.train_groups is None and unsaid.test_subjects is not None
    assert unsaid.content == data.content  # partition files know data of earlier versions by it
    train_side = {"train_subjects": stated["train_subjects"]}
    by_rows = load(write_npz(tmp_path / "train-alone.npz", **train_side))
    assert by_rows.test_groups is None and same_partition(
        by_rows.train_groups, by_rows.train_inputs
    )


def test_a_subject_on_two_sides_of_an_npz_file_is_refused(tmp_path):
    stated = {"train_subjects": np.repeat(np.arange(PATIENTS), ROWS)}
    settings = write_npz(tmp_path / "x.npz", **stated, test_subjects=np.repeat([10, 3], ROWS))
    with pytest.raises(DataError, match="train_subjects: 3: is in test_subjects too"):
        load(settings)
    write_npz(tmp_path / "x.npz", **stated, test_subjects=np.repeat([10, 11], ROWS))
    assert load(settings).train_groups is not None


@pytest.mark.parametrize("wrong", [np.arange(3), np.full(PATIENTS * ROWS, 0.5)])
def test_subjects_that_are_no_whole_numbers_one_a_sample_are_refused(tmp_path, wrong):
    with pytest.raises(DataError, match=r"train_subjects: dtype .* must be whole numbers"):
        load(write_npz(tmp_path / "x.npz", train_subjects=wrong))


def test_abide_s_training_windows_know_their_subject(tmp_path):
    lengths = [
        write_site(tmp_path / "abide" / f"{site}.npz", subjects=10 + number, seed=number)["length"]
        for number, site in enumerate(("NYU", "UM_1", "USM", "UCLA_1"))
    ]
    federation = federate(DataSettings("abide", str(tmp_path), input_shape="10"), 0)
    seen = [np.unique(federation.subjects(client), return_counts=True) for client in range(4)]
    assert len(set(np.concatenate([subjects for subjects, _ in seen]))) == sum(
        len(subjects) for subjects, _ in seen
    )
    for (_, windows), length in zip(seen, lengths, strict=True):
        assert set(windows) <= set(length - 31)


def test_data_without_subjects_have_none():
    data = load(DataSettings())
    assert (data.train_groups, data.val_groups, data.test_subjects) == (None, None, None)
    assert federate(DataSettings(), 0).subjects(0) is None


def test_a_site_s_folder_says_whose_its_samples_are(tmp_path):
    for number, site in enumerate(("NYU", "UM_1", "USM", "UCLA_1")):
        write_site(tmp_path / "abide" / f"{site}.npz", subjects=20 + number, seed=number)
    stated = DataSettings("abide", str(tmp_path), input_shape="10", validation_fraction=0.3)
    federation = federate(stated, 0)
    for client, folder in enumerate(write_sites(federation, tmp_path / "sites", "abide")):
        site = load(DataSettings(f"npz:{folder / 'data.npz'}", classes="a,b", input_shape="10"))
        pairs = (
            (site.train_groups, federation.subjects(client)),
            (site.val_groups, federation.validation_subjects(client)),
            (site.test_subjects, federation.test(client).groups_N.numpy()),
        )
        for theirs, mine in pairs:
            joint = len({*zip(theirs.tolist(), mine.tolist(), strict=True)})
            assert joint == len(np.unique(theirs)) == len(np.unique(mine)) > 1


def test_damaged_subjects_in_a_cached_copy_are_read_anew(tmp_path):
    settings = replace(write_table(tmp_path / "t.csv"), cache=str(tmp_path / "cache"))
    before = load(settings)
    (file,) = (tmp_path / "cache").glob("*/train_groups.npy")
    np.save(file, np.load(file)[::-1])
    after = load(settings)
    assert np.array_equal(after.train_groups, before.train_groups)
    assert after.content == before.content
