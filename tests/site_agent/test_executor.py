"""The executor runs what is approved with the code installed here, in processes that are new for every run."""

import hashlib
import io
import json
import os
import signal
import struct
import zipfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import records_of
from client_app.handlers import ClientFailure
from client_app.local_site import NotAllowed
from client_app.messages import FOLDED, pack, unfolded, unpack
from site_agent import executor as module
from site_agent.app_files import app_hash, packed_files
from site_agent.audit import Audit
from site_agent.executor import (
    CLIENT_TASK,
    TASKS,
    Executor,
    Incoming,
    facts_of,
    push_message,
)
from site_agent.pool import DIED, Pool
from strategies.core.exchange import Exchange

A, B = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def fab(text: str = "app = 1") -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr("client_app/app.py", text)
    return whole.getvalue()


def asked(**task: Any) -> Message:
    content = {"model": pack({"w": torch.tensor([1.0, 2.0])})}
    message = Message(RecordDict(content), dst_node_id=1, message_type="train")
    if task:
        message.content["task"] = ConfigRecord(task)
    message.metadata.__dict__["_run_id"] = 1
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
        self.message, self.fab = asked(), fab()
        monkeypatch.setattr(module, "connect", lambda *_: self)
        monkeypatch.setattr(module, "pull_task_input", self.pull)
        monkeypatch.setattr(
            module, "push_as_it_is", lambda client, reply, context: self.pushed.append(reply)
        )
        monkeypatch.setattr(
            module, "push_task_output", lambda client, context, status, _: self.ended.append(status)
        )
        monkeypatch.setattr(module, "HEARTBEAT", 0.0)
        self.audit, self.pool = Audit(folder / "audit.jsonl"), Pool(app)
        self.agreed = SimpleNamespace(sha256="", app=app_hash(packed_files(fab())))
        site = SimpleNamespace(agreement=self.agreed, audit=self.audit, state=folder, app=None)
        self.executor = Executor("loopback", b"secret", site, self.pool, lambda: False)  # type: ignore[arg-type]

    def pull(self, client: object) -> Any:
        return self.message, context(), SimpleNamespace(run_id=7), SimpleNamespace(content=self.fab)

    def SendTaskHeartbeat(self, request: object) -> Any:
        return SimpleNamespace(success=self.running)

    def close(self) -> None:
        pass

    def serve(self, kind: str = CLIENT_TASK, **task: Any) -> Message:
        """Answer a message and return the reply, its content as it was before it was folded."""
        if task:
            self.message = asked(**task)
        try:
            self.executor.serve(SimpleNamespace(type=kind), "token")  # type: ignore[arg-type]
        finally:
            self.pool.end()
        reply = self.pushed[-1]
        if reply.has_content():
            reply.content = unfolded(reply.content)
        return reply

    def entries(self) -> list[Any]:
        return [json.loads(line) for line in self.audit.lines()]


def times(factor: float) -> Any:
    """Return an app that answers with the model times a factor."""

    def app(message: Message, context: Context) -> Message:
        state = unpack(message.content.array_records["model"])
        return Message(RecordDict({"0/model": pack({"w": state["w"] * factor})}), reply_to=message)

    return app


def answer(reply: Message) -> list[float]:
    values: list[float] = unpack(reply.content.array_records["0/model"])["w"].tolist()
    return values


def never(message: Message, context: Context) -> Message:
    pytest.fail("it runs")


# ---- what is answered, and what is not -------------------------------------------------------------------------------


def test_the_approved_app_is_answered_by_the_code_here_and_the_log_says_what_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, times(2))
    assert answer(site.serve()) == [2, 4] and site.ended == ["completed"]
    (entry,) = site.entries()
    assert (entry["event"], entry["run"], entry["kind"]) == ("answered", 7, "train")
    (row,) = entry["left"]
    assert (row["name"], row["norm"]) == ("0/model", 2.23607), "the norm of the change"
    assert row["bytes"] > 0 and site.audit.verify() == 1


@pytest.mark.parametrize(
    "what", ["another app", "no app", "an app with the same first digits", *TASKS]
)
def test_another_app_or_task_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    site = Site(tmp_path, monkeypatch, times(2) if what == CLIENT_TASK else never)
    if what == CLIENT_TASK:  # the control
        assert site.serve(what).has_content()
        return
    if what not in TASKS:
        site.fab = b"no zip" if what == "no app" else fab("app = 2")
    if what.endswith("digits"):  # flwr keeps unpacked apps under eight of them
        other, agreed = app_hash(packed_files(site.fab)), site.agreed.app
        site.agreed.app = other[:8] + agreed[8:]
    reply = site.serve(what if what in TASKS else CLIENT_TASK)
    assert reply.error.code == 7 and site.ended == ["failed"] and site.pool.process is None
    assert [entry["event"] for entry in site.entries()] == ["refused"]


def test_of_an_error_only_its_class_leaves_but_for_the_reason_that_the_app_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: Message, context: Context) -> Message:
        raise ValueError("MUELLER_Anna.png")

    reply = Site(tmp_path, monkeypatch, fail).serve()
    assert (reply.error.code, reply.error.reason) == (2, "ValueError")

    def answer_failure(message: Message, context: Context) -> Message:
        record = records_of(ClientFailure(reason="data 1"))["error"]
        return Message(RecordDict({"0/error": record}), reply_to=message)

    site = Site(tmp_path, monkeypatch, answer_failure)
    assert site.serve().content["0/error"]["reason"] == "data 1" and site.ended == ["completed"]
    failed, answered = site.entries()
    assert failed["event"] == "failed" and answered["left"][0]["why"] == "data 1"


def test_of_a_refusal_the_key_leaves_and_the_reason_stays_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: Message, context: Context) -> Message:
        raise NotAllowed("scores", "5 test samples")

    site = Site(tmp_path, monkeypatch, refuse)
    reply = site.serve()
    assert (reply.error.code, reply.error.reason) == (7, "policy: scores")
    (entry,) = site.entries()
    assert entry["event"] == "refused" and "5 test samples" in entry["why"] and not entry["left"]


def test_what_the_audit_log_cannot_hold_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(event: str, **entry: Any) -> None:
        raise OSError(28, "No space left on device")

    site = Site(tmp_path, monkeypatch, times(2))
    monkeypatch.setattr(site.audit, "write", full)
    assert site.serve().has_error() and site.ended == ["failed"]


def test_the_same_reply_has_another_name_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are sha256 of contents: without random bytes whoever knows a name can test a guess at class counts."""
    site = Site(tmp_path, monkeypatch, times(2))
    counts = {"0/upload/class-counts": pack({"counts": torch.tensor([3, 5])})}
    for _ in range(2):
        push_message(None, Message(RecordDict({**counts}), reply_to=site.message), context())  # type: ignore[arg-type]
    folds = [reply.content[FOLDED] for reply in site.pushed]
    assert folds[0].object_id != folds[1].object_id
    record = unfolded(site.pushed[0].content).array_records["0/upload/class-counts"]
    assert unpack(record)["counts"].tolist() == [3, 5]


# ---- the run's settings, and the text that they state ----------------------------------------------------------------


def test_a_runs_settings_stand_in_the_audit_log_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the settings; their hash, the run's name, its methods and the round with every message."""
    site = Site(tmp_path, monkeypatch, times(2))
    stated = {"folder": "sites-a", "variants": {"logit-shift": {}}, "data": {"dataset": "digits"}}
    texts = [json.dumps({**stated, "seed": 1}), json.dumps({**stated, "seed": 2}), "x" * 10**6]
    for number in (0, 0, 1, 2):
        site.serve(round=3, assignment=texts[number])
    entries = site.entries()
    events = ["run", "answered", "answered", "run", "answered", "run", "answered"]
    assert [entry["event"] for entry in entries] == events
    codes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    hashes = [codes[0]] * 3 + [codes[1]] * 2 + [codes[2]] * 2
    assert [entry["settings"] for entry in entries] == hashes
    said = [entry["text"] for entry in entries if entry["event"] == "run"]
    assert said == [*texts[:2], "1000000 characters"]
    answered = entries[1]
    assert (answered["round"], answered["name"]) == (3, "sites-a")
    assert answered["method"] == "logit-shift"


def test_a_text_that_is_not_approved_is_a_failure_of_the_site_s_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads it as this site's, and asks no second time; where no client is named it is an error."""
    site = Site(tmp_path, monkeypatch, times(2))
    site.agreed.sha256 = A

    run = {"folder": "sites-a", "variants": {}}

    def stating(code: str, **task: Any) -> Message:
        settings = json.dumps({**run, "data": {"dataset": f"sites:{code}"}})
        return site.serve(assignment=settings, **task)

    assert answer(stating(A)) == [2, 4] and site.entries()[-1]["federation"] == A
    reply = stating(B, clients=[2])
    exchange = Exchange([0, 2])
    exchange.receive([reply], {reply.metadata.src_node_id: [2]})
    assert exchange.reported[2].kind == "agreement" and B[:16] in exchange.failures[2]
    assert site.ended == ["completed"] * 2 and site.entries()[-1]["event"] == "refused"
    assert stating(B).error.code == stating(B, clients=["two"]).error.code == 7
    for wrong in ("sites:" + "A" * 64, f"sites:../{A}", 7):
        facts = facts_of(json.dumps({**run, "data": {"dataset": wrong}}))
        assert facts == {"name": "sites-a", "method": "plain training"}
    for other in ("[]", '{"data": []}', "[" * 100_000):
        assert not facts_of(other)


# ---- processes that end ----------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_an_error_and_the_next_message_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks again."""
    dead = tmp_path / "dead"

    def die_once(message: Message, context: Context) -> Message:
        if not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        reply: Message = times(2)(message, context)
        return reply

    site = Site(tmp_path, monkeypatch, die_once)
    assert site.serve().error.code == 8 and site.ended == ["failed"]
    assert answer(site.serve()) == [2, 4] and site.ended == ["failed", "completed"]
    assert [entry["event"] for entry in site.entries()] == ["failed", "answered"]


def test_a_worker_that_dies_while_it_sends_its_reply_is_the_same_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, test, send = tmp_path / "dead", os.getpid(), Connection.send

    def die_in_the_middle(connection: Connection, content: Any) -> None:
        if os.getpid() != test and not dead.exists():
            dead.touch()
            os.write(connection.fileno(), struct.pack("!i", 100) + b"half")  # 100 bytes follow
            os.kill(os.getpid(), signal.SIGKILL)
        send(connection, content)

    monkeypatch.setattr(Connection, "send", die_in_the_middle)
    site = Site(tmp_path, monkeypatch, times(2))
    reply = site.serve()
    assert (reply.error.code, DIED in reply.error.reason) == (8, True)
    assert answer(site.serve()) == [2, 4]
    assert [entry["event"] for entry in site.entries()] == ["failed", "answered"]


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
    def pid(message: Message, context: Context) -> Message:
        content = {"0/pid": pack({"w": torch.tensor([os.getpid()])})}
        return Message(RecordDict(content), reply_to=message)

    monkeypatch.setattr("site_agent.pool.MOST_MESSAGES", 3)
    pool, seen = Pool(pid), []
    try:
        for run in (1, 1, 1, 1, 2):
            reply, _, _ = pool.run_task(run, asked(), context(), lambda: None)
            seen.append(int(unpack(reply.content.array_records["0/pid"])["w"][0]))
    finally:
        pool.end()
    assert seen[0] == seen[1] == seen[2] != seen[3] != seen[4]
    assert os.getpid() not in seen and not Path(f"/proc/{seen[-1]}").exists()


class Away(BaseException):
    """Ends a serving that goes on for ever."""


def test_what_a_killed_executor_had_in_hand_is_given_back_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flwr's SuperNode waits for ever for a message that nobody has pulled of a task that has begun, else a minute."""
    waiting = SimpleNamespace(messages_list=[message_to_proto(asked())])
    node = SimpleNamespace(
        PullTaskInput=lambda request: None, PullMessages=lambda request: waiting, close=lambda: None
    )

    def killed(*_: object) -> Any:
        raise Away

    site, tokens = Site(tmp_path, monkeypatch, times(2)), list[str]()
    keep, file = site.executor.keep, site.executor.in_hand
    keep("the token")
    # Its message was pulled, and is not there a second time.
    recorder = Incoming(node, lambda: None, lambda message: keep("the token", message))
    recorder.PullMessages(None)
    waiting.messages_list = []
    monkeypatch.setattr(module, "connect", lambda *_: node)
    monkeypatch.setattr(module, "RuntimeTokenHttpInterceptor", tokens.append)
    monkeypatch.setattr(site.executor, "take", killed)
    with pytest.raises(Away):
        site.executor.run()
    (reply,) = site.pushed
    assert reply.error.code == 8 and reply.metadata.reply_to_message_id == "m"
    assert tokens == ["the token"] and site.ended == ["failed"] and not file.exists()
    (entry,) = site.entries()
    assert entry["app"] == site.executor.agreement.app


def test_a_message_whose_rest_does_not_come_makes_room_for_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, times(2))
    task = SimpleNamespace(task=SimpleNamespace(type=CLIENT_TASK), token="t", HasField=bool)
    none = SimpleNamespace(HasField=lambda name: False)
    tasks = iter([task, none, task])
    on_its_way = SimpleNamespace(object_found=True, object_available=False)

    def pull(incoming: Any) -> Any:
        if not site.ended:
            incoming.PullObject("the first message's")
        return site.pull(incoming)

    monkeypatch.setattr(site, "AcquireTask", lambda request: next(tasks), raising=False)
    monkeypatch.setattr(site, "PullObject", lambda request: on_its_way, raising=False)
    monkeypatch.setattr(module, "pull_task_input", pull)
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(site.executor, "idle", lambda: bool(site.pushed))
    site.executor.run()
    site.pool.end()
    assert site.ended == ["failed", "completed"] and len(site.pushed) == 1


@pytest.mark.parametrize("content", [b"", b"t", b"\xff\n", b"t\nno message"])
def test_what_was_in_hand_and_is_cut_short_does_not_keep_the_next_executor_from_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    site = Site(tmp_path, monkeypatch, times(2))
    site.executor.in_hand.write_bytes(content)
    monkeypatch.setattr(site.executor, "idle", lambda: True)
    site.executor.run()
    assert not site.pushed and not site.executor.in_hand.exists()
