"""The executor: takes tasks from the SuperNode and runs them with the installed code, never with received code."""

import json
import logging
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
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
from site_agent.pool import REFUSED, Pool, TaskAbandoned
from site_agent.run_approval import LONGEST as LONGEST_SETTINGS
from site_agent.signature import LONGEST as LONGEST_SIGNATURE


class NotApproved(Exception):
    """A message that is not answered. The sentence leaves the site: it has hashes, and no path."""


class TextNotApproved(NotApproved):
    """The same, because of the federation.toml that the message states."""


@dataclass(frozen=True)
class Approved:
    """What is approved at a site, as `fedskew-site approve` has kept it."""

    federation: str
    """The sha256 of federation.toml."""
    app: str
    """The hash of the app."""

    def check(self, stated: str, app: str) -> None:
        """Check what a message is to be answered under.

        Args:
            stated: The sha256 of federation.toml that the message states, empty for another app than FedSkew's.
            app: The hash of the app that came with it.

        Raises:
            TextNotApproved: another text.
            NotApproved: another app.
        """
        if stated and stated != self.federation:
            raise TextNotApproved(
                f"federation.toml {stated[:SHOWN]} is not approved at this site, which has approved "
                f"{self.federation[:SHOWN]}: agree on one text, and start the run again"
            )
        if app != self.app:
            raise NotApproved(f"the app {app[:SHOWN]} is not approved at this site")


logger = logging.getLogger("fedskew.site")
CLIENT_TASK = "flwr-clientapp"
TASKS = (CLIENT_TASK, "flwr-agentapp", "flwr-model", "flwr-connector")
"""All types of tasks that a SuperNode can get. The executor takes all of them and answers other types than CLIENT_TASK
with an error, so that they do not hold up later tasks."""
CRASHED = 8
"""flwr's error code CLIENT_APP_CRASHED, for an error in place of a reply."""
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


def logged_kind(message: Message) -> str:
    """Return a message's type for the audit log, without the suffix that all of FedSkew's messages have."""
    return message.metadata.message_type.removesuffix(f".{ACTION}")


def settings_of(message: Message) -> str:
    """Return the run's settings in a message, as JSON text; "" if it has none."""
    if not message.has_content() or "task" not in message.content.config_records:
        return ""
    settings = message.content.config_records["task"].get("assignment")
    return settings if isinstance(settings, str) else ""


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
        case {"folder": str(folder)} if RUN.fullmatch(folder):
            facts["name"] = folder
    match stated:
        case {"variants": dict(variants)}:
            facts["method"] = ("+".join(variants) or PLAIN)[:LONGEST_METHODS]
    match stated:
        case {"data": {"dataset": str(dataset)}} if OF_SITES.fullmatch(dataset):
            facts["federation"] = dataset.removeprefix(SITES_PREFIX)
    return facts


def refusal_of(message: Message, refusal: NotApproved) -> tuple[Message, str]:
    """Return the reply to a refused message, and the status of its task.

    flwr's error does not tell the ServerApp which client failed, so one site's reason could be taken for another's. If
    the refused text is federation.toml, the reply is therefore a failure record of each client in the message.
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
    """Push a reply with its small records folded into one, plus random bytes that are in no state and no digest.

    flwr names an object by its hash. The random bytes keep others from checking a guess of the content by its name.
    """
    if reply.has_content():
        reply.content = folded(reply.content, secrets.token_bytes(NONCE_BYTES))
    push_as_it_is(client, reply, context)


class PendingTask:
    """A file with the token of the task in hand and, once the message is pulled, the message without its content.

    flwr's SuperNode waits one minute for the answer to a message that was pulled. If a task has begun and its message
    was never pulled, it waits forever. The executor after a killed one therefore reads the file and answers with an
    error.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, token: str, message: bytes = b"") -> None:
        """Save the task in hand, readable by this user only: its token gives access to the task."""
        content = json.dumps({"token": token, "message": b64encode(message).decode()})
        with suppress(OSError):  # on a full disk the task is answered all the same
            self.file.touch(0o600)
            self.file.write_text(content)

    def read(self) -> tuple[str, bytes] | None:
        """Return the saved token and serialized message, which may be empty; None without a readable file."""
        try:
            saved = json.loads(self.file.read_text())
            return str(saved["token"]), b64decode(saved["message"], validate=True)
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def clear(self) -> None:
        """Delete the file: no task is in hand."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


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
        self.approved = Approved(site.agreement.sha256, site.agreement.app)
        self.pool = pool
        self.audit = site.audit
        self.idle = idle
        self.pending_task = PendingTask(site.state / "task")
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
        if left := self.pending_task.read():
            self.give_back(*left)
        last = time.monotonic()
        while not self.idle():
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
        """Return the SuperNode's response, with or without a task; None if it does not respond or refuses."""
        request = AcquireTaskRequest(supported_task_types=TASKS)
        try:
            taken: AcquireTaskResponse = self.link.AcquireTask(request)
        except Exception as error:  # from httpx, which flwr uses
            answer = getattr(error, "response", None)
            if answer is not None:
                logger.error(
                    "the SuperNode refuses tasks (%s): is the secret the same?", answer.status_code
                )
            return None
        return taken

    def give_back(self, token: str, saved: bytes) -> None:
        """Answer the task of a killed executor with an error, so that the server sends its message again.

        Args:
            token: The task's token.
            saved: The serialized message; empty if it was not pulled.
        """
        with closing(connect(self.address, RuntimeTokenHttpInterceptor(token))) as client:
            try:
                with suppress(Exception):  # flwr refuses this if the task has begun already
                    client.PullTaskInput(PullTaskInputRequest())
                if saved:
                    messages = [MessageOnTheWire.FromString(saved)]
                else:
                    messages = client.PullMessages(PullAppMessagesRequest()).messages_list
                for message in messages:
                    self.fail(client, message_from_proto(message))
                push_task_output(client, None, "failed", KILLED)
            # The token has expired, the SuperNode has ended, or the saved message is truncated.
            except Exception as error:
                logger.error(
                    "what was in hand is not given back: %s: %s", type(error).__name__, error
                )
        self.pending_task.clear()

    def fail(self, client: RuntimeHttpClient, message: Message) -> None:
        """Reply with an error to a message whose executor was killed, and write that to the audit log."""
        about = message.metadata
        kind = logged_kind(message)
        entry = {"run": about.run_id, "message": about.message_id, "kind": kind}
        self.audit.write("failed", **entry, app=self.approved.app, left=[], why=KILLED)
        context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
        reply = Message(Error(CRASHED, KILLED), reply_to=message)
        push_message(client, reply, context)
        logger.error("%s of run %s: %s", kind, about.run_id, KILLED)

    def serve(self, task: Task, token: str) -> None:
        """Answer one task. If the SuperNode ends before it has the reply, only this task is lost."""
        with closing(connect(self.address, RuntimeTokenHttpInterceptor(token))) as client:
            try:
                self.pending_task.write(token)
                heartbeat = self.heartbeat(client)
                message, context, run, fab = self.pull(client, token, heartbeat)
                began = time.monotonic()
                entry = {"run": run.run_id, "message": message.metadata.message_id}
                entry["kind"] = logged_kind(message)
                try:
                    settings = "" if self.plain else settings_of(message)
                    entry |= facts_of(settings)
                    try:
                        self.check(task, fab.content, entry.get("federation", ""))
                    except NotApproved as refusal:
                        reply, status = refusal_of(message, refusal)
                        logger.error("refused: %s (run %s)", refusal, run.run_id)
                        self.audit.write("refused", **entry, why=str(refusal))
                    else:
                        entry |= asdict(self.approved)
                        if settings:
                            self.log_settings(settings, message, context, entry)
                        reply, status = self.run_task(message, context, entry, heartbeat)
                except OSError as error:  # a reply that cannot be logged must not leave the site
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
                # If the next task waits, fail this one now. Otherwise flwr answers it later in the site's place,
                # and sends that answer before the next task's reply.
                if self.following:
                    push_task_output(client, None, "failed", str(error))
                logger.error("a task was lost: %s: %s", type(error).__name__, error)
            finally:
                self.pending_task.clear()

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
            if self.following is None:
                taken = self.take()
                if taken is not None and taken.HasField("task"):
                    self.following = taken
            if self.following:
                raise TaskAbandoned("the rest of its message does not come")

        pulled = partial(self.pending_task.write, token)
        with closing(Incoming(client, waiting, pulled)) as incoming:
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
            code = packed_hash(fab)
        except DataError as error:
            reason = f"the app is not approved at this site: {error}"
            raise NotApproved(reason) from None
        self.approved.check(stated, code)

    def log_settings(
        self, settings: str, message: Message, context: Context, entry: dict[str, Any]
    ) -> None:
        """Write a run's settings to the audit log, once, and add their hash and the round to `entry`.

        The coordinator's signature is logged as received, without a check: later, it can prove that the coordinator
        requested the run.
        """
        code = hash_of(settings)
        signature = str(context.run_config.get(RUN_SIGNATURE, ""))[:LONGEST_SIGNATURE]
        if (code, signature) not in self.logged:
            about: dict[str, Any] = {
                key: entry[key] for key in ("run", "federation", "name", "method") if key in entry
            }
            if signature:
                about["signature"] = signature
            text = settings if len(settings) <= LONGEST_SETTINGS else f"{len(settings)} characters"
            self.audit.write("run", **about, settings=code, text=text)
            self.logged.add((code, signature))
        entry["settings"] = code
        round = message.content.config_records["task"].get("round")
        if type(round) is int:
            entry["round"] = round

    def run_task(
        self,
        message: Message,
        context: Context,
        entry: dict[str, Any],
        heartbeat: Callable[[], None],
    ) -> Any:
        """Run a message in the worker, write the result to the audit log, and return the reply and the task's status.

        If the worker dies, a new one tries once more.
        """
        began = time.monotonic()
        for _ in range(2):
            result = self.pool.run_task(message.metadata.run_id, message, context, heartbeat)
            if result is None:  # the worker died
                continue
            reply, records = result
            if reply.has_error() and reply.error.code == REFUSED:
                why = records[0]["why"]
                self.audit.write("refused", **entry, left=[], why=why)
                return reply, "failed"
            seconds = round(time.monotonic() - began, 3)
            event = "failed" if reply.has_error() else "answered"
            status = "failed" if reply.has_error() else "completed"
            self.audit.write(event, **entry, seconds=seconds, left=records)
            return reply, status
        why = "the worker died twice"
        self.audit.write("failed", **entry, left=[], why=why)
        error = Error(CRASHED, f"{why}; see the site's log")
        return Message(error, reply_to=message), "failed"
