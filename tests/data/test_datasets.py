"""Named data sets: digits for real, the others as tiny files in the layouts that people have; and the cache."""

import bz2
import json
import multiprocessing
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data import DataError, DataSettings, SettingError, load, resolve
from data.readers import cache
from data.readers.catalog import ALIASES, KNOWN

REPOSITORY = Path(__file__).parents[2]


def write_npz(root, name, shape=(28, 28), train=20, test=10, seed=0):
    pixels = np.random.default_rng(seed)
    root.mkdir(exist_ok=True)
    arrays = {}
    for key, number in (("train", train), ("test", test)):
        arrays[f"{key}_images"] = pixels.integers(0, 256, (number, *shape), np.uint8)
        arrays[f"{key}_labels"] = np.arange(number) % 10
    np.savez(root / f"{name}.npz", **arrays)
    return arrays


def write_idx(folder, name="MNIST"):
    """Tiny files in the layout of yann.lecun.com, as torchvision unpacks them."""
    raw = folder / name / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(1)
    arrays = {}
    for key, prefix, number in (("train", "train", 30), ("test", "t10k", 10)):
        images = pixels.integers(0, 256, (number, 28, 28), np.uint8)
        labels = (np.arange(number) % 10).astype(np.uint8)
        header = struct.pack(">IIII", 0x803, number, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, number) + labels.tobytes()
        )
        arrays[key] = images, labels
    return arrays


def fails(error, message, settings):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        load(settings)


def test_digits():
    from sklearn.datasets import load_digits

    data = load(DataSettings())
    assert (data.name, data.num_classes, data.shape, data.mean, data.std) == (
        "digits",
        10,
        (1, 8, 8),
        (0.5,),
        (0.5,),
    )
    assert data.train_inputs.shape == (1437, 1, 8, 8)
    assert np.bincount(data.test_labels).tolist() == [36] * 10
    assert data.train_inputs.dtype == np.uint8
    # Nothing is lost, and train and test together are the original images, each once.
    both = np.concatenate([data.train_inputs, data.test_inputs])[:, 0]
    original = load_digits().images
    assert sorted(map(bytes, np.rint(both * (16 / 255)).astype(np.uint8))) == sorted(
        map(bytes, original.astype(np.uint8))
    )
    assert data.val_inputs is None
    assert data.train_domains is None


def test_four_scanners_share_the_digits_out():
    data, digits = load(DataSettings("digits-scanners")), load(DataSettings())
    assert data.domain_names == ("digits-plain", "digits-faint", "digits-blurred", "digits-noisy")
    assert data.shape == (1, 8, 8)
    for labels, domains, count in (
        (data.train_labels, data.train_domains, 32),
        (data.test_labels, data.test_domains, 9),
    ):
        assert np.bincount(10 * domains + labels).tolist() == [count] * 40
    for shown, original in (
        (data.train_inputs, digits.train_inputs),
        (data.test_inputs, digits.test_inputs),
    ):
        plain, faint, blurred, noisy = shown.reshape(4, -1, 64).astype(float)
        # 17 grey values tell which digit it was: a training digit stays one, and is at one scanner alone.
        first, second, everything = (
            set(map(bytes, np.rint(images * 16 / 255).astype(np.uint8)))
            for images in (plain, 4 * faint, original.reshape(-1, 64).astype(float))
        )
        assert (
            first | second <= everything
            and len(first) == len(second) == len(plain)
            and not first & second
        )
        change = [
            np.abs(np.diff(images.reshape(-1, 8, 8), axis=2)).mean()
            for images in (plain, blurred, noisy)
        ]
        assert change[1] < 0.6 * change[0] < change[0] < change[2], "from pixel to pixel"


def test_memory_mapped_and_read_only():
    data = load(DataSettings())
    assert isinstance(data.train_inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.train_inputs[0] = 0


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
def test_torchvision_idx_layout(tmp_path, name, folder):
    written = write_idx(tmp_path, folder)
    data = load(DataSettings(name, str(tmp_path)))
    assert np.array_equal(data.train_inputs[:, 0], written["train"][0])
    assert np.array_equal(data.test_inputs[:, 0], written["test"][0])
    assert np.array_equal(data.test_labels, written["test"][1])
    assert data.test_labels.dtype == np.int64


def test_torchvision_usps_layout(tmp_path):
    (tmp_path / "USPS").mkdir()
    for name, label in (("usps.bz2", 1), ("usps.t.bz2", 10)):
        pixels = " ".join(f"{index}:{-1 if index > 1 else 1}" for index in range(1, 257))
        (tmp_path / "USPS" / name).write_bytes(bz2.compress(f"{label} {pixels} \n".encode()))
    data = load(DataSettings("usps", str(tmp_path)))
    assert data.train_inputs.shape == (1, 1, 16, 16)
    assert data.train_inputs.ravel()[:2].tolist() == [255, 0]
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0], [9])


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "usps", "cifar10", "mnist-m"])
def test_npz_layout(tmp_path, name):
    channels, height, width = KNOWN[name].shape
    shape = (height, width) if channels == 1 else (height, width, channels)
    written = write_npz(tmp_path, name, shape)
    data = load(DataSettings(name, str(tmp_path)))
    assert data.shape == KNOWN[name].shape == data.train_inputs.shape[1:]
    expected = written["train_images"]
    expected = expected[:, None] if channels == 1 else expected.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train_inputs, expected)
    assert (data.mean, data.std) == (KNOWN[name].mean, KNOWN[name].std)


def test_another_input_shape(tmp_path):
    write_npz(tmp_path, "mnist")
    data = load(DataSettings("mnist", str(tmp_path), input_shape="3x32x32"))
    assert data.train_inputs.shape == (20, 3, 32, 32)
    assert np.array_equal(data.train_inputs[:, 0], data.train_inputs[:, 2])
    assert data.mean == (0.1307,) * 3


def test_cifar100_has_100_classes_in_alphabetical_order():
    names = KNOWN["cifar100"].class_names
    assert len(names) == 100
    assert list(names) == sorted(names)


@pytest.mark.parametrize(
    ("dataset", "mean", "std"),
    [
        ("cifar10", "0.4914,0.4822,0.4465", "0.2023,0.1994,0.201"),
        ("cifar100", "0.4914,0.4822,0.4465", "0.2023,0.1994,0.201"),
        ("cinic10", "0.4789,0.4723,0.4305", "0.2421,0.2383,0.2587"),
        ("imagenet-lt", "0.485,0.456,0.406", "0.229,0.224,0.225"),
        ("svhn", "0.5,0.5,0.5", "0.5,0.5,0.5"),
        ("digits-five", "0.5,0.5,0.5", "0.5,0.5,0.5"),
        ("domains:mnist,usps", "0.5,0.5,0.5", "0.5,0.5,0.5"),
        ("office-dslr", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("office-caltech10", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("domainnet", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("pacs", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("abide", "0.0", "1.0"),
        ("digits-scanners", "0.5", "0.5"),
    ],
)
def test_normalization_constants(dataset, mean, std):
    resolved = resolve(DataSettings(dataset))
    assert (resolved.mean, resolved.std) == (mean, std)


def test_domains(tmp_path):
    first = write_npz(tmp_path, "mnist")
    second = write_npz(tmp_path, "mnist-m", (32, 32, 3), seed=1)
    data = load(DataSettings("domains:mnist,mnist-m", str(tmp_path)))
    assert data.domain_names == ("mnist", "mnist-m")
    assert data.train_inputs.shape == (40, 3, 28, 28)
    assert data.train_domains.tolist() == [0] * 20 + [1] * 20
    assert data.test_domains.tolist() == [0] * 10 + [1] * 10
    assert np.array_equal(data.train_inputs[:20, 1], first["train_images"])
    shrunk = data.train_inputs[20:].mean()
    assert abs(shrunk - second["train_images"].mean()) < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            DataSettings("fashon-mnist"),
            "dataset = 'fashon-mnist': no data set is called 'fashon-mnist'; known are digits, digits-3-8, "
            f"{', '.join([*list(KNOWN)[2:], *ALIASES])}, npz:PATH, folder:PATH, csv:PATH, medmnist:PATH, hf:PATH, "
            "domains:NAME,NAME, sites:FILE; did you mean 'fashion-mnist'?",
        ),
        (DataSettings("npz:"), "dataset = 'npz:': 'npz:' must go on with a path"),
        (
            DataSettings("domains:mnist,mnist"),
            "dataset = 'domains:mnist,mnist': must name each domain once",
        ),
        (
            DataSettings("domains:mnist,cifar10"),
            "dataset = 'domains:mnist,cifar10': the classes of mnist and of cifar10 differ, so they cannot be domains "
            "of one problem",
        ),
        (
            DataSettings(partition="domains"),
            "partition = 'domains': does not go with dataset = 'digits': partition domains and a dataset "
            "domains:NAME,... (or a table with a column site) need each other",
        ),
        (
            DataSettings("domains:mnist,usps", partition="lda"),
            "partition = 'lda': does not go with dataset = 'domains:mnist,usps': partition domains and a dataset "
            "domains:NAME,... (or a table with a column site) need each other",
        ),
        (
            DataSettings("domains:mnist,usps", clients=3),
            "clients = 3: must be 0 or 2, one client a domain of dataset = 'domains:mnist,usps'",
        ),
        (
            DataSettings("domains:mnist,usps", imbalance_factor=10),
            "imbalance-factor = 10: a long tail over classes is not defined for dataset = 'domains:mnist,usps'",
        ),
        (
            DataSettings(train_images=100, imbalance_factor=10.0),
            "train-images = 100: contradicts imbalance-factor = 10.0: a long tail is sized by largest-class",
        ),
        (
            DataSettings(train_images=100, largest_class=10),
            "train-images = 100: contradicts largest-class = 10: set one of the two",
        ),
        (DataSettings(classes="9"), "classes = '9': must be 10 classes for digits"),
        (DataSettings(classes="a,,b"), "classes = 'a,,b': must not hold an empty name"),
        (DataSettings(classes="a,b,a"), "classes = 'a,b,a': must name each class once"),
        (
            DataSettings(classes="0"),
            "classes = '0': must be at least two names, or a number of at least 2",
        ),
        (DataSettings(classes=","), "classes = ',': must not hold an empty name"),
        (
            DataSettings(input_shape="28x28"),
            "input-shape = '28x28': must be CHANNELSxHEIGHTxWIDTH such as 3x32x32, or one number of features for "
            "vectors",
        ),
        (
            DataSettings(input_shape="4x8x8"),
            "input-shape = '4x8x8': must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for the images of digits",
        ),
        (DataSettings(mean="a"), "mean = 'a': must be numbers separated by commas"),
        (DataSettings(mean="nan"), "mean = 'nan': must be finite"),
        (DataSettings(std="0"), "std = '0': must be greater than 0"),
        (DataSettings(mean="1,2"), "mean = '1,2': must be one value, or 1, for input-shape 1x8x8"),
        (
            DataSettings(partition="llt", clients=15),
            "clients = 15: must be a multiple of the number of classes, 10, under partition llt",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else value.dataset,
)
def test_settings_that_cannot_be(settings, message):
    fails(SettingError, message, settings)


def test_resolve_fills_in_everything_and_only_once():
    resolved = resolve(DataSettings())
    assert (resolved.partition, resolved.clients, resolved.classes) == (
        "lda",
        10,
        "0,1,2,3,4,5,6,7,8,9",
    )
    assert (resolved.input_shape, resolved.mean, resolved.std) == ("1x8x8", "0.5", "0.5")
    assert resolve(resolved) == resolved
    domains = resolve(DataSettings("domains:mnist,usps,mnist-m"))
    assert (domains.partition, domains.clients, domains.input_shape) == ("domains", 3, "3x28x28")
    assert resolve(domains) == domains
    assert resolve(DataSettings("cifar10", mean="0.5")).mean == "0.5,0.5,0.5"
    assert (
        resolve(DataSettings("mnist", classes="10")).classes
        == resolve(DataSettings("mnist")).classes
    )


def test_missing_data(tmp_path):
    fails(
        DataError,
        "data-root = '': mnist needs the folder that holds its files",
        DataSettings("mnist"),
    )
    files = ", ".join(KNOWN["mnist"].files)
    message = f"{tmp_path}: mnist is not there; looked for mnist.npz or {files}; set download = true to get it"
    fails(DataError, message, DataSettings("mnist", str(tmp_path)))
    labels = ", ".join(KNOWN["mnist-m"].files)
    way = f"torchvision cannot download it: {KNOWN['mnist-m'].how}"
    message = f"{tmp_path}: mnist-m is not there; looked for mnist-m.npz or {labels}; {way}"
    fails(DataError, message, DataSettings("mnist-m", str(tmp_path), download=True))


def test_a_failing_download(tmp_path, monkeypatch):
    import torchvision.datasets

    def offline(*arguments, **options):
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "MNIST", offline)
    message = f"{tmp_path}: torchvision cannot read mnist: no network"
    fails(DataError, message, DataSettings("mnist", str(tmp_path), download=True))


def test_a_damaged_torchvision_file(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(b"broken")
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        load(DataSettings("mnist", str(tmp_path)))


WARM = """
import sys
from data import DataSettings, load
load(DataSettings())
print(*[name for name in ("sklearn", "torchvision", "PIL") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_warm_process_imports_neither_scikit_learn_nor_torchvision():
    load(DataSettings())
    output = subprocess.run(
        [sys.executable, "-c", WARM], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert output.stdout.split() == []


def race(folder, barrier, contents):
    """Load digits; nobody writes a copy before both have found none."""
    write = cache.write

    def late(folder, arrays):
        barrier.wait()
        write(folder, arrays)

    cache.write = late
    contents.put(load(DataSettings(cache=folder)).content)


@pytest.mark.slow
def test_two_processes_race_for_the_cache(tmp_path):
    context = multiprocessing.get_context("forkserver")
    shared = (str(tmp_path / "cache"), context.Barrier(2), contents := context.SimpleQueue())
    racers = [context.Process(target=race, args=shared) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert contents.get() == contents.get() == load(DataSettings()).content
    assert len(list((tmp_path / "cache").iterdir())) == 1  # one copy, no temporary folder left


def test_the_second_writer_leaves_the_first_ones_copy(tmp_path):
    folder = tmp_path / "cache" / "copy"
    cache.write(folder, {"train_inputs": np.zeros(3)})
    cache.write(folder, {"train_inputs": np.ones(3)})
    arrays, _ = cache.read(folder)
    assert arrays["train_inputs"].tolist() == [0, 0, 0]
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    setting = str(tmp_path / "file" / "cache")
    with pytest.raises(DataError) as caught:
        load(DataSettings(cache=setting))
    assert str(caught.value).startswith(f"cache = {setting!r}: cannot be written (")
    assert str(caught.value).endswith(": set cache to a folder that can")


def change_a_pixel(folder: Path) -> None:
    file = folder / "train_inputs.npy"
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[5000] ^= 64
    file.write_bytes(content)
    os.utime(
        file, ns=(stat.st_atime_ns, stat.st_mtime_ns)
    )  # even where nothing but the contents tells


def change_the_hash(folder: Path) -> None:
    file = folder / "dataset.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps({**described, "content": "0" * 64}))


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "train_inputs.npy").write_bytes(b""),
        lambda folder: (folder / "train_inputs.npy").write_bytes(b"broken"),
        lambda folder: (folder / "test_labels.npy").unlink(),
        lambda folder: (folder / "dataset.json").write_text("{"),
        lambda folder: (folder / "dataset.json").write_text("[1]"),
        lambda folder: (folder / "dataset.json").unlink(),
        lambda folder: np.save(
            folder / "train_labels.npy", np.load(folder / "train_labels.npy")[::-1]
        ),
        change_a_pixel,
        change_the_hash,
    ],
    ids=[
        "emptied",
        "broken",
        "missing",
        "half a text",
        "other text",
        "no text",
        "labels",
        "a pixel",
        "hash",
    ],
)
def test_a_damaged_cache_is_made_anew(own_cache, monkeypatch, caplog, harm):
    monkeypatch.setattr(cache, "_verified", {})
    whole = load(DataSettings())
    inputs, labels = np.array(whole.train_inputs), np.array(whole.test_labels)
    assert caplog.text == ""
    (folder,) = own_cache.iterdir()
    del whole  # to map a file that another one cuts is a bus error
    harm(folder)
    cache._verified.clear()  # as in another process
    again = load(DataSettings())
    assert np.array_equal(again.train_inputs, inputs) and np.array_equal(again.test_labels, labels)
    assert "the cached copy is " in caplog.text and "made anew" in caplog.text
    assert [path.name for path in own_cache.iterdir()] == [folder.name]


def test_a_copy_is_compared_with_its_hash_once_a_process(own_cache, monkeypatch):
    load(DataSettings())
    hashed, real = [], cache.content_hash
    monkeypatch.setattr(cache, "content_hash", lambda arrays: hashed.append(1) or real(arrays))
    monkeypatch.setattr(cache, "_verified", {})
    for _ in range(3):
        load(DataSettings())
    assert len(hashed) == 1
    cache._verified.clear()
    monkeypatch.setattr(cache, "VERIFIED", 1)
    load(DataSettings())
    assert len(hashed) == 1, (
        "a large copy is trusted while sizes and times of change are those that were written down"
    )
    (folder,) = own_cache.iterdir()
    os.utime(folder / "train_inputs.npy")
    load(DataSettings())
    assert len(hashed) == 2


def test_copies_of_earlier_versions_are_read(own_cache, monkeypatch, caplog):
    content = load(DataSettings()).content
    (folder,) = own_cache.iterdir()
    described = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(
        json.dumps({key: described[key] for key in ("content", "arrays")})
    )
    monkeypatch.setattr(cache, "_verified", {})
    assert load(DataSettings()).content == content and caplog.text == ""
    change_a_pixel(folder)
    cache._verified.clear()
    assert load(DataSettings()).content == content and "made anew" in caplog.text


def test_changed_files_and_another_shape_make_another_copy(tmp_path, own_cache):
    settings = DataSettings("mnist", str(tmp_path))
    write_npz(tmp_path, "mnist")
    first = load(settings)
    assert load(settings).content == first.content
    write_npz(tmp_path, "mnist", train=30)
    assert len(load(settings).train_labels) == 30
    assert len(first.train_labels) == 20
    load(replace(settings, input_shape="1x14x14"))
    assert len(list(own_cache.iterdir())) == 3
    load(replace(settings, mean="0.5"))  # normalization is no part of the copy
    assert len(list(own_cache.iterdir())) == 3


def test_the_setting_cache_is_where_the_copy_goes(tmp_path, own_cache):
    load(DataSettings(cache=str(tmp_path / "elsewhere")))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    assert not own_cache.exists()
