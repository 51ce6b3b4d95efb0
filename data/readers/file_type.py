"""Detection of a file's type from its first bytes, for error messages."""

from pathlib import Path
from typing import Literal

MARKS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"BM": "a BMP image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "a single array, as numpy.save writes it",
    b"MATLAB 5.0": "a MATLAB file",
    b"%PDF": "a PDF document",
    b"SQLite": "an SQLite database",
    b"<!doctype html": "a web page, perhaps of a download that failed",
    b"<html": "a web page, perhaps of a download that failed",
    b"version https://git-lfs": "a pointer of Git LFS: `git lfs pull` fetches the file itself",
    **{bytes((128, version)): "a Python pickle, which can run code when it is loaded and is never read"
       for version in (2, 3, 4, 5)},
}  # fmt: skip
"""By the bytes that a file begins with; text in small letters."""
HEAD = 4096


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


def is_medical(path: Path) -> bool:
    """Whether a file is DICOM or NIfTI."""
    return is_nifti(path) or is_dicom_file(path)


def truly(path: Path) -> str:
    """Return what a file is by its first bytes, as `a PNG image` or `text`; empty if unknown."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head:
        return "empty"
    if is_dicom(head):
        return "a DICOM file"
    for mark, kind in MARKS.items():
        if head.startswith(mark) or (
            mark.islower() and head.lstrip()[:99].lower().startswith(mark)
        ):
            return kind
    try:
        # The last line may be cut within a letter.
        text = head[: head.rfind(b"\n") + 1 or None].decode("utf-8-sig")
    except UnicodeDecodeError:
        return ""
    is_text = all(letter.isprintable() or letter in "\r\n\t" for letter in text)
    return "text" if is_text else ""
