"""Masks that cancel in a sum: the coordinator learns the sum of the sites' integers, and no site's own.

Words are integers modulo 2^64. Site i of a list of sites sends

    y_i = x_i + sum over j > i of G(k_ij) - sum over j < i of G(k_ij)

    k_ij = HKDF-SHA256(X25519(i, j); federation, purpose, names and nonces of all sites in order, i, j)
    G    = ChaCha20 under a key that is used once

Each G(k_ij) is added once and subtracted once, so the sum of all y_i is the sum of all x_i, to the bit. With one
answer missing, every word of the others is uniform for whoever has none of their keys. The construction is the
pairwise masking of Bonawitz et al. (CCS 2017) without its recovery of sites that drop out: a lost answer is a lost sum.

Nothing here decides whether a site may answer: `site_agent/sum_ledger.py` does. No torch and no flwr is imported.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from pydantic import StringConstraints, TypeAdapter

Words = NDArray[np.uint64]
"""Integers modulo 2^64; negative ones as in two's complement."""
NONCE_BYTES = 32
"""Random bytes that a site contributes to the keys of a sum, so that no two sums have the same masks."""
KEY_BYTES = 32
"""Of X25519 and ChaCha20."""
VERSION = "fedskew masked sum 2"
"""Part of every key: raise it when the same keys and nonces would give other masks."""
Nonce = Annotated[str, StringConstraints(pattern=f"^[0-9a-f]{{{2 * NONCE_BYTES}}}$")]


@dataclass(frozen=True)
class SumList:
    """The sites of one sum: every site's masks depend on all of it."""

    federation: str
    """sha256 of federation.toml."""
    purpose: str
    """What is summed."""
    names: tuple[str, ...]
    """Of the sites, in the order of federation.toml."""
    nonces: tuple[Nonce, ...]
    """Of the sites, each 64 hexadecimal digits."""

    def to_json(self) -> str:
        """Return the list as JSON, the same text for equal lists."""
        return SUM_LIST.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "SumList":
        """Undo `to_json`. Raises ValueError for a text of another form."""
        rule = "no list of sites and nonces"
        try:
            read = SUM_LIST.validate_json(text, strict=True)
        except ValueError:
            raise ValueError(rule) from None
        if len(read.names) != len(read.nonces) or read.to_json() != text:
            raise ValueError(rule)
        return read

    @property
    def digest(self) -> bytes:
        """The sha256 that stands for the list in every key."""
        return hashlib.sha256(f"{VERSION}\n{self.to_json()}".encode()).digest()


SUM_LIST = TypeAdapter(SumList)


def masked(
    words: Words,
    position: int,
    private: X25519PrivateKey,
    publics: Sequence[X25519PublicKey],
    sum_list: SumList,
) -> Words:
    """Return y_i, a site's words under the masks that it shares with every other site of the list.

    Args:
        words: x_i.
        position: i, the site's place in the list.
        private: its key.
        publics: the keys of the list's sites, in order.
        sum_list: the list.
    """
    answer = words.copy()
    context = sum_list.digest
    for other, public in enumerate(publics):
        if other != position:
            shared = private.exchange(public)
            answer += pair_mask(shared, context, position, other, len(words))
    return answer


def pair_mask(shared: bytes, context: bytes, own: int, other: int, count: int) -> Words:
    """Return what site `own` adds to its words on account of site `other`: G(k), or -G(k) for the later of the two."""
    first = min(own, other)
    second = max(own, other)
    mask = stream(pair_key(shared, context, first, second), count)
    if own == first:
        return mask
    return np.uint64(0) - mask  # modulo 2^64


def pair_key(shared: bytes, context: bytes, first: int, second: int) -> bytes:
    """Return k_ij from the two sites' X25519 secret, the list's digest and both places, i < j."""
    info = context + first.to_bytes(4, "big") + second.to_bytes(4, "big")
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)


def stream(key: bytes, count: int) -> Words:
    """Return G(k): `count` words of ChaCha20's key stream. Its nonce is 0, as no key is used twice."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def unmasked_sum(answers: Sequence[Words]) -> Words:
    """Return the sum of all sites' answers modulo 2^64, in which the masks cancel. There is no other way to unmask."""
    total = np.zeros_like(answers[0])
    for answer in answers:
        total += answer
    return total


def to_words(tensors: Mapping[str, NDArray[np.int64]]) -> Words:
    """Return int64 arrays as one row of words, in the order of their names."""
    parts = [np.ascontiguousarray(tensors[name]).ravel() for name in sorted(tensors)]
    return np.concatenate(parts).astype(np.int64).view(np.uint64)


def from_words(words: Words, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.int64]]:
    """Undo `to_words`. Raises ValueError for another number of words than the shapes have."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    expected = sum(sizes.values())
    if len(words) != expected:
        raise ValueError(f"{len(words)} words, and the shapes have {expected}")
    tensors: dict[str, NDArray[np.int64]] = {}
    begin = 0
    for name in sorted(shapes):
        end = begin + sizes[name]
        tensors[name] = words.view(np.int64)[begin:end].reshape(shapes[name])
        begin = end
    return tensors
