"""DICOM files for tests: images with any elements, and folders as a hospital's archive exports them."""

import warnings
from pathlib import Path

import numpy as np

DIRECTORY = "1.2.840.10008.1.3.10"
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
EXPLICIT, IMPLICIT = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2"
BIG_ENDIAN = "1.2.840.10008.1.2.2"


def write_dicom(file, stored, preamble=True, syntax=EXPLICIT, **elements) -> Path:
    """Write pixels (H, W) or (frames, H, W) of 8 bits, or of 12 in 16, or what `elements` state.

    None leaves an element out.
    """
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.filewriter import dcmwrite

    stated = {
        "SOPClassUID": SECONDARY_CAPTURE,
        "SOPInstanceUID": "1.2.3",
        "Rows": stored.shape[-2],
        "Columns": stored.shape[-1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 8 * stored.itemsize,
        "BitsStored": min(8 * stored.itemsize, 12),
        "PixelRepresentation": int(stored.dtype.kind == "i"),
        "PixelData": stored.tobytes(),
    } | elements
    if stated["BitsStored"] is not None:
        stated["HighBit"] = stated["BitsStored"] - 1
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not as the standard has it
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = stated["SOPClassUID"]
        meta.MediaStorageSOPInstanceUID = stated["SOPInstanceUID"]
        meta.TransferSyntaxUID = syntax
        data = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
        for name, value in stated.items():
            if name.startswith("PixelPadding"):
                data.add_new(name, "US", value)
            elif value is not None:
                setattr(data, name, value)
        if "PixelData" in data:
            data["PixelData"].VR = "OB" if stored.itemsize == 1 else "OW"
        if preamble:
            dcmwrite(file, data, enforce_file_format=True)
        else:
            bare = Dataset()
            bare.update(data)
            is_little_endian = syntax != BIG_ENDIAN
            dcmwrite(file, bare, implicit_vr=syntax == IMPLICIT, little_endian=is_little_endian)
    return file


def write_image(file, seed, sop_class=SECONDARY_CAPTURE, **elements) -> Path:
    """Write noise of 8x8 pixels and 8 bits; None leaves an element out."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)
    named = {"SOPClassUID": sop_class, "SOPInstanceUID": f"1.2.3.{seed + 1}"}
    return write_dicom(file, pixels, **named, **elements)


def write_archive(folder, patients=12, images=3, prefix="P", **elements) -> Path:
    """Write PATIENT/STUDY/SERIES/IM0001 and so on, with a DICOMDIR and a note beside them.

    Patients have the PatientID P000 and so on, and two studies, the body part CHEST and HEAD in turn.
    """
    number = 1000 * ord(prefix)  # other images than with another prefix
    for patient in range(patients):
        for study in range(2):
            for image in range(images):
                stated = {
                    "PatientID": f"{prefix}{patient:03}",
                    "StudyInstanceUID": f"1.9.{patient + 1}.{study + 1}",
                    "SeriesInstanceUID": f"1.9.{patient + 1}.{study + 1}.1",
                    "BodyPartExamined": "HEAD" if patient % 2 else "CHEST",
                    **elements,
                }
                place = folder / f"PAT{patient:03}" / f"ST{study}" / "SE0" / f"IM{image:04}"
                write_image(place, number, **stated)
                number += 1
    index = {"Rows": None, "Columns": None, "PixelData": None}
    write_image(folder / "DICOMDIR", 0, DIRECTORY, **index)
    (folder / "README.TXT").write_text("exported by an archive")
    return folder
