"""Patients and sites of images, as the headers of DICOM files name them."""

import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from data.errors import DataError
from data.files import FileStamp, stamp_of
from data.readers.file_type import is_dicom_file
from data.readers.medical import dicom_data
from data.readers.rows import is_missing
from data.settings import DataSettings

PATIENT, STUDY, SERIES = "PatientID", "StudyInstanceUID", "SeriesInstanceUID"
INSTITUTION = "InstitutionName"
INDEX = "DICOMDIR"
"""The name of a medium's list of its files, which is a DICOM file itself and no image."""
NO_PATIENTS = frozenset((
    "anonymous", "anonymized", "anonymised", "anonym", "anon", "unknown", "deidentified", "de-identified", "removed",
    "0",
))  # fmt: skip
"""What programs write as PatientID of a file whose patient nobody shall know, in small letters."""
NO_DICOM = (
    ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".nii", ".nii.gz",
)  # fmt: skip
"""Endings of files that are not opened in search of a DICOM header."""
MOST_KEPT = 16
"""Scans that a process keeps, each of one data set: a check reads a folder several times."""


@dataclass(frozen=True)
class Header:
    """The elements of a DICOM file that say whose image it is; empty where it has none."""

    patient: str = ""
    study: str = ""
    series: str = ""
    institution: str = ""
    label: str = ""
    """The element that the setting `labels` names."""
    has_image: bool = True

    @property
    def known_patient(self) -> str:
        """The patient; empty where the file has none, or a word such as ANONYMOUS."""
        is_known = not is_missing(self.patient) and self.patient.lower() not in NO_PATIENTS
        return self.patient if is_known else ""


def headers_of(files: Sequence[Path], keyword: str = "") -> dict[Path, Header]:
    """Return the headers of those of the files that are DICOM. No pixel is read.

    A process reads them once, until a file changes.

    Args:
        files: In any order.
        keyword: The element that is the label.

    Raises:
        DataError: pydicom is missing.
    """
    stamps = [(file, stamp_of(file)) for file in sorted(files)]
    return _headers(tuple(stamps), keyword)


@lru_cache(maxsize=MOST_KEPT)
def _headers(stamps: tuple[tuple[Path, FileStamp], ...], keyword: str) -> dict[Path, Header]:
    """Read headers. The stamps only serve as keys of the cache."""
    return {file: _header(file, keyword) for file, _ in stamps if is_dicom(file)}


def is_dicom(file: Path) -> bool:
    """Whether a file is DICOM by its first bytes; not one that cannot be read, or is another image by its ending."""
    if file.name.lower().endswith(NO_DICOM):
        return False
    try:
        return is_dicom_file(file)
    except OSError:  # the reader of the image says why
        return False


def _header(file: Path, keyword: str) -> Header:
    elements = {"patient": PATIENT, "study": STUDY, "series": SERIES, "institution": INSTITUTION}
    if keyword:
        elements["label"] = keyword
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        try:
            wanted = [*elements.values(), "Rows"]
            data = dicom_data(file, stop_before_pixels=True, specific_tags=wanted)
            values = {name: data.get(element) for name, element in elements.items()}
            texts = {name: plain(str(value)) for name, value in values.items() if value is not None}
            return Header(**texts, has_image=bool(data.get("Rows")))
        except (ImportError, DataError):
            raise
        except Exception:  # a damaged file surfaces as anything; the reader of the image says why
            return Header()


def notes_of_others(path: Path, files: Sequence[Path], images: Collection[Path]) -> list[str]:
    """Return a sentence about the files below `path` that are no images; none where all are, but for an index."""
    others = [file for file in {*files}.difference(images) if file.name != INDEX]
    if not others:
        return []
    number = "1 file is" if len(others) == 1 else f"{len(others)} files are"
    return [f"{number} no DICOM image and left out, such as {min(others).relative_to(path)}"]


def plain(text: str) -> str:
    """Return a text of a header, or of a table beside it, with single spaces and without the zeros that pad it."""
    return " ".join(text.replace("\0", " ").split())


@dataclass(frozen=True)
class Origins:
    """What headers say of the images of a data set."""

    columns: dict[str, Sequence[str]] = field(default_factory=dict)
    """The patient and the site of each file, by role, as far as they are known."""
    names: dict[str, str] = field(default_factory=dict)
    """What sentences call these roles."""
    notes: Sequence[str] = ()
    """What a user has to know of them, a sentence each."""


def origins_of(
    files: Sequence[Path],
    headers: Mapping[Path, Header],
    settings: DataSettings,
    columns: Mapping[str, Sequence[str]] | None = None,
    roles: Collection[str] = ("patient", "site"),
) -> Origins:
    """Return the patients and sites of files.

    A file without a PatientID counts by its study. So do all files where one PatientID is on all, as ANONYMOUS is.

    Args:
        files: In the order of the answer.
        headers: Of these files, as far as they are DICOM.
        settings: Of these, `columns` counts: `patient=` and `site=` say that there are none.
        columns: What something else than the headers says of each file, by role; it goes before them.
        roles: What is asked for.
    """
    if not headers:
        return Origins()
    of_files = [headers.get(file, Header()) for file in files]
    stated = dict(columns or {})
    asked = [role for role in roles if role not in stated and settings.column_names.get(role) != ""]
    found: dict[str, Sequence[str]] = {}
    names: dict[str, str] = {}
    notes: list[str] = []
    if "patient" in asked:
        patients, by, notes = _patients(files, of_files)
        if patients:
            found["patient"], names["patient"] = patients, f"DICOM element {by}"
    if "site" in asked:
        patients = [*stated.get("patient", found.get("patient", ()))]
        why_not = _no_sites(of_files, patients, stated.get("split", ()))
        if why_not is None:
            found["site"] = [header.institution for header in of_files]
            names["site"] = f"DICOM element {INSTITUTION}"
        else:
            notes += why_not
    return Origins(found, names, notes)


def unknown_patients(table: Path, what: str) -> str:
    """Return the sentence about images whose patients nothing names. A table with `what` would name them."""
    command = f"fedskew data check {shlex.quote(str(table.absolute()))}"
    return (
        "the images' patients are unknown, so that images of one patient may be on both sides of the split; "
        f"if a patient has several, name them in {table.name} with {what}: {command}"
    )


def _patients(files: Sequence[Path], headers: Sequence[Header]) -> tuple[list[str], str, list[str]]:
    """Return the patient of each file, the element that names them, and what has to be said of it.

    What stands for a patient who is not named is the study, else the file alone.
    """
    named = {header.known_patient for header in headers} - {""}
    studies = {header.study for header in headers} - {""}
    stated = {header.patient for header in headers} - {""}
    by, notes = PATIENT, list[str]()
    if len(named) > 1:
        without = sum(not header.known_patient for header in headers)
        if without:
            rule = "each of their studies counts as a patient"
            notes.append(f"{without} of {len(files)} files have no {PATIENT}: {rule}")
    elif not stated and not studies:
        return [], by, []
    else:
        found = f"{PATIENT} names nobody" if stated else f"no file has a {PATIENT}"
        if len(stated) == 1:
            found = f"{PATIENT} {stated.pop()!r} is the only one"
        if len(studies) < 2:
            return [], by, [f"{found}: patients are unknown"]
        by = STUDY
        notes.append(
            f"{found}, so that patients are unknown: each of the {len(studies)} studies ({STUDY}) counts as one, and "
            "two studies of a patient may be on both sides"
        )
    patients = []
    for file, header in zip(files, headers, strict=True):
        stand_in = f"study {header.study}" if header.study else f"file {file}"
        patients.append((by == PATIENT and header.known_patient) or stand_in)
    return patients, by, notes


def _no_sites(
    headers: Sequence[Header], patients: Sequence[str], sides: Sequence[str]
) -> list[str] | None:
    """Return None where the files' institutions can be the clients, else why they are not taken, where several are."""
    names = [header.institution for header in headers]
    institutions = sorted({*names} - {""})
    if len(institutions) < 2:
        return []
    found = f"the files name {len(institutions)} institutions ({INSTITUTION}), which are not taken as sites: "
    if "" in names:
        return [f"{found}{names.count('')} files name none"]
    for institution in institutions:
        here = [number for number, name in enumerate(names) if name == institution]
        units = {patients[number] for number in here} if patients else here
        if len(units) < 2:
            return [f"{found}{institution} has one {'patient' if patients else 'image'}"]
        missing = (
            sorted({"train", "test"}.difference(sides[number] for number in here)) if sides else []
        )
        if missing:
            return [f"{found}{institution} has no image in {missing[0]}"]
    return None
