"""`flwr run` as its user types it, on a SuperLink of the test's own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TIMEOUT = 900.0
"""Seconds that a run may take."""


def own_superlink(home: Path) -> dict[str, str]:
    """Return the environment in which `flwr run` starts a SuperLink of its own: with this home, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"FLWR_HOME": str(home), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port)}


def flwr_run(folder: Path, app: Path, *words: str, path: str = "") -> str:
    """Run an app to its end and return what it printed; no process is left.

    The folder is the SuperLink's working directory and home, and the user's home. `path` is Python's path in all
    processes.
    """
    from fedskew.engines.processes import end, mark  # not before conftest.py has imported flwr

    folder.mkdir(parents=True, exist_ok=True)
    flwr = Path(sys.executable).parent / "flwr"
    environment = os.environ | mark(folder) | own_superlink(folder / "home") | {
        "PATH": f"{flwr.parent}{os.pathsep}{os.environ['PATH']}",  # as in an activated environment
        "HOME": str(folder),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    if path:
        environment["PYTHONPATH"] = path
    try:
        done = subprocess.run(
            [str(flwr), "run", str(app), "--stream", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    finally:
        end(folder)
    started = folder / "home" / "local-superlink" / "state.db"
    assert started.exists(), f"it ran in another SuperLink than its own: {done.stdout[-2000:]}"
    return done.stdout + done.stderr
