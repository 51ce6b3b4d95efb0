"""The coordinator's side of masked sums: ask for nonces, send the list, add up, and keep the sum.

A sum is one per federation: every run with the same results folder uses it, whatever its seed and method, and asks
nobody again. Without the kept file the same questions get the same answers.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from client_app.client import TensorSpec, Upload, Variant, integers
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
from strategies.core.validation import check_upload, differences

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

    def total(
        self,
        ask: Ask,
        variant: Variant,
        run_spec: RunSpec,
        server: Server,
        states: Mapping[str, State],
    ) -> State:
        """Return the sum of all sites' statistics for a variant, from the kept file or by asking.

        `states` are those that go with the questions of `ask`.

        Raises TooFewReplies where a site does not answer, or the sum is none of statistics; nothing is kept then.
        """
        purpose = purpose_of(variant, run_spec, states)
        file = self.file(purpose)
        if file.exists():
            try:
                return read(file, {KIND: FILE_KIND, "purpose": purpose})[0]
            except Damaged as error:
                # The same questions get the same answers.
                log.warning("%s: asking the sites again", error)
        summed = summed_variant(variant)
        task = {"variant": variant.name, "question": NONCE_QUESTION}
        nonce = TensorSpec(torch.uint8, (NONCE_BYTES,))
        nonces = self.answers(ask(task), NONCE, nonce, f"nonce of the masked sum {summed.name}")
        everybody = SumList(
            self.agreement.sha256,
            purpose,
            tuple(self.agreement.names),
            tuple(nonce.numpy().tobytes().hex() for nonce in nonces),
        )
        task |= {"question": LIST_QUESTION, "list": everybody.to_json()}
        specs = summed.upload.tensors(server.model, server.start)
        shapes = {name: spec.shape for name, spec in specs.items()}
        words = integers(sum(map(math.prod, shapes.values())))
        answers = self.answers(ask(task), WORDS, words, f"masked sum {summed.name}")
        rows: list[Words] = [answer.numpy().view(np.uint64) for answer in answers]
        arrays = from_words(unmasked_sum(rows), shapes)
        total = {name: torch.from_numpy(array) for name, array in arrays.items()}
        try:
            self.check_total(total, summed.upload, server)
        except ValueError as error:
            raise TooFewReplies(
                f"masked sum {summed.name}: {error}. A site sent words that are not its statistics, and masks hide "
                "which"
            ) from None
        with owner_only():
            write_atomically(file, total, {KIND: FILE_KIND, "purpose": purpose})
        return total

    def check_total(self, total: State, upload: Upload, server: Server) -> None:
        """Raise ValueError for a sum that is none of statistics, or is of more samples than all sites have."""
        check_upload(upload, total, server)
        agreed = sum(site.samples for site in self.agreement.sites)
        samples = int(total["counts"].sum())
        if samples > agreed and not self.agreement.without_samples:
            raise ValueError(f"it is of {samples} samples, and federation.toml agrees on {agreed}")

    def answers(self, exchange: Exchange, part: str, spec: TensorSpec, what: str) -> list[Tensor]:
        """Return every site's answer, in order. Raises TooFewReplies, which names the sites without one."""
        found: list[Tensor] = []
        for client, answer in sorted(exchange.answers.items()):
            state = answer.named("upload").get(part, {})
            difference = differences(state, {part: spec})
            if difference:
                exchange.refuse(client, difference)
            else:
                found.append(state[part])
        try:
            exchange.check_enough(1.0, what)
        except TooFewReplies as error:
            raise TooFewReplies(f"{error} (every site must answer; {REMEDY})") from None
        return found

    def file(self, purpose: str) -> Path:
        """Return the file in which a sum is kept."""
        code = hashlib.sha256(f"{self.agreement.sha256}\n{purpose}".encode()).hexdigest()
        return self.folder / f"{code[:32]}.safetensors"
