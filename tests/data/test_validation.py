"""What clients keep for validation: a share of each class, nobody trains on it, and methods are measured on it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import experiment

from data import DataSettings, SettingError, federate


def test_a_share_of_every_client_and_class_is_kept_and_not_trained_on() -> None:
    whole = federate(DataSettings(clients=5, alpha=0.5), 3)
    cut = federate(DataSettings(clients=5, alpha=0.5, validation_fraction=0.25), 3)
    assert cut.validation_indices is not None
    for client, kept in enumerate(cut.validation_indices):
        trained = cut.train_indices[client]
        assert np.array_equal(np.sort(np.concatenate([trained, kept])), whole.train_indices[client])
        labels = whole.dataset.train_labels
        counts, held = (
            np.bincount(labels[part], minlength=10) for part in (kept, whole.train_indices[client])
        )
        assert (np.abs(counts - 0.25 * held) < 1).all()
    pooled = cut.validation()
    assert pooled is not None and len(pooled) == sum(map(len, cut.validation_indices))
    assert pooled.augmentation == "none" and cut.hash != whole.hash
    assert cut.tested_C("validation", 0).sum() == len(pooled), (
        "each client is measured on all, as on the test set"
    )


def test_a_run_is_measured_on_it(tmp_path: Path) -> None:
    outcome = experiment(tmp_path, rounds=1, validation_fraction=0.3)
    numbers = json.loads(outcome.folder.rounds_file.read_text())["models"]["average"]
    assert 0 < numbers["validation"]["balanced-accuracy"] < 1


def test_clients_with_too_few_samples_are_named() -> None:
    few = DataSettings(clients=10, partition="iid", train_images=10, validation_fraction=0.5)
    with pytest.raises(
        SettingError, match=r"^validation-fraction = 0.5: cuts nothing off.*client 0 has 1"
    ):
        federate(few, 0)


def test_validation_samples_take_the_test_sets_place() -> None:
    stated = DataSettings(clients=5, alpha=0.5, validation_fraction=0.25)
    cut, raced = federate(stated, 3), federate(replace(stated, evaluate_on="validation"), 3)
    kept = cut.validation()
    assert kept is not None and not raced.validated and raced.validation() is None
    assert torch.equal(raced.test().inputs_N, kept.inputs_N) and torch.equal(
        raced.test().labels_N, kept.labels_N
    )
    assert (
        all(map(np.array_equal, raced.train_indices, cut.train_indices)) and raced.hash != cut.hash
    )
    domains = DataSettings(dataset="digits-scanners", validation_fraction=0.25)
    cut, raced = federate(domains, 0), federate(replace(domains, evaluate_on="validation"), 0)
    for client in range(4):
        kept = cut.validation(client)
        assert kept is not None and torch.equal(raced.test(client).inputs_N, kept.inputs_N)
    with pytest.raises(
        SettingError, match=r"^evaluate-on = 'validation': needs validation-fraction"
    ):
        federate(DataSettings(evaluate_on="validation"), 0)
