"""Every reply that a client may send, changed at random, and what becomes of it.

Every method is run honestly by three clients on two nodes, up to the replies of each exchange: the question before
round 1, the second round's training, its evaluation, and the question after the last round. There one client's reply is
changed, half of the time it goes through flwr's protobuf, and the server goes on. A client that is refused must be as
good as silent: what the server makes then is compared with what it makes of the others alone.

Other but plausible is what `believable` says, without asking the gateway: a reply whose names, types and shapes are the
honest ones, whose values are finite and within the limits, and which says nothing else of what the server knows.
"""

import builtins
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from changes import REPLIES, Reply, arrived
from federation import CLIENTS, NODES, Stage, scanners, stages
from flwr.app import Message
from harness import Subject, Tally, fuzz

from client_app.messages import unpack
from client_app.state import State, seed_of
from server_app.methods import METHODS
from strategies.core.exchange import TooFewReplies


class LeftOut(Exception):
    """The client is refused by name, and nothing that it sent has counted."""


def believable(stage: Stage, client: int, messages: Sequence[Message]) -> bool:
    """Return whether what a client sent keeps every rule, and so nobody can tell it from honest."""
    node = next(node for node, clients in NODES.items() if client in clients)
    first = next(
        (m for m in messages if m.metadata.src_node_id == node and not m.has_error()), None
    )
    if first is None:
        return False
    sent = {
        n.split("/", 1)[1]: record
        for n, record in first.content.items()
        if n.startswith(f"{client}/")
    }
    honest = stage.of(client)
    read = [name for name in honest if name not in ("worker", "digests")]
    if any(name not in sent for name in read) or not digests_believable(sent):
        return False
    return all(
        numbers_believable(dict(sent[name]), dict(honest[name]))
        if name == "metrics"
        else state_believable(name, unpack(sent[name]), unpack(honest[name]))
        for name in read
    )


def digests_believable(sent: Mapping[str, Any]) -> bool:
    """Return whether a reply tells digests that are some, and that of its memory if it says that it remembers."""
    codes = dict(sent.get("digests", {}))
    read = [codes[kind] for kind in ("memory", "data") if kind in codes]
    if any(not isinstance(code, str) or not re.fullmatch("[0-9a-f]{64}", code) for code in read):
        return False
    return "memory" in codes or "metrics" not in sent or dict(sent["metrics"]).get("remembers") != 1


def numbers_believable(sent: Mapping[str, Any], honest: Mapping[str, Any]) -> bool:
    """Return whether metrics are those of the client; it may lie about loss, seconds, and whether it remembers."""
    if any(key not in sent or type(sent[key]) not in (int, float) for key in honest):
        return False
    same = all(sent[key] == honest[key] for key in ("num-examples", "steps"))
    close = math.isclose(sent["coefficient-sum"], honest["coefficient-sum"], rel_tol=1e-5)
    return (
        same
        and close
        and 0 <= sent["loss"] <= 1e30
        and 0 <= sent["seconds"] <= 1e7
        and sent["remembers"] in (0, 1)
    )


def state_believable(name: str, sent: State, honest: State) -> bool:
    """Return whether tensors are such as the client could have sent."""
    if sent.keys() == {"refused"}:
        return True
    rows = len(sent["classes"]) if "classes" in sent and sent["classes"].dim() == 1 else -1
    by_class = "classes" in honest
    if sent.keys() != honest.keys():
        return False
    for key, tensor in sent.items():
        shape = (rows, *honest[key].shape[1:]) if by_class else tuple(honest[key].shape)
        wrong = (
            tensor.dtype != honest[key].dtype
            or tuple(tensor.shape) != shape
            or not torch.isfinite(tensor).all()
        )
        most = {"loss": 1e30 * 2**31}.get(key, 2**53 if "num_batches" in key else 1e10)
        if wrong or (tensor.numel() and tensor.double().abs().max() > most):
            return False
        if (
            key.endswith(("running_var", "num_batches_tracked", "counts", "confusion"))
            and (tensor < 0).any()
        ):
            return False
    if by_class:
        classes, width = sent["classes"].tolist(), 10
        if classes != sorted({*classes}) or any(not 0 <= label < width for label in classes):
            return False
    if "covariances" in sent:
        diagonal = (
            sent["covariances"].diagonal(dim1=-2, dim2=-1)
            if sent["covariances"].dim() == 3
            else sent["covariances"]
        )
        return bool((diagonal >= 0).all()) and int(sent["counts"].sum()) <= int(
            honest["counts"].sum()
        )
    if "counts" in sent:
        return int(sent["counts"].sum()) == int(honest["counts"].sum())
    if "confusion" in sent:
        return torch.equal(sent["confusion"].sum(1), honest["confusion"].sum(1)) and bool(
            (sent["loss"] >= 0).all()
        )
    return True


@dataclass
class Taken:
    """What the server made of a reply."""

    code: str
    possible: bool = field(compare=False)


def subject_of(stage: Stage) -> Subject:
    """Return a stage as a subject."""

    def read(reply: Reply, folder: Path) -> Taken:
        messages = arrived(stage, reply)
        node = next(clients for clients in NODES.values() if reply.client in clients)
        try:
            failures, code = stage.outcome(messages)
        except TooFewReplies as error:
            named = [client for client in range(CLIENTS) if f"client {client}: " in str(error)]
            assert named and {*named} <= {*node}, f"others are named: {error}"
            raise
        finally:
            assert not hasattr(builtins, "executed"), "a pickle was executed"
        assert {*failures} <= {*node}, f"others are refused: {failures}"
        assert all(len(text) < 20_000 and text.isprintable() for text in failures.values()), (
            "an endless sentence"
        )
        if failures and code == stage.without(tuple(sorted(failures))):
            raise LeftOut(
                "; ".join(
                    f"client {client}: {text[:200]}" for client, text in sorted(failures.items())
                )
            )
        return Taken(
            code,
            all(believable(stage, client, messages) for client in node if client not in failures),
        )

    refusals = (LeftOut, TooFewReplies) if stage.name.endswith("class prior") else (LeftOut,)
    return Subject(
        stage.name,
        REPLIES,
        read,
        Taken(stage.without(()), True),
        refusals,
        lambda taken: taken.possible,
    )


NORMS, DIAGONAL = "fedbn with an unseen site", "ccvr, diagonal"
SUBJECTS = (*METHODS, NORMS, DIAGONAL)
"""What is fuzzed: every method, and what only settings bring."""


def subjects(name: str, root: Path) -> list[Subject]:
    """Return what is fuzzed under a name; the run's files go into `root`."""
    usual = {"clients": CLIENTS, "train_images": 150}
    if name == NORMS:
        recorded = stages(root, "fedbn", **scanners(root))
    elif name == DIAGONAL:
        recorded = stages(root, "ccvr", **usual, class_statistics__covariance="diagonal")
    else:
        recorded = stages(root, name, **usual)
    return [subject_of(stage) for stage in recorded]


def fuzz_replies(name: str, examples: int, number: int, root: Path) -> dict[str, Tally]:
    """Return what becomes of so many replies, spread over the stages of what is fuzzed under a name.

    The same ones for the same seed `number`; `root` is an empty folder.
    """
    (root / "run").mkdir()
    every = subjects(name, root / "run")
    share = -(-examples // len(every))
    return {
        subject.name: fuzz(subject, share, root / str(place), seed_of(number, subject.name))
        for place, subject in enumerate(every)
    }
