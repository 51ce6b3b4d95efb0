"""Names with commas: in every list that a setting holds, such a name stands in double quotes, as in a CSV file."""

import csv
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import FedSkew
from PIL import Image

from data import DataError, DataSettings, SettingError, federate, load, resolve
from data.agreement import agreed_inputs
from server_app.settings import parse, parse_text

HARD = ("adenoma, benign", "it's 5\" wide", '"so" called', "carcinoma", "a,,b")
"""Names that are hard to write in a list, for a shell, or both."""
DRAWS = np.random.default_rng(0)


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAWS.integers(0, 256, (6, 5), np.uint8)).save(file)


def tree(root: Path, classes: tuple[str, ...] = HARD) -> Path:
    for split in ("train", "test"):
        for name in classes:
            for k in range(6):
                picture(root / split / name / f"{k}.png")
    return root


def folder(tmp_path: Path) -> Path:
    return tree(tmp_path / "Lyon, France")


def table(tmp_path: Path) -> Path:
    path = tmp_path / "a, b.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("size", "label"), *((k, HARD[k % 5]) for k in range(60))])
    return path


def arrays(tmp_path: Path) -> Path:
    images = DRAWS.integers(0, 256, (90, 6, 5), np.uint8)
    names = np.array(HARD)[np.arange(90) % 5]
    np.savez(
        tmp_path / "own.npz",
        train_images=images[:60], train_labels=names[:60], test_images=images[60:], test_labels=names[60:],
    )  # fmt: skip
    return tmp_path / "own.npz"


def numbered_arrays(tmp_path: Path) -> Path:
    images = DRAWS.integers(0, 256, (90, 6, 5), np.uint8)
    labels = np.arange(90) % 5
    np.savez(
        tmp_path / "own.npz", class_names=np.array(HARD),
        train_images=images[:60], train_labels=labels[:60], test_images=images[60:], test_labels=labels[60:],
    )  # fmt: skip
    return tmp_path / "own.npz"


def library(tmp_path: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(DRAWS.integers(0, 256, (6, 5), np.uint8)) for _ in range(60)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(HARD))}
    columns = {"image": images, "label": [k % 5 for k in range(60)]}
    part = datasets.Dataset.from_dict(columns, datasets.Features(features))
    part.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


# Only `make slow` installs the library.
LIBRARY = pytest.param(library, marks=pytest.mark.slow)


@pytest.mark.parametrize("build", [folder, table, arrays, numbered_arrays, LIBRARY])
def test_what_check_proposes_can_be_used(tmp_path: Path, fedskew: FedSkew, build) -> None:
    status, output, errors = fedskew("data", "check", build(tmp_path))
    assert status == 0, errors
    command = shlex.split(output.rstrip("\n").rpartition("\n")[2])
    stated = dict(parse_text(word) for word in command if "=" in word)
    settings = parse({**stated, "cache": str(tmp_path / "cache")}).data
    data = load(settings)
    assert set(data.class_names) == set(HARD)
    assert set(data.train_labels.tolist()) == set(range(5))
    once = resolve(settings)
    assert resolve(once) == once and once.class_names == data.class_names


def test_the_error_without_classes_proposes_what_can_be_used(tmp_path: Path) -> None:
    settings = DataSettings(f"csv:{table(tmp_path)}", input_shape="1")
    with pytest.raises(SettingError) as refusal:
        load(settings)
    proposed = json.loads(str(refusal.value).partition(" would fit classes = ")[2])
    assert load(replace(settings, classes=proposed)).class_names == tuple(sorted(HARD))


@pytest.mark.parametrize("sites", [("Lyon, France", "Bonn"), ("Lyon, France",)])
def test_folders_of_sites_as_the_refusal_names_them(
    tmp_path: Path, fedskew: FedSkew, sites: tuple[str, ...]
) -> None:
    for site in sites:
        tree(tmp_path / "root" / site, ("a, b", "c"))
    status, output, _ = fedskew("data", "check", tmp_path / "root")
    assert status == 2
    *_, dataset = shlex.split(output)
    settings = DataSettings(
        dataset, classes='"a, b",c', input_shape="1x6x5", cache=str(tmp_path / "cache")
    )
    if len(sites) > 1:
        data = federate(settings, 0).dataset
        assert data.domain_names == ("Bonn", "Lyon, France")
        unseen = federate(replace(settings, unseen_domain="Lyon, France"), 0)
        assert unseen.clients == 1
    assert load(settings).class_names == ("a, b", "c")


def test_a_column_with_a_comma_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    rows = [
        ("size", "finding, final", "hospital, ward"),
        *((k, "ab"[k % 2], "NS"[k // 20]) for k in range(40)),
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    settings = DataSettings(f"csv:{path}", classes="a,b", input_shape="1")
    with pytest.raises(DataError, match='only size, "finding, final", "hospital, ward"'):
        load(settings)
    named = replace(settings, columns='"label=finding, final", "site=hospital, ward"')
    assert federate(named, 0).dataset.domain_names == ("N", "S")


@pytest.mark.parametrize("text", ['"a,b', '"a"b,c'])
def test_quotes_that_do_not_end_are_one_sentence(text: str) -> None:
    for key, settings in {
        "classes": DataSettings("npz:x", classes=text, input_shape="1x6x5"),
        "dataset": DataSettings(f"domains:{text}"),
    }.items():
        with pytest.raises(
            SettingError, match="one with a comma in it in double quotes"
        ) as refusal:
            resolve(settings)
        assert refusal.value.key == key
    with pytest.raises(SettingError, match="one with a comma in it in double quotes"):
        DataSettings(columns=text)


def test_names_without_commas_are_written_as_before() -> None:
    names = ("a", "it's", '5" wide', "b c")
    assert resolve(
        DataSettings("npz:x", classes=",".join(names), input_shape="1x6x5")
    ).classes == ",".join(names)


def test_federation_toml_may_have_them(tmp_path: Path) -> None:
    entries = {
        "name": "two",
        "classes": list(HARD),
        "input-shape": "1x6x5",
        "mean": [0.5],
        "std": [0.5],
    }
    assert agreed_inputs(entries, tmp_path / "federation.toml").classes == HARD


def test_coordinates_x_and_y_beside_a_label_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    rows = [f"{k},{k / 4},{'ab'[k % 2]}" for k in range(40)]
    settings = DataSettings(f"csv:{path}", classes="a,b", input_shape="2")
    for header in ("x,y,label", "X,Y,label"):
        path.write_text("\n".join([header, *rows]))
        assert load(settings).shape == (2,)
    path.write_text("\n".join(["x,y,diagnosis", *rows]))
    with pytest.raises(DataError, match="if that is it: --set 'columns=label=diagnosis'"):
        load(settings)
    path.write_text("\n".join(["size,y,label", *rows]))
    with pytest.raises(DataError, match="columns y and label both look like the label"):
        load(settings)
