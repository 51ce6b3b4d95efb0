"""Attacks by what stands in a reply: records of another site, other numbers of samples, and replies of other nodes."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from flwr.app import Message, MessageType, Metadata, RecordDict
from flwr.app.message.message import make_message
from torch import Tensor

from attacks.at_the_gate import ROGUE
from attacks.stage import (
    ALONE,
    AT_WORK,
    Attack,
    ControlFailed,
    Refusal,
    Stage,
    Succeeded,
    elsewhere,
    raised,
    require,
)
from client_app.messages import FOLDED, NONCE, folded, pack, unfolded, unpack
from client_app.models import Classifier, build
from client_app.optimizer import TrainingSettings, expected_coefficient_sum
from client_app.state import State
from client_app.training import steps_of
from data.agreement import Member, read_agreement
from site_agent import executor
from strategies.core.exchange import Exchange, replies
from strategies.core.rounds import largest_record
from strategies.core.server import Server
from strategies.core.validation import checked_metrics

VICTIM = 0
"""The site that another one wants to know of."""
EMPTY = 70_000
"""Empty tensors of a reply: about as many as its head may name."""
SOON = 20.0
"""Seconds that a server has to refuse a reply's numbers; it takes milliseconds."""


def forged(run: int, source: int, answered: str, content: RecordDict | None = None) -> Message:
    """Return a reply to a message, empty if no content is given, with a message id of its own."""
    about = Metadata(run, "", source, 1, answered, "", time.time(), 60.0, MessageType.TRAIN)
    reply = make_message(about, content or RecordDict())
    about.__dict__["_message_id"] = reply.object_id
    return reply


def records(stage: Stage) -> Iterator[dict[str, Any]]:
    """Yield the records of the training's rounds so far."""
    for path in (stage.federation.work / "results").glob("*/rounds.jsonl"):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def own_records(stage: Stage) -> str:
    """Show that the rogue's records of itself, in the same replies, are taken."""
    for record in records(stage):
        if ROGUE in record["clients"] and not record["failures"]:
            return f'"clients": {record["clients"]}, "used": {record["used"]}, "failures": {{}}'
    raise ControlFailed("no round has taken the rogue's own records")


def records_of_another(stage: Stage) -> list[Refusal]:
    for record in records(stage):
        for sentence in record["strays"]:
            if "which it was not asked for" in sentence:
                return [Refusal("unsolicited", sentence)]
    raise Succeeded("no record tells of the unsolicited reply")


class Wire:
    """A grid whose replies come as somebody has forged them."""

    def __init__(self, *forgeries: Message) -> None:
        self.forgeries = list(forgeries)

    def push_messages(self, messages: list[Message]) -> list[str]:
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        arrived, self.forgeries = self.forgeries, []
        return arrived


def taken(*arriving: Message) -> tuple[list[Message], list[str]]:
    """Return which replies to a question to node 7 are taken, and what is said of the others."""
    asked = make_message(
        Metadata(1, "question", 1, 7, "", "", time.time(), 60.0, MessageType.TRAIN), RecordDict()
    )
    unsolicited: list[str] = []
    good = list(replies(Wire(*arriving), [asked], 0.0, unsolicited.append))  # type: ignore[arg-type]
    return good, unsolicited


def genuine_reply(stage: Stage) -> str:
    genuine = forged(1, 7, "question")
    good, unsolicited = taken(genuine)
    require(good == [genuine] and not unsolicited, f"{len(good)} taken, unsolicited: {unsolicited}")
    return "node 7's one reply to its question is taken"


def late_or_of_another(stage: Stage) -> list[Refusal]:
    other, early = forged(1, 8, "question"), forged(1, 7, "past")
    genuine, second = forged(1, 7, "question"), forged(1, 7, "question")
    good, unsolicited = taken(other, early, genuine, second)
    if good != [genuine]:
        raise Succeeded(f"{len(good)} replies were taken")
    return [Refusal("unsolicited", sentence) for sentence in unsolicited]


def server_that_knows(examples_by_client: dict[int, int], sites: Sequence[Member] = ()) -> Server:
    """Return the server of a run with momentum and a pull, which knows some clients' samples, or what is agreed."""
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    return Server(
        model=model,
        start=model.state_dict(),
        clients=3,
        round=2,
        seed=0,
        training=TrainingSettings(momentum=0.9),
        examples_by_client=examples_by_client,
        proximal_mu=0.01,
        sites=sites,
    )


def metrics_of(examples: int, server: Server) -> dict[str, float]:
    """Return metrics as a client with so many samples sends them: all of them fit each other."""
    steps = steps_of(examples, server.training)
    pull = server.proximal_mu * server.training.rate(server.round)
    return {
        "num-examples": examples,
        "loss": 1.0,
        "steps": steps,
        "coefficient-sum": expected_coefficient_sum(steps, server.training.momentum, pull),
        "remembers": 0,
        "seconds": 1,
    }


def same_samples(stage: Stage) -> str:
    server = server_that_knows({ROGUE: 300})
    examples = checked_metrics(ROGUE, metrics_of(300, server), server)
    require(examples == 300, f"the server takes {examples} samples")
    return "client 2 states 300 samples, as before, and is taken"


def more_samples(stage: Stage) -> list[Refusal]:
    server = server_that_knows({ROGUE: 300})
    metrics = metrics_of(600, server)
    return raised(lambda: checked_metrics(ROGUE, metrics, server), "client 2 left out: ")


def refused_at_once(client: int, metrics: dict[str, float], server: Server) -> Refusal:
    """Return how the server refuses metrics, in a process of its own that has SOON seconds."""
    try:
        kind, sentence = elsewhere(lambda: checked_metrics(client, metrics, server), SOON)
    except TimeoutError:
        raise Succeeded(f"the server still computes after {SOON:g} s") from None
    if not kind:
        raise Succeeded(f"{sentence} samples were believed")
    return Refusal(kind, f"client {client} left out: {sentence}")


def first_samples(stage: Stage) -> str:
    """Let a site state a number of samples that nobody has agreed on, in its first reply."""
    server = server_that_knows({})
    examples = checked_metrics(ROGUE, metrics_of(300, server), server)
    require(examples == 300, f"the server takes {examples} samples")
    return "client 2 states 300 samples, for the first time, and is taken"


def endless_numbers(stage: Stage) -> list[Refusal]:
    """State 2^53 samples and steps, which a server that sums step by step adds up for thousands of years."""
    server = server_that_knows({})
    honest = metrics_of(300, server)
    many = 2.0**53
    samples = {**honest, "num-examples": many, "steps": steps_of(int(many), server.training)}
    steps = {**honest, "steps": many}
    return [refused_at_once(ROGUE, metrics, server) for metrics in (samples, steps)]


AGREED, STATED = 320, 320_000_000
"""Samples that federation.toml agrees on for each site, and that the rogue states for as many."""


def server_that_agrees(stage: Stage) -> Server:
    """Return a server whose federation.toml is the one at work, with AGREED samples for each site."""
    file = stage.federation.work / "agreed.toml"
    text = stage.folder.agreement_file.read_text()
    file.write_text(re.sub(r"(?m)^(key = .*)$", rf"\1\nsamples = {AGREED}", text))
    return server_that_knows({}, read_agreement(file).sites)


def agreed_samples(stage: Stage) -> str:
    server = server_that_agrees(stage)
    examples = checked_metrics(ROGUE, metrics_of(AGREED, server), server)
    require(examples == AGREED, f"the server takes {examples} samples")
    return f"client {ROGUE} states {AGREED} samples, for the first time, and is taken"


def more_than_agreed(stage: Stage) -> list[Refusal]:
    server = server_that_agrees(stage)
    return [refused_at_once(ROGUE, metrics_of(STATED, server), server)]


def large_model() -> Classifier:
    """Return a model of 12 MB, of which a reply may have more bytes than EMPTY empty tensors take."""
    return build("mlp-bn", (3, 64, 64), 10, 0)


def received(state: State) -> Exchange:
    """Return an exchange that has received a reply with a state as its model, as the server of a run reads it."""
    exchange = Exchange([ROGUE], largest_record(large_model()))
    about = Metadata(1, "reply", 7, 1, "question", "", 0.0, 60.0, MessageType.TRAIN)
    reply = make_message(about, RecordDict({f"{ROGUE}/model": pack(state)}))
    exchange.receive([reply], {7: [ROGUE]})
    return exchange


def whole_model(stage: Stage) -> str:
    exchange = received(large_model().state_dict())
    require(ROGUE in exchange.answers, f"left out: {exchange.failures}")
    return f"a model of {len(exchange.answers[ROGUE].states['model'])} tensors is taken"


def empty_tensors(stage: Stage) -> list[Refusal]:
    """Send tensors that take no bytes of a reply, but half a kilobyte each of the server's memory."""
    exchange = received({str(number): torch.empty(0) for number in range(EMPTY)})
    if ROGUE in exchange.answers:
        raise Succeeded(f"{len(exchange.answers[ROGUE].states['model'])} tensors were taken")
    return [Refusal("left out", f"client {ROGUE} left out: {exchange.failures[ROGUE]}")]


def pushed(counts_C: Tensor) -> RecordDict:
    """Return what a site's executor gives its SuperNode for a reply that holds class counts and nothing else."""
    replies_pushed: list[Message] = []
    about = Metadata(1, "reply", 7, 1, "question", "", 0.0, 60.0, MessageType.QUERY)
    reply = make_message(about, class_counts_reply(counts_C))
    genuine = executor.push_as_it_is
    executor.push_as_it_is = lambda client, reply, context: replies_pushed.append(reply)
    try:
        executor.push_message(None, reply, None)  # type: ignore[arg-type]
    finally:
        executor.push_as_it_is = genuine
    return replies_pushed[0].content


def class_counts_reply(counts_C: Tensor) -> RecordDict:
    """Return the records in which a site uploads its class counts."""
    return RecordDict({f"{VICTIM}/upload/fedshift": pack({"counts": counts_C})})


COUNTS = [75, 5, 34]


def right_guess(stage: Stage) -> str:
    """Show that the guess is right but for the random bytes: with them the name is the same."""
    left = pushed(torch.tensor(COUNTS))
    nonce = left.config_records[FOLDED][NONCE]
    require(isinstance(nonce, bytes) and len(nonce) == 16, f"the random bytes are {nonce!r}")
    guess = folded(class_counts_reply(torch.tensor(COUNTS)), bytes(nonce))  # type: ignore[arg-type]
    require(guess.object_id == left.object_id, "the guess differs in more than the random bytes")
    upload = unpack(unfolded(left)[f"{VICTIM}/upload/fedshift"])
    inside = upload["counts"].tolist()
    require(inside == COUNTS, f"the reply reads as {inside}")
    return f"with the random bytes, the guess {COUNTS} has the reply's name {guess.object_id[:16]}"


def guessed_counts(stage: Stage) -> list[Refusal]:
    """Compare the names of two replies of the same counts with that of a guess, which is right."""
    guess = folded(class_counts_reply(torch.tensor(COUNTS))).object_id
    names = [pushed(torch.tensor(COUNTS)).object_id for _ in range(2)]
    if guess in names or names[0] == names[1]:
        raise Succeeded(f"the guess {COUNTS} is seen to be right by its name {guess[:16]}")
    line = f"the guess {COUNTS}: {guess[:16]}; the replies: {' and '.join(n[:16] for n in names)}"
    return [Refusal("no match", line)]


UNSOLICITED = Refusal("unsolicited", "sent a reply that is late, twice there or not its own")
DURING = [
    Attack("records of another site in the site's own reply", "a site", AT_WORK, own_records, records_of_another,
           (Refusal("unsolicited", "sent 0/model, which it was not asked for"),)),
]  # fmt: skip
IN_PROCESS = [
    Attack("replies of another node, of an earlier exchange, and twice, should they reach the server", "a site", ALONE,
           genuine_reply, late_or_of_another, (UNSOLICITED, UNSOLICITED, UNSOLICITED)),
    Attack("num-examples raised in a later round, with steps and coefficients to match", "a site", ALONE, same_samples,
           more_samples, (Refusal("RejectedUpdate", "num-examples is 600, and the client has 300"),)),
    Attack("2^53 samples, or steps, in a first reply, upon which the server computes for ever", "a site", ALONE,
           first_samples, endless_numbers,
           (Refusal("RejectedUpdate", "num-examples is 9007199254740992, and a client has at most"),
            Refusal("RejectedUpdate", "steps is 9007199254740992, and 300 samples make"))),
    Attack(f"{STATED:,} samples for {AGREED}, which would make a site the owner of the model", "a site", ALONE,
           agreed_samples, more_than_agreed,
           (Refusal("RejectedUpdate", f"num-examples is {STATED}, and federation.toml agrees on at most {AGREED}"),)),
    Attack(f"a reply of {EMPTY:,} empty tensors, which is short and takes much memory", "a site", ALONE, whole_model,
           empty_tensors, (Refusal("left out", "a head of 3978896 bytes, and at most"),)),
    Attack("another site's class counts, guessed and compared by the sha256 that names its reply", "a site", ALONE,
           right_guess, guessed_counts, (Refusal("no match", "the replies"),)),
]  # fmt: skip
