"""A folder where a file belongs, and the other way round: one sentence that names it, whatever reads or writes it."""

import pytest

RUN = [
    "run", "--engine", "inprocess",
    *(word for text in ("method=fedbn", "model=mlp-bn", "batch-limit=1", "rounds=1") for word in ("--set", text)),
]  # fmt: skip
OWN = ["--set", "classes=2", "--set", "input-shape=1x8x8"]


def folder_for(file):
    """Put a folder that holds something in a file's place."""
    file.unlink(missing_ok=True)
    file.mkdir(parents=True)
    (file / "something").write_text("")
    return file


def refused(answer, file):
    """Assert that a command has named the file in one sentence."""
    status, _, errors = answer
    assert status == 2 and errors.count("\n") == 1 and str(file) in errors


COMMANDS = {
    "partition-file": lambda place: [*RUN, "--set", f"partition-file={place}"],
    "data": lambda place: [*RUN, "--set", f"dataset=npz:{place}", *OWN],
    "check": lambda place: ["data", "check", place],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_names(tmp_path, fedskew, name):
    place = folder_for(tmp_path / "folder.npz")
    refused(fedskew(*COMMANDS[name](place)), place)


def test_a_file_where_a_folder_belongs(tmp_path, fedskew):
    (file := tmp_path / "file").write_text("")
    refused(fedskew("predict", file, file), file)
    refused(fedskew("report", "--results", file), file)
    refused(fedskew(*RUN, *OWN, "--set", f"dataset=folder:{file}"), file)
