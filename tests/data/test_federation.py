"""A federation: the same one for the same seed, its draws balanced, its samples normalized, its classes long-tailed."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from layouts import write_npz

from data import DataSettings, SettingError, federate, resolve
from data.subsets import long_tail, long_tail_counts


@pytest.fixture
def domains(tmp_path):
    """Nine images of each digit, and nine, eight and seven of each other."""
    for seed, (name, shape) in enumerate({"mnist": (28, 28), "mnist-m": (32, 32, 3)}.items()):
        labels = np.repeat(np.arange(10), [9, 9 - seed, *[9 - 2 * seed] * 8])
        write_npz(tmp_path / f"{name}.npz", shape, len(labels), 40, seed, train_labels=labels)
    return DataSettings("domains:mnist,mnist-m", str(tmp_path))


def setting_refused(key, make):
    """Return the error of a setting."""
    with pytest.raises(SettingError) as caught:
        make()
    assert caught.value.key == key
    return caught.value


def test_a_federation_is_kept_and_another_seed_makes_another():
    settings = DataSettings(imbalance_factor=10, largest_class=100, min_samples=5)
    federation = federate(settings, 3)
    held = np.concatenate(federation.train_indices)
    assert len(np.unique(held)) == len(held) == federation.counts_KC.sum()
    assert federate(settings, 3) is federation
    assert federate(settings, 4).hash != federation.hash


def test_the_hash_does_not_depend_on_paths_but_on_contents(tmp_path, domains, own_cache):
    first = federate(domains, 0).hash
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("mnist", "mnist-m"):
        shutil.copy(tmp_path / f"{name}.npz", elsewhere)
    moved = replace(domains, data_root=str(elsewhere))
    assert federate(moved, 0).hash == first
    write_npz(elsewhere / "mnist.npz", (28, 28), 90, 40, seed=2)
    assert federate(moved, 0).hash != first


@pytest.mark.parametrize("more", [{"columns": "label=x"}, {"frame": "middle"}, {"test_fold": 3}])
def test_settings_of_tables_and_folders_are_refused_for_arrays(tmp_path, more):
    write_npz(tmp_path / "own.npz", (6, 5), classes=2)
    stated = {"classes": "2", "input_shape": "1x6x5"}
    with pytest.raises(SettingError, match="has no effect"):
        resolve(DataSettings(f"npz:{tmp_path / 'own.npz'}", **stated, **more))


def test_subsets_are_balanced():
    federation = federate(DataSettings(train_images=103, test_images=21, partition="iid"), 0)
    assert federation.counts_KC.sum(axis=0).tolist() == [11, 11, 11, 10, 10, 10, 10, 10, 10, 10]
    test = federation.dataset.test.labels[federation.global_test]
    assert np.bincount(test).tolist() == [3] + [2] * 9
    # Class 8 has 138 images for training.
    assert federate(DataSettings(train_images=1388), 0).counts_KC.sum() == 1388
    setting_refused("train-images", lambda: federate(DataSettings(train_images=1389), 0))


def test_a_client_without_an_image_is_refused():
    tailed = DataSettings(partition="llt", alpha=1.0, largest_class=100, imbalance_factor=20)
    assert federate(replace(tailed, clients=10), 0).clients == 10
    setting_refused("clients", lambda: federate(replace(tailed, clients=100), 0))


def test_domains_are_clients(domains):
    federation = federate(domains, 0)
    assert federation.counts_KC.tolist() == [[9] * 10, [9, 8] + [7] * 8]
    for client in range(2):
        assert (federation.dataset.train.domains[federation.train_indices[client]] == client).all()
    drawn = federate(replace(domains, train_images=72), 0)
    assert drawn.counts_KC.tolist() == [[8, 8] + [7] * 8] * 2
    error = setting_refused("train-images", lambda: federate(replace(domains, train_images=75), 0))
    assert "domain mnist-m" in error.rule and "class 2" in error.rule


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_samples_are_those_of_the_client_and_normalized():
    federation = federate(DataSettings(mean="0.25", std="0.5"), 0)
    trained, indices = federation.train(2), federation.train_indices[2]
    assert np.array_equal(trained.inputs_N.numpy(), federation.dataset.train.inputs[indices])
    assert np.array_equal(trained.labels_N.numpy(), federation.dataset.train.labels[indices])
    batch = trained.batch(torch.tensor([3, 0]))
    expected = (trained.inputs_N[[3, 0]].double() / 255 - 0.25) / 0.5
    assert torch.allclose(batch, expected.float(), atol=1e-6)
    chosen = trained.only(torch.tensor([5, 1]))
    assert torch.equal(chosen.batch(torch.arange(2)), trained.batch(torch.tensor([5, 1])))


def test_channels_are_normalized_each_by_its_own(domains):
    tested = federate(replace(domains, mean="0.1,0.2,0.3", std="1,2,4"), 0).test(1)
    shown = tested.batch(torch.tensor([0]))
    pixels = tested.inputs_N[0].numpy() / 255
    expected = [(pixels[0] - 0.1) / 1, (pixels[1] - 0.2) / 2, (pixels[2] - 0.3) / 4]
    assert np.allclose(shown[0], expected, atol=1e-6)


# ---- the long tail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "factor", "counts", "total"),
    [
        (5000, 100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50], 12406),
        (5000, 50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100], 13996),
        (5000, 10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500], 20431),
        (1200, 100, [1200, 719, 431, 258, 154, 92, 55, 33, 20, 12], 2974),
    ],
    ids=["CIFAR-10, 100", "CIFAR-10, 50", "CIFAR-10, 10", "Fashion-MNIST, 100"],
)
def test_published_counts_of_ten_classes(largest, factor, counts, total):
    actual = long_tail_counts(largest, factor, 10)
    assert actual.tolist() == counts and actual.sum() == total


@pytest.mark.parametrize(
    ("factor", "first", "last", "total"),
    [
        (100, [500, 477, 455, 434, 415], [6, 5, 5, 5, 5], 10847),
        (50, [500, 480, 462, 444, 426], [11, 11, 10, 10, 10], 12608),
        (10, [500, 488, 477, 466, 455], [54, 53, 52, 51, 50], 19573),
    ],
)
def test_published_counts_of_cifar100(factor, first, last, total):
    actual = long_tail_counts(500, factor, 100)
    assert (actual[:5].tolist(), actual[-5:].tolist(), actual.sum()) == (first, last, total)


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [60, 50, 40, 55]))


def tail(factor, largest, seed=0):
    return long_tail(LABELS, 4, factor, largest, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("factor", "largest", "sizes"),
    [
        (1.0, 0, [60, 50, 40, 55]),
        (8.0, 0, [40, 20, 10, 5]),
        (8.0, 60, [60, 30, 15, 7]),
        (39.9, 0, [40, 11, 3, 1]),
    ],
)
def test_factor_one_leaves_everything_and_the_largest_class_is_the_smallest_there_unless_set(
    factor, largest, sizes
):
    chosen = tail(factor, largest)
    assert np.bincount(LABELS[chosen]).tolist() == sizes
    assert (np.diff(chosen) > 0).all() and np.array_equal(tail(factor, largest), chosen)
    assert np.array_equal(tail(factor, largest, 1), chosen) == (sum(sizes) == len(LABELS))


@pytest.mark.parametrize(
    ("factor", "largest", "key"),
    [(2.0, 61, "largest-class"), (40.1, 0, "imbalance-factor")],
)
def test_a_tail_that_cannot_be_cut_is_refused(factor, largest, key):
    setting_refused(key, lambda: tail(factor, largest))


def test_a_class_without_samples_cannot_have_a_tail():
    draws = np.random.default_rng(0)
    setting_refused(
        "imbalance-factor", lambda: long_tail(np.zeros(10, np.int64), 2, 10.0, 0, draws)
    )


def test_lda_form_is_the_rule_of_the_partition():
    forms = {form: federate(DataSettings(lda_form=form), 0) for form in ("balanced", "plain")}
    sizes = {form: federation.counts_KC.sum(1) for form, federation in forms.items()}
    assert sizes["plain"].max() > sizes["balanced"].max()  # nobody is closed
    assert federate(DataSettings(), 0).hash == forms["balanced"].hash
