"""Samples that no client trains on: the server's hold-out and validation samples.

Every cut goes between patients where the data name them, and a subject is validated as it is tested.
"""

import json
from dataclasses import replace

import layouts
import numpy as np
import pytest
import torch
from in_process import experiment
from test_federation import setting_refused

from data import DataSettings, federate, load
from data.subsets import (
    hold_out,
    most_common,
    split_validation,
)

SCANNERS = DataSettings("digits-scanners")


def draws(seed=0):
    return np.random.default_rng(seed)


def samples(labels, **of_samples):
    """Return a data set of training samples of these labels, and what else is said of each."""
    fields = {name: np.array(values) for name, values in of_samples.items()}
    data = load(DataSettings())
    return replace(data, train=replace(data.train, labels=np.array(labels), **fields))


# ---- the server's hold-out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        DataSettings(train_images=200, partition="iid"),
        DataSettings(imbalance_factor=10, min_samples=5),
    ],
    ids=["subset", "long tail"],
)
def test_holdout_is_balanced_and_at_no_client(settings):
    federation = federate(replace(settings, holdout_per_class=7), 3)
    data, held = federation.dataset, federation.holdout_indices
    assert np.bincount(data.train.labels[held]).tolist() == [7] * 10
    assert not np.intersect1d(np.concatenate(federation.train_indices), held).size
    # The hold-out does not depend on what is drawn after it.
    assert np.array_equal(federate(DataSettings(holdout_per_class=7), 3).holdout_indices, held)
    assert not np.array_equal(federate(DataSettings(holdout_per_class=7), 4).holdout_indices, held)


def test_the_long_tail_is_cut_after_the_holdout():
    """The largest class is as large as the smallest one was, less what the server keeps."""
    largest = [
        federate(DataSettings(imbalance_factor=4, holdout_per_class=kept), 0).counts_KC.sum(0)[0]
        for kept in (0, 20)
    ]
    assert largest[0] - largest[1] == 20


def test_holdout_of_domains_is_of_each():
    federation = federate(replace(SCANNERS, holdout_per_class=2), 0)
    data, held = federation.dataset, federation.holdout_indices
    assert data.train.domains is not None
    assert np.bincount(10 * data.train.domains[held] + data.train.labels[held]).tolist() == [2] * 40
    assert len(federate(replace(SCANNERS, holdout_per_class=31), 0).holdout_indices) == 40 * 31
    setting_refused(
        "holdout-per-class", lambda: federate(replace(SCANNERS, holdout_per_class=33), 0)
    )


def test_the_holdout_shares_no_patient_with_a_client():
    """Five samples of three a patient: one whole patient and one in part, whose third sample nobody has."""
    data = samples([0] * 12 + [1] * 12, subjects=np.arange(24) // 3)
    held, others = hold_out(data, 0, 0)
    assert len(held) == 0 and len(others) == 24
    data = replace(data, class_names=("a", "b"))
    held, others = hold_out(data, 5, 0)
    assert np.bincount(data.train.labels[held]).tolist() == [5, 5]
    assert len(others) == 24 - 2 * 6
    assert not np.isin(data.train.subjects[others], data.train.subjects[held]).any()
    assert len(hold_out(data, 9, 0)[1]) == 6
    setting_refused("holdout-per-class", lambda: hold_out(data, 10, 0))


# ---- validation samples ----------------------------------------------------------------------------------------------


def test_a_share_of_every_client_and_class_is_kept_and_not_trained_on():
    whole = federate(DataSettings(clients=5, alpha=0.5), 3)
    cut = federate(DataSettings(clients=5, alpha=0.5, validation_fraction=0.25), 3)
    labels = whole.dataset.train.labels
    for client, kept in enumerate(cut.validation_indices):
        together = np.sort([*cut.train_indices[client], *kept])
        assert np.array_equal(together, whole.train_indices[client])
        held = np.bincount(labels[together], minlength=10)
        assert (np.abs(np.bincount(labels[kept], minlength=10) - 0.25 * held) < 1).all()
    pooled = cut.validation()
    assert len(pooled) == sum(map(len, cut.validation_indices)) and cut.hash != whole.hash
    assert len(cut.validation(1)) == len(pooled), "without domains all clients are measured on all"


def test_a_share_is_rounded_up_and_down_so_that_the_mean_is_exact():
    data = samples([0] * 1000)
    parts = [np.arange(5 * client, 5 * client + 5) for client in range(200)]
    _, kept = split_validation(data, parts, 0.3, draws())
    sizes = np.array([len(part) for part in kept])
    assert set(sizes) == {1, 2} and abs(sizes.mean() - 1.5) < 0.1


def test_every_client_keeps_a_sample_to_train_on():
    training, kept = split_validation(samples([0, 1, 0, 1]), [np.arange(4)], 0.999, draws())
    assert [part.tolist() for part in (*training, *kept)] == [[3], [0, 1, 2]]


def test_clients_with_too_few_samples_are_named():
    data = samples([0] * 24)
    parts = np.split(np.arange(12), 12)
    rule = setting_refused(
        "validation-fraction", lambda: split_validation(data, parts, 0.5, draws())
    ).rule
    assert "too few samples, 1 at most" in rule
    split_validation(data, np.split(np.arange(24), 12), 0.5, draws())


def test_a_run_is_measured_on_it(tmp_path):
    outcome = experiment(tmp_path, rounds=1, validation_fraction=0.3)
    numbers = json.loads(outcome.folder.rounds_file.read_text())["models"]["average"]
    assert 0 < numbers["validation"]["balanced-accuracy"] < 1


def test_validation_samples_take_the_test_sets_place():
    stated = replace(SCANNERS, validation_fraction=0.25)
    cut, raced = federate(stated, 3), federate(replace(stated, evaluate_on="validation"), 3)
    assert not raced.validated and raced.validation() is None and raced.hash != cut.hash
    assert all(map(np.array_equal, raced.train_indices, cut.train_indices))
    for client in range(4):
        kept, tested = cut.validation(client), raced.test(client)
        assert torch.equal(tested.inputs_N, kept.inputs_N)
        assert torch.equal(tested.labels_N, kept.labels_N)
    setting_refused("evaluate-on", lambda: federate(DataSettings(evaluate_on="validation"), 0))


# ---- validation by subject -------------------------------------------------------------------------------------------


def test_half_of_the_subjects_of_every_client_and_class_are_drawn():
    """Four subjects of three samples at each client and in each class, in no order."""
    subject_N = draws().permutation(np.arange(48) // 3)
    label_of, client_of = np.arange(16) // 4 % 2, np.arange(16) // 8
    data = samples(label_of[subject_N].tolist(), subjects=subject_N)
    parts = [np.flatnonzero(client_of[subject_N] == client) for client in range(2)]
    training, kept = split_validation(data, parts, 0.5, draws())
    validating = [np.unique(subject_N[part]) for part in kept]
    assert not np.intersect1d(np.concatenate(validating), subject_N[np.concatenate(training)]).size
    for client in range(2):
        assert np.bincount(label_of[validating[client]]).tolist() == [2, 2]


def test_a_subject_at_several_clients_is_drawn_once_where_most_of_its_samples_are():
    """Clients hold samples of subjects 0..7 each, and one of each of the other's."""
    subject_N = np.concatenate([np.arange(8).repeat(3), np.arange(8, 16).repeat(3), np.arange(16)])
    parts = [np.r_[0:24, 56:64], np.r_[24:48, 48:56]]
    data = samples([0] * 64, subjects=subject_N)
    training, kept = split_validation(data, parts, 0.5, draws())
    assert not np.intersect1d(
        subject_N[np.concatenate(kept)], subject_N[np.concatenate(training)]
    ).size
    for client in range(2):
        of_home = subject_N[kept[client]] // 8 == client
        assert len(np.unique(subject_N[kept[client]][of_home])) == 4


def test_a_client_whose_subjects_are_all_drawn_trains_on_its_first():
    data = samples([0] * 5, subjects=[1, 0, 0, 0, 2])
    training, kept = split_validation(data, [np.arange(4), np.array([4])], 1.0, draws())
    assert [part.tolist() for part in training] == [[0], [4]]
    assert [part.tolist() for part in kept] == [[1, 2, 3], []]


def test_most_common_is_the_value_of_most_samples_and_the_smallest_of_several():
    subject_D = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    values_D = np.array([2, 7, 7, 5, 3, 9, 1, 9])
    assert most_common(subject_D, values_D).tolist() == [7, 3, 9]


def shared(federation):
    """Return whether a client trains on a subject that another one, or it, validates."""
    groups = federation.dataset.train.subjects
    trained = groups[np.concatenate(federation.train_indices)]
    return bool(np.isin(groups[np.concatenate(federation.validation_indices)], trained).any())


def test_validation_subjects_are_scored_as_one_where_test_subjects_are(tmp_path):
    layouts.write_abide(tmp_path, 12)
    stated = DataSettings("abide", str(tmp_path), input_shape="10", validation_fraction=0.3)
    cut = federate(stated, 0)
    raced = federate(replace(stated, evaluate_on="validation"), 0)
    assert not shared(cut)
    for client in range(4):
        subjects = set(cut.dataset.train.subjects[cut.validation_indices[client]].tolist())
        assert set(cut.validation(client).groups_N.tolist()) == subjects
        assert set(raced.test(client).groups_N.tolist()) == subjects
        assert raced.tested_C("test", client).sum() == len(subjects)


def vectors(folder, **more):
    """Vectors of ten subjects for training and of two others, who are known, for testing."""
    subjects = np.repeat(np.arange(10), 4)
    np.savez(
        folder / "own.npz",
        train_images=subjects[:, None].astype(np.float32), train_labels=subjects % 2,
        test_images=np.repeat([100, 101], 4)[:, None].astype(np.float32), test_labels=np.repeat([0, 1], 4),
        test_subjects=np.repeat([70, 71], 4), **more,
    )  # fmt: skip
    return DataSettings(
        f"npz:{folder}/own.npz", classes="a,b", input_shape="1", partition="iid", clients=2
    )


def test_a_cut_through_subjects_that_nobody_knows_is_refused(tmp_path):
    stated = vectors(tmp_path)
    cuts = [replace(stated, validation_fraction=0.5), replace(stated, holdout_per_class=4)]
    for cut, key in zip(cuts, ("validation-fraction", "holdout-per-class"), strict=True):
        setting_refused(key, lambda cut=cut: federate(cut, 0))
    vectors(tmp_path, train_subjects=np.repeat(np.arange(10), 4))
    known = federate(cuts[0], 0)
    assert not shared(known) and known.validation().groups_N is not None
    assert len(federate(cuts[1], 0).holdout_indices) == 8


def test_brought_validation_samples_need_their_subjects_to_take_the_test_sets_place(
    tmp_path,
):
    brought = {"val_images": np.full((6, 1), 0.5, np.float32), "val_labels": np.repeat([0, 1], 3)}
    raced = replace(vectors(tmp_path, **brought), evaluate_on="validation")
    setting_refused("evaluate-on", lambda: federate(raced, 0))
    stated = vectors(tmp_path, **brought, val_subjects=np.repeat([80, 81], 3))
    assert federate(raced, 0).tested_C("test", 0).tolist() == [1, 1]
    assert federate(stated, 0).tested_C("validation", 0).tolist() == [1, 1]
    setting_refused(
        "validation-fraction", lambda: federate(replace(stated, validation_fraction=0.5), 0)
    )
