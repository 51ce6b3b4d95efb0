"""The coordinator's side of masked sums: ask for nonces, send the list, add up, and keep the sum.

A sum is one per federation: every run with the same results folder uses it, whatever its seed and method, and asks
nobody again. Without the kept file the same questions get the same answers.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from client_app.client import Upload, Variant
from client_app.masked_sum import NONCE_BYTES, SumList, Words, from_words, unmasked_sum
from client_app.run_spec import RunSpec
from client_app.site_questions import (
    LIST_QUESTION,
    NONCE,
    NONCE_QUESTION,
    WORDS,
    purpose_of,
    summed_variant,
)
from client_app.state import State
from client_app.tensor_files import KIND, Damaged, read, write_atomically
from data.agreement import Agreement
from data.files import owner_only
from strategies.core.exchange import Exchange, TooFewReplies
from strategies.core.server import Server
from strategies.core.validation import check_upload

log = logging.getLogger("fedskew")
FILE_KIND = "sum of all sites"
REMEDY = "a site that has lost its state, or has answered another list, cannot answer: agree on a new federation.toml"

Ask = Callable[[Mapping[str, int | str]], Exchange]
"""Ask all sites a question, the task of a message."""


@dataclass(frozen=True)
class MaskedSums:
    """The masked sums of a federation."""

    agreement: Agreement
    folder: Path
    """Where sums are kept."""

    def total(self, ask: Ask, variant: Variant, run_spec: RunSpec, server: Server) -> State:
        """Return the sum of all sites' statistics for a variant, from the kept file or by asking.

        Raises TooFewReplies where a site does not answer, or the sum is none of statistics; nothing is kept then.
        """
        purpose = purpose_of(variant, run_spec)
        file = self.file(purpose)
        if file.exists():
            try:
                return read(file, {KIND: FILE_KIND, "purpose": purpose})[0]
            except Damaged as error:
                # The same questions get the same answers.
                log.warning("%s: asking the sites again", error)
        name = summed_variant(variant).name
        task = {"variant": variant.name, "question": NONCE_QUESTION}
        nonces = self.answers(ask(task), NONCE, torch.uint8, f"nonce of the masked sum {name}")
        everybody = SumList(
            self.agreement.sha256,
            purpose,
            tuple(self.agreement.names),
            tuple(nonce.numpy().tobytes().hex() for nonce in nonces),
        )
        task |= {"question": LIST_QUESTION, "list": everybody.to_json()}
        answers = self.answers(ask(task), WORDS, torch.int64, f"masked sum {name}")
        words: list[Words] = [answer.numpy().view(np.uint64) for answer in answers]
        try:
            total = self.summed(words, summed_variant(variant).upload, server)
        except ValueError as error:
            raise TooFewReplies(
                f"masked sum {name}: {error}. A site sent words that are not its statistics, and masks hide which"
            ) from None
        with owner_only():
            write_atomically(file, total, {KIND: FILE_KIND, "purpose": purpose})
        return total

    def summed(self, words: Sequence[Words], upload: Upload, server: Server) -> State:
        """Return the sum of masked words. Raises ValueError for one of other than statistics."""
        lengths = {len(row) for row in words}
        if len(lengths) > 1:
            raise ValueError(f"the sites sent {min(lengths)} and {max(lengths)} words")
        specs = upload.tensors(server.model, server.start)
        arrays = from_words(unmasked_sum(words), {name: spec.shape for name, spec in specs.items()})
        total = {name: torch.from_numpy(array) for name, array in arrays.items()}
        check_upload(upload, total, server)
        agreed = sum(site.samples for site in self.agreement.sites)
        samples = int(total["counts"].sum())
        if samples > agreed and not self.agreement.without_samples:
            raise ValueError(f"it is of {samples} samples, and federation.toml agrees on {agreed}")
        return total

    def answers(
        self, exchange: Exchange, part: str, dtype: torch.dtype, what: str
    ) -> list[torch.Tensor]:
        """Return every site's answer, in order. Raises TooFewReplies, which names the sites without one."""
        length = NONCE_BYTES if part == NONCE else None
        found: list[torch.Tensor] = []
        for client, answer in sorted(exchange.answers.items()):
            tensor = answer.named("upload").get(part, {}).get(part)
            if tensor is None or tensor.dtype != dtype or tensor.dim() != 1:
                exchange.refuse(client, f"the reply holds no {part}")
            elif length is not None and len(tensor) != length:
                exchange.refuse(client, f"its {part} has {len(tensor)} bytes, not {length}")
            else:
                found.append(tensor)
        try:
            exchange.check_enough(1.0, what)
        except TooFewReplies as error:
            raise TooFewReplies(f"{error} (every site must answer; {REMEDY})") from None
        return found

    def file(self, purpose: str) -> Path:
        """Return the file in which a sum is kept."""
        code = hashlib.sha256(f"{self.agreement.sha256}\n{purpose}".encode()).hexdigest()
        return self.folder / f"{code[:32]}.safetensors"
