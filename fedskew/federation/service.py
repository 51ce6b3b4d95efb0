"""Starts, checks and stops the coordinator's service. `python -m fedskew.federation.service FOLDER` is the service.

Processes are found by their mark.
"""

import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

from data.files import owner_only, rotate
from fedskew.engines.processes import (
    DEFAULTS,
    LaunchFailed,
    end,
    mark,
    marked,
    running,
    search_path,
)
from fedskew.federation.control import Control
from fedskew.federation.folder import Coordinator, FederationFolder

log = logging.getLogger("fedskew.door")
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
ROTATION = 60.0
"""Seconds between two looks at the size of the service's log."""
SERVICE, SERVER_APP = "fedskew.federation.service", "flwr-serverapp"


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
    """Register the agreement's sites at the SuperLink once it answers.

    Args:
        folder: The federation's folder.
        starts: Whether to start the service if it does not run.

    Raises:
        LaunchFailed: the service has ended or does not answer in time; the message has the end of its log.
    """
    control = Control(folder)
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        is_up = bool(running(folder.path, SERVICE))
        # Start it at most once: at the first check, or later if the running one turns out to be just ending.
        if starts and not is_up:
            start(folder)
            is_up = True
            starts = False
        try:
            return control.register(folder.agreement)
        except OSError as error:  # Unreachable is one, too
            if not is_up or time.monotonic() > deadline:
                output = ""
                if folder.log.exists():
                    output = folder.log.read_text(errors="replace")[-1000:].strip()
                raise LaunchFailed(f"the SuperLink is not up ({error}): {output}") from None
        time.sleep(0.2)


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
    folder.make_state()
    # Both first: the folder's path may be relative to the working folder.
    command, variables = service_command(folder), environment(folder)
    os.chdir(folder.state)
    os.umask(CLOSED)
    os.execve(command[0], command, variables)


def start(folder: FederationFolder) -> None:
    """Start the service, which outlives this process; its output goes to superlink/superlink.log."""
    with owner_only():
        output = folder.log.open("ab")
    with output:
        subprocess.Popen(
            service_command(folder),
            cwd=folder.state,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=CLOSED,
        )


def down(folder: FederationFolder) -> bool:
    """End every process of the federation, and return whether there was one."""
    has_processes = bool(marked(folder.path))
    end(folder.path, PATIENCE)
    return has_processes


def superlink_command(folder: FederationFolder) -> list[str]:
    """Return the command line of flwr's SuperLink; the folder's path is absolute."""
    certificate, key = folder.server
    options = {
        "--ssl-ca-certfile": folder.authority[0],
        "--ssl-certfile": certificate,
        "--ssl-keyfile": key,
        "--host": "127.0.0.1",
        "--port": folder.coordinator.superlink_port,
        "--database": folder.database,
    }
    words = ["flower-superlink", "--enable-supernode-auth"]
    for option, value in options.items():
        words += [option, str(value)]
    return [*words, "--disable-runtime-dependency-installation"]


def keep_log_small(file: Path) -> None:
    """Rotate the service's own log for as long as the process lives."""
    while True:
        time.sleep(ROTATION)
        try:
            rotate(file)
        except OSError as error:
            log.error("%s: cannot be rotated: %s", file, error.strerror)


def sites_socket(coordinator: Coordinator) -> socket.socket:
    """Return what listens for sites."""
    family = socket.AF_INET6 if ":" in coordinator.listen else socket.AF_INET
    return socket.create_server((coordinator.listen, coordinator.port), family=family)


def main() -> None:
    """Serve until a signal arrives."""
    # Who starts or ends the service needs none of them.
    import uvicorn

    from fedskew.federation.door import Door
    from fedskew.federation.flower_internals import superlink_of

    folder = FederationFolder(Path(sys.argv[1]))
    coordinator = folder.coordinator
    # This logger alone: flwr's own lines of every request would be a second log.
    to_file = logging.StreamHandler(sys.stdout)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(to_file)
    log.setLevel(logging.INFO)
    threading.Thread(target=keep_log_small, args=(folder.log,), daemon=True).start()
    certificate, key = folder.server
    config = uvicorn.Config(
        Door(superlink_of(superlink_command(folder)), folder),
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        ws="none",
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=4096,
    )
    doors = [
        socket.create_server(("127.0.0.1", coordinator.superlink_port)),
        sites_socket(coordinator),
    ]
    uvicorn.Server(config).run(sockets=doors)


if __name__ == "__main__":
    main()
