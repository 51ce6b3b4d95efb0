"""States in flwr's records, and back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from client_app.flower_internals import RecordDictProto, recorddict_from_proto, recorddict_to_proto
from client_app.serialization import DecodeError, Expected, from_bytes, to_bytes
from client_app.state import State

Value = ArrayRecord | ConfigRecord | MetricRecord
ACTION = "clients"
"""The action of FedSkew's own messages, as in `train.clients`."""
STATE, FORM = "state", "safetensors"
"""Name and form of the one array of a record that travels."""
FOLDED = "folded"
"""Name of the record that holds others, and of the value that they are."""
NONCE, NONCE_BYTES = "nonce", 16
"""Name and length of the random bytes beside them in a site's reply."""
PIECE = 5 * 2**20
"""Bytes of a record above which it travels by itself; flwr sends it in pieces of as many."""
_in_one_process: ContextVar[bool] = ContextVar("in_one_process", default=False)


class TensorRecord(ArrayRecord):
    """A record that hands its tensors over, on the CPU and laid out as in a message, which takes no bytes."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = {name: tensor.cpu().contiguous() for name, tensor in state.items()}


@contextmanager
def handing_over() -> Iterator[None]:
    """Within this context records carry tensors and must not leave the process."""
    token = _in_one_process.set(True)
    try:
        yield
    finally:
        _in_one_process.reset(token)


def kind_of(message: Message) -> str:
    """Return train, evaluate or query, whatever action of it the message is for."""
    return message.metadata.message_type.partition(".")[0]


def pack(state: State) -> ArrayRecord:
    """Return the state as a record for a message: one array, as flwr moves every array as several objects."""
    if _in_one_process.get():
        return TensorRecord(state)
    blob = to_bytes(state)
    array = Array(dtype="uint8", shape=(len(blob),), stype=FORM, data=blob)
    return ArrayRecord({STATE: array})


def unpack(record: object, most: Expected | None = None) -> dict[str, torch.Tensor]:
    """Return the state in a record; its tensors are not to be changed in place.

    Raises DecodeError for a record that `pack` has not made, or for one of more than `most`.
    """
    if isinstance(record, TensorRecord):
        return record.state
    not_packed = DecodeError("the record is not one array of safetensors")
    if not isinstance(record, ArrayRecord) or list(record) != [STATE]:
        raise not_packed
    array = record[STATE]
    if array.stype != FORM:
        raise not_packed
    return from_bytes(array.data, most)


def bytes_of(record: Value) -> int:
    """Return the bytes of a record."""
    if isinstance(record, ConfigRecord):  # flwr's `count_bytes` raises ValueError for an empty text
        return int(recorddict_to_proto(RecordDict({"": record})).ByteSize())
    return int(record.count_bytes())


def folded(content: Mapping[str, Value], nonce: bytes = b"") -> RecordDict:
    """Return a message's records as one record, but for large ones.

    Between sites flwr stores every object of a message by itself, asks for it and answers, at each of four processes on
    its way. A state alone is three objects: record, array and piece.

    flwr names an object by the sha256 of its content. With a `nonce` of random bytes nobody can find out by its name
    whether a guess at a small content, such as class counts, is right. Large records have none: nobody guesses 5 MB of
    trained weights.
    """
    small: dict[str, Value] = {}
    records: dict[str, Value] = {}
    for name, record in content.items():
        if bytes_of(record) <= PIECE:
            small[name] = record
        else:
            records[name] = record

    inside = ConfigRecord()
    inside[FOLDED] = recorddict_to_proto(RecordDict(small)).SerializeToString()
    if nonce:
        inside[NONCE] = nonce
    records[FOLDED] = inside
    return RecordDict(records)


def unfolded(content: RecordDict) -> RecordDict:
    """Undo `folded`, and leave other records as they are. Raises what protobuf and flwr do for bytes that are none."""
    if FOLDED not in content.config_records:
        return content
    blob = content.config_records[FOLDED][FOLDED]
    records = {name: record for name, record in content.items() if name != FOLDED}
    records |= recorddict_from_proto(RecordDictProto.FromString(blob))
    return RecordDict(records)


def to_flower(state: State) -> ArrayRecord:
    """Return the state as flwr's own strategies and loops expect it, one array per tensor."""
    arrays = {}
    for name, tensor in state.items():
        values = tensor.detach().cpu().contiguous()
        arrays[name] = Array(values.numpy())
    return ArrayRecord(arrays)
