"""`fedskew-site start`: runs flwr's SuperNode and the executor, in one command or in two, until a signal ends them.

The SuperNode's process has the node key and talks to the coordinator. It ends with its parent, and when its connection
to the coordinator ends: flwr 1.42 gives up a connection on an error that it does not retry, as a TLS handshake that
times out because the coordinator is halted. Its main thread then returns, but the thread of its HTTP server keeps the
process alive, which looks healthy and never asks for a message again. Here it exits instead, and is started again.

`python -m site_agent.service` is such a process. It imports no torch and no data: what needs them, imports them itself.
"""

import ctypes
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from filelock import FileLock, Timeout
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from data import DataError, SettingError
from data.files import LARGEST, rotate, stamp_of
from data.packages import module_name
from site_agent.audit import NO_ENTRY, complete_lines
from site_agent.keys import read_private

if TYPE_CHECKING:
    from site_agent.config import Link, Site
    from site_agent.pool import App

logger = logging.getLogger("fedskew.site")
KEEP, SUPERNODE = "keep-supernode", "flower-supernode"
"""What a process of this module is, its first argument: see the end of the file."""
LOG = "supernode.log"
SECONDS_TO_END = 3.0
WAIT = 3.0
"""Seconds from the end of a SuperNode to the next start. flwr refuses one that was killed for up to 60 s."""
GAVE_UP = 1
"""Exit status where flwr's SuperNode has returned."""
PR_SET_PDEATHSIG = 1
"""Of Linux' prctl: the signal that the kernel sends this process when its parent ends."""
KINDS = ("train", "evaluate", "query")
"""The message types that a metric names. Any other is `other`: the coordinator chooses what a message is called."""


def write_log(path: Path) -> None:
    """Send the site's log to a rotating file and to stderr."""
    formatter = logging.Formatter("%(asctime)s %(message)s")
    logger = logging.getLogger("fedskew.site")
    logger.setLevel(logging.INFO)
    for handler in (
        RotatingFileHandler(path, maxBytes=LARGEST, backupCount=1),
        logging.StreamHandler(),
    ):
        handler.setFormatter(formatter)
        logger.addHandler(handler)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM and SIGINT: exit with status 0 after cleanup. Further signals are ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def link_only(link: "Link", state: Path, port: int, secret: Path) -> NoReturn:
    """Replace this process by one that keeps a SuperNode running. It needs the node's key, and no data."""
    home = state / "link"
    home.mkdir(parents=True, exist_ok=True)
    read_secret(secret)
    command = command_of(link, port, secret)
    os.execv(sys.executable, process_of(KEEP, str(home), *command))


def train_only(site: "Site", port: int, secret: Path, metrics: int) -> None:
    """Run the tasks of a SuperNode that another process keeps running."""
    with only_one(site.state):
        execute(site, port, read_secret(secret), None, metrics)


def start(site: "Site", link: "Link", metrics: int) -> None:
    """Keep a SuperNode running and run its tasks."""
    with only_one(site.state):
        home = site.state / "link"
        home.mkdir(exist_ok=True)
        port = free_port()
        secret = home / "secret"
        secret.write_text(secrets.token_hex(32))
        node = SuperNode(command_of(link, port, secret), home)
        execute(site, port, secret.read_bytes(), node, metrics)


def execute(
    site: "Site", port: int, secret: bytes, node: "SuperNode | None", metrics_port: int
) -> None:
    """Serve tasks until a signal arrives. This program starts again by itself once another text is approved.

    Args:
        site: The contents of site.toml.
        port: The port of the SuperNode's runtime API on loopback.
        secret: The secret that lets this process take tasks.
        node: The SuperNode to keep running; None if another process does that.
        metrics_port: The port of the Prometheus metrics; 0 for none.
    """
    from site_agent.approval import RECORD, approved_files

    record = site.approved / RECORD
    stamp = stamp_of(record)
    files = approved_files(site)
    write_log(site.state / "site.log")
    os.environ.update(environment(site.state / "link"))
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    from site_agent.executor import Executor
    from site_agent.pool import Pool

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    audit = site.audit
    pool = Pool(app_of(site, files))
    audit.write("started", app=site.agreement.app, federation=site.agreement.sha256)
    if metrics_port:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(SiteMetrics(site.state))
        start_http_server(metrics_port, addr="127.0.0.1", registry=registry)

    def idle() -> bool:
        """Keep the SuperNode running, and return whether another text has been approved."""
        if node:
            node.restart_if_dead()
        return stamp_of(record) != stamp

    executor = Executor(f"127.0.0.1:{port}", secret, site, pool, idle)
    try:
        executor.run()
    finally:
        executor.link.close()  # a SuperNode does not end while this connection is open
        if node:
            node.stop()
        pool.end()
        audit.write("stopped")
    logger.info("another text is approved: this site starts again")
    # As another program: the new text may be for another release than the one that is loaded here.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def app_of(site: "Site", files: Mapping[str, bytes]) -> "App":
    """Return the app that workers run."""
    import torch

    from client_app.app import app
    from client_app.models.backbone import TORCHVISION, load_torchvision
    from site_agent import flower_app
    from site_agent.data_view import install

    if site.app is not None:
        torch.set_num_threads(site.threads)
        return flower_app.InstalledApp(site, files)
    install({site.number: site})
    # Import torchvision once, before workers are forked: it takes seconds, and each run has a new worker.
    if site.agreement.backbone.startswith(TORCHVISION):
        with suppress(SettingError):
            load_torchvision()
    return app


def read_secret(path: Path) -> bytes:
    """Return the secret that SuperNode and executor share.

    Raises:
        DataError: the file is missing, shorter than 32 bytes, or accessible to other users.
    """
    secret = read_private(path, "secret of both halves", others="o")
    if len(secret) < 32:
        raise DataError("must hold at least 32 random bytes", where=str(path))
    return secret


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Return a context that makes and locks a state folder. Raises DataError if another process has the lock."""
    state.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(state / "lock", blocking=False):
            yield
    except Timeout:
        raise DataError("another `fedskew-site start` is at work there", where=str(state)) from None


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


class SiteMetrics(Collector):
    """A site's Prometheus metrics: what its audit log says, and the room on its disk."""

    def __init__(self, state: Path) -> None:
        """`state` is the site's state folder, with the log."""
        self.state = state

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the log as it is now, and of its disk."""
        events: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        sent, last = 0, 0.0
        for line in complete_lines(self.state / "audit.jsonl"):
            with suppress(*NO_ENTRY):  # `fedskew-site log --verify` names such a line
                entry = json.loads(line)
                events[str(entry["event"])] += 1
                sent += sum(row["bytes"] for row in entry.get("left", []))
                if "kind" in entry:
                    kind = entry["kind"].partition(".")[0]
                    seconds[kind if kind in KINDS else "other"] += entry.get("seconds", 0.0)
                    last = datetime.fromisoformat(entry["time"]).timestamp()

        def counted(name: str, text: str, label: str, totals: Mapping[str, float]) -> Metric:
            family = CounterMetricFamily(f"fedskew_site_{name}", text, labels=[label])
            for value, total in sorted(totals.items()):
                family.add_metric([value], total)
            return family

        yield counted("events", "Lines of the audit log by event.", "event", events)
        yield counted("seconds", "Seconds of answering by message type.", "kind", seconds)
        text = "Bytes that have left the site."
        yield CounterMetricFamily("fedskew_site_sent_bytes", text, value=sent)
        text = "Time of the last message that was answered or refused, 0 for none."
        yield GaugeMetricFamily("fedskew_site_last_exchange_timestamp_seconds", text, value=last)
        text = "Bytes free on the disk of the site's state."
        free = shutil.disk_usage(self.state).free
        yield GaugeMetricFamily("fedskew_site_disk_free_bytes", text, value=free)


# ---- the process of the SuperNode ------------------------------------------------------------------------------------


def process_of(*words: str) -> list[str]:
    """Return the command of a process of this module, see the end of the file."""
    return [sys.executable, "-m", module_name("site_agent.service"), *words]


def command_of(link: "Link", port: int, secret: Path) -> list[str]:
    """Return the command of a SuperNode that leaves its tasks to another process on loopback with the secret.

    It ends with the process that calls this, or that this one is replaced by.
    """
    return [
        *process_of(SUPERNODE, str(os.getpid())),
        *("--superlink", link.address),
        *("--root-certificates", str(link.ca)),
        *("--auth-supernode-private-key", str(link.key)),
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
    """The SuperNode's process; whenever it ends it is started again."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self.command = command
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.not_before = 0.0
        """The earliest time of the next start."""

    def restart_if_dead(self) -> None:
        """Start the process if it has ended WAIT seconds ago; returns at once. Its log rotates."""
        log = self.home / LOG
        with suppress(OSError):  # a full disk does not end a site
            rotate(log)
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                return
            logger.warning("the SuperNode ended (status %s; see %s)", status, log)
            self.process = None
            self.not_before = time.monotonic() + WAIT
        if time.monotonic() < self.not_before:
            return
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=environment(self.home),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """End the process: politely, so that the coordinator hears of it, then for good."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that happens (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call, so no signal will come
        os._exit(1)


def run_supernode(words: list[str]) -> NoReturn:
    """Run flwr's SuperNode with arguments, the first of which is its name, and end when it returns."""
    from site_agent.flower_internals import run_supernode

    sys.argv = words
    try:
        run_supernode()
    except SystemExit:  # flwr ends itself, and has stopped its server
        raise
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(GAVE_UP)


def keep_supernode(home: Path, command: Sequence[str]) -> None:
    """Keep a SuperNode running until a signal arrives."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, stop)
    node = SuperNode(command, home)
    try:
        while True:
            node.restart_if_dead()
            time.sleep(0.5)
    finally:
        node.stop()


if __name__ == "__main__":
    # python -m site_agent.service ...
    kind, first, *words = sys.argv[1:]
    if kind == KEEP:  # keep-supernode HOME COMMAND...
        keep_supernode(Path(first), words)
    end_with_parent(int(first))  # flower-supernode PARENT ARGUMENTS...
    run_supernode([kind, *words])
