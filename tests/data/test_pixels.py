"""Images of more than 8 bits: what their numbers become, against the formats' own definitions."""

import io
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings, load
from data.readers.image_files import look_at, spread
from data.readers.images import open_image
from data.readers.intensity import UnknownRange
from data.readers.user_data import guess_settings

STORED = np.arange(16, dtype=np.uint16).reshape(4, 4) * 250


def dicom(file, stored=STORED, **tags):
    """Write a grey DICOM image of 12 bits."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    data.Rows, data.Columns = stored.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    data.PixelRepresentation = int(stored.dtype == np.int16)
    for tag, value in tags.items():
        setattr(data, tag, value)
    data.PixelData = stored.tobytes()
    data.save_as(file)
    return file


def read(file, **stated):
    return open_image(file, 1, settings=DataSettings(**stated))[..., 0]


def test_a_dicom_window_is_the_standards(tmp_path):
    """Linear, PS3.3 C.11.2.1.2.1, as pydicom applies it to values of 0 to 1."""
    pydicom, pixels = pytest.importorskip("pydicom"), pytest.importorskip("pydicom.pixels")
    tags = {
        "RescaleSlope": 2,
        "RescaleIntercept": -1024,
        "WindowCenter": [40, 300],
        "WindowWidth": [400, 1500],
    }
    file = dicom(tmp_path / "a.dcm", **tags)
    data = pydicom.dcmread(file)
    values = pixels.apply_modality_lut(data.pixel_array, data)
    low, high = -1024, 2 * 4095 - 1024  # pydicom's window ends at the ends of the stored bits
    expected = (pixels.apply_voi_lut(values, data) - low) / (high - low)
    assert np.allclose(read(file), expected, atol=1e-6) and read(file).dtype == np.float32
    inverted = dicom(tmp_path / "b.dcm", **tags, PhotometricInterpretation="MONOCHROME1")
    assert np.allclose(read(inverted), 1 - expected, atol=1e-6)
    exact = read(dicom(tmp_path / "c.dcm", **tags, VOILUTFunction="LINEAR_EXACT"))
    assert np.allclose(exact, np.clip((values - 40) / 400 + 0.5, 0, 1), atol=1e-6)
    sigmoid = read(dicom(tmp_path / "d.dcm", **tags, VOILUTFunction="SIGMOID"))
    assert np.allclose(sigmoid, 1 / (1 + np.exp(-4 * (values - 40) / 400)), atol=1e-6)
    assert np.allclose(
        read(file, pixel_range="-1000,0"), np.clip((values + 1000) / 1000, 0, 1), atol=1e-6
    )


def test_dicom_without_a_window_has_its_bits_and_a_signed_one_is_asked_about(tmp_path):
    pytest.importorskip("pydicom")
    assert np.allclose(read(dicom(tmp_path / "a.dcm")), STORED / 4095, atol=1e-6)
    signed = dicom(tmp_path / "b.dcm", STORED.astype(np.int16) - 2000)
    with pytest.raises(
        DataError, match=r"without a window of -2000\.\.1750: .* --set pixel-range=-2000,1750 takes"
    ):
        read(signed)
    assert read(signed, pixel_range="-2000,1750").max() == 1
    frames = dicom(tmp_path / "c.dcm", np.stack([STORED, STORED + 5, STORED + 9]), NumberOfFrames=3)
    with pytest.raises(
        DataError, match="holds 3 images: --set frame=middle, or --set frame=NUMBER"
    ):
        read(frames)
    assert np.allclose(read(frames, frame="middle"), (STORED + 5) / 4095, atol=1e-6)
    with pytest.raises(DataError, match=r"holds images 0\.\.2, and frame = 3"):
        read(frames, frame="3")
    with pytest.raises(DataError, match="more pixels than max-image-pixels = 15"):
        read(frames, frame="0", max_image_pixels=15)


def test_color_dicom_is_none_where_grey_is_set():
    data = pytest.importorskip("pydicom.data")
    file = data.get_testdata_file("SC_rgb_rle.dcm", download=False)
    from pathlib import Path

    assert open_image(Path(file), 0).shape == (100, 100, 3)
    with pytest.raises(
        DataError, match=r"is a color DICOM image \(RGB\), and grey is set: --set input-shape=3x"
    ):
        open_image(Path(file), 1)


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    pytest.importorskip("pydicom")
    file = dicom(tmp_path / "a.dcm")
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(
        DataError, match=r"pydicom reads it and is not installed: pip install 'fedskew\[medical\]'"
    ):
        read(file)


def test_nifti_slices(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    volume = np.arange(24).reshape(4, 3, 2).astype(np.int16)
    file = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), file)
    with pytest.raises(DataError, match="holds 2 images"):
        read(file)
    pixels = read(file, frame="1", pixel_range="0,23")
    assert np.allclose(pixels, volume[:, ::-1, 1].T / 23) and pixels.shape == (3, 4)
    nibabel.save(nibabel.Nifti1Image(np.full((3, 3), 51, np.uint8), np.eye(4)), file)
    assert np.allclose(read(file), 0.2)
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 3, 2, 2), np.int16), np.eye(4)), file)
    with pytest.raises(DataError, match="is a NIfTI file of 3x3x2x2 of int16"):
        read(file)


def test_sixteen_bits_are_resized_as_numbers_and_pages_are_chosen(tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(np.repeat(STORED, 2, axis=1)).save(file)
    small = open_image(file, 3, (4, 4))
    assert (
        small.shape == (4, 4, 3)
        and small.dtype == np.float32
        and (small[..., 0] == small[..., 2]).all()
    )
    assert abs(small.mean() - STORED.mean() / 65535) < 1e-4
    pages = [Image.new("L", (2, 2), k) for k in (3, 5)]
    pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match="holds 2 images"):
        read(tmp_path / "b.tif")
    assert (read(tmp_path / "b.tif", frame="1") == 5).all()


@pytest.mark.parametrize(
    ("center", "width", "function", "rule"),
    [
        (40, 0, "LINEAR", "width must be at least 1 for LINEAR"),
        (40, 0.5, "LINEAR", "width must be at least 1 for LINEAR"),
        (40, -400, "LINEAR", "width must be at least 1 for LINEAR"),
        (40, 0, "LINEAR_EXACT", "width must be greater than 0 for LINEAR_EXACT"),
        (40, -400, "LINEAR_EXACT", "width must be greater than 0 for LINEAR_EXACT"),
        (40, 0, "SIGMOID", "width must be greater than 0 for SIGMOID"),
        (40, -400, "SIGMOID", "width must be greater than 0 for SIGMOID"),
        (float("nan"), 400, "LINEAR", "and both finite"),
        (40, float("inf"), "LINEAR", "and both finite"),
        (40, 400, "CUBIC", "'CUBIC': must be one of LINEAR, LINEAR_EXACT, SIGMOID"),
    ],
)
def test_a_window_that_the_standard_forbids_is_refused_by_file(
    tmp_path, center, width, function, rule
):
    pytest.importorskip("pydicom")
    tags = {"WindowCenter": center, "WindowWidth": width, "VOILUTFunction": function}
    file = dicom_as_found(tmp_path / "a.dcm", **tags)
    with pytest.raises(DataError) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}: ") and rule in str(refused.value)
    assert "--set pixel-range=LOW,HIGH" in str(refused.value) and "\n" not in str(refused.value)
    assert read(file, pixel_range="0,3750").max() == 1  # the cure


@pytest.mark.parametrize(
    ("width", "function"), [(1, "LINEAR"), (0.5, "LINEAR_EXACT"), (0.5, "SIGMOID")]
)
def test_the_least_window_that_the_standard_allows_is_taken(tmp_path, width, function):
    """A step at the center: black below, white above."""
    pytest.importorskip("pydicom")
    tags = {"WindowCenter": 1875, "WindowWidth": width, "VOILUTFunction": function}
    pixels = read(dicom_as_found(tmp_path / "a.dcm", **tags)).ravel()
    assert np.allclose(pixels[STORED.ravel() < 1750], 0) and np.allclose(pixels[8:], 1)


def dicom_as_found(file, **tags):
    """A DICOM file with values that pydicom would not write without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dicom(file, **tags)


def test_numbers_that_are_not_finite_are_refused_by_file(tmp_path):
    """A rescale slope that is NaN, beside a window that would have hidden it."""
    pytest.importorskip("pydicom")
    tags = {
        "RescaleSlope": float("nan"),
        "RescaleIntercept": 0,
        "WindowCenter": 40,
        "WindowWidth": 400,
    }
    file = dicom_as_found(tmp_path / "a.dcm", **tags)
    with pytest.raises(DataError, match="NaN or infinite: must be finite") as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}: ")


def scans(folder, of=lambda site, k: 100.0):
    """Write 120 float images of two classes with numbers 0 to `of`, and return the folder."""
    for name in ("healthy", "ill"):
        (folder / name).mkdir(parents=True)
        for k in range(60):
            pixels = np.linspace(0, of(name, k), 16, dtype=np.float32).reshape(4, 4)
            Image.fromarray(pixels).save(folder / name / f"{k:02}.tif")
    return folder


def test_a_range_is_proposed_from_all_images_and_says_how_many_it_cuts(tmp_path):
    """18 of 120 hold more than the first: a range of the first alone would cut them."""
    folder = scans(tmp_path / "scans", lambda name, k: 300 if name == "ill" and k >= 42 else 100)
    for refused_by in (
        lambda: guess_settings(f"folder:{folder}", DataSettings()),
        lambda: load(
            DataSettings(
                f"folder:{folder}", classes="healthy,ill", input_shape="1x4x4", cache=str(tmp_path)
            )
        ),
    ):
        with pytest.raises(
            DataError, match=r"0\.\.300 in \d+ of the \d+ images looked at: .*=0,300 takes"
        ):
            refused_by()
    notes = guess_settings(f"folder:{folder}", DataSettings(pixel_range="0,100")).notes
    cut = [
        note
        for note in notes
        if "pixel-range = 0,100 cuts numbers of 18 images: 120 of the 120" in note
    ]
    assert len(cut) == 1 and "they have 0..300" in cut[0]
    assert not [
        n
        for n in guess_settings(f"folder:{folder}", DataSettings(pixel_range="0,300")).notes
        if "cuts" in n
    ]


def test_the_images_that_are_looked_at_are_few_and_of_every_site_and_class():
    groups = [("a", 0)] * 5000 + [("a", 1)] * 3 + [("b", 0)] * 2000 + [("b", 1)]
    places = spread(groups, 100)
    assert len(places) == 100 and places == sorted(set(places))
    counts = Counter(groups[place] for place in places)
    assert counts == {("a", 0): 48, ("a", 1): 3, ("b", 0): 48, ("b", 1): 1}
    assert {0, 4999, 7003} <= set(places)  # a group's ends too
    assert spread(groups[:100], 100) == list(range(100))
    assert len(spread(list(range(1000)), 10)) == 10


def test_the_work_of_a_look_is_bounded(tmp_path):
    read_files = []
    known = look_at(lambda place: read_files.append(place), [0] * 10_000, most=50)
    assert known is None and len(read_files) == 50


@pytest.mark.parametrize("kind", ["png", "tif"])
@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_few_bits_in_files_of_16_are_asked_about(tmp_path, bits, kind):
    """Not where a range is stated, that of 16 bits too, and not where one image uses them."""
    for name in ("healthy", "ill"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for k in range(10):
            pixels = np.linspace(0, 2**bits - 1 - k, 16).astype(np.uint16).reshape(4, 4)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{k}.{kind}")
    stated = DataSettings(
        f"folder:{tmp_path / 'own'}",
        classes="healthy,ill",
        input_shape="1x4x4",
        cache=str(tmp_path),
    )
    with pytest.raises(DataError) as refused:
        load(stated)
    for words in (f"pixel-range=0,{2**bits - 1} ", "pixel-range=0,65535 ", "16 of the 16 images"):
        assert words in str(refused.value)
    assert load(replace(stated, pixel_range=f"0,{2**bits - 1}")).train_inputs.max() > 0.99
    assert load(replace(stated, pixel_range="0,65535")).train_inputs.max() < 0.26
    for name in ("healthy", "ill"):
        for k in range(4):  # some are in the training part
            full = np.full((4, 4), 40_000, np.uint16)
            Image.fromarray(full).save(tmp_path / "own" / name / f"white{k}.{kind}")
    assert load(stated).train_inputs.max() > 0.6


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_floats_far_from_what_mean_and_std_say_are_asked_about(tmp_path, kind):
    """Floats 0..255 would diverge; those of 0..1, those that were normalized and a stated mean and std are taken."""
    images = np.random.default_rng(0).uniform(3, 250, (20, 4, 4)).astype(kind)

    def check(images, **stated):
        arrays = {f"{key}_{what}": value for key in ("train", "test")
                  for what, value in (("images", images), ("labels", np.arange(20) % 2))}  # fmt: skip
        np.savez(tmp_path / "own.npz", **arrays)
        dataset = f"npz:{tmp_path / 'own.npz'}"
        return load(
            DataSettings(dataset, classes="2", input_shape="1x4x4", cache=str(tmp_path), **stated)
        ).train_inputs

    with pytest.raises(
        DataError, match=r"train_images: float\d\d of .*--set pixel-range=0,255 takes 0"
    ):
        check(images)
    assert np.allclose(check(images, pixel_range="0,255")[:, 0], images / 255, atol=1e-6)
    assert np.allclose(check(images, mean="128", std="64")[:, 0], images)
    assert np.allclose(check(images / 255)[:, 0], images / 255)
    assert np.allclose(check((images - 128) / 64)[:, 0], (images - 128) / 64, atol=1e-5)
    with pytest.raises(DataError, match=r"--set pixel-range=-9\S+,\S+ takes these two"):
        check(images * 10 - 1000)


@pytest.mark.parametrize(
    "numbers", [(-969.25719, 1493.11123), (0.0, 7.0), (-1024, 3071), (0.1, 1e7)]
)
def test_a_proposed_range_leaves_nothing_out(numbers):
    range_stated = str(UnknownRange("x", *numbers)).split("pixel-range=")[1].split()[0]
    low, high = map(float, range_stated.split(","))
    assert (
        low <= numbers[0] and high >= numbers[1] and high - low < 1.001 * (numbers[1] - numbers[0])
    )


@dataclass(frozen=True)
class ImagesOfFiles:
    """The library's type of a column of images."""

    decode: bool = True
    mode: None = None


ImagesOfFiles.__name__ = "Image"


class Part:
    """What hf: needs of a data set of the datasets library, which is not installed everywhere."""

    def __init__(self, images):
        self.features = {"image": ImagesOfFiles(), "label": type("Value", (), {})()}
        self.rows = []
        for k, pixels in enumerate(images):
            stream = io.BytesIO()
            pixels.save(stream, format="TIFF")
            self.rows.append({"image": {"bytes": stream.getvalue(), "path": None}, "label": k % 2})

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    def select_columns(self, names):
        return self

    def cast_column(self, name, feature):
        assert feature == ImagesOfFiles(decode=False)
        return self


@pytest.mark.parametrize(
    ("kind", "largest", "words"),
    [
        (
            np.float32,
            300,
            r"of 0\.\.300 in 40 of the 40 images looked at: .*pixel-range=0,300 takes",
        ),
        (
            np.uint16,
            4095,
            r"40 of the 40 images looked at .*pixel-range=0,4095 takes 4095 as white",
        ),
    ],
)
def test_images_of_the_datasets_library_are_looked_at_too(
    tmp_path, monkeypatch, kind, largest, words
):
    from data.readers import huggingface as hugging_face

    arrays = [np.linspace(0, largest if k > 30 else 100, 16).reshape(4, 4) for k in range(40)]
    part = Part([Image.fromarray(pixels.astype(kind)) for pixels in arrays])
    monkeypatch.setattr(hugging_face, "parts_of", lambda place, download: {"train": part})
    monkeypatch.setattr(
        hugging_face, "needed", lambda *given: SimpleNamespace(disable_progress_bars=lambda: None)
    )
    with pytest.raises(DataError, match=words):
        hugging_face.read(tmp_path, ("0", "1"), (1, 4, 4), DataSettings())
    stated = DataSettings(pixel_range=f"0,{largest}")
    raw = hugging_face.read(tmp_path, ("0", "1"), (1, 4, 4), stated)
    assert max(raw.train.images.max(), raw.test.images.max()) == 1
    notes = hugging_face.guess_settings(tmp_path, DataSettings(pixel_range="0,100")).notes
    assert any("cuts numbers of 9 images" in note for note in notes)
