"""What every method of the registry promises through a whole run: one row per method, none written by hand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from in_process import HEADS, FinishedRun, TamperingGrid, experiment, faithful, number_of, small

from client_app.client import Variant, overrides
from client_app.messages import kind_of
from client_app.state import digest
from client_app.variants import VARIANTS
from data import SettingError
from server_app.checkpoint import Checkpoint
from server_app.methods import METHODS
from strategies import SERVER_METHODS
from strategies.core.server import Server, ServerMethod

Train = Callable[..., FinishedRun]
PLACES = ("combine", "deploy")
TINY: dict[str, Any] = {
    "clients": 3,
    "participation": 0.75,
    "rounds": 2,
    "local_epochs": 1,
    "train_images": 60,
    "test_images": 20,
    "min_samples": 2,
    "evaluate_every": 0,
}
"""Two of three clients take part, so that a client's memory is older than the last round at times."""
DEPLOYED = {
    **{name: [name] for name in ("creff", "creff-code", "ccvr", "tau-norm", *HEADS)},
    "real-features": ["real-features"],
    "real-blocks": ["real-blocks-1", "real-blocks-2"],
    "ditto": ["personal-model"],
}
"""The models that a method has beside the average."""
MEASURED_BY_CLIENTS = {"fedbn", "silobn", "singleset", "fedper", "fedrep"}
"""Methods of which something that the model needs stays on the clients."""


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield copies of all tensors in nested states, updates and deployments."""
    if isinstance(value, torch.Tensor):
        yield value.clone()
    elif isinstance(value, Mapping):
        yield from (tensor for key in sorted(value, key=str) for tensor in tensors(value[key]))
    elif isinstance(value, list | tuple):
        yield from (tensor for item in value for tensor in tensors(item))
    elif is_dataclass(value):
        yield from tensors([getattr(value, field.name) for field in fields(value)])


def bits(value: object) -> list[bytes]:
    """Return the bits of all tensors in a value."""
    return [tensor.numpy().tobytes() for tensor in tensors(value)]


@dataclass(frozen=True)
class WatchedRun:
    """A method's whole run, in which every server method was called twice."""

    method: str
    run: FinishedRun
    called: set[str]
    """The server methods of which something was called."""
    violations: list[str]


@pytest.fixture(scope="module", params=METHODS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WatchedRun:
    """Every method's run, once for all tests of this file."""
    called: set[str] = set()
    violations: list[str] = []

    def watched(kind: type[ServerMethod], place: str, original: Any) -> Callable[..., Any]:
        def twice(self: ServerMethod, server: Server, *given: object) -> Any:
            before = bits((given, server.start))
            first = original(self, server, *given)
            if bits((given, server.start)) != before:
                violations.append(f"{kind.name}.{place} changes what it is given")
            if bits(first) != bits(original(self, server, *given)):
                violations.append(f"{kind.name}.{place} does not repeat")
            called.add(type(self).name)
            return first

        return twice

    filled = [
        (kind, place, getattr(kind, place))
        for kind in SERVER_METHODS.values()
        for place in PLACES
        if getattr(kind, place) is not getattr(ServerMethod, place)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for kind, place, original in filled:
            patch.setattr(kind, place, watched(kind, place, original))
        run = experiment(tmp_path_factory.mktemp("whole"), method=request.param, **TINY)
    return WatchedRun(request.param, run, called, violations)


class Stopped(Exception):
    """Ends a run in the middle of a round."""


def test_the_server_half_changes_none_of_its_inputs_and_repeats_to_the_bit(
    whole: WatchedRun,
) -> None:
    assert whole.violations == []
    assert whole.called >= set(METHODS[whole.method].serving) - {"fedavg"}


def test_every_method_resumes_to_the_same_bits(whole: WatchedRun, train: Train) -> None:
    """A resumed run has its states from a file, and here the clients' messages as bytes as well."""

    def stop(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == TINY["rounds"]:
            raise Stopped

    with pytest.raises(Stopped):
        train(grid=faithful(TamperingGrid(stop)), method=whole.method, **TINY)
    resumed = train(grid=faithful(TamperingGrid()), method=whole.method, **TINY)
    assert "resuming after round 1" in resumed.lines
    assert resumed.summary["hash"] == whole.run.summary["hash"]
    assert resumed.records == whole.run.records
    assert resumed.summary["models"] == whole.run.summary["models"]


def test_a_run_has_the_models_and_records_that_the_method_promises(whole: WatchedRun) -> None:
    method, run = whole.method, whole.run
    models = sorted(["average", *DEPLOYED.get(method, [])])
    assert sorted(run.summary["rows"]) == sorted(run.summary["models"]) == models
    checkpoint = Checkpoint.load(run.folder.checkpoint_file)
    deployed = [digest([state]) for state in checkpoint.deployed.values()]
    assert len(set(deployed)) == len(deployed), "each is another model"
    units = {name for part in METHODS[method].serving for name in SERVER_METHODS[part].units}
    numbers = {name for record in run.folder.rounds() for name in record.metrics}
    assert numbers <= units, "every number of a method has a unit"
    first, last = run.records
    for record in (first, last):
        assert len(record["clients"]) == 2 and record["failures"] == {}
        assert (record["bytes-up"] > 0) == (record["bytes-down"] > 0) == (method != "singleset")
    assert last["evaluated-by"] == ("clients" if method in MEASURED_BY_CLIENTS else "server")
    assert (first["models"], sorted(last["models"])) == ({}, models)


# ---- what composes ---------------------------------------------------------------------------------------------------

COMPANIONS = ("fedshift", "fedbn", "iwds")


def corrects_prior(variant: type[Variant]) -> bool:
    return "uncorrected-prior" in variant.needs


def draws_samples(variant: type[Variant]) -> bool:
    return overrides(variant, "sample_weights")


REFUSED = {
    ("fedlc", "fedshift"),
    ("reweighting", "fedshift"),
    ("ratio-loss", "fedshift"),
    ("silobn", "fedbn"),
    ("singleset", "fedbn"),
    ("uniform-sampling", "iwds"),
    ("fixed-beta-sampling", "iwds"),
    *((name, "fedbn") for name in ("ccvr", "feddf", "fedbe", "ratio-loss")),
    *((name, "fedbn") for name in ("real-features", "real-blocks", *HEADS)),
    *((name, name) for name in COMPANIONS),
}
"""Pairs that are known by name, so that none loses its flag. Of methods to come, what their flags say is added."""
for name, method in METHODS.items():
    kinds = [VARIANTS[variant] for variant in method.variants]
    REFUSED |= {(name, "fedshift")} if any(map(corrects_prior, kinds)) else set()
    REFUSED |= {(name, "iwds")} if any(map(draws_samples, kinds)) else set()


@pytest.mark.parametrize("kind", [*VARIANTS.values(), *SERVER_METHODS.values()])
def test_every_hyperparameter_can_be_set(kind: type) -> None:
    """A class that its decorator is missing from takes the fields of its parent instead."""
    own = [name for name, hint in kind.__annotations__.items() if "ClassVar" not in str(hint)]
    assert set(own) <= {field.name for field in fields(kind)}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_composes_with_fedshift_fedbn_and_iwds_or_says_why_not(
    train: Train, tmp_path: Path, method: str
) -> None:
    """All that go with it are in one run."""
    together = [method]
    for companion in COMPANIONS:
        if (method, companion) in REFUSED:
            with pytest.raises(SettingError) as refused:
                small(tmp_path, method=f"{method}+{companion}")
            assert refused.value.key == "method"
        else:
            together.append(companion)
    (record,) = train(method="+".join(together), **{**TINY, "rounds": 1, "local_steps": 1}).records
    assert record["failures"] == {} and record["loss"] < float("inf")
