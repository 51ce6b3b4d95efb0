"""Runs whose clients have models of their own: what is shared, measured and refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_process import FinishedRun, small

from client_app.memory import load as load_memory
from client_app.metrics import evaluate_models
from client_app.personal import fine_tuned
from client_app.runtime import simulation_runtime
from client_app.state import State
from server_app.checkpoint import latest
from server_app.record import Spread

Train = Callable[..., FinishedRun]
SKEWED: dict[str, Any] = {"alpha": 0.1, "clients": 5, "rounds": 4, "train-images": 400}


def local_accuracy(run: FinishedRun, model: str = "average") -> Spread:
    """Return a model's accuracy on the clients' own class distributions, after the last round."""
    return run.folder.rounds()[-1].models[model].spreads["local-accuracy"]


def same(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def test_dittos_models_know_their_clients_classes_and_its_average_is_fedavgs(train: Train) -> None:
    """The average is measured by the server as FedAvg's is, each client's own model by the client."""
    shared = train("shared", method="fedavg", **SKEWED)
    run = train("own", method="ditto", **SKEWED)
    assert run.summary["hash"]["shared"] == shared.summary["hash"]["shared"]
    assert run.summary["rows"] == {"average": "fedavg", "personal-model": "ditto"}
    for record, other in zip(run.records, shared.records, strict=True):
        assert record["models"]["average"] == other["models"]["average"]
    assert local_accuracy(run, "personal-model").mean > local_accuracy(shared).mean
    assert local_accuracy(run, "personal-model").worst > local_accuracy(shared).worst


def test_dittos_model_of_a_client_that_never_trained_is_the_average(train: Train) -> None:
    """One client trains in the one round; the others have the shared model."""
    run = train("run", method="ditto", rounds=1, participation=0.25)
    own, average = (local_accuracy(run, name).values for name in ("personal-model", "average"))
    (record,) = run.records
    (trained,) = record["clients"]
    others = [number for number in range(4) if number != trained]
    assert [own[number] for number in others] == [average[number] for number in others]
    models = record["models"]
    assert models["personal-model"]["loss"] != models["average"]["loss"]


METHODS_THAT_TRAIN = (
    "fedavg",
    "fedprox",
    "fedshift",
    "fedbn",
    "fedper",
    "creff",
    "scaffold",
    "singleset",
)


@pytest.mark.parametrize("method", METHODS_THAT_TRAIN)
def test_fine_tuning_adds_a_model_and_changes_nothing_else(train: Train, method: str) -> None:
    plain = train("plain", method=method)
    tuned = train("tuned", method=method, finetune_epochs=1)
    assert tuned.summary["hash"] == plain.summary["hash"]
    *before, last = tuned.records
    own = last["models"].pop("fine-tuned")
    assert len(own["local-accuracy"]["values"]) == 4
    last["line"] = plain.records[-1]["line"]
    # The shared model is measured by whom it was; fine-tuned ones by the clients.
    assert [*before, last] == plain.records
    row = tuned.summary["rows"]["fine-tuned"]
    assert row == f"{tuned.summary['rows']['average']}, fine-tuned"
    assert tuned.summary["models"]["fine-tuned"].keys() >= {"last", "best-test"}


def test_a_fine_tuned_model_is_the_clients_own_training_of_the_last_average(train: Train) -> None:
    """Client 2's by hand, from the run's folder."""
    run = train("run", method="fedbn", finetune_epochs=2)
    settings = small(run.folder.path.parent, method="fedbn", finetune_epochs=2)
    checkpoint = latest(run.folder, print)
    assert checkpoint is not None
    runtime = simulation_runtime(settings.run_spec().to_json())
    memory = load_memory(runtime.memory_folder(2), 2)
    client = runtime.client(2, 2, checkpoint.shared, {}, memory)
    state = fine_tuned(client, runtime.run_spec.training)
    assert not same(state, runtime.model_state(checkpoint.shared, memory))
    (scores,) = evaluate_models(runtime.model, {"": state}, runtime.test_sets(2)["test"]).values()
    counts_C = torch.as_tensor(runtime.federation.counts_KC[2])
    recorded = local_accuracy(run, "fine-tuned").values[2]
    assert recorded == scores.local_accuracy(counts_C)
