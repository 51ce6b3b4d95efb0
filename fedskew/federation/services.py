"""Starts, checks and stops the coordinator's two services, SuperLink and gateway. Processes are found by their mark."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from data.private_files import owner_only
from fedskew.engines.flower import DEFAULTS, LaunchFailed, search_path
from fedskew.engines.processes import end, mark, marked, running
from fedskew.federation import PASSPHRASE
from fedskew.federation.database import damage_of, explained
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.superlink import Control

START_TIMEOUT = 180.0
"""Seconds within which a started service must answer. Its imports take seconds, and longer on a busy machine."""
HANDSHAKE = 2.0
"""The timeout of a TLS handshake with the gateway in seconds; it usually takes milliseconds."""
SLOW_POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Seconds between two polls of flower-superexec for a run to start. A tenth of that would use a fifth of a core for as
long as the SuperLink runs. This one starts a run up to half a second later."""
CLOSED = 0o077
"""The umask of the services and of the ServerApp, which the SuperLink starts: no access for group and others, as
logs and results contain sites' scores."""
PATIENCE = 5.0
"""Seconds between asking the services to end and killing them."""
SUPERLINK, GATEWAY, SERVER_APP = "flower-superlink", "fedskew.federation.gateway", "flwr-serverapp"
SUPEREXEC = "flower-superexec"
"""The SuperLink's child process that starts a ServerApp for each run. The SuperLink never restarts it."""


def superlink_command(folder: FederationFolder) -> list[str]:
    """Return the command of the SuperLink. It listens on loopback only."""
    program = shutil.which(SUPERLINK, path=search_path()) or SUPERLINK
    certificate, key = folder.server
    database = folder.state / DATABASE
    return [
        program,
        *("--ssl-ca-certfile", str(folder.authority[0].resolve())),
        *("--ssl-certfile", str(certificate.resolve())),
        *("--ssl-keyfile", str(key.resolve())),
        "--enable-supernode-auth",
        *("--host", "127.0.0.1"),
        *("--port", str(folder.coordinator.superlink_port)),
        *("--database", str(database.resolve())),
        "--disable-runtime-dependency-installation",
    ]


def gateway_command(folder: FederationFolder) -> list[str]:
    """Return the command of the gateway. Its port is the only one that sites can reach."""
    return [sys.executable, "-m", GATEWAY, str(folder.path.resolve())]


def superexec_command(folder: FederationFolder, superlink: psutil.Process) -> list[str]:
    """Return the command with which `superlink` starts its flower-superexec, which ends with that process."""
    program = shutil.which(SUPEREXEC, path=search_path()) or SUPEREXEC
    return [
        program,
        *("--root-certificates", str(folder.authority[0].resolve())),
        *("--runtime-api-address", f"127.0.0.1:{folder.coordinator.superlink_port}"),
        *("--parent-pid", str(superlink.pid)),
    ]


COMMANDS = {"superlink": superlink_command, "gate": gateway_command}
PROGRAMS = {"superlink": SUPERLINK, "gate": GATEWAY}


def environment(folder: FederationFolder) -> dict[str, str]:
    """Return the environment of a service: flwr's home in the federation's folder, no proxy for loopback.

    It lacks the passphrase of the coordinator's keys, so that an attacker who controls a service cannot read it there.
    """
    home = (folder.state / "home").resolve()
    home.mkdir(mode=0o700, exist_ok=True)
    local = {
        "FLWR_HOME": str(home),
        "PATH": search_path(),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    inherited = {key: value for key, value in os.environ.items() if key != PASSPHRASE}
    return DEFAULTS | SLOW_POLL | inherited | mark(folder.path) | local


def up(folder: FederationFolder) -> None:
    """Start SuperLink, its SuperExec and the gateway unless they run, and register the agreement's sites.

    Raises:
        DataError: the certificates, the agreement or the installed app do not pass `folder.check`.
        LaunchFailed: a service does not start; the message has the end of its log.
    """
    folder.check()
    register(folder, starts=True)
    restart_superexec(folder)
    wait_for(folder, "gate", lambda: handshake(folder), starts=True)


def register(folder: FederationFolder, starts: bool = False) -> None:
    """Register the agreement's sites at the SuperLink once it answers. With `starts`, start it if it does not run.

    Raises:
        LaunchFailed: the SuperLink does not answer in time.
    """
    control = Control(folder.coordinator.superlink_port, folder.authority[0])
    with explained(folder):
        wait_for(folder, "superlink", lambda: control.register(folder.agreement), starts)


def reachable(folder: FederationFolder) -> tuple[str, int]:
    """Return the host and port at which this machine reaches the gateway."""
    coordinator = folder.coordinator
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # if the gateway listens on all addresses
    return loopback.get(coordinator.listen, coordinator.listen), coordinator.port


def handshake(folder: FederationFolder) -> None:
    """Do a TLS handshake with the gateway. Raises OSError if it does not answer.

    A TCP connection alone would not show that: the kernel also accepts connections for a stopped (SIGSTOP) process.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate does not name the address at which this machine reaches the gateway.
    context.check_hostname = False
    # `folder.check` checks the certificate. Here any answer is enough.
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(reachable(folder), timeout=HANDSHAKE) as connection,
        context.wrap_socket(connection),
    ):
        return


def serve(folder: FederationFolder, name: str) -> None:
    """Replace this process by a service.

    Args:
        folder: The federation's folder.
        name: A key of COMMANDS: `superlink` or `gate`.
    """
    folder.check()
    command = COMMANDS[name](folder)
    os.chdir(folder.state)
    os.umask(CLOSED)
    os.execve(command[0], command, environment(folder))


def start(folder: FederationFolder, name: str) -> None:
    """Start a service that outlives this process; its output goes to superlink/NAME.log."""
    spawn(folder, COMMANDS[name](folder), name)


def spawn(folder: FederationFolder, command: Sequence[str], name: str) -> None:
    """Start a command that outlives this process; its output goes to superlink/NAME.log."""
    with owner_only():
        log = (folder.state / f"{name}.log").open("ab")
    with log:
        subprocess.Popen(
            command,
            cwd=folder.state,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=CLOSED,
        )


def restart_superexec(folder: FederationFolder) -> bool:
    """Restart the SuperLink's flower-superexec if it has ended, and return whether it had.

    Without it, every run stays pending. Call this only after the SuperLink has answered: while it starts, it is about
    to start a SuperExec itself. The SuperLink of another user is not visible, so nothing is restarted there.
    """
    superlinks = running(folder.path, SUPERLINK)
    if not superlinks or running(folder.path, SUPEREXEC):
        return False
    spawn(folder, superexec_command(folder, superlinks[0]), "superlink")
    return True


def wait_for(folder: FederationFolder, name: str, probe: Callable[[], None], starts: bool) -> None:
    """Return once a service answers.

    Args:
        folder: The federation's folder.
        name: The service's name, a key of PROGRAMS.
        probe: Sends a request to the service. Raises OSError if there is no answer.
        starts: Whether to start the service if it does not run.

    Raises:
        LaunchFailed: the service has ended or does not answer in time; the message has the end of its log.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        is_up = bool(running(folder.path, PROGRAMS[name]))
        # Start it at most once: at the first check, or later if the running one turns out to be just ending.
        if starts and not is_up:
            start(folder, name)
            is_up = True
            starts = False
        try:
            return probe()
        except OSError as error:  # Unreachable is one, too
            if not is_up or time.monotonic() > deadline:
                log = folder.state / f"{name}.log"
                output = log.read_text(errors="replace")[-1000:].strip() if log.exists() else ""
                reason = damage_of(folder) or f"{name} is not up ({error}): {output}"
                raise LaunchFailed(reason) from None
        time.sleep(0.2)


def down(folder: FederationFolder) -> bool:
    """End every process of the federation, and return whether there was one."""
    has_processes = bool(marked(folder.path))
    end(folder.path, PATIENCE)
    return has_processes
