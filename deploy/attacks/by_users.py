"""Attacks by the other users of a site's machine: its files' owners, and the port between its two halves."""

import os
import shutil
import subprocess
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from attacks.stage import AT_WORK, Attack, Skipped, Stage, Succeeded, Untried, refusal
from site_agent.executor import PLAYED, connect

SITE = 0
LINK, TRAIN, THIRD = 64001, 64002, 64003
"""Users that this machine need not know; the units' are fedskew-link and fedskew-train."""


def as_root() -> None:
    """Raise Skipped where this process cannot become another user."""
    if os.geteuid() or not shutil.which("setpriv"):
        raise Skipped("needs root, and setpriv")


def halves(stage: Stage) -> Path:
    """Lay a site's key, secret and data out as deploy/*.service have them: each for the one user who needs it."""
    folder = stage.federation.work / "halves"
    if not folder.exists():
        stage.federation.work.chmod(0o755)
        place = stage.place(SITE)
        folder.mkdir()
        (folder / "data").mkdir()
        for source, name, owner in (
            (place / "node.key", "node.key", LINK), (place / "data.npz", "data/data.npz", TRAIN),
            (place / "state/link/secret", "secret", LINK),
        ):  # fmt: skip
            shutil.copy(source, folder / name)
            (folder / name).chmod(0o600)
            os.chown(folder / name, owner, owner)
        (folder / "data").chmod(0o700)
        os.chown(folder / "data", TRAIN, TRAIN)
        folder.chmod(0o755)
    return folder


def read(user: int, file: Path) -> subprocess.CompletedProcess[str]:
    """Read a file as a user."""
    words = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        "head",
        "-c",
        "1",
        str(file),
    ]
    return subprocess.run(words, capture_output=True, text=True, errors="replace")


def reads(user: int, owner: int, name: str) -> Callable[[Stage], str]:
    """Return an attack by a user who reads what is another one's; the owner has to be able to."""

    def play(stage: Stage) -> str:
        as_root()
        file = halves(stage) / name
        if read(owner, file).returncode:
            raise Skipped("its owner cannot read it either, on this machine")
        refused = read(user, file)
        if not refused.returncode:
            raise Succeeded(f"{name} was read")
        return refused.stderr.strip()

    return play


def port_of(stage: Stage) -> int:
    """Return the port on which a site's SuperNode gives tasks to its executor."""
    start = psutil.Process(stage.federation.processes[stage.names[SITE]].pid)
    for process in start.children(recursive=True):
        words = process.cmdline()
        if "--superexec-auth-secret-file" in words and "--port" in words:
            return int(words[words.index("--port") + 1])
    raise Untried("the site has no SuperNode")


def acquire(port: int, user: int, answer: Any) -> None:
    """Ask for a task as a user without the secret, and tell the status."""
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    try:
        request = AcquireTaskRequest(supported_task_types=[PLAYED])
        answer.send(refusal(lambda: connect(f"127.0.0.1:{port}").AcquireTask(request)))
    except Exception as error:
        answer.send(str(error))


def third_user(stage: Stage) -> str:
    as_root()
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=acquire, args=(port_of(stage), THIRD, theirs))
    process.start()
    status = ours.recv() if ours.poll(30) else "no answer"
    process.join(10)
    if status not in (401, 403):
        raise Succeeded(f"the answer is {status}")
    return f"user {THIRD}: POST /v1/runtime/acquire-task: {status}"


ATTACKS = [
    Attack("the node key, read", "the user who trains", AT_WORK, reads(TRAIN, LINK, "node.key")),
    Attack(
        "the data, read", "the user who has the link", AT_WORK, reads(LINK, TRAIN, "data/data.npz")
    ),
    Attack("the halves' secret, read", "a third user", AT_WORK, reads(THIRD, LINK, "secret")),
    Attack("a task, taken from the site's SuperNode", "a third user", AT_WORK, third_user),
]
