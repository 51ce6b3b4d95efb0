"""What DICOM and NIfTI files say of their numbers and axes: each is followed, or refused in a sentence.

The tables are of files that are written here; `load` and `fedskew data check` read them.
"""

import itertools
import sys

import numpy as np
import pytest
from dicom_files import BIG_ENDIAN, IMPLICIT, write_dicom
from PIL import Image

from data import DataError, DataSettings, load

pydicom = pytest.importorskip("pydicom")
nibabel = pytest.importorskip("nibabel")


NUMBERS = np.arange(12, dtype=np.uint16).reshape(3, 4) * 340 + 100
"""Of 12 bits: 100 to 3840."""
BYTES = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
WHITE = 4095


def table(entries, first=0):
    """A lookup table of 12 bits; `first` is the number of the first entry."""
    made = pydicom.Dataset()
    made.add_new("LUTDescriptor", "US", [len(entries), first % 2**16, 12])
    made.add_new("LUTData", "US", entries.tolist())
    return made


def table_of_words(entries, bits=12):
    """A lookup table of 256 entries in words of 16 bits, with the bytes that are in the file."""
    made = pydicom.Dataset()
    made.add_new("LUTDescriptor", "US", [256, 0, bits])
    made.add_new("LUTData", "OW", entries.tobytes())
    return made


def dataset(folder, channels=1, shape=(3, 4)):
    """A folder of noise, to which a file is added as the first training image."""
    draws = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (folder / split / label).mkdir(parents=True)
            noise = draws.integers(0, 256, (*shape, channels)[: channels + 1], np.uint8)
            Image.fromarray(noise).save(folder / split / label / "1.png")
    return folder


def loaded(folder, channels=1, shape=(3, 4), **stated):
    """All training images on the scale 0..1: (N, H, W), or (N, H, W, 3)."""
    settings = DataSettings(
        f"folder:{folder}",
        classes="a,b",
        input_shape="x".join(map(str, (channels, *shape))),
        cache=str(folder.parent / "cache"),
        **stated,
    )
    images = np.moveaxis(np.asarray(load(settings).train.inputs), 1, -1)
    images = images if channels == 3 else images[..., 0]
    return images / 255 if images.dtype == np.uint8 else images


def read(tmp_path, stored, tags, **stated):
    """The first training image, which is a DICOM file."""
    channels = 3 if tags.get("PhotometricInterpretation") == "PALETTE COLOR" else 1
    folder = dataset(tmp_path / "own", channels)
    write_dicom(folder / "train" / "a" / "0.dcm", stored, **tags)
    return loaded(folder, channels, **stated)[0]


def linear(values, center, width):
    """The standard's linear window, PS3.3 C.11.2.1.2.1."""
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


PLAIN = NUMBERS / WHITE
FALLING = np.linspace(4095, 0, 4096).round().astype(int)
RISING = (np.linspace(0, 1, 4096) ** 2 * 4095).round().astype(int)
SIGNED = NUMBERS.astype(np.int16) - 2000
WINDOW = {"WindowCenter": 1000, "WindowWidth": 1500}
FRAMES = np.stack([NUMBERS, NUMBERS[::-1], NUMBERS[:, ::-1]])
REDS = np.arange(256) * 257
WORDS = np.arange(256, dtype=np.uint16) * 16
PALETTE = {"PhotometricInterpretation": "PALETTE COLOR"}
PALETTE_SHOWN = np.stack([BYTES, 255 - BYTES, (REDS[BYTES] // 2) >> 8], -1) / 255
for name, entries in (("Red", REDS), ("Green", REDS[::-1]), ("Blue", REDS // 2)):
    PALETTE[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
    PALETTE[f"{name}PaletteColorLookupTableData"] = entries.astype("<u2").tobytes()


def narrow(width):
    """A window between two of the numbers, 780 and 1120."""
    return {"WindowCenter": 950, "WindowWidth": width}


def dicom_cases():
    """The stored numbers, the tags, what is shown on 0..1 and the settings."""
    m1 = {"PhotometricInterpretation": "MONOCHROME1"}
    sigmoid = {"VOILUTFunction": "SIGMOID"}
    voi = {"VOILUTSequence": [table(RISING)]}
    garbage_signed = ((SIGNED & 0xFFF) | 0x5000).astype(np.int16)
    return {
        "bits alone": (NUMBERS, {}, PLAIN, {}),
        "MONOCHROME1": (NUMBERS, m1, 1 - PLAIN, {}),
        "window, sigmoid": (
            NUMBERS,
            WINDOW | sigmoid,
            1 / (1 + np.exp(-4 * (NUMBERS - 1000.0) / 1500)),
            {},
        ),
        "a second window of no number": (
            NUMBERS,
            {"WindowCenter": "1000\\", "WindowWidth": "1500\\"},
            linear(NUMBERS, 1000, 1500),
            {},
        ),
        "the narrowest window": (NUMBERS, narrow(1), NUMBERS > 950, {}),
        "window and rescale": (
            NUMBERS,
            WINDOW | {"RescaleSlope": 2, "RescaleIntercept": -3000},
            linear(NUMBERS * 2.0 - 3000, 1000, 1500),
            {},
        ),
        "modality LUT from a negative number": (
            SIGNED,
            {"ModalityLUTSequence": [table(FALLING, -2000)]},
            FALLING[NUMBERS] / 4095,
            {},
        ),
        "VOI LUT": (NUMBERS, voi, RISING[NUMBERS] / 4095, {}),
        "garbage above the stored bits": (
            garbage_signed,
            {},
            (SIGNED + 2048) / 4095,
            {"pixel_range": "-2048,2047"},
        ),
        "padding range": (
            NUMBERS,
            m1 | {"PixelPaddingValue": 3000, "PixelPaddingRangeLimit": 4095},
            np.where(NUMBERS >= 3000, 0, 1 - PLAIN),
            {},
        ),
        "palette": (BYTES, PALETTE | {"BitsStored": 8}, PALETTE_SHOWN, {}),
        "without preamble, implicit": (NUMBERS, {"preamble": False, "syntax": IMPLICIT}, PLAIN, {}),
        "without preamble, big endian": (
            NUMBERS.astype(">u2"),
            {"preamble": False, "syntax": BIG_ENDIAN},
            PLAIN,
            {},
        ),
        "VOI LUT of words, big endian": (
            BYTES.astype(">u2"),
            {"syntax": BIG_ENDIAN, "VOILUTSequence": [table_of_words(WORDS.astype(">u2"))]},
            WORDS[BYTES] / 4095,
            {},
        ),
    }


SHOWN = dicom_cases()


@pytest.mark.parametrize("case", SHOWN)
def test_dicom_is_shown_as_it_states(tmp_path, case):
    stored, tags, expected, stated = SHOWN[case]
    image = read(tmp_path, stored, tags, **stated)
    assert np.allclose(image, expected, atol=1e-5), np.round(image, 3)


REFUSED = {
    "presentation LUT of densities": (
        NUMBERS,
        {"PresentationLUTShape": "LIN OD"},
        ("'LIN OD'", "IDENTITY or INVERSE", "pixel-range=LOW,HIGH"),
    ),
    "no finite window": (NUMBERS, narrow(float("inf")), ("finite",)),
    "several frames": (FRAMES, {"NumberOfFrames": 3}, ("frame=middle",)),
    "a VOI LUT of bytes": (
        NUMBERS // 40,
        {"VOILUTSequence": [table_of_words(WORDS.astype(np.uint8), bits=8)]},
        ("VOILUTSequence", "256 entries of 16 bits"),
    ),
    "color among grey images": (
        np.repeat(BYTES[..., None], 3, axis=2),
        {
            "PhotometricInterpretation": "RGB",
            "SamplesPerPixel": 3,
            "PlanarConfiguration": 0,
            "BitsStored": 8,
            "Rows": 3,
            "Columns": 4,
        },
        ("color", "input-shape=3x3x4"),
    ),
    "no image": (NUMBERS, {"PixelData": None}, ("without an image",)),
    "signed without a window": (SIGNED, {}, ("of -1900..1840", "pixel-range=-1900,1840")),
    "signed with padding, written as unsigned": (
        np.where(NUMBERS == 100, -30000, SIGNED).astype(np.int16),
        {"PixelPaddingValue": 2**16 - 30000, "BitsStored": 16},
        ("of -1560..1840", "pixel-range=-1560,1840"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dicom_that_cannot_be_shown_is_refused_by_file(tmp_path, case):
    """The control is the table above."""
    stored, tags, words = REFUSED[case]
    with pytest.raises(DataError) as refused:
        read(tmp_path, stored, tags, **({} if case == "several frames" else {"frame": "middle"}))
    sentence = str(refused.value)
    assert (
        sentence.startswith(str(tmp_path / "own" / "train" / "a" / "0.dcm"))
        and "\n" not in sentence
    )
    assert not [word for word in words if word not in sentence], sentence


def test_dark_images_are_asked_about_unless_a_window_says_how_they_are_shown(tmp_path):
    def dark(window):
        folder = tmp_path / ("windowed" if window else "bits")
        for split, number in itertools.product(("train", "test"), range(4)):
            stored = np.full((3, 4), 500 + 10 * number + len(split), np.uint16)
            write_dicom(folder / split / "ab"[number % 2] / f"{number}.dcm", stored, **window)
        return folder

    assert loaded(dark({"WindowCenter": 2000, "WindowWidth": 4000})).max() < 0.25
    with pytest.raises(DataError, match="nearly black"):
        loaded(dark({}))


BODY = np.arange(1, 61, dtype=np.int16).reshape(3, 4, 5)
"""A volume whose axes go to the right, front and top of the body."""
RANGE = {"pixel_range": "0,255"}
AFFINE = np.diag([1.0, 2.0, 3.0, 1.0])


def slice_of(volume, place):
    """What a viewer shows of one slice: columns to the right, rows from the front to the back."""
    return volume[:, ::-1, place].T / 255


def stored_along(axes, signs, volume):
    """The volume with other axes, and the affine that says so."""
    orientation = np.array([*zip(axes, signs, strict=True)])
    stored = nibabel.apply_orientation(volume, orientation)
    return stored, AFFINE @ nibabel.orientations.inv_ornt_aff(orientation, volume.shape)


def nifti(file, stored, sform=None, qform=None, **header):
    image = nibabel.Nifti1Image(stored, None)
    image.set_sform(sform, 0 if sform is None else 1)
    image.set_qform(qform, 0 if qform is None else 1)
    for name, value in header.items():
        image.header[name] = value
    nibabel.save(image, file)


def test_all_48_orientations_of_nifti_are_one_image(tmp_path):
    """`frame` counts slices of the body, whichever axis of the file they lie along."""
    folder = dataset(tmp_path / "own", shape=(4, 3))
    signs = itertools.product((1, -1), repeat=3)
    ways = [*itertools.product(itertools.permutations(range(3)), signs)]
    for number, way in enumerate(ways):
        stored, affine = stored_along(*way, BODY + np.int16(number))  # no image is there twice
        form = ("sform", "qform")[number % 3 == 0]
        nifti(folder / "train" / "a" / f"0-{number:02}.nii", stored, **{form: affine})
    assert len(ways) == 48
    images = loaded(folder, shape=(4, 3), frame="3", **RANGE)
    expected = [slice_of(BODY + number, 3) for number in range(48)]
    assert np.allclose(images[:48], expected, atol=1e-6)


def nifti_cases():
    las, las_affine = stored_along((0, 1, 2), (-1, 1, 1), BODY)
    return {
        "both, a little apart": (BODY, {"sform": np.eye(4), "qform": AFFINE}, slice_of(BODY, 2)),
        "slope and intercept": (
            las,
            {"sform": las_affine, "scl_slope": 2, "scl_inter": 10},
            slice_of(BODY * 2 + 10, 2),
        ),
    }


NIFTI = nifti_cases()


@pytest.mark.parametrize("case", NIFTI)
def test_nifti_is_shown_as_it_states(tmp_path, case):
    stored, header, expected = NIFTI[case]
    folder = dataset(tmp_path / "own", shape=expected.shape)
    nifti(folder / "train" / "a" / "0.nii.gz", stored, **header)
    image = loaded(folder, shape=expected.shape, frame="middle", **RANGE)[0]
    assert np.allclose(image, expected, atol=1e-6), np.round(image * 255)


def test_nifti_that_says_two_things_is_refused_by_file(tmp_path):
    """The control is the table above."""
    folder = dataset(tmp_path / "own", shape=(4, 3))
    mirrored = AFFINE @ np.diag([-1, 1, 1, 1])
    nifti(folder / "train" / "a" / "0.nii", BODY, sform=AFFINE, qform=mirrored)
    with pytest.raises(DataError) as refused:
        loaded(folder, shape=(4, 3), frame="0", **RANGE)
    assert str(refused.value).startswith(str(folder / "train" / "a" / "0.nii"))
    assert "sform says RAS and qform says LAS" in str(refused.value)


@pytest.mark.parametrize(
    ("place", "written", "words"),
    [
        (280, np.array([np.nan], "<f4"), "sform gives one of its axes no direction"),
        (42, np.array([0], "<i2"), "0x4x5 of int16: must be a volume"),
    ],
)
def test_a_nifti_header_that_makes_no_sense_is_refused_by_file(tmp_path, place, written, words):
    """The control is the table above; what is written is the affine's first number, or the first axis."""
    folder = dataset(tmp_path / "own", shape=(4, 3))
    file = folder / "train" / "a" / "0.nii"
    nifti(file, BODY, sform=AFFINE)
    content = bytearray(file.read_bytes())
    content[place : place + written.nbytes] = written.tobytes()
    file.write_bytes(content)
    with pytest.raises(DataError) as refused:
        loaded(folder, shape=(4, 3), frame="0", **RANGE)
    assert str(refused.value).startswith(str(file)) and words in str(refused.value)


def test_the_package_that_is_missing_is_named(tmp_path, monkeypatch):
    folder = dataset(tmp_path / "own")
    write_dicom(folder / "train/a/0.dcm", NUMBERS)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError) as caught:
        loaded(folder)
    assert "fedskew[medical]" in caught.value.rule
