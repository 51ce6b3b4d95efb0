"""What every local variant keeps to; the registry gives the rows, so a new file of a variant is one more."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from client_builders import broadcast_of, same, small_client, train_rounds

from client_app.client import Report, Upload, Variant, affects_training
from client_app.optimizer import TrainingSettings
from client_app.state import digest
from client_app.training import train_round
from client_app.variants import VARIANTS
from data import SettingError

SETTINGS = TrainingSettings(local_epochs=1, batch_size=8, learning_rate=0.1, momentum=0.5)
COUNTS = [(8, 0, 0, 3), (1, 2, 4, 0)]
"""Clients for whom every field has an effect: one lacks two classes, and one has a class of few samples."""
ALIKE = [(4, 3, 2, 1), (4, 3, 2, 1)]
OTHER_IDENTITIES: Mapping[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "reweighting": ({}, ALIKE),  # a client whose prior is the global one
}
"""Identities that are no setting of the variant alone: fields, and class counts of the clients."""

OTHERS: Mapping[str, Any] = {
    "min_class_samples": 4, "repeats": 3, "classes_per_round": 1, "bits": 10,
    "head_epochs": 2, "covariance": "diagonal", "target": "uniform",
}  # fmt: skip
"""Values other than the default's by field; whole numbers that are not here grow by one, others are halved."""
BESIDE: Mapping[str, dict[str, Any]] = {
    "resampling.beta-end": {"decay": 0.1},
}
"""Fields that count only, or more, beside another value of another."""
LEAST = {"min_class_samples": 1, "repeats": 1, "head_epochs": 1, "bits": 1}
"""The smallest value by field, where it is not 0."""
ABOVE_ZERO = {"range", "temperature", "dynamic-regularization.alpha"}
MOST = {"bits": 20, "beta_start": 1.0, "beta_end": 1.0, "decay": 1.0,
        "restricted-softmax.alpha": 1.0}  # fmt: skip
"""The largest value by field, or by key where several variants have a field of that name."""

every_variant = pytest.mark.parametrize("name", sorted(VARIANTS))


@cache
def trained(variant: Variant | None, counts: tuple[tuple[int, ...], ...]) -> Any:
    """Return the average and the last reports of two rounds of a small federation."""
    return train_rounds([variant] if variant else [], counts, SETTINGS)


def trial(variant: Variant | None, counts: Sequence[tuple[int, ...]] = COUNTS) -> Any:
    return trained(variant, tuple(counts))


def digest_of(report: Report) -> str:
    return digest([report.trained.state, *report.uploads.values(), *report.memory.values()])


def outcome(variant: Variant) -> tuple[str, ...]:
    """Return digests of all that a variant changes: weights, uploads, memory and its answer."""
    shared, reports = trial(variant)
    answer = variant.answer(small_client(COUNTS[0]))
    return digest([shared, answer]), *map(digest_of, reports)


def fields_of(name: str) -> list[dataclasses.Field[Any]]:
    """Return a variant's fields."""
    return list(dataclasses.fields(VARIANTS[name]))


def other_value(field: dataclasses.Field[Any]) -> Any:
    if field.name in OTHERS:
        return OTHERS[field.name]
    return field.default + 1 if isinstance(field.default, int) else field.default / 2


def identity_of(name: str) -> tuple[Variant | None, list[tuple[int, ...]]]:
    """Return the identity that the docstring states, and the clients that then train as without the variant."""
    kind = VARIANTS[name]
    stated = " ".join((kind.__doc__ or "").split())
    if name in OTHER_IDENTITIES:
        fields, counts = OTHER_IDENTITIES[name]
        return kind(**fields), counts
    if "Nothing else changes" in stated:
        return kind(), COUNTS
    sentence = stated.partition("Identity: ")[2]
    settings = {
        key.replace("-", "_"): float(value)
        for key, value in re.findall(r"([a-z-]+) = ([\d.]*\d)", sentence)
    }
    assert bool(settings) != ("There is no identity setting" in stated), stated
    return (kind(**settings) if settings else None), COUNTS


@every_variant
def test_identity_is_plain_training_to_the_bit(name: str) -> None:
    identity, counts = identity_of(name)
    if identity is None:
        assert affects_training(VARIANTS[name]), "a docstring says that there is none"
        return
    plain, plain_reports = trial(None, counts)
    shared, reports = trial(identity, counts)
    assert same(shared, plain)
    assert [report.loss for report in reports] == [report.loss for report in plain_reports]


@every_variant
def test_the_default_has_an_effect(name: str) -> None:
    variant = VARIANTS[name]()
    _, plain = trial(None)
    _, reports = trial(variant)
    pairs = zip(reports, plain, strict=True)
    moved = any(not same(report.trained.state, other.trained.state) for report, other in pairs)
    assert moved == affects_training(type(variant))
    told = [{**report.uploads, **report.memory}.get(name) for report in reports]
    assert moved or variant.answer(small_client(COUNTS[0])) or all(told)


@every_variant
def test_every_field_has_an_effect(name: str) -> None:
    for field in fields_of(name):
        beside = BESIDE.get(f"{name}.{field.name}".replace("_", "-"), {})
        value = other_value(field)
        other = VARIANTS[name](**beside, **{field.name: value})
        assert outcome(other) != outcome(VARIANTS[name](**beside)), field.name


@every_variant
def test_missing_classes_and_a_single_example_train(name: str) -> None:
    variant = VARIANTS[name]()
    shared, reports = trial(variant, [(6, 0, 3, 1), (0, 0, 5, 0), (0, 1, 0, 0)])
    assert [report.examples for report in reports] == [10, 5, 1]
    least = -1.0 if "signed-loss" in variant.needs else 0.0
    assert all(least <= report.loss < math.inf for report in reports)
    sent = [shared, *(state for report in reports for state in report.uploads.values())]
    assert all(torch.isfinite(tensor).all() for state in sent for tensor in state.values())


@every_variant
def test_a_round_changes_nothing_it_was_given_and_repeats(name: str) -> None:
    variant, client = VARIANTS[name](), small_client()
    client = replace(client, broadcast=broadcast_of([variant], [client]))
    samples = {"inputs": client.samples.inputs_N, "labels": client.labels_N}
    given = [client.start, *client.broadcast.values(), samples]
    before = digest(given)
    reports = []
    for _ in range(2):
        client.model.load_state_dict(client.start)
        reports.append(train_round(client, [variant], SETTINGS))
    after = digest_of(reports[1])
    assert digest(given) == before
    for parameter in client.model.parameters():
        parameter.data.add_(1)  # a report shares no memory with the model
    assert [digest_of(report) for report in reports] == [after] * 2, "one instance serves all"


def check_limits(name: str, field: str, default: Any) -> None:
    """Check the last value that a field takes at either end, and the first that it refuses by its key."""
    key = f"{name}.{field}".replace("_", "-")
    step = 1 if isinstance(default, int) else 1e-6
    least = LEAST.get(field, 0)
    taken, refused = [least], [least - step]
    if {field, key} & ABOVE_ZERO:
        taken, refused = [step], [0.0]
    if isinstance(default, float):
        refused += [math.inf, math.nan]
    most = MOST.get(field, MOST.get(key))
    if most is not None:
        taken.append(most)
        refused.append(most + step)
    if field == "smoothing":
        taken.append(2.0**-16)
        refused.append(1 / 3)
    beside = BESIDE.get(key, {})
    for value in map(type(default), taken):
        assert getattr(VARIANTS[name](**beside, **{field: value}), field) == value
    for value in refused:
        with pytest.raises(SettingError) as caught:
            VARIANTS[name](**beside, **{field: value})
        assert caught.value.key == key, value


@every_variant
def test_values_beyond_their_limits_are_refused_by_key(name: str) -> None:
    for field in fields_of(name):
        if not isinstance(field.default, str):
            check_limits(name, field.name, field.default)
            continue
        with pytest.raises(SettingError) as caught:
            VARIANTS[name](**{field.name: "none of these"})
        assert caught.value.key == f"{name}.{field.name}"


def test_an_upload_that_contradicts_itself_is_refused() -> None:
    """Of answers that are kept apart there is no sum to send back, and what is asked at the end has a question."""
    Upload(question="q", by_client=True, returned=False)
    with pytest.raises(ValueError):
        Upload(question="q", by_client=True)
    with pytest.raises(ValueError):
        Upload(at_end=True)
