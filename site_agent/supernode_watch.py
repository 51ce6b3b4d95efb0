"""The site's SuperNode: the process that has the node key and talks to the coordinator; it is kept running."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from data.log_files import rotate
from site_agent.supernode import PROGRAM, child_command

logger = logging.getLogger("fedskew.site")
LOG = "supernode.log"
SECONDS_TO_END = 3.0
LONGEST_WAIT = 10.0
"""flwr refuses a SuperNode that was killed for up to 60 s (exit status 1, code 2004), so waits stay short."""
LIVED_WELL = 60.0
"""Seconds that a SuperNode lived after which the next wait is the shortest again."""


def command_of(address: str, key: Path, ca: Path, port: int, secret: Path) -> list[str]:
    """Return the command of a SuperNode that leaves its tasks to another process on loopback with the secret."""
    return [
        *(sys.executable, "-m", f"{__package__}.supernode", PROGRAM),
        *("--superlink", address),
        *("--root-certificates", str(ca)),
        *("--auth-supernode-private-key", str(key)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(secret)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of flwr's processes: a home of their own, no proxy for loopback, no telemetry."""
    of_user = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    without_proxy = f"{of_user},127.0.0.1" if of_user else "127.0.0.1"
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": without_proxy,
        "no_proxy": without_proxy,
    }


class SuperNode:
    """The SuperNode's process; whenever it ends it is started again, after waits of 1, 2, 4, 8 and then 10 seconds."""

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command = command
        self.home = home
        self.clock = clock
        self.process: subprocess.Popen[bytes] | None = None
        self.began = self.due = 0.0
        self.wait = 0.5

    def restart_if_dead(self) -> None:
        """Start the process if it has ended and its next start is due; returns at once. Its log rotates."""
        with suppress(OSError):  # a full disk does not end a site
            rotate(self.home / LOG)
        if self.process is not None and self.process.poll() is None:
            return
        now = self.clock()
        if self.process is not None:
            self.wait = min(2 * self.wait, LONGEST_WAIT)
            if now - self.began > LIVED_WELL:
                self.wait = 1.0
            self.due = now + self.wait
            status = self.process.returncode
            logger.warning(
                "the SuperNode ended (status %s; see %s); again in %g s",
                status,
                self.home / LOG,
                self.wait,
            )
            self.process = None
        if now >= self.due:
            self.began = now
            self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, as a child that ends with this one."""
        child = child_command([*self.command])
        with (self.home / LOG).open("ab") as log:
            return subprocess.Popen(
                child,
                env=environment(self.home),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """End the process: politely, so that the coordinator hears of it, then for good."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":  # python -m site_agent.supernode_watch HOME COMMAND...
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    node = SuperNode(sys.argv[2:], Path(sys.argv[1]))
    try:
        while True:
            node.restart_if_dead()
            time.sleep(0.5)
    finally:
        node.stop()
