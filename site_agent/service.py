"""`fedskew-site start`: runs the SuperNode and the executor, in one command or in two, until a signal ends them."""

import logging
import os
import secrets
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from filelock import FileLock, Timeout

from data import DataError, SettingError
from data.log_files import KEPT, LARGEST
from site_agent.approval import approved_files
from site_agent.config import Link, Site
from site_agent.metrics import serve
from site_agent.supernode_watch import SuperNode, command_of, environment

if TYPE_CHECKING:  # it imports flwr, which most commands, such as `approve`, do not need
    from site_agent.pool import App, Describe


def write_log(path: Path) -> None:
    """Send the site's log to a rotating file and to stderr."""
    formatter = logging.Formatter("%(asctime)s %(message)s")
    logger = logging.getLogger("fedskew.site")
    logger.setLevel(logging.INFO)
    for handler in (
        RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT),
        logging.StreamHandler(),
    ):
        handler.setFormatter(formatter)
        logger.addHandler(handler)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM and SIGINT: exit with status 0 after cleanup. Further signals are ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def link_only(link: Link, state: Path, port: int, secret: Path) -> NoReturn:
    """Replace this process by one that keeps a SuperNode running. It needs the node's key, and no data."""
    home = state / "link"
    home.mkdir(parents=True, exist_ok=True)
    read_secret(secret)
    assert link.key and link.ca
    command = command_of(link.address, link.key, link.ca, port, secret)
    watcher = [sys.executable, "-m", f"{__package__}.supernode_watch", str(home), *command]
    # exec also frees the memory of torch, which reading site.toml has imported.
    os.execv(sys.executable, watcher)


def train_only(file: Path, site: Site, port: int, secret: Path, metrics: int) -> None:
    """Run the tasks of a SuperNode that another process keeps running. `site` has the contents of `file`, site.toml."""
    site.state.mkdir(parents=True, exist_ok=True)
    with only_one(site.state):
        execute(file, site, port, read_secret(secret), None, metrics)


def start(file: Path, site: Site, link: Link, metrics: int) -> None:
    """Keep a SuperNode running and run its tasks. `site` has the contents of `file`, site.toml."""
    home = site.state / "link"
    home.mkdir(parents=True, exist_ok=True)
    with only_one(site.state):
        port = free_port()
        secret = home / "secret"
        secret.write_text(secrets.token_hex(32))
        assert link.key and link.ca
        node = SuperNode(command_of(link.address, link.key, link.ca, port, secret), home)
        execute(file, site, port, secret.read_bytes(), node, metrics)


def execute(
    file: Path, site: Site, port: int, secret: bytes, node: SuperNode | None, metrics: int
) -> None:
    """Serve tasks until a signal arrives.

    Args:
        file: site.toml. It is read again when another federation.toml is approved.
        site: The contents of `file`.
        port: The port of the SuperNode's runtime API on loopback.
        secret: The secret that lets this process take tasks.
        node: The SuperNode to keep running; None if another process does that.
        metrics: The port of the Prometheus metrics; 0 for none.
    """
    approved_files(site)  # raises DataError before torch is imported, which takes seconds
    write_log(site.state / "site.log")
    os.environ.update(environment(site.state / "link"))
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    import torch

    from client_app.app import app as code
    from client_app.models.backbone import TORCHVISION, load_torchvision
    from site_agent import flower_app
    from site_agent.approved_text import WatchedApproval
    from site_agent.executor import Executor
    from site_agent.pool import Pool, SiteApp

    # Import torchvision once, before workers are forked: it takes seconds, and each run has a new worker.
    if site.agreement.backbone.startswith(TORCHVISION):
        with suppress(SettingError):
            load_torchvision()

    def make_code(
        site: Site, files: Mapping[str, bytes], folder: Path
    ) -> "tuple[App, Describe | None]":
        """Return the app that answers messages under an approved text, see `MakeCode`."""
        if site.app is None:
            return SiteApp(site, code), None
        return flower_app.InstalledApp(site, files, folder), flower_app.leaving

    if site.app is not None:
        torch.set_num_threads(site.threads)
    approval = WatchedApproval(file, site, make_code)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    audit = site.audit
    assert approval.current.code is not None
    pool = Pool(approval.current.code, approval.current.describe)
    audit.write("started", **approval.entry())
    if metrics:
        arguments = (site.state, metrics, os.getpid())
        process = get_context("fork").Process(target=serve, args=arguments, daemon=True)
        process.start()
    idle = node.restart_if_dead if node else lambda: None
    executor = Executor(
        f"127.0.0.1:{port}",
        secret,
        approval,
        pool,
        audit,
        site.state / "task",
        idle,
        plain=site.app is not None,
    )
    try:
        executor.run()
    finally:
        executor.link.close()  # a SuperNode does not end while this connection is open
        if node:
            node.stop()
        pool.end()
        audit.write("stopped")


def read_secret(path: Path) -> bytes:
    """Return the secret that SuperNode and executor share.

    Raises:
        DataError: the file is missing, shorter than 32 bytes, or accessible to other users.
    """
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes()
    except OSError as error:
        reason = f"the secret of both halves cannot be read: {error.strerror}"
        raise DataError(reason, where=str(path)) from None
    if mode & 0o007 or len(secret) < 32:
        rule = f"must hold at least 32 random bytes, and be closed to others (chmod o= {path})"
        raise DataError(rule, where=str(path))
    return secret


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Return a context that locks a state folder. Raises DataError if another process has the lock."""
    lock = FileLock(state / "lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise DataError("another `fedskew-site start` is at work there", where=str(state)) from None
    try:
        yield
    finally:
        lock.release()


def is_at_work(state: Path) -> bool:
    """Return whether a running `fedskew-site start` has the lock on a state folder."""
    try:
        with FileLock(state / "lock", blocking=False):
            return False
    except Timeout:
        return True


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
