"""Starts, checks and stops the coordinator's service. Processes are found by their mark."""

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable

from data.private_files import owner_only
from fedskew.engines.processes import (
    DEFAULTS,
    LaunchFailed,
    end,
    mark,
    marked,
    running,
    search_path,
)
from fedskew.federation.database import damage_of, explained
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.superlink import Control

START_TIMEOUT = 180.0
"""Seconds within which a started service must answer. Its imports take seconds, and longer on a busy machine."""
HANDSHAKE = 2.0
"""The timeout of a TLS handshake with the service in seconds; it usually takes milliseconds."""
SLOW_POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Seconds between two polls of flower-superexec for a run to start. A tenth of that would use a fifth of a core for as
long as the SuperLink runs. This one starts a run up to half a second later."""
CLOSED = 0o077
"""The umask of the services and of the ServerApp, which the SuperLink starts: no access for group and others, as
logs and results contain sites' scores."""
PATIENCE = 5.0
"""Seconds between asking the services to end and killing them."""
LOG = "superlink.log"
"""The service's output, below the folder of its state."""
SERVICE, SERVER_APP = "fedskew.federation.door", "flwr-serverapp"


def superlink_command(folder: FederationFolder) -> list[str]:
    """Return the command line of flwr's SuperLink."""
    certificate, key = folder.server
    database = folder.state / DATABASE
    return [
        "flower-superlink",
        *("--ssl-ca-certfile", str(folder.authority[0].resolve())),
        *("--ssl-certfile", str(certificate.resolve())),
        *("--ssl-keyfile", str(key.resolve())),
        "--enable-supernode-auth",
        *("--host", "127.0.0.1"),
        *("--port", str(folder.coordinator.superlink_port)),
        *("--database", str(database.resolve())),
        "--disable-runtime-dependency-installation",
    ]


def service_command(folder: FederationFolder) -> list[str]:
    """Return the command of the coordinator's one service: the SuperLink with a door for sites."""
    return [sys.executable, "-m", SERVICE, str(folder.path.resolve())]


def environment(folder: FederationFolder) -> dict[str, str]:
    """Return the environment of a service: flwr's home in the federation's folder, no proxy for loopback."""
    home = (folder.state / "home").resolve()
    home.mkdir(mode=0o700, exist_ok=True)
    local = {
        "FLWR_HOME": str(home),
        "PATH": search_path(),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return DEFAULTS | SLOW_POLL | os.environ | mark(folder.path) | local


def up(folder: FederationFolder) -> None:
    """Start the service unless it runs, and register the agreement's sites.

    Raises:
        DataError: the certificates, the agreement or the installed app do not pass `folder.check`.
        LaunchFailed: a service does not start; the message has the end of its log.
    """
    folder.check()
    register(folder, starts=True)


def register(folder: FederationFolder, starts: bool = False) -> None:
    """Register the agreement's sites at the SuperLink once it answers. With `starts`, start it if it does not run.

    Raises:
        LaunchFailed: the SuperLink does not answer in time.
    """
    control = Control(folder)
    with explained(folder):
        wait_for(folder, lambda: control.register(folder.agreement), starts)


def handshake(folder: FederationFolder) -> None:
    """Do a TLS handshake on the sites' port. Raises OSError if the service does not answer.

    A TCP connection alone would not show that: the kernel also accepts connections for a stopped (SIGSTOP) process.
    """
    coordinator = folder.coordinator
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where the service listens on all addresses
    address = loopback.get(coordinator.listen, coordinator.listen), coordinator.port
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate does not name the address at which this machine reaches the service.
    context.check_hostname = False
    # `folder.check` checks the certificate. Here any answer is enough.
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(address, timeout=HANDSHAKE) as connection,
        context.wrap_socket(connection),
    ):
        return


def serve(folder: FederationFolder) -> None:
    """Replace this process by the service."""
    folder.check()
    command = service_command(folder)
    os.chdir(folder.state)
    os.umask(CLOSED)
    os.execve(command[0], command, environment(folder))


def start(folder: FederationFolder) -> None:
    """Start the service, which outlives this process; its output goes to superlink/superlink.log."""
    with owner_only():
        log = (folder.state / LOG).open("ab")
    with log:
        subprocess.Popen(
            service_command(folder),
            cwd=folder.state,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=CLOSED,
        )


def wait_for(folder: FederationFolder, probe: Callable[[], None], starts: bool) -> None:
    """Return once the service answers.

    Args:
        folder: The federation's folder.
        probe: Sends a request to it. Raises OSError if there is no answer.
        starts: Whether to start the service if it does not run.

    Raises:
        LaunchFailed: the service has ended or does not answer in time; the message has the end of its log.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        is_up = bool(running(folder.path, SERVICE))
        # Start it at most once: at the first check, or later if the running one turns out to be just ending.
        if starts and not is_up:
            start(folder)
            is_up = True
            starts = False
        try:
            return probe()
        except OSError as error:  # Unreachable is one, too
            if not is_up or time.monotonic() > deadline:
                log = folder.state / LOG
                output = log.read_text(errors="replace")[-1000:].strip() if log.exists() else ""
                reason = damage_of(folder) or f"the SuperLink is not up ({error}): {output}"
                raise LaunchFailed(reason) from None
        time.sleep(0.2)


def down(folder: FederationFolder) -> bool:
    """End every process of the federation, and return whether there was one."""
    has_processes = bool(marked(folder.path))
    end(folder.path, PATIENCE)
    return has_processes
