"""What sites are asked before round 1 beside a method's own questions: sums of a table's columns, and masked sums.

For a masked sum the coordinator asks twice. NONCE_QUESTION has each site compute its integers and send a nonce;
LIST_QUESTION sends all sites' nonces, and each site answers with masked words. Server and site both work out from the
run's settings what is summed, its purpose, so no message can name another one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from client_app.client import Client, InvalidReply, TensorSpec, Upload, Variant, integers
from client_app.local_site import NotAgreed
from client_app.masked_sum import Words, to_words
from client_app.models import has_fixed_features
from client_app.models.classifier import Classifier
from client_app.run_spec import RunSpec
from client_app.state import State, digest
from client_app.variants.feature_statistics import LabelCounts
from data.readers.catalog import is_sites
from data.standardization import LIMB_BITS, column_sums, shapes, standardization

STANDARDIZATION = "standardization"
"""The state of a message, and of a checkpoint, with mean and std of all sites' training rows."""
CARRY_BITS = 11
"""Bits by which a sum over up to 2,048 sites may be longer than the limbs of one: as many such sums fit an int64."""
NONCE_QUESTION, LIST_QUESTION = "masked-sum-nonce", "masked-sum-list"
NONCE, WORDS = "nonce", "words"
"""The one tensor of an answer to each of them: (32,) uint8, and (n,) int64, which stand for words modulo 2^64."""


@dataclass(frozen=True)
class ColumnSums(Variant):
    """Answer, before anything else, with the exact sums and sums of squares of the table's columns.

    It is no method of a run's settings: every run between sites whose federation.toml states no mean and std asks it.
    """

    name: ClassVar[str] = "column-sums"
    permission: ClassVar[str] = "column-sums"

    columns: int = 0
    """Input columns of the table."""

    @property
    def upload(self) -> Upload:
        return Upload(
            self.permission,
            self.tensors,
            validate=self.check_sums,
            question=self.name,
            returned=False,
        )

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an answer must be."""
        return {name: integers(*shape) for name, shape in shapes(self.columns).items()}

    def answer(self, client: Client) -> State:
        inputs_NF = client.samples.inputs_N
        assert isinstance(inputs_NF, torch.Tensor)  # a table is in memory
        sums = column_sums(inputs_NF.cpu().numpy())
        return {name: torch.from_numpy(array) for name, array in sums.items()}

    def check_sums(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the sums are of. Raises InvalidReply."""
        rows = int(answer["counts"])
        bits = LIMB_BITS
        if samples is None:  # of a site, or a sum over all of them
            bits += CARRY_BITS
        elif rows != samples:
            raise InvalidReply(f"the sums are of {rows} samples, and the client has {samples}")
        # So that no sum over clients overflows.
        limbs = torch.cat([answer["sums"].flatten(), answer["squares"].flatten()])
        if ((limbs >= 1 << bits) | (limbs <= -1 << bits)).any():
            raise InvalidReply(f"a limb of the columns' sums has more than {bits} bits")
        self.standardization(answer)
        return rows

    def standardization(self, total: State) -> State:
        """Return "mean" and "std", (F,) float64, and "rows", (1,) int64, of a sum of answers.

        Raises InvalidReply for what is no sum of answers.
        """
        try:
            mean, std = standardization({name: total[name].numpy() for name in total})
        except ValueError as error:
            raise InvalidReply(f"the columns' sums are of no table: {error}") from None
        return {
            "mean": torch.tensor(mean, dtype=torch.float64),
            "std": torch.tensor(std, dtype=torch.float64),
            "rows": total["counts"],
        }


def is_standardization(numbers: State, columns: int) -> bool:
    """Return whether a state is finite means and positive standard deviations, one of each per column."""
    for name in ("mean", "std"):
        values = numbers.get(name)
        if values is None or values.shape != (columns,) or not values.isfinite().all():
            return False
    return bool((numbers["std"] > 0).all())


def asks_for_column_sums(run_spec: RunSpec) -> bool:
    """Return whether a run is between sites, of a table whose mean and std nobody states."""
    data = run_spec.data
    return is_sites(data.dataset) and not data.mean


def asked_variants(run_spec: RunSpec) -> Sequence[Variant]:
    """Return all that clients answer questions for: the run's variants, and column-sums where it is asked for."""
    if asks_for_column_sums(run_spec):
        return [ColumnSums(run_spec.data.shape[0]), *run_spec.variants]
    return run_spec.variants


WITHOUT_FEATURES = (LabelCounts, ColumnSums)
"""What is summed and does not depend on the model."""


def summed_variant(variant: Variant) -> Variant:
    """Return the variant whose answers are summed for this one: label-counts where class counts are all it needs."""
    return LabelCounts() if variant.upload.of_counts is not None else variant


def purpose_of(variant: Variant, run_spec: RunSpec, states: Mapping[str, State]) -> str:
    """Return what is summed for a variant, as a text: equal texts are one sum, in any run of a federation.

    It holds all that decides about the integers: the statistics and their grid, and the features; a site decides
    which its samples are. `states` are those of the message that asks.
    """
    summed = summed_variant(variant)
    about: dict[str, object] = {"sum": summed.name}
    if not isinstance(summed, LabelCounts):
        about |= {"settings": asdict(summed)}
    if not isinstance(summed, WITHOUT_FEATURES):
        about |= {"model": run_spec.model, "model-settings": asdict(run_spec.model_settings)}
        # Sent to one site as they are and to the others such that their features or weights vanish, these would make
        # the sum that one site's own.
        deciding = (STANDARDIZATION, f"broadcast/{summed.upload.question_needs}")
        sent = {name: digest([states[name]]) for name in deciding if name in states}
        if sent:
            about |= {"sent": sent}
    return json.dumps(about, sort_keys=True)


def words_of(variant: Variant, client: Client, run_spec: RunSpec) -> Words:
    """Return a site's integers for a variant's sum.

    Raises NotAgreed for features that the message's weights would decide about, InvalidReply for integers that are no
    such statistics.
    """
    summed = summed_variant(variant)
    model = run_spec.model_settings
    fixed = has_fixed_features(run_spec.model, model.freeze, model.hidden)
    if not fixed and not isinstance(summed, WITHOUT_FEATURES):
        raise NotAgreed(f"features of {run_spec.model} are not summed: training changes them")
    answer = summed.answer(client)
    summed.upload.validate(answer, client.num_classes, len(client.samples))
    arrays = {name: tensor.cpu().numpy() for name, tensor in answer.items()}
    return to_words(arrays)
