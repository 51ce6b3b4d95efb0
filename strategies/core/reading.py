"""Strict reading of a client's records in a message: an invalid record raises."""

import re
from collections.abc import Mapping

from flwr.app import ConfigRecord

from client_app.handlers import ClientFailure, ClientReply
from client_app.messages import unpack
from client_app.serialization import Expected
from data.text import printable

SHA256 = re.compile(r"[0-9a-f]{64}")
DIGESTS = ("memory", "data")
"""What a client sends a digest of."""

MOST_RECORDS = 100
"""Records of a reply: the model, an upload of each variant, scores of each deployed model on each test set."""


def read(parts: Mapping[str, object], largest: Expected | None) -> ClientReply:
    """Return one client's records, each of at most `largest`, as an answer."""
    if len(parts) > MOST_RECORDS:
        raise ValueError(f"{len(parts)} records arrived, and at most {MOST_RECORDS} are expected")
    states = {}
    metrics: dict[str, float] = {}
    worker: dict[str, int | str] = {}
    digests: dict[str, str] = {}
    for name, record in parts.items():
        if name == "metrics":
            metrics = {key: number(key, value) for key, value in dict(record).items()}  # type: ignore[call-overload]
        elif name == "worker" and isinstance(record, ConfigRecord):
            worker = worker_in(record)
        elif name == "digests" and isinstance(record, ConfigRecord):
            digests = {kind: digest_of(record[kind]) for kind in DIGESTS if kind in record}
        else:
            states[name] = unpack(record, largest)
    return ClientReply(states, metrics, worker, digests)


def worker_in(record: ConfigRecord) -> dict[str, int | str]:
    """Return what a client says of its process, as far as a record of the round can hold it."""
    worker: dict[str, int | str] = {}
    for key in ("process", "device", "visible-gpus", "gpu"):
        value = record.get(key, "")
        if isinstance(value, int) and abs(value) >= 2**63:  # Python does not print the longest
            raise ValueError("worker: has a number of more than 63 bits")
        if value != "":
            worker[key] = value if isinstance(value, int) else printable(value)
    return worker


def failure_in(record: ConfigRecord) -> ClientFailure:
    """Return what a client reports instead of an answer. Whatever it sends, this raises nothing."""
    number = record.get("number", 0)
    if type(number) is not int or not 0 <= number < 2**63:
        number = 0
    return ClientFailure(
        reason=printable(record.get("reason", "no reason given")),
        kind=printable(record.get("kind", "")),
        permission=printable(record.get("permission", "")),
        number=number,
    )


def digest_of(code: object) -> str:
    """Return a sha256. Raises ValueError for what is none."""
    if not isinstance(code, str) or not SHA256.fullmatch(code):
        raise ValueError("a digest is no sha256")
    return code


def number(key: str, value: object) -> float:
    """Return a metric as a float. Raises TypeError for what is none, as a list or a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"metric {key} is {type(value).__name__}, not a number")
    return float(value)
