"""What an update must be: each value against its rule, and the numbers that come with it against each other."""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import pytest
import torch
from server_builders import server_of

from client_app.client import LARGEST_VALUE, TensorSpec, Upload, Variant, integers
from client_app.optimizer import TrainingSettings, coefficient_sum, expected_coefficient_sum
from client_app.training import steps_of
from client_app.variants.control_variates import ControlVariates
from data.agreement import MOST_SAMPLES, Member
from strategies.core.server import Server
from strategies.core.validation import (
    METRICS,
    Range,
    RejectedUpdate,
    UpdateOutOfRange,
    check_tensors,
    check_upload,
    check_uploads,
    checked_metrics,
    differences,
    expected_of,
    not_finite,
)
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold

# ---- tensors ---------------------------------------------------------------------------------------------------------


def check_values(state: dict[str, torch.Tensor]) -> None:
    check_tensors(state, expected_of(state))


@pytest.mark.parametrize("value", [-1.0, LARGEST_VALUE, -LARGEST_VALUE])
def test_a_value_within_the_limit_is_taken_however_large_the_norm(value: float) -> None:
    check_values({"head.weight": torch.full((1000,), value), "empty": torch.zeros(0)})


@pytest.mark.parametrize("value", [3e38, LARGEST_VALUE * 1.001, math.nan, -math.inf])
def test_a_value_beyond_the_limit_is_refused_beside_many_others(value: float) -> None:
    values_N = torch.zeros(1000)
    values_N[500] = value
    with pytest.raises(UpdateOutOfRange):
        check_values({"head.weight": torch.randn(5, 3), "head.bias": values_N})


def test_a_bound_on_one_side_holds_beside_values_without_one() -> None:
    state = {"any": torch.tensor([-1e6, 1e6]), "at-most-one": torch.tensor([-1e6, 1.0])}
    specs = {
        "any": TensorSpec(torch.float32, (2,)),
        "at-most-one": TensorSpec(torch.float32, (2,), high=1.0),
    }
    check_tensors(state, specs)
    with pytest.raises(UpdateOutOfRange):
        check_tensors({**state, "at-most-one": torch.tensor([0.0, 1.5])}, specs)


def test_variances_and_counters_are_not_negative() -> None:
    check_values({"norm.running_var": torch.zeros(2), "norm.num_batches_tracked": torch.tensor(0)})
    for state in (
        {"norm.running_var": torch.tensor([1.0, -1e-6])},
        {"norm.num_batches_tracked": torch.tensor(-1)},
    ):
        with pytest.raises(RejectedUpdate):
            check_values(state)


@pytest.mark.parametrize(
    ("value", "is_right"),
    [
        (1.0, True), (3.0, True), (0.0, False), (4.0, False), (2.5, False), (math.nan, False), (math.inf, False),
    ],
)  # fmt: skip
def test_a_range_is_of_finite_numbers_and_may_be_of_whole_ones(
    value: float, is_right: bool
) -> None:
    assert (Range(1, 3, whole=True).violation(value, value) == "") == is_right
    assert Range(1, 3).violation(2.5, 2.5) == Range(1, 3).violation(1.0, 3.0) == ""
    assert Range(1, 3).violation(0.9, 2.0) and Range(1, 3).violation(2.0, 3.1)


def test_a_tensor_that_is_not_finite_is_found_though_sums_overflow() -> None:
    large = torch.full((9,), 3e38)
    assert not_finite({"a": large, "b": torch.ones(2), "c": torch.tensor([1, 2])}) == ""
    assert not_finite({"a": large, "b": torch.tensor([1.0, math.inf])}) == "b"
    assert not_finite({"a": torch.tensor([math.nan, 1.0]), "b": large}) == "a"


def test_the_first_difference_of_a_state_is_named() -> None:
    expected = {"w": TensorSpec(torch.float32, (2, 3)), "b": integers()}
    state = {"w": torch.zeros(2, 3), "b": torch.tensor(1)}
    assert differences(state, expected) == ""
    assert differences({}, expected).startswith("b ")
    assert differences({**state, "z" * 200: state["b"]}, expected).count("z") == 79
    assert differences({**state, "b": torch.ones(())}, expected).startswith("b ")
    assert differences({**state, "w": torch.zeros(3, 2)}, expected).startswith("w ")


def test_rows_by_class_are_of_ascending_classes() -> None:
    def rows_of(*classes: int, width: int = 2) -> dict[str, torch.Tensor]:
        return {"classes": torch.tensor(classes).long(), "means": torch.zeros(len(classes), width)}

    rows = {"means": TensorSpec(torch.float32, (2,))}
    upload, server = Upload(tensors=lambda model, shared: rows, by_class=True), server_of()
    for classes in ((), (0,), (3,), (0, 1, 3)):
        check_upload(upload, rows_of(*classes), server)
    for wrong in (
        *(rows_of(*classes) for classes in ((-1, 2), (4,), (0, 4), (1, 1), (2, 1))),
        rows_of(1, width=3),
        {"means": torch.zeros(0, 2)},
        {**rows_of(1), "classes": torch.ones(1).int()},
    ):
        with pytest.raises(RejectedUpdate):
            check_upload(upload, wrong, server)


def test_an_upload_has_the_stated_tensors_within_their_ranges() -> None:
    due = {"counts": integers(3, low=0, high=9), "sums": integers(3, 2)}
    upload, server = Upload(tensors=lambda model, shared: due), server_of()
    answer = {"counts": torch.tensor([0, 9, 1]), "sums": torch.full((3, 2), 2**63 - 1)}
    check_upload(upload, answer, server)
    for wrong in (
        {"counts": answer["counts"]},
        {**answer, "more": answer["counts"]},
        {**answer, "counts": torch.zeros(3)},
        {**answer, "counts": torch.tensor([0, 10, 1])},
        {**answer, "counts": torch.tensor([0, -1, 1])},
        {**answer, "sums": torch.zeros(6).long()},
    ):
        with pytest.raises(RejectedUpdate):
            check_upload(upload, wrong, server)


def test_an_upload_is_there_and_is_one_that_a_part_takes() -> None:
    server = server_of(variants={"control-variates": ControlVariates()})
    parts = [FedAvg(), Scaffold()]
    upload = {name: server.start[name] for name in server.parameters}
    check_uploads({Scaffold.uses: upload}, server, parts)
    for wrong in ({}, {Scaffold.uses: {}}, {Scaffold.uses: upload, "z" * 200: upload}):
        with pytest.raises(RejectedUpdate) as refused:
            check_uploads(wrong, server, parts)
        assert str(refused.value).count("z") < 80


# ---- the numbers that come with an update ----------------------------------------------------------------------------


def member(name: str, samples: int = 0) -> Member:
    return Member.model_construct(name=name, key="key", samples=samples)


def stated(server: Server, examples: int, **changes: float) -> dict[str, float]:
    """Return the metrics of an honest client of so many samples, with changes; keys with `_` for `-`."""
    steps = steps_of(examples, server.training)
    pull = server.proximal_mu * server.training.rate(server.round)
    return {
        "num-examples": examples,
        "loss": 1.0,
        "steps": steps,
        "coefficient-sum": expected_coefficient_sum(steps, server.training.momentum, pull),
        "seconds": 1.0,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }


def test_the_expected_sum_is_that_of_the_steps() -> None:
    for momentum, pull, steps in product((0.0, 0.9), (0.0, 1e-10, 0.05, 1.0), (1, 2, 333)):
        expected = coefficient_sum(steps, momentum, pull)
        assert expected_coefficient_sum(steps, momentum, pull) == pytest.approx(expected, rel=1e-9)


def test_a_stated_number_of_samples_costs_the_server_no_loop() -> None:
    """2^53 samples make 2^53 steps of one sample each: for years the server computed their coefficient sum."""
    training = TrainingSettings(batch_size=1, local_epochs=1, momentum=0.9)
    server = replace(server_of(), training=training, proximal_mu=0.1)
    assert checked_metrics(0, stated(server, MOST_SAMPLES), server) == MOST_SAMPLES
    for examples in (2**53, MOST_SAMPLES + 1):
        with pytest.raises(RejectedUpdate):
            checked_metrics(0, stated(server, examples, coefficient_sum=1.0), server)
    # steps that diverge make an infinite sum, which nobody can have sent
    endless = replace(server, proximal_mu=1000.0)
    with pytest.raises(RejectedUpdate):
        checked_metrics(0, stated(endless, 10**7, coefficient_sum=1.0), endless)


def test_steps_and_their_sum_are_those_of_the_samples_in_this_round() -> None:
    """FedNova divides an update by its coefficient sum: one step said of many makes the update count for more."""
    training = TrainingSettings(batch_size=10, local_epochs=2, learning_rate=0.1)
    training = replace(training, learning_rate_decay=0.5, learning_rate_decay_every=1)
    first = replace(server_of(), training=training, proximal_mu=1.0, round=1)
    third = replace(first, round=3)
    honest = coefficient_sum(60, training.momentum, 1.0 * 0.1 * 0.5**2)
    assert checked_metrics(0, stated(third, 300, coefficient_sum=honest), third) == 300
    with pytest.raises(RejectedUpdate):
        checked_metrics(0, stated(first, 300), third)
    for steps in (1, 59, 61):
        due = coefficient_sum(steps, training.momentum, 1.0 * 0.1 * 0.5**2)
        with pytest.raises(RejectedUpdate):
            checked_metrics(0, stated(third, 300, steps=steps, coefficient_sum=due), third)


def test_every_number_is_there_within_its_range_and_of_the_known_samples() -> None:
    server = replace(server_of(), examples_by_client={0: 8, 1: 9})
    honest = stated(server, 8)
    assert checked_metrics(0, honest, server) == 8
    changes = [
        ("loss", -0.01),
        ("seconds", -1),
        ("seconds", 1.1e7),
        ("other/x", 1.0),
    ]
    for wrong in (
        *({**honest, name: value} for name, value in changes),
        *({key: honest[key] for key in honest if key != name} for name in METRICS),
    ):
        with pytest.raises(RejectedUpdate):
            checked_metrics(0, wrong, server)
    with pytest.raises(RejectedUpdate):
        checked_metrics(1, honest, server)


@dataclass(frozen=True)
class Unbounded(Variant):
    """A variant one of whose loss terms has no lower bound."""

    name: ClassVar[str] = "unbounded"
    needs: ClassVar[frozenset[str]] = frozenset({"signed-loss"})


def test_a_negative_loss_is_taken_only_beside_a_variant_whose_terms_have_no_bound() -> None:
    signed = replace(server_of(), variants={"unbounded": Unbounded()})
    assert checked_metrics(0, stated(signed, 8, loss=-0.01), signed) == 8
    with pytest.raises(UpdateOutOfRange):
        checked_metrics(0, stated(signed, 8, loss=-math.inf), signed)


@pytest.mark.parametrize(("samples", "agreed"), [(300, 300), (301, 300), (301, 0)])
def test_a_site_states_at_most_the_agreed_samples(samples: int, agreed: int) -> None:
    server = replace(server_of(), sites=(member("north", agreed), member("east")))
    assert checked_metrics(1, stated(server, samples), server) == samples
    if samples <= agreed or not agreed:
        assert checked_metrics(0, stated(server, samples), server) == samples
        return
    with pytest.raises(RejectedUpdate):
        checked_metrics(0, stated(server, samples), server)
