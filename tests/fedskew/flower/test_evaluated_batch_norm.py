"""Under FedBN the server has the initial batch norm, or, where the strategy is told so, the mean of the clients'."""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import client_app, client_data, initial
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from torch import Tensor

import fedskew.flower as flower
from data import SettingError
from tests.client_app.client_builders import same

WARNING = "the clients keep batch norm"
OFF = {"fraction_evaluate": 0.0}
STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
KEPT = {"fedbn": STATISTICS | {"norm.weight", "norm.bias"}, "silobn": STATISTICS}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Run:
    """Two rounds of a strategy, with an evaluation at the server after each."""

    def __init__(
        self,
        strategy: Any,
        grid: FakeGrid,
        arrays: ArrayRecord | None = None,
        evaluates: bool = True,
    ) -> None:
        self.grid = grid
        self.evaluated: list[dict[str, Tensor]] = []
        random.seed(0)
        start = arrays or ArrayRecord(initial().state_dict())
        evaluate = self.keep if evaluates else None
        config = ConfigRecord()
        result = strategy.start(grid, start, 2, train_config=config, evaluate_fn=evaluate)
        self.model: dict[str, Tensor] = dict(result.arrays.to_torch_state_dict())

    def keep(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        self.evaluated.append(dict(arrays.to_torch_state_dict()))
        return None

    @property
    def kept(self) -> list[dict[str, Tensor]]:
        """What every client keeps, in the order of the clients."""
        contexts = [self.grid.contexts[node] for node in self.grid.nodes]
        return [dict(c.state["fedskew/private"].to_torch_state_dict()) for c in contexts]


def grid_of(*variants: str) -> FakeGrid:
    return FakeGrid(client_app(list(variants)))


def strategy_of(method: str, batch_norm: str = "mean") -> flower.MethodStrategy:
    return flower.ExactFedAvg(initial(), variants=[method], evaluated_batch_norm=batch_norm, **OFF)


@pytest.mark.parametrize("method", ["fedbn", "silobn"])
def test_the_mean_is_weighted_by_samples_and_training_stays_as_it_is(method: str) -> None:
    usual = Run(strategy_of(method, "initial"), grid_of(method))
    mean = Run(strategy_of(method), grid_of(method))
    assert not usual.grid.errors and not mean.grid.errors
    assert all(same(*pair) for pair in zip(usual.kept, mean.kept, strict=True))
    for name in mean.model.keys() - KEPT[method]:
        assert torch.equal(usual.model[name], mean.model[name])

    samples = torch.tensor([float(len(client_data(number)[1])) for number in range(4)])
    for name in KEPT[method]:
        values = torch.stack([state[name].double() for state in mean.kept])
        weights = (samples / samples.sum()).double().view(-1, *[1] * (values.dim() - 1))
        # A counter of steps is no quantity to average: the largest, as everywhere in the project.
        due = (weights * values).sum(0) if name != "norm.num_batches_tracked" else values.amax(0)
        assert torch.allclose(mean.model[name].double(), due, atol=1e-7), name
        assert torch.equal(usual.model[name], initial().state_dict()[name])
    # evaluate_fn gets what is returned; before the first round there is nothing but the start.
    assert same(mean.evaluated[2], mean.model) and same(mean.evaluated[0], initial().state_dict())


def test_a_model_beside_the_average_and_one_flat_array_have_it_too() -> None:
    creff = {"features_per_class": 5, "feature_steps": 3, "head_steps": 4}
    strategy = flower.CReFF(
        initial(), variants=["fedbn"], evaluated_batch_norm="mean", **creff, **OFF
    )
    run = Run(strategy, grid_of("creff", "fedbn"))
    head = strategy.deployed["creff"]
    assert all(torch.equal(head[name], run.model[name]) for name in KEPT["fedbn"])

    flat = Run(strategy_of("fedbn"), grid_of("fedbn"), flower.flat_arrays(initial()))
    (vector,) = flat.model.values()
    whole = Run(strategy_of("fedbn"), grid_of("fedbn")).model
    floats = [whole[name].flatten() for name in initial().state_dict() if "tracked" not in name]
    assert torch.equal(vector, torch.cat(floats))


@pytest.mark.parametrize(
    ("strategy", "clients", "evaluates", "warns"),
    [
        (flower.ExactFedAvg(initial(), variants=["fedbn"], **OFF), ["fedbn"], True, 1),
        (flower.ExactFedAvg(initial(), **OFF), ["silobn"], True, 1),  # the replies say so
        (flower.ExactFedAvg(initial(), **OFF), ["fedbn"], False, 0),
        (flower.ExactFedAvg(initial(), **OFF), [], True, 0),
        (strategy_of("fedbn"), ["fedbn"], True, 0),
    ],
)
def test_who_does_not_choose_is_warned_once_where_the_server_evaluates(
    strategy: Any,
    clients: Sequence[str],
    evaluates: bool,
    warns: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        Run(strategy, grid_of(*clients), evaluates=evaluates)
    assert caplog.text.count(WARNING) == warns


def leave_out(reply: Message) -> None:
    del reply.content["upload/batch-norm"]


def changed(name: str, value: Tensor) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        record = reply.content["upload/batch-norm"]
        arrays = {**record, name: Array(value.numpy())}  # type: ignore[dict-item]
        reply.content["upload/batch-norm"] = ArrayRecord(arrays)

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (leave_out, "upload batch-norm is missing"),
        (changed("norm.running_var", torch.full((6,), -1.0)), "running_var is -1 and must be 0"),
        (
            changed("norm.weight", torch.ones(200_000)),
            "norm.weight is float32 of 200000",
        ),
    ],
)
def test_a_batch_norm_that_cannot_be_the_models_is_refused_with_its_client(
    spoil: Callable[[Message], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of("fedbn")
    grid.change = lambda number, reply: spoil(reply) if number == 2 else None
    with caplog.at_level(logging.WARNING, "flwr"):
        run = Run(strategy_of("fedbn"), grid)
    lines = [line for line in caplog.messages if "is refused" in line]
    assert len(lines) == 2 and words in lines[0]
    assert all(torch.isfinite(tensor).all() for tensor in run.model.values())


def test_a_choice_that_cannot_be_is_refused() -> None:
    for variants, choice in (["fedbn"], "median"), ([], "mean"):
        with pytest.raises(SettingError):
            flower.ExactFedAvg(initial(), variants=variants, evaluated_batch_norm=choice)


def test_what_leaves_the_clients_is_not_hidden_from_privacy_mods() -> None:
    """A client-side mod refuses the second record, and a wrapper's noise would not cover the mean."""
    app = client_app(["fedbn"], mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy_of("fedbn"), 0.1, 1.0, 4)
    for strategy, grid in ((strategy_of("fedbn"), FakeGrid(app)), (wrapped, grid_of("fedbn"))):
        with pytest.raises(RuntimeError):
            Run(strategy, grid)
    control = strategy_of("fedbn", "initial")
    wrapped = DifferentialPrivacyServerSideFixedClipping(control, 0.1, 1.0, 4)
    assert not Run(wrapped, grid_of("fedbn")).grid.errors
