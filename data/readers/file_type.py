"""Whether a file is DICOM by its first bytes, or NIfTI by its name."""

from pathlib import Path
from typing import Literal


def is_dicom(head: bytes) -> bool:
    """Whether a file that begins so is DICOM, with or without the preamble of part 10 of the standard."""
    if head[128:132] == b"DICM":
        return True
    # Without a preamble a file begins with one of the first elements of group 2 or 8: its tag, and then the two letters
    # of its type, or its length, which is even and short.
    order: Literal["big", "little"] = "big" if head[:2] == b"\0\x08" else "little"
    group, element = int.from_bytes(head[:2], order), int.from_bytes(head[2:4], order)
    if len(head) < 16 or group not in (2, 8) or element > 0x18:
        return False
    length = int.from_bytes(head[4:8], "little")
    return head[4:6].isupper() or (length % 2 == 0 and 0 < length <= 64)


def is_nifti(path: Path) -> bool:
    """Whether a file's name is one of NIfTI's."""
    return path.name.lower().endswith((".nii", ".nii.gz"))


def is_dicom_file(path: Path) -> bool:
    """Whether a file is DICOM by its first bytes."""
    with path.open("rb") as file:
        return is_dicom(file.read(132))
