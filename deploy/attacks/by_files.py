"""Attacks by files and packed apps: the code that a site runs, in this process, on the files of a site."""

import io
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.proto.task_pb2 import Task
from local_federation import ROOT

from attacks.stage import ALONE, Attack, Refusal, Stage, Succeeded, raised, require
from client_app.messages import pack
from data import DataSettings
from site_agent.app_files import app_hash, build, packed_files
from site_agent.approval import approve
from site_agent.approved_text import ApprovedText, NotApproved
from site_agent.audit import Audit
from site_agent.config import read_site
from site_agent.data_view import SiteView
from site_agent.executor import CLIENT_TASK, TASKS, Executor
from site_agent.pool import Pool
from strategies.core.exchange import Exchange

SITE = 0


def executor(stage: Stage, approved: str) -> Executor:
    """Return a site's executor with an approved app, which writes its audit log aside and runs nothing."""
    audit = Audit(stage.federation.work / "aside.jsonl")
    return Executor(
        "127.0.0.1:9",
        bytes(32),
        ApprovedText("", approved),
        Pool(lambda *_: None),
        audit,
        audit.path.with_name("task"),
        lambda: None,
    )  # type: ignore


def refusal(executor: Executor, fab: bytes, kind: str = CLIENT_TASK) -> Refusal:
    """Return why an executor does not run a task. Raises Succeeded where it would."""
    try:
        executor.chosen(Task(type=kind), fab)
    except NotApproved as reason:
        return Refusal("refused", f"refused: {reason}")
    raise Succeeded("the task would be run")


def runs_task(executor: Executor, fab: bytes) -> str:
    """Return that an executor runs a task with an approved app. Raises ControlFailed where it does not."""
    try:
        executor.chosen(Task(type=CLIENT_TASK), fab)
    except NotApproved as reason:
        require(False, f"refused: {reason}")
    return f"a task of kind {CLIENT_TASK} with the approved app would be run"


def approved_one(stage: Stage) -> str:
    """Let the executor look at an app whose hash is the approved one."""
    other = packed({"client_app/app.py": b"import os"})
    return runs_task(executor(stage, app_hash(packed_files(other))), other)


def same_eight_digits(stage: Stage) -> list[Refusal]:
    other = packed({"client_app/app.py": b"import os"})
    code, agreed = app_hash(packed_files(other)), stage.folder.agreement.app
    return [refusal(executor(stage, code[:8] + agreed[8:]), other)]


def agreed_one(stage: Stage) -> str:
    """Let the executor look at the agreed app."""
    return runs_task(executor(stage, stage.folder.agreement.app), build(ROOT))


def other_tasks(stage: Stage) -> list[Refusal]:
    site, fab = executor(stage, stage.folder.agreement.app), build(ROOT)
    return [refusal(site, fab, kind) for kind in TASKS if kind != CLIENT_TASK]


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


def approving(stage: Stage, fab: bytes) -> Callable[[], object]:
    """Return what lets somebody at a site approve a packed app, its state aside."""
    place = stage.place(SITE)
    file = stage.federation.work / "given.fab"
    file.write_bytes(fab)
    site = replace(read_site(place / "site.toml"), state=stage.federation.work / "approving")
    return lambda: approve(site, place / "federation.toml", file, lambda text: True)


def agreed_zip(stage: Stage) -> str:
    """Let a site look at the agreed app, over the wire, and given to the one who approves."""
    fab = build(ROOT)
    require(approving(stage, fab)(), "the agreed app is not approved")
    return (
        f"{runs_task(executor(stage, stage.folder.agreement.app), fab)}\nthe agreed app: approved"
    )


def hostile_zip(fab: bytes) -> Callable[[Stage], list[Refusal]]:
    """Return an attack by a packed app: over the wire, and given to the one who approves."""

    def attempt(stage: Stage) -> list[Refusal]:
        over_the_wire = refusal(executor(stage, stage.folder.agreement.app), fab)
        return [over_the_wire, *raised(approving(stage, fab), "fedskew-site: ")]

    return attempt


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def view_of(stage: Stage, name: str, labels: Callable[[Any], Any]) -> Callable[[], SiteView]:
    """Return what reads a copy of a site's npz, NAME.npz, whose training labels have gone through `labels`."""
    site_folder = stage.place(SITE)
    arrays: dict[str, Any] = dict(np.load(site_folder / "data.npz"))
    arrays["train_labels"] = labels(arrays["train_labels"])
    copy = stage.federation.work / f"{name}.npz"
    np.savez(copy, **arrays)
    site = read_site(site_folder / "site.toml")
    cache = stage.federation.work / "cache"
    return lambda: SiteView(DataSettings(), site.agreement, site.number, f"npz:{copy}", cache)


def plain_data(stage: Stage) -> str:
    """Read the same file with its own labels, written in the same way."""
    samples = len(view_of(stage, "plain", lambda labels: labels)().dataset.train_labels)
    require(samples, "no samples are read")
    return f"the same file with its own labels: {samples} training samples"


def pickle_in_data(stage: Stage) -> list[Refusal]:
    marker = stage.federation.work / "unpickled"
    hostile = view_of(
        stage, "hostile", lambda labels: np.array([Command(marker)] * len(labels), dtype=object)
    )
    refused = raised(hostile, "NO  data         ")
    if marker.exists():
        raise Succeeded("it was unpickled, and then refused")
    return refused


def received(record: ArrayRecord) -> Exchange:
    """Return an exchange that has received a reply with a record as its model."""
    about = Metadata(1, "reply", 7, 1, "question", "", 0.0, 60.0, "train")
    reply = Message(metadata=about, content=RecordDict({"0/model": record}))  # type: ignore[call-overload]
    exchange = Exchange([0])
    exchange.receive([reply], {7: [0]})
    return exchange


def plain_reply(stage: Stage) -> str:
    """Receive a reply as a site makes it."""
    exchange = received(pack({"weight": torch.ones(3)}))
    require(not exchange.failures, f"left out: {exchange.failures}")
    taken = exchange.answers[0].states["model"]
    require(taken["weight"].tolist() == [1, 1, 1], f"it reads as {taken}")
    return "a reply with a record of safetensors is taken"


def pickle_in_reply(stage: Stage) -> list[Refusal]:
    marker = stage.federation.work / "unpickled-at-the-server"
    values = pickle.dumps(Command(marker))
    exchange = received(
        ArrayRecord(
            {"state": Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=values)}
        )
    )
    if marker.exists() or 0 in exchange.answers:
        raise Succeeded("it was unpickled" if marker.exists() else "it was taken")
    return [Refusal("left out", f"client 0 left out: {exchange.failures.get(0)}")]


def copied_audit(stage: Stage) -> Audit:
    """Return a copy of a site's audit log."""
    state, copy = stage.place(SITE) / "state", stage.federation.work / "audit"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("audit.jsonl", "audit.jsonl.last"):
        shutil.copy(state / name, copy)
    return Audit(copy / "audit.jsonl")


def whole_audit(stage: Stage) -> str:
    """Verify the site's audit log as it is."""
    lines = copied_audit(stage).verify()
    require(lines > 3, f"the log has {lines} lines")
    return f"{lines} lines follow from each other"


def audit_without(removed: slice) -> Callable[[Stage], list[Refusal]]:
    """Return an attack that removes lines of a copy of a site's audit log."""

    def attempt(stage: Stage) -> list[Refusal]:
        audit = copied_audit(stage)
        lines = audit.path.read_bytes().splitlines(keepends=True)
        del lines[removed]
        audit.path.write_bytes(b"".join(lines))
        return raised(audit.verify, "fedskew-site: ")

    return attempt


def by_data(*words: str) -> tuple[Refusal, ...]:
    """Return refusals by the one sentence that commands end with."""
    return tuple(Refusal("DataError", each) for each in words)


LINK = "'client_app/app.py' is a link, which an app must not hold"
CLIMBS = "'../../a.py' is no plain path inside the app"
WHO_GIVES, WHO_WRITES = "who gives a site its data", "who can write the log"
ATTACKS = [
    Attack("an app whose hash begins with the agreed one's first eight hex digits", "a coordinator", ALONE,
           approved_one, same_eight_digits, (Refusal("refused", "is not approved at this site"),)),
    Attack("agent, model and connector tasks", "a coordinator", ALONE, agreed_one, other_tasks,
           tuple(Refusal("refused", f"this site runs no task of kind {kind}")
                 for kind in TASKS if kind != CLIENT_TASK)),
    Attack("a link in an app", "a coordinator", ALONE, agreed_zip,
           hostile_zip(packed({"a.py": b""}, link="client_app/app.py")), (Refusal("refused", LINK), *by_data(LINK))),
    Attack("a path that climbs in an app", "a coordinator", ALONE, agreed_zip,
           hostile_zip(packed({"../../a.py": b""})), (Refusal("refused", CLIMBS), *by_data(CLIMBS))),
    Attack("a pickle in a site's npz", WHO_GIVES, ALONE, plain_data, pickle_in_data,
           by_data("Object arrays are not plain")),
    Attack("a pickle in a reply", "a site", ALONE, plain_reply, pickle_in_reply,
           (Refusal("left out", "the record is not one array of safetensors"),)),
    Attack("a line removed from the audit log", WHO_WRITES, ALONE, whole_audit, audit_without(slice(2, 3)),
           by_data("line 3 does not follow from what is before it")),
    Attack("the end removed from the audit log", WHO_WRITES, ALONE, whole_audit, audit_without(slice(-2, None)),
           by_data("lines are missing at the end")),
]  # fmt: skip
