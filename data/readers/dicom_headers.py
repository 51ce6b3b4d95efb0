"""Patients and sites of images, as the headers of DICOM files name them."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from data.errors import DataError
from data.files import FileStamp, stamp_of
from data.readers.file_type import is_dicom_file
from data.readers.image_files import ImageFiles
from data.readers.medical import dicom_data
from data.readers.rows import is_missing
from data.readers.splits import Manifest
from data.settings import DataSettings

PATIENT, STUDY, INSTITUTION = "PatientID", "StudyInstanceUID", "InstitutionName"
INDEX = "DICOMDIR"
"""The name of a medium's list of its files, which is a DICOM file itself and no image."""
NO_PATIENTS = frozenset((
    "anonymous", "anonymized", "anonymised", "anonym", "anon", "unknown", "deidentified", "de-identified", "removed",
    "0",
))  # fmt: skip
"""What programs write as PatientID of a file whose patient nobody shall know, in small letters."""
UNKNOWN_PATIENTS = (
    "the images' patients are unknown, so that images of one patient may be on both sides of the split; a table "
    "csv:FILE with columns path, label and patient names them"
)
MOST_KEPT = 2**18
"""Headers that a process keeps: a check reads a folder several times."""


@dataclass(frozen=True)
class Header:
    """The elements of a DICOM file that say whose image it is; empty where it has none."""

    patient: str = ""
    study: str = ""
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
    found = {file: _header(file, stamp_of(file), keyword) for file in sorted(files)}
    return {file: header for file, header in found.items() if header is not None}


@lru_cache(maxsize=MOST_KEPT)
def _header(file: Path, stamp: FileStamp, keyword: str) -> Header | None:
    """Return the header of a file, None where it is no DICOM file. The stamp only serves as a key of the cache."""
    elements = {"patient": PATIENT, "study": STUDY, "institution": INSTITUTION}
    if keyword:
        elements["label"] = keyword
    try:
        if not is_dicom_file(file):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that are not as the standard has them
            data = dicom_data(
                file, stop_before_pixels=True, specific_tags=[*elements.values(), "Rows"]
            )
            values = {name: data.get(element) for name, element in elements.items()}
        texts = {name: plain(str(value)) for name, value in values.items() if value is not None}
        return Header(**texts, has_image=bool(data.get("Rows")))
    except DataError:
        raise
    except OSError:  # the reader of the image says why
        return None
    except Exception:  # a damaged file surfaces as anything, and likewise
        return Header()


def notes_of_others(path: Path, files: Sequence[Path], images: Collection[Path]) -> list[str]:
    """Return a sentence about the files below `path` that are no images; none where all are, but for an index."""
    others = [file for file in {*files}.difference(images) if file.name != INDEX]
    if not others:
        return []
    found = f"{len(others)} files are no DICOM images and left out"
    return [f"{found}, such as {min(others).relative_to(path)}"]


def plain(text: str) -> str:
    """Return a text of a header, or of a table beside it, with single spaces and without the zeros that pad it."""
    return " ".join(text.replace("\0", " ").split())


def with_origins(
    manifest: Manifest,
    settings: DataSettings,
    roles: Collection[str] = ("patient", "site"),
    headers_by_file: Mapping[Path, Header] | None = None,
) -> Manifest:
    """Return the manifest of images with the patients and sites that DICOM headers name.

    What its columns say of them goes before the headers. A note says where the patients are unknown.

    Args:
        manifest: Of images in files; any other is returned as it is.
        settings: Of these, `columns` counts: `patient=` and `site=` say that there are none.
        roles: What is asked for.
        headers_by_file: The headers, if they are read already.
    """
    if not isinstance(manifest.inputs, ImageFiles):
        return manifest
    files = manifest.inputs.paths
    by_file = headers_of(files) if headers_by_file is None else headers_by_file
    headers = [by_file.get(file, Header()) for file in files]
    columns, names, notes = {**manifest.columns}, {**manifest.names}, [*manifest.notes]
    for role in roles:
        if role in columns or settings.column_names.get(role) == "":
            continue
        find = _patients if role == "patient" else _sites
        texts, element, note = find(files, headers, columns)
        if texts:
            columns[role], names[role] = texts, f"DICOM element {element}"
        if note:
            notes.append(note)
    return replace(manifest, columns=columns, names=names, notes=tuple(notes))


Found = tuple[list[str], str, str]
"""A text of each file, if any is known; the element that has them; and what has to be said of it."""
Columns = Mapping[str, Sequence[str]]


def _patients(files: Sequence[Path], headers: Sequence[Header], columns: Columns) -> Found:
    """Return the patient of each file.

    What stands for a patient who is not named is the study, else the file alone. One PatientID on all files is no name.
    """
    known = {header.known_patient for header in headers} - {""}
    studies = {header.study for header in headers} - {""}
    if len(known) < 2 and len(studies) < 2:
        return [], "", UNKNOWN_PATIENTS
    element = PATIENT if len(known) > 1 else STUDY
    patients = []
    unnamed = 0
    for file, header in zip(files, headers, strict=True):
        patient = header.known_patient if element == PATIENT else ""
        unnamed += not patient
        patients.append(patient or (f"study {header.study}" if header.study else f"file {file}"))
    note = (
        f"{unnamed} of {len(files)} files name no patient ({PATIENT}): each of their studies counts as one, so that "
        "two studies of a patient may be on both sides of the split"
    )
    return patients, element, note if unnamed else ""


def _sites(files: Sequence[Path], headers: Sequence[Header], columns: Columns) -> Found:
    """Return the files' institutions where these can be the clients, else what has to be said where several are.

    Each has two patients (images, where nothing names them), and images for training and for testing.
    """
    institutions = [header.institution for header in headers]
    names = {*institutions} - {""}
    if len(names) < 2:
        return [], "", ""
    found = (
        f"the files name {len(names)} institutions ({INSTITUTION}), which are not taken as sites"
    )
    if "" in institutions:
        return [], "", f"{found}: some files name none"
    units = columns.get("patient", files)
    sides = columns.get("split", ())
    for name in dict.fromkeys(institutions):
        here = [number for number, each in enumerate(institutions) if each == name]
        is_whole = not sides or {"train", "test"} <= {sides[number] for number in here}
        if len({units[number] for number in here}) < 2 or not is_whole:
            return [], "", f"{found}: {name} has too few patients to train and to test on"
    return institutions, INSTITUTION, ""
