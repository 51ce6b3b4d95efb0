"""Folders of DICOM files as a hospital's archive exports them: patients, sites and labels."""

import re
import shlex
from collections import Counter

import numpy as np
import pytest
from dicom_files import write_archive, write_image

from data import DataError, DataSettings, SettingError, federate, load
from data.errors import SetOption, options_of

pydicom = pytest.importorskip("pydicom")

PATIENTS = 8
IMAGES = 4
"""Of each patient, in two studies."""


def diagnosis(patient):
    return "ill" if patient % 3 else "healthy"


def archive(folder, **elements):
    return write_archive(folder / "archive", PATIENTS, IMAGES // 2, **elements)


def table(file, column="PatientID", rows=None):
    """Write a table of labels, of all patients unless it is given."""
    rows = rows or {f"P{p:03}": diagnosis(p) for p in range(PATIENTS)}
    lines = [f"{key},{label}" for key, label in rows.items()]
    file.write_text("\n".join([f"{column},label", *lines]) + "\n")
    return file


def settings_of(folder, classes="healthy,ill", **stated):
    return DataSettings(f"folder:{folder}", classes=classes, input_shape="1x8x8", **stated)


def sizes(*subjects):
    """The number of images of each subject."""
    return sorted(Counter(np.concatenate(subjects).tolist()).values())


def sides(data):
    """The number of images of each subject, on whichever side it is."""
    return sorted([*sizes(data.train.subjects), *sizes(data.test.subjects)])


def class_folders(folder, ids):
    """Write folders ill and healthy with an image of each PatientID each."""
    number = 100 * len(list(folder.rglob("*")))
    for label in ("healthy", "ill"):
        for patient in ids:
            number += 1
            write_image(folder / label / f"{number}", number, PatientID=patient)
    return folder


def refused(settings):
    with pytest.raises(DataError) as caught:
        load(settings)
    return caught.value


def test_folders_of_patients_are_no_classes(tmp_path, fedskew):
    """Check and load refuse them, and name the command that works with a table of labels."""
    folder = archive(tmp_path)
    status, output, errors = fedskew("data", "check", folder)
    assert status == 2 and "will work" not in output and "PAT000" in errors
    cure = re.search(r"fedskew (data check \S+ --set labels=labels.csv)", errors)
    assert cure and str(folder) in cure[1]
    refused(settings_of(folder, ",".join(f"PAT{p:03}" for p in range(PATIENTS))))

    labels = table(tmp_path / "labels.csv")
    status, output, _ = fedskew(*shlex.split(cure[1].replace("labels.csv", str(labels))))
    assert status == 0 and "8 patients by column PatientID" in output
    assert "README.TXT" in output  # it is left out


@pytest.mark.parametrize("of_table", [True, False])
def test_labels_by_patient_or_element(tmp_path, of_table):
    folder = archive(tmp_path)
    file = table(tmp_path / "labels.csv")
    labels, classes = (str(file), "healthy,ill") if of_table else ("BodyPartExamined", "CHEST,HEAD")
    data = load(settings_of(folder, classes, labels=labels))
    assert sides(data) == [IMAGES] * PATIENTS  # all images of a patient are on one side
    counts = np.bincount([*data.train.labels, *data.test.labels])
    of_first_class = 3 if of_table else 4
    assert counts.tolist() == [IMAGES * of_first_class, IMAGES * (PATIENTS - of_first_class)]


def test_files_without_a_row_and_rows_without_a_file(tmp_path, fedskew):
    folder = archive(tmp_path)
    labels = table(tmp_path / "labels.csv", rows={f"P{p:03}": diagnosis(p) for p in range(2, 11)})
    settings = settings_of(folder, labels=str(labels))
    error = refused(settings)
    assert SetOption("missing", "drop") in options_of(error.remedy)
    assert "(PatientID 'P000', without a row), column label: is empty" in str(error)
    data = load(settings_of(folder, labels=str(labels), missing="drop"))
    assert len(data.train.labels) + len(data.test.labels) == 24
    options = ("--set", f"labels={labels}", "--set", "missing=drop")
    _, output, _ = fedskew("data", "check", folder, *options)
    assert "3 of 9 patients of labels.csv have no file, such as 'P008'" in output


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ("name,label\nP000,ill\nP001,healthy", DataError),
        ("PatientID,label\n7,ill\n8,healthy", DataError),
        ("BodyPart", SettingError),
        ("PixelData", DataError),
        ("nowhere.csv", DataError),
    ],
)
def test_labels_that_cannot_be_used(tmp_path, labels, error):
    folder = archive(tmp_path)
    file = table(tmp_path / "labels.csv")
    load(settings_of(folder, labels=str(file)))
    file.write_text(labels)
    with pytest.raises(error):
        load(settings_of(folder, labels=str(file) if "\n" in labels else labels))


def test_two_rows_of_a_patient_must_agree(tmp_path):
    folder = archive(tmp_path)
    labels = table(tmp_path / "labels.csv")
    load(settings_of(folder, labels=str(labels)))
    labels.write_text(f"{labels.read_text()}P001,healthy\n")
    error = refused(settings_of(folder, labels=str(labels)))
    assert "column PatientID: 'P001' is in another row" in str(error)


def test_the_table_may_name_sites_and_splits(tmp_path):
    """What it says goes before the headers."""
    folder = archive(tmp_path, InstitutionName="Elsewhere")
    lines = ["PatientID,label,site,split"]
    for p in range(PATIENTS):
        site, split = "north" if p < 4 else "south", "test" if p % 4 < 1 else "train"
        lines += [f"P{p:03},{diagnosis(p)},{site},{split}"] * 2  # a row twice says nothing else
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(lines))
    data = load(settings_of(folder, labels=str(labels)))
    assert data.domain_names == ("north", "south")
    assert sizes(data.train.subjects) == [IMAGES] * 6 and sizes(data.test.subjects) == [IMAGES] * 2


def test_a_column_subject_is_no_patient_beside_patientid(tmp_path):
    folder = archive(tmp_path)
    labels = tmp_path / "labels.csv"
    rows = [f"P{p:03},s{p % 2},{diagnosis(p)}" for p in range(PATIENTS)]
    labels.write_text("\n".join(["PatientID,subject,label", *rows]))
    data = load(settings_of(folder, labels=str(labels)))
    assert sides(data) == [IMAGES] * PATIENTS


def test_folders_of_training_and_tests_are_kept_apart_below_a_table(tmp_path):
    write_archive(tmp_path / "own/train", 5, 1)
    write_archive(tmp_path / "own/test", 3, 1, prefix="T")
    patients = [*(f"P{p:03}" for p in range(5)), *(f"T{p:03}" for p in range(3))]
    rows = {name: "ill" if k % 2 else "healthy" for k, name in enumerate(patients)}
    labels = table(tmp_path / "labels.csv", rows=rows)
    data = load(settings_of(tmp_path / "own", labels=str(labels)))
    assert (len(data.train.labels), len(data.test.labels)) == (10, 6)


def test_institutions_are_sites(tmp_path, fedskew):
    north = write_archive(tmp_path / "archive/north", 4, 1, InstitutionName="North")
    write_archive(tmp_path / "archive/south", 4, 1, prefix="S", InstitutionName=" South")
    settings = settings_of(tmp_path / "archive", "CHEST,HEAD", labels="BodyPartExamined")
    assert federate(settings, 0).client_names == ["0 North", "1 South"]
    other = {"BodyPartExamined": "HEAD", "InstitutionName": "Else", "PatientID": "X"}
    write_image(north / "visit", 800, **other)
    options = ("--set", "labels=BodyPartExamined")
    status, output, _ = fedskew("data", "check", tmp_path / "archive", *options)
    assert status == 0 and "are not taken as sites: Else has too few patients" in output


def test_a_patient_in_train_and_test_is_refused(tmp_path):
    folder = tmp_path / "own"
    class_folders(folder / "train", ["A1", "A2", "A3"])
    class_folders(folder / "test", ["B1", "B2"])
    assert sizes(load(settings_of(folder)).test.subjects) == [2, 2]
    write_image(folder / "test/ill/again", 700, PatientID="A2 ")
    assert "'A2'" in str(refused(settings_of(folder)))


@pytest.mark.parametrize(
    ("ids", "note", "subjects"),
    [
        (["A", " A ", "B", "C"] * 2, "3 patients by DICOM element PatientID", 3),
        (["ANONYMOUS"] * 6, "patients are unknown", 0),
        (["A", "B", "", "Anonymized"] * 2, "8 of 16 files name no patient", 10),
    ],
)
def test_how_vendors_write_patients(tmp_path, fedskew, ids, note, subjects):
    folder = class_folders(tmp_path / "own", ids)
    status, output, errors = fedskew("data", "check", folder)
    assert status == 0 and note in output, errors
    data = load(settings_of(folder))
    if subjects:
        assert len(sides(data)) == subjects
    else:
        assert data.train.subjects is None and data.test.subjects is None
