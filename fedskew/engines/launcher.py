"""Run a Flower app by `flwr run` on a SuperLink of its own, and tell truly whether it completed.

flwr's own way has four traps, each avoided here: `flwr run --stream` exits 0 though the ServerApp raised; its daemon, a
SuperLink, stays for ever, with the environment and working directory of the first run; clients import from that working
directory; and after the last round five seconds pass in shutting down. Here a result file is the one proof of success.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import tomli_w

from client_app.app_files import staged
from client_app.own_code import FOLDER
from data.text import spoken
from fedskew.engines.processes import SHORTEST, alive, claim, clear_leftovers, end, free_port, mark, note_owner, running
from fedskew.interrupt import one_interrupt

DEFAULTS = {  # the user's environment goes before them
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run installs torch anew, and fails offline
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux as well: Ray then listens on the loopback address alone
    "RAY_raylet_start_wait_time_s": "120",  # 30 are too few where the cores have other work
    "RAY_prestart_worker_first_driver": "0",  # idle workers, which no client is played in
    "RAY_worker_niceness": "0",  # 15 gives the clients nothing where the cores have other work
    "PYTHONUNBUFFERED": "1",
}
SHORT = 32
"""Length of a folder's name below which Ray's sockets in it stay within the 107 bytes that a socket's path may have."""
PREFIX = "fedskew-"
START_TIMEOUT = 60.0
"""Seconds until the SuperLink has to listen."""
LOG_LAG = 0.6
"""Seconds by which flwr's log stream is behind."""
FAREWELL = 4.0
"""Seconds the log stream has to end after the simulation process ended; after kill -9 flwr itself takes 42 s."""
STATUS_INTERVAL = 30.0
"""Seconds between two questions for the run's status, in case the stream hangs; one costs a second of CPU time."""


class LaunchFailed(RuntimeError):
    """A run that ended without a result, or could not be started; the message is the reason."""


def launch(
    app: Path,
    run_config: Mapping[str, bool | int | float | str],
    folder: Path,
    *,
    nodes: int,
    federation_config: str = "",
    log: Path,
    result: Path,
) -> None:
    """Run the Flower app in the folder `app`, and return once the file `result` is there.

    The app's ServerApp must write `result` atomically and as its last act: at that moment all processes are ended.
    `folder` is the run's folder: one launcher at a time may work on it. `federation_config` is in the form of
    `flwr run --federation-config` and goes before `nodes` and the one CPU a client. Output is appended to `log`.

    Raises LaunchFailed when the run ended without a result or could not be started; FolderBusy when another launcher
    works on `folder`; ValueError when `result` is there already or federation_config is no list of KEY=VALUE;
    KeyboardInterrupt on Ctrl-C, SIGTERM or a closed terminal. No process of the run is left in any of these cases.
    """
    if result.exists():
        raise ValueError(f"{result} is there already: a result of this run could not be told from it")
    if not (app / "pyproject.toml").is_file():
        raise LaunchFailed(f"no pyproject.toml in {app}: the Ray engine needs a clone installed by `pip install -e .`")
    federation = federation_words(nodes, federation_config)
    clear_leftovers()
    temporary_folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=short_folder(), ignore_cleanup_errors=True)
    with one_interrupt(), temporary_folder as temporary:
        note_owner(Path(temporary))
        settings = Path(temporary, "run.toml")
        settings.write_text(tomli_w.dumps(run_config), encoding="utf-8")
        flower = _Flower(Path(temporary), folder)
        claim(folder)
        options = ["--stream", "--run-config", str(settings), "--federation-config", federation]
        try:
            try:
                _run(flower, [str(staged(app.resolve(), flower.home / "app")), "own", *options], log, result)
            finally:
                flower.end()
        except KeyboardInterrupt:
            flower.end()  # the interrupt may have hit the cleaning; there is only one, so nothing can hit this
            raise


def short_folder() -> str:
    """Return where temporary folders go, or /tmp where that is too long a name for Ray's sockets."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + len(f"/{PREFIX}xxxxxxxx") < SHORT else SHORTEST


class _Flower:
    """flwr's commands on one SuperLink, with their home and their working directory in a temporary folder."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        defaults = DEFAULTS | {"RAY_TMPDIR": str(home)}
        self.environment = defaults | os.environ | mark(folder) | {"FLWR_HOME": str(home), "PATH": self.path}
        self.environment.setdefault(FOLDER, str(Path.cwd()))  # where the user's own modules lie
        self.started: list[subprocess.Popen[bytes]] = []
        (home / "empty").mkdir()  # a neutral working directory: clients import from there first

    def start(self, command: str, *words: str, output: Path, errors: bool = True) -> subprocess.Popen[bytes]:
        """Start a command that appends what it prints to the file `output`. Raises LaunchFailed when it is missing."""
        if (path := shutil.which(command, path=self.path)) is None:
            raise LaunchFailed(f"no {command} beside {sys.executable} or on PATH: `pip install 'flwr[simulation]'`")
        with output.open("ab") as file:
            process = subprocess.Popen(
                [path, *words],
                cwd=self.home / "empty",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the launcher only, which ends the others
            )
        self.started.append(process)
        return process

    def superlink(self) -> subprocess.Popen[bytes]:
        """Start a SuperLink and return it once it listens. Raises LaunchFailed with its last words when it does not."""
        port = free_port()
        connection = f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(connection)
        words = f"--insecure --simulation --isolation subprocess --host 127.0.0.1 --port {port}".split()
        output = self.home / "superlink.log"
        process = self.start("flower-superlink", *words, output=output)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise LaunchFailed(f"the SuperLink did not start: {output.read_text(errors='replace')[-1000:].strip()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
                return process
            time.sleep(0.02)

    def simulation(self) -> psutil.Process | None:
        """Return the process that holds the ServerApp, or None."""
        return next(iter(running(self.folder, "flwr-simulation")), None)

    def status(self) -> tuple[str, str]:
        """Return status and details of the run, both empty when they are not to be had."""
        answer = self.home / "list.json"
        answer.unlink(missing_ok=True)
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, LookupError):
            self.start("flwr", "list", "own", "--format", "json", output=answer, errors=False).wait(timeout=20)
            run = json.loads(answer.read_text())["runs"][0]
            details = str(run["status-details"])
            return str(run["status"]), "" if details == "N/A" else details
        return "", ""

    def end(self) -> None:
        """End all processes of the run, and delete what they were writing."""
        from server_app.lock import tidy  # with torch

        end(self.folder)
        tidy(self.folder)
        for process in self.started:
            process.wait(timeout=10)


def _run(flower: _Flower, words: list[str], log: Path, result: Path) -> None:
    """Start `flwr run` with `words` and wait for the run's end. Raises LaunchFailed when there is no result then."""
    logged = log.stat().st_size if log.exists() else 0
    link = flower.superlink()
    stream = flower.start("flwr", "run", *words, output=log)
    died = _wait(flower, link, stream, result)
    if result.exists():
        time.sleep(LOG_LAG)
        return
    status, details = flower.status() if link.poll() is None else ("", "")
    with log.open("rb") as file:
        file.seek(logged)
        text = file.read().decode(errors="replace")
    with log.open("ab") as file:  # what a crash of the interpreter printed is only there
        file.write(b"\n--- SuperLink ---\n" + (flower.home / "superlink.log").read_bytes())
    if died and not details:
        raise LaunchFailed(died)
    raise LaunchFailed(reason(text, details) or f"the run ended without {result}: {status or 'status unknown'}")


def _wait(flower: _Flower, link: subprocess.Popen[bytes], stream: subprocess.Popen[bytes], result: Path) -> str:
    """Return at the result or the run's end; the answer is a sentence when a process died before its time, else ""."""
    simulation: psutil.Process | None = None
    looked = asked = time.monotonic()
    gone = float("inf")
    while not result.exists():
        now = time.monotonic()
        if link.poll() is not None:
            return "the SuperLink ended before the run did: was it killed?"
        if stream.poll() is not None:
            return ""
        if simulation is None and now - looked > 0.5:
            looked, simulation = now, flower.simulation()
        if simulation is not None and not alive(simulation):
            gone = min(gone, now)
        if now - gone > FAREWELL:
            return "flwr-simulation, the process of the ServerApp, ended without a result: killed, or out of memory?"
        if now - asked > STATUS_INTERVAL:
            if flower.status()[0].startswith("finished"):
                return ""
            asked = time.monotonic()
        time.sleep(0.05)
    return ""


def reason(text: str, details: str) -> str:
    """Return why a run failed, in its exception's own words, or "" when neither says why.

    `text` is what `flwr run --stream` printed, `details` the run's status-details: str(exception) behind a preamble.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    details = re.sub(r"^\w+ failed with exception: ?", "", details.strip())
    if details:  # the exception's name is in the log only
        first = re.escape(details.splitlines()[0])
        kinds = re.findall(rf"^([\w.]+): {first}$", text, re.MULTILINE)
        return spoken(kinds[-1], details) if kinds else details
    if box := re.findall(r"^│ (.*?) *│$", text.partition("╭─ Error")[2], re.MULTILINE):  # refused before it ran
        return " ".join(box)
    lasts = re.findall(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+([\w.]+)(?:: )?(.*)$", text, re.MULTILINE)
    return spoken(*lasts[-1]) if lasts else ""


def federation_words(nodes: int, given: str) -> str:
    """Return the federation config: `nodes`, one CPU a client, and over both what is `given`.

    Raises ValueError when `given` is no list of KEY=VALUE.
    """
    pair = r"([\w-]+)=('[^']*'|\"[^\"]*\"|\S+)"
    if re.sub(pair, "", given).strip():
        raise ValueError(f"federation-config = {given!r}: must be KEY=VALUE, separated by spaces")
    merged = {"num-supernodes": str(nodes), "client-resources-num-cpus": "1"} | dict(re.findall(pair, given))
    return " ".join(f"{key}={value}" for key, value in merged.items())
