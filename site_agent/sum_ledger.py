"""The site's ledger of masked sums: what it checks and writes down before masked words leave.

A sum reveals a site where the coordinator gets two of them that differ by that site alone. So a sum is of all sites of
federation.toml, and a site answers one list of nonces per purpose, ever: the same question gets the same bytes, and
another list is refused. STATE/sums/FEDERATION/ has one file per purpose. It holds the nonce and the integers from the
first question on, and in their place the masked words once a list is answered. A file is on the disk before anything
leaves.

A state that is restored from a backup repeats no mask over other integers: a nonce and its integers are kept together,
and the masks depend on the whole list. Which federation.toml is approved is checked before every message.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from filelock import FileLock

from client_app.local_site import NotAgreed
from client_app.masked_sum import NONCE_BYTES, SumList, Words, masked
from client_app.tensor_files import KIND, Damaged, read, write_atomically
from data import DataError
from data.agreement import mask_key_text, mask_public
from site_agent.config import Site
from site_agent.keys import read_mask_key

FILE_KIND = "masked sum"
MOST_SUMS = 16
"""Sums that a site takes part in at most: each is another look at the samples of all sites."""


@dataclass(frozen=True)
class Entry:
    """What the ledger has of a purpose."""

    nonce: str
    words: Words
    """The site's integers; the masked ones where `answered` is not empty."""
    answered: str = ""
    """The list that was answered, as JSON."""


@dataclass(frozen=True)
class SumLedger:
    """The masked sums of one site in one federation. Implements `client_app.local_site.SiteSums`."""

    site: Site

    @cached_property
    def folder(self) -> Path:
        """The folder of the ledger."""
        return self.site.state / "sums" / self.site.agreement.sha256[:32]

    def nonce(self, purpose: str, compute: Callable[[], Words]) -> bytes:
        """Return the nonce of a purpose, the same at every call; `compute` returns the integers, and is called once.

        Raises:
            NotAgreed: there are as many sums already as a site takes part in.
            DataError: the mask key or the ledger cannot be read, or are others than they should be.
        """
        own_mask_key(self.site)
        with self.lock():
            entry = self.entry(purpose)
            if entry is None:
                if len([*self.folder.glob("*.safetensors")]) >= MOST_SUMS:
                    raise self.refusal(purpose, f"{MOST_SUMS} sums are asked for already")
                # From the system: a generator's state could come back with a backup.
                entry = Entry(secrets.token_hex(NONCE_BYTES), compute())
                self.write(purpose, entry)
            return bytes.fromhex(entry.nonce)

    def answer(self, purpose: str, text: str) -> Words:
        """Return the site's masked words for a list of sites, the JSON text of a SumList.

        Raises:
            NotAgreed: a list that must not be answered; the reason is in the audit log.
            DataError: the mask key or the ledger cannot be read, or are others than they should be.
        """
        site = self.site
        private_key = own_mask_key(site)
        with self.lock():
            entry = self.entry(purpose)
            try:
                sum_list = SumList.from_json(text)
            except ValueError as error:
                raise self.refusal(purpose, f"the message has {error}") from None
            if wrong := self.wrong(purpose, sum_list, entry):
                raise self.refusal(purpose, wrong)
            assert entry
            event = "sum repeated"
            if not entry.answered:
                event = "summed"
                public_keys = [mask_public(member.mask_key) for member in site.agreement.sites]
                words = masked(entry.words, site.number, private_key, public_keys, sum_list)
                entry = Entry(entry.nonce, words, text)
                self.write(purpose, entry)
            digest = hashlib.sha256(entry.words.tobytes()).hexdigest()
            about = {"words": len(entry.words), "sha256": digest, "sites": list(sum_list.names)}
            site.audit.write(event, sum=purpose, **about)  # or nothing leaves
            return entry.words

    def wrong(self, purpose: str, sum_list: SumList, entry: Entry | None) -> str:
        """Return why a list must not be answered, or an empty sentence."""
        agreement = self.site.agreement
        agreed = replace(
            sum_list, federation=agreement.sha256, purpose=purpose, names=tuple(agreement.names)
        )
        if sum_list != agreed:
            return "the list is not that of all sites of this federation.toml for this sum"
        if len({*sum_list.nonces}) < len(sum_list.nonces):
            return "the list has a nonce twice"
        if entry is None or sum_list.nonces[self.site.number] != entry.nonce:
            return "the list does not have the nonce that this site gave for this sum"
        if entry.answered and entry.answered != sum_list.to_json():
            return "another list was answered for this sum"
        return ""

    # ---- the files ---------------------------------------------------------------------------------------------------

    def lock(self) -> FileLock:
        """Return the lock under which the ledger is read and written."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(self.folder / "lock", mode=0o600)

    def file(self, purpose: str) -> Path:
        """Return the file of a purpose."""
        return self.folder / f"{hashlib.sha256(purpose.encode()).hexdigest()[:32]}.safetensors"

    def entry(self, purpose: str) -> Entry | None:
        """Return what the ledger has of a purpose, if anything. Raises DataError for a file that is damaged."""
        file = self.file(purpose)
        if not file.exists():
            return None
        try:
            tensors, text = read(file, {KIND: FILE_KIND, "purpose": purpose})
            words = tensors["words"].numpy().view(np.uint64)
            return Entry(text["nonce"], words, text["answered"])
        except (Damaged, LookupError) as error:
            # A new entry in its place could answer a second list.
            raise DataError(f"the ledger of masked sums is damaged: {error}") from None

    def write(self, purpose: str, entry: Entry) -> None:
        """Write what the ledger has of a purpose; it is on the disk when this returns. Raises OSError."""
        text = {
            KIND: FILE_KIND,
            "purpose": purpose,
            "nonce": entry.nonce,
            "answered": entry.answered,
        }
        words = {"words": torch.from_numpy(entry.words.view(np.int64))}
        file = self.file(purpose)
        write_atomically(file, words, text, flush=True)
        file.chmod(0o600)

    def refusal(self, purpose: str, why: str) -> NotAgreed:
        """Return the error of a question that is refused, once it is in the audit log."""
        self.site.audit.write("sum refused", sum=purpose, why=why)
        return NotAgreed(f"masked sum: {why}")


def own_mask_key(site: Site) -> X25519PrivateKey:
    """Return a site's private key for masked sums. Raises DataError unless federation.toml names its public half."""
    agreed = site.agreement.sites[site.number].mask_key
    private_key = read_mask_key(site.mask_key)
    here = mask_key_text(private_key.public_key())
    if here != agreed:
        rule = f"its public half is {here}, and federation.toml says {agreed}"
        raise DataError(rule, where=str(site.mask_key))
    return private_key
