"""Attacks by files and packed apps: the code that a site runs, in this process, on the files of a site."""

import io
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.proto.task_pb2 import Task
from local_federation import ROOT

from attacks.stage import ALONE, Attack, Stage, Succeeded
from client_app.app_files import app_hash, build, packed_files
from client_app.site_file import read_site
from data import DataError, DataSettings
from data.site_view import SiteView
from site_agent.approval import approve
from site_agent.audit import Audit
from site_agent.executor import PLAYED, TASKS, Executor
from site_agent.worker import Pool
from strategies.exchange import Exchange

SITE = 0


def executor(stage: Stage, approved: str) -> Executor:
    """Return a site's executor with an approved app, which writes its audit log aside and plays nothing."""
    audit = Audit(stage.federation.work / "aside.jsonl")
    return Executor(
        "127.0.0.1:9",
        bytes(32),
        approved,
        Pool(lambda *_: None),
        audit,
        audit.path.with_name("task"),
        lambda: None,
    )  # type: ignore


def refusal(executor: Executor, fab: bytes, kind: str = PLAYED) -> str:
    """Return why an executor does not play a task. Raises Succeeded where it would."""
    if reason := executor.refused(Task(type=kind), fab):
        return f"refused: {reason}"
    raise Succeeded("the task would be played")


def same_eight_digits(stage: Stage) -> str:
    other = packed({"client_app/app.py": b"import os"})
    code, agreed = app_hash(packed_files(other)), stage.folder.agreement.app
    return refusal(executor(stage, code[:8] + agreed[8:]), other)


def other_tasks(stage: Stage) -> str:
    site, fab = executor(stage, stage.folder.agreement.app), build(ROOT)
    return "\n".join(refusal(site, fab, kind) for kind in TASKS if kind != PLAYED)


def packed(files: dict[str, bytes], link: str = "") -> bytes:
    """Return a zip of files, and of a link to /etc/passwd if one is named."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if link:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, "/etc/passwd")
    return whole.getvalue()


def hostile_zip(fab: bytes) -> Callable[[Stage], str]:
    """Return an attack by a packed app: over the wire, and given to the one who approves."""

    def play(stage: Stage) -> str:
        lines = [refusal(executor(stage, stage.folder.agreement.app), fab)]
        place = stage.place(SITE)
        file = stage.federation.work / "hostile.fab"
        file.write_bytes(fab)
        try:
            approve(
                read_site(place / "site.toml"), place / "federation.toml", file, lambda text: True
            )
        except DataError as error:
            return "\n".join([*lines, f"fedskew-site: {error}"])
        raise Succeeded("it was approved")

    return play


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def pickle_in_data(stage: Stage) -> str:
    place, marker = stage.place(SITE), stage.federation.work / "unpickled"
    hostile = stage.federation.work / "hostile.npz"
    arrays: dict[str, Any] = dict(np.load(place / "data.npz"))
    arrays["train_labels"] = np.array([Command(marker)] * len(arrays["train_labels"]), dtype=object)
    np.savez(hostile, **arrays)
    site = read_site(place / "site.toml")
    try:
        SiteView(
            DataSettings(),
            site.agreement,
            site.number,
            f"npz:{hostile}",
            stage.federation.work / "cache",
        )
    except DataError as error:
        if marker.exists():
            raise Succeeded("it was unpickled, and then refused") from None
        return f"NO  data         {error}"
    raise Succeeded("it was read")


def pickle_in_reply(stage: Stage) -> str:
    marker = stage.federation.work / "unpickled-at-the-server"
    values = pickle.dumps(Command(marker))
    record = ArrayRecord(
        {"state": Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=values)}
    )
    about = Metadata(1, "reply", 7, 1, "question", "", 0.0, 60.0, "train")
    reply = Message(metadata=about, content=RecordDict({"0/model": record}))  # type: ignore[call-overload]
    exchange = Exchange([0])
    exchange.receive([reply], {7: [0]})
    if marker.exists() or 0 not in exchange.failures:
        raise Succeeded("it was unpickled" if marker.exists() else "it was taken")
    return f"client 0 left out: {exchange.failures[0]}"


def audit_without(removed: slice) -> Callable[[Stage], str]:
    """Return an attack that removes lines of a copy of a site's audit log, as it is at the end of the training."""

    def play(stage: Stage) -> str:
        state, copy = stage.place(SITE) / "state", stage.federation.work / "audit"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("audit.jsonl", "audit.jsonl.last"):
            shutil.copy(state / name, copy)
        audit = Audit(copy / "audit.jsonl")
        lines = audit.path.read_bytes().splitlines(keepends=True)
        audit.verify()
        del lines[removed]
        audit.path.write_bytes(b"".join(lines))
        try:
            audit.verify()
        except DataError as error:
            return f"fedskew-site: {error}"
        raise Succeeded("the log is taken for whole")

    return play


ATTACKS = [
    Attack("an app whose hash begins with the agreed one's first eight hex digits", "a coordinator", ALONE,
           same_eight_digits),
    Attack("agent, model and connector tasks", "a coordinator", ALONE, other_tasks),
    Attack("a link in an app", "a coordinator", ALONE, hostile_zip(packed({"a.py": b""}, link="client_app/app.py"))),
    Attack("a path that climbs in an app", "a coordinator", ALONE, hostile_zip(packed({"../../a.py": b""}))),
    Attack("a pickle in a site's npz", "who gives a site its data", ALONE, pickle_in_data),
    Attack("a pickle in a reply", "a site", ALONE, pickle_in_reply),
    Attack("a line removed from the audit log", "who can write the log", ALONE, audit_without(slice(2, 3))),
    Attack("the end removed from the audit log", "who can write the log", ALONE, audit_without(slice(-2, None))),
]  # fmt: skip
