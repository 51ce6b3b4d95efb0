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
MOST_KEPT = 16
"""Scans that a process keeps, each of one data set: a check reads a folder several times."""


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
    stamps = [(file, stamp_of(file)) for file in sorted(files)]
    return _headers(tuple(stamps), keyword)


@lru_cache(maxsize=MOST_KEPT)
def _headers(stamps: tuple[tuple[Path, FileStamp], ...], keyword: str) -> dict[Path, Header]:
    """Read headers. The stamps only serve as keys of the cache."""
    headers = {}
    for file, _ in stamps:
        try:
            if is_dicom_file(file):
                headers[file] = _header(file, keyword)
        except OSError:  # the reader of the image says why
            continue
    return headers


def _header(file: Path, keyword: str) -> Header:
    elements = {"patient": PATIENT, "study": STUDY, "institution": INSTITUTION}
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
    example = min(others).relative_to(path)
    return [f"{len(others)} files are no DICOM images and left out, such as {example}"]


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
    asked = [role for role in roles if settings.column_names.get(role) != ""]
    if "patient" in asked and not manifest.patients:
        patients, element, note = _patients(files, headers)
        if patients:
            columns["patient"], names["patient"] = patients, f"DICOM element {element}"
        notes.append(note)
    if "site" in asked and "site" not in columns:
        sites, note = _sites(headers, columns.get("patient", ()), columns.get("split", ()))
        if sites:
            columns["site"], names["site"] = sites, f"DICOM element {INSTITUTION}"
        notes.append(note)
    return replace(manifest, columns=columns, names=names, notes=tuple(filter(None, notes)))


def _patients(files: Sequence[Path], headers: Sequence[Header]) -> tuple[list[str], str, str]:
    """Return the patient of each file, if any is known, the element that names them, and what has to be said of it.

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
    if not unnamed:
        return patients, element, ""
    note = (
        f"{unnamed} of {len(files)} files name no patient ({PATIENT}): each of their studies counts as one, so that "
        "two studies of a patient may be on both sides of the split"
    )
    return patients, element, note


def _sites(
    headers: Sequence[Header], patients: Sequence[str], sides: Sequence[str]
) -> tuple[list[str], str]:
    """Return the files' institutions where these can be the clients, else what has to be said where several are.

    Each has two patients (images, where nothing names them), and images for training and for testing.
    """
    files_of: dict[str, list[int]] = {}
    for number, header in enumerate(headers):
        files_of.setdefault(header.institution, []).append(number)
    names = files_of.keys() - {""}
    if len(names) < 2:
        return [], ""
    found = (
        f"the files name {len(names)} institutions ({INSTITUTION}), which are not taken as sites"
    )
    for name, files in files_of.items():
        units = {patients[number] for number in files} if patients else files
        is_whole = not sides or {"train", "test"} <= {sides[number] for number in files}
        if not name:
            return [], f"{found}: {len(files)} files name none"
        if len(units) < 2 or not is_whole:
            return [], f"{found}: {name} has too few patients to train and to test on"
    return [header.institution for header in headers], ""
