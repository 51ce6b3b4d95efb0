"""Every reply that a client may send, changed at random, and what becomes of it.

Every method of the registry is run honestly by three clients on two nodes, up to the replies of each exchange: the
question before round 1, the second round's training, its evaluation, and the question after the last round. There one
client's reply is changed, and the server goes on. A client that is refused must be as good as silent: what the server
makes then is compared with what it makes of the others alone.

Other but plausible is what `believable` says, without asking the server: a reply whose names, types and shapes are the
honest ones, whose values are finite and within the limits, and which says nothing else of what the server knows.
"""

import builtins
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from changes import REPLIES, Reply, arrived
from federation import CLIENTS, NODES, Stage, node_of, stages
from flwr.app import Message
from harness import Subject, Tally, fuzz

from client_app.messages import unpack
from client_app.state import State, seed_of
from strategies.core.exchange import TooFewReplies

LIMITS = {"loss": 1e30 * 2**31, "num_batches_tracked": 2.0**53}
"""Largest absolute values by the last part of a tensor's name; of any other one it is 1e10, of integers any.

A client's sums of products, weighed by class, are beyond 1e10 where it is honest.
"""
NOT_NEGATIVE = ("running_var", "num_batches_tracked", "counts", "confusion", "loss")


class LeftOut(Exception):
    """The client is refused by name, and nothing that it sent has counted."""


def believable(stage: Stage, client: int, messages: Sequence[Message]) -> bool:
    """Return whether what a client sent keeps every rule, and so nobody can tell it from honest."""
    prefix, node = f"{client}/", node_of(client)
    honest = {name: r for name, r in stage.records(node).items() if name.startswith(prefix)}
    came = [m for m in messages if m.metadata.src_node_id == node and not m.has_error()]
    sent = dict(came[0].content.items()) if came else {}
    for name, record in honest.items():
        rest = name.removeprefix(prefix)
        if rest in ("worker", "digests"):
            continue
        if name not in sent:
            return False
        is_right = (
            numbers_believable(dict(sent[name]), dict(record))
            if rest == "metrics"
            else state_believable(unpack(sent[name]), unpack(record))
        )
        if not is_right:
            return False
    return True


def numbers_believable(sent: Mapping[str, Any], honest: Mapping[str, Any]) -> bool:
    """Return whether metrics are those of the client; it may lie about loss and seconds."""
    if any(key not in sent or type(sent[key]) not in (int, float) for key in honest):
        return False
    same = all(sent[key] == honest[key] for key in ("num-examples", "steps"))
    close = math.isclose(sent["coefficient-sum"], honest["coefficient-sum"], rel_tol=1e-5)
    in_range = 0 <= sent["loss"] <= 1e30 and 0 <= sent["seconds"] <= 1e7
    return same and close and in_range


def state_believable(sent: State, honest: State) -> bool:
    """Return whether tensors are such as the client could have sent."""
    if sent.keys() != honest.keys():
        return sent.keys() == {"refused"}
    for key, tensor in sent.items():
        own, last = honest[key], key.rpartition(".")[2]
        # of the classes that a client holds, it may send any
        shape = (*tensor.shape[:1], *own.shape[1:]) if "classes" in honest else own.shape
        if (tensor.dtype, tensor.shape) != (own.dtype, shape) or not torch.isfinite(tensor).all():
            return False
        most = LIMITS.get(last, 1e10 if tensor.is_floating_point() else 2.0**63)
        if tensor.numel() and tensor.double().abs().max() > most:
            return False
        if last in NOT_NEGATIVE and (tensor < 0).any():
            return False
    if "confusion" in sent:
        return torch.equal(sent["confusion"].sum(1), honest["confusion"].sum(1))
    by_client = "counts" in sent and "classes" not in sent
    return not by_client or torch.equal(sent["counts"].sum(), honest["counts"].sum())


@dataclass
class Taken:
    """What the server made of a reply."""

    code: str
    possible: bool = field(compare=False)


def subject_of(stage: Stage) -> Subject:
    """Return a stage as a subject."""

    def read(reply: Reply, folder: Path) -> Taken:
        messages = arrived(stage, reply)
        node = NODES[node_of(reply.client)]
        try:
            failures, code = stage.outcome(messages)
        except TooFewReplies as error:
            named = [client for client in range(CLIENTS) if f"client {client}: " in str(error)]
            assert named and {*named} <= {*node}, f"others are named: {error}"
            raise
        finally:
            assert not hasattr(builtins, "executed"), "a pickle was executed"
        assert {*failures} <= {*node}, f"others are refused: {failures}"
        for text in failures.values():
            assert len(text) < 20_000 and text.isprintable(), "an endless sentence"
        if failures and code == stage.without(tuple(sorted(failures))):
            raise LeftOut("; ".join(f"{k}: {text[:200]}" for k, text in sorted(failures.items())))
        others = [client for client in node if client not in failures]
        return Taken(code, all(believable(stage, client, messages) for client in others))

    refusals = (LeftOut, TooFewReplies) if ": question of " in stage.name else (LeftOut,)
    genuine = Taken(stage.without(()), True)
    return Subject(stage.name, REPLIES, read, genuine, refusals, lambda taken: taken.possible)


def fuzz_replies(method: str, examples: int, number: int, root: Path) -> dict[str, Tally]:
    """Return what becomes of so many replies, spread over the stages of a method.

    The same ones for the same seed `number`; `root` is an empty folder.
    """
    (root / "run").mkdir()
    every = [subject_of(stage) for stage in stages(root / "run", method)]
    share = -(-examples // len(every))
    return {
        subject.name: fuzz(subject, share, root / str(place), seed_of(number, subject.name))
        for place, subject in enumerate(every)
    }
