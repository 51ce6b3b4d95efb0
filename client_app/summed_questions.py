"""What can be summed under masks: the questions of the protocol, and what is summed for a variant.

The coordinator asks twice. NONCE_QUESTION has each site compute its integers and send a nonce; LIST_QUESTION sends all
sites' nonces, and each site answers with masked words. Server and site both work out from the run's settings what is
summed, its purpose, so no message can name another one.
"""

import json
from dataclasses import asdict

from client_app.client import Client, Variant
from client_app.column_sums import ColumnSums
from client_app.local_site import NotAgreed
from client_app.masked_sum import Words, to_words
from client_app.models import has_fixed_features
from client_app.run_spec import RunSpec
from client_app.variants.feature_statistics import LabelCounts

NONCE_QUESTION, LIST_QUESTION = "masked-sum-nonce", "masked-sum-list"
WITHOUT_FEATURES = (LabelCounts, ColumnSums)
"""What is summed and does not depend on the model."""
NONCE, WORDS = "nonce", "words"
"""The one tensor of an answer to each of them: (32,) uint8, and (n,) int64, which stand for words modulo 2^64."""


def summed_variant(variant: Variant) -> Variant:
    """Return the variant whose answers are summed for this one: label-counts where class counts are all it needs."""
    return LabelCounts() if variant.upload.of_counts is not None else variant


def purpose_of(variant: Variant, run_spec: RunSpec) -> str:
    """Return what is summed for a variant, as a text: equal texts are one sum, in any run of a federation.

    It holds all that decides about the integers: the statistics and their grid, and the features; a site decides
    which its samples are.
    """
    summed = summed_variant(variant)
    about: dict[str, object] = {"sum": summed.name}
    if not isinstance(summed, LabelCounts):
        about |= {"settings": asdict(summed)}
    if not isinstance(summed, WITHOUT_FEATURES):
        about |= {"model": run_spec.model, "model-settings": asdict(run_spec.model_settings)}
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
    answer = summed.answer(client, summed.upload.question)
    summed.upload.validate(answer, client.num_classes, len(client.samples))
    arrays = {name: tensor.cpu().numpy() for name, tensor in answer.items()}
    return to_words(arrays)
