"""`fedskew data` as a user meets it."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import FedSkew
from PIL import Image

from data import DataSettings, federate, load, resolve
from data.readers.catalog import ALIASES, DOMAINS_PREFIX, KNOWN, OWN_PREFIXES
from fedskew.cli.data import draw_class_matrix, matrix_table


def test_list_says_what_is_there_and_how_to_get_the_rest(tmp_path: Path, fedskew: FedSkew) -> None:
    np.savez(tmp_path / "usps.npz", train_images=[0])
    status, output, _ = fedskew("data", "list", "--data-root", tmp_path, "--json")
    rows = {row["dataset"]: row for row in json.loads(output)}
    assert status == 0 and list(rows) == [*KNOWN, *ALIASES]
    assert {name for name, row in rows.items() if row["there"]} == {
        "digits", "digits-3-8", "digits-plain", "digits-faint", "digits-blurred", "digits-noisy", "digits-scanners",
        "usps",
    }  # fmt: skip
    assert rows["usps"]["what"] == str(tmp_path / "usps.npz")
    assert "download = true" in rows["cifar10"]["what"]
    assert rows["cinic10"]["what"].startswith("unpack CINIC-10.tar.gz")
    assert rows["digits-five"]["what"].endswith("missing mnist, svhn, synthdigits, mnist-m")
    assert all(row["what"] for row in rows.values())
    status, output, _ = fedskew("data", "list")
    assert status == 0 and all(name in output for name in rows)
    last = output.splitlines()[-1]
    assert [prefix for prefix in (*OWN_PREFIXES, DOMAINS_PREFIX) if prefix not in last] == []


def test_list_says_there_only_of_office_folders_that_can_be_read(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    """Copies of Office-Caltech10 write `backpack` or `back_pack`: both are read. A folder of no class is not."""
    for domain, folder in (("dslr", "backpack"), ("webcam", "satchel")):
        (tmp_path / "office_caltech_10" / domain / folder).mkdir(parents=True)
    rows = json.loads(fedskew("data", "list", "--data-root", tmp_path, "--json")[1])
    there = {row["dataset"]: row for row in rows if row["dataset"].startswith("office-")}
    assert there["office-dslr"]["there"] and not there["office-webcam"]["there"]
    assert "class folders satchel are none of Office-Caltech10's" in there["office-webcam"]["what"]


def test_show_is_the_matrix_of_the_federation(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--set", "partition=llt", "--set", "alpha=0.9", "--set", "seed=3")
    federation = federate(DataSettings(partition="llt", alpha=0.9), 3)
    status, output, _ = fedskew("data", "show", *words, "--png", tmp_path / "matrix.png")
    assert status == 0 and federation.hash in output
    rows = [
        line.split()
        for line in output.splitlines()
        if line.split()[:1] and line.split()[0].isdecimal()
    ]
    assert [[int(cell) for cell in row[1:11]] for row in rows[:10]] == federation.counts_KC.tolist()
    monkeypatch.setenv("COLUMNS", "40")
    output = fedskew("data", "show", *words)[1]
    rows = [
        line.split()
        for line in output.splitlines()
        if line.split()[:1] and line.split()[0].isdecimal()
    ]
    assert [
        [int(cell) for cell in row[1:11]] for row in rows[:10]
    ] == federation.counts_KC.tolist(), "no number is cut"
    with Image.open(tmp_path / "matrix.png") as picture:
        assert picture.size[0] > 10 * 24 and picture.size[1] > 10 * 20
    status, output, _ = fedskew("data", "show", *words, "--json")
    assert json.loads(output)["counts"] == federation.counts_KC.tolist()


@pytest.mark.parametrize(
    "words",
    [["show"], ["check", __file__], ["export-sites", "digits", "nowhere"], ["save-partition", "x"]],
)
def test_a_key_that_is_set_twice_is_refused_as_by_run(words: list[str], fedskew: FedSkew) -> None:
    status, _, errors = fedskew("data", *words, "--set", "alpha=1", "--set", "alpha=2")
    assert status == 2 and "fedskew: alpha = 2: is stated twice\n" in errors


def test_names_of_classes_are_whole_or_have_a_legend(tmp_path: Path) -> None:
    federation = federate(DataSettings(clients=2), 0)
    named = replace(
        federation,
        dataset=replace(federation.dataset, class_names=[f"species {k}" for k in range(10)]),
    )
    assert [column.header for column in matrix_table(named, "").columns][1:11] == [
        f"species {k}" for k in range(10)
    ]
    numbered = matrix_table(named, "", full_names=False)
    assert [column.header for column in numbered.columns][1:11] == list("0123456789")
    assert str(numbered.caption).startswith("Classes: 0 species 0, 1 species 1")
    assert matrix_table(federation, "", full_names=False).caption is None


def test_a_saved_partition_is_shown_again(tmp_path: Path, fedskew: FedSkew) -> None:
    file = tmp_path / "partition.json"
    assert fedskew("data", "save-partition", file, "--set", "clients=3", "--set", "seed=7")[0] == 0
    status, output, _ = fedskew("data", "show", "--set", f"partition-file={file}", "--json")
    federation = federate(DataSettings(clients=3), 7)
    assert status == 0 and json.loads(output)["hash"] == federation.hash
    assert json.loads(output)["counts"] == federation.counts_KC.tolist()


def test_a_partition_from_a_table(tmp_path: Path, fedskew: FedSkew) -> None:
    table, file = tmp_path / "who.csv", tmp_path / "partition.json"
    table.write_text("sample,client\n5,north\n0,south\n3,north\n")
    assert fedskew("data", "save-partition", file, "--from", table)[0] == 0
    federation = federate(DataSettings(partition_file=str(file)), 0)
    assert [part.tolist() for part in federation.train_indices] == [[3, 5], [0]] and len(
        federation.global_test
    ) == 360
    for text, words in (
        ("sample,site\n0,a\n", "there is no column 'client', only sample, site"),
        ("sample,client\n1437,a\n", "'1437': must be a training sample's place, 0..1436"),
        ("sample,client\n0,a\n0,b\n", "row 3: sample 0 is that of row 2 too"),
        ("sample,client\n", "names no sample"),
    ):
        table.write_text(text)
        status, _, errors = fedskew("data", "save-partition", file, "--from", table)
        assert (status, errors.count("\n")) == (2, 1) and words in errors


def test_the_picture_is_darker_where_there_are_more_samples() -> None:
    axes = draw_class_matrix(np.array([[0, 10], [100, 50]]), ["a", "b"], ["0", "1"]).axes[0]
    (image,) = axes.images
    brightness = np.asarray(image.to_rgba(image.get_array()))[..., :3].sum(axis=-1)
    assert brightness[1, 0] < brightness[1, 1] < brightness[0, 1] < brightness[0, 0]
    shown = {
        (int(text.get_position()[0]), int(text.get_position()[1])): text.get_text()
        for text in axes.texts
    }
    assert shown == {(1, 0): "10", (0, 1): "100", (1, 1): "50"}
    assert [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())] == [
        "a",
        "b",
        "0",
        "1",
    ]


def test_the_picture_of_many_classes_and_clients_has_neither_names_nor_numbers() -> None:
    axes = draw_class_matrix(np.ones((100, 1000), np.int64), ["x"] * 1000, ["1"] * 100).axes[0]
    assert not axes.texts and not axes.get_xticklabels() and not axes.get_yticklabels()


def test_many_classes_are_summed_up(tmp_path: Path, fedskew: FedSkew) -> None:
    labels = np.arange(300) % 30
    images = np.random.default_rng(0).integers(0, 256, (600, 4, 4), np.uint8)
    np.savez(
        tmp_path / "own.npz",
        train_images=images[:300],
        train_labels=labels,
        test_images=images[300:],
        test_labels=labels,
    )
    words = [
        f"dataset=npz:{tmp_path}/own.npz",
        "classes=30",
        "input-shape=1x4x4",
        "partition=iid",
        "clients=3",
    ]
    status, output, _ = fedskew(
        "data", "show", *(word for pair in words for word in ("--set", pair))
    )
    assert status == 0 and "largest" in output and "100" in output


@pytest.mark.parametrize("kind", ["npz", pytest.param("folder", marks=pytest.mark.slow)])
def test_check_gives_settings_that_work(tmp_path: Path, fedskew: FedSkew, kind: str) -> None:
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (400, 6, 5), np.uint8),
        np.arange(200) % 2,
    )
    if kind == "npz":
        path = tmp_path / "own.npz"
        np.savez(
            path,
            train_images=images[:200],
            train_labels=labels,
            test_images=images[200:],
            test_labels=labels,
        )
    else:
        path = tmp_path / "own"
        for place, split in enumerate(("train", "test")):
            for index, label in enumerate(labels[:120]):
                (path / split / ("cat", "dog")[label]).mkdir(parents=True, exist_ok=True)
                Image.fromarray(images[200 * place + index]).save(
                    path / split / ("cat", "dog")[label] / f"{index}.png"
                )
    status, output, _ = fedskew("data", "check", path)
    assert status == 0 and "will work" in output
    stated = "'classes=2'" if kind == "npz" else "'classes=cat,dog'"
    assert (
        f"fedskew run --set 'dataset={kind}:{path}' --set {stated} --set 'input-shape=1x6x5'"
        in output
    )
    assert ("100" if kind == "npz" else "60") in output
    limit, most = ("max-unpacked-mib", 4096) if kind == "npz" else ("max-image-pixels", 30)
    status, output, _ = fedskew("data", "check", path, f"--{limit}", most)
    assert status == 0 and (f"--set '{limit}={most}'" in output) == (kind != "npz")
    if kind != "npz":
        status, _, errors = fedskew("data", "check", path, f"--{limit}", 29)
        assert status == 2 and "more pixels than max-image-pixels = 29" in errors


def test_check_warns_of_another_scale(tmp_path: Path, fedskew: FedSkew) -> None:
    images, labels = (
        np.random.default_rng(0).uniform(0, 1, (200, 6, 5)).astype(np.float32),
        np.arange(200) % 2,
    )
    for scale, warned, status in ((1, False, 0), (3, True, 0), (255, False, 2)):
        np.savez(tmp_path / "own.npz", train_images=scale * images, train_labels=labels, test_images=1 - images,
                 test_labels=labels)  # fmt: skip
        ended, output, errors = fedskew("data", "check", tmp_path / "own.npz")
        assert ended == status and ("taken as 0..1, and some are outside" in output) == warned
        assert ("--set pixel-range=0,255" in errors) == (status == 2)


def test_check_says_what_is_wrong(tmp_path: Path, fedskew: FedSkew) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5), np.uint8)
    np.savez(tmp_path / "bare.npz", train_images=images, test_images=images)
    np.savez(tmp_path / "few.npz", train_images=images, train_labels=np.arange(20) % 2, test_images=255 - images,
             test_labels=np.zeros(20, int))  # fmt: skip
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no images")
    for name, words in (
        ("bare.npz", "train_labels, test_labels missing"),
        ("nowhere", "there is no such file or folder"),
        ("empty", "must hold train/CLASS/* and test/CLASS/*"),
        ("text.txt", "cannot be read as an npz file"),
    ):
        status, _, errors = fedskew("data", "check", tmp_path / name)
        assert (status, errors.count("\n")) == (2, 1) and words in errors
    status, errors, _ = fedskew("data", "check", tmp_path / "few.npz")
    assert status == 0 and "With the default partition it will not: min-samples = 10" in errors


def test_check_and_split_of_a_table_with_subjects(tmp_path: Path, fedskew: FedSkew) -> None:
    file, sites = tmp_path / "cells.csv", tmp_path / "sites"
    rows = [f"{k},{-k / 8},{'ab'[k // 4 % 2]},s{k // 4}" for k in range(80)]
    file.write_text("\n".join(["size,weight,label,subject", *rows]))
    status, said, _ = fedskew("data", "check", f"csv:{file}")
    words = " ".join(said.split())
    assert status == 0 and "--set 'classes=a,b'" in words and "--set 'input-shape=2'" in words
    assert fedskew("data", "check", file)[0] == 0
    assert fedskew("data", "check", f"csv:{tmp_path}/none.csv")[0] == 2
    words = (
        "--sites",
        2,
        *(w for key in ("classes=a,b", "input-shape=2", "partition=iid") for w in ("--set", key)),
    )
    assert fedskew("data", "export-sites", f"csv:{file}", sites, *words)[0] == 0
    settings = DataSettings(
        f"csv:{file}", classes="a,b", input_shape="2", partition="iid", clients=2
    )
    same_samples(settings, sites, ["site-0", "site-1"])
    assert fedskew("data", "export-sites", f"csv:{file}", sites, *words)[0] == 2, (
        "nothing is written over"
    )


def test_split_writes_what_each_client_holds(tmp_path: Path, fedskew: FedSkew) -> None:
    assert (
        fedskew("data", "export-sites", "digits-scanners", tmp_path / "sites", "--sites", 4)[0] == 0
    )
    names = ["digits-plain", "digits-faint", "digits-blurred", "digits-noisy"]
    same_samples(DataSettings("digits-scanners"), tmp_path / "sites", names)
    agreed = tomllib.loads((tmp_path / "sites" / "federation.toml").read_text())
    assert [site["name"] for site in agreed["site"]] == names and agreed["input-shape"] == "1x8x8"
    assert (
        tomllib.loads((tmp_path / "sites" / names[1] / "site.toml").read_text())["name"] == names[1]
    )
    assert (
        fedskew("data", "export-sites", "digits-scanners", tmp_path / "three", "--sites", 3)[0] == 2
    )


def same_samples(settings: DataSettings, sites: Path, names: list[str]) -> None:
    """Assert that each site's folder has what its client holds."""
    federation, resolved = federate(settings, 0), resolve(settings)
    assert sorted(path.name for path in sites.iterdir() if path.is_dir()) == sorted(names)
    for client, name in enumerate(names):
        shape = {"classes": resolved.classes, "input_shape": resolved.input_shape}
        site = federate(
            DataSettings(f"npz:{sites / name / 'data.npz'}", partition="pooled", **shape), 0
        )
        for mine, theirs in (
            (federation.train(client), site.train(0)),
            (federation.test(client), site.test()),
        ):
            assert torch.equal(mine.inputs_N, theirs.inputs_N) and torch.equal(
                mine.labels_N, theirs.labels_N
            )
            if mine.groups_N is not None:
                pairs = torch.stack([mine.groups_N, theirs.groups_N]).unique(dim=1)
                assert len(pairs[0].unique()) == len(pairs[1].unique()) == pairs.shape[1], (
                    "the same samples together"
                )
        assert np.array_equal(federation.tested_C("test", client), site.tested_C("test", 0))


def test_copies_are_their_owners_and_can_be_listed_and_deleted(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    place, images = tmp_path / "cache", np.zeros((4, 4, 4), np.uint8)
    np.savez(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=[0, 1, 0, 1],
        test_images=images,
        test_labels=[0] * 4,
    )
    settings = DataSettings(
        f"npz:{tmp_path / 'own.npz'}", classes="2", input_shape="1x4x4", cache=str(place)
    )
    content = load(settings).content
    (copy,) = place.iterdir()
    assert {path.stat().st_mode & 0o777 for path in (place, copy)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in copy.iterdir()} == {0o600}
    (copy / "train_inputs.npy").chmod(0o644)  # as earlier versions left it
    assert load(settings).content == content
    assert (copy / "train_inputs.npy").stat().st_mode & 0o777 == 0o600
    (place / "mine.txt").write_text("no copy")
    begun = place / f".own-{'a' * 24}-{'b' * 32}"
    begun.mkdir()
    status, output, _ = fedskew("data", "cache", "--list", "--cache", place)
    assert status == 0 and copy.name in output and "2 copies" in output and copy.is_dir()
    assert fedskew("data", "cache", "--cache", place)[0] == 2
    status, output, _ = fedskew("data", "cache", "--clear", "--cache", place)
    assert (
        status == 0
        and "deleted" in output
        and [path.name for path in place.iterdir()] == ["mine.txt"]
    )
    assert "0 copies" in fedskew("data", "cache", "--list", "--cache", place)[1]
