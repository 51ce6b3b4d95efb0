"""flwr's own SuperLink and SuperNodes on this machine, with nothing of FedSkew's between them and an app."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedskew.engines.processes import LaunchFailed, free_port

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PATIENCE = 900.0
"""Seconds until a run has to be over."""
START_TIMEOUT = 60.0
"""Seconds until a process has to listen."""
ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
}


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


class StockNodes:
    """A SuperLink and its SuperNodes, from entering to leaving the context. Logs are in `work`, a folder a process."""

    def __init__(self, work: Path, node_configs: Sequence[str]) -> None:
        """`node_configs` has the --node-config of each SuperNode."""
        self.work, self.node_configs = work, node_configs
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "127.0.0.1",
        }

    def __enter__(self) -> "StockNodes":
        self.work.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.user = self.work / "user"
        self.user.mkdir()
        (self.user / "config.toml").write_text(
            f'[superlink]\ndefault = "try"\n\n[superlink.try]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        try:
            words = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
            link = self.start("superlink", *words)
            listening(link, port, "the SuperLink", self.work / "superlink" / "log")
            for number, config in enumerate(self.node_configs):
                words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
                words += ["--host", "127.0.0.1", "--port", str(free_port())]
                self.start(f"node{number}", *words, "--node-config", config)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command with a home of its own, where its log is as well."""
        home = self.work / name
        home.mkdir()
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                env={**self.environment, "FLWR_HOME": str(home)},
                cwd=home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, app: Path, run_config: str) -> str:
        """Run an app to its end and return what it printed. flwr does not say by its status whether it succeeded."""
        command = [str(BIN / "flwr"), "run", str(app), "try", "--stream"]
        done = subprocess.run(
            [*command, "--run-config", run_config],
            env={**self.environment, "FLWR_HOME": str(self.user)},
            cwd=self.user,
            timeout=PATIENCE,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    def end(self) -> None:
        """End all processes."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
