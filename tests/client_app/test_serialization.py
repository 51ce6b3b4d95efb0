"""A state in bytes, whoever wrote them: what is read, and what is refused before anything is built."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from client_app.serialization import (
    DTYPES,
    HEAD,
    DecodeError,
    Expected,
    from_bytes,
    to_bytes,
)

STATE = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "count": torch.tensor(7),
    "none": torch.empty(0, 3),
}
BLOB = to_bytes(STATE)


def blob(head: Any, values: bytes = b"") -> bytes:
    """Return a blob with this head, which is JSON as it is when it is text."""
    text = (head if isinstance(head, str) else json.dumps(head)).encode()
    return len(text).to_bytes(HEAD, "little") + text + values


def entry(**changes: Any) -> dict[str, Any]:
    """Return a head of one tensor of two values, changed."""
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def test_the_bytes_are_safetensors() -> None:
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in load(BLOB).items())
    for name, dtype in DTYPES.items():
        tensor = torch.arange(3).to(dtype)
        for back in (load(to_bytes({name: tensor})), from_bytes(save({name: tensor}))):
            assert back[name].dtype == dtype and torch.equal(back[name], tensor)


@pytest.mark.parametrize("letters", [1, 2, 5, 8])
def test_tensors_begin_at_a_multiple_of_eight_bytes(letters: int) -> None:
    written = to_bytes({"x" * letters: torch.ones(2)})
    assert (len(written) - 2 * 4) % 8 == 0


HOLE = b"\0" * 8
PAIR = {"x": entry()["x"], "y": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}


def pair(begin: int, end: int, values: int) -> bytes:
    """Return a blob of two tensors of which the second is said to lie there."""
    return blob({**PAIR, "y": {**PAIR["y"], "data_offsets": [begin, end]}}, b"\0" * values)


REFUSED = {
    "nothing": b"",
    "cut head": BLOB[:20],
    "not utf-8": (2).to_bytes(8, "little") + b"\xff\xff",
    "no object": blob([1, 2]),
    "deep": blob("[" * 100_000),
    "a long number": blob("1" * 5000),
    "twice": blob('{"x": {}, "x": {}}'),
    "no tensor": blob({"x": 3}),
    "no type": blob(entry(dtype=[]), HOLE),
    "a type of no state": blob(entry(dtype="F8_E5M2", shape=[8]), HOLE),
    "negative": blob(entry(shape=[-2, -1]), HOLE),
    "no shape": blob(entry(shape="2"), HOLE),
    "truth": blob(entry(shape=[True, 2]), HOLE),
    "immense": blob(entry(shape=[0, 2**63], data_offsets=[0, 0])),
    "shape differs": blob(entry(shape=[3]), HOLE),
    "overlap": pair(4, 8, 8),
    "gap": pair(12, 16, 16),
    "no offsets": blob(entry(data_offsets=None), HOLE),
    "cut": BLOB[:-1],
    "more": BLOB + b"\0",
    "a control character": blob({"\x1b[2J" * 50: 3}),
    "a long name": blob({"n" * 100: entry(shape=[3])["x"]}, HOLE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_in_a_sentence(case: str) -> None:
    with pytest.raises(DecodeError) as refusal:
        from_bytes(REFUSED[case])
    said = str(refusal.value)
    assert said.isprintable() and len(said) < 500


def test_tensors_come_in_the_order_of_the_head_and_share_no_memory_with_it() -> None:
    assert len(from_bytes(pair(8, 12, 12))) == 2
    state = {name: torch.ones(1) for name in "zyxwabc"}
    assert list(from_bytes(to_bytes(state))) == list(state)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in from_bytes(BLOB).values())


def empty_tensors(count: int, name: str = "{}") -> bytes:
    """Return a blob of so many tensors without values, which take no bytes of it but for the head."""
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return blob({name.format(number): tensor for number in range(count)})


def test_more_than_was_expected_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = "a.long.name.of.a.tensor.that.no.model.of.this.project.has.but.a.user's.may" * 2 + "{}"
    most = Expected(2**26, 64)
    assert len(from_bytes(empty_tensors(64, long), most)) == 64
    monkeypatch.delattr("client_app.serialization.load")
    for bytes_, expected, said in (
        (b"\xff" * 1000, Expected(999, 9), "1000 bytes arrived, and at most 999"),
        (empty_tensors(5_000), most, "at most 65536 are expected"),
        (empty_tensors(65), most, "65 tensors arrived, and at most 64"),
    ):
        with pytest.raises(DecodeError) as refusal:
            from_bytes(bytes_, expected)
        assert said in str(refusal.value)
