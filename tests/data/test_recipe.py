"""FedBN's recipe: digits pooled, split anew and cut to the smallest domain; the first and the last images of others."""

from dataclasses import replace

import numpy as np
import pytest

from data import DataSettings, federate, load


@pytest.fixture
def digits(tmp_path):
    for name, train, test, shape in (("mnist", 90, 30, (28, 28)), ("usps", 61, 39, (16, 16))):
        pixels = np.random.default_rng(train)
        arrays = {f"{key}_images": pixels.integers(0, 256, (number, *shape), np.uint8)
                  for key, number in (("train", train), ("test", test))}  # fmt: skip
        arrays |= {
            f"{key}_labels": np.arange(number) % 10
            for key, number in (("train", train), ("test", test))
        }
        np.savez(tmp_path / f"{name}.npz", **arrays)
    return DataSettings("domains:mnist,usps", str(tmp_path))


def test_pooled_stratified_and_cut_to_the_smallest(digits):
    plain, fedbn = load(digits), load(replace(digits, recipe="fedbn"))
    assert np.bincount(plain.train_domains).tolist() == [90, 61]
    assert np.bincount(fedbn.train_domains).tolist() == [80, 80]  # 100 pooled of usps
    assert np.bincount(fedbn.test_domains).tolist() == [24, 20]
    of_usps = fedbn.test_labels[fedbn.test_domains == 1]
    assert np.bincount(of_usps).tolist() == [2] * 10
    images = [inputs[domains == 1] for inputs, domains in ((fedbn.train_inputs, fedbn.train_domains),
                                                            (fedbn.test_inputs, fedbn.test_domains))]  # fmt: skip
    both = sorted(image.tobytes() for part in images for image in part)
    theirs = [inputs[domains == 1] for inputs, domains in ((plain.train_inputs, plain.train_domains),
                                                            (plain.test_inputs, plain.test_domains))]  # fmt: skip
    assert both == sorted(image.tobytes() for part in theirs for image in part)
    assert fedbn.content == load(replace(digits, recipe="fedbn")).content


def test_the_split_is_that_of_fedbn_s_code(digits):
    from sklearn.model_selection import StratifiedShuffleSplit

    fedbn, plain = load(replace(digits, recipe="fedbn")), load(digits)
    of_usps = [np.concatenate([a[d == 1], b[e == 1]]) for a, d, b, e in (
        (plain.train_inputs, plain.train_domains, plain.test_inputs, plain.test_domains),
        (plain.train_labels, plain.train_domains, plain.test_labels, plain.test_domains),
    )]  # fmt: skip
    train, _ = next(
        StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0).split(*of_usps)
    )
    assert np.array_equal(fedbn.train_inputs[fedbn.train_domains == 1], of_usps[0][train])


def test_ten_parts_of_the_recipe(digits):
    federation = federate(replace(digits, recipe="fedbn", parts_per_domain=10), 0)
    assert federation.clients == 20 and federation.counts_KC.sum(axis=1).tolist() == [8] * 20


@pytest.mark.parametrize(
    ("names", "smallest", "train", "val"),
    [
        (("office-dslr", "office-webcam"), 125, 62, 50),
        (("domainnet-infograph", "domainnet-real"), 2100, 105, 105),
        (("domainnet-infograph", "domainnet-real"), 2119, 105, 105),
    ],
)
def test_sizes_of_office_and_domainnet(tmp_path, names, smallest, train, val):
    written = {}
    for name, number in zip(names, (smallest, 2 * smallest), strict=True):
        draws = np.random.default_rng(number)
        written[name] = {key: draws.integers(0, 256, (count, 4, 4, 3), np.uint8)
                         for key, count in (("train", number), ("test", 20))}  # fmt: skip
        arrays = {f"{key}_images": pixels for key, pixels in written[name].items()}
        arrays |= {
            f"{key}_labels": np.arange(len(pixels)) % 10 for key, pixels in written[name].items()
        }
        np.savez(tmp_path / f"{name}.npz", **arrays)
    fedbn = load(
        DataSettings(
            f"domains:{','.join(names)}", str(tmp_path), input_shape="3x4x4", recipe="fedbn"
        )
    )
    assert train + val <= smallest, "no image is for both"
    for domain, arrays in enumerate(written.values()):
        for inputs, domains, expected in (
            (fedbn.train_inputs, fedbn.train_domains, arrays["train"][:train]),
            (fedbn.val_inputs, fedbn.val_domains, arrays["train"][-val:]),
            (fedbn.test_inputs, fedbn.test_domains, arrays["test"]),
        ):
            assert np.array_equal(inputs[domains == domain], expected.transpose(0, 3, 1, 2))
