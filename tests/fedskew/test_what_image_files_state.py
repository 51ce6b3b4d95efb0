"""What an image file says about itself is followed, or refused in a sentence: Exif, bits, DICOM's and NIfTI's headers.

The tables are of files that are written here; `load` and `fedskew data check` read them.
"""

import itertools
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from dicom_files import BIG_ENDIAN, IMPLICIT, write_dicom
from numpy.typing import NDArray
from PIL import Image

from data import DataError, DataSettings, load

pydicom = pytest.importorskip("pydicom")
nibabel = pytest.importorskip("nibabel")

Array = NDArray[Any]


def dataset(folder, shape, name="", write=None):
    """A folder of noise of 8 bits; what is written under this name is the first training image."""
    draws = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (folder / split / label).mkdir(parents=True)
            noise = draws.integers(0, 256, shape, np.uint8)
            Image.fromarray(noise).save(folder / split / label / "1.png")
    if write is not None:
        write(folder / "train" / "a" / name)
    return folder


def loaded(folder, shape, **stated):
    """All training images on the scale 0..1: (N, H, W), or (N, H, W, 3)."""
    height, width, *channels = shape
    settings = DataSettings(
        f"folder:{folder}",
        classes="a,b",
        input_shape=f"{3 if channels else 1}x{height}x{width}",
        cache=str(folder.parent / "cache"),
        **stated,
    )
    images = np.moveaxis(np.asarray(load(settings).train.inputs), 1, -1)
    images = images if channels else images[..., 0]
    return images / 255 if images.dtype == np.uint8 else images


def follows(folder, name, write, expected, **stated):
    """Assert that training has the file's image so."""
    image = loaded(dataset(folder, expected.shape, name, write), expected.shape, **stated)[0]
    assert np.allclose(image, expected, atol=1e-5), np.round(image, 3)


GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
COLOR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=-1)
WIDE = GREY.astype(np.uint16) * 257
SQUARES = np.kron(COLOR[:2], np.ones((16, 16, 1), np.uint8))
"""JPEG keeps squares of 16."""
PALETTE = np.stack([np.arange(256), 255 - np.arange(256), np.arange(256) // 2], -1).astype(np.uint8)
ORIENTED = {
    1: lambda pixels: pixels,
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels, 1),
}
"""What a viewer does to the stored rows and columns, by Exif orientation (Exif 2.3, tag 274)."""


def pil(pixels, **options):
    """What Pillow writes."""
    return lambda file: Image.fromarray(pixels).save(file, **options)


def several(*images, **options):
    """A file of several images, in any format that Pillow knows by its ending."""
    first, *others = map(Image.fromarray, images)
    return lambda file: first.save(file, save_all=True, append_images=others, **options)


def content(raw):
    return lambda file: file.write_bytes(raw)


def exif(orientation):
    stated = Image.Exif()
    stated[274] = orientation
    return stated


def png_of_16_bits(file):
    """Black in color, which Pillow does not write."""
    head = struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(bytes(3 * (1 + 4 * 6))), b"IEND": b""}
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks.items():
        checksum = struct.pack(">I", zlib.crc32(name + data))
        png += struct.pack(">I", len(data)) + name + data + checksum
    file.write_bytes(png)


def palette_with_transparency(file):
    image = Image.fromarray(GREY).convert("P")
    image.putpalette(PALETTE.tobytes())
    image.putdata(GREY.ravel().tolist())
    image.save(file, transparency=bytes(range(256)))


def tiff(pixels, **stated):
    """An uncompressed grey TIFF file with tags by their numbers, as t262=0."""

    def write(file):
        height, width = pixels.shape
        raw = pixels.tobytes()
        tags = {256: width, 257: height, 258: 8 * pixels.itemsize, 259: 1, 262: 1, 273: 8}
        tags |= {277: 1, 278: height, 279: len(raw)}
        tags |= {int(name[1:]): value for name, value in stated.items()}
        entries = [struct.pack("<HHII", tag, 3, 1, value) for tag, value in sorted(tags.items())]
        head = b"II" + struct.pack("<HI", 42, 8 + len(raw))
        count = struct.pack("<H", len(tags))
        file.write_bytes(head + raw + count + b"".join(entries) + b"\0" * 4)

    return write


def test_an_orientation_turns_the_image(tmp_path):
    for orientation, turned in ORIENTED.items():
        stated = exif(orientation)
        follows(tmp_path / f"{orientation}", "0.png", pil(COLOR, exif=stated), turned(COLOR) / 255)
    jpeg = pil(SQUARES, exif=exif(6), quality=100, subsampling=0)
    expected = ORIENTED[6](SQUARES) / 255
    folder = dataset(tmp_path / "own", expected.shape, "0.jpg", jpeg)
    assert np.allclose(loaded(folder, expected.shape)[0], expected, atol=0.02)


NUMBERS = np.arange(12, dtype=np.uint16).reshape(3, 4) * 340 + 100
"""Of 12 bits: 100 to 3840."""
PLAIN = NUMBERS / 4095
SIGNED = NUMBERS.astype(np.int16) - 2000
GARBAGE_ABOVE = ((SIGNED & 0xFFF) | 0x5000).astype(np.int16)
FALLING = np.linspace(4095, 0, 4096).round().astype(int)
RISING = (np.linspace(0, 1, 4096) ** 2 * 4095).round().astype(int)
WORDS = np.arange(256, dtype=np.uint16) * 16
REDS = np.arange(256) * 257
COLORS = {"Red": REDS, "Green": REDS[::-1], "Blue": REDS // 2}
PALETTE_SHOWN = np.stack([GREY, 255 - GREY, (REDS[GREY] // 2) >> 8], -1) / 255
PALETTE_TAGS = {"PhotometricInterpretation": "PALETTE COLOR", "BitsStored": 8}
for color, entries in COLORS.items():
    PALETTE_TAGS[f"{color}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
    PALETTE_TAGS[f"{color}PaletteColorLookupTableData"] = entries.astype("<u2").tobytes()
WINDOW = {"WindowCenter": 1000, "WindowWidth": 1500}
RESCALED = {**WINDOW, "RescaleSlope": 2, "RescaleIntercept": -3000}
INVERTED = {"PhotometricInterpretation": "MONOCHROME1"}
PADDED = {**INVERTED, "PixelPaddingValue": 3000, "PixelPaddingRangeLimit": 4095}


def scan(stored, **tags):
    return lambda file: write_dicom(file, stored, **tags)


def lookup(entries, first=0, bits=12, kind="US"):
    """A lookup table, of words with the bytes that are in the file; `first` is the number of the first entry."""
    made = pydicom.Dataset()
    made.add_new("LUTDescriptor", "US", [len(entries), first % 2**16, bits])
    made.add_new("LUTData", kind, entries.tobytes() if kind == "OW" else entries.tolist())
    return [made]


def linear(values, center=1000, width=1500):
    """The standard's linear window, PS3.3 C.11.2.1.2.1."""
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


def narrow(width):
    """A window between two of the numbers, 780 and 1120."""
    return {"WindowCenter": 950, "WindowWidth": width}


def test_dark_images_are_asked_about_unless_a_window_says_how_they_are_shown(tmp_path):
    def dark(window):
        folder = tmp_path / ("windowed" if window else "bits")
        for split, number in itertools.product(("train", "test"), range(4)):
            stored = np.full((3, 4), 500 + 10 * number + len(split), np.uint16)
            write_dicom(folder / split / "ab"[number % 2] / f"{number}.dcm", stored, **window)
        return folder

    assert loaded(dark({"WindowCenter": 2000, "WindowWidth": 4000}), (3, 4)).max() < 0.25
    with pytest.raises(DataError, match="nearly black"):
        loaded(dark({}), (3, 4))


BODY = np.arange(1, 61, dtype=np.int16).reshape(3, 4, 5)
"""A volume whose axes go to the right, front and top of the body."""
RANGE = {"pixel_range": "0,255"}
FIRST, MIDDLE = {**RANGE, "frame": "0"}, {**RANGE, "frame": "middle"}
AFFINE = np.diag([1.0, 2.0, 3.0, 1.0])
MIRRORED = AFFINE @ np.diag([-1, 1, 1, 1])


def slice_of(volume, place=2):
    """What a viewer shows of one slice: columns to the right, rows from the front to the back."""
    return volume[:, ::-1, place].T / 255


def stored_along(axes, signs, volume):
    """The volume with other axes, and the affine that says so."""
    orientation = np.array([*zip(axes, signs, strict=True)])
    stored = nibabel.apply_orientation(volume, orientation)
    return stored, AFFINE @ nibabel.orientations.inv_ornt_aff(orientation, volume.shape)


def nifti(stored, sform=None, qform=None, changed=(), **header):
    """A volume; `changed` is a place of its header, and what is written there in the end."""

    def write(file):
        image = nibabel.Nifti1Image(stored, None)
        image.set_sform(sform, 0 if sform is None else 1)
        image.set_qform(qform, 0 if qform is None else 1)
        for name, value in header.items():
            image.header[name] = value
        nibabel.save(image, file)
        if changed:
            place, written = changed
            raw = bytearray(file.read_bytes())
            raw[place : place + written.nbytes] = written.tobytes()
            file.write_bytes(raw)

    return write


def test_all_48_orientations_of_nifti_are_one_image(tmp_path):
    """`frame` counts slices of the body, whichever axis of the file they lie along."""
    folder = dataset(tmp_path / "own", (4, 3))
    signs = itertools.product((1, -1), repeat=3)
    ways = [*itertools.product(itertools.permutations(range(3)), signs)]
    for number, way in enumerate(ways):
        stored, affine = stored_along(*way, BODY + np.int16(number))  # no image is there twice
        form = ("sform", "qform")[number % 3 == 0]
        nifti(stored, **{form: affine})(folder / "train" / "a" / f"0-{number:02}.nii")
    assert len(ways) == 48
    images = loaded(folder, (4, 3), frame="3", **RANGE)
    expected = [slice_of(BODY + number, 3) for number in range(48)]
    assert np.allclose(images[:48], expected, atol=1e-6)


LEFT, LEFT_AFFINE = stored_along((0, 1, 2), (-1, 1, 1), BODY)
BITS_TURNED = np.packbits(np.unpackbits(GREY).reshape(-1, 8)[:, ::-1]).reshape(3, 4)
TWO_FRAMES = several(COLOR, 255 - COLOR, lossless=True, duration=100)
PREVIEW = several(np.full((8, 8), 80, np.uint8), np.full((8, 8), 200, np.uint8), format="MPO")
SIGMOID = 1 / (1 + np.exp(-4 * (NUMBERS - 1000.0) / 1500))
NO_SECOND = {"WindowCenter": "1000\\", "WindowWidth": "1500\\"}
BIG, BARE = {"syntax": BIG_ENDIAN}, {"preamble": False}
BIG_LUT = lookup(WORDS.astype(">u2"), kind="OW")
FOLLOWED = {
    "tif, white is 0, turned": (tiff(WIDE, t262=0, t274=6), 1 - np.rot90(WIDE, -1) / 65535),
    "tif, bit order": (tiff(BITS_TURNED, t266=2), GREY / 255),
    "png, palette with transparency": (palette_with_transparency, PALETTE[GREY] / 255),
    "webp, frame 1": (TWO_FRAMES, 1 - COLOR / 255, {"frame": "1"}),
    "jpg, with a preview": (PREVIEW, np.full((8, 8), 80 / 255)),
    "dcm, bits alone": (scan(NUMBERS), PLAIN),
    "dcm, MONOCHROME1": (scan(NUMBERS, **INVERTED), 1 - PLAIN),
    "dcm, sigmoid": (scan(NUMBERS, **WINDOW, VOILUTFunction="SIGMOID"), SIGMOID),
    "dcm, a second window of no number": (scan(NUMBERS, **NO_SECOND), linear(NUMBERS)),
    "dcm, the narrowest window": (scan(NUMBERS, **narrow(1)), NUMBERS > 950),
    "dcm, window and rescale": (scan(NUMBERS, **RESCALED), linear(NUMBERS * 2.0 - 3000)),
    "dcm, modality LUT from a negative number": (
        scan(SIGNED, ModalityLUTSequence=lookup(FALLING, -2000)),
        FALLING[NUMBERS] / 4095,
    ),
    "dcm, VOI LUT": (scan(NUMBERS, VOILUTSequence=lookup(RISING)), RISING[NUMBERS] / 4095),
    "dcm, garbage above the stored bits": (
        scan(GARBAGE_ABOVE),
        (SIGNED + 2048) / 4095,
        {"pixel_range": "-2048,2047"},
    ),
    "dcm, padding range": (scan(NUMBERS, **PADDED), np.where(NUMBERS >= 3000, 0, 1 - PLAIN)),
    "dcm, palette": (scan(GREY, **PALETTE_TAGS), PALETTE_SHOWN),
    "dcm, without preamble, implicit": (scan(NUMBERS, **BARE, syntax=IMPLICIT), PLAIN),
    "dcm, without preamble, big endian": (scan(NUMBERS.astype(">u2"), **BARE, **BIG), PLAIN),
    "dcm, VOI LUT of words, big endian": (
        scan(GREY.astype(">u2"), **BIG, VOILUTSequence=BIG_LUT),
        WORDS[GREY] / 4095,
    ),
    "nii.gz, two forms, a little apart": (
        nifti(BODY, sform=np.eye(4), qform=AFFINE),
        slice_of(BODY),
        MIDDLE,
    ),
    "nii.gz, slope and intercept": (
        nifti(LEFT, sform=LEFT_AFFINE, scl_slope=2, scl_inter=10),
        slice_of(BODY * 2 + 10),
        MIDDLE,
    ),
}
"""By ending and name: what writes the file, the image as training has it on the scale 0..1, and settings."""


@pytest.mark.parametrize("case", FOLLOWED)
def test_what_a_file_states_is_followed(tmp_path, case):
    write, expected, *stated = FOLLOWED[case]
    settings = stated[0] if stated else {}
    follows(tmp_path / "own", f"0.{case.partition(',')[0]}", write, expected, **settings)


IN_ALPHA = pil(np.dstack([0 * COLOR, GREY + np.uint8(10)]))
FRAMES = np.stack([NUMBERS, NUMBERS[::-1]])
REPEATED = np.repeat(GREY[..., None], 3, axis=2)
RGB = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
RGB |= {"BitsStored": 8, "Rows": 3, "Columns": 4}
PADDED_FAR = np.where(NUMBERS == 100, -30000, SIGNED).astype(np.int16)
FAR = {"PixelPaddingValue": 2**16 - 30000, "BitsStored": 16}
BYTES_LUT = lookup(WORDS.astype(np.uint8), bits=8, kind="OW")
NO_DIRECTION = (280, np.array([np.nan], "<f4"))
NO_LENGTH = (42, np.array([0], "<i2"))
REFUSED = {
    "png, color of 16 bits": (png_of_16_bits, COLOR, "which Pillow cuts to 8"),
    "tif, signed bytes": (tiff(GREY.astype(np.int8), t339=2), COLOR, "signed bytes"),
    "j2k, JPEG 2000": (pil(COLOR), COLOR, "TIFF"),
    "png, damaged": (content(b"\x89PNG and nothing"), COLOR, "is damaged or no image"),
    "ppm, 16 bits": (content(b"P6 4 3 65535\n" + bytes(72)), COLOR, "16 bits"),
    "png, a picture in alpha": (IN_ALPHA, COLOR, "in its transparency"),
    "png, several images": (several(GREY, 255 - GREY, duration=100), COLOR, "--set frame=middle"),
    "dcm, LUT of densities": (scan(NUMBERS, PresentationLUTShape="LIN OD"), GREY, "'LIN OD'"),
    "dcm, no finite window": (scan(NUMBERS, **narrow(float("inf"))), GREY, "finite"),
    "dcm, several frames": (scan(FRAMES, NumberOfFrames=2), GREY, "frame=middle"),
    "dcm, a VOI LUT of bytes": (
        scan(NUMBERS // 40, VOILUTSequence=BYTES_LUT),
        GREY,
        "256 entries of 16 bits",
    ),
    "dcm, color among grey images": (scan(REPEATED, **RGB), GREY, "input-shape=3x3x4"),
    "dcm, no image": (scan(NUMBERS, PixelData=None), GREY, "without an image"),
    "dcm, signed without a window": (scan(SIGNED), GREY, "pixel-range=-1900,1840"),
    "dcm, padding written as unsigned": (scan(PADDED_FAR, **FAR), GREY, "pixel-range=-1560,1840"),
    "nii, two orientations": (
        nifti(BODY, sform=AFFINE, qform=MIRRORED),
        slice_of(BODY),
        "sform says RAS and qform says LAS",
    ),
    "nii, an affine that is none": (
        nifti(BODY, sform=AFFINE, changed=NO_DIRECTION),
        slice_of(BODY),
        "sform gives one of its axes no direction",
    ),
    "nii, an axis of length 0": (
        nifti(BODY, sform=AFFINE, changed=NO_LENGTH),
        slice_of(BODY),
        "0x4x5 of int16: must be a volume",
    ),
}
"""By ending and name: what writes the file, an image of the others' shape, and words of the sentence."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused_by_file(tmp_path, case):
    """The control is the table above, of the same formats."""
    write, other, words = REFUSED[case]
    name = f"0.{case.partition(',')[0]}"
    folder = dataset(tmp_path / "own", other.shape, name, write)
    with pytest.raises(DataError) as refused:
        loaded(folder, other.shape, **(FIRST if name == "0.nii" else {}))
    sentence = str(refused.value)
    assert sentence.startswith(str(folder / "train" / "a" / name)) and "\n" not in sentence
    assert words in sentence


def test_the_check_proposes_the_shape_as_it_is_shown(tmp_path, fedskew):
    """That of the first image; of photographs of several sizes the check says so."""
    color = np.tile(COLOR, (2, 2, 1))
    folder = dataset(tmp_path / "own", color.shape, "0.png", pil(color, exif=exif(6)))
    status, output, _ = fedskew("data", "check", folder)
    assert status == 0 and "input-shape=3x8x6" in output
    assert output.count("images of 2 sizes, such as 6x8 and 8x6") == 1
