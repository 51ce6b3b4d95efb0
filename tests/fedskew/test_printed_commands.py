"""Every command that `fedskew data check` prints can be pasted into a shell, and works."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import FedSkew
from data_as_found import (
    cells,
    dicom,
    eight_bits,
    nifti,
    npz,
    rows,
    sixteen_bit_arrays,
    tree,
)

from data.text import name_list

QUICK = ("--set", "rounds=1", "--set", "local-epochs=1", "--engine", "inprocess")
NORTH, SOUTH = "St. Mary, north", "it's south"


def hospitals(folder: Path) -> Path:
    """A folder of two hospitals' folders of classes: one has a class that the other lacks, none says who tests."""
    for site, classes in ((NORTH, ("cat", "dog")), (SOUTH, ("bird", "cat", "dog"))):
        made = tree(eight_bits, ".png", classes, splits=("",))(folder / site)
        (folder / "study").mkdir(exist_ok=True)
        made.rename(folder / "study" / site)
    return folder / "study"


def domains(folder: Path) -> str:
    study = hospitals(folder)
    return f"domains:{name_list([f'folder:{study / SOUTH}', f'folder:{study / NORTH}'])}"


def incomplete(folder: Path) -> Path:
    """A table with a row without a label."""
    path = cells("size,label,site,patient")(folder)
    path.write_text(path.read_text() + "\n7,,N,70")
    return path


Build = Callable[[Path], Path | str]
KINDS: dict[str, Build] = {
    "table with an empty cell": incomplete,
    "table of images": rows("path", "label", "diagnosis", "site"),
    "domains": domains,
    "npz of 12 bits": npz(sixteen_bit_arrays(16)),
    "dicom": tree(dicom("CT_small.dcm"), ".dcm"),
    "nifti": tree(nifti((6, 5, 4)), ".nii"),
}
"""By name what makes the data."""
FAST = ("table with an empty cell", "npz of 12 bits")


def words_of(line: str) -> list[str]:
    """Return the words that a shell makes of a command line."""
    script = f"printf '%s\\0' {line}"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    return said.split("\0")[:-1]


def printed(output: str) -> list[list[str]]:
    """Return the commands of an output, each as its words after `fedskew`."""
    lines = [line for line in output.splitlines() if line.startswith("fedskew ")]
    return [words_of(line)[1:] for line in lines]


def named_settings(text: str) -> set[str]:
    """Return the settings KEY=VALUE that sentences name, without those whose value the user has to find."""
    found = re.findall(r"--set ((?:'[^']*'|\"[^\"]*\"|[^\s'\"])+)", text)
    settings = {shlex.split(word.rstrip(",.:;"))[0] for word in found}
    return {setting for setting in settings if not re.search("NAME|NUMBER|LOW,HIGH", setting)}


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_every_command_that_check_prints_works(tmp_path: Path, fedskew: FedSkew, kind: str) -> None:
    for name, module in (("dicom", "pydicom"), ("nifti", "nibabel")):
        if kind == name:
            pytest.importorskip(module)
    folder = tmp_path / 'it\'s a "study", new'
    folder.mkdir()
    commands = [["data", "check", str(KINDS[kind](folder))]]
    tried: list[list[str]] = []
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
        sentences = "\n".join(
            line for line in [*output.splitlines(), errors] if not line.startswith("fedskew data")
        )
        for setting in named_settings(sentences):
            assert setting in proposed or setting.removeprefix("dataset=") in proposed, output
        commands += [command for command in new if command not in tried]
    assert runs > 0


def test_what_check_prints_for_hospitals_is_taken_by_the_other_commands(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    dataset = domains(tmp_path)
    status, output, _ = fedskew("data", "check", dataset)
    (run,) = printed(output)
    assert status == 0 and "classes=bird,cat,dog" in run and "input-shape=1x6x5" in run
    settings = run[1:]
    assert fedskew("run", *settings, "--dry-run")[0] == 0
    status, output, _ = fedskew("data", "show", *settings, "--json")
    assert status == 0 and '"counts": [[6, 6, 7], [0, 6, 6]]' in output
    status, output, _ = fedskew("diagnose", *settings)
    assert status == 0 and "31 samples of 3 classes at 2 sites" in output
