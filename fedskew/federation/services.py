"""The coordinator's two services, SuperLink and gateway: started, checked and stopped by process id."""

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
"""Seconds until a service has to answer: loading takes seconds of work, and a busy machine has few to give."""
HANDSHAKE = 2.0
"""Seconds that the gateway has for a TLS handshake, which takes it milliseconds."""
SELDOM = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""A SuperLink that is always there starts a run half a second later, and else costs a fifth of a core."""
CLOSED = 0o077
"""The services' umask, and that of the ServerApp, which the SuperLink starts: logs and results hold sites' scores."""
PATIENCE = 5.0
"""Seconds that services have to end by themselves."""
SUPERLINK, GATEWAY, SERVER_APP = "flower-superlink", "fedskew.federation.gateway", "flwr-serverapp"
SUPEREXEC = "flower-superexec"
"""The SuperLink's child that starts a ServerApp for every run. The SuperLink starts it once and never looks again."""


def superlink_command(folder: FederationFolder) -> list[str]:
    """Return the command of the SuperLink, which only this machine reaches."""
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
    """Return the command of the gateway, the one port that sites reach."""
    return [sys.executable, "-m", GATEWAY, str(folder.path.resolve())]


def superexec_command(folder: FederationFolder, superlink: psutil.Process) -> list[str]:
    """Return the command by which `superlink` starts its flower-superexec: it ends with that process."""
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
    """Return the environment of a service: flwr's home in the folder, no proxy for what is on this machine.

    The passphrase of the coordinator's keys is not in it: whoever is in a service could read it there.
    """
    home = (folder.state / "home").resolve()
    home.mkdir(mode=0o700, exist_ok=True)
    local = {
        "FLWR_HOME": str(home),
        "PATH": search_path(),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    inherited = {key: value for key, value in os.environ.items() if key != PASSPHRASE}
    return DEFAULTS | SELDOM | inherited | mark(folder.path) | local


def up(folder: FederationFolder) -> None:
    """Start SuperLink, its SuperExec and the gateway where they are not up, and register the agreement's sites.

    Raises DataError for certificates or an agreement that cannot be started with, LaunchFailed with a service's last
    words when it does not come up.
    """
    folder.check()
    register(folder, starts=True)
    restart_superexec(folder)
    wait_for(folder, "gate", lambda: handshake(folder), starts=True)


def register(folder: FederationFolder, starts: bool = False) -> None:
    """Let the agreement's sites in, once the SuperLink answers. Raises LaunchFailed when it does not in time."""
    control = Control(folder.coordinator.superlink_port, folder.authority[0])
    with explained(folder):
        wait_for(folder, "superlink", lambda: control.register(folder.agreement), starts)


def reachable(folder: FederationFolder) -> tuple[str, int]:
    """Return where this machine reaches the gateway."""
    coordinator = folder.coordinator
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of a gateway that listens on all addresses
    return loopback.get(coordinator.listen, coordinator.listen), coordinator.port


def handshake(folder: FederationFolder) -> None:
    """Shake hands with the gateway. Raises OSError where nobody answers, as a process that is halted does not.

    A halted process still has its connections accepted by the kernel, so a connection alone shows nothing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # This machine reaches it by an address that no certificate names.
    context.check_hostname = False
    # `folder.check` checks the certificate; here any answer will do.
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(reachable(folder), timeout=HANDSHAKE) as connection,
        context.wrap_socket(connection),
    ):
        return


def serve(folder: FederationFolder, name: str) -> None:
    """Become a service, superlink or gateway, in this process."""
    folder.check()
    command = COMMANDS[name](folder)
    os.chdir(folder.state)
    os.umask(CLOSED)
    os.execve(command[0], command, environment(folder))


def start(folder: FederationFolder, name: str) -> None:
    """Start a service that goes on when this process ends; what it prints goes to superlink/NAME.log."""
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
    """Start the SuperLink's flower-superexec again if it has ended, and return whether it had.

    Without it every run stays pending. Call this only once the SuperLink has answered: it starts a SuperExec of its own
    before that. A SuperLink of another user cannot be seen, and is left alone.
    """
    superlinks = running(folder.path, SUPERLINK)
    if not superlinks or running(folder.path, SUPEREXEC):
        return False
    spawn(folder, superexec_command(folder, superlinks[0]), "superlink")
    return True


def wait_for(folder: FederationFolder, name: str, look: Callable[[], None], starts: bool) -> None:
    """Return once a service answers.

    Args:
        folder: of the federation.
        name: of the service.
        look: asks the service; raises OSError where it does not answer.
        starts: whether to start the service where it is not up.

    Raises:
        LaunchFailed: it has ended or is too late; the message has its last words.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        is_up = bool(running(folder.path, PROGRAMS[name]))
        if starts and not is_up:  # now, or after a look at one that was being ended
            start(folder, name)
            is_up = True
            starts = False
        try:
            return look()
        except OSError as error:  # as is Unreachable
            if not is_up or time.monotonic() > deadline:
                log = folder.state / f"{name}.log"
                words = log.read_text(errors="replace")[-1000:].strip() if log.exists() else ""
                reason = damage_of(folder) or f"{name} is not up ({error}): {words}"
                raise LaunchFailed(reason) from None
        time.sleep(0.2)


def down(folder: FederationFolder) -> bool:
    """End every process of the federation, and return whether there was one."""
    there = bool(marked(folder.path))
    end(folder.path, PATIENCE)
    return there
