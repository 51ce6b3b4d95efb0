"""Attacks by two sites that this script operates by hand: it signs in with their keys, and answers what it likes.

The sites' own processes have ended. A run asks them, and waits for what is pushed here.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from attacks.at_the_gate import ROGUE, by_gate
from attacks.replies import forged
from attacks.stage import AT_WORK, Attack, ControlFailed, Log, Refusal, Stage, Untried, require
from fedskew.engines.processes import running
from fedskew.federation.run import end_orphans
from fedskew.federation.services import SERVER_APP

VICTIM = 0
"""The site in whose name the rogue answers."""
PUSH, BEGIN, OBJECT = (
    f"/v1/fleet/{call}" for call in ("push-messages", "activate-node", "pull-object")
)
PATIENCE = 600.0
"""Seconds for a ServerApp to start and to ask."""
IDLE = 120.0
"""Seconds after which a run that asks the site nothing is ended for another: it may wait for the other site."""
AWAY = 300.0
"""Seconds for a site that has ended to be offline."""
RUN = ["method=fedavg", "model=mlp-bn", "rounds=1"]
OPEN = """
    SELECT run_id, message_id FROM message_ins WHERE dst_node_id = ? AND message_id NOT IN
    (SELECT reply_to_message_id FROM message_res) ORDER BY created_at DESC
"""
"""The messages to a node that no reply is stored to."""


@contextmanager
def operated_by_hand(stage: Stage) -> Iterator[None]:
    """End the processes of victim and rogue, whose sites are then operated by hand."""
    names = [stage.names[site] for site in (VICTIM, ROGUE)]
    stage.federation.stop(*names)
    until = time.monotonic() + AWAY
    while {stage.federation.status().get(name) for name in names} != {"offline"}:
        if time.monotonic() > until:
            break  # the rows' controls say that the sites cannot sign in
        time.sleep(0.5)
    try:
        yield
    finally:
        end_runs(stage)


def end_runs(stage: Stage) -> None:
    """End the runs that wait for what is answered by hand."""
    for job in stage.federation.jobs:
        job.process.kill()
        job.process.wait()
    end_orphans(stage.folder)


def sign_in(stage: Stage, site: int) -> str:
    """Let a site sign in by its key, again if it has; return the gateway's line."""
    key = stage.key(site)
    with stage.fleet(key) as client:
        with suppress(httpx.HTTPStatusError):  # one that is away already
            client.DeactivateNode(DeactivateNodeRequest(node_id=stage.nodes[site]))
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=60
        )
        answer, line = stage.passed_by_gate(BEGIN, lambda: client.ActivateNode(request))
    require(answer.node_id == stage.nodes[site], f"it is node {answer.node_id}")
    return line


def owner_signs_in(stage: Stage) -> str:
    return sign_in(stage, VICTIM)


def stolen_key(stage: Stage) -> list[Refusal]:
    """Sign in with the victim's key a second time, while the victim is online."""
    key, log = stage.key(VICTIM), stage.log("superlink")
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=60
    )
    with stage.fleet(key) as client:
        refused = stage.refused_by_gate(BEGIN, lambda: client.ActivateNode(request))
    return [refused, activation_failed(log)]


def activation_failed(log: Log) -> Refusal:
    """Return the SuperLink's reason why a node was not activated."""
    return Refusal("ApiError 2004", log.wait_for("ApiError:2004"))


def database_of(stage: Stage) -> str:
    """Return the SuperLink's database, to be read and not written."""
    return f"file:{stage.folder.state}/state.db?mode=ro"


def waiting(stage: Stage, site: int) -> tuple[int, str]:
    """Return run and id of a message that a site has not answered yet; the attacker knows more here than any can.

    Where no run is going on that asks, one is begun.
    """
    deadline = time.monotonic() + PATIENCE
    idle = time.monotonic() + IDLE
    node = stage.nodes[site]
    signed = node - 2**64 if node >= 2**63 else node  # as SQLite has it
    while time.monotonic() < deadline:
        with sqlite3.connect(database_of(stage), uri=True, timeout=10) as database:
            rows = database.execute(OPEN, (signed,)).fetchall()
        if rows:
            return int(rows[0][0]) % 2**64, str(rows[0][1])
        jobs = stage.federation.jobs
        if not jobs or jobs[-1].process.poll() is not None or time.monotonic() > idle:
            idle = time.monotonic() + IDLE
            end_runs(stage)
            for played_by_hand in (VICTIM, ROGUE):
                sign_in(stage, played_by_hand)
            stage.federation.begin(RUN, f"by-hand-{len(jobs)}")
        time.sleep(0.2)
    raise Untried("nothing was asked of the site in time")


def push(stage: Stage, signer: int, reply: Message, node: int) -> Any:
    """Push a reply with a site's key in the name of a node."""
    request = PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(reply)],
    )
    with stage.fleet(stage.key(signer)) as client:
        return client.PushMessages(request)


def push_objects(
    stage: Stage,
    site: int,
    reply: Message,
    answer: Any,
    names: Sequence[str],
) -> None:
    """Push some objects that a stored reply is made of; once all are there the server can have it."""
    objects = get_all_nested_objects(reply)
    with stage.fleet(stage.key(site)) as client:
        for name in names:
            client.PushObject(
                PushObjectRequest(
                    node=Node(node_id=stage.nodes[site]),
                    run_id=reply.metadata.run_id,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=answer.session_id,
                )
            )


def begin_answer(stage: Stage, site: int) -> tuple[Message, Any, str]:
    """Let a site answer a question of its own; return the reply, the answer to its push, and the gateway's line.

    The reply is stored. The server has the reply once `push_objects` has pushed what it is made of.
    """
    run, message = waiting(stage, site)
    reply = forged(run, stage.nodes[site], message)
    answered, line = stage.passed_by_gate(PUSH, lambda: push(stage, site, reply, stage.nodes[site]))
    require(answered.objects_to_push, "the SuperLink has not stored the site's own reply")
    return reply, answered, line


def own_reply(stage: Stage) -> str:
    """Let the rogue answer its own question, which is stored."""
    reply, answered, line = begin_answer(stage, ROGUE)
    push_objects(stage, ROGUE, reply, answered, answered.objects_to_push)
    return line


def for_another_site(stage: Stage) -> list[Refusal]:
    """Answer the victim's question with the rogue's key: by the rogue's node, and in the name of the victim's."""
    run, message = waiting(stage, VICTIM)
    reply = forged(run, stage.nodes[VICTIM], message)
    refusals = [
        stage.refused_by_gate(PUSH, lambda node=node: push(stage, ROGUE, reply, node))  # type: ignore[misc]
        for node in (stage.nodes[ROGUE], stage.nodes[VICTIM])
    ]
    if waiting(stage, VICTIM) != (run, message):
        raise Untried("the victim's question is not open any more")
    return refusals


def empty_pushes(stage: Stage) -> list[Refusal]:
    """Push nothing, a reply without its object tree, one without metadata, and one in the name of no node."""
    run, message = waiting(stage, VICTIM)
    own = Node(node_id=stage.nodes[ROGUE])
    reply = forged(run, stage.nodes[ROGUE], message)
    replies, trees = [message_to_proto(reply)], [get_object_tree(reply)]
    nobody = Node()
    without_metadata = [MessageProto()]
    requests = (
        PushMessagesRequest(node=own),
        PushMessagesRequest(node=own, messages_list=replies),
        PushMessagesRequest(node=own, messages_list=without_metadata, message_object_trees=trees),
        PushMessagesRequest(
            node=nobody, messages_list=without_metadata, message_object_trees=trees
        ),
    )
    with stage.fleet(stage.key(ROGUE)) as client:
        return [
            stage.refused_by_gate(PUSH, lambda request=request: client.PushMessages(request))  # type: ignore[misc]
            for request in requests
        ]


def not_stored(stage: Stage, site: int, answered: str, run: int) -> list[Refusal]:
    """Push a reply to a message that waits for none; return the SuperLink's line."""
    log = stage.log("superlink")
    reply = forged(run, stage.nodes[site], answered)
    answer = push(stage, site, reply, stage.nodes[site])
    line = log.wait_for("Failed to store Message reply", answered)
    if answer.objects_to_push:
        raise ControlFailed(f"the SuperLink wants the reply's objects: {line}")
    return [Refusal("not stored", line)]


def not_asked(stage: Stage) -> list[Refusal]:
    run, _ = waiting(stage, VICTIM)
    return not_stored(stage, ROGUE, "0" * 64, run)


class Twice:
    """A site that answers, and answers again: at once, or `after` the server has taken the first reply."""

    def __init__(self, site: int, after: bool) -> None:
        self.site, self.after = site, after
        self.first_reply: Message | None = None

    def first(self, stage: Stage) -> str:
        """Answer once, which is stored; the server is held so that it takes nothing yet."""
        waiting(stage, self.site)
        self.hold(stage, True)
        try:
            reply, answered, line = begin_answer(stage, self.site)
            push_objects(stage, self.site, reply, answered, answered.objects_to_push)
        except Exception:
            self.hold(stage, False)
            raise
        self.first_reply = reply
        return line

    def again(self, stage: Stage) -> list[Refusal]:
        """Answer again."""
        assert self.first_reply is not None
        about = self.first_reply.metadata
        try:
            if self.after:
                self.hold(stage, False)
                self.wait_until_taken(stage, about.reply_to_message_id)
            return not_stored(stage, self.site, about.reply_to_message_id, about.run_id)
        finally:
            self.hold(stage, False)

    def hold(self, stage: Stage, held: bool) -> None:
        """Stop the run's server process for a moment, or let it go on: it asks for replies every 0.3 s."""
        for process in running(stage.folder.path, SERVER_APP):
            process.suspend() if held else process.resume()

    def wait_until_taken(self, stage: Stage, question: str) -> None:
        """Return once the SuperLink has deleted a question, as it does when the server has its reply."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with sqlite3.connect(database_of(stage), uri=True, timeout=10) as database:
                words = "SELECT COUNT(*) FROM message_ins WHERE message_id = ?"
                if not database.execute(words, (question,)).fetchone()[0]:
                    return
            time.sleep(0.2)
        raise Untried("the server does not take the first reply")


def object_of_own(stage: Stage) -> str:
    """Let the rogue fetch its message, and by their names the objects of which it is made."""
    run, question = waiting(stage, ROGUE)
    with stage.fleet(stage.key(ROGUE)) as client:
        node = Node(node_id=stage.nodes[ROGUE])
        given = client.PullMessages(PullMessagesRequest(node=node))
        names = [message.metadata.message_id for message in given.messages_list]
        require(names == [question], f"the rogue is given {names}, and is asked {question}")
        request = PullObjectRequest(node=node, run_id=run, object_id=question)
        answer, line = stage.passed_by_gate(OBJECT, lambda: client.PullObject(request))
    require(answer.object_available, "the object of the rogue's own message is not there")
    return f"{len(answer.object_content)} bytes: {line}"


def object_of_another(stage: Stage) -> list[Refusal]:
    """Let the rogue fetch an object of the victim's reply, whose name it knows; the SuperLink has it at that time."""
    run, question = waiting(stage, VICTIM)
    reply = forged(
        run,
        stage.nodes[VICTIM],
        question,
        RecordDict({"told": MetricRecord({"cases": 75})}),
    )
    answered = push(stage, VICTIM, reply, stage.nodes[VICTIM])
    # The reply's own object is kept back, so that the server does not take the others from the SuperLink meanwhile.
    inner = [name for name in answered.objects_to_push if name != reply.object_id]
    if not inner or len(inner) == len(answered.objects_to_push):
        raise Untried("the victim's reply is not stored")
    push_objects(stage, VICTIM, reply, answered, inner)
    with sqlite3.connect(database_of(stage), uri=True, timeout=10) as database:
        words = "SELECT COUNT(*) FROM objects WHERE object_id = ? AND is_available = 1"
        if not database.execute(words, (inner[0],)).fetchone()[0]:
            raise Untried("the SuperLink does not have the victim's object")
    node = Node(node_id=stage.nodes[ROGUE])
    request = PullObjectRequest(node=node, run_id=run, object_id=inner[0])
    with stage.fleet(stage.key(ROGUE)) as client:
        refused = stage.refused_by_gate(OBJECT, lambda: client.PullObject(request))
    push_objects(stage, VICTIM, reply, answered, [reply.object_id])
    return [refused]


def rogue_signs_in(stage: Stage) -> str:
    return sign_in(stage, ROGUE)


def removed_key(stage: Stage) -> list[Refusal]:
    """Remove the rogue from the SuperLink, and then from the agreement, and let its key sign in after each.

    The gateway that is up reads the changed agreement. Afterwards the text is the former one.
    """
    key = stage.key(ROGUE)
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=60
    )
    end_runs(stage)
    file = stage.folder.agreed_file
    agreed = file.read_text()
    refusals = []
    with stage.fleet(key) as client:
        stage.control.ask("UnregisterNode", UnregisterNodeRequest(node_id=stage.nodes[ROGUE]))
        log = stage.log("superlink")
        refusals.append(stage.refused_by_gate(BEGIN, lambda: client.ActivateNode(request)))
        refusals.append(activation_failed(log))
    tables = agreed.split("[[site]]")
    del tables[1 + ROGUE]
    try:
        file.write_text("[[site]]".join(tables))
        with stage.fleet(key) as client:
            refusals.append(stage.refused_by_gate(BEGIN, lambda: client.ActivateNode(request)))
        sign_in(stage, VICTIM)  # the gateway takes those who are left
    finally:
        file.write_text(agreed)
    return refusals


LATE, SECOND = Twice(VICTIM, after=True), Twice(VICTIM, after=False)
ATTACKS = [
    Attack("a site's stolen private key signs in while that site is online", "a thief", AT_WORK, owner_signs_in,
           stolen_key, (*by_gate(412, "activate-node"), Refusal("ApiError 2004", "could not be activated"))),
    Attack("a reply in another site's name, to the message that it has not answered yet", "a site", AT_WORK, own_reply,
           for_another_site, (*by_gate(403, "push-messages"), *by_gate(401, "push-messages"))),
    Attack("a push without a reply, without its objects' names, without metadata, and in the name of no node", "a site",
           AT_WORK, own_reply, empty_pushes, by_gate(403, *["push-messages"] * 4)),
    Attack("a second reply to the same question", "a site", AT_WORK, SECOND.first, SECOND.again,
           (Refusal("not stored", "duplicate reply for reply_to_message_id"),)),
    Attack("a reply to a question that nobody has asked", "a site", AT_WORK, own_reply, not_asked,
           (Refusal("not stored", "does not exist or has expired"),)),
    Attack("a reply after its round", "a site", AT_WORK, LATE.first, LATE.again,
           (Refusal("not stored", "does not exist or has expired"),)),
    Attack("an object of another site's reply, fetched by its sha256", "a site that knows it", AT_WORK, object_of_own,
           object_of_another, by_gate(403, "pull-object")),
    Attack("a removed key comes back", "a site that was removed", AT_WORK, rogue_signs_in, removed_key,
           (*by_gate(412, "activate-node"), Refusal("ApiError 2004", "No SuperNode found with the given public key"),
            *by_gate(403, "activate-node"))),
]  # fmt: skip
"""The last of them removes the rogue's key."""
