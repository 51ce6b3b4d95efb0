"""Files that are small on disk and large in memory, or broken inside: one sentence before memory is taken."""

import io
import re
import struct
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings, SettingError, load
from data.readers import npz
from data.readers.images import open_image


def npy(array):
    """Return the bytes of an npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write(path, method=zipfile.ZIP_DEFLATED, **members):
    """Write an npz file of two classes of 4x4 images whose members are replaced by bytes."""
    images, labels = np.zeros((4, 4, 4), np.uint8), np.array([0, 1, 0, 1])
    whole = {"train_images": npy(images), "train_labels": npy(labels)}
    whole |= {name.replace("train", "test"): content for name, content in whole.items()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in (whole | members).items():
            archive.writestr(f"{name}.npy", content)
    return DataSettings(f"npz:{path}", classes="2", input_shape="1x4x4")


def refused(settings, rule):
    with pytest.raises(DataError, match=f"^[^\n]*{rule}[^\n]*$"):
        load(settings)


@pytest.fixture
def nothing_unpacked(monkeypatch):
    """Fail when an array is read."""

    def unpack(*given):
        raise AssertionError("unpacked")

    monkeypatch.setattr(npz, "_array", unpack)


def test_an_npz_file_is_refused_before_it_unpacks_to_more_than_the_setting(
    tmp_path, nothing_unpacked
):
    settings = write(tmp_path / "bomb.npz", train_images=npy(np.zeros((3 * 2**20,), np.uint8)))
    rule = r"bomb.npz: train_images, .*: 4 MiB unpacked: more than max-unpacked-mib = 2 allows"
    refused(replace(settings, max_unpacked_mib=2), rule)


@pytest.mark.parametrize(
    ("array", "rule"),
    [
        (np.zeros((3, 4, 4), complex), "train_images: dtype complex128: must be uint8"),
        (
            np.zeros((3, 4, 4, 1, 1), np.uint8),
            r"train_images: shape \(3, 4, 4, 1, 1\): must be images",
        ),
        (np.zeros((3, 4, 4), np.uint8), "3 images and 4 labels"),
    ],
)
def test_types_and_shapes_are_refused_before_they_are_unpacked(
    tmp_path, nothing_unpacked, array, rule
):
    refused(write(tmp_path / "own.npz", train_images=npy(array)), rule)


def test_a_head_that_states_more_than_there_is_takes_no_memory(tmp_path, nothing_unpacked):
    head = npy(np.zeros((4, 4, 4), np.uint8)).replace(b"(4, 4, 4)", b"(9**9, 4)")
    refused(
        write(tmp_path / "a.npz", train_images=head),
        "cannot be read as an npz file of plain arrays: ",
    )
    head = npy(np.zeros((4, 4, 4), np.uint8)).replace(
        b"(4, 4, 4), }          ", b"(999999999, 999999), }"
    )
    refused(
        write(tmp_path / "b.npz", train_images=head), "has 19. bytes, and its head states 999998999"
    )
    head = npy(np.zeros((4, 4, 4), np.uint8)).replace(b"(4, 4, 4)", b"(2, 4, 4)")
    refused(write(tmp_path / "c.npz", train_images=head), "has 192 bytes, and its head states 160")


def test_a_mat_file_is_refused_before_it_unpacks_to_more_than_the_setting(tmp_path, monkeypatch):
    from scipy.io import savemat

    (tmp_path / "SVHN").mkdir()
    for name in ("train", "test"):
        arrays = {"X": np.zeros((32, 32, 3, 400)), "y": np.zeros((400, 1), np.uint8)}
        savemat(tmp_path / "SVHN" / f"{name}_32x32.mat", arrays, do_compression=True)
    assert (tmp_path / "SVHN" / "train_32x32.mat").stat().st_size < 2**15
    monkeypatch.setattr("scipy.io.loadmat", lambda *given, **more: pytest.fail("unpacked"))
    settings = DataSettings(
        "svhn", str(tmp_path), max_unpacked_mib=9, cache=str(tmp_path / "cache")
    )
    refused(
        settings, "train_32x32.mat: X, y: 10 MiB unpacked: more than max-unpacked-mib = 9 allows"
    )


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"classes": "9999999999"}, "classes = '9999999999': must be less than a million classes"),
        ({"classes": "9" * 5000}, "must be less than a million classes"),
        (
            {"input_shape": "1x20000x20000"},
            "input-shape = '1x20000x20000': must be at most 100000000 numbers",
        ),
        ({"input_shape": f"1x1x{'9' * 5000}"}, "must be CHANNELSxHEIGHTxWIDTH"),
        ({"clients": 9999999999}, "clients = 9999999999: must be 0 to 1000000"),
    ],
)
def test_a_count_that_no_memory_holds_is_refused(change, rule):
    with pytest.raises(SettingError, match=rule):
        settings = DataSettings(
            "npz:own.npz", **({"classes": "2", "input_shape": "1x4x4"} | change)
        )
        assert settings.num_classes and settings.shape


@pytest.mark.parametrize(
    "damage", ["cut stream", "broken head", "unknown type", "no array", "another version"]
)
def test_a_broken_npz_file_is_one_sentence(tmp_path, damage):
    whole = npy(np.arange(64, dtype=np.uint8).reshape(4, 4, 4))
    changed = {
        "cut stream": whole,
        "broken head": whole.replace(b"{'descr'", b"{'descr}"),
        "unknown type": whole.replace(b"'|u1'", b"'|q1'"),
        "no array": b"words",
        "another version": whole[:6] + b"\3\0" + whole[8:],
    }[damage]
    settings = write(tmp_path / "own.npz", train_images=changed)
    if damage == "cut stream":
        content = bytearray((tmp_path / "own.npz").read_bytes())
        place = content.index(b"train_images.npy") + 16
        content[place : place + 8] = b"\xff" * 8
        (tmp_path / "own.npz").write_bytes(content)
    refused(settings, "own.npz: cannot be read as an npz file of plain arrays: ")


def png(width, height, data):
    """Return a grey PNG file with a stream of our own."""

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (
            png(20_000, 20_000, zlib.compress(b"")),
            "is an image of more pixels than max-image-pixels = 100000000",
        ),
        (
            png(10_001, 10_000, zlib.compress(b"")),
            "is an image of more pixels than max-image-pixels = 100000000",
        ),
        (png(4, 4, zlib.compress(bytes(20))[:-7]), "cannot be read as an image: "),
        (png(4, 4, b"no stream at all"), "cannot be read as an image: "),
        (png(4, 4, zlib.compress(bytes(20)))[:40], "cannot be read as an image: "),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be read as an image: "),
        (b"", "cannot be read as an image: "),
    ],
    ids=[
        "20,000 x 20,000",
        "just above",
        "cut stream",
        "no stream",
        "cut file",
        "no chunk",
        "empty",
    ],
)
def test_a_picture_is_one_sentence_before_it_takes_memory(tmp_path, content, rule):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/a.png: [^\n]*{rule}[^\n]*$"):
        open_image(tmp_path / "a.png", 1)


def test_the_largest_picture_is_a_setting(tmp_path):
    for place in ("train/cat", "train/dog", "test/dog"):
        (tmp_path / "pets" / place).mkdir(parents=True)
        Image.new("L", (20, 30), 7).save(tmp_path / "pets" / place / "1.png")
    settings = {
        "dataset": f"folder:{tmp_path / 'pets'}",
        "classes": "cat,dog",
        "input_shape": "1x4x4",
    }
    before = Image.MAX_IMAGE_PIXELS
    assert (load(DataSettings(**settings, max_image_pixels=600)).train_inputs == 7).all()
    assert before == Image.MAX_IMAGE_PIXELS, "others that open images have their own limit"
    (tmp_path / "pets/train/cat/1.png").touch()  # no cached copy any more
    refused(
        DataSettings(**settings, max_image_pixels=599),
        "cat/1.png: .* more pixels than max-image-pixels = 599",
    )
    for key in ("max_image_pixels", "max_unpacked_mib"):
        with pytest.raises(SettingError, match="must be at least 1"):
            DataSettings(**{key: 0})


@pytest.mark.parametrize("classes", ["9223372036854775808", "9" * 5000])
def test_a_number_of_classes_that_no_machine_counts(classes: str) -> None:
    """A stranger's model hung `predict` by it."""
    with pytest.raises(SettingError, match="must be less than a million classes"):
        _ = DataSettings(classes=classes).class_names


def test_a_sentence_quotes_a_bounded_part_of_the_file(tmp_path):
    """zipfile quotes all that stands where a member's name should."""
    path = tmp_path / "own.npz"
    settings = write(path, zipfile.ZIP_STORED, train_images=npy(np.zeros((99, 4, 4), np.uint8)))
    content = bytearray(path.read_bytes())
    content[26:28] = (60_000).to_bytes(2, "little")  # the length of the first member's name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(settings)
    assert "File name in directory" in str(caught.value) and len(str(caught.value)) < 1500
