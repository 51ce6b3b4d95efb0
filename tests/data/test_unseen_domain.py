"""A domain that no client holds: nothing else moves."""

from dataclasses import replace

import numpy as np
import pytest
from test_federation import write_domain

from data import DataSettings, SettingError, federate
from data.holdouts import UnseenDomain, without

NAMES = ("mnist", "usps", "mnist-m")


@pytest.fixture
def domains(tmp_path):
    for seed, name in enumerate(NAMES):
        write_domain(tmp_path, name, (8, 8), [20] * 10, seed)
    return DataSettings(f"domains:{','.join(NAMES)}", str(tmp_path), input_shape="3x8x8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes",
    [{}, {"train_images": 150, "test_images": 20, "holdout_per_class": 2}, {"parts_per_domain": 3},
     {"domain_percent": 30.0}],
    ids=["all", "drawn", "parts", "percent"],
)  # fmt: skip
def test_the_other_domains_are_what_they_were(domains, name, changes):
    whole = federate(replace(domains, **changes), 3)
    federation = federate(replace(domains, unseen_domain=name, **changes), 3)
    index = NAMES.index(name)
    kept = [client for client, domain in enumerate(whole.domains) if domain != index]
    assert federation.clients == len(kept) and federation.domains == tuple(
        whole.domains[client] for client in kept
    )
    for client, before in enumerate(kept):
        assert np.array_equal(federation.train_indices[client], whole.train_indices[before])
        assert np.array_equal(federation.test_indices[client], whole.test_indices[before])
    assert not (federation.dataset.train_domains[federation.holdout_indices] == index).any()
    assert len(federation.holdout_indices) * 3 == len(whole.holdout_indices) * 2
    assert not (federation.dataset.test_domains[federation.global_test] == index).any()
    assert np.array_equal(
        np.sort([*federation.global_test, *federation.unseen.test]), whole.global_test
    )
    assert (federation.dataset.train_domains[federation.unseen.train] == index).all()
    assert (federation.dataset.test_domains[federation.unseen.test] == index).all()
    assert not set(federation.unseen.train) & set(
        np.concatenate([*federation.train_indices, federation.holdout_indices])
    )
    assert len(federation.unseen.train) == (150 if "train_images" in changes else 200)
    assert (federation.unseen.name, federation.unseen.index) == (
        name,
        index,
    ) and whole.unseen is None
    assert federation.hash != whole.hash


def test_the_inputs_come_without_labels(domains):
    federation = federate(replace(domains, unseen_domain="usps", train_images=50), 0)
    inputs, test = federation.unseen_inputs(), federation.unseen_test()
    assert inputs.labels_N.tolist() == [-1] * 50 and inputs.augmentation == "none"
    assert (
        inputs.inputs_N.numpy().tobytes()
        == federation.dataset.train_inputs[federation.unseen.train].tobytes()
    )
    assert test.labels_N.tolist() == federation.dataset.test_labels[federation.unseen.test].tolist()


def test_a_domain_of_ones_own_goes_by_its_files_name(tmp_path):
    for seed, name in enumerate(("a", "b")):
        write_domain(tmp_path, name, (8, 8), [4] * 10, seed)
    dataset = f"domains:npz:{tmp_path}/a.npz,npz:{tmp_path}/b.npz"
    federation = federate(
        DataSettings(dataset, classes="10", input_shape="1x8x8", unseen_domain="a"), 0
    )
    assert federation.domains == (1,) and federation.unseen.name == "a"


def test_one_image_has_no_variance(tmp_path, domains):
    write_domain(tmp_path, "usps", (8, 8), [1] + [0] * 9, 0)
    with pytest.raises(
        SettingError, match=r"^unseen-domain = 'usps': must have at least two training images"
    ):
        federate(replace(domains, unseen_domain="usps"), 0)


def test_samples_of_other_domains_stay_and_all_do_where_nothing_says_of_which_they_are():
    domain = UnseenDomain(1, "b", np.array([1]), np.array([2]))
    indices = np.array([0, 2, 3])
    assert without(domain, indices, np.array([0, 1, 1, 2])).tolist() == [0, 3]
    assert without(domain, indices, None).tolist() == [0, 2, 3]
