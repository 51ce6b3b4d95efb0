"""States in records and back, as bytes and within one process."""

import pytest
import torch
from client_builders import same
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from google.protobuf.message import DecodeError as ProtobufDecodeError

from client_app import serialization
from client_app.messages import (
    FOLDED,
    STATE,
    TensorRecord,
    bytes_of,
    folded,
    handing_over,
    pack,
    to_flower,
    unfolded,
    unpack,
)
from client_app.models import build
from client_app.serialization import DecodeError, Expected
from client_app.state import size
from fedskew.engines.local import identify

STATES = {
    "every kind of number": {
        str(dtype): torch.tensor([0, 1]).to(dtype) for dtype in serialization.DTYPES.values()
    },
    "names of any kind": {
        "b": torch.ones(3),
        'a"\\ä\n': torch.zeros(1),
        "": torch.ones(1),
    },
    "empty": {"x": torch.empty(0, 4, 4), "classes": torch.empty(0, dtype=torch.int64)},
    "transposed": {"x": torch.arange(6.0).reshape(2, 3).T},
    "shared memory": {"x": (values := torch.arange(4.0)), "y": values, "z": values[1:]},
    "gradient": {"x": torch.ones(2, requires_grad=True)},
    "no tensors": {},
    "model": dict(build("mlp-bn", (1, 4, 4), 3, 0).state_dict()),
}


@pytest.mark.parametrize("name", STATES)
def test_bytes_and_back(name: str) -> None:
    state = STATES[name]
    record = pack(state)
    travelled = recorddict_from_proto(recorddict_to_proto(RecordDict({"state": record})))
    for back in (unpack(record), unpack(travelled.array_records["state"])):
        assert list(back) == list(state) and same(back, state)
        assert [tensor.dtype for tensor in back.values()] == [
            tensor.dtype for tensor in state.values()
        ]
        assert all(not tensor.requires_grad for tensor in back.values())


def test_a_record_of_anything_else_is_refused() -> None:
    array = Array(to_flower({"x": torch.ones(1)})["x"].numpy())
    others = (
        ArrayRecord(),
        ArrayRecord({STATE: array}),
        ArrayRecord({"x": array, "y": array}),
        MetricRecord({"x": 1}),
    )
    for other in others:
        with pytest.raises(DecodeError):
            unpack(other)
    record = pack({"x": torch.ones(100)})
    with pytest.raises(DecodeError):
        unpack(record, Expected(100, 9))
    unpack(record, Expected(1000, 9))


def test_folded_a_message_is_three_objects_and_unfolded_what_it_was() -> None:
    identify()
    metrics, digests = MetricRecord({"loss": 0.5, "steps": 3}), ConfigRecord({"memory": "ab"})
    content = RecordDict({"model": pack(STATES["model"]), "metrics": metrics, "digests": digests})
    small = folded(content)
    assert len(get_all_nested_objects(Message(small, dst_node_id=1, message_type="train"))) == 3
    assert unfolded(small) == content and unfolded(content) is content
    for other in ({FOLDED: b"no records"}, {FOLDED: 3}, {"x": b""}):
        with pytest.raises((ProtobufDecodeError, LookupError, TypeError)):
            unfolded(RecordDict({FOLDED: ConfigRecord(other)}))


def test_flowers_form_and_back() -> None:
    state = STATES["model"]
    record = to_flower(state)
    assert list(record) == list(state) and same(record.to_torch_state_dict(), state)


@pytest.mark.parametrize("name", ["transposed", "shared memory"])
def test_handing_over_passes_the_tensors_themselves(name: str) -> None:
    state = STATES[name]
    with handing_over():
        record = pack(state)
        assert isinstance(record, TensorRecord)
        back = unpack(record)
    assert list(back) == list(state) and same(back, state)
    for key, tensor in state.items():
        assert back[key].is_contiguous(), "as bytes would bring it"
        assert (back[key] is tensor) == tensor.is_contiguous()


def test_size_is_that_of_the_values() -> None:
    assert (
        size({"x": torch.zeros(3, 4), "counter": torch.tensor(1), "empty": torch.empty(0)})
        == 3 * 4 * 4 + 8
    )
    assert size({}) == 0


def test_a_record_of_a_whole_piece_travels_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """flwr sends a record in pieces; one that fits into a single piece needs no objects of its own."""
    record = pack({"x": torch.ones(1000)})
    content, size = RecordDict({"0/model": record}), record.count_bytes()
    for piece, names in ((size, [FOLDED]), (size - 1, ["0/model", FOLDED])):
        monkeypatch.setattr("client_app.messages.PIECE", piece)
        assert list(folded(content)) == names
        assert unfolded(folded(content)) == content


def test_the_record_of_a_failure_travels_though_flwr_cannot_count_empty_texts() -> None:
    """Without it a site's refusal never reaches the server, which waits for the site until its timeout."""
    record = ConfigRecord({"reason": "data 1", "kind": "", "number": 1})
    with pytest.raises(ValueError):
        record.count_bytes()
    content = RecordDict({"0/error": record})
    assert unfolded(folded(content, b"nonce")) == content
    assert bytes_of(record) > bytes_of(ConfigRecord({"reason": "data 1"})) > 0
