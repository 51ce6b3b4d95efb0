"""Official layouts, in tiny files: what is read, in which order, and one sentence for what is missing."""

import pickle
import re

import numpy as np
import pytest
import torch
from layouts import write_image, write_mat

from data import DataError, DataSettings, federate, load, resolve
from data.readers.catalog import ALIASES, KNOWN
from data.readers.image_files import ImageFiles
from data.readers.layouts import read_layout


def test_svhn_and_synthdigits(tmp_path):
    for folder, prefix, name, first in (
        ("SVHN", "", "svhn", 1),
        ("SynthDigits", "synth_", "synthdigits", 0),
    ):
        images, labels = write_mat(tmp_path / folder / f"{prefix}train_32x32.mat", 23, first, 1)
        _, test_labels = write_mat(tmp_path / folder / f"{prefix}test_32x32.mat", 11, first, 2)
        data = load(DataSettings(name, str(tmp_path)))
        assert np.array_equal(data.train_inputs, images.transpose(0, 3, 1, 2))
        assert np.array_equal(data.train_labels, labels % 10), "SVHN's label 10 is the digit 0"
        assert np.array_equal(data.test_labels, test_labels % 10)


def test_svhn_is_downloaded_by_torchvision(tmp_path, monkeypatch):
    import torchvision.datasets

    def fetched(root, split, download):
        assert download
        write_mat(root / f"{split}_32x32.mat", 11, 1, 1)

    monkeypatch.setattr(torchvision.datasets, "SVHN", fetched)
    assert load(DataSettings("svhn", str(tmp_path), download=True)).train_labels.tolist() == [
        *range(1, 10),
        0,
        1,
    ]


def test_a_damaged_mat_file(tmp_path):
    for key in ("train", "test"):
        write_mat(tmp_path / "SVHN" / f"{key}_32x32.mat", 11, 1, 1)
    (tmp_path / "SVHN/test_32x32.mat").write_bytes(b"broken")
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}: svhn cannot be read: "):
        load(DataSettings("svhn", str(tmp_path)))


def test_cifar10(tmp_path, monkeypatch):
    """As of CIFAR-100, in two of the five official batches."""
    import torchvision.datasets

    folder, draws, written = tmp_path / "cifar-10-batches-py", np.random.default_rng(0), {}
    folder.mkdir()
    for key, number in (("data_batch_1", 4), ("data_batch_2", 3), ("test_batch", 3)):
        rows, labels = (
            draws.integers(0, 256, (number, 3072), np.uint8),
            [(7 * index) % 10 for index in range(number)],
        )
        (folder / key).write_bytes(pickle.dumps({"data": rows, "labels": labels}))
        written[key] = rows.reshape(-1, 3, 32, 32), labels
    names = {"label_names": list(KNOWN["cifar10"].class_names)}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))
    official, batches = (
        torchvision.datasets.CIFAR10,
        [["data_batch_1", None], ["data_batch_2", None]],
    )
    monkeypatch.setattr(official, "train_list", batches)
    monkeypatch.setattr(official, "test_list", [["test_batch", None]])
    monkeypatch.setattr(
        official, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None}
    )
    data = load(DataSettings("cifar10", str(tmp_path)))
    first, second = written["data_batch_1"], written["data_batch_2"]
    assert np.array_equal(data.train_inputs, np.concatenate([first[0], second[0]]))
    assert data.train_labels.tolist() == first[1] + second[1]
    assert np.array_equal(data.test_inputs, written["test_batch"][0])


def test_mnist_m(tmp_path):
    expected = {}
    for key, number in (("train", 5), ("test", 3)):
        rows = []
        for index in range(number):
            file = tmp_path / "mnist_m" / f"mnist_m_{key}" / f"{index:08d}.png"
            expected[key, index] = write_image(file, (32, 32), seed=10 * number + index)
            rows.append(f"{index:08d}.png {(3 * index) % 10}\n")
        (tmp_path / "mnist_m" / f"mnist_m_{key}_labels.txt").write_text("".join(reversed(rows)))
    data = load(DataSettings("mnist-m", str(tmp_path)))
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([2, 9, 6, 3, 0], [6, 3, 0])
    assert np.array_equal(data.train_inputs[4], expected["train", 0].transpose(2, 0, 1))
    digits = load(DataSettings("domains:mnist-m", str(tmp_path)))
    assert digits.train_inputs.shape == (5, 3, 28, 28)


def test_cifar100(tmp_path, monkeypatch):
    """torchvision checks the official files' checksums, which tiny ones cannot have."""
    import torchvision.datasets

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    pixels = np.random.default_rng(0)
    written = {}
    for key, number in (("train", 6), ("test", 3)):
        rows = pixels.integers(0, 256, (number, 3072), np.uint8)
        fine = [(37 * index) % 100 for index in range(number)]
        batch = {
            "data": rows,
            "fine_labels": fine,
            "coarse_labels": [0] * number,
            "filenames": [""] * number,
        }
        (folder / key).write_bytes(pickle.dumps(batch))
        written[key] = rows.reshape(-1, 3, 32, 32), fine
    names = list(KNOWN["cifar100"].class_names)
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": names, "coarse_label_names": []})
    )
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "train_list", [["train", None]])
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "test_list", [["test", None]])
    meta = {"filename": "meta", "key": "fine_label_names", "md5": None}
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "meta", meta)
    data = load(DataSettings("cifar100", str(tmp_path)))
    assert np.array_equal(data.train_inputs, written["train"][0])
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == (
        written["train"][1],
        written["test"][1],
    )


def test_cinic10(tmp_path):
    expected = {}
    for number, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(KNOWN["cinic10"].class_names):
            file = tmp_path / "CINIC-10" / part / name / f"{part}-n0{label}.png"
            expected[part, label] = write_image(file, (32, 32), seed=10 * number + label)
    both = load(DataSettings("cinic10", str(tmp_path)))
    assert both.train_labels.tolist() == [*range(10), *range(10)] and both.val_inputs is None
    assert np.array_equal(both.train_inputs[13], expected["valid", 3].transpose(2, 0, 1))
    apart = load(DataSettings("cinic10", str(tmp_path), cinic_train="train"))
    assert apart.train_labels.tolist() == list(range(10))
    assert np.array_equal(apart.val_inputs[3], both.train_inputs[13])
    assert np.array_equal(apart.test_inputs, both.test_inputs)


def test_tiny_imagenet(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    wnids = [f"n{number:08d}" for number in range(200)]
    rows, expected = [], {}
    for label, wnid in enumerate(wnids):
        file = folder / "train" / wnid / "images" / f"{wnid}_0.png"
        expected[label] = write_image(file, (64, 64), "L" if label == 7 else "RGB", seed=label)
    for index, label in enumerate((7, 199, 0)):
        write_image(folder / "val" / "images" / f"val_{index}.JPEG", (64, 64), seed=index)
        rows.append(f"val_{index}.JPEG\t{wnids[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")  # officially in no order
    data = load(DataSettings("tiny-imagenet", str(tmp_path)))
    assert data.train_labels.tolist() == list(range(200))
    assert data.test_labels.tolist() == [7, 199, 0] and data.shape == (3, 64, 64)
    assert np.array_equal(data.train_inputs[5], expected[5].transpose(2, 0, 1))
    assert np.array_equal(data.train_inputs[7], np.stack([expected[7]] * 3)), "some images are grey"


def write_office(root, domains=("amazon", "caltech", "dslr", "webcam"), number=15):
    for position, domain in enumerate(domains):
        for label, name in enumerate(KNOWN["office-dslr"].class_names):
            for index in range(number + 5 * (domain != "dslr")):
                file = root / "office_caltech_10" / domain / name / f"frame_{index:04d}.jpg"
                write_image(file, (10, 12), seed=10_000 * position + 100 * label + index)


def test_office_caltech10_and_its_recipe(tmp_path):
    write_office(tmp_path)
    settings = DataSettings("office-caltech10", str(tmp_path), input_shape="3x8x8")
    data = load(settings)
    assert data.domain_names == ("office-amazon", "office-caltech", "office-dslr", "office-webcam")
    assert (data.mean, data.std) == ((0.0,) * 3, (1.0,) * 3)
    assert np.bincount(data.train_domains).tolist() == [160, 160, 120, 160]
    assert np.bincount(data.test_labels[data.test_domains == 2]).tolist() == [3] * 10
    fedbn = load(
        DataSettings("office-caltech10", str(tmp_path), input_shape="3x8x8", recipe="fedbn")
    )
    assert np.bincount(fedbn.train_domains).tolist() == [60] * 4  # int(.5 x 120)
    assert np.bincount(fedbn.val_domains).tolist() == [48] * 4  # int(.4 x 120)
    assert np.array_equal(fedbn.test_inputs, data.test_inputs)
    for domain in range(4):
        train = {image.tobytes() for image in fedbn.train_inputs[fedbn.train_domains == domain]}
        val = {image.tobytes() for image in fedbn.val_inputs[fedbn.val_domains == domain]}
        test = {image.tobytes() for image in fedbn.test_inputs[fedbn.test_domains == domain]}
        assert (len(train), len(val)) == (60, 48) and not train & val and not (train | val) & test
    assert len(federate(DataSettings("office-caltech10", str(tmp_path), input_shape="3x8x8", recipe="fedbn"), 0)
               .validation(1)) == 48  # fmt: skip


def test_office_folders_are_read_as_backpack_or_back_pack(tmp_path):
    """Both spellings are in use, and hold the same images of the same classes; other names are refused."""
    write_office(tmp_path, ("dslr",))
    settings = DataSettings("office-dslr", str(tmp_path), input_shape="3x8x8")
    first = load(settings)
    folder = tmp_path / "office_caltech_10/dslr"
    (folder / "back_pack").rename(folder / "backpack")
    (folder / "laptop_computer").rename(folder / "Laptop-Computer")
    second = load(settings)
    assert np.array_equal(first.train_inputs, second.train_inputs)
    assert np.array_equal(first.train_labels, second.train_labels)
    (folder / "back_pack").mkdir()
    with pytest.raises(DataError, match="back_pack and backpack are the same class"):
        load(settings)
    (folder / "back_pack").rename(folder / "satchel")
    with pytest.raises(DataError, match="class folders satchel are none of Office-Caltech10's"):
        load(settings)


OFFICE = "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"
DOMAINNET = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"


@pytest.mark.parametrize(
    ("alias", "classes", "domain"),
    [("office-caltech10", OFFICE, "dslr"), ("domainnet", DOMAINNET, "sketch")],
)
def test_class_maps(tmp_path, alias, classes, domain):
    """FedBN's: ten classes, numbered by their names' order in every domain, whatever number a list file gives."""
    assert {KNOWN[name].class_names for name in ALIASES[alias]} == {tuple(classes.split())}
    assert resolve(DataSettings(alias)).input_shape == "3x256x256"
    if alias == "domainnet":
        write_domainnet(tmp_path)
    else:
        write_office(tmp_path, (domain,))
    name = f"{alias.split('-')[0]}-{domain}"
    raw = read_layout(name, DataSettings(name, str(tmp_path)), (3, 8, 8))
    for split in (raw.train, raw.test):
        folders = [split.images.path(index).parent.name for index in range(len(split.labels))]
        assert [classes.split()[label] for label in split.labels] == folders


def write_domainnet(root, lists=True):
    for position, domain in enumerate(("clipart", "sketch")):
        lines = {"train": [], "test": []}
        for label, name in enumerate(
            ("aircraft_carrier", *KNOWN["domainnet-real"].class_names, "zigzag")
        ):
            for index in range(40):
                file = f"{domain}/{name}/{domain}_{label:03d}_{index:06d}.jpg"
                write_image(
                    root / "DomainNet" / file, (6, 6), seed=10_000 * position + 100 * label + index
                )
                lines["train" if index < 30 else "test"].append(f"{file} {label}\n")
        for key in lines if lists else ():
            (root / "DomainNet" / f"{domain}_{key}.txt").write_text("".join(lines[key]))


def test_domainnet_of_ten_classes(tmp_path):
    write_domainnet(tmp_path)
    settings = DataSettings(
        "domains:domainnet-clipart,domainnet-sketch", str(tmp_path), input_shape="3x8x8"
    )
    data = load(settings)
    assert (
        np.bincount(data.train_labels).tolist() == [60] * 10
        and np.bincount(data.test_labels).tolist() == [20] * 10
    )
    fedbn = load(DataSettings(settings.dataset, str(tmp_path), input_shape="3x8x8", recipe="fedbn"))
    assert (
        np.bincount(fedbn.train_domains).tolist()
        == np.bincount(fedbn.val_domains).tolist()
        == [15] * 2
    )
    assert len(np.unique(fedbn.train_labels)) > 5, (
        "the lists are sorted by class, what is taken is not"
    )


def test_domainnet_without_its_lists_is_split_80_to_20(tmp_path):
    write_domainnet(tmp_path, lists=False)
    data = load(DataSettings("domainnet-sketch", str(tmp_path), input_shape="3x8x8"))
    assert (
        np.bincount(data.train_labels).tolist() == [32] * 10
        and np.bincount(data.test_labels).tolist() == [8] * 10
    )


def test_pacs_is_split_80_to_20_by_class(tmp_path):
    domains = ("art_painting", "cartoon", "photo", "sketch")
    for position, domain in enumerate(domains):
        for label, name in enumerate(KNOWN["pacs-photo"].class_names):
            for index in range(10):
                file = tmp_path / "PACS" / domain / name / f"{index}.jpg"
                write_image(file, (6, 6), seed=1000 * position + 100 * label + index)
    data = load(DataSettings("pacs", str(tmp_path), input_shape="3x8x8"))
    assert data.domain_names == ("pacs-art-painting", "pacs-cartoon", "pacs-photo", "pacs-sketch")
    for labels, domains_N, images in (
        (data.train_labels, data.train_domains, 8),
        (data.test_labels, data.test_domains, 2),
    ):
        for domain in range(4):
            assert np.bincount(labels[domains_N == domain]).tolist() == [images] * 7
    recipe = load(DataSettings("pacs", str(tmp_path), input_shape="3x8x8", recipe="fedbn"))
    assert np.bincount(recipe.train_domains).tolist() == [16] * 4, "30 % of 56"
    assert np.array_equal(recipe.test_labels, data.test_labels)


def test_imagenet_lt_is_decoded_when_asked_for(tmp_path):
    folder, listed = tmp_path / "ImageNet", {"train": [], "test": [], "val": []}
    for key, numbers in (("train", range(12)), ("test", range(12, 16)), ("val", range(16, 18))):
        for number in numbers:
            wnid, label = f"n{number % 3:08d}", 400 * (number % 3)
            file = f"{'train' if key != 'test' else 'val'}/{wnid}/{wnid}_{number}.JPEG"
            write_image(folder / file, (30 + number, 40), seed=number)
            listed[key].append(f"{file} {label}\n")
        (folder / f"ImageNet_LT_{key}.txt").write_text("".join(listed[key]))
    settings = DataSettings(
        "imagenet-lt", str(tmp_path), partition="iid", clients=3, input_shape="3x28x28"
    )
    federation = federate(settings, 0)
    data = federation.dataset
    assert isinstance(data.train_inputs, ImageFiles) and data.num_classes == 1000
    assert data.train_labels.tolist() == [0, 400, 800] * 4 and len(data.val_labels) == 2
    samples = federation.train(1)
    (folder / "train/n00000000/n00000000_0.JPEG").unlink()
    for client in range(3):
        there = [
            place for place, index in enumerate(federation.train_indices[client]) if index != 0
        ]
        batch = federation.train(client).batch(torch.tensor(there[::-1]))
        assert batch.shape == (len(there), 3, 28, 28) and batch.dtype == torch.float32
        if 0 in federation.train_indices[client]:
            with pytest.raises(DataError, match=r"n00000000_0.JPEG: cannot be read as an image"):
                federation.train(client).batch(torch.tensor([0]))
    (folder / "train" / "n00000001").rename(folder / "elsewhere")
    (folder / "ImageNet_LT_train.txt").write_text("".join(listed["train"][1:]))
    with pytest.raises(
        DataError, match=r"n00000001_1.JPEG: is not there, and ImageNet_LT_train.txt names it$"
    ):
        load(settings)
    (folder / "elsewhere").rename(folder / "train" / "n00000001")
    index = torch.tensor([1])
    assert torch.equal(samples.only(index).batch(torch.tensor([0])), samples.batch(index))
    assert isinstance(samples.only(index).inputs_N, ImageFiles) and len(samples.only(index)) == 1
    shown = (samples.batch(index)[0] * samples.std + samples.mean) * 255
    path = data.train_inputs.path(int(federation.train_indices[1][1]))
    from PIL import Image
    from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

    expected = pil_to_tensor(center_crop(resize(Image.open(path), 32), 28)).float()
    # Cutting first and resizing then gives the same picture but for less than a pixel's shift.
    assert (shown - expected).abs().mean() < 25 < (shown.flip(-1) - expected).abs().mean()


@pytest.mark.parametrize("name", [name for name in KNOWN if KNOWN[name].how])
def test_what_is_missing_and_how_to_get_it(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load(DataSettings(name, str(tmp_path), download=True))
    assert f"{name} is not there; looked for {name}.npz" in str(caught.value)
    assert str(caught.value).endswith(KNOWN[name].how)
