"""What an update must be: each value against its rule, and the numbers that come with it against each other."""

import math
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import small
from server_builders import server_of

from client_app.handlers import ClientReply
from client_app.models import build
from client_app.optimizer import (
    SGD,
    TrainingSettings,
    coefficient_sum,
    expected_coefficient_sum,
)
from client_app.training import steps_of
from client_app.variants.vacant_classes import VacantClasses
from data.agreement import MOST_SAMPLES, Member
from strategies.core import rounds as base
from strategies.core.exchange import Exchange
from strategies.core.flower_adapter import Strategy
from strategies.core.server import Server
from strategies.core.validation import (
    LARGEST_VALUE,
    Range,
    RejectedUpdate,
    UpdateOutOfRange,
    check_by_class,
    check_uploads,
    check_values,
    checked_metrics,
    described,
    differences,
    not_finite,
)
from strategies.fedavg import FedAvg


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -1.0,
        LARGEST_VALUE,
        -LARGEST_VALUE,
        3e38,
        LARGEST_VALUE * 1.001,
        math.nan,
        math.inf,
        -math.inf,
    ],
)
@pytest.mark.parametrize("length", [1, 1000])
def test_a_value_is_refused_by_its_own_size_alone(value: float, length: int) -> None:
    values_N = torch.zeros(length)
    values_N[length // 2] = value
    state = {"head.weight": torch.randn(5, 3), "head.bias": values_N, "empty": torch.zeros(0)}
    if abs(value) <= LARGEST_VALUE:
        check_values(state)
    else:
        with pytest.raises(UpdateOutOfRange, match=r"model: head.bias is"):
            check_values(state, "model: ")


def test_many_large_values_pass_whose_norm_is_beyond_the_limit() -> None:
    values_N = torch.full((1000,), 0.9 * LARGEST_VALUE)
    assert values_N.norm() > 10 * LARGEST_VALUE
    check_values({"head.weight": values_N, "norm.running_var": values_N})
    with pytest.raises(UpdateOutOfRange, match="running_var is -9e"):
        check_values({"head.weight": values_N, "norm.running_var": -values_N})


# ---- the numbers that come with an update ----------------------------------------------------------------------------


def stated(server: Server, examples: int, **changes: float) -> dict[str, float]:
    """Return the metrics of an honest client of so many samples, with changes; keys with `_` for `-`."""
    steps = steps_of(examples, server.training)
    pull = server.proximal_mu * server.training.rate(server.round)
    return {
        "num-examples": examples,
        "loss": 1.0,
        "steps": steps,
        "coefficient-sum": expected_coefficient_sum(steps, server.training.momentum, pull),
        "remembers": 0,
        "seconds": 1.0,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }


@pytest.fixture
def no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the optimizer take a thousand steps at most."""
    taken, step = [0], SGD.step

    def counted(self: SGD, gradients: Any) -> None:
        taken[0] += 1
        assert taken[0] <= 1000, "a loop over steps that a client states"
        step(self, gradients)

    monkeypatch.setattr(SGD, "step", counted)


@pytest.mark.usefixtures("no_endless_loop")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("pull", [0.0, 0.1])
def test_a_stated_number_of_samples_costs_the_server_no_loop(momentum: float, pull: float) -> None:
    """2^53 samples make 2^53 steps of one sample each: for years the server computed their coefficient sum."""
    training = TrainingSettings(batch_size=1, local_epochs=1, momentum=momentum)
    server = replace(server_of(), training=training, proximal_mu=pull)
    for examples in (2**53, MOST_SAMPLES + 1):
        with pytest.raises(
            RejectedUpdate, match=f"num-examples is {examples}, and a client has at most"
        ):
            checked_metrics(0, stated(server, examples, coefficient_sum=1.0), server)
    for examples in (300, MOST_SAMPLES):
        assert checked_metrics(0, stated(server, examples), server) == examples
    with pytest.raises(
        RejectedUpdate, match=f"coefficient-sum is 1, and {MOST_SAMPLES} steps make "
    ):
        checked_metrics(0, stated(server, MOST_SAMPLES, coefficient_sum=1.0), server)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("mu", [0.0, 1e-9, 0.01, 1.0, 10.0])
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_expected_sum_is_that_of_the_steps(momentum: float, mu: float, decay: float) -> None:
    training = TrainingSettings(learning_rate=0.1, learning_rate_decay=decay)
    training = replace(training, learning_rate_decay_every=3)
    for round in (1, 4, 20):
        pull = mu * training.rate(round)
        for steps in (1, 2, 3, 7, 50, 333):
            expected = expected_coefficient_sum(steps, momentum, pull)
            assert expected == pytest.approx(coefficient_sum(steps, momentum, pull), rel=1e-9)


def test_steps_that_diverge_are_refused_and_do_not_warn() -> None:
    server = replace(server_of(), proximal_mu=1000.0)
    assert not math.isfinite(expected_coefficient_sum(10**6, 0.9, 50.0))
    with pytest.raises(RejectedUpdate, match="coefficient-sum is 1, and "):
        checked_metrics(0, stated(server, 10**7, coefficient_sum=1.0), server)


def test_the_due_sum_takes_the_rate_of_the_round() -> None:
    """A proximal pull and a learning rate that decays: the sum of the first round's rate is another one."""
    training = TrainingSettings(learning_rate=0.1, learning_rate_decay=0.5, local_steps=20)
    training = replace(training, learning_rate_decay_every=1)
    first = replace(server_of(), training=training, proximal_mu=1.0, round=1)
    third = replace(first, round=3)
    assert checked_metrics(0, stated(third, 300), third) == 300
    with pytest.raises(RejectedUpdate, match=r"coefficient-sum is .* and 20 steps make "):
        checked_metrics(0, stated(first, 300), third)
    honest = coefficient_sum(20, training.momentum, 1.0 * 0.1 * 0.5**2)
    assert checked_metrics(0, stated(third, 300, coefficient_sum=honest), third) == 300


def test_steps_and_sum_that_agree_must_be_those_of_the_samples() -> None:
    """FedNova divides an update by its coefficient sum: one step said of many makes the update count for more."""
    server = replace(server_of(), training=TrainingSettings(batch_size=10, local_epochs=2))
    assert checked_metrics(0, stated(server, 300), server) == 300
    for steps in (1, 59, 61, 6000):
        due_sum = coefficient_sum(steps, server.training.momentum)
        metrics = stated(server, 300, steps=steps, coefficient_sum=due_sum)
        with pytest.raises(RejectedUpdate, match=f"steps is {steps}, and 300 samples make 60"):
            checked_metrics(0, metrics, server)


def test_a_check_that_does_not_end_costs_its_client_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1's check waits for an event; clients 0 and 2 are checked before and after it."""
    ended = threading.Event()

    def endless(client: int, *rest: Any) -> Any:
        if client == 1:
            ended.wait()
        return f"update of client {client}"

    monkeypatch.setattr(base, "checked_update", endless)
    monkeypatch.setattr(base, "CHECK_SECONDS", 0.2)
    strategy = Strategy(
        build("mlp-bn", (1, 8, 8), 10, 0), small(tmp_path).run_spec(), clients=3, combine=FedAvg()
    )
    exchange = Exchange(range(3), answers={client: ClientReply() for client in range(3)})
    try:
        assert strategy.checked(exchange) == ["update of client 0", "update of client 2"]
    finally:
        ended.set()
    assert exchange.failures == {1: "it is not checked after 0.2 s"}


def test_a_process_whose_check_does_not_end_ends_with_an_interrupt() -> None:
    """Python waits for all threads that are no daemons before it ends: the check would compute on."""
    code = (
        "import threading, time\n"
        "from strategies.core.deadline import Deadline\n"
        "def endless():\n"
        "    time.sleep(1)\n"  # a signal that comes before the main thread waits does not wake it
        "    print('checking', flush=True)\n"
        "    threading.Event().wait()\n"
        "with Deadline(1000) as deadline:\n"
        "    deadline.run(endless)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "checking\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(("samples", "agreed"), [(300, 300), (299, 300), (301, 300), (301, 0)])
def test_a_site_states_at_most_the_agreed_samples(samples: int, agreed: int) -> None:
    server = replace(server_of(), sites=(Member("north", "key", agreed), Member("east", "key")))
    if samples <= agreed or not agreed:
        assert checked_metrics(0, stated(server, samples), server) == samples
    else:
        sentence = "num-examples is 301, and federation.toml agrees on at most 300 training samples"
        with pytest.raises(RejectedUpdate, match=f"^{sentence} of site north$"):
            checked_metrics(0, stated(server, samples), server)
    assert checked_metrics(1, stated(server, samples), server) == samples


@pytest.mark.parametrize(
    ("stated_samples", "named"),
    [
        ({0: 91, 1: 9}, ["north"]),
        ({0: 90, 1: 10}, []),  # nine tenths are not more than nine tenths
        ({0: 9, 1: 91}, []),  # there is an agreed number for east
        ({0: 5, 1: 3, 2: 92}, ["south"]),
        ({0: 91}, []),  # the others have not said theirs yet
    ],
)
def test_a_site_with_nearly_all_samples_is_named_where_none_are_agreed(
    stated_samples: dict[int, int],
    named: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, run_spec = build("mlp-bn", (1, 8, 8), 10, 0), small(tmp_path).run_spec()
    rounds = Strategy(model, run_spec, clients=3, combine=FedAvg())
    rounds.warn_of_heavy_site(stated_samples)
    assert not caplog.records, "in a simulation nobody states anything"
    sites = (Member("north", "key"), Member("east", "key", 100), Member("south", "key"))
    rounds.server = replace(rounds.server, sites=sites)
    rounds.warn_of_heavy_site(stated_samples)
    names = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert names == named
    if stated_samples == {0: 91, 1: 9}:
        assert caplog.text.count("site north states 91 of all 100 samples") == 1


def test_a_violation_names_the_value_that_is_not_whole() -> None:
    rule = Range(0, 100, whole=True)
    assert rule.violation(torch.tensor([1.0, 2.0])) == ""
    assert rule.violation(torch.tensor([1.0, 2.5, 3.25])) == "is 2.5 and must be whole"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.0, ""),
        (3.0, ""),
        (0.0, "is 0 and must be 1 to 3"),
        (4.0, "is 4 and must be 1 to 3"),
        (2.5, "is 2.5 and must be whole"),
        (math.nan, "is not finite"),
        (math.inf, "is not finite"),
        (-math.inf, "is not finite"),
    ],
)
def test_a_number_and_a_tensor_break_a_range_alike(value: float, reason: str) -> None:
    of_whole_numbers = Range(1, 3, whole=True)
    assert of_whole_numbers.violation_of_number(value) == reason
    assert of_whole_numbers.violation(torch.tensor([2.0, value, 1.0])) == reason
    assert Range(1, 3).violation_of_number(2.5) == Range(1, 3).violation(torch.tensor([2.5])) == ""
    assert of_whole_numbers.violation(torch.tensor([2, 3])) == ""
    assert of_whole_numbers.violation(torch.zeros(0)) == ""


def rows_of(*classes: int, width: int = 2) -> dict[str, torch.Tensor]:
    return {"classes": torch.tensor(classes).long(), "means": torch.zeros(len(classes), width)}


def test_rows_by_class_are_of_ascending_classes() -> None:
    rows = {"means": ((2,), torch.float32)}
    for classes in ((), (0,), (4,), (0, 1, 4)):
        check_by_class(rows_of(*classes), 5, rows)
    for classes in ((-1, 2), (5,), (0, 5), (1, 1), (2, 1)):
        with pytest.raises(RejectedUpdate, match=r"not ascending numbers from 0 to 4$"):
            check_by_class(rows_of(*classes), 5, rows)
    with pytest.raises(RejectedUpdate, match=r"^means is float32 of 1x3, not float32 of 1x2$"):
        check_by_class(rows_of(1, width=3), 5, rows)
    with pytest.raises(RejectedUpdate, match=r"^classes is missing$"):
        check_by_class({"means": torch.zeros(0, 2)}, 5, rows)
    with pytest.raises(RejectedUpdate, match=r"^classes is int32 of 1, not int64 of 1$"):
        check_by_class({**rows_of(1), "classes": torch.ones(1).int()}, 5, rows)


def test_the_first_difference_of_a_state_is_named() -> None:
    expected = {"w": ((2, 3), torch.float32), "b": ((), torch.int64)}
    state = {"w": torch.zeros(2, 3), "b": torch.tensor(1)}
    assert differences(state, expected) == ""
    assert differences({}, expected) == "b is missing"
    assert differences({**state, "z" * 200: state["b"]}, expected) == (
        "'" + "z" * 79 + " is not expected"
    )
    assert differences({**state, "b": torch.ones(())}, expected) == (
        "b is float32 of one value, not int64 of one value"
    )
    deep = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)  # eight of them are shown
    assert described(deep, torch.float32) == "float32 of 1x2x3x4x5x6x7x8"


def test_of_an_upload_that_nobody_takes_80_characters_are_shown() -> None:
    server = server_of()
    check_uploads({}, server, [FedAvg()])
    shown = "'" + "z" * 79
    with pytest.raises(RejectedUpdate, match=f"^upload {shown} is not one that fedavg takes$"):
        check_uploads({"z" * 200: {}}, server, [FedAvg()])


def test_a_tensor_that_is_not_finite_is_found_though_sums_overflow() -> None:
    large = torch.full((9,), 3e38)
    assert not_finite({"a": large, "b": torch.ones(2), "c": torch.tensor([1, 2])}) == ""
    assert not_finite({"a": large, "b": torch.tensor([1.0, math.inf])}) == "b"
    assert not_finite({"a": torch.tensor([math.nan, 1.0]), "b": large}) == "a"


def test_a_negative_loss_is_taken_only_beside_a_variant_whose_terms_have_no_bound() -> None:
    server = server_of()
    metrics = stated(server, 8, loss=-0.01)
    with pytest.raises(RejectedUpdate, match=r"metric loss is -0\.01"):
        checked_metrics(0, metrics, server)
    signed = replace(server, variants={"vacant-classes": VacantClasses()})
    assert checked_metrics(0, metrics, signed) == 8
    with pytest.raises(RejectedUpdate, match="metric loss"):
        checked_metrics(0, {**metrics, "loss": float("-inf")}, signed)
