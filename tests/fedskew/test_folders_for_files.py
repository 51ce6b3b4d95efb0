"""A folder where a file belongs, and the other way round: one sentence that names it, whatever reads or writes it."""

import shutil

import numpy as np
import pytest

METHOD = {"method": "fedbn", "model": "mlp-bn", "batch-limit": 1, "rounds": 2}
RUN = [
    "--engine",
    "inprocess",
    *(word for key, value in METHOD.items() for word in ("--set", f"{key}={value}")),
]

OWN = ["--set", "classes=2", "--set", "input-shape=1x8x8", "--set", "model=mlp-bn"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A results folder with one finished run, which is exported."""
    from fedskew.engines import execute
    from fedskew.export import from_run
    from server_app.run_folder import RunFolder
    from server_app.settings import parse

    results = tmp_path_factory.mktemp("whole")
    settings = parse({**METHOD, "results": str(results)})
    execute(settings, "inprocess", lambda line: None)
    trained = from_run.TrainedRun(RunFolder(settings.folder), "", False)
    from_run.export(trained, settings.folder / "export" / trained.model, False)
    return results


@pytest.fixture
def run(whole, tmp_path):
    """The folder of a run of the test's own."""
    shutil.copytree(whole, tmp_path / "results")
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
    assert any(
        words in errors
        for words in (
            "is a folder",
            "is no folder",
            "no such",
            "cannot be",
            "must be a folder",
            "it must hold",
        )
    )


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    "name", ["settings.json", "rounds.jsonl", "summary.json", "checkpoint.safetensors"]
)
def test_a_run_s_files(run, fedskew, name, finished):
    if not finished:
        (run / "summary.json").unlink()
    file = folder_for(run / name)
    refused(fedskew("run", *RUN, "--results", run.parent), file)
    assert (file / "something").exists()


COMMANDS = {
    "partition-file": lambda place: ["run", *RUN, "--set", f"partition-file={place}"],
    "data": lambda place: ["run", "--engine", "inprocess", "--set", f"dataset=npz:{place}", *OWN],
    "check": lambda place: ["data", "check", place],
    "save-partition": lambda place: ["data", "save-partition", place],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_names(run, fedskew, name):
    np.savez(run / "inputs.npz", images=np.zeros((2, 8, 8), np.uint8))
    place = folder_for(run / ("folder.csv" if name == "--output" else "folder.png"))
    refused(fedskew(*COMMANDS[name](place)), place)


def test_a_file_where_a_folder_belongs(run, fedskew):
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    np.savez(
        run / "own.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    (file := run / "file").write_text("")
    refused(fedskew("export", run, "--output", file), file)
    refused(fedskew("predict", file, file), file)
    refused(fedskew("report", "--results", file), file)
    refused(fedskew("run", "--results", file), file)
    refused(fedskew("run", *OWN, "--set", f"dataset=folder:{file}"), file)
    refused(
        fedskew("run", *OWN, "--set", f"dataset=npz:{run / 'own.npz'}", "--set", f"cache={file}"),
        file,
    )
