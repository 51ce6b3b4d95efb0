"""Attacks by the other users of a site's machine: its files' owners, and the port between its two halves.

Every file was made by the project's own commands, which also decided who may read it.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from local_federation import SITE as SITE_FILE
from local_federation import fedskew_site

from attacks.stage import (
    AT_WORK,
    Attack,
    ControlFailed,
    Refusal,
    Skipped,
    Stage,
    Succeeded,
    Untried,
    elsewhere,
    refusal,
    require,
)
from site_agent import cli as site_command
from site_agent.executor import connect

SITE = 0
LINK, TRAIN, THIRD = 64001, 64002, 64003
"""Users that this machine need not know; the units' are fedskew-link and fedskew-train."""
ANSWER = 60.0
"""Seconds that another user's process has for an answer."""


def as_root() -> None:
    """Raise Skipped where this process cannot become another user."""
    if os.geteuid():
        raise Skipped("needs root, to become other users")


def as_user(user: int, call: Callable[[], Any]) -> tuple[str, str]:
    """Return what a call gives in a process of another user: the exception's type or nothing, and a sentence."""
    return elsewhere(call, ANSWER, user)


def command(*words: str | Path) -> str:
    """Call `fedskew-site` by its own main, which sets the umask, in this process."""
    sys.argv = ["fedskew-site", *map(str, words)]
    try:
        site_command.main()
    except SystemExit as end:
        if end.code not in (
            0,
            1,
        ):  # `check` ends with 1 where a row does not hold, such as approval
            raise RuntimeError(f"fedskew-site {words[0]} ended with {end.code}") from None
    return "done"


def halves(stage: Stage) -> Path:
    """Let a site's two users make their files, each in a folder that everybody may enter."""
    folder = stage.federation.work / "halves"
    if folder.exists():
        return folder
    stage.federation.work.chmod(
        0o755
    )  # else nobody reaches the files, whatever their own rights are
    place = stage.place(SITE)
    for name, user in (("link", LINK), ("train", TRAIN)):
        (folder / name).mkdir(parents=True)
        os.chown(folder / name, user, user)
        shutil.copy(place / "ca.crt", folder / name)
    for name in ("federation.toml", "data.npz"):
        shutil.copy(place / name, folder / "train")
    filled = SITE_FILE.format(keys="", name=stage.names[SITE], address=stage.address)
    text, _, _ = filled.partition("[link]")
    (folder / "train/site.toml").write_text(text)
    fedskew_site("log", "--verify", "--site", place / "site.toml")  # loads what a fork cannot
    made(LINK, "key", folder / "link/node.key")
    made(TRAIN, "check", "--site", folder / "train/site.toml")
    return folder


def made(user: int, *words: str | Path) -> None:
    """Let a user call `fedskew-site`. Raises Untried where that fails."""
    kind, sentence = as_user(user, lambda: command(*words))
    if kind:
        raise Untried(f"fedskew-site {words[0]} as user {user}: {kind}: {sentence}")


def begin_of(file: Path) -> str:
    """Return how many bytes of a file can be read. Raises OSError."""
    with file.open("rb") as opened:
        return f"{len(opened.read(1))} byte read"


def data_copy(stage: Stage) -> Path:
    """Return a file of the copy of its data that a site keeps."""
    state = halves(stage) / "train/state"
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.stat().st_size)
    if not files:
        raise Untried("the site keeps no copy of its data")
    return files[0]


def node_key(stage: Stage) -> Path:
    return halves(stage) / "link/node.key"


def secret(stage: Stage) -> Path:
    """Return the secret that `fedskew-site start` of a site at work has made.

    The folders above it are opened here, so that the rights that `start` gave the file decide.
    """
    halves(stage)
    link = stage.place(SITE) / "state/link"
    for folder in (link.parent, link):
        folder.chmod(0o711)
    return link / "secret"


def reads(user: int, owner: int, file_of: Callable[[Stage], Path]) -> dict[str, Any]:
    """Return control and attack: the owner reads a file, another user does not, who can read a public one beside it."""

    def honest(stage: Stage) -> str:
        as_root()
        file = file_of(stage)
        public = next(folder / "ca.crt" for folder in file.parents if (folder / "ca.crt").exists())
        require(file.stat().st_uid == owner, f"{file} belongs to user {file.stat().st_uid}")
        lines = []
        for who, what in ((owner, file), (user, public)):
            kind, sentence = as_user(who, lambda what=what: begin_of(what))
            if kind:
                raise ControlFailed(f"user {who} cannot read {what}: {kind}: {sentence}")
            lines.append(f"user {who}: {what}: {sentence}")
        return "\n".join(lines)

    def attempt(stage: Stage) -> list[Refusal]:
        file = file_of(stage)
        kind, sentence = as_user(user, lambda: begin_of(file))
        if not kind:
            raise Succeeded(f"user {user}: {sentence}")
        return [Refusal(kind, f"user {user}: {sentence}")]

    return {
        "honest": honest,
        "attempt": attempt,
        "expected": (Refusal("PermissionError", "denied"),),
    }


def port_of(stage: Stage) -> int:
    """Return the port on which a site's SuperNode gives tasks to its executor."""
    start = psutil.Process(stage.federation.processes[stage.names[SITE]].pid)
    for process in start.children(recursive=True):
        words = process.cmdline()
        if "--superexec-auth-secret-file" in words and "--port" in words:
            return int(words[words.index("--port") + 1])
    raise Untried("the site has no SuperNode")


def no_task() -> AcquireTaskRequest:
    """Return a question for a task of a kind that nobody has submitted, so that none is taken."""
    return AcquireTaskRequest(supported_task_types=["flwr-agentapp"])


def with_the_secret(stage: Stage) -> str:
    as_root()
    method = "/flwr.proto.Runtime/AcquireTask"
    held = SuperExecAuthHttpInterceptor(
        master_secret=secret(stage).read_bytes(), protected_methods=[method]
    )
    with connect(f"127.0.0.1:{port_of(stage)}", held) as client:
        answer = client.AcquireTask(no_task())
    require(not answer.HasField("task"), "there was a task of this kind")
    return "with the secret: POST /v1/runtime/acquire-task: 200"


def third_user(stage: Stage) -> list[Refusal]:
    port = port_of(stage)
    kind, sentence = as_user(
        THIRD, lambda: refusal(lambda: connect(f"127.0.0.1:{port}").AcquireTask(no_task()))
    )
    if kind == "Succeeded":
        raise Succeeded(sentence)
    if kind:
        return [Refusal(kind, sentence)]
    line = f"user {THIRD}: POST /v1/runtime/acquire-task: {sentence}"
    return [Refusal(f"HTTP {sentence}", line)]


ATTACKS = [
    Attack("the node key of `fedskew-site key`, read", "the user who trains", AT_WORK,
           **reads(TRAIN, LINK, node_key)),
    Attack("the copy of the data that a site keeps, read", "the user who has the link", AT_WORK,
           **reads(LINK, TRAIN, data_copy)),
    Attack("the halves' secret of `fedskew-site start`, read", "a third user", AT_WORK,
           **reads(THIRD, 0, secret)),
    Attack("a task, taken from the site's SuperNode", "a third user", AT_WORK, with_the_secret, third_user,
           (Refusal("HTTP 401", ""),)),
]  # fmt: skip
