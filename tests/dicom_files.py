"""DICOM files as a hospital's archive exports them, for tests: folders of patients, studies and series."""

from pathlib import Path
from typing import Any

import numpy as np

DIRECTORY = "1.2.840.10008.1.3.10"
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"


def write_image(file: Path, seed: int, sop_class: str = SECONDARY_CAPTURE, **elements: Any) -> Path:
    """Write noise of 8x8 pixels and 8 bits; None leaves an element out."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.filewriter import dcmwrite
    from pydicom.uid import UID, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID(sop_class)
    meta.MediaStorageSOPInstanceUID = UID(f"1.2.3.{seed + 1}")
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)
    stated: dict[str, Any] = {
        "SOPClassUID": sop_class,
        "SOPInstanceUID": f"1.2.3.{seed + 1}",
        "Rows": 8,
        "Columns": 8,
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 8,
        "BitsStored": 8,
        "HighBit": 7,
        "PixelRepresentation": 0,
        "PixelData": pixels.tobytes(),
        **elements,
    }
    for name, value in stated.items():
        if value is not None:
            setattr(data, name, value)
    if "PixelData" in data:
        data["PixelData"].VR = "OB"
    file.parent.mkdir(parents=True, exist_ok=True)
    dcmwrite(file, data, enforce_file_format=True)
    return file


def write_archive(
    folder: Path, patients: int = 12, images: int = 3, prefix: str = "P", **elements: Any
) -> Path:
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
