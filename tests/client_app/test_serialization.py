"""A state in bytes, whoever wrote them: what is read, and what is refused before anything is built."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from client_app.serialization import DTYPES, HEAD, DecodeError, Expected, from_bytes, to_bytes

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
    ordered = {"weight": torch.ones(2, 3), "z": torch.ones(1)}
    assert torch.equal(from_bytes(save(ordered))["weight"], ordered["weight"])
    for name, dtype in DTYPES.items():
        tensor = torch.ones(3).to(dtype)
        assert (
            load(to_bytes({name: tensor}))[name].dtype
            == from_bytes(save({name: tensor}))[name].dtype
            == dtype
        )


@pytest.mark.parametrize("letters", range(1, 10))
def test_tensors_begin_at_a_multiple_of_eight_bytes(letters: int) -> None:
    written = to_bytes({"x" * letters: torch.ones(2)})
    assert (len(written) - 2 * 4) % 8 == 0


def test_order_and_memory() -> None:
    back = from_bytes(BLOB, Expected(len(BLOB), len(STATE)))
    assert list(back) == ["weight", "count", "none"] and back["none"].shape == (0, 3)
    back["weight"].add_(1)
    assert from_bytes(BLOB)["weight"].tolist() == STATE["weight"].tolist()


TWICE = '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "x": {}}'
PAIR = {"x": entry()["x"], "y": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "a head of 0 bytes, and 0 bytes arrived"),
    "cut head": (BLOB[:20], "a head of .* bytes, and 20 bytes arrived"),
    "huge head": (b"\xff" * 8 + BLOB, "a head of 18446744073709551615 bytes"),
    "no text": (blob("")[:8] + b"", "no JSON object"),
    "not utf-8": ((2).to_bytes(8, "little") + b"\xff\xff", "no JSON object"),
    "no object": (blob([1, 2]), "no JSON object"),
    "deep": (blob("[" * 100_000), "no JSON object"),
    "a long number": (blob("1" * 5000), "no JSON object"),
    "twice": (blob(TWICE, b"\0" * 4), "a name comes twice"),
    "no tensor": (blob({"x": 3}), "'x' has not dtype, shape and data_offsets alone"),
    "fewer keys": (
        blob({"x": {"dtype": "F32", "shape": [2]}}, b"\0" * 8),
        "'x' has not dtype, shape and data_offsets alone",
    ),
    "more keys": (blob(entry(more=1), b"\0" * 8), "'x' has not dtype"),
    "type": (blob(entry(dtype="F8_E5M2"), b"\0" * 8), "'x' is of type 'F8_E5M2', not one of F64"),
    "no type": (blob(entry(dtype=[]), b"\0" * 8), "'x' is of type"),
    "negative": (
        blob(entry(shape=[-2, -1]), b"\0" * 8),
        r"'x' is of shape '\[-2, -1\]', which no tensor has",
    ),
    "no shape": (blob(entry(shape="2"), b"\0" * 8), "'x' is of shape"),
    "half a side": (blob(entry(shape=[2.0]), b"\0" * 8), "'x' is of shape"),
    "truth": (blob(entry(shape=[True, 2]), b"\0" * 8), "'x' is of shape"),
    "sides": (blob(entry(shape=[1] * 100 + [2]), b"\0" * 8), "'x' is of shape"),
    "immense": (blob(entry(shape=[0, 2**40, 2**40], data_offsets=[0, 0])), "'x' is of shape"),
    "claims more": (
        blob(entry(shape=[2**30], data_offsets=[0, 2**32]), b"\0" * 8),
        "the head is of 42949.* bytes, and",
    ),
    "shape differs": (blob(entry(shape=[3]), b"\0" * 8), "'x' has other bytes than follow"),
    "overlap": (
        blob({**PAIR, "y": {**PAIR["y"], "data_offsets": [4, 8]}}, b"\0" * 8),
        "'y' has other bytes",
    ),
    "gap": (
        blob({**PAIR, "y": {**PAIR["y"], "data_offsets": [12, 16]}}, b"\0" * 16),
        "'y' has other bytes",
    ),
    "gap at first": (blob(entry(data_offsets=[8, 16]), b"\0" * 16), "'x' has other bytes"),
    "no offsets": (blob(entry(data_offsets=None), b"\0" * 8), "'x' has other bytes"),
    "cut": (BLOB[:-1], f"the head is of {len(BLOB)} bytes, and {len(BLOB) - 1} arrived"),
    "trailing": (BLOB + b"x", f"the head is of {len(BLOB)} bytes, and {len(BLOB) + 1} arrived"),
    "a control character": (blob({"\x1b[2J" * 50: 3}), r"'\\x1b"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_in_a_sentence(case: str) -> None:
    bytes_, reason = REFUSED[case]
    with pytest.raises(DecodeError, match=reason) as refusal:
        from_bytes(bytes_)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 500


def test_more_than_was_expected_is_refused_before_it_is_looked_at() -> None:
    with pytest.raises(DecodeError, match=r"^1000 bytes arrived, and at most 999 are expected$"):
        from_bytes(b"\xff" * 1000, Expected(999, 9))


def empty_tensors(count: int, name: str = "{}") -> bytes:
    """Return a blob of so many tensors without values, which take no bytes of it but for the head."""
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return blob({name.format(number): tensor for number in range(count)})


def test_more_tensors_than_were_expected_are_refused_before_one_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, most = empty_tensors(60_000), Expected(2**26, 64)
    built: list[object] = []
    monkeypatch.setattr(
        "client_app.serialization.torch.empty", lambda *shape, **_: built.append(shape)
    )
    with pytest.raises(DecodeError, match=r"^a head of \d+ bytes, and at most 65536 are expected$"):
        from_bytes(many, most)
    with pytest.raises(DecodeError, match=r"^65 tensors arrived, and at most 64 are expected$"):
        from_bytes(empty_tensors(65), most)
    assert not built


def test_as_many_tensors_as_are_expected_are_read() -> None:
    name = "a.long.name.of.a.tensor.that.no.model.of.this.project.has.but.a.user's.may" * 2 + "{}"
    assert len(from_bytes(empty_tensors(64, name), Expected(2**26, 64))) == 64


def test_eighty_characters_of_a_long_name_are_shown() -> None:
    entries = {"n" * 100: {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}
    with pytest.raises(DecodeError, match=r"^'n{80}' has other bytes"):
        from_bytes(blob(entries, b"\0" * 8))
