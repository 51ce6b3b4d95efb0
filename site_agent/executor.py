"""The executor: takes tasks from the SuperNode and runs them with the installed code, never with received code."""

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import lru_cache, partial
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from client_app.app import records_of
from client_app.flower_internals import PollingClient, message_from_proto
from client_app.handlers import ClientFailure
from client_app.local_site import RUN_SIGNATURE, hash_of
from client_app.messages import ACTION, NONCE_BYTES, folded, unfolded
from data import DataError
from data.agreement import SHA256
from data.readers.catalog import SITES_PREFIX
from site_agent.app_files import app_hash, packed_files
from site_agent.config import RUN, Site
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
from site_agent.pool import CRASHED, REFUSED, Pool, TaskAbandoned
from site_agent.run_approval import LONGEST_SETTINGS, LONGEST_SIGNATURE


class NotApproved(Exception):
    """A message that is not answered. The sentence leaves the site: it has hashes, and no path."""


logger = logging.getLogger("fedskew.site")
CLIENT_TASK = "flwr-clientapp"
TASKS = (CLIENT_TASK, "flwr-agentapp", "flwr-model", "flwr-connector")
"""All types of tasks that a SuperNode can get. The executor takes all of them and answers other types than CLIENT_TASK
with an error, so that they do not hold up later tasks."""
SHOWN = 16
"""Characters of a hash that a sentence shows."""
OF_SITES = re.compile(f"{SITES_PREFIX}{SHA256.pattern}")
"""The data set of a run between sites, as messages state it."""
PLAIN = "plain training"
LONGEST_METHODS = 200
"""Characters of the methods' names in the audit log."""
UNLOGGED = "the site cannot write its audit log"
KILLED = "the executor was killed"
SHORTEST, LONGEST, SHARE = 0.1, 0.5, 0.1
"""The idle executor polls for a task after a SHARE of the time since the last task, and after SHORTEST to LONGEST
seconds. One poll costs site and SuperNode together 10 ms of CPU time."""
TRIES, PAUSE = 3, 0.5
"""How often to send a request that the SuperNode does not answer, and the longest pause between two tries in seconds.
The SuperNode closes a connection that was idle for 5 seconds, and a request sent at that moment is lost. If it would
have pushed an object of a reply, the SuperNode waits for that object forever."""
LOOK = 1.0
"""Seconds between two polls for the next task while the rest of a message is awaited, see `Executor.pull`."""
MOST_NAMED = 16
"""The most clients of a message that a refusal answers for. FedSkew's messages to a site name one client."""
HEARTBEAT = 10.0
"""Seconds between two heartbeats for a task. flwr abandons a task after 60 seconds without one."""

# Hashing unpacks the app, so the hash of the last one is cached.
packed_hash = lru_cache(1)(lambda fab: app_hash(packed_files(fab)))


def connect(address: str, *interceptors: Any) -> RuntimeHttpClient:
    """Return a client of a SuperNode's runtime API on loopback, which repeats unanswered requests."""
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
    """Return whether an httpx error has a response: then the SuperNode has refused, and a retry is useless."""
    return hasattr(error, "response")


def logged(run: int, message: Message) -> dict[str, Any]:
    """Return what the audit log says of a message; its kind is without the suffix of all of FedSkew's messages."""
    about = message.metadata
    kind = about.message_type.removesuffix(f".{ACTION}")
    return {"run": run, "message": about.message_id, "kind": kind}


def task_of(message: Message) -> Mapping[str, Any]:
    """Return the record `task` of a message; empty for a message of another app than FedSkew's."""
    if not message.has_content():
        return {}
    return message.content.config_records.get("task", {})


def facts_of(settings: str) -> dict[str, str]:
    """Return `name`, `method` and `federation` of a run's settings, a message's JSON text, without what is wrong.

    `name` is the run's id at the coordinator. `method` has the local methods, which compute here; what the server does
    with the replies is in no message. `federation` is the sha256 of federation.toml: the code that answers compares it
    once more.
    """
    try:
        stated = json.loads(settings)
    except (ValueError, RecursionError):
        return {}
    facts = {}
    match stated:
        case {"folder": folder, "variants": dict(variants), "data": {"dataset": dataset}}:
            facts["method"] = ("+".join(variants) or PLAIN)[:LONGEST_METHODS]
            if RUN.fullmatch(str(folder)):
                facts["name"] = str(folder)
            if OF_SITES.fullmatch(str(dataset)):
                facts["federation"] = dataset.removeprefix(SITES_PREFIX)
    return facts


def refused(message: Message, clients: object, why: str) -> Message:
    """Return the reply to a message that is not answered.

    flwr's error does not tell the ServerApp which client failed, so one site's reason could be taken for another's. The
    reply to a message of FedSkew's app is therefore a failure record of each of `clients`, those in the message.
    """
    failure = records_of(ClientFailure(f"agreement: {why}", kind="agreement"))["error"]
    content = RecordDict()
    for number in clients[:MOST_NAMED] if isinstance(clients, list) else []:
        if isinstance(number, int):
            content[f"{number}/error"] = failure
    if content:
        return Message(content, reply_to=message)
    return Message(Error(REFUSED, why), reply_to=message)


def push_message(client: RuntimeHttpClient, reply: Message, context: Context) -> None:
    """Push a reply with its small records folded into one, plus random bytes that are in no state and no digest.

    flwr names an object by its hash. The random bytes keep others from checking a guess of the content by its name.
    """
    if reply.has_content():
        reply.content = folded(reply.content, secrets.token_bytes(NONCE_BYTES))
    push_as_it_is(client, reply, context)


class Incoming(PollingClient):
    """A runtime client that calls `pulled` with a message that it pulls, before it polls for the content."""

    def __init__(
        self, client: Any, waiting: Callable[[], None], pulled: Callable[[bytes], None]
    ) -> None:
        super().__init__(client, waiting)
        self.pulled = pulled

    def PullMessages(self, request: Any) -> Any:
        """Return flwr's response."""
        response = self.client.PullMessages(request)
        for message in response.messages_list:
            self.pulled(message.SerializeToString())
        return response


class Executor:
    """Serves one SuperNode, one task at a time."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        site: Site,
        pool: Pool,
        idle: Callable[[], bool],
    ) -> None:
        """Connect to the SuperNode.

        Args:
            address: HOST:PORT of the SuperNode's runtime API.
            secret: The secret that lets a process take tasks from the SuperNode.
            site: This site, which has approved its agreement.
            pool: Runs the messages in a worker process.
            idle: Called at least once per second; returns whether this executor is to end before its next task.
        """
        self.address = address
        self.agreement = site.agreement
        self.pool = pool
        self.audit = site.audit
        self.idle = idle
        self.in_hand = site.state / "task"
        """The file with the token of the task in hand and, once it is pulled, the message without its content.

        flwr's SuperNode waits one minute for the answer to a message that was pulled. If a task has begun and its
        message was never pulled, it waits forever. The executor after a killed one therefore reads the file and answers
        with an error.
        """
        self.plain = site.app is not None
        """Whether the app is not FedSkew's own. Its replies are pushed unchanged."""
        self.following: AcquireTaskResponse | None = None
        """The next task, if it was taken while the message of the current one was awaited."""
        self.logged: set[tuple[str, str]] = set()
        """(hash, signature) of all run settings that this process has written to the audit log."""
        method = "/flwr.proto.Runtime/AcquireTask"
        self.link = connect(
            address, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[method])
        )

    def run(self) -> None:
        """Serve tasks until `idle` says so. First answer the task that a killed executor has left behind."""
        if self.in_hand.exists():
            self.give_back()
        last = time.monotonic()
        while not self.idle():
            taken = self.following or self.take()
            self.following = None
            if taken is not None:
                self.serve(taken.task, taken.token)
                last = time.monotonic()
            else:
                idle_time = time.monotonic() - last
                time.sleep(min(LONGEST, max(SHORTEST, SHARE * idle_time)))

    def take(self) -> AcquireTaskResponse | None:
        """Return the SuperNode's next task; None if there is none, or if it does not respond or refuses."""
        request = AcquireTaskRequest(supported_task_types=TASKS)
        try:
            taken: AcquireTaskResponse = self.link.AcquireTask(request)
        except Exception as error:  # from httpx, which flwr uses
            if answered(error):
                logger.error("the SuperNode refuses tasks (is the secret the same?): %s", error)
            return None
        return taken if taken.HasField("task") else None

    def keep(self, token: str, message: bytes = b"") -> None:
        """Keep the task in hand in its file, readable by this user only: its token gives access to the task."""
        with suppress(OSError):  # on a full disk the task is answered all the same
            self.in_hand.touch(0o600)
            self.in_hand.write_bytes(token.encode() + b"\n" + message)

    def forget(self) -> None:
        """Delete the file: no task is in hand."""
        with suppress(OSError):
            self.in_hand.unlink(missing_ok=True)

    def give_back(self) -> None:
        """Answer the task of a killed executor with an error, so that the server sends its message again."""
        try:
            token, _, saved = self.in_hand.read_bytes().partition(b"\n")
            interceptor = RuntimeTokenHttpInterceptor(token.decode())
            with closing(connect(self.address, interceptor)) as client:
                with suppress(Exception):  # flwr refuses this if the task has begun already
                    client.PullTaskInput(PullTaskInputRequest())
                if saved:
                    messages = [MessageOnTheWire.FromString(saved)]
                else:
                    messages = client.PullMessages(PullAppMessagesRequest()).messages_list
                for message in messages:
                    self.fail(client, message_from_proto(message))
                push_task_output(client, None, "failed", KILLED)
        # The token has expired, the SuperNode has ended, or the file is truncated.
        except Exception as error:
            logger.error("what was in hand is not given back: %s: %s", type(error).__name__, error)
        self.forget()

    def fail(self, client: RuntimeHttpClient, message: Message) -> None:
        """Reply with an error to a message whose executor was killed, and write that to the audit log."""
        about = message.metadata
        entry = {**logged(about.run_id, message), "app": self.agreement.app}
        self.audit.write("failed", **entry, left=[], why=KILLED)
        context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
        push_message(client, Message(Error(CRASHED, KILLED), reply_to=message), context)
        logger.error("%s of run %s: %s", about.message_type, about.run_id, KILLED)

    def serve(self, task: Task, token: str) -> None:
        """Answer one task. If the SuperNode ends before it has the reply, only this task is lost."""
        with closing(connect(self.address, RuntimeTokenHttpInterceptor(token))) as client:
            try:
                self.keep(token)
                heartbeat = self.heartbeat(client)
                message, context, run, fab = self.pull(client, token, heartbeat)
                began = time.monotonic()
                entry = logged(run.run_id, message)
                try:
                    reply = self.answer(task, fab.content, message, context, entry, heartbeat)
                except OSError as error:  # a reply that cannot be logged must not leave the site
                    reply = Message(Error(CRASHED, UNLOGGED), reply_to=message)
                    logger.error("%s: %s", UNLOGGED, error)
                push = push_as_it_is if self.plain else push_message
                push(client, reply, context)
                status = "failed" if reply.has_error() else "completed"
                push_task_output(client, context, status, "")
                seconds = time.monotonic() - began
                logger.info("%s of run %s: %.2f s", entry["kind"], run.run_id, seconds)
            except Exception as error:
                self.pool.end()
                # If the next task waits, fail this one now. Otherwise flwr answers it later in the site's place,
                # and sends that answer before the next task's reply.
                if self.following:
                    push_task_output(client, None, "failed", str(error))
                logger.error("a task was lost: %s: %s", type(error).__name__, error)
            finally:
                self.forget()

    def pull(
        self,
        client: RuntimeHttpClient,
        token: str,
        heartbeat: Callable[[], None],
    ) -> tuple[Message, Context, Any, Any]:
        """Return a task's message, context, run and app, once the message is complete.

        A SuperNode fetches one message at a time. So if another task arrives while the rest of this message is
        awaited, the rest will never arrive: the ServerApp died while it sent the message. The other task is then
        served next (`following`).

        Args:
            client: A client with the task's token.
            token: The token.
            heartbeat: Called at least once per second.

        Raises:
            TaskAbandoned: the rest of the message will never arrive.
        """
        due = 0.0

        def waiting() -> None:
            nonlocal due
            heartbeat()
            if time.monotonic() < due:
                return
            due = time.monotonic() + LOOK
            self.following = self.following or self.take()
            if self.following:
                raise TaskAbandoned("the rest of its message does not come")

        with closing(Incoming(client, waiting, partial(self.keep, token))) as incoming:
            message, context, run, fab = pull_task_input(incoming)  # type: ignore[arg-type]
        if message.has_content():
            message.content = unfolded(message.content)
        return message, context, run, fab

    def heartbeat(self, client: RuntimeHttpClient) -> Callable[[], None]:
        """Return a function to call at least once per second while a task runs.

        It sends a heartbeat every HEARTBEAT seconds, and raises TaskAbandoned if the run was stopped.
        """
        due = time.monotonic() + HEARTBEAT

        def beat() -> None:
            nonlocal due
            self.idle()
            if time.monotonic() > due:
                due = time.monotonic() + HEARTBEAT
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    raise TaskAbandoned("the run was stopped")

        return beat

    def answer(
        self,
        task: Task,
        fab: bytes,
        message: Message,
        context: Context,
        entry: dict[str, Any],
        heartbeat: Callable[[], None],
    ) -> Message:
        """Return the reply to a task's message, once the audit log has it.

        Args:
            task: The task.
            fab: The packed app that came with it.
            message: Its message.
            context: The run's context.
            entry: What the audit log is to say of the message.
            heartbeat: Called at least once per second.

        Raises:
            OSError: the audit log cannot be written.
            TaskAbandoned: nobody waits for the reply.
        """
        task_record = {} if self.plain else task_of(message)
        settings = str(task_record.get("assignment", ""))
        facts = facts_of(settings)
        entry |= facts
        try:
            self.check(task, fab, facts.get("federation", ""))
        except NotApproved as refusal:
            why = str(refusal)
            logger.error("refused: %s (run %s)", why, entry["run"])
            self.audit.write("refused", **entry, left=[], why=why)
            return refused(message, task_record.get("clients"), why)
        entry |= {"federation": self.agreement.sha256, "app": self.agreement.app}
        if settings:
            signature = str(context.run_config.get(RUN_SIGNATURE, ""))[:LONGEST_SIGNATURE]
            entry["settings"] = self.log_settings(entry["run"], settings, facts, signature)
            if isinstance(task_record.get("round"), int):
                entry["round"] = task_record["round"]

        began = time.monotonic()
        reply, left, why = self.pool.run_task(entry["run"], message, context, heartbeat)
        event = "answered"
        if reply.has_error():
            event = "refused" if reply.error.code == REFUSED else "failed"
        entry |= {"seconds": round(time.monotonic() - began, 3), "left": left}
        if why:
            entry["why"] = why
        self.audit.write(event, **entry)
        return reply

    def check(self, task: Task, fab: bytes, stated: str) -> None:
        """Check that a task is approved.

        Args:
            task: The task.
            fab: The packed app that came with it.
            stated: The sha256 of federation.toml in the task's message; empty if it has none.

        Raises:
            NotApproved: the task is refused. The coordinator sees the error's sentence.
        """
        if task.type != CLIENT_TASK:
            raise NotApproved(f"this site runs no task of kind {task.type}")
        try:
            app = packed_hash(fab)
        except DataError as error:
            raise NotApproved(f"the app is not approved at this site: {error}") from None
        agreed = self.agreement
        if stated and stated != agreed.sha256:
            raise NotApproved(
                f"federation.toml {stated[:SHOWN]} is not approved at this site, which has approved "
                f"{agreed.sha256[:SHOWN]}: agree on one text, and start the run again"
            )
        if app != agreed.app:
            raise NotApproved(f"the app {app[:SHOWN]} is not approved at this site")

    def log_settings(self, run: int, settings: str, facts: dict[str, str], signature: str) -> str:
        """Write a run's settings to the audit log, once, and return their hash.

        The coordinator's signature is logged as received, without a check: later, it can prove that the coordinator
        requested the run.
        """
        code = hash_of(settings)
        if (code, signature) not in self.logged:
            text = settings if len(settings) <= LONGEST_SETTINGS else f"{len(settings)} characters"
            about = {**facts, "signature": signature, "settings": code, "text": text}
            self.audit.write("run", run=run, **about)
            self.logged.add((code, signature))
        return code
