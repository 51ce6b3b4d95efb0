"""Attacks by replies: for another site, to what was not asked, twice, late, and with other numbers of samples."""

import sqlite3
import time
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, MessageType, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from attacks.at_the_gate import ROGUE
from attacks.stage import ALONE, AT_WORK, Attack, Stage, Succeeded, Untried
from strategies.checks import Refused, checked_metrics
from strategies.replies import replies


def forged(run: int, source: int, answered: str) -> Message:
    """Return an empty reply to a message, with a message id of its own."""
    about = Metadata(run, "", source, 1, answered, "", time.time(), 60.0, MessageType.TRAIN)
    reply = make_message(about, RecordDict())
    about.__dict__["_message_id"] = reply.object_id
    return reply


def push(stage: Stage, reply: Message, node: int) -> Any:
    """Push a reply with the rogue site's key in the name of a node."""
    trees = [get_object_tree(reply)]
    request = PushMessagesRequest(
        node=Node(node_id=node), messages_list=[message_to_proto(reply)], message_object_trees=trees
    )
    with stage.fleet(stage.key(ROGUE)) as client:
        return client.PushMessages(request)


def waiting(stage: Stage, site: int, seconds: float = 60.0) -> tuple[int, str]:
    """Return run and id of a message that a site has not answered yet; the attacker knows more here than any can."""
    deadline = time.monotonic() + seconds
    question = "SELECT run_id, message_id FROM message_ins WHERE dst_node_id = ?"
    node = stage.nodes[site]
    while time.monotonic() < deadline:
        with sqlite3.connect(
            f"file:{stage.folder.state}/state.db?mode=ro", uri=True, timeout=10
        ) as database:
            rows = database.execute(question, (node - 2**64 if node >= 2**63 else node,)).fetchall()
        if rows:
            return int(rows[-1][0]) % 2**64, str(rows[-1][1])
        time.sleep(0.1)
    raise Untried("nothing was asked of the site in time")


def for_another_site(stage: Stage) -> str:
    run, message = waiting(stage, 0)
    reply = forged(run, stage.nodes[0], message)
    path = "/v1/fleet/push-messages"
    return "\n".join(
        stage.refused_by_gate(path, lambda node=node: push(stage, reply, node), code)
        for node, code in ((stage.nodes[ROGUE], 403), (stage.nodes[0], 401))
    )


def stored(stage: Stage, answered: str) -> str:
    """Push a reply to a message that waits for none; return the SuperLink's line."""
    run, log = int(stage.audit(ROGUE)[-1]["run"]), stage.log("superlink")
    push(stage, forged(run, stage.nodes[ROGUE], answered), stage.nodes[ROGUE])
    return log.wait_for("Failed to store Message reply", seconds=10)


def not_asked(stage: Stage) -> str:
    return stored(stage, "0" * 64)


def twice(stage: Stage) -> str:
    answered = [entry["message"] for entry in stage.audit(ROGUE) if entry["event"] == "answered"]
    return stored(stage, answered[-1])


def after_the_round(stage: Stage) -> str:
    answered = [entry["message"] for entry in stage.audit(ROGUE) if entry["event"] == "answered"]
    return stored(stage, answered[0])


def records_of_another(stage: Stage) -> str:
    records = (
        path.read_text() for path in (stage.federation.work / "results").glob("*/rounds.jsonl")
    )
    strays = [
        line
        for text in records
        for line in text.splitlines()
        if "which it was not asked for" in line
    ]
    if not strays:
        raise Succeeded("no record tells of the stray")
    begin = strays[0].index('"strays"')
    return strays[0][begin : strays[0].index("]", begin) + 1]


class Wire:
    """A grid whose replies come as somebody has forged them."""

    def __init__(self, *forgeries: Message) -> None:
        self.forgeries = list(forgeries)

    def push_messages(self, messages: list[Message]) -> list[str]:
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        arrived, self.forgeries = self.forgeries, []
        return arrived


def late_or_of_another(stage: Stage) -> str:
    asked = make_message(
        Metadata(1, "question", 1, 7, "", "", time.time(), 60.0, MessageType.TRAIN), RecordDict()
    )
    genuine, second, other, early = (
        forged(1, node, answered)
        for node, answered in ((7, "question"), (7, "question"), (8, "question"), (7, "past"))
    )
    strays: list[str] = []
    taken = list(replies(Wire(other, early, genuine, second), [asked], 0.0, strays.append))  # type: ignore[arg-type]
    if taken != [genuine] or len(strays) != 3:
        raise Succeeded(f"{len(taken)} replies were taken")
    return "\n".join(strays)


def more_samples(stage: Stage) -> str:
    server: Any = SimpleNamespace(examples_by_client={ROGUE: 300})
    metrics = {
        "num-examples": 10.0**15,
        "loss": 1.0,
        "steps": 1.0,
        "coefficient-sum": 1.0,
        "remembers": 0,
        "seconds": 1,
    }
    try:
        checked_metrics(ROGUE, metrics, server)
    except Refused as reason:
        return f"client {ROGUE} left out: {reason}"
    raise Succeeded("the number was believed")


ATTACKS = [
    Attack("a reply in another site's name, to the message that it has not answered yet", "a site", AT_WORK,
           for_another_site),
    Attack("records of another site in the site's own reply", "a site", AT_WORK, records_of_another),
    Attack("a reply to a question that nobody has asked", "a site", AT_WORK, not_asked),
    Attack("a second reply to the same question", "a site", AT_WORK, twice),
    Attack("a reply after its round", "a site", AT_WORK, after_the_round),
    Attack("replies of another node, of an earlier exchange, and twice, should they reach the server", "a site", ALONE,
           late_or_of_another),
    Attack("num-examples raised in a later round", "a site", ALONE, more_samples),
]  # fmt: skip
