"""Replies of clients in flwr's own messages: whose they are, and what of them is refused before it is read."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from client_app.client import InvalidReply, check_numbers
from fedskew.flower.records import REPORT
from strategies.core.validation import METRICS, RejectedUpdate

HEADROOM = 2**16
"""Bytes that a record may have beside its arrays' values: names, shapes and headers."""


def client_number(reply: Message) -> int:
    """Return the client's number, or its node's where the reply has none."""
    report = reply.content.config_records.get(REPORT, ConfigRecord())
    stated = report.get("client")
    return stated if isinstance(stated, int) else reply.metadata.src_node_id


def client_order(reply: Message) -> tuple[int, int]:
    """Return the key by which replies are sorted: the client, and the node where two have one number."""
    node = reply.metadata.src_node_id
    client = node if reply.has_error() else client_number(reply)
    return client, node


def check_size(record: ArrayRecord, largest: int, what: str, arrays: int = 8) -> None:
    """Raise RejectedUpdate for a record of more than `largest` bytes and the heads of its `arrays`."""
    allowed = largest + HEADROOM + 256 * arrays
    size = record.count_bytes()
    if size > allowed:
        raise RejectedUpdate(f"{what} has {size} bytes, and at most {allowed} are due")


def read(function: Callable[[ArrayRecord], Any], record: ArrayRecord) -> Any:
    """Return what `function` makes of a record. Raises RejectedUpdate for bytes that are no arrays."""
    try:
        return function(record)
    except Exception as error:  # whatever a client sends must not end the server
        raise RejectedUpdate(f"its arrays cannot be read: {error}") from error


def numbers_of(reply: Message, weighted_by: str) -> dict[str, float]:
    """Return num-examples, which the app's metric `weighted_by` is, loss, steps and coefficient-sum of a reply.

    The numbers of variants, VARIANT/NAME, are checked as well. Raises RejectedUpdate for impossible ones.
    """
    metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
    report = reply.content.config_records.get(REPORT)
    stated: dict[str, object] = {**(report or {}), "num-examples": metrics.get(weighted_by, 0)}
    numbers = {}
    for name in METRICS.keys() & stated.keys():
        numbers[name] = number(name, stated[name])
        reason = METRICS[name].violation(numbers[name], numbers[name])
        if reason:
            raise RejectedUpdate(f"{name} {reason}")
    if report is not None:  # the metrics of an app that trains in a loop of its own are its own
        try:
            check_numbers({name: number(name, metrics[name]) for name in metrics if "/" in name})
        except InvalidReply as error:
            raise RejectedUpdate(str(error)) from None
    return numbers


def number(name: str, value: object) -> float:
    """Return a value as a number. Raises RejectedUpdate where it is none."""
    if not isinstance(value, int | float):
        raise RejectedUpdate(f"number {ascii(name)[:80]} is no number")
    return float(value)


def check_steps(numbers: Mapping[str, float]) -> None:
    """Raise RejectedUpdate for a coefficient sum that no optimizer makes in so many steps.

    With any momentum and any pull towards the start, K steps make at least 1 and at most 1 + 2 + ... + K. A smaller sum
    would let one client own FedNova's mean.
    """
    missing = {"steps", "coefficient-sum"} - numbers.keys()
    if missing:
        raise RejectedUpdate(f"it sends no {min(missing)}: FedNova's clients use local_round")
    steps = numbers["steps"]
    total = numbers["coefficient-sum"]
    most = steps * (steps + 1) / 2
    rounding = 1e-6
    if not 1 - rounding <= total <= most + rounding:
        raise RejectedUpdate(f"coefficient-sum is {total:g}, which {steps:g} steps cannot make")
