"""A federation: the same one for the same seed, its draws balanced, its samples normalized."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from data import DataSettings, SettingError, federate, samples
from data.random_draws import balanced_counts, generator


def write_domain(root, name, shape, sizes, seed):
    pixels = np.random.default_rng(seed)
    labels = np.repeat(np.arange(10), sizes)
    test = np.arange(40) % 10
    np.savez(
        root / f"{name}.npz",
        train_images=pixels.integers(0, 256, (len(labels), *shape), np.uint8),
        train_labels=labels,
        test_images=pixels.integers(0, 256, (40, *shape), np.uint8),
        test_labels=test,
    )


@pytest.fixture
def domains(tmp_path):
    write_domain(tmp_path, "mnist", (28, 28), [9] * 10, 0)
    write_domain(tmp_path, "mnist-m", (32, 32, 3), [9, 8, 7, 7, 7, 7, 7, 7, 7, 7], 1)
    return DataSettings("domains:mnist,mnist-m", str(tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        DataSettings(),
        DataSettings(partition="iid", train_images=100, test_images=50),
        DataSettings(partition="llt", alpha=0.9, clients=20),
        DataSettings(imbalance_factor=10, largest_class=100, min_samples=5),
        DataSettings(partition="feddf", alpha=0.5, clients=20),
        DataSettings(partition="llt", alpha=0.9, clients=20, llt_form="literal"),
    ],
    ids=["lda", "iid", "llt", "long tail", "feddf", "literal llt"],
)
def test_invariants(settings):
    federation = federate(settings, 3)
    held = np.concatenate(federation.train_indices)
    assert len(np.unique(held)) == len(held) == federation.counts_KC.sum()
    assert [len(part) for part in federation.train_indices] == federation.counts_KC.sum(
        axis=1
    ).tolist()
    assert federation.counts_KC.shape == (federation.clients, 10)
    assert all((np.diff(part) > 0).all() for part in federation.train_indices)
    assert federation.test_indices is None
    federate.cache_clear()
    again, other = federate(settings, 3), federate(settings, 4)
    assert again is not federation
    assert again.hash == federation.hash != other.hash
    assert re.fullmatch("[0-9a-f]{64}", federation.hash)


def test_federations_are_kept():
    assert federate(DataSettings(), 0) is federate(DataSettings(), 0)


def test_the_hash_does_not_depend_on_paths_but_on_contents(tmp_path, domains):
    first = federate(domains, 0).hash
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_domain(elsewhere, "mnist", (28, 28), [9] * 10, 0)
    write_domain(elsewhere, "mnist-m", (32, 32, 3), [9, 8, 7, 7, 7, 7, 7, 7, 7, 7], 1)
    assert federate(replace(domains, data_root=str(elsewhere)), 0).hash == first
    write_domain(elsewhere, "mnist", (28, 28), [9] * 10, 2)
    federate.cache_clear()
    assert federate(replace(domains, data_root=str(elsewhere)), 0).hash != first


def test_draws_for_two_purposes_do_not_depend_on_each_other():
    few, many = (federate(DataSettings(test_images=number), 0) for number in (50, 100))
    assert all(
        np.array_equal(a, b) for a, b in zip(few.train_indices, many.train_indices, strict=True)
    )
    assert generator(0, "a").integers(2**60) != generator(0, "b").integers(2**60)
    assert generator(0, "a").integers(2**60) == generator(0, "a").integers(2**60)


def test_subsets_are_balanced():
    federation = federate(DataSettings(train_images=103, test_images=21, partition="iid"), 0)
    assert federation.counts_KC.sum(axis=0).tolist() == [11, 11, 11, 10, 10, 10, 10, 10, 10, 10]
    test = federation.dataset.test_labels[federation.global_test]
    assert np.bincount(test).tolist() == [3] + [2] * 9
    assert balanced_counts(743, 10).tolist() == [75, 75, 75] + [74] * 7


def test_subsets_that_cannot_be_drawn():
    message = "train-images = 1400: needs 140 images of class 8, which has 138"
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        federate(DataSettings(train_images=1400), 0)
    with pytest.raises(
        SettingError, match=r"^test-images = 370: needs 37 images of class 0, which has 36$"
    ):
        federate(DataSettings(test_images=370), 0)


def test_long_tail_before_the_partition():
    federation = federate(DataSettings(imbalance_factor=10, largest_class=100, min_samples=5), 0)
    assert federation.counts_KC.sum(axis=0).tolist() == [100, 77, 59, 46, 35, 27, 21, 16, 12, 10]
    assert (
        np.bincount(federation.dataset.test_labels[federation.global_test]).tolist() == [36] * 10
    )  # the test set stays balanced


def test_a_client_without_an_image_is_refused():
    with pytest.raises(
        SettingError, match=r"^clients = 100: client \d+ would hold no image under partition llt$"
    ):
        federate(
            DataSettings(
                partition="llt", alpha=1.0, clients=100, largest_class=100, imbalance_factor=20
            ),
            0,
        )


def test_domains_are_clients(domains):
    federation = federate(domains, 0)
    assert federation.counts_KC.tolist() == [[9] * 10, [9, 8] + [7] * 8]
    for client in range(2):
        assert (federation.dataset.train_domains[federation.train_indices[client]] == client).all()
        assert (federation.dataset.test_domains[federation.test_indices[client]] == client).all()
        assert len(federation.test(client)) == 40
    assert len(federation.test()) == 80


def test_domains_are_drawn_class_balanced(domains):
    federation = federate(replace(domains, train_images=72, test_images=20), 0)
    assert federation.counts_KC.tolist() == [[8, 8] + [7] * 8] * 2
    assert len(federation.test(1)) == 20
    message = "train-images = 75: domain mnist-m: needs 8 images of class 2, which has 7"
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        federate(replace(domains, train_images=75), 0)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_part_of_a_domain_is_a_client(domains, parts):
    federation = federate(replace(domains, parts_per_domain=parts), 0)
    assert federation.clients == 2 * parts and federation.domains == (0, 1) * parts
    assert [len(part) for part in federation.train_indices] == [9, 7] * parts
    for client in range(federation.clients):
        domain = client % 2
        assert (federation.dataset.train_domains[federation.train_indices[client]] == domain).all()
        assert (federation.dataset.test_domains[federation.test_indices[client]] == domain).all()
        assert len(federation.test(client)) == 40, "every part is tested on all of its domain"
    message = "clients = 5: must be 0 or 4, one client a part of a domain of dataset = 'domains:mnist,mnist-m'"
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        federate(replace(domains, parts_per_domain=2, clients=5), 0)


def test_percent_of_each_domain(domains):
    federation = federate(replace(domains, domain_percent=50.0), 0)
    assert federation.clients == 2 and federation.counts_KC.sum(axis=1).tolist() == [45, 36]
    with pytest.raises(SettingError, match=r"domain-percent = 25.0: must be a multiple of 10"):
        replace(domains, domain_percent=25.0)
    with pytest.raises(SettingError, match=r"domain-percent = 50.0: contradicts parts-per-domain"):
        replace(domains, domain_percent=50.0, parts_per_domain=2)


def test_pooled_is_one_client_with_everything(domains):
    for settings, total in (
        (DataSettings(partition="pooled"), 1437),
        (replace(domains, partition="pooled"), 163),
    ):
        federation = federate(settings, 0)
        assert (
            federation.clients == 1
            and federation.domains is None
            and federation.test_indices is None
        )
        assert np.array_equal(federation.train_indices[0], np.arange(total))
        assert federation.test(0) is federation.test()
    with pytest.raises(
        SettingError, match=r"^clients = 2: must be 0 or 1: partition pooled is one client$"
    ):
        federate(DataSettings(partition="pooled", clients=2), 0)


def test_samples_are_those_of_the_client_and_normalized():
    federation = federate(DataSettings(mean="0.25", std="0.5"), 0)
    samples, indices = federation.train(2), federation.train_indices[2]
    assert len(samples) == len(indices)
    assert np.array_equal(samples.inputs_N.numpy(), federation.dataset.train_inputs[indices])
    assert np.array_equal(samples.labels_N.numpy(), federation.dataset.train_labels[indices])
    assert samples.inputs_N.dtype == torch.uint8
    assert samples.inputs_N.is_contiguous()
    batch = samples.batch(torch.tensor([3, 0]))
    expected = (samples.inputs_N[[3, 0]].numpy() / 255 - 0.25) / 0.5
    assert batch.dtype == torch.float32
    assert torch.allclose(batch, torch.from_numpy(expected).float(), atol=1e-6)
    assert federation.train(2) is samples


def test_channels_are_normalized_each_by_its_own(domains):
    federation = federate(replace(domains, mean="0.1,0.2,0.3", std="1,2,4"), 0)
    samples = federation.test(1)
    pixels = samples.inputs_N[:1].numpy() / 255
    for channel, (mean, std) in enumerate([(0.1, 1), (0.2, 2), (0.3, 4)]):
        normalized = samples.batch(torch.tensor([0]))[:, channel]
        assert np.allclose(normalized, (pixels[:, channel] - mean) / std, atol=1e-6)


def test_vectors_are_normalized_by_stated_numbers(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = np.arange(40) % 2
    np.savez(
        tmp_path / "v.npz",
        train_images=vectors,
        train_labels=labels,
        test_images=vectors,
        test_labels=labels,
    )
    settings = DataSettings(
        f"npz:{tmp_path}/v.npz", classes="2", input_shape="3", clients=2, partition="iid"
    )
    raw = replace(settings, mean="0", std="1")
    assert torch.equal(federate(raw, 0).test().batch(torch.arange(40)), torch.from_numpy(vectors))
    federation = federate(replace(settings, mean="1,2,3", std="2"), 0)
    expected = (vectors - np.array([1, 2, 3])) / 2
    assert np.allclose(federation.test().batch(torch.arange(40)), expected, atol=1e-6)


def test_without_domains_every_client_is_tested_on_the_global_test_set():
    federation = federate(DataSettings(), 0)
    assert federation.test(3) is federation.test()
    assert len(federation.test()) == 360


def test_of_the_clients_samples_those_of_the_last_are_kept_as_bytes_allow(monkeypatch):
    sizes = [samples.bytes_of(federate(DataSettings(), 1).train(client)) for client in range(3)]
    monkeypatch.setattr(samples, "CACHE_BYTES", sizes[0] + max(sizes[1:]))
    federate.cache_clear()
    whole = federate(DataSettings(), 1)
    first, second = whole.train(0), whole.train(1)
    assert whole.train(0) is first
    whole.train(2)  # for which there is no room beside both
    assert whole.train(0) is first and whole.train(1) is not second
    monkeypatch.setattr(samples, "CACHE_BYTES", 0)
    last = whole.train(4)
    assert whole.train(4) is last and whole.train(0) is not first


# ---- the server's hold-out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        DataSettings(),
        DataSettings(train_images=200, partition="iid"),
        DataSettings(imbalance_factor=10, min_samples=5),
        DataSettings(partition="llt", alpha=0.9),
    ],
    ids=["all", "subset", "long tail", "llt"],
)
def test_holdout_is_balanced_and_at_no_client(settings):
    federation = federate(replace(settings, holdout_per_class=7), 3)
    assert (
        np.bincount(federation.dataset.train_labels[federation.holdout_indices]).tolist()
        == [7] * 10
    )
    held = np.concatenate(federation.train_indices)
    assert not np.intersect1d(held, federation.holdout_indices).size and len(
        np.unique(held)
    ) == len(held)
    samples = federation.holdout()
    assert samples is not None and len(samples) == 70
    assert np.array_equal(
        samples.inputs_N.numpy(), federation.dataset.train_inputs[federation.holdout_indices]
    )
    of_one_class = samples.only((samples.labels_N == 4).nonzero().flatten())
    assert of_one_class.labels_N.tolist() == [4] * 7
    assert torch.equal(
        of_one_class.batch(torch.arange(7)), samples.batch(torch.arange(70))[samples.labels_N == 4]
    )
    # the hold-out does not depend on what is drawn after it
    assert np.array_equal(
        federate(DataSettings(holdout_per_class=7), 3).holdout_indices, federation.holdout_indices
    )
    assert not np.array_equal(
        federate(DataSettings(holdout_per_class=7), 4).holdout_indices, federation.holdout_indices
    )


def test_the_long_tail_is_cut_after_the_holdout():
    """The largest class is as large as the smallest one was, less what the server keeps."""
    sizes = [
        federate(DataSettings(imbalance_factor=4, holdout_per_class=n), 0).counts_KC.sum(0)
        for n in (0, 20)
    ]
    assert sizes[0][0] - sizes[1][0] == 20


def test_no_holdout_changes_nothing():
    federation = federate(DataSettings(holdout_per_class=0), 0)
    assert federation is federate(DataSettings(), 0) and federation.holdout() is None
    assert federation.hash != federate(DataSettings(holdout_per_class=1), 0).hash


def test_holdout_of_domains(domains):
    federation = federate(replace(domains, holdout_per_class=2), 0)
    labels, of_domain = (
        getattr(federation.dataset, f"train_{kind}")[federation.holdout_indices]
        for kind in ("labels", "domains")
    )
    assert np.bincount(10 * of_domain + labels).tolist() == [2] * 20
    with pytest.raises(
        SettingError, match=r"holdout-per-class = 8: domain mnist-m: needs 8 images of class 2"
    ):
        federate(replace(domains, holdout_per_class=8), 0)


def test_a_holdout_that_is_too_large():
    with pytest.raises(
        SettingError, match=r"holdout-per-class = 10000: needs 10000 images of class 0"
    ):
        federate(DataSettings(holdout_per_class=10000), 0)
    with pytest.raises(SettingError, match=r"holdout-per-class = -1: must be 0 or more"):
        DataSettings(holdout_per_class=-1)


def test_noise_grows_from_client_to_client_and_none_is_none():
    """Li et al. (NIID-Bench, 2022): client i of K has variance sigma i / K; the test set is as it is."""
    plain = DataSettings(partition="iid", clients=4)
    without, noisy, again = (
        federate(plain, 0),
        federate(replace(plain, noise=0.04), 0),
        federate(plain, 0),
    )
    assert without.hash == again.hash != noisy.hash
    for client in range(4):
        clean, changed = without.train(client).inputs_N / 255, noisy.train(client).inputs_N
        assert abs(float((changed - clean).var()) / (0.04 * (client + 1) / 4) - 1) < 0.05
        assert abs(float((changed - clean).mean())) < 0.01
    assert torch.equal(without.test().inputs_N, noisy.test().inputs_N)
    assert federate(replace(plain, noise=0.04), 1).hash != noisy.hash
    tiny = federate(replace(plain, noise=1e-14), 0).train(3).inputs_N
    assert torch.allclose(tiny, without.train(3).inputs_N / 255, atol=1e-6)
    with pytest.raises(SettingError, match=r"noise = 0\.1: is for images"):
        federate(DataSettings("npz:x", classes="2", input_shape="3", noise=0.1), 0)
