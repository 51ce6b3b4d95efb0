"""Replies of clients in flwr's own messages: whose they are, and what of them is refused before it is read."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedskew.flower.records import REPORT
from strategies.core.validation import RejectedUpdate

HEADROOM = 2**16
"""Bytes that a record may have beside its arrays' values: names, shapes and headers."""


def client_number(reply: Message) -> int:
    """Return the client's number, or its node's where the reply has none."""
    report = reply.content.config_records.get(REPORT, ConfigRecord())
    number = report.get("client")
    return number if isinstance(number, int) else reply.metadata.src_node_id


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
