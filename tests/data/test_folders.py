"""Folders of images and data of the datasets library: classes, labels, and pixels of more than 8 bits.

What an image file says of itself is in tests/fedskew/test_what_image_files_state.py.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest
from layouts import ClassLabel, Value, noise, part_of, save_parts, write_npz
from layouts import Image as ImageColumn
from PIL import Image

from data import DataError, DataSettings, load
from data.errors import SetOption, options_of
from data.readers.array_conversion import bring_to
from data.readers.user_data import guess_settings
from data.resolve import require_there


def pets(folder, classes="cat,dog", shape="3x4x4"):
    """Two cats and a dog to train on, a dog to test: PNG, grey PNG, JPEG and WebP."""
    root = folder / "pets"
    for name in ("train/cat", "train/dog", "test/dog"):
        (root / name).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (255, 0, 0)).save(root / "train/cat/1.png")
    Image.new("L", (8, 8), 77).save(root / "train/cat/2.png")
    Image.new("RGB", (5, 9), (0, 0, 255)).save(root / "train/dog/1.jpeg")
    Image.new("RGBA", (4, 4), (9, 9, 9, 255)).save(root / "test/dog/1.webp", lossless=True)
    (root / "train/cat/.DS_Store").write_text("left by a file manager")
    return DataSettings(f"folder:{root}", classes=classes, input_shape=shape)


def refused(settings, where):
    """Return the error of a folder, which names a file or folder."""
    with pytest.raises(DataError) as caught:
        load(settings)
    assert str(caught.value).startswith(f"{where}: ") and "\n" not in str(caught.value)
    return caught.value


def test_every_format_is_read_in_the_shape_asked_for(tmp_path):
    data = load(pets(tmp_path))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1], [1])
    assert data.train.inputs[0, :, 0, 0].tolist() == [255, 0, 0]
    assert (data.train.inputs[1] == 77).all()
    assert load(pets(tmp_path, "dog,cat")).train.labels.tolist() == [0, 1, 1]


def test_folders_that_cannot_be_used(tmp_path):
    root = tmp_path / "pets"
    refused(pets(tmp_path, "cat,bird"), root / "train")
    settings = pets(tmp_path)
    (root / "train/dog/notes.png").write_text("no image")
    refused(settings, root / "train/dog/notes.png")
    (root / "train/dog/notes.png").unlink()
    (root / "test/dog/1.webp").unlink()
    refused(settings, root / "test")
    (root / "test/dog").rmdir()
    (root / "test").rmdir()
    cure = SetOption("dataset", f"folder:{root}/train")
    assert options_of(refused(settings, root / "test").remedy) == [cure]


def test_an_empty_class_folder_is_a_class(tmp_path):
    """Another site may have images of it: what is proposed must number the classes of both alike."""
    for place, name in enumerate(("a", "b", "c")):
        (tmp_path / "own" / name).mkdir(parents=True)
        for k in range(0 if name == "b" else 6):
            Image.fromarray(noise(10 * place + k, 4, 4)).save(tmp_path / "own" / name / f"{k}.png")
    settings = DataSettings(f"folder:{tmp_path / 'own'}")
    guess = guess_settings(settings.dataset, settings)
    assert guess.settings["classes"] == "a,b,c" and "class b has no image" in guess.notes
    data = load(replace(settings, classes="a,b,c", input_shape="1x4x4"))
    assert set(data.train.labels.tolist()) == {0, 2}


def test_a_site_with_images_of_one_class_is_one_of_several(tmp_path):
    for site, names in (("north", "ab"), ("south", "a")):
        for name in names:
            (tmp_path / site / name / "inside").mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / site / name / "0.png")
            Image.new("L", (4, 4)).save(tmp_path / site / name / "inside" / "1.png")
    north, south = (f"folder:{tmp_path / site}" for site in ("north", "south"))
    both = f"domains:{north},{south}"
    guess = guess_settings(both, DataSettings(both))
    assert guess.settings["classes"] == "a,b"
    with pytest.raises(DataError, match="of one class, a"):
        guess_settings(south, DataSettings(south))


@pytest.mark.parametrize("inside", [("train",), ("Train", "Test"), ("training", "val")])
def test_folders_of_sites_are_no_classes(tmp_path, inside):
    """Also where one of them has a split that the other has not."""
    for site, splits in (("north", inside), ("south", (*inside, "validation"))):
        for split in splits:
            (tmp_path / site / split / "a").mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / site / split / "a" / "0.png")
    settings = DataSettings(f"folder:{tmp_path}", classes="north,south", input_shape="1x4x4")
    (option,) = options_of(refused(settings, tmp_path).remedy)
    assert option.value == f"domains:folder:{tmp_path}/north,folder:{tmp_path}/south"


@pytest.mark.parametrize("names", [("ab", "ab"), ("ab", "a"), ("b", "abc"), ("ab", "bc")])
def test_folders_of_sites_that_lack_classes_are_no_classes(tmp_path, names):
    """Unless the user says that they are: knees may lie in folders left and right."""
    for outer, inner in zip(("ill", "well"), names, strict=True):
        for place, name in enumerate(inner):
            (tmp_path / outer / name).mkdir(parents=True)
            for k in range(5):
                pixels = noise(10 * place + k, 4, 4)
                Image.fromarray(pixels).save(tmp_path / outer / name / f"{k}.png")
    settings = DataSettings(f"folder:{tmp_path}", input_shape="1x4x4")
    with pytest.raises(DataError) as caught:
        guess_settings(settings.dataset, settings)
    sites, classes = options_of(caught.value.remedy)
    assert sites.value == f"domains:folder:{tmp_path}/ill,folder:{tmp_path}/well"
    data = load(replace(settings, classes=classes.value))
    assert data.class_names == ("ill", "well")
    assert len(data.train.labels) + len(data.test.labels) == 5 * len("".join(names))


def test_grey_and_color_images_are_brought_to_color(tmp_path):
    for name, channels in (("a", ()), ("b", (3,))):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.fromarray(noise(k, 4, 4, *channels)).save(tmp_path / name / f"{k}.png")
    settings = DataSettings(f"folder:{tmp_path}", classes="a,b")
    guess = guess_settings(settings.dataset, settings)
    assert guess.settings["input-shape"] == "3x4x4"
    assert any("grey and others in color" in str(note) for note in guess.notes)


def test_resizing_is_pils():
    size = (31, 20)
    smooth = np.add.outer(np.arange(28) * 4, np.arange(28) * 4).astype(np.uint8)
    expected = np.asarray(Image.fromarray(smooth).resize(size[::-1], Image.Resampling.BILINEAR))
    actual = bring_to(smooth[None], (1, *size))[0, 0]
    assert np.abs(actual.astype(int) - expected).max() <= 1


def test_luma_is_pils():
    colors = noise(0, 1, 9, 9, 3)
    grey = bring_to(colors, (1, 9, 9))
    assert np.array_equal(grey[0, 0], np.asarray(Image.fromarray(colors[0]).convert("L")))


# ---- more than 8 bits: what is black and what is white ---------------------------------------------------------------


def scans(folder, image):
    """Ten images of each of two classes, by their number."""
    for place, name in enumerate(("healthy", "ill")):
        (folder / "own" / name).mkdir(parents=True, exist_ok=True)
        for k in range(10):
            pixels = Image.fromarray(image(10 * place + k))
            pixels.save(folder / "own" / name / f"{k}.tif")
    return DataSettings(f"folder:{folder / 'own'}", classes="healthy,ill", input_shape="1x4x4")


def ramp(largest, kind):
    return np.linspace(0, largest, 16).reshape(4, 4).astype(kind)


def test_a_range_is_proposed_from_all_images(tmp_path, monkeypatch):
    """A range of the first image alone would cut those of seven."""
    settings = scans(tmp_path, lambda k: ramp(300 if k > 12 else 100, np.float32))
    with pytest.raises(DataError) as caught:
        load(settings)
    assert options_of(caught.value.remedy)[0] == SetOption("pixel-range", "0,300")
    assert "16 of the 16 images looked at" in str(caught.value)  # those for training
    monkeypatch.setattr("data.readers.image_files.MOST_LOOKED_AT", 2)  # the first and the last
    with pytest.raises(DataError, match="2 of the 16 images looked at") as caught:
        load(settings)
    assert options_of(caught.value.remedy)[0] == SetOption("pixel-range", "0,300")


def test_few_bits_in_files_of_16_are_asked_about(tmp_path):
    """Not where a range is stated, that of 16 bits too, and not where one image uses them."""
    settings = scans(tmp_path, lambda k: ramp(2**14 - 1 - k, np.uint16))
    with pytest.raises(DataError) as caught:
        load(settings)
    proposed = [option.value for option in options_of(caught.value.remedy)]
    assert proposed == ["0,16383", "0,65535"]
    assert load(replace(settings, pixel_range=proposed[1])).train.inputs.max() < 0.26
    for k in range(4):  # some are in the training part
        white = Image.fromarray(np.full((4, 4), 40_000, np.uint16))
        white.save(tmp_path / f"own/ill/white{k}.tif")
    assert load(settings).train.inputs.max() > 0.6


def test_floats_far_from_what_mean_and_std_say_are_asked_about(tmp_path):
    """Floats 0..255 would diverge; those of 0..1, those that were normalized and a stated mean and std are taken."""
    images = np.random.default_rng(0).uniform(3, 250, (20, 4, 4)).astype(np.float32)

    def check(images, **stated):
        parts = {"train_images": images, "test_images": images}
        write_npz(tmp_path / "own.npz", test=20, classes=2, **parts)
        settings = {"classes": "2", "input_shape": "1x4x4", **stated}
        return load(DataSettings(f"npz:{tmp_path / 'own.npz'}", **settings)).train.inputs[:, 0]

    with pytest.raises(DataError) as caught:
        check(images)
    assert options_of(caught.value.remedy)[0].key == "pixel-range"
    assert np.allclose(check(images, pixel_range="0,255"), images / 255, atol=1e-6)
    assert np.allclose(check(images, mean="128", std="64"), images)
    assert np.allclose(check((images - 128) / 64), (images - 128) / 64, atol=1e-5)


# ---- the datasets library --------------------------------------------------------------------------------------------

TWO = ClassLabel(["cat", "dog"])
L = [0, 1] * 6
TEST = {"label": (TWO, [-1] * 12)}
SPLITS = {
    "no label in the test split": ({"train": {"label": (TWO, L)}, "test": TEST}, ("split test", "missing=drop"), 12),
    "-1 throughout the test split": (
        {"train": {"label": (Value(), L)}, "test": {"label": (Value(), [-1] * 12)}},
        ("split test", "missing=drop"),
        12,
    ),
    "a label of -1": ({"train": {"label": (TWO, [*L[:-1], -1])}}, ("row 11 (from 0)", "missing=drop"), 11),
    "a site of None": (
        {"train": {"label": (TWO, L), "site": (Value(), [*"NSNSNSNSNSN", None])}}, ("column site", "missing=drop"), 11
    ),
    "train and validation": (
        {"train": {"label": (TWO, L)}, "validation": {"label": (TWO, L)}}, ("none for test", "columns=split="), 24
    ),
    "labels that are mappings": ({"train": {"label": ({"x": Value()}, [{"x": 0}, {"x": 1}] * 6)}}, ("one text",), 0),
    "no label at all": ({"train": TEST}, ("column label",), 0),
}  # fmt: skip


def library(folder, patch, splits):
    parts = {key: part_of(noise(len(key), 12, 6, 5), **columns) for key, columns in splits.items()}
    return DataSettings(f"hf:{save_parts(folder / 'own', patch, parts)}", input_shape="1x6x5")


@pytest.mark.parametrize("case", SPLITS)
def test_a_data_set_of_the_library_is_refused_and_taken_with_the_setting_that_helps(
    tmp_path, monkeypatch, case
):
    splits, words, samples = SPLITS[case]
    settings = library(tmp_path, monkeypatch, splits)
    with pytest.raises(DataError) as caught:
        guess = guess_settings(settings.dataset, settings)
        load(replace(settings, classes=guess.settings["classes"]))
    assert not [word for word in words if word not in str(caught.value)], caught.value
    if samples:
        (option, *_) = options_of(caught.value.remedy)
        helped = replace(settings, **{option.key: option.value})
        classes = guess_settings(settings.dataset, helped).settings["classes"]
        data = load(replace(helped, classes=classes))
        assert len(data.train.labels) + len(data.test.labels) == samples and len(data.test.labels)


def test_columns_that_are_left_out_and_splits_without_rows(tmp_path, monkeypatch):
    """A second column of images that `columns` leaves out, and a split of no row, are no reason to refuse."""
    masks = {"label": (TWO, L), "mask": (ImageColumn(), noise(9, 12, 6, 5))}
    settings = library(tmp_path, monkeypatch, {"train": masks, "test": masks})
    with pytest.raises(DataError) as caught:
        load(replace(settings, classes="cat,dog"))
    assert "2 columns look like images" in caught.value.rule
    stated = replace(settings, classes="cat,dog", columns="ignore=mask")
    assert np.array_equal(load(stated).train.inputs[5, 0], noise(5, 12, 6, 5)[5])

    parts = {key: part_of(noise(len(key), 12, 6, 5), label=(TWO, L)) for key in ("train", "test")}
    parts["validation"] = part_of(noise(0, 0, 6, 5), label=(TWO, []))
    saved = save_parts(tmp_path / "empty", monkeypatch, parts)
    data = load(replace(settings, dataset=f"hf:{saved}", classes="cat,dog"))
    assert (len(data.train.labels), len(data.test.labels), data.val) == (12, 12, None)


def test_columns_that_are_not_used_are_named(tmp_path, monkeypatch):
    """One of them may say whose the images are."""
    columns = {"label": (TWO, L), "patient_id": (Value(), L), "note": (Value(), ["x"] * 12)}
    settings = library(tmp_path, monkeypatch, {"train": columns})
    (note,) = (
        note for note in guess_settings(settings.dataset, settings).notes if "not used" in str(note)
    )
    assert "patient_id, note" in str(note)
    assert options_of(note) == [SetOption("columns", "patient=patient_id")]
    stated = replace(settings, columns="patient=patient_id,ignore=note")
    assert "not used" not in str(guess_settings(settings.dataset, stated).notes)


def test_the_labels_minus_one_and_one_are_classes(tmp_path, monkeypatch):
    both = {"label": (Value(), [-1, 1] * 6)}
    parts = {"train": both, "test": {"label": (Value(), [-1] * 12)}}  # also of a split without a 1
    for splits in ({"train": both}, parts):
        settings = library(tmp_path / str(len(splits)), monkeypatch, splits)
        assert guess_settings(settings.dataset, settings).settings["classes"] == "-1,1"


def test_the_library_is_named_where_it_is_missing(tmp_path, monkeypatch):
    settings = library(tmp_path, monkeypatch, {"train": {"label": (TWO, L)}})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as caught:
        load(replace(settings, classes="cat,dog"))
    assert "fedskew[hf]" in caught.value.rule


@pytest.mark.parametrize("use", [load, require_there])
def test_a_name_in_place_of_a_folder_is_told_what_to_do(tmp_path, use):
    names = ["hf:owner/name"] if use is require_there else ["hf:owner/name", f"hf:{tmp_path}"]
    for name in names:
        with pytest.raises(DataError) as caught:
            use(DataSettings(name, classes="cat,dog", input_shape="1x6x5"))
        assert "load_dataset(NAME).save_to_disk(FOLDER)" in str(caught.value)


@pytest.mark.slow  # only `make slow` installs the library
def test_the_stand_in_is_like_the_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = {"image": [Image.fromarray(noise(k, 6, 5)) for k in range(12)], "label": L}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    part = datasets.Dataset.from_dict(columns, datasets.Features(kinds))
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "saved"))
    settings = DataSettings(f"hf:{tmp_path / 'saved'}", classes="cat,dog", input_shape="1x6x5")
    data = load(settings)
    assert data.train.labels.tolist() == L and np.array_equal(
        data.train.inputs[5, 0], noise(5, 6, 5)
    )
