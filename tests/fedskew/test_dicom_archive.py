"""Folders of DICOM files as a hospital's archive exports them: patients, sites and labels."""

import re
import shlex
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dicom_files import write_archive, write_image
from PIL import Image

from data import DataError, DataSettings, SettingError, federate, load, resolve

pytest.importorskip("pydicom")

PATIENTS = 12
IMAGES = 6
"""Of each patient, in two studies."""


def diagnosis(patient):
    return "ill" if patient % 3 else "healthy"


def table(file, column, rows, **more):
    """Write a table of labels; `more` are further columns of one value."""
    header = ",".join([column, "label", *more])
    lines = [",".join([key, label, *more.values()]) for key, label in rows.items()]
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def by_patient(file, patients=range(PATIENTS), **more):
    return table(file, "PatientID", {f"P{p:03}": diagnosis(p) for p in patients}, **more)


def read(folder, classes="healthy,ill", **stated):
    settings = DataSettings(
        f"folder:{folder}",
        classes=classes,
        input_shape="1x8x8",
        cache=str(folder.parent / "cache"),
        **stated,
    )
    return load(settings)


def sizes(subjects):
    """The number of images of each subject."""
    return sorted(Counter(subjects.tolist()).values())


def class_folders(folder, ids, **elements):
    """Write folders ill and healthy with an image of each PatientID each."""
    number = zlib.crc32(f"{folder.name} {len(list(folder.rglob('*')))}".encode())
    for label in ("healthy", "ill"):
        for patient in ids:
            number += 1
            write_image(folder / label / f"{number}", number, PatientID=patient, **elements)
    return folder


def test_folders_of_patients_are_no_classes(tmp_path, fedskew):
    """Check and run refuse them and name the command, which works with a table of labels, as what it prints does."""
    folder = write_archive(tmp_path / "archive")
    status, output, errors = fedskew("data", "check", folder)
    assert status == 2 and "will work" not in output
    assert "each of the 12 class folders, such as PAT000, holds one patient alone" in errors
    cure = re.search(r"fedskew (data check \S+ --labels labels.csv)", errors)
    assert cure and str(folder) in cure[1]

    names = ",".join(f"PAT{p:03}" for p in range(PATIENTS))
    words = [f"dataset=folder:{folder}", f"classes={names}", "input-shape=1x8x8", "rounds=1"]
    options = [word for text in words for word in ("--set", text)]
    status, _, errors = fedskew("run", *options, "--engine", "inprocess", "--results", tmp_path)
    assert status != 0 and "holds one patient alone" in errors

    labels = by_patient(tmp_path / "labels.csv")
    command = cure[1].replace("labels.csv", str(labels))
    status, output, _ = fedskew(*shlex.split(command))
    assert status == 0 and "12 patients by DICOM element PatientID" in output
    assert "1 file is no DICOM image and left out, such as README.TXT" in output
    _, *printed = shlex.split(output.splitlines()[-1])
    assert f"labels={labels}" in printed and "classes=healthy,ill" in printed
    small = ["--set", "rounds=1", "--set", "local-epochs=1", "--set", f"cache={tmp_path / 'cache'}"]
    results = ("--engine", "inprocess", "--results", tmp_path / "runs")
    status, _, errors = fedskew(*printed, *small, *results)
    assert status == 0, errors


def test_classes_of_a_few_patients_each_are_classes(tmp_path, fedskew):
    folder = class_folders(tmp_path / "own", [f"P{p}" for p in range(10)])
    class_folders(folder, [f"P{p}" for p in range(10)])
    status, output, _ = fedskew("data", "check", folder)
    assert status == 0 and "10 patients by DICOM element PatientID" in output
    assert "patients are unknown" not in output
    data = read(folder)
    assert sizes(data.train_groups) == [4] * 8 and sizes(data.test_subjects) == [4] * 2


KEYS = (
    "PatientID",
    "patient",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "path",
    "from table",
    "tag",
)


@pytest.mark.parametrize("key", KEYS)
def test_labels_by_patient_study_series_file_or_element(tmp_path, key):
    folder = write_archive(tmp_path / "archive")
    rows = {}
    for patient in range(PATIENTS):
        studies = [f"1.9.{patient + 1}.{study + 1}" for study in range(2)]
        files = sorted((folder / f"PAT{patient:03}").rglob("IM*"))
        keys = {
            "StudyInstanceUID": studies,
            "SeriesInstanceUID": [f"{study}.1" for study in studies],
            "path": [str(file.relative_to(folder)).replace("/", "\\") for file in files],
            "from table": [str(file.relative_to(tmp_path)) for file in files],
        }.get(key, [f"P{patient:03}"])
        rows |= dict.fromkeys(keys, diagnosis(patient))
    labels = str(table(tmp_path / "labels.csv", "path" if key == "from table" else key, rows))
    classes = "healthy,ill"
    if key == "tag":
        labels, classes = "BodyPartExamined", "CHEST,HEAD"
    data = read(folder, classes, labels=labels)
    assert data.train_groups is not None and data.test_subjects is not None
    subjects = [*sizes(data.train_groups), *sizes(data.test_subjects)]
    assert subjects == [IMAGES] * PATIENTS, "all images of a patient are on one side"
    of_first_class = PATIENTS // 2 if key == "tag" else PATIENTS // 3
    counts = np.bincount(np.concatenate([data.train_labels, data.test_labels]))
    assert counts[0] == of_first_class * IMAGES and len(counts) == 2


def test_files_without_a_row_and_rows_without_a_file(tmp_path, fedskew):
    folder = write_archive(tmp_path / "archive")
    labels = by_patient(tmp_path / "labels.csv", range(2, 15))
    status, _, errors = fedskew("data", "check", folder, "--labels", labels)
    assert status == 2 and "--set missing=drop leaves these out" in errors
    assert "12 of 72 files have no row in labels.csv, such as PAT000/ST0/SE0/IM0000" in errors
    assert "3 of 13 rows of labels.csv have no file, such as row 12 (PatientID 'P012')" in errors
    drop = ("--set", "missing=drop")
    status, output, _ = fedskew("data", "check", folder, "--labels", labels, *drop)
    assert status == 0 and "left out by missing = drop" in output
    data = read(folder, labels=str(labels), missing="drop")
    assert len(data.train_labels) + len(data.test_labels) == 60


def test_files_without_the_element_and_rows_without_a_label(tmp_path):
    folder = write_archive(tmp_path / "archive")
    write_image(folder / "PAT000" / "IM9", 900, PatientID="P000")
    stated = {"classes": "CHEST,HEAD", "labels": "BodyPartExamined"}
    with pytest.raises(DataError, match="1 of 73 files have no BodyPartExamined, such as PAT000"):
        read(folder, **stated)
    data = read(folder, **stated, missing="drop")
    assert len(data.train_labels) + len(data.test_labels) == 72

    labels = by_patient(tmp_path / "labels.csv")
    labels.write_text(labels.read_text().replace("P003,healthy", "P003,"))
    with pytest.raises(DataError, match="row 5, column label: is empty"):
        read(folder, labels=str(labels))
    data = read(folder, labels=str(labels), missing="drop")
    assert len(data.train_labels) + len(data.test_labels) == 73 - IMAGES


@pytest.mark.parametrize(
    ("labels", "error", "rule"),
    [
        ("PatientID,label\nP000,ill\nP000,healthy", DataError, "'P000' is in row 2 with other"),
        ("name,label\nP000,ill\nP001,healthy", DataError, "must have one of path, SeriesInst"),
        ("PatientID,label\n7,ill\n8,healthy", DataError, "72 of 72 files have no row"),
        ("PatientID,score\nP000,ill\nP001,healthy", DataError, "there is no column 'label'"),
        ("BodyPart", SettingError, "must be a CSV file, such as labels.csv, or the keyword"),
        ("PixelData", SettingError, "must be a DICOM element of a text or a number"),
        ("nowhere.csv", DataError, "there is no such file"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path, labels, error, rule):
    folder = write_archive(tmp_path / "archive")
    file = tmp_path / "labels.csv"
    file.write_text(labels)
    with pytest.raises(error, match=re.escape(rule)):
        read(folder, labels=str(file) if "\n" in labels else labels)


def test_labels_are_for_folders(tmp_path):
    with pytest.raises(SettingError, match="is for DICOM files in folders"):
        resolve(DataSettings("csv:x.csv", classes="2", input_shape="3", labels="BodyPartExamined"))
    (tmp_path / "own/a").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "own/a/1.png")
    with pytest.raises(DataError, match="holds no DICOM image"):
        read(tmp_path / "own", labels="BodyPartExamined")


def test_the_table_may_name_patients_sites_and_splits(tmp_path):
    """What it says goes before the headers: here all files are ANONYMOUS."""
    folder = write_archive(tmp_path / "archive", PatientID="ANONYMOUS")
    lines = ["StudyInstanceUID,label,patient,site,split"]
    for p in range(PATIENTS):
        site, split = "north" if p < 6 else "south", "test" if p % 6 < 2 else "train"
        lines += [f"1.9.{p + 1}.{s},{diagnosis(p)},{p},{site},{split}" for s in (1, 2)]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(lines))
    data = read(folder, labels=str(labels))
    assert data.domain_names == ("north", "south")
    assert sizes(data.train_groups) == [IMAGES] * 8 and sizes(data.test_subjects) == [IMAGES] * 4
    labels.write_text(
        "\n".join(lines).replace("1.9.1.1,healthy,0,north,test", "1.9.1.1,healthy,0,north,train")
    )
    with pytest.raises(DataError, match="column patient: '0': is in"):
        read(folder, labels=str(labels))


def test_institutions_are_sites(tmp_path, fedskew):
    folder = write_archive(tmp_path / "archive/north", 6, InstitutionName="North")
    write_archive(tmp_path / "archive/south", 6, prefix="S", InstitutionName=" South")
    options = ("--labels", "BodyPartExamined")
    status, output, _ = fedskew("data", "check", folder.parent, *options)
    assert status == 0 and "2 sites of DICOM element InstitutionName are the clients" in output
    settings = DataSettings(
        f"folder:{folder.parent}",
        labels="BodyPartExamined",
        classes="CHEST,HEAD",
        input_shape="1x8x8",
        cache=str(tmp_path / "cache"),
    )
    assert federate(settings, 0).client_names == ["0 North", "1 South"]
    pooled = {
        "labels": "BodyPartExamined",
        "classes": "CHEST,HEAD",
        "columns": "site=",
    }
    assert read(folder.parent, **pooled).domain_names == ()
    write_image(
        folder / "visit", 800, PatientID="X", BodyPartExamined="HEAD", InstitutionName="Else"
    )
    status, output, _ = fedskew("data", "check", folder.parent, *options)
    assert status == 0 and "are not taken as sites: Else has one patient" in output


def test_a_patient_in_train_and_test_is_refused(tmp_path, fedskew):
    folder = tmp_path / "own"
    class_folders(folder / "train", ["A1", "A2", "A3"])
    class_folders(folder / "test", ["B1", "B2"])
    assert fedskew("data", "check", folder)[0] == 0
    assert sizes(read(folder).test_subjects) == [2, 2]
    write_image(folder / "test/ill/again", 700, PatientID="A2 ")
    status, _, errors = fedskew("data", "check", folder)
    assert status == 2
    said = "DICOM element PatientID: 'A2': is in train and test: a patient must be on one"
    assert said in errors
    # Pictures that come first in each folder change nothing.
    for place in ("train/healthy", "train/ill", "test/healthy", "test/ill"):
        Image.fromarray(np.full((8, 8), 90, np.uint8)).save(folder / place / "0.png")
    status, _, errors = fedskew("data", "check", folder, "--set", "input-shape=1x8x8")
    assert status == 2 and said in errors


@pytest.mark.parametrize(
    ("ids", "elements", "notes", "subjects"),
    [
        (["A", " A ", "B", "C"] * 5, {}, ["3 patients by DICOM element PatientID"], 3),
        (["ANONYMOUS"] * 20, {}, ["PatientID 'ANONYMOUS' is the only one", "are unknown"], 0),
        (["7"] * 20, {}, ["PatientID '7' is the only one", "are unknown"], 0),
        ([None, ""] * 10, {}, ["the images' patients are unknown"], 0),
        (["A", "B", "", "Anonymized"] * 5, {}, ["20 of 40 files have no PatientID"], 22),
    ],
)
def test_how_vendors_write_patients(
    tmp_path,
    fedskew,
    ids,
    elements,
    notes,
    subjects,
):
    folder = class_folders(tmp_path / "own", ids, **elements)
    status, output, errors = fedskew("data", "check", folder)
    assert status == 0, errors
    assert [note for note in notes if note not in output] == []
    data = read(folder)
    if not subjects:
        assert data.train_groups is None and data.test_subjects is None
        return
    assert data.train_groups is not None and data.test_subjects is not None
    assert len(sizes(data.train_groups)) + len(sizes(data.test_subjects)) == subjects


def test_studies_stand_for_patients_without_names(tmp_path, fedskew):
    folder = write_archive(tmp_path / "archive", PatientID="ANONYMOUS")
    _, output, _ = fedskew("data", "check", folder, "--labels", "BodyPartExamined")
    assert "each of the 24 studies (StudyInstanceUID) counts as one" in output
    data = read(folder, "CHEST,HEAD", labels="BodyPartExamined")
    assert [*sizes(data.train_groups), *sizes(data.test_subjects)] == [IMAGES // 2] * 24
    unknown = read(folder, "CHEST,HEAD", labels="BodyPartExamined", columns="patient=")
    assert unknown.train_groups is None


def test_images_without_known_patients_are_said_to_be(tmp_path, fedskew):
    draws = np.random.default_rng(0)
    rows = ["path,label,patient"]
    for label in ("a", "b"):
        (tmp_path / "own" / label).mkdir(parents=True)
        for number in range(20):
            file = tmp_path / "own" / label / f"{number}.png"
            Image.fromarray(draws.integers(0, 256, (8, 8), np.uint8)).save(file)
            rows.append(f"{label}/{number}.png,{label},{number // 2}")
    _, output, _ = fedskew("data", "check", tmp_path / "own")
    assert "patients are unknown" in output
    cure = re.search(r"columns path, label and patient: fedskew (data check \S+images.csv)", output)
    assert cure
    Path(cure[1].split()[-1]).write_text("\n".join(rows))
    status, output, _ = fedskew(*cure[1].split())
    assert status == 0 and "10 patients by column patient" in output
    assert "patients are unknown" not in output
    (tmp_path / "own/images.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows))
    _, output, _ = fedskew("data", "check", tmp_path / "own/images.csv")
    assert "name them in images.csv with a column patient" in output


def test_a_table_of_dicom_images_has_their_patients(tmp_path, fedskew):
    folder = write_archive(tmp_path / "archive")
    rows = ["path,label"]
    for file in sorted(folder.rglob("IM*")):
        rows.append(f"{file.relative_to(tmp_path)},{diagnosis(int(str(file).split('PAT')[1][:3]))}")
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    status, output, _ = fedskew("data", "check", tmp_path / "rows.csv")
    assert status == 0 and "12 patients by DICOM element PatientID" in output
    stated = {
        "classes": "healthy,ill",
        "input_shape": "1x8x8",
        "cache": str(tmp_path / "cache"),
    }
    data = load(DataSettings(f"csv:{tmp_path / 'rows.csv'}", **stated))
    assert [*sizes(data.train_groups), *sizes(data.test_subjects)] == [IMAGES] * PATIENTS
    split = [f"{row},{'train' if k % 2 else 'test'}" for k, row in enumerate(rows[1:])]
    (tmp_path / "split.csv").write_text("\n".join(["path,label,split", *split]))
    with pytest.raises(DataError, match="PatientID: 'P000': is in test and train"):
        load(DataSettings(f"csv:{tmp_path / 'split.csv'}", **stated))


def test_a_class_of_one_patient_is_warned_about(tmp_path, fedskew):
    folder = tmp_path / "own"
    for number in range(40):
        ill = number < 20
        patient = "A" if ill else f"B{number // 4}"
        write_image(folder / ("ill" if ill else "healthy") / f"{number}", number, PatientID=patient)
    status, output, _ = fedskew("data", "check", folder)
    assert status == 0 and "class ill: all training samples of one subject each" in output
    assert "class healthy" not in output.split("of one subject each")[0].splitlines()[-1]


def test_headers_are_read_once(tmp_path, fedskew, monkeypatch):
    import pydicom

    folder = write_archive(tmp_path / "archive")
    scanned = Counter()
    dcmread = pydicom.dcmread

    def counted(file, **options):
        if "PatientID" in options.get("specific_tags", ()):
            assert options.get("stop_before_pixels")
            scanned[str(file)] += 1
        return dcmread(file, **options)

    monkeypatch.setattr(pydicom, "dcmread", counted)
    labels = by_patient(tmp_path / "labels.csv")
    assert fedskew("data", "check", folder, "--labels", labels)[0] == 0
    assert len(scanned) == PATIENTS * IMAGES and set(scanned.values()) == {1}


def test_another_table_is_other_data(tmp_path):
    folder = write_archive(tmp_path / "archive")
    labels = by_patient(tmp_path / "labels.csv")
    before = read(folder, labels=str(labels))
    labels.write_text(labels.read_text().replace("P003,healthy", "P003,ill    "))
    after = read(folder, labels=str(labels))
    assert before.content != after.content
    counts = [
        np.bincount(np.concatenate([data.train_labels, data.test_labels]))
        for data in (before, after)
    ]
    assert counts[0].tolist() == [24, 48] and counts[1].tolist() == [18, 54]


def test_one_table_is_for_the_folders_of_all_sites(tmp_path):
    for prefix in ("N", "S"):
        write_archive(tmp_path / prefix, 6, prefix=prefix)
    rows = {f"{prefix}{p:03}": diagnosis(p) for prefix in ("N", "S") for p in range(6)}
    stated = {
        "labels": str(table(tmp_path / "labels.csv", "PatientID", rows)),
        "classes": "healthy,ill",
        "input_shape": "1x8x8",
        "cache": str(tmp_path / "cache"),
    }
    both = DataSettings(f"domains:folder:{tmp_path / 'N'},folder:{tmp_path / 'S'}", **stated)
    data = load(both)
    assert data.domain_names == ("N", "S")
    subjects = [*sizes(data.train_groups), *sizes(data.test_subjects)]
    assert subjects == [IMAGES] * PATIENTS
    with pytest.raises(DataError, match="6 of 12 rows of labels"):
        load(DataSettings(f"folder:{tmp_path / 'N'}", **stated))
