"""A user's own arrays and image folders: what they become, and one sentence for everything that is wrong with them."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings, SettingError, federate, load, resolve
from data.readers.splits import bring_to


def arrays(**changed):
    """Ten grey training and five test images of two classes."""
    pixels = np.random.default_rng(0)
    members = {
        "train_images": pixels.integers(0, 256, (10, 6, 5), np.uint8),
        "train_labels": np.arange(10) % 2,
        "test_images": pixels.integers(0, 256, (5, 6, 5), np.uint8),
        "test_labels": np.arange(5) % 2,
    }
    members.update(changed)
    return {key: value for key, value in members.items() if value is not None}


def npz(tmp_path, shape="1x6x5", classes="2", **changed):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays(**changed))
    return DataSettings(f"npz:{path}", classes=classes, input_shape=shape)


def fails(error, message, settings):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        load(settings)


def test_npz_of_grey_images(tmp_path):
    data = load(npz(tmp_path))
    assert np.array_equal(data.train_inputs[:, 0], arrays()["train_images"])
    assert (data.class_names, data.mean, data.std) == (("0", "1"), (0.5,), (0.5,))
    assert data.val_inputs is None


def test_npz_with_validation_data(tmp_path):
    data = load(
        npz(tmp_path, val_images=np.ones((3, 6, 5), np.uint8), val_labels=np.array([0, 1, 1]))
    )
    assert data.val_inputs.shape == (3, 1, 6, 5)
    assert data.val_labels.tolist() == [0, 1, 1]


def test_npz_of_vectors(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(15, 7)).astype(np.float32)
    data = load(npz(tmp_path, "7", train_images=vectors[:10], test_images=vectors[10:]))
    assert (data.shape, data.mean, data.std) == ((7,), (), ())  # the training rows decide
    assert np.array_equal(data.train_inputs, vectors[:10])


def test_npz_of_float_images(tmp_path):
    images = np.random.default_rng(0).random((15, 6, 5, 3)).astype(np.float32)
    data = load(npz(tmp_path, "3x6x5", train_images=images[:10], test_images=images[10:]))
    assert data.train_inputs.dtype == np.float32
    assert np.array_equal(data.train_inputs, images[:10].transpose(0, 3, 1, 2))


def test_a_relative_path_lies_below_data_root(tmp_path):
    settings = npz(tmp_path)
    assert (
        load(DataSettings("npz:own.npz", str(tmp_path), classes="2", input_shape="1x6x5")).content
        == load(settings).content
    )


NAN = np.zeros((10, 6, 5), np.float32)
NAN[4, 2, 1] = np.nan


@pytest.mark.parametrize(
    ("changed", "rest"),
    [
        (
            {"train_labels": np.arange(10)},
            ": train_labels: label 2 of 2 classes at index 2: labels must be 0..1",
        ),
        (
            {"test_labels": np.arange(5) - 1},
            ": test_labels: label -1 of 2 classes at index 0: labels must be 0..1",
        ),
        (
            {"train_labels": np.arange(10) / 2},
            ": train_labels: dtype float64, such as 0.5: labels must be whole numbers",
        ),
        (
            {"train_labels": np.ones((10, 2), int)},
            ": train_labels: shape (10, 2): several labels of one image (multi-label) cannot be trained on: choose one "
            "column and save it as (N,)",
        ),
        (
            {"train_labels": np.arange(10) % 2 + 1, "test_labels": np.arange(5) % 2 + 1},
            ": train_labels: labels 1..2 of 2 classes: must be 0..1; if they count from 1: --set first-label=1",
        ),
        (
            {"train_labels": np.array(["cat", "dog"] * 5)},
            ": train_labels: 'cat': must be one of classes = 0,1; what is there would fit --set 'classes=cat,dog'",
        ),
        (
            {"train_images": np.full((10, 6, 5), -1000, np.int16)},
            ": train_images: int16 of -1000..-1000: nothing says which value is black and which is white: --set "
            "pixel-range=-1000,-999 takes these two",
        ),
        (
            {"train_images": np.full((10, 6, 5), 255, np.uint16)},
            ": train_images: uint16 of 255..255: nothing says which value is black and which is white: --set "
            "pixel-range=255,256 takes these two",
        ),
        (
            {"train_labels": np.zeros(9, int)},
            ": train_images: 10 images and 9 labels: train_images and train_labels must be equally long",
        ),
        (
            {"train_images": NAN, "test_images": np.zeros((5, 6, 5), np.float32)},
            ": train_images: NaN or infinite pixel in image 4: pixels must be finite",
        ),
        (
            {"train_images": np.zeros((10, 6, 5), complex)},
            ": train_images: dtype complex128: must be uint8, float or integer images (N, H, W) or (N, H, W, C), or "
            "vectors (N, F)",
        ),
        (
            {"train_images": np.zeros((10, 6), np.uint8)},
            ": train_images: shape (10, 6): must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)",
        ),
        (
            {"train_images": np.zeros((10, 6, 5, 2), np.uint8)},
            ": train_images: images have shape (6, 5, 2), read as (height, width, channels), and 2 channels cannot "
            "become 1",
        ),
        (
            {"train_images": np.zeros((10, 9), np.float32)},
            ": train_images: each example has shape (9,) where input-shape asks for (1, 6, 5)",
        ),
        (
            {"train_images": np.zeros((0, 6, 5), np.uint8), "train_labels": np.zeros(0, int)},
            ": train_images: no image: must hold at least one",
        ),
        (
            {"train_images": None, "test_labels": None},
            ": train_images, test_labels missing; the file holds train_labels, test_images",
        ),
        (
            {"val_images": np.zeros((1, 6, 5), np.uint8)},
            ": val_labels missing; the file holds train_images, train_labels, test_images, test_labels, val_images",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_npz_that_cannot_be_used(tmp_path, changed, rest):
    settings = npz(tmp_path, **changed)
    fails(DataError, f"{tmp_path / 'own.npz'}{rest}", settings)


def test_train_and_test_of_two_types(tmp_path):
    settings = npz(tmp_path, test_images=np.zeros((5, 6, 5), np.float32))
    message = f"{settings.dataset}: test_images: float32 and uint8: must all be of one type"
    fails(DataError, message, settings)


def test_npz_files_that_are_none(tmp_path):
    settings = npz(tmp_path)
    path = tmp_path / "own.npz"
    path.unlink()
    fails(DataError, f"{path}: there is no such file", settings)
    path.write_bytes(b"not an archive")
    with pytest.raises(
        DataError, match=f"^{re.escape(str(path))}: cannot be read as an npz file of plain arrays: "
    ):
        load(settings)
    np.savez(path, **arrays(train_labels=np.array([{}] * 10, object)))
    with pytest.raises(
        DataError, match="cannot be read as an npz file of plain arrays: Object arrays"
    ):
        load(settings)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    rule = "holds one array: must be an npz file, as numpy.savez writes it from train_images, train_labels,"
    fails(DataError, f"{path}: {rule} test_images and test_labels", settings)
    path.write_text("label,x\na,1\nb,2\n")
    rule = f"cannot be read as an npz file of plain arrays: is text, a table by its commas: --set dataset=csv:{path}"
    fails(DataError, f"{path}: {rule}", settings)
    for head, kind in (
        (b"\x80\x04", "is a Python pickle"),
        (b"\x89HDF", "is an HDF5 file"),
        (b"", "is empty"),
    ):
        path.write_bytes(head)
        with pytest.raises(DataError, match=f"plain arrays: {kind}"):
            load(settings)


def same(tmp_path, expected, shape="1x6x5", classes="2", **changed):
    """Assert that changed arrays are read as the same data as `expected` ones."""
    (tmp_path / "other").mkdir(exist_ok=True)
    mine, theirs = (load(npz(folder, shape, classes, **arrays)) for folder, arrays in
                    ((tmp_path, changed), (tmp_path / "other", expected)))  # fmt: skip
    assert mine.content == theirs.content


def test_what_can_mean_one_thing_alone_is_converted(tmp_path):
    plain = arrays()
    labels = {key: plain[key] for key in ("train_labels", "test_labels")}
    images = {key: plain[key] for key in ("train_images", "test_images")}
    same(
        tmp_path, {}, **{key: part[:, None] for key, part in labels.items()}
    )  # as MedMNIST has them
    same(tmp_path, {}, **{key: part.astype(np.float64) for key, part in labels.items()})
    same(tmp_path, {}, **{key: np.eye(2)[part] for key, part in labels.items()})
    same(tmp_path, {}, **{key: part.astype(bool) for key, part in labels.items()})
    names = {key: np.array(["cat", "dog"])[part] for key, part in labels.items()}
    same(tmp_path, {}, classes="cat,dog", **names)
    same(tmp_path, {}, **{key: part[:, None] for key, part in images.items()})  # channels first
    same(tmp_path, {}, **{key: part.astype(np.int64) for key, part in images.items()})
    floats = {key: (part / 255).astype(np.float32) for key, part in images.items()}
    same(tmp_path, floats, **{key: part.astype(np.float64) for key, part in floats.items()})
    wide = {key: part.astype(np.uint16) * 257 for key, part in images.items()}
    same(tmp_path, floats, **wide)


def test_what_a_setting_says(tmp_path):
    from_1 = {key: arrays()[key] + 1 for key in ("train_labels", "test_labels")}
    settings = replace(npz(tmp_path, **from_1), first_label=1)
    assert load(settings).train_labels.tolist() == arrays()["train_labels"].tolist()
    ct = np.linspace(-1200, 300, 300).reshape(10, 6, 5).astype(np.int16)
    settings = npz(tmp_path, train_images=ct, test_images=ct[:5])
    read = load(replace(settings, pixel_range="-1000,200")).train_inputs[:, 0]
    assert read.dtype == np.float32
    assert np.array_equal(read, np.clip((ct.astype(np.float32) + 1000) / np.float32(1200), 0, 1))
    for text in ("1", "2,1", "a,b", "nan,1"):
        with pytest.raises(SettingError, match="pixel-range = "):
            replace(settings, pixel_range=text)


def test_classes_and_shape_are_settings_and_the_error_says_what_would_fit(tmp_path):
    settings = npz(tmp_path, classes="")
    rule = f"must be set for {settings.dataset}: it is a setting of the run and never read off a client's files"
    with pytest.raises(SettingError) as caught:
        resolve(settings)
    assert str(caught.value) == f"classes = '': {rule}; what is there now would fit classes = \"2\""
    with pytest.raises(SettingError) as caught:
        resolve(npz(tmp_path, shape=""))
    assert (
        str(caught.value)
        == f"input-shape = '': {rule}; what is there now would fit input-shape = \"1x6x5\""
    )
    (tmp_path / "own.npz").unlink()
    with pytest.raises(SettingError) as caught:
        resolve(settings)
    assert str(caught.value) == f"classes = '': {rule}"


def folder(tmp_path, classes="cat,dog", shape="3x4x4"):
    """Two cats and a dog to train on, a dog to test: PNG, grey PNG, JPEG and WebP."""
    root = tmp_path / "pets"
    for name in ("train/cat", "train/dog", "test/dog"):
        (root / name).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (255, 0, 0)).save(root / "train/cat/1.png")
    Image.new("L", (8, 8), 77).save(root / "train/cat/2.png")
    Image.new("RGB", (5, 9), (0, 0, 255)).save(root / "train/dog/1.jpeg")
    Image.new("RGBA", (4, 4), (9, 9, 9, 255)).save(root / "test/dog/1.webp", lossless=True)
    (root / "train/cat/.DS_Store").write_text("left by a file manager")
    return DataSettings(f"folder:{root}", classes=classes, input_shape=shape)


def test_folder(tmp_path):
    data = load(folder(tmp_path))
    assert data.train_inputs.shape == (3, 3, 4, 4)
    assert data.train_labels.tolist() == [0, 0, 1]
    assert data.test_labels.tolist() == [1]
    assert data.train_inputs[0, :, 0, 0].tolist() == [255, 0, 0]
    assert (data.train_inputs[1] == 77).all()
    assert data.class_names == ("cat", "dog")


def test_folder_in_grey_uses_luma(tmp_path):
    data = load(folder(tmp_path, shape="1x4x4"))
    assert (data.train_inputs[0] == 76).all()  # .299 x 255


def test_the_order_of_classes_is_the_settings(tmp_path):
    assert load(folder(tmp_path, "dog,cat")).train_labels.tolist() == [0, 1, 1]


def test_a_class_that_a_folder_lacks_counts_zero(tmp_path):
    federation = federate(
        DataSettings(
            **{**vars(folder(tmp_path, "bird,cat,dog")), "partition": "iid", "clients": 1}
        ),
        0,
    )
    assert federation.counts_KC.tolist() == [[0, 2, 1]]


def test_folders_that_cannot_be_used(tmp_path):
    settings = folder(tmp_path, "cat,bird")
    root = tmp_path / "pets"
    message = f"{root}/train: class folders dog are none of the setting classes; found cat, dog; classes = cat, bird"
    fails(DataError, message, settings)
    settings = folder(tmp_path)
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(root / "train/dog/deep.png")
    data = load(settings)
    assert data.train_inputs.dtype == data.test_inputs.dtype == np.float32, (
        "one file of 16 bits makes all numbers"
    )
    assert np.allclose(data.train_inputs[3], 40000 / 65535) and np.allclose(
        data.train_inputs[1], 77 / 255
    )
    (root / "train/dog/deep.png").write_text("no image")
    with pytest.raises(
        DataError, match=f"^{re.escape(str(root))}/train/dog/deep.png: cannot be read as an image: "
    ):
        load(settings)
    (root / "train/dog/deep.png").unlink()
    (root / "test/dog/1.webp").unlink()
    fails(DataError, f"{root}/test: no image in any class folder of cat, dog", settings)
    (root / "test/dog").rmdir()
    (root / "test").rmdir()
    message = (
        f"{root}/test: there is no such folder; {root} must hold train/CLASS/* and test/CLASS/*: "
    )
    message += f"--set dataset=folder:{root}/train tests on a fifth of train"
    fails(DataError, message, settings)
    fails(
        DataError,
        f"{root}2: there is no such folder",
        DataSettings(f"folder:{root}2", classes="2", input_shape="1x4x4"),
    )


def test_what_would_fit_a_folder(tmp_path):
    with pytest.raises(SettingError, match=r'what is there now would fit classes = "cat,dog"$'):
        resolve(folder(tmp_path, classes=""))
    with pytest.raises(SettingError, match=r'what is there now would fit input-shape = "3x4x4"$'):
        resolve(folder(tmp_path, shape=""))


def test_own_data_as_domains(tmp_path):
    site = folder(tmp_path)
    path = tmp_path / "own.npz"
    np.savez(path, **arrays())
    settings = DataSettings(
        f"domains:{site.dataset},npz:{path}", classes="cat,dog", input_shape="3x4x4"
    )
    data = load(settings)
    assert data.domain_names == ("pets", "own")
    assert data.train_domains.tolist() == [0] * 3 + [1] * 10
    with pytest.raises(SettingError, match="classes = '': must be set for folder:"):
        resolve(DataSettings(settings.dataset))


@pytest.mark.parametrize("size", [(14, 14), (31, 20)])
def test_resizing_is_pils(size):
    smooth = np.add.outer(np.arange(28) * 4, np.arange(28) * 4).astype(np.uint8)
    expected = np.asarray(Image.fromarray(smooth).resize(size[::-1], Image.Resampling.BILINEAR))
    actual = bring_to(smooth[None], (1, *size))[0, 0]
    assert np.abs(actual.astype(int) - expected).max() <= 1


def test_luma_is_pils():
    colors = np.random.default_rng(0).integers(0, 256, (1, 9, 9, 3), np.uint8)
    assert np.array_equal(
        bring_to(colors, (1, 9, 9))[0, 0], np.asarray(Image.fromarray(colors[0]).convert("L"))
    )
    floats = colors.astype(np.float32) / 255
    assert np.abs(bring_to(floats, (1, 9, 9)) * 255 - bring_to(colors, (1, 9, 9))).max() < 0.6
