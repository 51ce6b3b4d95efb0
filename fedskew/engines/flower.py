"""flwr's and Ray's commands for one run, with a home and a working directory of their own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from client_app.user_code import FOLDER
from fedskew.engines.processes import PATIENCE, end, free_port, mark, running

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
    "RAY_prestart_worker_first_driver": "0",  # idle workers, in which no client runs
    "RAY_worker_niceness": "0",  # 15 gives the clients nothing where the cores have other work
    "PYTHONUNBUFFERED": "1",
}
START_TIMEOUT = 60.0
"""Seconds until the SuperLink and Ray have to listen."""


def search_path() -> str:
    """Return where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class LaunchFailed(RuntimeError):
    """A run that ended without a result, or could not be started; the message is the reason."""


class Flower:
    """flwr's commands on one SuperLink, with their home and their working directory in a temporary folder."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.path = search_path()
        defaults = DEFAULTS | {"RAY_TMPDIR": str(home)}
        own = mark(folder) | {"FLWR_HOME": str(home), "PATH": self.path}
        self.environment = defaults | os.environ | own
        self.environment.setdefault(FOLDER, str(Path.cwd()))  # where the user's own modules are
        self.started: list[subprocess.Popen[bytes]] = []
        (home / "empty").mkdir()  # a neutral working directory: clients import from there first

    def start(
        self,
        command: str,
        *words: str,
        output: Path,
        errors: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Start a command that appends what it prints to the file `output`. Raises LaunchFailed when it is missing."""
        path = shutil.which(command, path=self.path)
        if path is None:
            where = f"beside {sys.executable} or on PATH"
            raise LaunchFailed(f"no {command} {where}: `pip install 'fedskew[simulation]'`")
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

    def ray(self) -> Callable[[], None]:
        """Start Ray where flwr finds it, and return what waits until it listens, or raises LaunchFailed as `listening`.

        flwr itself would start it only when it has imported the app, while a core has nothing to do before that.
        """
        port = free_port()
        output = self.home / "ray.log"
        words = ["start", "--head", "--block", "--include-dashboard=false"]
        words += ["--node-ip-address", "127.0.0.1", "--port", str(port)]
        # By default a fixed port, which a second run on this machine would also want.
        words += ["--ray-client-server-port", str(free_port())]
        process = self.start("ray", *words, output=output)
        self.environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        return partial(listening, process, port, "Ray", output)

    def superlink(self) -> subprocess.Popen[bytes]:
        """Start a SuperLink and return it once it listens. Raises LaunchFailed with its last words when it does not."""
        port = free_port()
        output = self.home / "superlink.log"
        connection = f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(connection)
        words = ["--insecure", "--simulation", "--isolation", "subprocess"]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        process = self.start("flower-superlink", *words, output=output)
        listening(process, port, "the SuperLink", output)
        return process

    def simulation(self) -> psutil.Process | None:
        """Return the process that holds the ServerApp, or None."""
        return next(iter(running(self.folder, "flwr-simulation")), None)

    def status(self) -> tuple[str, str]:
        """Return status and details of the run, both empty when they are not to be had."""
        answer = self.home / "list.json"
        answer.unlink(missing_ok=True)
        words = ["list", "own", "--format", "json"]
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, LookupError):
            self.start("flwr", *words, output=answer, errors=False).wait(timeout=20)
            run = json.loads(answer.read_text())["runs"][0]
            details = str(run["status-details"])
            if details == "N/A":
                details = ""
            return str(run["status"]), details
        return "", ""

    def end(self, patience: float = PATIENCE) -> None:
        """End all processes of the run as `processes.end` does, and delete what they were writing."""
        from server_app.lock import tidy  # with torch

        end(self.folder, patience)
        tidy(self.folder)
        for process in self.started:
            process.wait(timeout=10)


def listening(process: subprocess.Popen[bytes], port: int, name: str, output: Path) -> None:
    """Return once somebody listens on the port. Raises LaunchFailed with the process's last words when nobody does."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            last_words = output.read_text(errors="replace")[-1000:].strip()
            raise LaunchFailed(f"{name} did not start: {last_words}")
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=0.5),
        ):
            return
        time.sleep(0.02)
