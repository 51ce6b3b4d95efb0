"""`fedskew data` as a user meets it."""

import json
import shlex
from pathlib import Path

import numpy as np
import torch

from data import DataSettings, federate, load, resolve
from data.readers.catalog import ALIASES, KNOWN


def test_list_says_what_is_there_and_how_to_get_the_rest(tmp_path, fedskew):
    np.savez(tmp_path / "usps.npz", train_images=[0])
    status, output, _ = fedskew("data", "list", "--data-root", tmp_path, "--json")
    rows = {row["dataset"]: row for row in json.loads(output)}
    assert status == 0 and list(rows) == [*KNOWN, *ALIASES]
    assert {name for name, row in rows.items() if row["there"]} == {
        "digits", "digits-3-8", "digits-plain", "digits-faint", "digits-blurred", "digits-noisy", "digits-scanners",
        "usps",
    }  # fmt: skip
    assert rows["usps"]["what"] == str(tmp_path / "usps.npz")
    assert rows["digits-five"]["what"].endswith("missing mnist, svhn, synthdigits, mnist-m")
    assert all(row["what"] for row in rows.values())


def test_show_is_the_matrix_of_the_federation(fedskew, monkeypatch):
    words = ("--set", "partition=llt", "--set", "alpha=0.9", "--set", "seed=3")
    federation = federate(DataSettings(partition="llt", alpha=0.9), 3)
    content = json.loads(fedskew("data", "show", *words, "--json")[1])
    assert content["counts"] == federation.counts_KC.tolist()
    assert content["hash"] == federation.hash
    monkeypatch.setenv("COLUMNS", "40")
    status, output, _ = fedskew("data", "show", *words)
    rows = [line.split() for line in output.splitlines() if line.strip()[:1].isdecimal()]
    cells = [[int(cell) for cell in row[1:11]] for row in rows[:10]]
    assert status == 0 and cells == content["counts"], "no number is cut"


def test_a_partition_is_saved_and_shown_again(tmp_path, fedskew):
    file = tmp_path / "partition.json"
    words = ("--set", "clients=3", "--set", "seed=7")
    assert fedskew("data", "save-partition", file, *words)[0] == 0
    _, output, _ = fedskew("data", "show", "--set", f"partition-file={file}", "--json")
    assert json.loads(output)["hash"] == federate(DataSettings(clients=3), 7).hash


def test_split_writes_what_each_client_holds(tmp_path, fedskew):
    names = ["digits-plain", "digits-faint", "digits-blurred", "digits-noisy"]
    sites = tmp_path / "sites"
    status, output, _ = fedskew("data", "export-sites", "digits-scanners", sites, "--sites", 4)
    same_samples(DataSettings("digits-scanners"), sites, names)
    words = shlex.split(output.splitlines()[-1])
    assert status == 0 and words[:3] == ["fedskew", "federation", "new"]
    stated = dict(zip(words[4::2], words[5::2], strict=True))
    assert stated["--input-shape"] == "1x8x8" and stated["--mean"] == stated["--std"] == "0.5"
    assert stated["--classes"] == "0,1,2,3,4,5,6,7,8,9"
    again = ("digits-scanners", sites, "--sites", 4)
    assert fedskew("data", "export-sites", *again)[0] == 2, "nothing is written over"


def same_samples(settings: DataSettings, sites: Path, names: list[str]) -> None:
    """Assert that each site's folder has what its client holds."""
    federation, resolved = federate(settings, 0), resolve(settings)
    assert sorted(path.name for path in sites.iterdir() if path.is_dir()) == sorted(names)
    shape = {"classes": resolved.classes, "input_shape": resolved.input_shape}
    for client, name in enumerate(names):
        data = f"npz:{sites / name / 'data.npz'}"
        site = federate(DataSettings(data, partition="pooled", **shape), 0)
        pairs = [(federation.train(client), site.train(0)), (federation.test(client), site.test())]
        for mine, theirs in pairs:
            assert torch.equal(mine.inputs_N, theirs.inputs_N)
            assert torch.equal(mine.labels_N, theirs.labels_N)


def test_copies_are_their_owner_s(tmp_path):
    place, images = tmp_path / "cache", np.zeros((4, 4, 4), np.uint8)
    arrays = {"train_images": images, "test_images": images, "test_labels": [0] * 4}
    np.savez(tmp_path / "own.npz", **arrays, train_labels=[0, 1, 0, 1])
    shape = {"classes": "2", "input_shape": "1x4x4"}
    load(DataSettings(f"npz:{tmp_path / 'own.npz'}", **shape, cache=str(place)))
    (copy,) = place.iterdir()
    assert {path.stat().st_mode & 0o777 for path in (place, copy)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in copy.iterdir()} == {0o600}
