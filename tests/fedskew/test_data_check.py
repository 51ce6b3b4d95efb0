"""`fedskew data`: check takes or refuses data as users bring them, and every command that it prints works."""

import json
import re
import shlex
import subprocess

import data_as_found as made
import numpy as np
import pytest
import torch

from data import DataSettings, federate, load
from data.readers.catalog import ALIASES, KNOWN
from data.text import name_list
from server_app.settings import parse, parse_texts


@pytest.mark.parametrize("name", made.CASES)
def test_the_answer(tmp_path, fedskew, name):
    """Once what refusals name is stated, the last line's settings load the data and deal them out."""
    case = made.CASES[name]
    if case.module:
        pytest.importorskip(case.module)
    path = case.build(tmp_path)
    settled = []
    for setting in case.settles:
        status, _, errors = fedskew("data", "check", path, *settled)
        assert (status, errors.count("\n")) == (2, 1) and "Traceback" not in errors
        (named, *_) = re.findall(rf"--set '?({setting}[^\s']*)", errors)
        settled += ["--set", named.rstrip(",.:")]
    status, output, errors = fedskew("data", "check", path, *settled)
    assert status == 0, errors
    assert not [words for words in case.notes if words not in output]
    command = shlex.split(output.splitlines()[-1])
    assert command[:2] == ["fedskew", "run"]
    stated = parse_texts(word for word in command if "=" in word)
    settings = parse({**stated, "cache": str(tmp_path / "cache")})
    data = load(settings.data)
    assert len(data.train.labels) and len(data.test.labels)
    assert federate(settings.data, 0).counts_KC.sum() == len(data.train.labels)


def test_it_says_where_the_default_partition_will_not_do(tmp_path, fedskew):
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5), np.uint8)
    arrays = {"train_images": images, "train_labels": np.arange(20) % 2}
    arrays |= {"test_images": 255 - images, "test_labels": np.zeros(20, int)}
    np.savez(tmp_path / "few.npz", **arrays)
    status, output, _ = fedskew("data", "check", tmp_path / "few.npz")
    assert status == 0 and "With the default partition it will not: min-samples = 10" in output
    assert output.splitlines()[-1].endswith("--set 'partition=iid' --set 'clients=2'")


QUICK = ("--set", "rounds=1", "--set", "local-epochs=1", "--engine", "inprocess")
NORTH, SOUTH = "St. Mary, north", "it's south"


def domains(folder):
    """Two hospitals' folders of classes: one has a class that the other lacks, none says who tests."""
    study = folder / "study"
    study.mkdir()
    for site, classes in ((NORTH, ("cat", "dog")), (SOUTH, ("bird", "cat", "dog"))):
        build = made.tree(made.eight_bits, ".png", classes, splits=("",))
        build(folder / site).rename(study / site)
    return f"domains:{name_list([f'folder:{study / SOUTH}', f'folder:{study / NORTH}'])}"


def incomplete(folder):
    """A table with a row without a label."""
    path = made.cells("size,label,site,patient")(folder)
    path.write_text(path.read_text() + "\n7,,N,70")
    return path


FAST = {
    "table with an empty cell": incomplete,
    "npz of 12 bits": made.npz(made.sixteen_bit_arrays(16)),
}
KINDS = {
    **FAST,
    "table of images": made.rows("path", "label", "diagnosis", "site"),
    "domains": domains,
    "dicom": made.tree(made.dicom("CT_small.dcm"), ".dcm"),
    "nifti": made.tree(made.nifti((6, 5, 4)), ".nii"),
}
"""By name what makes the data."""


def words_of(line):
    """Return the words that a shell makes of a command line."""
    script = f"printf '%s\\0' {line}"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    return said.split("\0")[:-1]


def printed(output):
    """Return the commands of an output, each as its words after `fedskew`."""
    lines = [line for line in output.splitlines() if line.startswith("fedskew ")]
    return [words_of(line)[1:] for line in lines]


def named_settings(text):
    """Return the settings KEY=VALUE that sentences name, without those whose value the user has to find."""
    found = re.findall(r"--set ((?:'[^']*'|\"[^\"]*\"|[^\s'\"])+)", text)
    settings = {shlex.split(word.rstrip(",.:;"))[0] for word in found}
    return {setting for setting in settings if not re.search("NAME|NUMBER|LOW,HIGH", setting)}


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in FAST]


@pytest.mark.parametrize("kind", [*FAST, *SLOW])
def test_every_command_that_it_prints_works(tmp_path, fedskew, kind):
    for name, module in (("dicom", "pydicom"), ("nifti", "nibabel")):
        if kind == name:
            pytest.importorskip(module)
    folder = tmp_path / 'it\'s a "study", new'
    folder.mkdir()
    commands = [["data", "check", str(KINDS[kind](folder))]]
    tried = []
    runs = 0
    while commands:
        words = commands.pop()
        tried.append(words)
        if words[0] == "run":
            more = [*QUICK, "--results", str(tmp_path / f"results-{runs}")]
            status, _, errors = fedskew(*words, *more)
            assert status == 0, (words, errors)
            runs += 1
            continue
        status, output, errors = fedskew(*words)
        new = printed(output)
        # A first proposal may need a second one.
        assert status == 0 or (status == 2 and new), (words, errors)
        proposed = {word for command in new for word in command}
        lines = [*output.splitlines(), errors]
        sentences = [line for line in lines if not line.startswith("fedskew data")]
        for setting in named_settings("\n".join(sentences)):
            assert setting in proposed or setting.removeprefix("dataset=") in proposed, output
        commands += [command for command in new if command not in tried]
    assert runs > 0


def test_what_it_prints_for_hospitals_is_taken_by_the_other_commands(tmp_path, fedskew):
    status, output, _ = fedskew("data", "check", domains(tmp_path))
    (run,) = printed(output)
    assert status == 0 and "classes=bird,cat,dog" in run and "input-shape=1x6x5" in run
    settings = run[1:]
    assert fedskew("run", *settings, "--dry-run")[0] == 0
    status, output, _ = fedskew("data", "show", *settings, "--json")
    assert status == 0 and '"counts": [[6, 6, 7], [0, 6, 6]]' in output
    status, output, _ = fedskew("diagnose", *settings)
    assert status == 0 and "31 samples of 3 classes at 2 sites" in output


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
    assert sorted(path.name for path in sites.iterdir() if path.is_dir()) == sorted(names)
    words = shlex.split(output.splitlines()[-1])
    assert status == 0 and words[:3] == ["fedskew", "federation", "new"]
    stated = dict(zip(words[4::2], words[5::2], strict=True))
    assert stated["--input-shape"] == "1x8x8" and stated["--mean"] == stated["--std"] == "0.5"
    assert stated["--classes"] == "0,1,2,3,4,5,6,7,8,9"
    again = ("digits-scanners", sites, "--sites", 4)
    assert fedskew("data", "export-sites", *again)[0] == 2, "nothing is written over"
    # Each site's folder has what its client holds.
    federation = federate(DataSettings("digits-scanners"), 0)
    shape = {"classes": stated["--classes"], "input_shape": "1x8x8"}
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
