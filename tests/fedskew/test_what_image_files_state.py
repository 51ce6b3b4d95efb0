"""What an image file says about itself, from Exif orientation to bits: each is followed, or refused in a sentence.

The tables are of files that are written here; `load` and `fedskew data check` read them.
"""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from data import DataError, DataSettings, load

Array = NDArray[Any]

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
COLOR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=-1)
WIDE = GREY.astype(np.uint16) * 257

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


def png_of_16_bits(file):
    """Black in color, which Pillow does not write."""
    head = struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(bytes(3 * (1 + 4 * 6))), b"IEND": b""}
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks.items():
        checksum = struct.pack(">I", zlib.crc32(name + data))
        content += struct.pack(">I", len(data)) + name + data + checksum
    file.write_bytes(content)


def palette_with_transparency(file):
    image = Image.fromarray(GREY).convert("P")
    image.putpalette(PALETTE.tobytes())
    image.putdata(GREY.ravel().tolist())
    image.save(file, transparency=bytes(range(256)))


def tiff(pixels, **stated):
    """An uncompressed grey TIFF file with tags by their numbers, as t262=0."""

    def write(file):
        height, width = pixels.shape
        content = pixels.tobytes()
        tags = {256: width, 257: height, 258: 8 * pixels.itemsize, 259: 1, 262: 1, 273: 8}
        tags |= {277: 1, 278: height, 279: len(content)}
        tags |= {int(name[1:]): value for name, value in stated.items()}
        entries = [struct.pack("<HHII", tag, 3, 1, value) for tag, value in sorted(tags.items())]
        head = b"II" + struct.pack("<HI", 42, 8 + len(content))
        count = struct.pack("<H", len(tags))
        file.write_bytes(head + content + count + b"".join(entries) + b"\0" * 4)

    return write


def pil(pixels, **options):
    """What Pillow writes."""
    return lambda file: Image.fromarray(pixels).save(file, **options)


def several(*images, **options):
    """A file of several images, in any format that Pillow knows by its ending."""

    def write(file):
        first, *others = map(Image.fromarray, images)
        first.save(file, save_all=True, append_images=others, **options)

    return write


def exif(orientation):
    stated = Image.Exif()
    stated[274] = orientation
    return stated


def alpha_over(colors, alpha):
    return np.dstack([colors, alpha])


def ppm_of_16_bits(file):
    file.write_bytes(b"P6 4 3 65535\n" + bytes(4 * 3 * 6))


def dataset(folder, name, write, shape):
    """A folder whose first training image is the file; the others are noise of the same size in 8 bits."""
    draws = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (folder / split / label).mkdir(parents=True)
            noise = draws.integers(0, 256, shape, np.uint8)
            Image.fromarray(noise).save(folder / split / label / "1.png")
    write(folder / "train" / "a" / name)
    return folder


def read(folder, name, write, expected, **stated):
    """The file's image as training has it, on the scale 0..1."""
    height, width = expected.shape[:2]
    channels = 3 if expected.ndim == 3 else 1
    settings = DataSettings(
        f"folder:{dataset(folder, name, write, expected.shape)}",
        classes="a,b",
        input_shape=f"{channels}x{height}x{width}",
        cache=str(folder.parent / "cache"),
        **stated,
    )
    image = np.moveaxis(np.asarray(load(settings).train.inputs[0]), 0, -1)
    image = image if channels == 3 else image[..., 0]
    return image / 255 if image.dtype == np.uint8 else image


KINDS = {
    "png": lambda turn: pil(COLOR, exif=exif(turn)),
    "jpg": lambda turn: pil(SQUARES, exif=exif(turn), quality=100, subsampling=0),
}
SQUARES = np.kron(COLOR[:2], np.ones((16, 16, 1), np.uint8))
"""JPEG keeps squares of 16."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_orientation_turns_the_image(tmp_path, kind):
    pixels = SQUARES if kind == "jpg" else COLOR
    for orientation, turned in ORIENTED.items():
        expected = turned(pixels) / 255
        folder = tmp_path / f"{orientation}"
        image = read(folder, f"0.{kind}", KINDS[kind](orientation), expected)
        assert np.allclose(image, expected, atol=0.02 if kind == "jpg" else 1e-6), orientation


PALETTE = np.stack([np.arange(256), 255 - np.arange(256), np.arange(256) // 2], -1).astype(np.uint8)
STEPS = {"duration": 100}
FOLLOWED = {
    "TIFF white is 0, turned": (
        "0.tif",
        tiff(WIDE, t262=0, t274=6),
        1 - np.rot90(WIDE, -1) / 65535,
        {},
    ),
    "TIFF bit order": (
        "0.tif",
        tiff(np.packbits(np.unpackbits(GREY).reshape(-1, 8)[:, ::-1]).reshape(3, 4), t266=2),
        GREY / 255,
        {},
    ),
    "PNG palette with transparency": (
        "0.png",
        palette_with_transparency,
        PALETTE[GREY] / 255,
        {},
    ),
    "WebP frame 1": (
        "0.webp",
        several(COLOR, 255 - COLOR, lossless=True, **STEPS),
        1 - COLOR / 255,
        {"frame": "1"},
    ),
    "JPEG with a preview": (
        "0.jpg",
        several(np.full((8, 8), 80, np.uint8), np.full((8, 8), 200, np.uint8), format="MPO"),
        np.full((8, 8), 80 / 255),
        {},
    ),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_what_a_file_states_is_followed(tmp_path, case):
    name, write, expected, stated = FOLLOWED[case]
    image = read(tmp_path / "own", name, write, expected, **stated)
    assert np.allclose(image, expected, atol=1e-6)


REFUSED = {
    "PNG color of 16 bits": ("0.png", png_of_16_bits, ("PNG", "16 bits", "cuts to 8")),
    "TIFF of signed bytes": (
        "0.tif",
        tiff(GREY.astype(np.int8), t339=2),
        ("signed bytes", "16 bits"),
    ),
    "JPEG 2000": ("0.j2k", pil(COLOR), ("PNG", "JPEG", "TIFF")),
    "a damaged PNG": (
        "0.png",
        lambda file: file.write_bytes(b"\x89PNG and nothing"),
        ("is damaged or no image",),
    ),
    "PPM of 16 bits": ("0.ppm", ppm_of_16_bits, ("PPM", "16 bits")),
    "a picture in alpha, PNG": (
        "0.png",
        pil(alpha_over(0 * COLOR, GREY + np.uint8(10))),
        ("in its transparency",),
    ),
    "APNG of several images": (
        "0.png",
        several(GREY, 255 - GREY, **STEPS),
        ("holds 2 images", "--set frame=middle"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused_by_file(tmp_path, case):
    """The control is the table above, of the same formats."""
    name, write, words = REFUSED[case]
    with pytest.raises(DataError) as refused:
        read(tmp_path / "own", name, write, COLOR)
    sentence = str(refused.value)
    assert (
        sentence.startswith(str(tmp_path / "own" / "train" / "a" / name)) and "\n" not in sentence
    )
    assert not [word for word in words if word not in sentence], sentence


def test_the_check_proposes_the_shape_as_it_is_shown(tmp_path, fedskew):
    """That of the first image; of photographs of several sizes the check says so."""
    color = np.tile(COLOR, (2, 2, 1))
    folder = dataset(tmp_path / "own", "0.png", pil(color, exif=exif(6)), color.shape)
    status, output, _ = fedskew("data", "check", folder)
    assert status == 0 and "input-shape=3x8x6" in output
    assert output.count("images of 2 sizes, such as 6x8 and 8x6") == 1
