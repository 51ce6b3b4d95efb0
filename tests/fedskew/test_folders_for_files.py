"""A folder where a file belongs, and the other way round: one sentence that names it, whatever reads or writes it."""

import pytest

RUN = [
    "run", "--engine", "inprocess",
    *(word for text in ("method=fedbn", "model=mlp-bn", "batch-limit=1", "rounds=1") for word in ("--set", text)),
]  # fmt: skip
OWN = ["--set", "classes=2", "--set", "input-shape=1x8x8"]


@pytest.fixture
def run(tmp_path, fedskew):
    """The folder of a finished run."""
    assert fedskew(*RUN, "--results", tmp_path / "results")[0] == 0
    (folder,) = (tmp_path / "results").iterdir()
    return folder


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


@pytest.mark.parametrize("name", ["settings.json", "rounds.jsonl", "checkpoint.safetensors"])
def test_a_run_s_files(run, fedskew, name):
    (run / "summary.json").unlink()
    file = folder_for(run / name)
    refused(fedskew(*RUN, "--results", run.parent), file)
    assert (file / "something").exists()


COMMANDS = {
    "partition-file": lambda place: [*RUN, "--set", f"partition-file={place}"],
    "data": lambda place: [*RUN, "--set", f"dataset=npz:{place}", *OWN],
    "check": lambda place: ["data", "check", place],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_names(tmp_path, fedskew, name):
    place = folder_for(tmp_path / "folder.npz")
    refused(fedskew(*COMMANDS[name](place)), place)


def test_a_file_where_a_folder_belongs(run, fedskew):
    (file := run / "file").write_text("")
    refused(fedskew("export", run, "--output", file), file)
    refused(fedskew("predict", file, file), file)
    refused(fedskew("report", "--results", file), file)
    refused(fedskew(*RUN, *OWN, "--set", f"dataset=folder:{file}"), file)
