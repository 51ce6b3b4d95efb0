"""Launching a tiny Flower app: it completes, fails with its own reason, and leaves no process, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import tomli_w
from flwr.common.config import parse_config_args

from fedskew.engines import launcher
from fedskew.engines.flower import LaunchFailed
from fedskew.engines.launcher import federation_words, launch, reason
from fedskew.engines.processes import end, marked
from server_app.lock import FolderBusy

PYPROJECT = """
[project]
name = "tiny"
version = "1.0.0"
description = "A ServerApp that waits, fails or writes its result."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "tiny"
[tool.flwr.app.components]
serverapp = "tiny_server:app"
clientapp = "tiny_client:app"
[tool.flwr.app.config]
result = ""
failure = ""
text = ""
seconds = 0.0
"""
SERVER = """
import os, time
from pathlib import Path
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    print("tiny main in", Path.cwd(), flush=True)
    time.sleep(config["seconds"])
    if config["failure"]:
        raise RuntimeError(config["failure"])
    Path(config["result"] + ".new").write_text(config["text"] + f"|{len(list(grid.get_node_ids()))}")
    os.replace(config["result"] + ".new", config["result"])
    print("tiny done", flush=True)
"""
CLIENT = """
from flwr.clientapp import ClientApp

app = ClientApp()
"""
SCRIPT = """
import sys
from pathlib import Path
from fedskew.engines.launcher import launch

app, folder = map(Path, sys.argv[1:])
result = folder / "result"
launch(app, {"seconds": 100.0, "result": str(result)}, folder, nodes=2, log=folder / "log", result=result)
"""
SENTENCE = "alpha = 0: must be greater than 0"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app"
    path.mkdir()
    for name, text in (
        ("pyproject.toml", PYPROJECT),
        ("tiny_server.py", SERVER),
        ("tiny_client.py", CLIENT),
    ):
        (path / name).write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir()
    yield path
    end(path, 0)


def run(app: Path, folder: Path, **config: bool | int | float | str) -> None:
    result = folder / "result"
    launch(
        app, {"result": str(result), **config}, folder, nodes=3, log=folder / "log", result=result
    )


def started(app: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a process that launches the app for 100 seconds, and return it once Ray's actors are up."""
    words = [sys.executable, "-c", SCRIPT, str(app), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(folder, "ClientAppActor")
    return process


def wait_for(folder: Path, name: str) -> psutil.Process:
    """Return the run's first process with `name` in its command line, once it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in marked(folder):
            try:
                if name in " ".join(process.cmdline()[:2]):
                    return process
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError(f"no {name} after 60 s")


def test_an_earlier_result_is_refused(app: Path, folder: Path) -> None:
    (folder / "result").touch()
    with pytest.raises(ValueError, match="is there already"):
        run(app, folder)


def test_a_folder_that_is_no_app_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(LaunchFailed, match="pip install -e"):
        run(tmp_path, folder)


def test_missing_commands_are_named(
    app: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(LaunchFailed, match="no ray beside"):
        run(app, folder)


def test_what_was_being_written_is_deleted_with_the_processes(
    app: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = folder / ".checkpoint.safetensors.4711"
    partial.touch()
    test_missing_commands_are_named(app, folder, monkeypatch)
    assert not partial.exists()


LISTENING = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[-1]))); time.sleep(60)"


@pytest.mark.parametrize(
    ("command", "name"), [("flower-superlink", "the SuperLink"), ("ray", "Ray")]
)
def test_what_does_not_start_says_why(
    app: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    commands = {
        "ray": "sleep 60",
        "flower-superlink": f'exec {sys.executable} -c "{LISTENING}" "$@"',
    }
    for program, text in {**commands, command: "echo no room for the database; exit 3"}.items():
        (folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (folder / program).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    with pytest.raises(LaunchFailed, match=f"^{name} did not start: no room for the database"):
        run(app, folder)
    assert not marked(folder)


@pytest.mark.parametrize(
    "value", [True, False, 3, -0.5, 1e-05, 1e30, "", 'a "b" \\ c', "two\nlines\t\x7f\x00", "é😀"]
)
def test_settings_survive_on_their_way_through_flwr(
    tmp_path: Path, value: bool | int | float | str
) -> None:
    """As `flwr run --run-config FILE` reads them."""
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"a.b-c": value}), encoding="utf-8")
    read = parse_config_args([str(tmp_path / "run.toml")])
    assert read == {"a.b-c": value}
    assert type(read["a.b-c"]) is type(value)


def test_the_users_federation_config_goes_first() -> None:
    assert federation_words(4, "") == "num-supernodes=4 client-resources-num-cpus=1"
    given = " client-resources-num-cpus=2  backend=\"ray\" init-args-logging-level='a b' "
    expected = (
        "num-supernodes=4 client-resources-num-cpus=2 backend=\"ray\" init-args-logging-level='a b'"
    )
    assert federation_words(4, given) == expected
    for wrong in ("num-supernodes", "num-supernodes = 4", "verbose=true nonsense"):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            federation_words(4, wrong)


TRACEBACK = """\x1b[91mERROR \x1b[0m:     Simulation raised an exception
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
    ^^^
data.rules.SettingError: alpha = 0: must be greater than 0
\x1b[91mERROR \x1b[0m:     Exit Code: 700
"""
BOX = "Using SuperLink\n╭─ Error ─────╮\n│ [code: 15] Invalid run    │\n│ configuration.   │\n╰────╯\n"


@pytest.mark.parametrize(
    ("text", "details", "expected"),
    [
        (
            TRACEBACK,
            "Simulation failed with exception: alpha = 0: must be greater than 0",
            SENTENCE,
        ),
        (TRACEBACK, "", SENTENCE),
        (TRACEBACK, "Simulation failed with exception: ", SENTENCE),
        ("", "Simulation failed with exception: no space (left)", "no space (left)"),
        ("x.Error: a (b\nc\n", "Simulation failed with exception: a (b\nc", "Error: a (b\nc"),
        (BOX, "", "[code: 15] Invalid run configuration."),
        ("", "", ""),
    ],
)
def test_reason(text: str, details: str, expected: str) -> None:
    assert reason(text, details) == expected


@pytest.mark.slow
def test_two_launches_complete_in_one_process(app: Path, folder: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for text in ('say "é"', "again"):
        (folder / "result").unlink(missing_ok=True)
        run(app, folder, text=text)
        assert (folder / "result").read_text().startswith(f"{text}|")
        assert not marked(folder)
    # what the ServerApp printed last may be missing: flwr streams logs with a delay, and the result ends the run
    assert (folder / "log").read_text().count("Successfully started run") == 2
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.slow
def test_a_server_app_that_raises_gives_its_sentence(app: Path, folder: Path) -> None:
    with pytest.raises(LaunchFailed) as failed:
        run(app, folder, failure="alpha = 0: must be greater than 0")
    assert str(failed.value) == SENTENCE
    assert not marked(folder)
    assert "Traceback" in (folder / "log").read_text()


@pytest.mark.slow
def test_an_unknown_key_is_refused_by_flwr(app: Path, folder: Path) -> None:
    with pytest.raises(LaunchFailed, match="Invalid run configuration"):
        run(app, folder, unknown=1)


@pytest.mark.slow
def test_nothing_listens_beyond_this_machine(app: Path, folder: Path) -> None:
    process = started(app, folder)
    listening = {
        (member.name(), socket.laddr.ip)
        for member in marked(folder)
        for socket in member.net_connections()
        if socket.status == psutil.CONN_LISTEN
    }
    process.kill()
    process.communicate()
    assert len(listening) >= 4, "the SuperLink, Ray's server, its node and its agent"
    assert {address.removeprefix("::ffff:") for _, address in listening} == {"127.0.0.1"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything(app: Path, folder: Path, number: signal.Signals) -> None:
    process = started(app, folder)
    assert len(marked(folder)) > 8
    began = time.monotonic()
    for _ in range(3):  # the second and third must not stop the cleaning
        process.send_signal(number)
        time.sleep(0.05)
    errors = process.communicate(timeout=20)[1]
    assert time.monotonic() - began < 5
    assert not marked(folder)
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flwr-simulation", "flwr-simulation, the process"),
        ("flower-superlink", "the SuperLink ended"),
    ],
)
def test_a_killed_process_is_noticed(app: Path, folder: Path, name: str, message: str) -> None:
    process = started(app, folder)
    began = time.monotonic()
    wait_for(folder, name).kill()
    errors = process.communicate(timeout=30)[1]
    assert time.monotonic() - began < 12
    assert f"LaunchFailed: {message}" in errors.splitlines()[-1]
    assert not marked(folder)


@pytest.mark.slow
def test_a_new_launcher_takes_over_from_a_killed_one_only(app: Path, folder: Path) -> None:
    process = started(app, folder)
    with pytest.raises(FolderBusy, match=str(process.pid)):
        run(app, folder)
    assert process.poll() is None
    home = Path(wait_for(folder, "flower-superlink").environ()["FLWR_HOME"])
    process.kill()
    process.communicate()
    left = {member.pid for member in marked(folder)}
    assert left
    run(app, folder, text="mine")
    assert (folder / "result").read_text().startswith("mine|")
    assert not left & set(psutil.pids())
    # Any command that begins later deletes it, so that a test beside this one may have.
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
def test_a_hanging_stream_is_noticed(
    app: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is stopped, so that only flwr's status tells that the run is over."""
    monkeypatch.setattr(launcher, "STATUS_INTERVAL", 2.0)
    start = launcher.Flower.start

    def start_and_stop(
        self: launcher.Flower, command: str, *words: str, output: Path, errors: bool = True
    ) -> subprocess.Popen[bytes]:
        process = start(self, command, *words, output=output, errors=errors)
        if words[0] == "run":
            wait_for(folder, "flwr-simulation")
            process.send_signal(signal.SIGSTOP)
        return process

    monkeypatch.setattr(launcher.Flower, "start", start_and_stop)
    with pytest.raises(LaunchFailed, match="alpha = 0: must be greater than 0"):
        run(app, folder, failure="alpha = 0: must be greater than 0")
    assert not marked(folder)
