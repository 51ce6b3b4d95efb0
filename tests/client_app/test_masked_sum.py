"""Masked sums: equal to plain ones to the bit, and every word is uniform while one answer is missing."""

import hashlib
import random
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client_app.masked_sum import (
    NONCE_BYTES,
    SumList,
    Words,
    from_words,
    masked,
    pair_key,
    stream,
    to_words,
    unmasked_sum,
)

FEDERATION = hashlib.sha256(b"federation.toml").hexdigest()
EXTREMES = (0, 1, 2**63 - 1, 2**63, 2**64 - 1)


def list_of(sites: int, purpose: str = "class-counts") -> SumList:
    names = tuple(f"site-{number}" for number in range(sites))
    nonces = tuple(secrets.token_hex(NONCE_BYTES) for _ in names)
    return SumList(FEDERATION, purpose, names, nonces)


def keys_of(sites: int) -> list[X25519PrivateKey]:
    return [X25519PrivateKey.generate() for _ in range(sites)]


def answers_of(
    inputs: Sequence[Words], keys: Sequence[X25519PrivateKey], sum_list: SumList
) -> list[Words]:
    publics = [key.public_key() for key in keys]
    return [
        masked(words, position, key, publics, sum_list)
        for position, (words, key) in enumerate(zip(inputs, keys, strict=True))
    ]


def test_masked_sums_are_plain_sums_to_the_bit() -> None:
    """Of 3 to 50 sites, of any words, modulo 2^64, in any order; and not of some of the sites."""
    draws = random.Random(0)
    for sites in (3, 4, 20, 50):
        rows = [
            [draws.choice([*EXTREMES, draws.getrandbits(64)]) for _ in range(9)]
            for _ in range(sites)
        ]
        expected = [sum(column) % 2**64 for column in zip(*rows, strict=True)]
        inputs = [np.array(row, np.uint64) for row in rows]
        answers = answers_of(inputs, keys_of(sites), list_of(sites))
        draws.shuffle(answers)
        assert unmasked_sum(answers).tolist() == expected
        assert unmasked_sum(answers[1:]).tolist() != expected


def chi_squared(words: Words) -> float:
    """Return the statistic of the words' bytes; of uniform ones the mean is 255, the deviation 22.6."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_with_one_answer_missing_the_sum_of_the_others_is_uniform() -> None:
    inputs = [np.full(20_000, number, dtype=np.uint64) for number in range(4)]
    answers = answers_of(inputs, keys_of(4), list_of(4))
    left_out = [answers[:k] + answers[k + 1 :] for k in range(4)]
    sums = [*answers, *map(unmasked_sum, left_out)]
    assert all(chi_squared(words) < 255 + 6 * 22.6 for words in sums)
    assert chi_squared(inputs[1]) > 1e6  # what the statistic is of words without a mask


def test_all_that_is_in_a_key_changes_it() -> None:
    """So masks are used once: another purpose, federation, name, nonce, pair or order has others."""
    first = list_of(4)
    changes: list[dict[str, Any]] = [
        {},
        {"federation": FEDERATION[::-1]},
        {"purpose": "class-means"},
        {"names": ("site-9", *first.names[1:])},
        {"nonces": (*first.nonces[:3], secrets.token_hex(NONCE_BYTES))},
        {"names": first.names[:3], "nonces": first.nonces[:3]},
    ]
    keys = [pair_key(bytes(32), replace(first, **change).digest, 0, 1) for change in changes]
    keys += [pair_key(bytes(32), first.digest, *pair) for pair in ((0, 2), (1, 2))]
    keys += [pair_key(bytes(31) + b"1", first.digest, 0, 1)]
    assert len(set(keys)) == 9


def test_the_stream_is_that_of_rfc_7539() -> None:
    """Its appendix A.1, test vector 1: key, nonce and counter 0."""
    begins = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream(bytes(32), 4).astype("<u8").tobytes().hex() == begins


def test_arrays_become_words_and_come_back() -> None:
    sums, counts = np.arange(-(2**62), 2**62, 2**59).reshape(4, 4), np.array([2**63 - 1, -(2**63)])
    words = to_words({"sums": sums, "counts": counts})
    back = from_words(words, {"sums": (4, 4), "counts": (2,)})
    assert back.keys() == {"sums", "counts"}
    assert np.array_equal(back["sums"], sums) and np.array_equal(back["counts"], counts)
    with pytest.raises(ValueError):
        from_words(words, {"sums": (4, 4)})


def test_a_list_is_read_as_it_was_written_and_in_no_other_form() -> None:
    three = list_of(3)
    text = three.to_json()
    assert SumList.from_json(text).to_json() == text
    others = [
        "",
        "[]",
        "{}",
        text + " ",
        text.replace('"purpose":"', '"purpose":1,"x":"'),
        text[:-20] + text[-18:],
        replace(three, nonces=three.nonces[:2]).to_json(),
        replace(three, nonces=(*three.nonces[:2], 64 * "F")).to_json(),
        "[" * 100_000,
    ]
    for other in others:
        with pytest.raises(ValueError):
            SumList.from_json(other)
