"""The executor: takes the SuperNode's tasks and runs them with the installed code, never with received code."""

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from client_app.app import records_of
from client_app.flower_internals import message_from_proto
from client_app.handlers import ClientFailure
from client_app.local_site import RUN_SIGNATURE, hash_of
from client_app.messages import ACTION, NONCE_BYTES, folded, unfolded
from client_app.polling import PollingClient
from data import DataError
from site_agent.app_files import app_hash, packed_files
from site_agent.approved_texts import ApprovedText, ApprovedTexts, NotApproved, TextNotApproved
from site_agent.audit import Audit
from site_agent.flower_internals import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    MessageOnTheWire,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    RetryInvoker,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SuperExecAuthHttpInterceptor,
    Task,
    constant,
    pull_task_input,
    push_task_output,
)
from site_agent.flower_internals import push_message as push_as_it_is
from site_agent.pending_task import MessageRecorder, PendingTask
from site_agent.pool import REFUSED, Pool, TaskAbandoned
from site_agent.run_approval import LONGEST as LONGEST_SETTINGS
from site_agent.run_facts import facts_of, round_of, text_of
from site_agent.run_signature import LONGEST as LONGEST_SIGNATURE

logger = logging.getLogger("fedskew.site")
CLIENT_TASK = "flwr-clientapp"
TASKS = (CLIENT_TASK, "flwr-agentapp", "flwr-model", "flwr-connector")
"""What a SuperLink can send to a SuperNode; all are taken, so that what is refused is answered and stops nothing."""
CRASHED = 8
"""flwr's code for an error in place of a reply: CLIENT_APP_CRASHED."""
UNLOGGED = "the site cannot write its audit log"
KILLED = "the executor was killed"
SHORTEST, LONGEST, SHARE = 0.1, 0.5, 0.1
"""Seconds between two questions for a task at least and at most, and as a share of the time since the last task; each
costs site and SuperNode 10 ms together."""
TRIES, PAUSE = 3, 0.5
"""How often a request is sent that the SuperNode does not answer, and the seconds between, at most. Its server closes a
connection that was idle for 5 seconds, and what is sent at that moment is lost; with an object of a reply lost, a
SuperNode would wait for it for ever."""
LOOK = 1.0
"""Seconds between two questions for the next task while a message is awaited."""
MOST_NAMED = 16
"""Clients of a message that a refusal names at most; FedSkew's messages to a site name one."""
HEARTBEAT = 10.0
"""Seconds between signs of life for a task; flwr gives one up after 60 without."""

packed_hash = lru_cache(2)(lambda fab: app_hash(packed_files(fab)))


def connect(address: str, *interceptors: Any) -> RuntimeHttpClient:
    """Return a client of a SuperNode's runtime interface on loopback."""
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            *interceptors,
        ],
        retry_invoker=RetryInvoker(
            lambda: constant(PAUSE),
            Exception,
            TRIES,
            None,
            should_giveup=answered,
        ),
    )


def answered(error: Exception) -> bool:
    """Return whether an error of httpx, which flwr calls, is of an answer: a refusal, which stays one."""
    return hasattr(error, "response")


def logged_kind(message: Message) -> str:
    """Return a message's type for the audit log, without the action that all of FedSkew's own messages have."""
    return message.metadata.message_type.removesuffix(f".{ACTION}")


def settings_of(message: Message) -> str:
    """Return the settings of the run that a message states, a JSON text; "" where it states none."""
    if not message.has_content() or "task" not in message.content.config_records:
        return ""
    settings = message.content.config_records["task"].get("assignment")
    return settings if isinstance(settings, str) else ""


def refusal_of(message: Message, refusal: NotApproved) -> tuple[Message, str]:
    """Return the reply to a message that is not answered, and its task's status.

    Of an error flwr's ServerApp learns no client, so one site's reason could be read as another's. A text that is not
    approved is therefore a failure of the clients that the message names.
    """
    if isinstance(refusal, TextNotApproved) and settings_of(message):
        clients = message.content.config_records["task"].get("clients")
        listed = clients if isinstance(clients, list) else []
        numbers = [number for number in listed if isinstance(number, int)]
        failure = ClientFailure(f"agreement: {refusal}", kind="agreement")
        content = RecordDict()
        for number in numbers[:MOST_NAMED]:
            for name, record in records_of(failure).items():
                content[f"{number}/{name}"] = record
        if content:
            return Message(content, reply_to=message), "completed"
    return Message(Error(REFUSED, str(refusal)), reply_to=message), "failed"


def push_message(client: RuntimeHttpClient, reply: Message, context: Context) -> None:
    """Push a reply, its records in one, with random bytes that no state or digest knows of."""
    if reply.has_content():
        reply.content = folded(reply.content, secrets.token_bytes(NONCE_BYTES))
    push_as_it_is(client, reply, context)


class Executor:
    """Serves one SuperNode, task by task.

    `texts` are what this site has approved: one text, or for a time the former one with it. `idle` is called at least
    once a second. `pending_file` is the file of the task in hand. A `plain` app is another than FedSkew's: its replies
    leave as it makes them.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        texts: ApprovedText | ApprovedTexts,
        pool: Pool,
        audit: Audit,
        pending_file: Path,
        idle: Callable[[], None],
        plain: bool = False,
    ) -> None:
        self.address = address
        self.texts = texts
        self.pool = pool
        self.audit = audit
        self.idle = idle
        self.pending_task = PendingTask(pending_file)
        self.plain = plain
        self.following: AcquireTaskResponse | None = None
        self.logged: set[tuple[str, str]] = set()
        """Hash and signature of the settings that this process has written into the audit log."""
        method = "/flwr.proto.Runtime/AcquireTask"
        self.link = connect(
            address, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[method])
        )

    def run(self) -> None:
        """Serve for ever."""
        if left := self.pending_task.read():
            self.give_back(*left)
        last = time.monotonic()
        while True:
            self.idle()
            taken = self.following or self.take()
            self.following = None
            if taken is None:
                time.sleep(0.5)
            elif taken.HasField("task"):
                self.serve(taken.task, taken.token)
                last = time.monotonic()
            else:
                idle_time = time.monotonic() - last
                time.sleep(min(LONGEST, max(SHORTEST, SHARE * idle_time)))

    def take(self) -> AcquireTaskResponse | None:
        """Return the next task, an answer without any, or nothing where the SuperNode does not answer."""
        request = AcquireTaskRequest(supported_task_types=TASKS)
        try:
            taken: AcquireTaskResponse = self.link.AcquireTask(request)
        except Exception as error:  # of httpx, which flwr calls
            answer = getattr(error, "response", None)
            if answer is not None:
                logger.error(
                    "the SuperNode refuses tasks (%s): is the secret the same?", answer.status_code
                )
            return None
        return taken

    def give_back(self, token: str, noted: bytes) -> None:
        """Answer the task that a killed executor has left with an error, upon which the server asks again."""
        with closing(connect(self.address, RuntimeTokenHttpInterceptor(token))) as client:
            try:
                with suppress(Exception):  # a refusal: it has begun
                    client.PullTaskInput(PullTaskInputRequest())
                known = [MessageOnTheWire.FromString(noted)] if noted else []
                for message in known or client.PullMessages(PullAppMessagesRequest()).messages_list:
                    self.lose(client, message_from_proto(message))
                push_task_output(client, None, "failed", KILLED)
            # a token that no longer holds, a SuperNode that is gone, a pending task cut short
            except Exception as error:
                logger.error(
                    "what was in hand is not given back: %s: %s", type(error).__name__, error
                )
        self.pending_task.clear()

    def lose(self, client: RuntimeHttpClient, message: Message) -> None:
        """Reply to a message that nobody can answer any more."""
        about = message.metadata
        kind = logged_kind(message)
        entry = {"run": about.run_id, "message": about.message_id, "kind": kind}
        app = self.texts.current.app
        self.audit.write("failed", **entry, app=app, left=[], why=KILLED)
        context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
        reply = Message(Error(CRASHED, KILLED), reply_to=message)
        push_message(client, reply, context)
        logger.error("%s of run %s: %s", kind, about.run_id, KILLED)

    def serve(self, task: Task, token: str) -> None:
        """Answer one task; a SuperNode that is gone before the reply is with it costs the task, and nothing else."""
        with closing(connect(self.address, RuntimeTokenHttpInterceptor(token))) as client:
            try:
                self.pending_task.write(token)
                pulled = partial(self.pending_task.write, token)
                message, context, run, fab = self.pull(client, pulled)
                began = time.monotonic()
                entry = {"run": run.run_id, "message": message.metadata.message_id}
                entry["kind"] = logged_kind(message)
                try:
                    stated = "" if self.plain else text_of(settings_of(message))
                    try:
                        text = self.chosen(task, fab.content, stated)
                    except NotApproved as refusal:
                        reply, status = refusal_of(message, refusal)
                        logger.error("refused: %s (run %s)", refusal, run.run_id)
                        about = {"federation": stated} if stated else {}
                        self.audit.write("refused", **entry, **about, why=str(refusal))
                    else:
                        entry |= {"federation": text.federation, "app": text.app}
                        self.log_settings(message, context, entry)
                        if text.code is not None:
                            self.pool.use(text.code, text.describe)
                        reply, status = self.run_task(client, message, context, entry)
                except OSError as error:  # what is not in the audit log does not leave
                    reply = Message(Error(CRASHED, UNLOGGED), reply_to=message)
                    status = "failed"
                    logger.error("%s: %s", UNLOGGED, error)
                push = push_as_it_is if self.plain else push_message
                push(client, reply, context)
                push_task_output(client, context, status, "")
                seconds = time.monotonic() - began
                logger.info("%s of run %s: %.2f s", entry["kind"], run.run_id, seconds)
            except Exception as error:
                self.pool.end()
                if self.following:  # else flwr answers in its place later, and sends that before the next one's reply
                    push_task_output(client, None, "failed", str(error))
                logger.error("a task was lost: %s: %s", type(error).__name__, error)
            finally:
                self.pending_task.clear()

    def pull(
        self,
        client: RuntimeHttpClient,
        pulled: Callable[[bytes], None],
    ) -> tuple[Message, Context, Any, Any]:
        """Return a task's message, context, run and app, once the message is complete; `pulled` gets its head before.

        A SuperNode fetches one message at a time. So a task that arrives while this one's message is awaited means
        that the rest never will: the ServerApp died while it sent. That task is then kept for later.

        Raises:
            TaskAbandoned: the rest of the message will never arrive.
        """
        beating = self.heartbeat(client)
        due = 0.0

        def waiting() -> None:
            nonlocal due
            beating()
            if time.monotonic() < due:
                return
            due = time.monotonic() + LOOK
            if self.following is None:
                taken = self.take()
                if taken is not None and taken.HasField("task"):
                    self.following = taken
            if self.following:
                raise TaskAbandoned("the rest of its message does not come")

        with closing(PollingClient(MessageRecorder(client, pulled), waiting)) as incoming:
            message, context, run, fab = pull_task_input(incoming)  # type: ignore[arg-type]
        if message.has_content():
            message.content = unfolded(message.content)
        return message, context, run, fab

    def heartbeat(self, client: RuntimeHttpClient) -> Callable[[], None]:
        """Return what is to be called at least once a second while a task takes its time. It raises TaskAbandoned."""
        due = time.monotonic() + HEARTBEAT

        def beat() -> None:
            nonlocal due
            self.idle()
            if time.monotonic() > due:
                due = time.monotonic() + HEARTBEAT
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    raise TaskAbandoned("the run was stopped")

        return beat

    def chosen(self, task: Task, fab: bytes, stated: str = "") -> ApprovedText:
        """Return the text under which a task is answered.

        Args:
            task: What is asked for.
            fab: The app that came with it.
            stated: The sha256 of federation.toml that its message states; empty for none.

        Raises:
            NotApproved: a task that is not answered; the sentence says why, and leaves the site.
        """
        if task.type != CLIENT_TASK:
            raise NotApproved(f"this site runs no task of kind {task.type}")
        try:
            code = packed_hash(fab)
        except DataError as error:
            reason = f"the app is not approved at this site: {error}"
            raise NotApproved(reason) from None
        return self.texts.chosen(stated, code)

    def log_settings(self, message: Message, context: Context, entry: dict[str, Any]) -> None:
        """Write a run's settings into the audit log, once, and hash, run, methods and round into each entry.

        A signature stands beside the settings as it came: it shows later that the coordinator has asked for the run.
        """
        settings = settings_of(message)
        if not settings:
            return
        task = message.content.config_records["task"]
        entry["settings"] = code = hash_of(settings)
        facts = facts_of(settings)
        entry |= {**round_of(task), **facts}
        signature = str(context.run_config.get(RUN_SIGNATURE, ""))[:LONGEST_SIGNATURE]
        if (code, signature) not in self.logged:
            text = settings if len(settings) <= LONGEST_SETTINGS else f"{len(settings)} characters"
            signed = {"signature": signature} if signature else {}
            federation = entry["federation"]
            self.audit.write(
                "run",
                run=entry["run"],
                federation=federation,
                settings=code,
                **facts,
                **signed,
                text=text,
            )
            self.logged.add((code, signature))

    def run_task(
        self,
        client: RuntimeHttpClient,
        message: Message,
        context: Context,
        entry: dict[str, Any],
    ) -> Any:
        """Return the reply and the task's status; a worker that dies is replaced once."""
        began = time.monotonic()
        waiting = self.heartbeat(client)
        for _ in range(2):
            answered = self.pool.run_task(message.metadata.run_id, message, context, waiting)
            if answered is None:
                continue
            reply, leaving = answered
            if reply.has_error() and reply.error.code == REFUSED:
                why = leaving[0]["why"]
                self.audit.write("refused", **entry, left=[], why=why)
                return reply, "failed"
            seconds = round(time.monotonic() - began, 3)
            event = "failed" if reply.has_error() else "answered"
            status = "failed" if reply.has_error() else "completed"
            self.audit.write(event, **entry, seconds=seconds, left=leaving)
            return reply, status
        why = "the worker died twice"
        self.audit.write("failed", **entry, left=[], why=why)
        error = Error(CRASHED, f"{why}; see the site's log")
        return Message(error, reply_to=message), "failed"
