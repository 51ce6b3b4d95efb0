"""The executor runs what is approved with the code installed here, in processes that are new for every run."""

import hashlib
import io
import json
import os
import signal
import socket
import threading
import zipfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as MessageOnTheWire
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import records_of
from client_app.handlers import ClientFailure
from client_app.messages import FOLDED, NONCE, NONCE_BYTES, folded, pack, unfolded, unpack
from client_app.polling import PollingClient
from site_agent import executor as module
from site_agent.app_files import app_hash, packed_files
from site_agent.approved_texts import ApprovedText
from site_agent.audit import Audit
from site_agent.executor import CLIENT_TASK, TASKS, Executor, connect, push_message
from site_agent.pending_task import MessageRecorder, PendingTask
from site_agent.pool import MOST_MESSAGES, Pool, TaskAbandoned, leaving
from site_agent.run_facts import text_of
from strategies.core.exchange import Exchange


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def fab(text: str = "app = 1") -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr("client_app/app.py", text)
    return whole.getvalue()


def asked(run: int = 1, **arrays: Any) -> Message:
    model = pack({name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()})
    message = Message(RecordDict({"model": model}), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_run_id"] = run
    message.metadata.__dict__["_message_id"] = "m"
    return message


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


class Site:
    """An executor whose SuperNode is this object."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, app: Any) -> None:
        self.pushed: list[Message] = []
        self.ended: list[str] = []
        self.running = True
        self.message, self.fab = asked(w=[1, 2]), fab()
        monkeypatch.setattr(module, "connect", lambda *_: self)
        monkeypatch.setattr(module, "pull_task_input", self.pull)
        monkeypatch.setattr(
            module, "push_message", lambda client, reply, context: self.pushed.append(reply)
        )
        monkeypatch.setattr(
            module, "push_task_output", lambda client, context, status, _: self.ended.append(status)
        )
        monkeypatch.setattr(module, "HEARTBEAT", 0.0)
        self.audit, self.pool = Audit(folder / "audit.jsonl"), Pool(app)
        approved = app_hash(packed_files(fab()))
        text = ApprovedText("", approved)
        self.executor = Executor(
            "loopback", b"secret", text, self.pool, self.audit, folder / "task", lambda: None
        )

    def pull(self, client: object) -> Any:
        return self.message, context(), SimpleNamespace(run_id=7), SimpleNamespace(content=self.fab)

    def SendTaskHeartbeat(self, request: object) -> Any:
        return SimpleNamespace(success=self.running)

    def close(self) -> None:
        pass

    def serve(self, kind: str = CLIENT_TASK) -> Message:
        self.executor.serve(SimpleNamespace(type=kind), "token")  # type: ignore[arg-type]
        return self.pushed[-1]

    def entry(self) -> Any:
        return json.loads(self.audit.lines()[-1])


def double(message: Message, context: Context) -> Message:
    state = unpack(message.content.array_records["model"])
    return Message(RecordDict({"0/model": pack({"w": state["w"] * 2})}), reply_to=message)


def pid(message: Message, context: Context) -> Message:
    return Message(
        RecordDict({"0/pid": pack({"w": torch.tensor([os.getpid()])})}), reply_to=message
    )


def test_the_approved_app_is_answered_by_the_code_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, double)
    try:
        reply = site.serve()
    finally:
        site.pool.end()
    assert unpack(reply.content.array_records["0/model"])["w"].tolist() == [2, 4]
    assert site.ended == ["completed"]
    entry = site.entry()
    assert entry["event"] == "answered" and entry["run"] == 7 and entry["kind"] == "train"
    assert [(row["name"], row["norm"]) for row in entry["left"]] == [("0/model", 2.23607)], (
        "the norm of the change"
    )
    assert entry["left"][0]["bytes"] > 0


def test_another_app_is_refused_before_anything_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    for content in (fab("app = 2"), b"no zip"):
        site.fab = content
        reply = site.serve()
        assert (
            reply.has_error()
            and reply.error.code == 7
            and "not approved" in str(reply.error.reason)
        )
        assert (
            site.ended[-1] == "failed"
            and site.entry()["event"] == "refused"
            and site.pool.process is None
        )


def test_the_first_digits_of_a_hash_are_not_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flwr keeps unpacked apps under eight of them."""
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    site.fab = fab("app = 2")
    other, agreed = app_hash(packed_files(site.fab)), site.executor.texts.current.app
    site.executor.texts = ApprovedText("", other[:8] + agreed[8:])
    assert "not approved" in str(site.serve().error.reason) and site.entry()["event"] == "refused"


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind != CLIENT_TASK])
def test_tasks_of_other_kinds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    assert kind in str(site.serve(kind).error.reason) and site.entry()["why"].endswith(kind)


def test_what_an_error_says_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(message: Message, context: Context) -> Message:
        raise ValueError("MUELLER_Anna.png")

    site = Site(tmp_path, monkeypatch, fail)
    try:
        reply = site.serve()
    finally:
        site.pool.end()
    assert (reply.error.code, reply.error.reason) == (2, "ValueError") and site.entry()[
        "event"
    ] == "failed"


def test_a_worker_that_dies_is_replaced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "dead"

    def die_once(message: Message, context: Context) -> Message:
        if not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return double(message, context)

    site = Site(tmp_path, monkeypatch, die_once)
    try:
        assert site.serve().has_content() and site.ended == ["completed"]
    finally:
        site.pool.end()


def test_a_worker_that_dies_twice_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert site.serve().error.code == 8 and site.ended == ["failed"] and site.pool.process is None


def test_a_task_that_nobody_waits_for_ends_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: signal.pause())
    site.running = False
    site.executor.serve(SimpleNamespace(type=CLIENT_TASK), "token")  # type: ignore[arg-type]
    assert not site.pushed and site.pool.process is None


def test_processes_are_new_for_every_run_and_after_so_many_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("site_agent.pool.MOST_MESSAGES", 3)
    assert MOST_MESSAGES == 200
    pool, seen = Pool(pid), []
    try:
        for run in (1, 1, 1, 1, 2, 2):
            answered = pool.run_task(run, asked(), context(), lambda: None)
            assert answered
            seen.append(int(unpack(answered[0].content.array_records["0/pid"])["w"][0]))
    finally:
        pool.end()
    assert seen[0] == seen[1] == seen[2] != seen[3] != seen[4] == seen[5]
    assert os.getpid() not in seen and not Path(f"/proc/{seen[-1]}").exists()


class Away(BaseException):
    """Ends a serving that goes on for ever."""


class Left:
    """A SuperNode's runtime interface, and a task of which a message is still to be pulled, or has been."""

    def __init__(self, begun: bool, pulled: bool) -> None:
        self.begun, self.messages = (
            begun,
            [] if pulled else [message_to_proto(remove_content_from_message(asked()))],
        )

    def PullTaskInput(self, request: object) -> None:
        if self.begun:
            raise RuntimeError("412 Precondition Failed")
        self.begun = True

    def PullMessages(self, request: object) -> Any:
        messages, self.messages = self.messages, []
        return SimpleNamespace(messages_list=messages)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("begun", "pulled", "noted"),
    [(False, False, False), (True, False, False), (True, True, True), (True, True, False)],
)
def test_what_a_killed_executor_had_in_hand_is_given_back_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, pulled: bool, noted: bool
) -> None:
    """flwr's SuperNode waits for ever for a message that nobody has pulled of a task that has begun, else a minute."""

    def killed(*_: object) -> Any:
        raise Away

    left, site, tokens = (
        Left(begun=False, pulled=False),
        Site(tmp_path, monkeypatch, double),
        list[str](),
    )
    at_work = MessageRecorder(
        left, lambda message: site.executor.pending_task.write("the token", message)
    )
    site.executor.pending_task.write("the token")
    if begun:
        at_work.PullTaskInput(None)
    if pulled:
        (left if not noted else at_work).PullMessages(None)
    file = tmp_path / "task"
    assert (
        file.stat().st_mode & 0o77 == 0 and bool(json.loads(file.read_text())["message"]) == noted
    )
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = (
        None  # as in a process that has served none
    )
    monkeypatch.setattr(module, "connect", lambda *_: left)
    monkeypatch.setattr(module, "RuntimeTokenHttpInterceptor", tokens.append)
    monkeypatch.setattr(site.executor, "take", killed)
    with pytest.raises(Away):
        site.executor.run()
    assert tokens == ["the token"] and left.begun and site.ended == ["failed"] and not file.exists()
    if pulled and not noted:  # killed in between: flwr answers in a minute
        assert not site.pushed
        return
    (reply,) = site.pushed
    assert (
        reply.error.code == 8
        and reply.metadata.reply_to_message_id == "m"
        and reply.metadata.src_node_id == 1
    )
    assert site.entry()["why"] == "the executor was killed" and site.entry()["left"] == []


def test_a_task_that_is_served_is_noted_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, notes = Site(tmp_path, monkeypatch, double), list[Any]()

    def pull(client: Any) -> Any:
        notes.append(site.executor.pending_task.read())
        client.PullMessages(None)
        notes.append(site.executor.pending_task.read())
        return site.pull(client)

    monkeypatch.setattr(
        site, "PullMessages", Left(begun=True, pulled=False).PullMessages, raising=False
    )
    monkeypatch.setattr(module, "pull_task_input", pull)
    try:
        site.serve()
    finally:
        site.pool.end()
    (token, nothing), (same, message) = notes
    assert (
        token == same == "token"
        and not nothing
        and MessageOnTheWire.FromString(message).metadata.message_id == "m"
    )
    assert site.executor.pending_task.read() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"token": "t"}', '{"token": "t", "message": "?"}', "\u00ff"]
)
def test_a_note_cut_short_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "task").write_text(text, encoding="latin-1")
    assert PendingTask(tmp_path / "task").read() is None


def test_what_the_audit_log_cannot_hold_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(event: str, **entry: Any) -> None:
        raise OSError(28, "No space left on device")

    site = Site(tmp_path, monkeypatch, double)
    monkeypatch.setattr(site.audit, "write", full)
    try:
        reply = site.serve()
    finally:
        site.pool.end()
    assert reply.has_error() and reply.error.reason == "the site cannot write its audit log"
    assert site.ended == ["failed"]


class Halted:
    """A SuperNode two of whose tasks come one after the other; the first one's message stops half way."""

    def __init__(self, site: Site, halted: bool) -> None:
        self.site, self.halted = site, halted
        self.waits = 0

    def AcquireTask(self, request: object) -> Any:
        """Return the second task once the first has waited for a while, and end the executor after it."""
        if self.site.ended[-1:] == ["completed"]:
            raise Away
        self.waits += 1
        task, there = SimpleNamespace(type=CLIENT_TASK), self.waits > 3
        return SimpleNamespace(task=task, token="second", HasField=lambda name: there)

    def pull(self, client: Any) -> Any:
        """Pull as flwr does: until the object is there."""
        if not self.halted:
            return self.site.pull(client)
        with pytest.raises(TaskAbandoned):
            client.PullObject("an object")
        self.halted = False
        raise TaskAbandoned("the rest does not come")

    def PullObject(self, request: object) -> Any:
        return SimpleNamespace(object_found=True, object_available=False)


def test_a_message_that_stops_half_way_is_given_up_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ServerApp was killed while it sent. flwr's own answer for the task would hold up the next one's reply."""
    monkeypatch.setattr("client_app.polling.POLL", 0.0)
    monkeypatch.setattr(module, "LOOK", 0.0)
    site = Site(tmp_path, monkeypatch, double)
    node = Halted(site, halted=True)
    monkeypatch.setattr(site, "PullObject", node.PullObject, raising=False)
    monkeypatch.setattr(module, "pull_task_input", node.pull)
    monkeypatch.setattr(site.executor, "link", node)
    try:
        site.executor.serve(SimpleNamespace(type=CLIENT_TASK), "first")  # type: ignore[arg-type]
        with pytest.raises(Away):
            site.executor.run()
    finally:
        site.pool.end()
    assert site.ended == ["failed", "completed"] and len(site.pushed) == 1 and node.waits == 4
    assert site.executor.pending_task.read() is None


def test_objects_are_asked_for_until_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.polling.POLL", 0.0)
    answers = [(True, False), (True, False), (True, True), (False, False)]
    waits: list[int] = []

    class Node:
        def PullObject(self, request: object) -> Any:
            there, whole = answers.pop(0)
            return SimpleNamespace(object_found=there, object_available=whole)

    incoming = PollingClient(Node(), lambda: waits.append(1))
    assert incoming.PullObject("an object").object_available and len(waits) == 2
    assert not incoming.PullObject("another").object_found and len(waits) == 2
    answers.append((True, False))
    incoming.close()
    with pytest.raises(TimeoutError, match="nobody waits"):
        incoming.PullObject("a third")


def test_a_request_on_a_connection_that_is_just_closed_is_sent_again() -> None:
    """uvicorn closes what was idle for 5 seconds: an update that took so long would be lost, and its round with it."""
    heard: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        for _ in range(2):
            connection = listening.accept()[0]
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                connection.recv(65536)  # and nothing is said to that

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,), daemon=True)
        serving.start()
        with closing(connect(f"127.0.0.1:{listening.getsockname()[1]}")) as client:
            for _ in range(2):
                assert not client.AcquireTask(AcquireTaskRequest()).HasField("task")
        serving.join(10)
    assert len(heard) == 2 and not serving.is_alive()


def test_a_message_travels_folded_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, double)
    sent: list[Message] = []
    monkeypatch.setattr(module, "push_message", push_message)
    monkeypatch.setattr(module, "push_as_it_is", lambda client, reply, context: sent.append(reply))
    site.message.content = folded(site.message.content)
    try:
        site.executor.serve(SimpleNamespace(type=CLIENT_TASK), "token")  # type: ignore[arg-type]
    finally:
        site.pool.end()
    assert list(sent[0].content) == [FOLDED] and [row["name"] for row in site.entry()["left"]] == [
        "0/model"
    ]
    assert unpack(unfolded(sent[0].content).array_records["0/model"])["w"].tolist() == [2, 4]


def test_the_same_reply_has_another_name_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are sha256 of contents: without random bytes whoever knows a name can test a guess at class counts."""
    sent: list[Message] = []
    monkeypatch.setattr(module, "push_as_it_is", lambda client, reply, context: sent.append(reply))
    counts = {"0/upload/class-counts": pack({"counts": torch.tensor([3, 5])})}
    asked = Site(tmp_path, monkeypatch, double).message
    for _ in range(2):
        push_message(None, Message(RecordDict({**counts}), reply_to=asked), context())  # type: ignore[arg-type]
    names = [{name for name, _ in reply.content[FOLDED].children or {}} for reply in sent]
    assert sent[0].content[FOLDED].object_id != sent[1].content[FOLDED].object_id
    assert names[0] == names[1] == set(), "a record of bytes is one object"
    assert all(len(reply.content[FOLDED][NONCE]) == NONCE_BYTES for reply in sent)  # type: ignore[arg-type]
    states = [
        unpack(unfolded(reply.content).array_records["0/upload/class-counts"]) for reply in sent
    ]
    assert [state["counts"].tolist() for state in states] == [[3, 5]] * 2
    assert folded(counts)[FOLDED].object_id == folded(counts)[FOLDED].object_id, (
        "a simulation's has none"
    )


def assigned(text: object) -> Message:
    message = asked(w=[1, 2])
    message.content["task"] = ConfigRecord({"round": 1, "assignment": text})  # type: ignore[dict-item]
    return message


def test_a_runs_settings_and_their_hash_stand_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the settings, before anything is answered; their hash with every message."""
    site = Site(tmp_path, monkeypatch, double)
    texts = [json.dumps({"training": {"batch_size": size}}) for size in (8, 1)]
    try:
        for text in (texts[0], texts[0], texts[1]):
            site.message = assigned(text)
            site.serve()
    finally:
        site.pool.end()
    entries = [json.loads(line) for line in site.audit.lines()]
    assert [entry["event"] for entry in entries] == [
        "run",
        "answered",
        "answered",
        "run",
        "answered",
    ]
    codes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert [entry["settings"] for entry in entries] == [codes[0]] * 3 + [codes[1]] * 2
    assert (entries[0]["text"], entries[3]["text"]) == (texts[0], texts[1])
    assert entries[0]["run"] == 7 and site.audit.verify() == 5


@pytest.mark.parametrize("text", [7, b"bytes", ["a", "b"], None])
def test_settings_that_are_no_text_are_left_to_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: object
) -> None:
    site = Site(tmp_path, monkeypatch, double)
    site.message = asked(w=[1, 2]) if text is None else assigned(text)
    try:
        site.serve()
    finally:
        site.pool.end()
    assert site.entry()["event"] == "answered" and "settings" not in site.entry()


def test_each_line_names_the_run_its_methods_and_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, double)
    site.message = assigned(json.dumps({"folder": "sites-a", "variants": {"logit-shift": {}}}))
    try:
        site.serve()
    finally:
        site.pool.end()
    first, answered = (json.loads(line) for line in site.audit.lines())
    assert first["name"] == answered["name"] == "sites-a"
    assert first["method"] == answered["method"] == "logit-shift" and answered["round"] == 1


def test_endless_settings_do_not_fill_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, double)
    site.message = assigned("x" * 10**6)
    try:
        site.serve()
    finally:
        site.pool.end()
    first = json.loads(site.audit.lines()[0])
    assert first["event"] == "run" and first["text"] == "1000000 characters"


def failing(message: Message, context: Context) -> Message:
    failure = records_of(ClientFailure(reason="data 1"))
    return Message(RecordDict({"0/error": failure["error"]}), reply_to=message)


def test_a_failure_is_pushed_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, failing)
    module = "site_agent.executor"
    monkeypatch.setattr(f"{module}.push_message", push_message)
    pushed = site.pushed
    monkeypatch.setattr(
        f"{module}.push_as_it_is", lambda client, reply, context: pushed.append(reply)
    )
    try:
        reply = site.serve()
    finally:
        site.pool.end()
    assert unfolded(reply.content)["0/error"]["reason"] == "data 1"
    assert site.ended == ["completed"]


def test_the_reason_of_a_failure_leaves_though_flwr_cannot_count_empty_texts() -> None:
    question = asked()
    record = records_of(ClientFailure(reason="data 1"))["error"]
    assert record["kind"] == ""
    with pytest.raises(ValueError, match="Config values"):
        record.count_bytes()
    (row,) = leaving(Message(RecordDict({"0/error": record}), reply_to=question), question)
    assert (row["name"], row["why"]) == ("0/error", "data 1")
    filled = ConfigRecord({"kind": "policy", "reason": "data 1", "number": 1})
    (other,) = leaving(Message(RecordDict({"0/error": filled}), reply_to=question), question)
    assert other["bytes"] == filled.count_bytes()


# ---- two approved texts ----------------------------------------------------------------------------------------------


def triple(message: Message, context: Context) -> Message:
    state = unpack(message.content.array_records["model"])
    return Message(RecordDict({"0/model": pack({"w": state["w"] * 3})}), reply_to=message)


class TwoTexts:
    """What a site has approved: `now` as long as it counts, and the one before."""

    def __init__(self) -> None:
        app = app_hash(packed_files(fab()))
        self.current = ApprovedText("a" * 64, app, triple)
        self.former = ApprovedText("b" * 64, app, double, until=datetime(2999, 1, 1, tzinfo=UTC))

    def chosen(self, stated: str, app: str) -> ApprovedText:
        text = self.former if stated == self.former.federation else self.current
        return text.chosen(stated, app)


def stating(text: str, clients: object = (2,)) -> Message:
    """Return a message of a run with a text, for the client with the site's number."""
    message = asked(w=[1, 2])
    settings = json.dumps({"data": {"dataset": f"sites:{text}"}, "folder": "r", "variants": {}})
    task: dict[str, Any] = {"round": 4, "assignment": settings}
    if isinstance(clients, tuple):
        task["clients"] = list(clients)
    message.content["task"] = ConfigRecord(task)
    return message


def test_a_message_is_answered_under_the_text_that_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    texts: Any = TwoTexts()
    site.executor.texts = texts
    seen = []
    try:
        for code in ("a" * 64, "b" * 64, "a" * 64):
            site.message = stating(code)
            reply = site.serve()
            seen.append(unpack(reply.content.array_records["0/model"])["w"].tolist())
            assert site.entry()["federation"] == code and site.entry()["event"] == "answered"
    finally:
        site.pool.end()
    assert seen == [[3, 6], [2, 4], [3, 6]], "within one run of flwr's, each with its own worker"
    runs = [json.loads(line) for line in site.audit.lines()]
    stated = [entry["federation"] for entry in runs if entry["event"] == "run"]
    assert stated == ["a" * 64, "b" * 64]


def test_a_text_that_is_not_approved_is_a_failure_of_the_site_s_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads it as this site's, and asks no second time."""
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    texts: Any = TwoTexts()
    site.executor.texts = texts
    site.message = stating("c" * 64)
    reply = site.serve()
    exchange = Exchange([0, 2])
    exchange.receive([reply], {reply.metadata.src_node_id: [2]})
    reason = f"agreement: federation.toml {'c' * 16} is not approved at this site"
    assert exchange.failures == {2: reason} and exchange.reported[2].kind == "agreement"
    entry = site.entry()
    assert (entry["event"], entry["federation"]) == ("refused", "c" * 64)
    assert site.ended == ["completed"] and site.pool.process is None


@pytest.mark.parametrize("clients", [None, (), ("two",)])
def test_without_a_client_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: object
) -> None:
    site = Site(tmp_path, monkeypatch, lambda *_: pytest.fail("it runs"))
    texts: Any = TwoTexts()
    site.executor.texts = texts
    site.message = stating("c" * 64, clients)
    reply = site.serve()
    assert reply.error.code == 7 and "is not approved at this site" in str(reply.error.reason)


@pytest.mark.parametrize(
    "dataset", [f"npz:{'a' * 64}", "sites:" + "A" * 64, "sites:", "sites:../" + "a" * 64, 7, None]
)
def test_what_states_no_text_states_none(dataset: object) -> None:
    assert text_of(json.dumps({"data": {"dataset": dataset}})) == ""
    assert text_of(json.dumps({"data": {"dataset": "sites:" + "a" * 64}})) == "a" * 64


@pytest.mark.parametrize("settings", ["", "{", "[]", "7", '{"data": []}', "[" * 100_000])
def test_settings_of_another_form_state_no_text(settings: str) -> None:
    assert text_of(settings) == ""
