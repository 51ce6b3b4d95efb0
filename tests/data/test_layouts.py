"""Named data sets in their official layouts, by facts of their own, and FedBN's recipe.

What is read in which order is in tests/golden/readers.json.
"""

import layouts
import numpy as np
import pytest
import torch
from layouts import write_npz

from data import DataError, DataSettings, federate, load
from data.readers.catalog import ALIASES, KNOWN
from data.readers.named import read_layout

SMALL = "3x8x8"


def test_digits_are_the_original_images_each_once():
    from sklearn.datasets import load_digits

    data = load(DataSettings())
    assert np.bincount(data.test.labels).tolist() == [36] * 10
    both = np.concatenate([data.train.inputs, data.test.inputs])[:, 0]
    shown = np.rint(both * (16 / 255)).astype(np.uint8)
    original = load_digits().images.astype(np.uint8)
    assert sorted(map(bytes, shown)) == sorted(map(bytes, original))


def test_a_damaged_torchvision_file_is_refused(tmp_path):
    layouts.write_idx(tmp_path, "MNIST")
    settings = DataSettings("mnist", str(tmp_path))
    load(settings)
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        load(settings)
    assert caught.value.where == str(tmp_path)


OFFICE = "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"
DOMAINNET = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"


@pytest.mark.parametrize(
    ("alias", "classes", "domain"),
    [("office-caltech10", OFFICE, "dslr"), ("domainnet", DOMAINNET, "sketch")],
)
def test_class_maps(tmp_path, alias, classes, domain):
    """FedBN's: ten classes, numbered by their names' order in every domain, whatever number a list file gives."""
    assert {KNOWN[name].class_names for name in ALIASES[alias]} == {tuple(classes.split())}
    layouts.write_domainnet(tmp_path, 4)
    layouts.write_office(tmp_path, {domain: 5})
    name = f"{alias.split('-')[0]}-{domain}"
    raw = read_layout(name, DataSettings(name, str(tmp_path), input_shape="3x8x8"))
    for split in (raw.train, raw.test):
        folders = [split.images.path(index).parent.name for index in range(len(split.labels))]
        assert [classes.split()[label] for label in split.labels] == folders


@pytest.mark.parametrize(
    ("names", "smallest", "train", "val"),
    [
        (("office-dslr", "office-webcam"), 125, 62, 50),
        (("domainnet-infograph", "domainnet-real"), 2119, 105, 105),
    ],
)
def test_sizes_of_office_and_domainnet(tmp_path, names, smallest, train, val):
    """The first images of a domain are for training and its last for validation."""
    written = [
        write_npz(tmp_path / f"{name}.npz", (4, 4, 3), smallest * (1 + place), 20, seed=place)
        for place, name in enumerate(names)
    ]
    stated = {"input_shape": "3x4x4", "recipe": "fedbn"}
    fedbn = load(DataSettings(f"domains:{','.join(names)}", str(tmp_path), **stated))
    for domain, arrays in enumerate(written):
        for inputs, domains, expected in (
            (fedbn.train.inputs, fedbn.train.domains, arrays["train_images"][:train]),
            (fedbn.val.inputs, fedbn.val.domains, arrays["train_images"][-val:]),
            (fedbn.test.inputs, fedbn.test.domains, arrays["test_images"]),
        ):
            assert np.array_equal(inputs[domains == domain], expected.transpose(0, 3, 1, 2))


def test_fedbn_s_digits_are_pooled_split_anew_and_cut_to_the_smallest(tmp_path):
    """The split is that of FedBN's code: scikit-learn's, 80 to 20 by class with seed 0."""
    from sklearn.model_selection import StratifiedShuffleSplit

    write_npz(tmp_path / "mnist.npz", (28, 28), 90, 30)
    usps = write_npz(tmp_path / "usps.npz", (28, 28), 61, 39, seed=1)
    fedbn = load(DataSettings("domains:mnist,usps", str(tmp_path), recipe="fedbn"))
    assert np.bincount(fedbn.train.domains).tolist() == [80, 80]  # 100 pooled of usps
    assert np.bincount(fedbn.test.domains).tolist() == [24, 20]
    images = np.concatenate([usps["train_images"], usps["test_images"]])
    labels = np.concatenate([usps["train_labels"], usps["test_labels"]])
    split = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    train, test = next(split.split(images, labels))
    assert np.array_equal(fedbn.train.inputs[fedbn.train.domains == 1, 0], images[train])
    assert np.array_equal(fedbn.test.inputs[fedbn.test.domains == 1, 0], images[test])


def test_imagenet_lt_is_decoded_when_asked_for(tmp_path):
    layouts.write_imagenet_lt(tmp_path, 30)
    settings = DataSettings("imagenet-lt", str(tmp_path), partition="pooled", input_shape="3x28x28")
    federation = federate(settings, 0)
    trained = federation.train(0)
    folder = tmp_path / "ImageNet"
    (folder / "train/n1/1.png").rename(folder / "away.png")
    trained.batch(torch.tensor([5, 2]))
    with pytest.raises(DataError):
        trained.batch(torch.tensor([1]))
    # The first image of each list is looked for before training.
    (folder / "train/n0/0.png").unlink()
    (folder / "ImageNet_LT_train.txt").touch()
    with pytest.raises(DataError):
        load(settings)
