"""Whether masked answers say anything about a site beside the sum, and what they cost.

    python -m benchmarks.masked_sum [--transcripts 10000]

Two inputs with equal sums are masked again and again, each time with new nonces. What is tested is what a coordinator
sees with all sites but two on its side: it has their keys and takes their masks away, and one mask is left on each of
the two answers. A transcript is these two rows of words.

    exact       the sum of all answers is the sum of the inputs
    bytes       chi-squared of the bytes of each of the two answers, for every pair of sites
    words       chi-squared of the bytes of differences of two words of an answer: a mask used twice in it
    answers     chi-squared of the bytes of differences of an answer and the one before: a mask used twice over nonces
    keys        equal first words among 400,000 masks, of which 64-bit words have none
    classifier  a logistic regression on the bits, trained on as many other transcripts, names the input

A chi-squared test fails beyond six standard deviations; the classifier has to be right on 50 +- 2 %.
Then each of six faults is planted, and at least one test has to find it. Exit status 0 only if all of that holds.
"""

import argparse
import hashlib
import itertools
import os
import secrets
import statistics
import sys
import time
from collections.abc import Mapping
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from client_app import masked_sum
from client_app.masked_sum import NONCE_BYTES, SumList, Words

FEDERATION = hashlib.sha256(b"federation.toml").hexdigest()
SITES, CLASSES = 4, 10
DEVIATIONS = 6.0
"""Beyond which a chi-squared test fails."""
MARGIN = 0.02
"""Around one half, the share of transcripts that the classifier may get right."""
BIRTHDAYS = 400_000
"""Masks whose first words are compared: of 32-bit seeds 19 pairs are equal on average, of 64-bit words none."""
FEWEST = 1000
"""Transcripts; with fewer no test says much."""
CLASSIFIED = (0, 1)
"""The pair of sites whose answers the classifier looks at: the two whose inputs differ."""
COSTS = {4: 1.0, 50: 15.0, 500: 80.0}
"""By number of sites, the goal in milliseconds per site for 10 counts."""

INPUTS = np.zeros((2, SITES, CLASSES), dtype=np.uint64)
"""Class counts of four sites, twice: another site has the classes, and the sums are the same."""
INPUTS[0, 0] = 500
INPUTS[0, 1:] = 3
INPUTS[1, 1] = 500
INPUTS[1, 0] = 3
INPUTS[1, 2:] = 3

Shared = dict[tuple[int, int], bytes]


def list_of(sites: int) -> SumList:
    """Return a list of sites with fresh nonces."""
    names = tuple(f"site-{number}" for number in range(sites))
    nonces = tuple(secrets.token_hex(NONCE_BYTES) for _ in names)
    return SumList(FEDERATION, "class-counts", names, nonces)


def shared_secrets() -> Shared:
    """Return the X25519 secret of every pair of sites, which all sums of a federation have in common."""
    keys = [X25519PrivateKey.generate() for _ in range(SITES)]
    pairs = itertools.combinations(range(SITES), 2)
    return {(i, j): keys[i].exchange(keys[j].public_key()) for i, j in pairs}


def answer(words: Words, own: int, shared: Shared, context: bytes) -> Words:
    """Return a site's answer, as `masked_sum.masked` makes it from the same secrets."""
    total = words.copy()
    for other in range(SITES):
        if other != own:
            pair = (min(own, other), max(own, other))
            total += masked_sum.pair_mask(shared[pair], context, own, other, len(words))
    return total


def without_colluding(row: Words, own: int, victim: int, shared: Shared, context: bytes) -> Words:
    """Return a site's answer without the masks of all sites but `victim`, which give theirs away."""
    left = row.copy()
    for other in range(SITES):
        if other not in (own, victim):
            pair = (min(own, other), max(own, other))
            left -= masked_sum.pair_mask(shared[pair], context, own, other, len(row))
    return left


def transcripts(
    count: int, shared: Shared, pair: tuple[int, int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], bool]:
    """Return (T, 2, C) what is left of a pair's answers, (T,) the input of each, and whether all sums are exact."""
    rows = np.empty((count, 2, CLASSES), dtype=np.uint64)
    labels = np.array([secrets.randbelow(2) for _ in range(count)])
    exact = True
    for number, label in enumerate(labels):
        context = list_of(SITES).digest
        inputs = INPUTS[label]
        answers = [answer(inputs[site], site, shared, context) for site in range(SITES)]
        total = masked_sum.unmasked_sum(answers)
        exact = exact and bool((total == inputs.sum(0)).all())
        for place, (own, victim) in enumerate((pair, pair[::-1])):
            rows[number, place] = without_colluding(answers[own], own, victim, shared, context)
    return rows, labels, exact


def deviations(words: NDArray[np.uint64]) -> float:
    """Return by how many standard deviations chi-squared of the words' bytes is above its mean under uniform bytes."""
    values = np.ascontiguousarray(words).view(np.uint8).ravel()
    counts = np.bincount(values, minlength=256)
    expected = len(values) / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - 255) / (2 * 255) ** 0.5


def equal_first_words(shared: Shared) -> int:
    """Return how many of many masks begin with a word that another one begins with."""
    secret = shared[0, 1]
    first = np.empty(BIRTHDAYS, dtype=np.uint64)
    for number in range(BIRTHDAYS):
        context = number.to_bytes(32, "big")  # as different as the digests of different lists
        first[number] = masked_sum.stream(masked_sum.pair_key(secret, context, 0, 1), 1)[0]
    return BIRTHDAYS - len(np.unique(first))


def classified(rows: NDArray[np.uint64], labels: NDArray[np.int64]) -> float:
    """Return the share of the second half of the transcripts whose input a classifier names right."""
    bytes_per_row = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    bits = np.unpackbits(bytes_per_row, axis=1)
    inputs_NF = torch.from_numpy(bits).float() * 2 - 1
    labels_N = torch.from_numpy(labels).float()
    half = len(rows) // 2
    torch.manual_seed(0)
    model = torch.nn.Linear(inputs_NF.shape[1], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        scores_N = model(inputs_NF[:half])[:, 0]
        torch.nn.functional.binary_cross_entropy_with_logits(scores_N, labels_N[:half]).backward()
        optimizer.step()
    with torch.no_grad():
        guesses_N = (model(inputs_NF[half:])[:, 0] > 0).float()
    return float((guesses_N == labels_N[half:]).float().mean())


def failed_tests(count: int) -> dict[str, str]:
    """Return what the tests find wrong, by test: nothing of masks as they should be."""
    shared = shared_secrets()
    found: dict[str, str] = {}
    largest: dict[str, float] = {}
    half = CLASSES // 2
    for pair in shared:
        # The classifier learns from the first half of these, and names the others.
        many = 2 * count if pair == CLASSIFIED else count // 5
        rows, labels, exact = transcripts(many, shared, pair)
        if not exact:
            found["exact"] = "a sum of answers is not the sum of the inputs"
        for place, site in enumerate(pair):
            words = rows[:, place]
            differences = {
                "bytes": words,
                "words": words[:, :half] - words[:, half:],
                "answers": np.diff(words, axis=0),
            }
            for name, uniform in differences.items():
                beyond = deviations(uniform)
                if beyond > max(DEVIATIONS, largest.get(name, 0.0)):
                    largest[name] = beyond
                    found[name] = f"site {site} of the pair {pair}: {beyond:.0f} deviations"
        if pair == CLASSIFIED:
            share = classified(rows, labels)
            print(f"    the classifier is right on {share:.2%} of {count} transcripts", flush=True)
            chance = 4 * 0.5 / count**0.5  # four standard deviations; 2 % of 10,000 transcripts
            if abs(share - 0.5) > max(MARGIN, chance):
                found["classifier"] = f"right on {share:.2%}"
    equal = equal_first_words(shared)
    if equal:
        found["keys"] = f"{equal} of {BIRTHDAYS} masks begin as another one does"
    return found


# ---- faults ----------------------------------------------------------------------------------------------------------


def used_twice(key: bytes, count: int) -> Words:
    """A mask used twice: the second half of the words gets that of the first."""
    half = stream(key, count // 2 + count % 2)
    return np.concatenate([half, half])[:count]


def without_a_pair(shared: bytes, context: bytes, own: int, other: int, count: int) -> Words:
    """A pair left out: sites 1 and 3 add no mask on each other's account."""
    if {own, other} == {1, 3}:
        return np.zeros(count, dtype=np.uint64)
    return pair_mask(shared, context, own, other, count)


def short_seed(shared: bytes, context: bytes, first: int, second: int) -> bytes:
    """A 32-bit seed."""
    return pair_key(shared, context, first, second)[:4] + bytes(28)


def without_a_sign(shared: bytes, context: bytes, own: int, other: int, count: int) -> Words:
    """A sign: both sites of a pair add."""
    return pair_mask(shared, context, min(own, other), max(own, other), count)


def without_top_value(key: bytes, count: int) -> Words:
    """randint's missing top value: no byte is ever 255."""
    values = stream(key, count).view(np.uint8)
    return (values % 255).view(np.uint64)


def without_nonces(sum_list: SumList) -> bytes:
    """Nonces left out of the key."""
    return hashlib.sha256(f"{sum_list.federation} {sum_list.purpose}".encode()).digest()


stream, pair_mask, pair_key = masked_sum.stream, masked_sum.pair_mask, masked_sum.pair_key
FAULTS: Mapping[str, tuple[object, str, object]] = {
    "a mask used twice": (masked_sum, "stream", used_twice),
    "a pair left out": (masked_sum, "pair_mask", without_a_pair),
    "a 32-bit seed": (masked_sum, "pair_key", short_seed),
    "a sign": (masked_sum, "pair_mask", without_a_sign),
    "randint's missing top value": (masked_sum, "stream", without_top_value),
    "nonces left out of the key": (SumList, "digest", property(without_nonces)),
}
"""By name, what a fault replaces, and by what."""


def milliseconds(sites: int) -> float:
    """Return the processor time that masking 10 counts costs a site, the median of five."""
    keys = [X25519PrivateKey.generate() for _ in range(sites)]
    publics = [key.public_key() for key in keys]
    sum_list = list_of(sites)
    words = np.arange(CLASSES, dtype=np.uint64)
    laps = []
    for _ in range(5):
        began = time.process_time()
        masked_sum.masked(words, 0, keys[0], publics, sum_list)
        laps.append(1000 * (time.process_time() - began))
    return statistics.median(laps)


def main() -> int:
    """Test the masks, plant the faults, measure the cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transcripts", type=int, default=10_000)
    stated = parser.parse_args()
    count = max(stated.transcripts, FEWEST)
    print("masks as they are:", flush=True)
    found = failed_tests(count)
    for name, what in found.items():
        print(f"    {name} FAILS: {what}", flush=True)
    missed = []
    for fault, (owner, name, replacement) in FAULTS.items():
        print(f"planted: {fault}", flush=True)
        with patch.object(owner, name, replacement):
            seen = failed_tests(FEWEST)
        for test, what in seen.items():
            print(f"    {test} finds it: {what}", flush=True)
        if not seen:
            missed.append(fault)
            print("    NOT FOUND", flush=True)
    for sites, goal in COSTS.items():
        took = milliseconds(sites)
        print(f"{sites} sites: {took:.2f} ms per site for {CLASSES} counts, goal {goal:g} ms")
    right = not found and not missed
    print("all tests pass and find every fault" if right else "NOT RIGHT", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
