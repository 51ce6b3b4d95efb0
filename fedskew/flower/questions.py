"""What a server asks its clients outside training: class counts before the first round, statistics after the last."""

import logging
from collections.abc import Mapping, Sequence

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from client_app.local_site import NOT_A_PARTICIPANT
from client_app.variants.class_prior import LARGEST, UNIT
from data.agreement import MOST_SAMPLES
from fedskew.flower.records import METRICS, QUESTION
from fedskew.flower.variants import CLASS_COUNTS
from strategies.core.node_assignment import ExchangeSettings, wait_for_nodes
from strategies.core.questions import integer_sum
from strategies.core.validation import Range

log = logging.getLogger("flwr")
"""flwr's own logger, as its strategies use it: an app's user sees these lines among flwr's."""


def class_counts(grid: Grid, *, min_nodes: int = 2, timeout: float = 3600) -> dict[str, list[int]]:
    """Ask every connected node for its class counts and return their sum, to be put into the train config.

    FedShift and reweighting need it: `train_config=ConfigRecord({"lr": 0.05, **class_counts(grid)})`. The counts are
    in units of 2^-16, the variants' smoothing included. They leave the clients exactly as they are, outside what a
    privacy wrapper or mod accounts for.

    Args:
        min_nodes: nodes to wait for before asking.
        timeout: seconds to wait for nodes and for answers.

    Raises:
        RuntimeError: a node does not answer, or with something else than class counts.
        TooFewNodes: fewer than `min_nodes` are connected in time.
    """
    answers: dict[int, dict[str, torch.Tensor]] = {}
    for reply in ask(grid, CLASS_COUNTS, ArrayRecord(), timeout, min_nodes):
        node = reply.metadata.src_node_id
        if reply.has_error():
            raise RuntimeError(
                f"node {node} did not answer with its class counts ({reply.error.reason}): put @app.query() "
                "above the client's train function and call local_round with variants=[...] in it"
            )
        record = reply.content.metric_records.get(METRICS, MetricRecord())
        counts = torch.tensor(record.get(CLASS_COUNTS, [])).flatten()
        first = next(iter(answers.values()), {"counts": counts})
        classes = len(first["counts"])
        fewest, most = (counts.min().item(), counts.max().item()) if len(counts) else (0, 0)
        reason = Range(0, LARGEST).violation(fewest, most)
        if counts.is_floating_point():
            reason = "is not in whole numbers"
        elif counts.sum() > (MOST_SAMPLES + classes) * UNIT:  # smoothing adds to every class
            reason = f"is of more than {MOST_SAMPLES} samples"
        if not len(counts) or len(counts) != classes:
            reason = f"is of {len(counts)} classes, and of {classes} at another node"
        if reason:
            raise RuntimeError(f"node {node}: its answer {reason}; its query must be local_round's")
        answers[node] = {"counts": counts}
    log.info("class counts of %d nodes, exact: no privacy wrapper or mod covers them", len(answers))
    return {CLASS_COUNTS: integer_sum(answers)["counts"].tolist()}


def ask(
    grid: Grid,
    question: str,
    arrays: ArrayRecord,
    timeout: float,
    min_nodes: int,
    settings: Mapping[str, int | float] | None = None,
    broadcast: Mapping[str, ArrayRecord] | None = None,
) -> Sequence[Message]:
    """Ask every connected node a question and return all replies, but for nodes that take no part in the run.

    Args:
        question: its name.
        arrays: the model that it is about; empty where it is about the data alone.
        timeout: seconds to wait for nodes and for answers.
        min_nodes: nodes to wait for before asking.
        settings: what the question states beside its name, such as the grid of the answers.
        broadcast: what goes with it, by record name.

    Raises TooFewNodes where too few are connected in time, RuntimeError where one sends no reply.
    """
    # In a simulation nodes are registered after the server has started.
    nodes = wait_for_nodes(grid, ExchangeSettings(nodes=min_nodes, node_wait=timeout))
    config = ConfigRecord({QUESTION: question, **(settings or {})})
    content = RecordDict({"config": config, **(broadcast or {})})
    if arrays:
        content["arrays"] = arrays
    messages = [
        Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes
    ]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    missing = len(nodes) - len(replies)
    if missing:
        raise RuntimeError(f"{missing} of {len(nodes)} nodes sent no answer to {question!r}")
    answers = [reply for reply in replies if not declines(reply)]
    if len(answers) < min_nodes:
        raise RuntimeError(f"{len(answers)} nodes take part in the run, and {min_nodes} are needed")
    return answers


def declines(reply: Message) -> bool:
    """Return whether a reply is that of a site which takes no part in the run."""
    return reply.has_error() and reply.error.code == NOT_A_PARTICIPANT
