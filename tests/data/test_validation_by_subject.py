"""Every cut of the training set goes between subjects, not through one, and a subject is validated as it is tested."""

from dataclasses import replace

import numpy as np
import pytest
from layouts import write_site
from test_training_subjects import write_npz

from data import DataSettings, SettingError, federate, load
from data.holdouts import _by_client_and_class, _validation_by_subject, most_common

SITES, PATIENTS, ROWS = 5, 30, 8


def hospitals(path, role="patient", site=True):
    """A table of SITES sites x PATIENTS patients x ROWS rows, with a class a patient; the feature names the patient."""
    rows = [f"size,label,{role}{',site' * site}"]
    for patient in range(SITES * PATIENTS):
        end = f",h{patient % SITES}" * site
        rows += [f"{patient},{'ab'[patient // SITES % 2]},p{patient}{end}"] * ROWS
    path.write_text("\n".join(rows) + "\n")
    columns = f"{role}={role}" + ",site=site" * site
    return DataSettings(f"csv:{path}", classes="a,b", input_shape="1", columns=columns)


def abide(folder):
    for number, site in enumerate(("NYU", "UM_1", "USM", "UCLA_1")):
        write_site(folder / "abide" / f"{site}.npz", subjects=30 + number, seed=number)
    return DataSettings("abide", str(folder), input_shape="10")


def shared(federation):
    """Return the share of validation samples whose subject is trained on by any client."""
    groups = federation.dataset.train_groups
    trained = np.concatenate(federation.train_indices)
    kept = np.concatenate(federation.validation_indices)
    return np.isin(groups[kept], groups[trained]).mean()


@pytest.mark.parametrize("partition", ["domains", "iid", "lda"])
def test_no_validation_row_shares_a_patient_with_training(tmp_path, partition):
    stated = replace(hospitals(tmp_path / "t.csv"), partition=partition, clients=SITES, alpha=0.5)
    stated = replace(stated, alpha=DataSettings.alpha if partition != "lda" else 0.5)
    whole = federate(stated, 1)
    cut = federate(replace(stated, validation_fraction=0.2), 1)
    assert shared(cut) == 0
    for client, kept in enumerate(cut.validation_indices):
        together = np.sort(np.concatenate([cut.train_indices[client], kept]))
        assert np.array_equal(together, whole.train_indices[client])
        assert len(cut.train_indices[client])


def test_a_share_of_the_patients_of_every_site_and_class_is_kept(tmp_path):
    cut = federate(replace(hospitals(tmp_path / "t.csv"), validation_fraction=0.25), 3)
    data = cut.dataset
    for kept, trained in zip(cut.validation_indices, cut.train_indices, strict=True):
        for label in range(2):
            patients, there = (
                len(np.unique(data.train_groups[part[data.train_labels[part] == label]]))
                for part in (kept, trained)
            )
            assert abs(patients - 0.25 * (patients + there)) < 1
            assert patients > 0


def test_abide_s_windows_of_one_subject_stay_together(tmp_path):
    stated = replace(abide(tmp_path), validation_fraction=0.2)
    cut = federate(stated, 0)
    assert shared(cut) == 0
    ordinary = federate(replace(stated, parts_per_domain=4), 0)
    assert shared(ordinary) == 0


def test_validation_subjects_are_scored_as_one_where_test_subjects_are(tmp_path):
    stated = replace(abide(tmp_path), validation_fraction=0.2)
    cut = federate(stated, 0)
    raced = federate(replace(stated, evaluate_on="validation"), 0)
    for client in range(4):
        kept = cut.validation_indices[client]
        subjects = np.unique(cut.dataset.train_groups[kept])
        assert set(cut.validation(client).groups_N.tolist()) == set(subjects.tolist())
        assert cut.tested_C("validation", client).sum() == len(subjects)
        assert set(raced.test(client).groups_N.tolist()) == set(subjects.tolist())
        assert raced.tested_C("test", client).sum() == len(subjects)
    table = hospitals(tmp_path / "t.csv")
    row_by_row = federate(replace(table, validation_fraction=0.2), 0)
    assert row_by_row.dataset.test_groups is None and row_by_row.validation(0).groups_N is None


def test_a_cut_through_subjects_that_nobody_knows_is_refused(tmp_path):
    test_subjects = np.repeat([70, 71], 4)
    stated = write_npz(tmp_path / "x.npz", test_subjects=test_subjects)
    for key in ("validation_fraction", "holdout_per_class"):
        share = 0.5 if key == "validation_fraction" else 4
        cut = replace(stated, partition="iid", clients=2, **{key: share})
        with pytest.raises(SettingError, match="does not say whose its training samples are"):
            federate(cut, 0)
    train_subjects = np.repeat(np.arange(10), 4)
    write_npz(tmp_path / "x.npz", test_subjects=test_subjects, train_subjects=train_subjects)
    known = federate(replace(stated, partition="iid", clients=2, validation_fraction=0.5), 0)
    assert shared(known) == 0
    assert set(known.validation().groups_N.tolist()) <= set(known.dataset.train_groups.tolist())


def test_brought_validation_samples_need_their_subjects_to_take_the_test_sets_place(tmp_path):
    stated = {
        "test_subjects": np.repeat([70, 71], 4),
        "val_images": np.full((6, 1), 0.5, np.float32),
        "val_labels": np.repeat([0, 1], 3),
    }
    settings = replace(write_npz(tmp_path / "x.npz", **stated), partition="pooled")
    with pytest.raises(SettingError, match="does not say whose its validation samples are"):
        federate(replace(settings, evaluate_on="validation"), 0)
    write_npz(tmp_path / "x.npz", **stated, val_subjects=np.repeat([80, 81], 3))
    raced = federate(replace(settings, evaluate_on="validation"), 0)
    assert raced.tested_C("test", 0).tolist() == [1, 1]
    assert federate(settings, 0).tested_C("validation", 0).tolist() == [1, 1]


def test_the_servers_hold_out_shares_no_patient_with_a_client(tmp_path):
    stated = hospitals(tmp_path / "t.csv", site=False)
    federation = federate(replace(stated, partition="iid", clients=3, holdout_per_class=20), 0)
    data, held = federation.dataset, federation.holdout_indices
    assert np.bincount(data.train_labels[held]).tolist() == [20, 20]
    trained = np.concatenate(federation.train_indices)
    assert not np.isin(data.train_groups[trained], data.train_groups[held]).any()
    # 20 rows of 8 a patient: two whole patients and one in part, whose other rows nobody holds.
    assert len(data.train_labels) - len(trained) == 2 * 3 * ROWS


def test_a_hold_out_that_takes_every_patient_is_refused(tmp_path):
    stated = hospitals(tmp_path / "t.csv", site=False)
    train = load(stated).train_labels
    most = int(np.bincount(train).min())
    with pytest.raises(SettingError, match=r"^holdout-per-class = .*of every subject"):
        federate(replace(stated, partition="iid", clients=3, holdout_per_class=most), 0)


def test_a_client_of_one_patient_trains_on_it(tmp_path):
    rows = ["size,label,patient,site"]
    for patient in range(12):
        hospital = "small" if patient < 2 else "large"
        rows += [f"{patient},{'ab'[patient % 2]},p{patient},{hospital}"] * 3
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    columns = "patient=patient,site=site"
    stated = DataSettings(
        f"csv:{tmp_path / 't.csv'}", classes="a,b", input_shape="1", columns=columns
    )
    for seed in range(5):
        cut = federate(replace(stated, validation_fraction=0.9), seed)
        assert all(map(len, cut.train_indices)) and shared(cut) == 0


def test_most_common_is_the_value_of_most_samples_and_the_smallest_of_several() -> None:
    subject_D = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    values_D = np.array([2, 7, 7, 5, 3, 9, 1, 9])
    assert most_common(subject_D, values_D).tolist() == [7, 3, 9]


@pytest.mark.parametrize(
    ("homes", "classes", "groups"),
    [
        ([0, 1, 0, 1], [2, 2, 2, 2], [[0, 2], [1, 3]]),
        ([0, 0, 1], [0, 1, 1], [[0], [1], [2]]),
        ([1, 0, 1, 0, 1], [0, 3, 0, 1, 1], [[3], [1], [0, 2], [4]]),
        ([4], [4], [[0]]),
    ],
)
def test_subjects_of_one_client_and_class_are_drawn_among_themselves(homes, classes, groups):
    found = _by_client_and_class(np.array(homes), np.array(classes))
    assert [group.tolist() for group in found] == groups


def test_a_client_whose_subjects_are_all_drawn_trains_on_its_first() -> None:
    """Two subjects, both drawn for validation: the first of the client's samples gives its subject back."""
    labels_N = np.zeros(4, np.int64)
    subjects_N = np.array([1, 0, 0, 1])
    parts = [np.arange(4)]
    (kept,) = _validation_by_subject(labels_N, subjects_N, parts, 1.0, np.random.default_rng(0))
    assert kept.tolist() == [1, 2]  # subject 0 validates, subject 1 trains
    (alone,) = _validation_by_subject(
        labels_N[:1], subjects_N[:1], [np.arange(1)], 1.0, np.random.default_rng(0)
    )
    assert alone.tolist() == []
