"""Images of more than 8 bits: what their numbers become, against the formats' own definitions."""

import numpy as np
import pytest
from PIL import Image

from data import DataError, DataSettings
from data.sources.pixels import open_image

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
