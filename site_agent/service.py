"""`fedskew-site start`: the SuperNode and the executor, together or apart, until a signal ends them."""

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

if TYPE_CHECKING:  # with flwr, which `approve` and most commands do without
    from site_agent.pool import App, Describe

PORT = 9094
"""Of the loopback between the two halves, where they are started apart."""


def write_log(path: Path) -> None:
    """Write the site's log to a file, which rotates, and to stderr."""
    form = logging.Formatter("%(asctime)s %(message)s")
    logger = logging.getLogger("fedskew.site")
    logger.setLevel(logging.INFO)
    for handler in (
        RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT),
        logging.StreamHandler(),
    ):
        handler.setFormatter(form)
        logger.addHandler(handler)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """End this process in order, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def link_only(link: Link, state: Path, port: int, secret: Path) -> NoReturn:
    """Become the process that keeps a SuperNode running; it holds the key and has no need of the data."""
    home = state / "link"
    home.mkdir(parents=True, exist_ok=True)
    read_secret(secret)
    assert link.key and link.ca
    command = command_of(link.address, link.key, link.ca, port, secret)
    keeper = [sys.executable, "-m", f"{__package__}.supernode_watch", str(home), *command]
    os.execv(sys.executable, keeper)  # leaves torch behind, which read site.toml with us


def train_only(file: Path, site: Site, port: int, secret: Path, metrics: int) -> None:
    """Run the tasks of a SuperNode that another process keeps running. `site` is what `file` says, site.toml."""
    site.state.mkdir(parents=True, exist_ok=True)
    with only_one(site.state):
        execute(file, site, port, read_secret(secret), None, metrics)


def start(file: Path, site: Site, link: Link, metrics: int) -> None:
    """Keep a SuperNode and run its tasks. `site` is what `file` says, site.toml."""
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
    """Serve tasks until a signal comes. `file` is site.toml, which is read again when another text is approved."""
    approved_files(site)  # raises DataError before torch is imported, which takes seconds
    write_log(site.state / "site.log")
    os.environ.update(environment(site.state / "link"))
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    import torch

    from client_app.app import app as code
    from client_app.models.backbone import TORCHVISION, load_torchvision
    from site_agent import flower_app
    from site_agent.approved_texts import ApprovedTexts
    from site_agent.executor import Executor
    from site_agent.pool import Pool, SiteApp

    # Takes seconds: a worker would load it again for every run.
    if site.agreement.backbone.startswith(TORCHVISION):
        with suppress(SettingError):
            load_torchvision()

    def make_code(
        site: Site, files: Mapping[str, bytes], folder: Path
    ) -> "tuple[App, Describe | None]":
        """Return what answers messages under a text, as of `ApprovedTexts`."""
        if site.app is None:
            return SiteApp(site, code), None
        return flower_app.InstalledApp(site, files, folder), flower_app.leaving

    if site.app is not None:
        torch.set_num_threads(site.threads)
    texts = ApprovedTexts(file, site, make_code)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    audit = site.audit
    assert texts.current.code is not None
    pool = Pool(texts.current.code, texts.current.describe)
    audit.write("started", **texts.entry())
    if metrics:
        arguments = (site.state, metrics, os.getpid())
        process = get_context("fork").Process(target=serve, args=arguments, daemon=True)
        process.start()
    idle = node.restart_if_dead if node else lambda: None
    executor = Executor(
        f"127.0.0.1:{port}",
        secret,
        texts,
        pool,
        audit,
        site.state / "task",
        idle,
        plain=site.app is not None,
    )
    try:
        executor.run()
    finally:
        executor.link.close()  # the SuperNode waits for it
        if node:
            node.stop()
        pool.end()
        audit.write("stopped")


def read_secret(path: Path) -> bytes:
    """Return the secret between the two halves. Raises DataError where it is missing, or open to everybody."""
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
    """Return a context with the lock on a state folder. Raises DataError where another process has it."""
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
    """Return whether a `fedskew-site start` has the lock on a state folder."""
    try:
        with FileLock(state / "lock", blocking=False):
            return False
    except Timeout:
        return True


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
