"""A table of images: sites are clients, a patient is on one side, and one sentence for everything that is wrong."""

import os
import re
from dataclasses import replace

import pytest
from PIL import Image

from data import DataError, DataSettings, SettingError, federate, load, resolve

HEAD = "path,label,site,patient"
ROWS = [f"images/{k}.png,{'ab'[k // 2 % 2]},{'XYZ'[k % 3]},p{k // 2}" for k in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty images of 2 x 2 whose brightness is their number."""
    root = tmp_path_factory.mktemp("study")
    (root / "images").mkdir()
    for k in range(60):
        Image.new("L", (2, 2), k).save(root / "images" / f"{k}.png")
    return root


def table(folder, *lines, name="rows.csv", **stated):
    (folder / name).write_text("\n".join(lines or (HEAD, *ROWS)) + "\n")
    return DataSettings(
        f"csv:{folder / name}", **{"classes": "a,b", "input_shape": "1x2x2", **stated}
    )


def numbers(inputs):
    return set(inputs[:, 0, 0, 0].tolist())


def test_sites_are_clients_and_no_patient_is_on_two_sides(folder):
    rows = [row.replace(f",p{k // 2}", f",p{k // 6}") for k, row in enumerate(ROWS)]
    settings = resolve(table(folder, HEAD, *rows))
    assert (settings.partition, settings.clients) == ("domains", 3)
    federation = federate(settings, 0)
    data = federation.dataset
    assert data.domain_names == ("X", "Y", "Z") and federation.client_names == ["0 X", "1 Y", "2 Z"]
    for client in range(3):
        held, tested = (
            numbers(federation.train(client).inputs_N),
            numbers(federation.test(client).inputs_N),
        )
        assert {k % 3 for k in held | tested} == {client} and held and tested
    train, test = numbers(data.train_inputs), numbers(data.test_inputs)
    assert train | test == set(range(60)) and not train & test
    assert not {k // 6 for k in train} & {k // 6 for k in test} and 6 <= len(test) <= 24
    assert resolve(settings) == settings


def test_the_split_is_by_class_and_by_its_seed(folder):
    settings = table(folder, "path,label", *(",".join(row.split(",")[:2]) for row in ROWS))
    assert resolve(settings).partition == "lda" and load(settings).train_domains is None
    splits = [numbers(load(replace(settings, split_seed=seed, test_fold=fold)).test_inputs)
              for seed, fold in ((0, 0), (1, 0), *((0, fold) for fold in range(1, 5)))]  # fmt: skip
    assert splits[0] != splits[1]
    folds = [splits[0], *splits[2:]]
    assert sorted(k for fold in folds for k in fold) == list(range(60)), (
        "each is tested once over the folds"
    )
    assert all(sorted(k // 2 % 2 for k in fold) == [0] * 6 + [1] * 6 for fold in folds)


def test_sides_that_columns_say_and_names_of_ones_own(folder):
    sides = ["train", "Test", "valid"]
    rows = [f"images/{k}.png,{'ab'[k // 3 % 2]},{sides[k % 3]},H{k % 2}" for k in range(60)]
    settings = table(
        folder,
        "file,diagnosis,use,hospital",
        *rows,
        columns="path=file,label=diagnosis,split=use,site=",
    )
    data = load(settings)
    for inputs, side in ((data.train_inputs, 0), (data.test_inputs, 1), (data.val_inputs, 2)):
        assert numbers(inputs) == {k for k in range(60) if k % 3 == side}
    assert resolve(settings).partition == "lda"
    named = replace(settings, columns=f"{settings.columns}hospital")
    assert federate(named, 0).dataset.domain_names == ("H0", "H1")
    assert resolve(replace(named, unseen_domain="H1")).clients == 1
    rows = [f"images/{k}.png,{'ab'[k // 3 % 2]},{k % 3 + 1}" for k in range(60)]
    settings = table(folder, "path,label,fold", *rows, test_fold=3)
    assert numbers(load(settings).test_inputs) == {k for k in range(60) if k % 3 == 2}
    with pytest.raises(
        DataError, match="column fold: '1, 2, 3': none is test-fold = 0: --set test-fold=1"
    ):
        load(replace(settings, test_fold=0))


def test_a_partition_of_sites_goes_on_in_a_file(folder, tmp_path):
    from data.export import save_partition

    federation = federate(table(folder), 0)
    save_partition(federation, tmp_path / "partition.json")
    assert (
        federate(replace(table(folder), partition_file=str(tmp_path / "partition.json")), 5).hash
        == federation.hash
    )


def test_numbers_with_sites_and_patients(tmp_path):
    rows = [f"{k},{'ab'[k // 2 % 2]},{'XY'[k % 2]},p{k // 4}" for k in range(80)]
    (tmp_path / "cells.csv").write_text("\n".join(["size,label,site,patient", *rows]))
    settings = DataSettings(f"csv:{tmp_path / 'cells.csv'}", classes="a,b", input_shape="1")
    federation = federate(settings, 0)
    assert federation.dataset.domain_names == ("X", "Y")
    train, test = (
        set(inputs[:, 0] // 4)
        for inputs in (federation.dataset.train_inputs, federation.dataset.test_inputs)
    )
    assert not train & test
    data = federation.dataset
    patients = [f"p{int(size) // 4}" for size in data.train_inputs[:, 0]]
    assert data.train_groups is not None
    pairs = set(zip(data.train_groups.tolist(), patients, strict=True))
    assert len(pairs) == len(set(patients)), "each patient is one subject of the training samples"
    lines = [f"{k},{'ab'[k // 2 % 2]},{k % 2 + 1},{k // 4}" for k in range(80)]
    (tmp_path / "numbered.csv").write_text("\n".join(["size,label,site,patient", *lines]))
    settings = replace(settings, dataset=f"csv:{tmp_path / 'numbered.csv'}")
    assert federate(settings, 0).dataset.domain_names == ("1", "2"), "numbers name sites as well"
    as_inputs = replace(settings, columns="site=,patient=", input_shape="3")
    assert load(as_inputs).shape == (3,) and load(as_inputs).train_domains is None


CASES = {
    "patient on two sides": (
        ["path,label,patient,split", "images/0.png,a,p1,train", "images/1.png,b,p1,test"],
        "column patient: 'p1': is in train and test: a patient must be on one side alone",
    ),
    "a site of one sample": (
        [HEAD, *ROWS[:20], "images/20.png,a,Q,q"],
        "site 0 has one patient alone: some must train and others test",
    ),
    "no test data at a site": (
        [
            "path,label,site,split",
            *(f"images/{k}.png,{'ab'[k % 2]},X,{('train', 'test')[k // 4]}" for k in range(8)),
            "images/8.png,a,Q,train",
        ],
        "column site: 'Q': has 1 samples and none to test",
    ),
    "unknown label": (
        [HEAD, *ROWS[:9], "images/9.png,c,X,q"],
        "column label: 'c': must be one of classes = a, b",
    ),
    "two labels": (
        ["path,label,diagnosis", "images/0.png,a,b"],
        "columns label and diagnosis both look like the label: --set 'columns=label=label' or --set "
        "'columns=label=diagnosis'",
    ),
    "missing file": (
        [HEAD, "images/none.png,a,X,p"],
        "row 2: 'images/none.png': there is no such file below ",
    ),
    "a folder": ([HEAD, "images,a,X,p"], "row 2: 'images': there is no such file below "),
    "twice": ([HEAD, ROWS[0], ROWS[1], ROWS[0]], "row 4: images/0.png is the file of row 2 too"),
    "empty cell": ([HEAD, "images/0.png,a,,p"], "row 2, column site: is empty"),
    "split": (
        ["path,label,split", "images/0.png,a,x", "images/1.png,b,x"],
        "column split: 'x': must be one of train",
    ),
    "split and fold": (
        ["path,label,split,fold", "images/0.png,a,train,1", "images/1.png,b,test,2"],
        "columns split and fold both say who tests: --set 'columns=fold=' or",
    ),
    "no label": (
        ["path;kind", "images/0.png;a"],
        "there is no column 'label', only path, kind: say which it is: --set 'columns=label=NAME'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_used_is_one_sentence(folder, case):
    lines, rule = CASES[case]
    with pytest.raises(DataError) as refusal:
        load(table(folder, *lines, name="bad.csv"))
    assert str(refusal.value).startswith(f"{folder / 'bad.csv'}: {rule}")


def test_paths_that_lead_out_of_the_folder(folder, tmp_path):
    outside = tmp_path / "outside.png"
    Image.new("L", (2, 2), 9).save(outside)
    link = folder / "images" / "link.png"
    link.symlink_to(outside)
    for path in (outside, os.path.relpath(outside, folder), "images/link.png"):
        settings = table(folder, HEAD, *ROWS[:20], f"{path},a,X,q", name="out.csv")
        with pytest.raises(
            DataError, match=re.escape("leads out of the table's folder: --set outside-folder=true")
        ):
            load(settings)
        data = load(replace(settings, outside_folder=True))
        assert len(data.train_labels) + len(data.test_labels) == 21
    link.unlink()


def test_settings_of_columns():
    for columns in ("label", "colour=x", "label=a,label=b"):
        with pytest.raises(SettingError, match=f"columns = '{columns}': must be ROLE=NAME"):
            DataSettings(columns=columns)
    with pytest.raises(
        SettingError, match="pixel-range = '0,1': has no effect with dataset = 'digits'"
    ):
        resolve(DataSettings(pixel_range="0,1"))
