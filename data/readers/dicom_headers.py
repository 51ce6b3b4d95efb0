"""Patients and sites of images, as the headers of DICOM files name them."""

import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.file_stamps import FileStamp, stamp_of
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
    stamps = []
    for file in sorted(files):
        stamp = stamp_of(file)
        if stamp is not None:  # the reader of the image says why one has none
            stamps.append((file, stamp))
    return _headers(tuple(stamps), keyword)


@lru_cache(maxsize=MOST_KEPT)
def _headers(stamps: tuple[tuple[Path, FileStamp], ...], keyword: str) -> dict[Path, Header]:
    """Read headers. The stamps only serve as keys of the cache."""
    headers = {}
    for file, _ in stamps:
        if is_dicom(file):
            headers[file] = _header(file, keyword)
    return headers


def is_dicom(file: Path) -> bool:
    """Whether a file is DICOM by its first bytes; not one that cannot be read, or is another image by its ending."""
    if file.name.lower().endswith(NO_DICOM):
        return False
    try:
        return is_dicom_file(file)
    except OSError:
        return False


def _header(file: Path, keyword: str) -> Header:
    wanted = [PATIENT, STUDY, SERIES, INSTITUTION, "Rows"]
    if keyword:
        wanted.append(keyword)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not as the standard has them
        try:
            data = dicom_data(file, stop_before_pixels=True, specific_tags=wanted)
            return Header(
                patient=_text(data, PATIENT),
                study=_text(data, STUDY),
                series=_text(data, SERIES),
                institution=_text(data, INSTITUTION),
                label=_text(data, keyword) if keyword else "",
                has_image=bool(data.get("Rows")),
            )
        except (ImportError, DataError):
            raise
        except Exception:  # a damaged file surfaces as anything; the reader of the image says why
            return Header()


def _text(data: Any, keyword: str) -> str:
    """Return an element as text without the zeros and spaces that pad it; empty where there is none."""
    value = data.get(keyword)
    return "" if value is None else plain(str(value))


def notes_of_others(path: Path, files: Sequence[Path], images: Collection[Path]) -> list[str]:
    """Return a sentence about the files below `path` that are no images; none where all are, but for an index."""
    images = set(images)
    others = [file for file in files if file.name != INDEX and file not in images]
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

    files: tuple[Path, ...] = ()
    patients: tuple[str, ...] = ()
    """The patient of each file; empty where patients are unknown."""
    by: str = PATIENT
    """The element that names most patients: PatientID, or StudyInstanceUID in its place."""
    sites: tuple[str, ...] = ()
    """The institution of each file; empty where they are not sites."""
    notes: tuple[str, ...] = ()
    """What a user has to know of these, a sentence each."""

    @property
    def cells(self) -> dict[str, tuple[str, ...]]:
        """Patients and sites by role, as `SampleMetadata` takes them; without those that are unknown."""
        found = {"patient": self.patients, "site": self.sites}
        return {role: cells for role, cells in found.items() if cells}

    @property
    def elements(self) -> dict[str, str]:
        """The elements that these are from, by role."""
        return {role: {"patient": self.by, "site": INSTITUTION}[role] for role in self.cells}


def origins_of(
    files: Sequence[Path],
    headers: Mapping[Path, Header],
    settings: DataSettings,
    sides: Sequence[str] = (),
    patients: Sequence[str] = (),
) -> Origins:
    """Return the patients and sites of files.

    A file without a PatientID counts by its study. So do all files where one PatientID is on all, as ANONYMOUS is.

    Args:
        files: In the order of the answer.
        headers: Of these files, as far as they are DICOM.
        settings: Of these, `columns` counts: `patient=` and `site=` say that there are none.
        sides: The side of each file, train or test, where something says it.
        patients: The patient of each file, where something else than the headers says it.
    """
    of_files = [headers.get(file, Header()) for file in files]
    by, notes = PATIENT, list[str]()
    stated = settings.column_names
    known = tuple(patients)
    if not patients and stated.get("patient") != "":
        known, by, notes = _patients(files, of_files)
    sites: tuple[str, ...] = ()
    if stated.get("site") != "":
        sites, why_not = _sites(of_files, known, sides)
        notes += why_not
    return Origins(tuple(files), () if patients else known, by, sites, tuple(notes))


def unknown_patients(table: Path, what: str) -> str:
    """Return the sentence about images whose patients nothing names. A table with `what` would name them."""
    command = f"fedskew data check {shlex.quote(str(table.absolute()))}"
    return (
        "the images' patients are unknown, so that images of one patient may be on both sides of the split; "
        f"if a patient has several, name them in {table.name} with {what}: {command}"
    )


def _patients(
    files: Sequence[Path], headers: Sequence[Header]
) -> tuple[tuple[str, ...], str, list[str]]:
    """Return the patient of each file, the element that names them, and what has to be said of it."""
    ids = [header.known_patient for header in headers]
    named = set(filter(None, ids))
    total = len(files)
    if len(named) > 1:
        without = ids.count("")
        if not without:
            return tuple(ids), PATIENT, []
        rule = "each of their studies counts as a patient"
        note = f"{without} of {total} files have no {PATIENT}: {rule}"
        return tuple(map(_stand_in, ids, headers, files)), PATIENT, [note]

    studies = {header.study for header in headers if header.study}
    stated = {header.patient for header in headers if header.patient}
    if not stated and not studies:
        return (), PATIENT, []
    found = f"no file has a {PATIENT}"
    if len(stated) == 1:
        found = f"{PATIENT} {stated.pop()!r} is the only one"
    elif stated:
        found = f"{PATIENT} names nobody"
    if len(studies) < 2:
        return (), PATIENT, [f"{found}: patients are unknown"]
    no_ids = [""] * total
    note = (
        f"{found}, so that patients are unknown: each of the {len(studies)} studies ({STUDY}) counts as one, and "
        "two studies of a patient may be on both sides"
    )
    return tuple(map(_stand_in, no_ids, headers, files)), STUDY, [note]


def _stand_in(patient: str, header: Header, file: Path) -> str:
    """Return the patient, or what stands for one: the study, else the file alone."""
    if patient:
        return patient
    return f"study {header.study}" if header.study else f"file {file}"


def _sites(
    headers: Sequence[Header], patients: Sequence[str], sides: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the institution of each file where these can be the clients, else none and why not."""
    names = tuple(header.institution for header in headers)
    institutions = sorted(set(filter(None, names)))
    if len(institutions) < 2:
        return (), []
    found = f"the files name {len(institutions)} institutions ({INSTITUTION}), which are not taken as sites: "
    without = names.count("")
    if without:
        return (), [f"{found}{without} files name none"]
    units = patients or [str(number) for number in range(len(names))]
    for institution in institutions:
        here = [number for number, name in enumerate(names) if name == institution]
        if len({units[number] for number in here}) < 2:
            return (), [f"{found}{institution} has one {'patient' if patients else 'image'}"]
        sides_here = {sides[number] for number in here} if sides else {"train", "test"}
        missing = sorted({"train", "test"} - sides_here)
        if missing:
            return (), [f"{found}{institution} has no image in {missing[0]}"]
    return names, []
