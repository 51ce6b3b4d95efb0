"""`fedskew data check`: it takes or refuses data as users bring them, and every command that it prints works."""

import re
import shlex
import subprocess

import numpy as np
import pytest
from data_as_found import (
    CASES,
    cells,
    dicom,
    eight_bits,
    nifti,
    npz,
    rows,
    sixteen_bit_arrays,
    tree,
)

from data import federate, load
from data.text import name_list
from server_app.settings import parse, parse_text


@pytest.mark.parametrize("name", CASES)
def test_the_answer(tmp_path, fedskew, name):
    """Once what refusals name is stated, the last line's settings load the data and deal them out."""
    case = CASES[name]
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
    stated = dict(parse_text(word) for word in command if "=" in word)
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
        made = tree(eight_bits, ".png", classes, splits=("",))(folder / site)
        made.rename(study / site)
    return f"domains:{name_list([f'folder:{study / SOUTH}', f'folder:{study / NORTH}'])}"


def incomplete(folder):
    """A table with a row without a label."""
    path = cells("size,label,site,patient")(folder)
    path.write_text(path.read_text() + "\n7,,N,70")
    return path


FAST = {"table with an empty cell": incomplete, "npz of 12 bits": npz(sixteen_bit_arrays(16))}
KINDS = {
    **FAST,
    "table of images": rows("path", "label", "diagnosis", "site"),
    "domains": domains,
    "dicom": tree(dicom("CT_small.dcm"), ".dcm"),
    "nifti": tree(nifti((6, 5, 4)), ".nii"),
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
